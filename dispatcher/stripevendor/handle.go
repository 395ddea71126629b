package stripevendor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/retryafter"
)

// Handle registers an action whose intents are each one POST of Stripe's API v1, which fn makes through sc; the payload is
// decoded as by dispatcher.Handle. What fn must be is said in the package comment; its first result is not looked at, so
// that it can return what the SDK returned. It describes the destination by [Vendor], and takes a dispatcher.Read for the
// dispatcher.IdempotentWrite that a POST is.
func Handle[T, R any](d *dispatcher.Dispatcher, c *Client, action string, policy dispatcher.Policy,
	fn func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, payload T) (R, error), options ...dispatcher.Option) {
	if policy.Class == dispatcher.Read {
		policy.Class = dispatcher.IdempotentWrite
	}
	d.Vendor(firstOf(policy.Destination, action), Vendor())
	run := func(ctx context.Context, x *exchange, call *dispatcher.Call, payload T) error {
		defer x.end()
		_, err := fn(x.in(ctx), c.stripe, call, payload)
		return err
	}
	render := func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Rendered, error) {
		x := &exchange{purpose: rendering, key: call.CarriedKey}
		err := run(ctx, x, call, payload)
		switch {
		case x.refused != nil:
			return dispatcher.Rendered{}, fmt.Errorf("stripevendor: %s: %w", action, x.refused)
		case x.made == nil && errors.Is(err, errOutside):
			return dispatcher.Rendered{}, errOutside
		case x.made == nil:
			return dispatcher.Rendered{}, fmt.Errorf("stripevendor: %s: the function made no request", action)
		}
		text, err := json.Marshal(x.made)
		return dispatcher.Rendered{Request: text, Type: requestType}, err
	}
	dispatcher.Handle(d, action, policy, func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Answer, error) {
		x := &exchange{purpose: sending, key: call.CarriedKey}
		if call.Rendered != nil { // else it may have been sent by a release without this package, and goes on as the SDK makes it
			var err error
			if x.stored, err = parseRequest(call.Rendered.Request, call.Rendered.Type); err != nil {
				return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "request"}, fmt.Errorf("stripevendor: %s: %w", action, err))
			}
		}
		err := run(ctx, x, call, payload)
		return c.judge(ctx, x, action, err)
	}, append([]dispatcher.Option{dispatcher.WithRender(render)}, options...)...)
}

// MetadataKey is where a look-up finds the delivery key again, if your function puts it there:
//
//	params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
const MetadataKey = "samekey_key"

// WithLookup registers how to find what an intent made at Stripe: list names where to look, and match says of each object
// whether it is this intent's (its metadata's MetadataKey is call.CarriedKey) and what it means: dispatcher.Found,
// FoundRefused or Pending. The first that is ends it; where there is none the finding is dispatcher.Absent, which the
// dispatcher believes at the second time, and then parks the intent.
//
// Use a List, narrowed down by customer or by Created, not a Search: Stripe says that what was just written takes up to a
// minute until a search finds it, and longer during an outage, while lists have no such delay. Nothing that writes is let out.
// An error, or an answer other than 2xx, has the look-up tried again, not before Retry-After; a 401 and a 429 spend no attempt,
// nor does an account that cannot be reached.
func WithLookup[T, R any](c *Client, list func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, payload T) stripe.Seq2[R, error],
	match func(call *dispatcher.Call, object R) (f dispatcher.Finding, mine bool)) dispatcher.Option {
	return dispatcher.WithLookup(func(ctx context.Context, call *dispatcher.Call, payload T) (f dispatcher.Finding, err error) {
		x := &exchange{purpose: reading}
		defer x.end()
		mine := false
		list(x.in(ctx), c.stripe, call, payload)(func(object R, failed error) bool {
			if failed != nil {
				err = x.lookupFailed(call.Action)
				return false
			}
			f, mine = match(call, object)
			return !mine
		})
		switch {
		case err != nil:
			return dispatcher.Finding{}, err
		case mine:
			return f, nil
		case x.status == 0:
			return dispatcher.Finding{}, x.lookupFailed(call.Action)
		}
		return dispatcher.Absent(dispatcher.Answer{Code: "absent"}), nil
	})
}

func (x *exchange) lookupFailed(action string) error {
	x.end() // which says whether anything was sent
	switch {
	case x.refused != nil:
		return fmt.Errorf("stripevendor: %s: %w", action, x.refused)
	case x.failure != nil:
		_, text := describe(x.failure)
		err := fmt.Errorf("stripevendor: %s: the look-up got no answer: %s", action, text)
		if !x.sent {
			err = dispatcher.Unsent(err)
		}
		return err
	case x.status == 0:
		return fmt.Errorf("stripevendor: %s: the look-up asked for nothing", action)
	}
	err := fmt.Errorf("stripevendor: %s: the look-up was answered %d", action, x.status)
	wait, waits := retryafter.Read(x.header, time.Now())
	switch httpstatus.Of(x.status, waits) {
	case httpstatus.Denied:
		err = dispatcher.Denied(dispatcher.Answer{Code: strconv.Itoa(x.status)}, err)
	case httpstatus.Later:
		err = dispatcher.Throttled(wait, err)
	}
	return dispatcher.NotBefore(wait, err)
}
