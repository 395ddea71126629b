package dispatcher_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
)

// stored adds a stored endpoint, named by each intent's part.
var storedByPart = withStoredEndpoint(func(call *dispatcher.Call) string { return call.Part })

func storedPolicy(class dispatcher.Class) dispatcher.Policy {
	p := policyOf(class)
	p.Deadline = 7 * 24 * time.Hour
	return p
}

// putEndpoint puts an endpoint of the destination "vendor".
func (b *bundle) putEndpoint(name, url string) {
	b.Helper()
	e := endpoints.Endpoint{Destination: "vendor", Name: name, URL: url, Secrets: []string{endpoints.NewSecret()}, Headers: map[string]string{"X-Env": "test"}}
	if err := endpoints.Put(b.ctx, b.db, e, by); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) endpoint(name string) endpoints.Endpoint {
	b.Helper()
	e, err := endpoints.Get(b.ctx, b.db, "vendor", name)
	if err != nil {
		b.Fatal(err)
	}
	return e
}

func (b *bundle) startEndpoint(name string) {
	b.Helper()
	if err := endpoints.Start(b.ctx, b.db, "vendor", name, by); err != nil {
		b.Fatal(err)
	}
}

func to(name string) func(*outbox.Intent) { return func(in *outbox.Intent) { in.Part = name } }

// gone is a handler for a receiver's 410.
var gone = dispatcher.Gone(dispatcher.Response{Code: "410"}).Because(errors.New("the receiver wants no more"))

func TestCallUsesTheEndpointsCurrentURL(t *testing.T) {
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), storedByPart)
	b.putEndpoint("to-1", "https://one.example")
	var seen []string
	s.next = func(call *dispatcher.Call) (dispatcher.Outcome, error) {
		seen = append(seen, fmt.Sprint(call.Endpoint.Name, " ", call.Endpoint.URL, " ", len(call.Endpoint.Secrets)))
		return dispatcher.Outcome{}, errors.New("503")
	}
	b.insert("charge_card", to("to-1"))
	b.expect(d, retried)
	b.putEndpoint("to-1", "https://other.example")
	b.elapse(time.Hour)
	b.expect(d, retried)
	if got := strings.Join(seen, ", "); got != "to-1 https://one.example 1, to-1 https://other.example 1" {
		t.Errorf("the calls went to %s", got)
	}
}

// Both intents are claimed at once. If a handler changes its endpoint, the other call and the stopped endpoint do not
// change.
func TestCallsDoNotShareTheirEndpoint(t *testing.T) {
	b := setup(t)
	var mu sync.Mutex
	calls := 0
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 2})
	handle(d, "charge_card", storedPolicy(dispatcher.IdempotentWrite), func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if call.Endpoint.URL != "https://one.example" || call.Endpoint.Secrets[0] == "mine" || call.Endpoint.Headers["X-Env"] != "test" {
			t.Errorf("a call goes to %s", call.Endpoint.URL)
		}
		call.Endpoint.Name, call.Endpoint.URL, call.Endpoint.Secrets[0] = "to-2", "https://mine.example", "mine"
		call.Endpoint.Headers["X-Env"] = "mine"
		return gone, nil
	}, storedByPart)
	b.putEndpoint("to-1", "https://one.example")
	b.insert("charge_card", to("to-1"))
	b.insert("charge_card", to("to-1"))
	b.expect(d, dispatcher.Summary{Dead: 2})
	if calls != 2 || !b.endpoint("to-1").Stopped() {
		t.Errorf("%d calls, and the called endpoint is stopped: %v", calls, b.endpoint("to-1").Stopped())
	}
}

func TestGoneStopsTheEndpoint(t *testing.T) {
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), storedByPart)
	b.putEndpoint("to-1", "https://one.example")
	b.putEndpoint("to-2", "https://two.example")
	s.next = func(call *dispatcher.Call) (dispatcher.Outcome, error) {
		if call.Part == "to-1" {
			return gone, nil
		}
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}
	first := b.insert("charge_card", to("to-1"))
	b.expect(d, dispatcher.Summary{Dead: 1})
	b.wantHistory(first, "attempt:dead:410")
	if e := b.endpoint("to-1"); !e.Stopped() || e.StoppedBy != "" || !strings.Contains(e.StopReason, "wants no more") {
		t.Fatalf("stopped %v by %q: %q", e.StoppedAt, e.StoppedBy, e.StopReason)
	}
	second := b.insert("charge_card", to("to-1"))
	b.insert("charge_card", to("to-2"))
	b.expect(d, dispatcher.Summary{Dead: 1, Delivered: 1})
	b.wantHistory(second, "attempt:dead:endpoint_stopped")
	if n := b.count(`select count(*) from samekey.outbox_queue where id = $1 and attempts_used = 0 and first_sent_at is null`, second); n != 1 || s.calls != 2 {
		t.Errorf("%d calls, and unsent intents count as sent", s.calls)
	}
	if log := b.logs.String(); !strings.Contains(log, "is stopped") || strings.Contains(log, "to-1") || strings.Contains(log, "one.example") {
		t.Error("the log has no line, or names the endpoint")
	}

	// The endpoint is started again: all unsent intents are sent with their old keys.
	s.next, s.keys = succeeding, nil
	b.startEndpoint("to-1")
	other := outbox.Filter{Status: outbox.StatusDead, Code: "endpoint_stopped", Part: "to-2"}
	missed := outbox.Filter{Status: outbox.StatusDead, Code: "endpoint_stopped", Part: "to-1"}
	for f, want := range map[*outbox.Filter]int{&other: 0, &missed: 1} {
		if n, err := outbox.RedriveAll(*f, by).Run(b.ctx, b.db.Pool); n != want || err != nil {
			t.Fatalf("redriven for %s: %d, %v", f.Part, n, err)
		}
	}
	b.expect(d, delivered)
	b.wantStatus(second, "delivered")
	b.redrive(first)
	b.expect(d, delivered)
}

