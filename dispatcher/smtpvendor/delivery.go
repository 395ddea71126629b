package smtpvendor

import (
	"context"
	"fmt"

	"github.com/wneessen/go-mail"

	"github.com/samekey/samekey/dispatcher"
)

// Delivery returns how intents are delivered of which each is one mail, which compose makes of the payload. Register it
// with dispatcher.Handle; add a Lookup ([SentLog]) and an Apply first if you have them.
//
// Compose runs once per intent. If it returns an error, the intent is dead and unsent, with the error in its history.
// The mail's Message-ID is overwritten; its Date is the intent's unless compose sets one. dispatcher.Dispatcher.Check
// refuses a class by which a mail would be repeated without a lookup.
func Delivery[T any](c *Client, policy dispatcher.Policy, compose func(ctx context.Context, call *dispatcher.Call, payload T) (*mail.Msg, error)) dispatcher.Delivery[T] {
	if policy.Class == dispatcher.Read { // Check allows it, but a mail is not a read
		policy.Class = dispatcher.IdempotentWrite
	}
	return dispatcher.Delivery[T]{
		Policy: policy,
		Vendor: Vendor(),
		Render: func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Rendered, error) {
			m, err := compose(ctx, call, payload)
			if err != nil {
				return dispatcher.Rendered{}, err
			}
			rendered, err := c.rendered(call, m)
			if err != nil {
				return dispatcher.Rendered{}, fmt.Errorf("smtpvendor: %w", err)
			}
			return rendered, nil
		},
		Send: func(ctx context.Context, call *dispatcher.Call, _ T) (dispatcher.Outcome, error) {
			q, err := parseLetter(call.Rendered)
			if err != nil {
				return dispatcher.Dead(dispatcher.Response{Code: "letter"}).Because(fmt.Errorf("smtpvendor: %w", err)), nil
			}
			at, said, err := c.send(ctx, q)
			outcome := dispatcher.Delivered(c.reply(at, 250, said))
			if err != nil {
				outcome, err = c.judge(at, err)
			}
			if at == atEnd { // the server may have the mail, and its log has the mail by this
				outcome = outcome.Reference(call.Rendered.MessageID)
			}
			return outcome, err
		},
	}
}

// SentLog returns a Lookup that finds a mail in the log of what the provider has accepted, by its Message-ID with the
// angle brackets. Find returns dispatcher.Delivered if the mail is there, dispatcher.Absent if it is not, and
// dispatcher.Unknown if the log cannot tell.
//
// The log is asked if an outcome is unknown, after Policy.SettlingDelay, which must be longer than the log takes. After
// a second Absent the mail is parked, or sent once more with the same Message-ID if Policy.ResendAbsent is set. Not
// every log keeps the sender's Message-ID: some providers replace it.
func SentLog[T any](find func(ctx context.Context, messageID string) (dispatcher.Outcome, error)) func(context.Context, *dispatcher.Call, T) (dispatcher.Outcome, error) {
	return func(ctx context.Context, call *dispatcher.Call, _ T) (dispatcher.Outcome, error) {
		if call.Rendered == nil || call.Rendered.MessageID == "" {
			return dispatcher.Unknown(dispatcher.Response{Code: "no_message_id"}), nil
		}
		return find(ctx, call.Rendered.MessageID)
	}
}
