package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/samekey/samekey/internal/wire"
)

// context is the context of the claim's call. It ends Timeout after the claim was sent, however long the claim took.
func (c *claim) context(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(parent, c.asked.Add(c.action.policy.Timeout))
}

// call makes the claim's call: its Send, or its Lookup if the intent's outcome is unknown. No connection to the
// database is held meanwhile.
func (d *destination) call(ctx context.Context, c *claim, call *Call) (outcome Outcome, took time.Duration) {
	lookup := c.Status == statusUnknown
	fn, requests := c.action.send, c.action.requests()
	if lookup {
		fn, requests = c.action.lookup, &wire.Attempt{} // a lookup may make several requests
	}
	defer requests.End() // before the call is settled
	ctx = requests.In(ctx)
	began := time.Now()
	outcome, err := guard(func() (Outcome, error) {
		outcome, err := fn(ctx, call)
		_ = outcome.text() // it may panic, as the text of an error may
		return outcome, err
	})
	outcome = conclude(outcome, err, lookup, requests.Once && requests.Sent())
	if outcome.mistake {
		d.core.log.ErrorContext(ctx, "dispatcher: an action's function returned a wrong outcome; it counts as unknown",
			append(c.attrs(), slog.String("error", causeOf(c, outcome.reason)))...)
	}
	return outcome, time.Since(began)
}

// requests is what a Send may send with the client of package httpclient.
func (a *action) requests() *wire.Attempt {
	return &wire.Attempt{Once: a.policy.Class != Read, Direct: a.policy.ResendAbsent}
}

// errGoexitCall is the error of a function that ended its goroutine, such as by t.FailNow in a test.
var errGoexitCall = errors.New("the function ended its goroutine")