// An answer to a call from before a change is not about the changed endpoint.
func TestLate410DoesNotStopAChangedEndpoint(t *testing.T) {
	for what, c := range map[string]struct {
		change  func(b *bundle)
		stopped bool
	}{
		"nothing":             {func(*bundle) {}, true},
		"put again":           {func(b *bundle) { b.putEndpoint("to-1", "https://new.example") }, false},
		"stopped and started": {func(b *bundle) { b.stopEndpoint("to-1"); b.startEndpoint("to-1") }, false},
		"started":             {func(b *bundle) { b.startEndpoint("to-1") }, false},
		"deleted and put": {func(b *bundle) {
			if err := endpoints.Delete(b.ctx, b.db, "vendor", "to-1", by); err != nil {
				b.Error(err)
			}
			b.putEndpoint("to-1", "https://one.example")
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), storedByPart)
			b.putEndpoint("to-1", "https://one.example")
			b.insert("charge_card", to("to-1"))
			s.next = func(*dispatcher.Call) (dispatcher.Outcome, error) {
				c.change(b)
				return gone, nil
			}
			b.expect(d, dispatcher.Summary{Dead: 1})
			if e := b.endpoint("to-1"); e.Stopped() != c.stopped {
				t.Errorf("stopped: %v, want %v", e.Stopped(), c.stopped)
			}
		})
	}
}

// The worker was killed between the stop and the settle.
func TestOrphanOfAStoppedEndpointIsNotSent(t *testing.T) {
	for class, want := range map[dispatcher.Class]string{dispatcher.IdempotentWrite: "dead", dispatcher.NonIdempotentWrite: "parked"} {
		t.Run(class.String(), func(t *testing.T) {
			b, d, s := scriptedSetup(t, storedPolicy(class), storedByPart)
			b.putEndpoint("to-1", "https://one.example")
			id := b.insert("charge_card", to("to-1"))
			s.next = func(*dispatcher.Call) (dispatcher.Outcome, error) {
				b.exec(`update samekey.outbox_queue set status = case when safe_to_resend then 'pending' else 'unknown' end, leased_by = null, lease_until = null,
					last_code = 'orphaned', attempt = attempt + 1, due_at = clock_timestamp() + interval '1 hour'`)
				return gone, nil
			}
			b.drain(d)
			if !b.endpoint("to-1").Stopped() {
				t.Fatal("it is not stopped")
			}
			b.elapse(2 * time.Hour)
			b.drain(d)
			b.elapse(time.Hour)
			b.drain(d)
			b.wantStatus(id, want)
			if s.calls != 1 {
				t.Errorf("%d calls", s.calls)
			}
		})
	}
}

func (b *bundle) stopEndpoint(name string) {
	b.Helper()
	if err := endpoints.Stop(b.ctx, b.db, "vendor", name, by); err != nil {
		b.Error(err)
	}
}

func TestStoppedEndpointKeepsItsReason(t *testing.T) {
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), storedByPart)
	b.putEndpoint("to-1", "https://one.example")
	b.insert("charge_card", to("to-1"))
	s.next = func(*dispatcher.Call) (dispatcher.Outcome, error) {
		b.exec(`update samekey.endpoints set stopped_at = now(), stopped_by = 'ann', stop_reason = 'r'`) // the version is the same
		return gone, nil
	}
	b.expect(d, dispatcher.Summary{Dead: 1})
	if e := b.endpoint("to-1"); e.StoppedBy != "ann" || e.StopReason != "r" {
		t.Errorf("stopped by %q: %q", e.StoppedBy, e.StopReason)
	}
}

func TestMissingEndpointIsDeadUnsent(t *testing.T) {
	for what, name := range map[string]func(*dispatcher.Call) string{
		"not there":    func(*dispatcher.Call) string { return "to-1" },
		"no name":      func(*dispatcher.Call) string { return "" },
		"panics":       func(*dispatcher.Call) string { panic("no such header") },
		"too long":     func(*dispatcher.Call) string { return strings.Repeat("n", 256) },
		"with a NUL":   func(*dispatcher.Call) string { return "to\x00" },
		"broken UTF-8": func(*dispatcher.Call) string { return "to\xff" },
	} {
		t.Run(what, func(t *testing.T) {
			b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), withStoredEndpoint(name))
			id := b.insert("charge_card")
			b.expect(d, dispatcher.Summary{Dead: 1})
			b.wantHistory(id, "attempt:dead:endpoint_missing")
			if s.calls != 0 {
				t.Errorf("%d calls", s.calls)
			}
			if what == "not there" {
				b.putEndpoint("to-1", "https://one.example")
				b.redrive(id)
				b.expect(d, delivered)
			}
		})
	}
}

