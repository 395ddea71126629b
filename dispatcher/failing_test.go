package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox/endpoints"
)

// failingSetup has an action whose endpoints are stopped after five days, and an Attention function that notes what it
// is told about endpoints.
func failingSetup(t *testing.T) (b *bundle, d *dispatcher.Dispatcher, next *func(*dispatcher.Call) (dispatcher.Outcome, error), told *[]string) {
	t.Helper()
	b = setup(t)
	next, told = new(func(*dispatcher.Call) (dispatcher.Outcome, error)), &[]string{}
	d = b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{StopEndpointAfter: 5 * 24 * time.Hour, BreakAfter: -1})
	handle(d, "charge_card", storedPolicy(dispatcher.IdempotentWrite), func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		return (*next)(call)
	}, storedByPart, withAttention(func(_ context.Context, _ pgx.Tx, _ []byte, at dispatcher.Attention) error {
		if at.Event == "endpoint_stopped" {
			*told = append(*told, fmt.Sprintf("%s%s %s: %s", at.Status, at.Call.Endpoint.Name, at.Code, at.Reason))
		}
		return nil
	}))
	b.putEndpoint("to-1", "https://one.example")
	return b, d, next, told
}

func returning(o dispatcher.Outcome, err error) func(*dispatcher.Call) (dispatcher.Outcome, error) {
	return func(*dispatcher.Call) (dispatcher.Outcome, error) { return o, err }
}

// failing returns whether the endpoint is failing.
func (b *bundle) failing(name string) (failing bool) {
	b.Helper()
	if err := b.db.QueryRow(b.ctx, `select failing_since is not null from samekey.endpoints where name = $1`, name).Scan(&failing); err != nil {
		b.Fatal(err)
	}
	return failing
}

// failedFor makes an endpoint that is failing fail for longer.
func (b *bundle) failedFor(name, age string) {
	b.Helper()
	b.exec(`update samekey.endpoints set failing_since = clock_timestamp() - $2::interval where name = $1 and failing_since is not null`, name, age)
}

// once inserts an intent and makes one attempt of it.
func (b *bundle) once(d *dispatcher.Dispatcher) {
	b.Helper()
	b.insert("charge_card", to("to-1"))
	if _, err := d.Drain(b.ctx); err != nil {
		b.Fatal(err)
	}
}

func TestEndpointThatFailsForDaysIsStopped(t *testing.T) {
	b, d, next, told := failingSetup(t)
	*next = returning(dispatcher.Unknown(dispatcher.Response{Code: "503"}).Because(errors.New("the receiver did not accept it")), nil)
	b.once(d)
	b.failedFor("to-1", "119 hours")
	b.once(d)
	if !b.failing("to-1") || b.endpoint("to-1").Stopped() || len(*told) > 0 {
		t.Fatalf("stopped: %v, told %q", b.endpoint("to-1").Stopped(), *told)
	}
	b.failedFor("to-1", "121 hours")
	b.once(d)
	e := b.endpoint("to-1")
	if !e.Stopped() || !strings.HasPrefix(e.StopReason, "failing since 20") || !strings.HasSuffix(e.StopReason, "Z: the receiver did not accept it") || e.StoppedBy != "" {
		t.Fatalf("stopped: %v: %q by %q", e.Stopped(), e.StopReason, e.StoppedBy)
	}
	b.once(d) // is dead, and tells nothing about the endpoint
	if want := []string{"to-1 endpoint_stopped: " + e.StopReason}; fmt.Sprint(*told) != fmt.Sprint(want) {
		t.Errorf("told %q, want %q", *told, want)
	}
	events, err := endpoints.History(b.ctx, b.db, "vendor", "to-1", 0, 2)
	if err != nil || events[0].Event != "stopped" || events[0].Reason != e.StopReason || events[0].Actor != "" {
		t.Errorf("%+v, %v", events, err)
	}
	b.startEndpoint("to-1")
	if b.failing("to-1") {
		t.Error("a started endpoint is failing")
	}
}

func TestGoneIsToldOnce(t *testing.T) {
	b, d, next, told := failingSetup(t)
	*next = returning(gone, nil)
	b.insert("charge_card", to("to-1"))
	b.once(d)
	if len(*told) != 1 || !strings.Contains((*told)[0], "to-1 endpoint_stopped: the receiver wants no more") {
		t.Errorf("told %q", *told)
	}
}

