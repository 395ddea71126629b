package dispatcher_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// busyVendor answers 429 or 503 without a Retry-After until the test tells it to answer 200.
type busyVendor struct {
	*httptest.Server
	status   atomic.Int32
	calls    atomic.Int32
	together atomic.Int32
}

func startBusy(b *bundle, status int) *busyVendor {
	v := &busyVendor{}
	v.status.Store(int32(status))
	v.Server = httptest.NewServer(v)
	b.Cleanup(v.Close)
	return v
}

func (v *busyVendor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	v.calls.Add(1)
	v.together.Add(1)
	defer v.together.Add(-1)
	w.WriteHeader(int(v.status.Load()))
}

func (v *busyVendor) idle() bool { return v.together.Load() == 0 }

// call maps 429 and 503 to the given outcomes.
func (v *busyVendor) call(b *bundle, busy dispatcher.Outcome) handler {
	return func(ctx context.Context, _ *dispatcher.Call) (dispatcher.Outcome, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, v.URL, nil)
		if err != nil {
			return dispatcher.Outcome{}, err
		}
		response, err := do(b.client, request)
		switch {
		case err != nil:
			return dispatcher.Outcome{}, err
		case response.Code != "200":
			return busy, nil
		}
		return dispatcher.Delivered(response), nil
	}
}

var busyAnswers = map[string]dispatcher.Outcome{
	"429 without a time":          dispatcher.Retry(dispatcher.Response{Code: "429"}).ForAccount(),
	"503, the vendor did not act": dispatcher.Retry(dispatcher.Response{Code: "503"}),
	"503 with a time":             dispatcher.Retry(dispatcher.Response{Code: "503"}).After(time.Second),
}

// 5,000 intents are due. A first batch goes out, then one call after each hold. The holds double: 25, 50, 100, 200 ms.
func TestThrottleWithoutATimeAllowsFewCalls(t *testing.T) {
	for name, busy := range busyAnswers {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			v := startBusy(b, http.StatusTooManyRequests)
			d := b.breaking(dispatcher.NonIdempotentWrite, dispatcher.Limits{Concurrency: 8, BreakDelay: 200 * time.Millisecond, MaxBreakDelay: time.Hour}, v.call(b, busy))
			b.insertManyMore("charge_card", 5_000)
			b.start(d)
			b.logs.Wait(t, "holds=4 ")
			// The batch, the calls that had begun by the tenth answer, and a probe for each of the three holds that
			// ended.
			if n := v.calls.Load(); n > 24+3 {
				t.Errorf("%d calls were made", n)
			}
			if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used > 0 or first_sent_at is not null and status = 'pending'`); n != 0 {
				t.Errorf("%d intents used an attempt or were sent", n)
			}
		})
	}
}

// Each hold ends with one call. While the vendor answers, the number of calls in flight doubles.
func TestCallsReturnOneByOneAfterAHold(t *testing.T) {
	b := setup(t)
	v := startBusy(b, http.StatusTooManyRequests)
	d := b.dispatcherOn(b.db.Pool, dispatcher.Config{SweepInterval: time.Minute}) // no sweep helps
	d.NoJitter()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 16, BreakDelay: 4 * time.Second, MaxBreakDelay: 4 * time.Second})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), v.call(b, busyAnswers["429 without a time"]))
	b.insertMany("charge_card", 300)
	b.start(d)
	b.logs.Wait(t, "holds=2 ")
	b.until("no call is in flight", v.idle)
	before := v.calls.Load()
	b.logs.Wait(t, "holds=3 ")
	b.until("no call is in flight", v.idle)
	if n := v.calls.Load() - before; n != 1 {
		t.Errorf("after a hold %d calls were made, want 1", n)
	}
	v.status.Store(http.StatusOK)
	b.until("the others are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue where attempt = 0`) == 0 })
}

// A Drain does not wait for a hold, and does not hang.
func TestDrainSkipsAHeldDestination(t *testing.T) {
	b := setup(t)
	v := startBusy(b, http.StatusServiceUnavailable)
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{Concurrency: 2, BreakAfter: 3, BreakDelay: time.Hour, MaxBreakDelay: time.Hour},
		v.call(b, busyAnswers["503, the vendor did not act"]))
	b.insertMany("charge_card", 50)
	sum := b.drain(d)
	if n := int(v.calls.Load()); n < 3 || n > 4 || sum != (dispatcher.Summary{Retried: n}) {
		t.Errorf("%d calls, the drain returned %+v", n, sum)
	}
}

// If a customer's webhook answers 503, only that endpoint is held.
func TestThrottledReceiverDoesNotDelayOthers(t *testing.T) {
	b := setup(t)
	var busyCalls, calls atomic.Int32
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{BreakAfter: 3, BreakDelay: time.Hour, MaxBreakDelay: time.Hour, PerEndpoint: 2},
		func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
			if call.Part == "to-0" {
				busyCalls.Add(1)
				return dispatcher.Retry(dispatcher.Response{Code: "503"}), nil
			}
			calls.Add(1)
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		}, byPart)
	b.insertTo(300, 0, 0)
	b.insertTo(20, 1, 20)
	sum := b.drain(d)
	if n := int(busyCalls.Load()); n < 3 || n > 4 || sum != (dispatcher.Summary{Delivered: 400, Retried: n}) {
		t.Errorf("%d calls to the busy endpoint, the drain returned %+v", n, sum)
	}
	if n := b.toEndpoint("to-0", asWritten); n != 300-int(busyCalls.Load()) {
		t.Errorf("%d intents of the busy endpoint look unclaimed", n)
	}
}

// A vendor sometimes answers that a call under this key still runs. That slows down nothing else.
func TestSingleRetrySlowsNothing(t *testing.T) {
	b := setup(t)
	var calls atomic.Int32
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{Concurrency: 1, BreakAfter: 3, BreakDelay: time.Hour, MaxBreakDelay: time.Hour},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			if calls.Add(1)%3 != 0 {
				return dispatcher.Retry(dispatcher.Response{Code: "409"}), nil
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		})
	b.insertMany("charge_card", 60)
	b.expect(d, dispatcher.Summary{Delivered: 20, Retried: 40})
}
