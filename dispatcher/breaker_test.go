package dispatcher_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
)

// unspent counts the action's intents that look as if they had never been claimed: due, with no attempt used, no key
// window and no history.
func (b *bundle) unspent(action string) int {
	b.Helper()
	return b.count(`select count(*) from samekey.outbox_queue q where q.action = $1 and q.status = 'pending' and q.attempt = 0 and q.attempts_used = 0
		and q.first_sent_at is null and q.key_window_until is null and q.due_at <= now()
		and not exists (select from samekey.outbox_history h where h.intent_id = q.id)`, action)
}

// breaking returns a dispatcher with these limits, no jitter, and this handler.
func (b *bundle) breaking(class dispatcher.Class, limits dispatcher.Limits, fn handler, options ...option) *dispatcher.Dispatcher {
	d := b.dispatcher()
	d.NoJitter()
	d.Destination("vendor", limits)
	handle(d, "charge_card", policyOf(class), fn, options...)
	return d
}

func TestUnreachableVendorUsesNoAttempts(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.Read, dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			closed, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_ = closed.Close()
			d := b.breaking(class, dispatcher.Limits{Concurrency: 4, BreakAfter: 6, BreakDelay: time.Hour},
				postTo(b.client, "http://user:secret@"+closed.Addr().String()))
			b.insertMany("charge_card", 200)
			sum := b.drain(d)
			if sum.Total() < 6 || sum.Total() > 9 || sum.Total() != sum.Retried {
				t.Errorf("the drain returned %+v, want 6 attempts and the calls that were in flight", sum)
			}
			if n := b.unspent("charge_card"); n != 200-sum.Total() {
				t.Errorf("%d intents look unclaimed, want all but %d", n, sum.Total())
			}
			if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used > 0 or first_sent_at is not null`); n != 0 {
				t.Errorf("%d intents used an attempt or were sent", n)
			}
			logged := b.logs.String()
			if strings.Count(logged, "level=WARN msg=\"dispatcher: calls fail") != 1 || !strings.Contains(logged, "destination=vendor code=unsent failures=6 again_in=1h0m0s") {
				t.Error("it was not logged, once, with destination, code and delay")
			}
			if strings.Contains(logged, "secret") {
				t.Error("the log holds a secret")
			}
		})
	}
}

func TestOpenBreakerProbesOneIntentAtATime(t *testing.T) {
	b := setup(t)
	var up atomic.Bool
	var together, most atomic.Int32
	probes := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{Concurrency: 8, BreakAfter: 8, BreakDelay: 20 * time.Millisecond, MaxBreakDelay: 40 * time.Millisecond},
		func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
			n := together.Add(1)
			defer together.Add(-1)
			// Calls from before the breaker opened may still be in flight when it is logged, but not after a failed
			// probe.
			if strings.Count(b.logs.String(), "calls fail") > 2 && !up.Load() {
				most.Store(max(most.Load(), n))
				probes <- struct{}{}
			}
			return postTo(b.client, server.URL)(ctx, call)
		})
	b.insertMany("charge_card", 100)
	b.start(d)
	for range 5 {
		wait(b, "a probe", probes)
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d probes were in flight at once", n)
	}
	up.Store(true)
	b.until("the others are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue where attempt = 0`) == 0 })
	b.logs.Wait(b, "calls are answered again")
	if n := b.count(`select count(*) from samekey.outbox_history where outcome = 'delivered'`); n == 0 {
		t.Error("no intent was delivered")
	}
}