// If the endpoint cannot be read, the intent uses no attempt, whether it would be sent or looked up.
func TestUnreadableEndpointUsesNoAttempt(t *testing.T) {
	finds := 0
	look := withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		finds++
		return dispatcher.Delivered(dispatcher.Response{}), nil
	})
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.NonIdempotentWrite), storedByPart, look)
	b.putEndpoint("to-1", "https://one.example")
	id := b.insert("charge_card", to("to-1"))
	away := func() { b.exec(`alter table samekey.endpoints rename to endpoints_away`) }
	back := func() { b.exec(`alter table samekey.endpoints_away rename to endpoints`) }
	away()
	b.expectAgain(d, retried)
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'pending' and attempts_used = 0 and first_sent_at is null`); n != 1 || s.calls != 0 {
		t.Errorf("%d calls, or it counts as sent", s.calls)
	}
	back()
	s.next = failing(errors.New("reset"))
	b.elapse(time.Minute)
	b.expect(d, dispatcher.Summary{Unknown: 1})
	away()
	b.elapse(time.Minute)
	b.expectAgain(d, dispatcher.Summary{Unknown: 1})
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'unknown' and attempts_used = 0`); n != 1 || finds != 0 {
		t.Errorf("%d lookups, or it used an attempt", finds)
	}
	back()
	b.stopEndpoint("to-1") // a lookup still asks it
	b.elapse(time.Minute)
	b.expect(d, delivered)
	b.wantStatus(id, "delivered")
}

// Its CHECK was dropped. Other endpoints of the same claim are not affected, whether they are there or missing.
func TestBrokenHeadersHoldUpOneEndpoint(t *testing.T) {
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), storedByPart)
	for _, name := range []string{"to-1", "to-2", "to-4"} {
		b.putEndpoint(name, "https://one.example")
	}
	b.exec(`alter table samekey.endpoints drop constraint endpoints_headers`)
	b.exec(`update samekey.endpoints set headers = '{"Authorization": ["t0ken"]}' where name = 'to-2'`)
	ids := map[string]uuid.UUID{}
	for _, name := range []string{"to-1", "to-2", "to-3", "to-4"} {
		ids[name] = b.insert("charge_card", to(name))
	}
	b.drain(d)
	for name, want := range map[string]string{"to-1": "delivered", "to-2": "pending", "to-3": "dead", "to-4": "delivered"} {
		b.wantStatus(ids[name], want)
	}
	b.wantHistory(ids["to-3"], "attempt:dead:endpoint_missing")
	if log := b.logs.String(); s.calls != 2 || !strings.Contains(log, "object of strings") || strings.Contains(log, "t0ken") {
		t.Errorf("%d calls, or the log has a value or no cause", s.calls)
	}
}

// At this rate, the 100 intents would take 100 seconds.
func TestStoppedEndpointTakesNoPermits(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Rate: 1, Burst: 1})
	handle(d, "charge_card", storedPolicy(dispatcher.IdempotentWrite), b.post, storedByPart)
	b.putEndpoint("to-1", b.vendor.URL)
	b.putEndpoint("to-2", b.vendor.URL)
	b.stopEndpoint("to-1")
	b.exec(`select samekey.enqueue('tenant/bulk', 'bulk-' || g, 'charge_card', '{}', part => 'to-1') from generate_series(1, 100) g`)
	id := b.insert("charge_card", to("to-2"))
	b.start(d)
	b.untilStatus(id, "delivered")
	b.wantCalls(1)
}

func TestStoredEndpointsNeedADeadline(t *testing.T) {
	d := dispatcher.New(nil, nil)
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{}), nil
	}, storedByPart)
	handle(d, "notify", storedPolicy(dispatcher.IdempotentWrite), nil, withStoredEndpoint(nil))
	err := d.Check()
	for _, want := range []string{`"charge_card": Deadline: missing`, `"notify": StoredEndpoint`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

func TestPrintedCallHasNoSecrets(t *testing.T) {
	call := dispatcher.Call{ID: uuid.New(), Endpoint: &dispatcher.Endpoint{Name: "to-1", Secrets: dispatcher.Secrets{"whsec_1"}, Headers: dispatcher.Headers{"Authorization": "whsec_2"}}}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("", "endpoint", *call.Endpoint)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("", "call", call)
	text := log.String() + fmt.Sprintf("%v %+v %#v %s %q", *call.Endpoint, *call.Endpoint, *call.Endpoint, call.Endpoint.Secrets, call.Endpoint.Headers)
	if strings.Contains(text, "whsec_") || strings.Count(text, "[secrets]") < 12 {
		t.Error(text)
	}
}
