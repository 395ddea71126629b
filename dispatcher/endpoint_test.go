package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// receivers is a server of many endpoints, named by paths. Calls to a hanging endpoint wait until release.
type receivers struct {
	*httptest.Server
	hangs    string
	hanging  chan struct{} // one for each call that hangs
	released chan struct{}
	once     sync.Once

	mu             sync.Mutex
	calls          map[string]int
	together, most map[string]int
}

func receive(b *bundle, hangs string) *receivers {
	r := &receivers{hangs: hangs, hanging: make(chan struct{}, 10_000), released: make(chan struct{}),
		calls: map[string]int{}, together: map[string]int{}, most: map[string]int{}}
	r.Server = httptest.NewServer(r)
	b.Cleanup(r.Close)
	b.Cleanup(r.release)
	return r
}

func (r *receivers) release() { r.once.Do(func() { close(r.released) }) }

func (r *receivers) ServeHTTP(_ http.ResponseWriter, request *http.Request) {
	name := strings.TrimPrefix(request.URL.Path, "/")
	r.count(name, 1)
	defer r.count(name, -1)
	if name == r.hangs {
		r.hanging <- struct{}{}
		select {
		case <-r.released:
		case <-request.Context().Done():
		}
	}
}

func (r *receivers) count(name string, change int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.together[name] += change
	if change > 0 {
		r.calls[name]++
		r.most[name] = max(r.most[name], r.together[name])
	}
}

// deliver calls the intent's endpoint. The intent's part is its name.
func (r *receivers) deliver(b *bundle) handler {
	return func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/"+call.Part, nil)
		if err != nil {
			return dispatcher.Outcome{}, err
		}
		response, err := do(b.client, request)
		return dispatcher.Delivered(response), err
	}
}

var byPart = withEndpoint(func(call *dispatcher.Call) string { return call.Part })

// insertTo commits n intents for each of the endpoints from..to.
func (b *bundle) insertTo(n, from, to int) {
	b.Helper()
	b.exec(`select samekey.enqueue('tenant/bulk', 'k' || i, 'charge_card', '{}', part => 'to-' || e)
		from generate_series($2::int, $3::int) e, generate_series(1, $1::int) i`, n, from, to)
}

// toEndpoint counts the intents in the queue for an endpoint that match a condition.
func (b *bundle) toEndpoint(name, where string) int {
	b.Helper()
	return b.count(`select count(*) from samekey.outbox_queue q join samekey.outbox o on o.id = q.id where o.part = $1 and `+where, name)
}

// asWritten matches pending intents that look unclaimed: no attempt used, not sent, no history.
const asWritten = `q.status = 'pending' and q.leased_by is null and q.attempts_used = 0 and q.first_sent_at is null and q.key_window_until is null and q.last_code is null
	and not exists (select from samekey.outbox_history h where h.intent_id = q.id)`

func TestHangingEndpointDoesNotDelayOthers(t *testing.T) {
	b := setup(t)
	r := receive(b, "to-0")
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 16})
	p := policyOf(dispatcher.IdempotentWrite)
	p.Timeout = 2 * patience
	handle(d, "charge_card", p, r.deliver(b), byPart)
	b.insertTo(300, 0, 0) // due first
	b.insertTo(1, 1, 999)
	running := b.start(d)
	for range 4 {
		wait(b, "a hanging call", r.hanging)
	}
	b.until("all others are delivered", func() bool {
		return b.count(`select count(*) from samekey.outbox_history where outcome = 'delivered'`) == 999
	})
	b.until("all intents of the hanging endpoint but its 4 calls look unclaimed", func() bool { // sometimes a claim takes some and postpones them
		return b.toEndpoint("to-0", asWritten) == 296 && b.toEndpoint("to-0", "q.status = 'leased'") == 4
	})
	if n := r.most["to-0"]; n != 4 {
		t.Errorf("%d calls to the hanging endpoint were in flight", n)
	}
	r.release()
	if err := running.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestBusyEndpointStaysWithinItsLimit(t *testing.T) {
	for _, mode := range []string{"run", "drain"} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			r := receive(b, "")
			d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{PerEndpoint: 2, Concurrency: 8}, r.deliver(b), byPart)
			b.insertTo(150, 0, 1)
			if mode == "run" {
				began := time.Now()
				b.start(d)
				b.untilFinished()
				t.Logf("300 calls in %v", time.Since(began))
			} else {
				b.expect(d, dispatcher.Summary{Delivered: 300})
			}
			for _, name := range []string{"to-0", "to-1"} {
				if r.calls[name] != 150 || r.most[name] > 2 {
					t.Errorf("%s got %d calls, %d at once", name, r.calls[name], r.most[name])
				}
			}
			if n := b.count(`select count(*) from samekey.outbox_history where outcome <> 'delivered'`); n != 0 {
				t.Errorf("%d lines of history are about postponing", n)
			}
		})
	}
}