func TestDeniedBurstPausesTheDestination(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.Read, dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			var calls atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			defer server.Close()
			post := postTo(b.client, server.URL)
			d := b.breaking(class, dispatcher.Limits{Concurrency: 1, BreakDelay: time.Hour},
				func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
					outcome, err := post(ctx, call)
					if outcome.Response().Code == "401" {
						outcome = dispatcher.Denied(outcome.Response())
					}
					return outcome, err
				})
			b.insertMany("charge_card", 50)
			b.expect(d, dispatcher.Summary{Retried: 3})
			if n := calls.Load(); n != 3 {
				t.Errorf("%d calls, want 3", n)
			}
			if n := b.unspent("charge_card"); n != 47 {
				t.Errorf("%d intents look unclaimed", n)
			}
			if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used > 0 or first_sent_at is not null`); n != 0 {
				t.Errorf("%d intents used an attempt or were sent", n)
			}
		})
	}
}

// 10,000 intents are due and the vendor answers 429: it does not get 10,000 calls.
func TestThrottledVendorGetsNoNewCalls(t *testing.T) {
	b := setup(t)
	var calls atomic.Int32
	throttled := func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		calls.Add(1)
		return dispatcher.Retry(dispatcher.Response{}).After(10 * time.Minute).ForAccount().Because(errors.New("429")), nil
	}
	d := b.breaking(dispatcher.NonIdempotentWrite, dispatcher.Limits{Concurrency: 4, MaxBreakDelay: time.Hour}, throttled)
	b.insertMany("charge_card", 10_000)
	sum := b.drain(d)
	if n := int(calls.Load()); n < 1 || n > 4 || sum != (dispatcher.Summary{Retried: n}) {
		t.Errorf("%d calls, the drain returned %+v", n, sum)
	}
	if n := b.unspent("charge_card"); n != 10_000-sum.Retried {
		t.Errorf("%d intents look unclaimed", n)
	}
	if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used > 0 or first_sent_at is not null`); n != 0 {
		t.Errorf("%d intents used an attempt or were sent", n)
	}
	b.logs.Wait(b, "wants fewer calls")
}

// The pause is longer than a drain waits. After it, no call is a probe: the first one fails and the others continue.
func TestCallsResumeAfterThrottling(t *testing.T) {
	b := setup(t)
	var calls atomic.Int32
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{Concurrency: 1, BreakAfter: 2, BreakDelay: time.Hour},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			switch calls.Add(1) {
			case 1:
				return dispatcher.Retry(dispatcher.Response{}).After(500 * time.Millisecond).ForAccount().Because(errors.New("429")), nil
			case 2:
				return dispatcher.Outcome{}, errors.New("reset")
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		})
	b.insertMany("charge_card", 20)
	b.start(d)
	b.until("all are delivered but the two", func() bool { return b.count("select count(*) from samekey.outbox_queue") == 2 })
	if n := calls.Load(); n != 20 || strings.Contains(b.logs.String(), "calls fail") {
		t.Errorf("%d calls, want 20 and no open breaker", n)
	}
}

func TestRefusedDoesNotOpenTheBreaker(t *testing.T) {
	for name, outcome := range map[string]dispatcher.Outcome{
		"refused": dispatcher.Refused(dispatcher.Response{Code: "card_declined"}),
		"dead":    dispatcher.Dead(dispatcher.Response{Code: "404"}).Because(errors.New("no such order")),
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{BreakAfter: 2, BreakDelay: time.Hour},
				func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) { return outcome, nil })
			b.insertMany("charge_card", 40)
			if sum := b.drain(d); sum.Total() != 40 {
				t.Errorf("the drain returned %+v", sum)
			}
		})
	}
}

func TestFailedLookupsOpenTheBreaker(t *testing.T) {
	b := setup(t)
	d := b.breaking(dispatcher.NonIdempotentWrite, dispatcher.Limits{Concurrency: 1, BreakAfter: 4, BreakDelay: time.Hour}, b.post,
		withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, errors.New("status 503")
		}))
	b.insertMany("charge_card", 20)
	b.exec(`update samekey.outbox_queue set status = 'unknown', first_sent_at = now()`)
	b.expect(d, dispatcher.Summary{Unknown: 4})
}

func TestDisabledBreaker(t *testing.T) {
	b := setup(t)
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{BreakAfter: -1},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, errors.New("reset")
		})
	b.insertMany("charge_card", 40)
	b.expect(d, dispatcher.Summary{Retried: 40})
}

// An open breaker, and its probe, cause no loop of claims.
func TestOpenBreakerDoesNotLoop(t *testing.T) {
	b := setup(t)
	statements := &dbtest.Statements{Like: "OutboxQueueClaim :"}
	d := b.dispatcherOn(b.tracedBy(statements), dispatcher.Config{})
	d.NoJitter()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1, BreakAfter: 1, BreakDelay: time.Hour})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite),
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, errors.New("reset")
		})
	b.insertMany("charge_card", 10)
	b.start(d)
	b.logs.Wait(b, "calls fail")
	before := statements.Count()
	b.sweeps(d, 600*time.Millisecond)
	if n := statements.Count() - before; n > 2 {
		t.Errorf("%d claims were made while it was open", n)
	}
	if n := b.unspent("charge_card"); n != 9 {
		t.Errorf("%d intents look unclaimed", n)
	}
}
