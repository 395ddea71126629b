package stripevendor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
)

// Delivery returns how intents are delivered of which each is one POST of Stripe's API v1, which fn makes through sc.
// Register it with dispatcher.Handle; add a Lookup ([Lookup]) and an Apply first if you have them. The package comment
// says what fn must do.
//
// Fn returns the SDK's error. The outcome is that of the table in the package comment if fn returns the zero Outcome.
// On a 2xx, fn may return another outcome.
//
// A POST is a write: a policy with the class dispatcher.Read gets dispatcher.IdempotentWrite.
func Delivery[T any](c *Client, policy dispatcher.Policy,
	fn func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, payload T) (dispatcher.Outcome, error)) dispatcher.Delivery[T] {
	if policy.Class == dispatcher.Read {
		policy.Class = dispatcher.IdempotentWrite
	}
	run := func(ctx context.Context, x *exchange, call *dispatcher.Call, payload T) (dispatcher.Outcome, error) {
		defer x.end()
		return fn(x.in(ctx), c.stripe, call, payload)
	}
	return dispatcher.Delivery[T]{
		Policy:  policy,
		Vendor:  Vendor(),
		Proxied: c.transport.Proxy != nil,
		Render: func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Rendered, error) {
			x := &exchange{purpose: rendering, key: call.CarriedKey}
			_, err := run(ctx, x, call, payload)
			switch {
			case x.refused != nil:
				return dispatcher.Rendered{}, fmt.Errorf("stripevendor: %w", x.refused)
			case x.made == nil && errors.Is(err, errOutside):
				return dispatcher.Rendered{}, errOutside
			case x.made == nil:
				return dispatcher.Rendered{}, errNone
			}
			text, err := json.Marshal(x.made)
			return dispatcher.Rendered{Request: text, Type: requestType}, err
		},
		Send: func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Outcome, error) {
			x := &exchange{purpose: sending, key: call.CarriedKey}
			if call.Rendered != nil { // else a release without this package may have sent it, and the SDK's request is sent
				var err error
				if x.stored, err = parseRequest(call.Rendered.Request, call.Rendered.Type); err != nil {
					return dispatcher.Dead(dispatcher.Response{Code: "request"}).Because(fmt.Errorf("stripevendor: %w", err)), nil
				}
			}
			outcome, err := run(ctx, x, call, payload)
			return c.judge(ctx, x, outcome, err)
		},
	}
}
