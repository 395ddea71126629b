package stripevendor

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/retryafter"
)

// MetadataKey is where a lookup finds the delivery key again, if your function puts it there:
//
//	params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
const MetadataKey = "samekey_key"

// Lookup returns a function for dispatcher.Delivery.Lookup that finds what an intent created at Stripe. List says where
// to look. Match reports of each object whether it is this intent's (its metadata's MetadataKey is call.CarriedKey) and
// what it means: dispatcher.Delivered, Refused or Accepted, with the object's id as the Reference. The first match ends
// the lookup. Without a match the outcome is dispatcher.Absent; after the second Absent the intent is parked.
//
// Use a List, limited by customer or by Created, and not a Search: Stripe states that a search finds a new object after
// up to a minute, and later during an outage, while lists have no such delay. Requests that write are refused.
//
// After an error, or an answer other than 2xx, the lookup is repeated, not before Retry-After. A 401, a 429 and an
// account that cannot be reached use no attempt.
func Lookup[T, R any](c *Client, list func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, payload T) stripe.Seq2[R, error],
	match func(call *dispatcher.Call, object R) (outcome dispatcher.Outcome, mine bool)) func(context.Context, *dispatcher.Call, T) (dispatcher.Outcome, error) {
	return func(ctx context.Context, call *dispatcher.Call, payload T) (outcome dispatcher.Outcome, err error) {
		x := &exchange{purpose: reading}
		defer x.end()
		failed, mine := false, false
		list(x.in(ctx), c.stripe, call, payload)(func(object R, err error) bool {
			if failed = err != nil; failed {
				return false
			}
			outcome, mine = match(call, object)
			return !mine
		})
		switch {
		case failed || !mine && x.status == 0:
			return x.lookupFailed()
		case mine:
			return outcome, nil
		}
		return dispatcher.Absent(dispatcher.Response{Code: "absent"}), nil
	}
}

// lookupFailed returns what a lookup without a usable answer means. An error means that Stripe could not be asked.
func (x *exchange) lookupFailed() (dispatcher.Outcome, error) {
	x.end() // after which it is known whether anything was sent
	switch {
	case x.refused != nil:
		return dispatcher.Outcome{}, fmt.Errorf("stripevendor: %w", x.refused)
	case x.failure != nil:
		_, text := describe(x.failure)
		if !x.sent {
			return dispatcher.Outcome{}, fmt.Errorf("stripevendor: the lookup got no answer, %w: %s", dispatcher.ErrUnsent, text)
		}
		return dispatcher.Outcome{}, fmt.Errorf("stripevendor: the lookup got no answer: %s", text)
	case x.status == 0:
		return dispatcher.Outcome{}, fmt.Errorf("stripevendor: the lookup made no request")
	}
	err := fmt.Errorf("stripevendor: the lookup was answered %d", x.status)
	response := dispatcher.Response{Code: strconv.Itoa(x.status)}
	wait, waits := retryafter.Read(x.header, time.Now())
	switch httpstatus.Of(x.status, waits) {
	case httpstatus.Denied:
		return dispatcher.Denied(response).After(wait).Because(err), nil
	case httpstatus.Later:
		return dispatcher.Retry(response).ForAccount().After(wait).Because(err), nil
	}
	return dispatcher.Outcome{}.After(wait), err
}
