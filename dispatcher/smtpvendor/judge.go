package smtpvendor

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/wire"
)

// judge returns what a failed attempt means: the table of the package comment.
func (c *Client) judge(at stage, err error) (dispatcher.Outcome, error) {
	failed := func(format string, args ...any) error {
		return fmt.Errorf("smtpvendor: %s: %w", c.server.Host, fmt.Errorf(format, args...))
	}
	var said *textproto.Error
	if !errors.As(err, &said) || at == atTLS {
		code, text := describe(err)
		response := dispatcher.Response{Code: code}
		switch {
		case at == atEnd:
			return dispatcher.Unknown(response), failed("no answer after %s: %s", at, text)
		case at == atAuth && code == "protocol":
			return dispatcher.Denied(response).Because(failed("at %s: %s", at, text)), nil
		}
		return dispatcher.Unknown(response), failed("%w, at %s: %s", dispatcher.ErrUnsent, at, text)
	}
	response := c.reply(at, said.Code, said.Msg)
	policy := said.Code == 530 || strings.HasPrefix(response.Code, strconv.Itoa(said.Code)+" 5.7.")
	switch {
	case said.Code >= 400 && said.Code < 500:
		return dispatcher.Retry(response).Because(failed("%s was answered %s: retry later", at, response.Code)), nil
	case said.Code < 500 || said.Code > 599:
		if at == atEnd {
			return dispatcher.Unknown(response), failed("%s was answered %s, which is neither success nor failure", at, response.Code)
		}
		return dispatcher.Unknown(response), failed("%w: %s was answered %s", dispatcher.ErrUnsent, at, response.Code)
	case at == atHello || at == atAuth:
		return dispatcher.Denied(response).Because(failed("%s was answered %s: correct the account", at, response.Code)), nil
	case at == atRcpt && !policy:
		return dispatcher.Refused(response), nil
	}
	return dispatcher.Dead(response).Because(failed("%s was answered %s", at, response.Code)), nil
}

// shortestSecret is the length in bytes from which a credential is removed from replies.
const shortestSecret = 4

var enhanced = regexp.MustCompile(`^[245]\.\d{1,3}\.\d{1,3}\b`)

// reply returns what is stored of a server's reply.
func (c *Client) reply(at stage, code int, text string) dispatcher.Response {
	response := dispatcher.Response{Code: strconv.Itoa(code)}
	if more := enhanced.FindString(text); more != "" {
		response.Code += " " + more
	}
	if at == atAuth || text == "" {
		return response
	}
	secrets := redact.Secrets{Shortest: shortestSecret}.With(c.server.Password, c.server.Username)
	response.ContentType, response.Body = "text/plain; charset=utf-8", secrets.Strike([]byte(text), math.MaxInt)
	return response
}

// describe is [wire.Describe], and knows the errors of SMTP and of this package as well.
func describe(err error) (code, text string) {
	var said *textproto.Error
	switch {
	case errors.Is(err, errNoStartTLS):
		return "starttls", "the server offers no STARTTLS, and nothing is sent without TLS"
	case errors.Is(err, errNoAuth):
		return "protocol", "the server offers none of SCRAM-SHA-256, PLAIN and LOGIN"
	case errors.As(err, &said):
		return strconv.Itoa(said.Code), "it was answered " + strconv.Itoa(said.Code)
	case errors.Is(err, net.ErrClosed): // by send
		return "stopped", "the attempt was stopped, or its time was over"
	}
	return wire.Describe(err, "SMTP")
}