func TestWhatCountsAsAFailureOfAnEndpoint(t *testing.T) {
	b, d, next, _ := failingSetup(t)
	code := func(code string) dispatcher.Response { return dispatcher.Response{Code: code} }
	for _, c := range []struct {
		what    string
		outcome dispatcher.Outcome
		err     error
		failing bool
	}{
		{"dead", dispatcher.Dead(code("400")), nil, false},
		{"panics", dispatcher.Outcome{}, nil, false}, // a wrong outcome of the handler
		{"unknown", dispatcher.Unknown(code("500")), nil, true},
		{"delivered", dispatcher.Delivered(code("200")), nil, false},
		{"no connection", dispatcher.Outcome{}, dispatcher.ErrUnsent, true},
		{"dead after a failure", dispatcher.Dead(code("400")), nil, true},
		{"refused", dispatcher.Refused(code("402")), nil, false},
		{"an error", dispatcher.Outcome{}, context.DeadlineExceeded, true},
		{"accepted", dispatcher.Accepted(code("202")), nil, false},
		{"retry", dispatcher.Retry(code("429")), nil, true},
		{"delivered again", dispatcher.Delivered(code("200")), nil, false},
		{"denied", dispatcher.Denied(code("401")), nil, true},
	} {
		*next = returning(c.outcome, c.err)
		b.once(d)
		if got := b.failing("to-1"); got != c.failing {
			t.Errorf("%s: failing %v, want %v", c.what, got, c.failing)
		}
		b.exec(`delete from samekey.outbox_queue`) // is not tried again
	}
	var version, after string
	row := `select xmin::text from samekey.endpoints`
	if err := b.db.QueryRow(b.ctx, row).Scan(&version); err != nil {
		t.Fatal(err)
	}
	b.once(d)
	if err := b.db.QueryRow(b.ctx, row).Scan(&after); err != nil || after != version {
		t.Errorf("a second failure wrote the endpoint: %v", err)
	}
}

// A change during the attempt, and what the attempt then writes.
func TestChangesWhileAFailingEndpointIsCalled(t *testing.T) {
	fails, works := dispatcher.Unknown(dispatcher.Response{Code: "503"}), dispatcher.Delivered(dispatcher.Response{Code: "200"})
	cleared := func(b *bundle) { b.exec(`update samekey.endpoints set failing_since = null`) } // as a success does
	stopped := func(b *bundle) {                                                               // as a 410 does, which leaves the version
		b.exec(`update samekey.endpoints set stopped_at = clock_timestamp(), stop_reason = 'the endpoint wants no more calls'`)
	}
	for what, c := range map[string]struct {
		outcome          dispatcher.Outcome
		failing          bool // before the attempt, for six days
		change           func(*bundle)
		stopped, failsOn bool
	}{
		"a failure":                           {fails, true, func(*bundle) {}, true, true},
		"a failure, put":                      {fails, true, func(b *bundle) { b.putEndpoint("to-1", "https://new.example") }, false, false},
		"a failure, started":                  {fails, true, func(b *bundle) { b.startEndpoint("to-1") }, false, false},
		"a failure, another worker's success": {fails, true, cleared, false, false},
		"a failure, a success and a failure":  {fails, true, func(b *bundle) { b.exec(`update samekey.endpoints set failing_since = clock_timestamp()`) }, false, true},
		"a first failure, stopped by a 410":   {fails, false, stopped, true, false},
		"a success":                           {works, true, func(*bundle) {}, false, false},
		"a success, stopped by a 410":         {works, true, stopped, true, true},
		"a first failure, put":                {fails, false, func(b *bundle) { b.putEndpoint("to-1", "https://new.example") }, false, false},
		"a success of an older version": {works, true, func(b *bundle) {
			b.putEndpoint("to-1", "https://new.example")
			b.exec(`update samekey.endpoints set failing_since = clock_timestamp()`)
		}, false, true},
		"a success, stopped by a person": {works, true, func(b *bundle) { b.stopEndpoint("to-1") }, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			b, d, next, told := failingSetup(t)
			if c.failing {
				b.exec(`update samekey.endpoints set failing_since = clock_timestamp() - interval '6 days'`)
			}
			*next = func(*dispatcher.Call) (dispatcher.Outcome, error) {
				c.change(b)
				return c.outcome, nil
			}
			b.once(d)
			if e := b.endpoint("to-1"); e.Stopped() != c.stopped || b.failing("to-1") != c.failsOn {
				t.Errorf("stopped %v, failing %v, want %v, %v", e.Stopped(), b.failing("to-1"), c.stopped, c.failsOn)
			}
			if what == "a failure" != (len(*told) == 1) {
				t.Errorf("told %q", *told)
			}
		})
	}
}

// Two attempts fail, and neither saw the other's failure. The endpoint fails since the first one.
func TestFirstOfTwoFailuresCounts(t *testing.T) {
	b, d, next, _ := failingSetup(t)
	*next = func(*dispatcher.Call) (dispatcher.Outcome, error) {
		b.exec(`update samekey.endpoints set failing_since = '2026-01-02 03:04:05Z'`)
		return dispatcher.Unknown(dispatcher.Response{Code: "503"}), nil
	}
	b.once(d)
	if n := b.count(`select count(*) from samekey.endpoints where failing_since = '2026-01-02 03:04:05Z'`); n != 1 {
		t.Error("the second failure counts as the first")
	}
}

// A database whose clock is behind has taken over: the first failure lies ahead.
func TestSuccessClearsAFailureThatLiesAhead(t *testing.T) {
	b, d, next, _ := failingSetup(t)
	b.exec(`update samekey.endpoints set failing_since = clock_timestamp() + interval '1 hour'`)
	*next = returning(dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil)
	b.once(d)
	if b.failing("to-1") {
		t.Error("it is still failing")
	}
}

func TestStopEndpointAfterNeedsStoredEndpoints(t *testing.T) {
	for after, want := range map[time.Duration]string{time.Second: "StopEndpointAfter: 1s is outside", time.Hour: "StopEndpointAfter: not allowed"} {
		d := dispatcher.New(nil, nil)
		d.Destination("vendor", dispatcher.Limits{StopEndpointAfter: after})
		handle(d, "charge_card", policyOf(dispatcher.Read), ok)
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