func TestOnlyFailingEndpointIsPostponed(t *testing.T) {
	b := setup(t)
	r := receive(b, "")
	deliver := r.deliver(b)
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{BreakAfter: 3, BreakDelay: time.Hour, PerEndpoint: 2},
		func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
			if call.Part == "to-0" {
				return dispatcher.Outcome{}, errors.New("connection reset")
			}
			return deliver(ctx, call)
		}, byPart)
	b.insertTo(300, 0, 0)
	b.insertTo(20, 1, 20)
	sum := b.drain(d)
	if sum.Delivered != 400 || sum.Retried < 3 || sum.Retried > 4 || sum.Total() != sum.Delivered+sum.Retried {
		t.Errorf("the drain returned %+v", sum)
	}
	if n := b.toEndpoint("to-0", asWritten); n != 300-sum.Retried {
		t.Errorf("%d intents of the failing endpoint look unclaimed, want all but %d", n, sum.Retried)
	}
	if n := b.toEndpoint("to-0", "q.due_at > now() + interval '59 minutes' and "+asWritten); n != 0 {
		t.Errorf("%d intents are postponed for more than ten minutes", n)
	}
	if strings.Contains(b.logs.String(), "to-0") || !strings.Contains(b.logs.String(), "destination=vendor endpoint=") {
		t.Error("the log names the endpoint, which may be a secret, or has no line")
	}
}

func TestFailingEndpointIsProbedByDueIntents(t *testing.T) {
	b := setup(t)
	var mu sync.Mutex
	failures := 0
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{BreakAfter: 3, BreakDelay: 20 * time.Millisecond, MaxBreakDelay: 20 * time.Millisecond, PerEndpoint: 1},
		func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			if failures++; failures <= 6 {
				return dispatcher.Unsent(errors.New("refused")), nil
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		}, byPart)
	b.insertTo(20, 0, 0)
	b.start(d)
	b.logs.Wait(b, "calls are answered again")
	b.until("the others are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue`) == 6 })
}

func TestPostponedLookupKeepsItsState(t *testing.T) {
	b := setup(t)
	r := receive(b, "to-0")
	d := b.breaking(dispatcher.NonIdempotentWrite, dispatcher.Limits{PerEndpoint: 1, BreakAfter: -1}, r.deliver(b), byPart,
		withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{}), nil
		}))
	b.insertTo(1, 0, 0)
	b.start(d)
	wait(b, "the hanging call", r.hanging)
	id := b.insert("charge_card", func(in *outbox.Intent) { in.Part, in.DueAt = "to-0", time.Now().Add(time.Hour) })
	b.exec(`update samekey.outbox_queue set status = 'unknown', first_sent_at = '2020-01-01', last_code = 'absent', attempts_used = 2, due_at = now(), last_sent_attempt = 7, attempt = 7 where id = $1`, id)
	b.until("it was postponed", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where id = $1 and attempt > 7 and leased_by is null`, id) == 1
	})
	if n := b.count(`select count(*) from samekey.outbox_queue where id = $1 and status = 'unknown' and first_sent_at = '2020-01-01'
		and last_code = 'absent' and attempts_used = 2 and last_sent_attempt = 7`, id); n != 1 {
		t.Error("its state changed")
	}
	b.wantHistory(id, "")
	r.release()
}

func TestBusyEndpointKeepsOrder(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{PerEndpoint: 1}, c.handle,
		withEndpoint(func(*dispatcher.Call) string { return "one" }))
	var want []string
	for range 10 {
		b.insert("charge_card", ordered("order-1"))
		want = append(want, fmt.Sprintf(`{"order":"order-%d","amount":%d}`, b.keys, b.keys))
		b.insert("charge_card", ordered("order-2"))
	}
	b.expect(d, dispatcher.Summary{Delivered: 20})
	var got []string
	for _, payload := range c.order {
		for _, w := range want {
			if payload == w {
				got = append(got, payload)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the calls were %v, want %v", got, want)
	}
}

func TestCallWithoutEndpointHasNoEndpointLimit(t *testing.T) {
	b := setup(t)
	for name, fn := range map[string]func(*dispatcher.Call) string{
		"none": func(*dispatcher.Call) string { return "" }, "panics": func(*dispatcher.Call) string { panic("no such header") },
	} {
		c := &counting{}
		d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{PerEndpoint: 1}, c.handle, withEndpoint(fn))
		b.insertManyMore("charge_card", 20)
		b.expect(d, dispatcher.Summary{Delivered: 20})
		if n := b.count(`select count(*) from samekey.outbox_history where attempt > 1`); n != 0 {
			t.Errorf("%s: %d were postponed", name, n)
		}
	}
}
