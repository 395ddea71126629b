package smtpvendor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"

	"github.com/wneessen/go-mail"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wire"
)

// Handle registers an action whose intents are each one mail, composed by compose from the payload, which is decoded as by
// dispatcher.Handle. Compose is run once per intent; its error makes the intent dead, unsent, and is kept in its history. Its
// Message-ID is overwritten, and its Date is the intent's where it sets none. Handle describes the destination by [Vendor],
// so that Check refuses a class that would send a mail again blindly.
func Handle[T any](d *dispatcher.Dispatcher, c *Client, action string, policy dispatcher.Policy,
	compose func(ctx context.Context, call *dispatcher.Call, payload T) (*mail.Msg, error), options ...dispatcher.Option) {
	if policy.Class == dispatcher.Read { // Check has nothing against one, and a mail is no read
		policy.Class = dispatcher.IdempotentWrite
	}
	destination := policy.Destination
	if destination == "" {
		destination = action
	}
	d.Vendor(destination, Vendor())
	render := func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Rendered, error) {
		m, err := compose(ctx, call, payload)
		if err != nil {
			return dispatcher.Rendered{}, err
		}
		rendered, err := c.fix(call, m)
		if err != nil {
			return dispatcher.Rendered{}, fmt.Errorf("smtpvendor: %s: %w", action, err)
		}
		return rendered, nil
	}
	d.Handle(action, policy, func(ctx context.Context, call *dispatcher.Call) (dispatcher.Answer, error) {
		q, err := parseLetter(call.Rendered)
		if err != nil {
			return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "letter"}, fmt.Errorf("smtpvendor: %s: %w", action, err))
		}
		at, said, err := c.send(ctx, q)
		if err != nil {
			return c.judge(action, at, err)
		}
		return c.reply(at, 250, said), nil
	}, append([]dispatcher.Option{dispatcher.WithRender(render)}, options...)...)
}

// WithSentLog registers how to find a mail in the log of what the provider has accepted, by its Message-ID with its angle
// brackets: dispatcher.Found where it is there, dispatcher.Absent where it is not, dispatcher.Inconclusive where the log
// cannot tell. It is asked where an outcome is unknown, after Policy.SettlingDelay, which must be longer than the log takes.
// Absent is believed at the second time; the mail is then parked, or sent once more, with the same Message-ID, where
// Policy.ResendAbsent says so. Not every log keeps the sender's Message-ID: some providers replace it.
func WithSentLog(find func(ctx context.Context, messageID string) (dispatcher.Finding, error)) dispatcher.Option {
	return dispatcher.WithLookup(func(ctx context.Context, call *dispatcher.Call, _ json.RawMessage) (dispatcher.Finding, error) {
		if call.Rendered == nil || call.Rendered.MessageID == "" {
			return dispatcher.Inconclusive(dispatcher.Answer{Code: "no_message_id"}), nil
		}
		return find(ctx, call.Rendered.MessageID)
	})
}

// judge says what a failed attempt came to: the table of the package comment.
func (c *Client) judge(action string, at stage, err error) (dispatcher.Answer, error) {
	failed := func(format string, args ...any) error {
		return fmt.Errorf("smtpvendor: %s at %s: %s", action, c.server.Host, fmt.Sprintf(format, args...))
	}
	var said *textproto.Error
	if !errors.As(err, &said) || at == atTLS {
		code, text := describe(err)
		answer := dispatcher.Answer{Code: code}
		switch {
		case at == atEnd:
			return answer, dispatcher.Unknown(answer, failed("no answer after %s: %s", at, text))
		case at == atAuth && code == "protocol":
			return answer, dispatcher.Denied(answer, failed("at %s: %s", at, text))
		}
		return answer, dispatcher.Unsent(failed("nothing was accepted, at %s: %s", at, text))
	}
	answer := c.reply(at, said.Code, said.Msg)
	policy := said.Code == 530 || strings.HasPrefix(answer.Code, strconv.Itoa(said.Code)+" 5.7.")
	switch {
	case said.Code >= 400 && said.Code < 500:
		return answer, dispatcher.RetryAfter(0, failed("%s was answered %s: ask again later", at, answer.Code))
	case said.Code < 500 || said.Code > 599:
		if at == atEnd {
			return answer, dispatcher.Unknown(answer, failed("%s was answered %s, which says neither yes nor no", at, answer.Code))
		}
		return answer, dispatcher.Unsent(failed("nothing was accepted: %s was answered %s", at, answer.Code))
	case at == atHello || at == atAuth:
		return answer, dispatcher.Denied(answer, failed("%s was answered %s: correct the account", at, answer.Code))
	case at == atRcpt && !policy:
		return answer, dispatcher.Refused(answer)
	}
	return answer, dispatcher.Dead(answer, failed("%s was answered %s", at, answer.Code))
}

// shortestSecret: what is shorter is part of many words.
const shortestSecret = 4

var enhanced = regexp.MustCompile(`^[245]\.\d{1,3}\.\d{1,3}\b`)

// reply is what is kept of a server's reply.
func (c *Client) reply(at stage, code int, text string) dispatcher.Answer {
	answer := dispatcher.Answer{Code: strconv.Itoa(code)}
	if more := enhanced.FindString(text); more != "" {
		answer.Code += " " + more
	}
	if at == atAuth || text == "" {
		return answer
	}
	for _, secret := range []string{c.server.Password, c.server.Username} {
		if len(secret) >= shortestSecret {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	answer.ContentType, answer.Body = "text/plain; charset=utf-8", []byte(text)
	return answer
}

// describe is [wire.Describe], and knows what only SMTP and this package say.
func describe(err error) (code, text string) {
	var said *textproto.Error
	switch {
	case errors.Is(err, errNoStartTLS):
		return "starttls", "the server offers no STARTTLS, and without TLS nothing is sent"
	case errors.Is(err, errNoAuth):
		return "protocol", "the server offers none of SCRAM-SHA-256, PLAIN and LOGIN"
	case errors.As(err, &said):
		return strconv.Itoa(said.Code), "it was answered " + strconv.Itoa(said.Code)
	case errors.Is(err, net.ErrClosed): // by send
		return "stopped", "the attempt was stopped, or its time was over"
	}
	return wire.Describe(err, "SMTP")
}
