package processed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/schema"
)

// called is an operation with one call, whose sends and lookups end as the test says.
type called struct {
	b     *bundle
	call  processed.VendorCall[string]
	sends []error // the ends of the next sends; then they succeed
	looks []error
	did   []string
}

func newCalled(b *bundle, call processed.VendorCall[string]) *called {
	c := &called{b: b, call: call}
	act := func(what string, ends *[]error) func(context.Context, uuid.UUID) (string, error) {
		return func(context.Context, uuid.UUID) (string, error) {
			c.did = append(c.did, what)
			if len(*ends) == 0 {
				return what, nil
			}
			err := (*ends)[0]
			*ends = (*ends)[1:]
			return what, err
		}
	}
	c.call.Send = act("send", &c.sends)
	if call.Lookup != nil {
		c.call.Lookup = act("lookup", &c.looks)
	}
	return c
}

func (c *called) run() (string, error) {
	res, err := processed.Steps(c.b.t.Context(), c.b.db.Pool, request(c.b.t, "k", `1`), func(ctx context.Context, op *processed.Operation) (string, error) {
		return processed.Call(ctx, op, "charge", c.call)
	})
	return res.Value, err
}

// want runs the operation and fails unless it ends so and did that.
func (c *called) want(err error, did ...string) error {
	c.b.t.Helper()
	c.did = nil
	value, got := c.run()
	if !errors.Is(got, err) || (err == nil) != (value != "") || fmt.Sprint(c.did) != fmt.Sprint(did) {
		c.b.t.Fatalf("%q, %v; did %v, want %v, did %v", value, got, c.did, err, did)
	}
	return got
}

// age lets time pass at the vendor.
func (b *bundle) age(d time.Duration) {
	b.exec(`update samekey.operation_steps set first_sent_at = first_sent_at - $1::interval, key_window_until = key_window_until - $1::interval,
		sent_at = sent_at - $1::interval, ended_at = ended_at - $1::interval, absent_at = absent_at - $1::interval`, d)
}

func (b *bundle) stepStatus() string {
	b.t.Helper()
	return dbtest.Value[string](b.t, b.db, "select status from samekey.operation_steps where name = 'charge'")
}

var (
	errTimeout  = errors.New("timeout")
	canLookup   = func(context.Context, uuid.UUID) (string, error) { return "", nil }
	errNotThere = fmt.Errorf("404: %w", processed.ErrAbsent)
)

func TestIdempotentCallIsSentAgainWithinItsWindow(t *testing.T) {
	c := newCalled(setup(t), processed.VendorCall[string]{KeyWindow: time.Hour})
	c.sends = []error{errTimeout, errTimeout}
	if err := c.want(processed.ErrInDoubt, "send"); !errors.Is(err, errTimeout) || processed.RetryAfter(err) != time.Second {
		t.Errorf("%v, retry after %v", err, processed.RetryAfter(err))
	}
	c.want(processed.ErrInDoubt, "send")
	c.want(nil, "send")
	c.want(nil)
}

// The last send must end before the window does: after an hour less 30 s for the call and a margin of 10 s.
func TestIdempotentCallIsNotSentPastItsWindow(t *testing.T) {
	for _, past := range []time.Duration{59 * time.Minute, 59*time.Minute + 25*time.Second} {
		for _, lookup := range []bool{false, true} {
			t.Run(fmt.Sprint(past, lookup), func(t *testing.T) {
				call := processed.VendorCall[string]{KeyWindow: time.Hour}
				if lookup {
					call.Lookup = canLookup
				}
				c := newCalled(setup(t), call)
				c.sends = []error{errTimeout}
				c.want(processed.ErrInDoubt, "send")
				c.b.age(past)
				switch {
				case past == 59*time.Minute:
					c.want(nil, "send")
				case lookup:
					c.want(nil, "lookup")
				default:
					c.want(processed.ErrParked)
				}
			})
		}
	}
}

// A shorter window of a new release applies at once, and a longer one does not revive a step.
func TestShorterKeyWindowApplies(t *testing.T) {
	c := newCalled(setup(t), processed.VendorCall[string]{KeyWindow: time.Hour})
	c.sends = []error{errTimeout}
	c.want(processed.ErrInDoubt, "send")
	c.b.age(2 * time.Hour)
	c.call.KeyWindow = processed.Forever
	c.want(processed.ErrParked)
}

func TestOtherCallIsNeverSentBlindly(t *testing.T) {
	c := newCalled(setup(t), processed.VendorCall[string]{})
	c.sends = []error{errTimeout}
	c.want(processed.ErrInDoubt, "send")
	c.want(processed.ErrParked)
	c.want(processed.ErrParked)
	if c.b.stepStatus() != "parked" {
		t.Error(c.b.stepStatus())
	}
}

func TestLookupEndsTheDoubt(t *testing.T) {
	for name, look := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"it acted":   {nil, func(err error) bool { return err == nil }},
		"it refused": {processed.Fail(402, nil), func(err error) bool { return failureOf(err).Code == 402 }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCalled(setup(t), processed.VendorCall[string]{Lookup: canLookup})
			c.sends = []error{errTimeout}
			c.want(processed.ErrInDoubt, "send")
			if err := c.want(processed.ErrInDoubt); processed.RetryAfter(err) < 4*time.Second || processed.RetryAfter(err) > 5*time.Second {
				t.Errorf("it is asked after %v", processed.RetryAfter(err))
			}
			c.b.age(5 * time.Second)
			c.looks = []error{errTimeout, fmt.Errorf("of the lookup: %w", processed.ErrUnsent)}
			c.want(processed.ErrInDoubt, "lookup")
			c.want(processed.ErrInDoubt, "lookup")
			c.looks = []error{look.err}
			c.did = nil
			if _, err := c.run(); !look.want(err) || fmt.Sprint(c.did) != "[lookup]" {
				t.Errorf("%v, did %v", err, c.did)
			}
		})
	}
}

func TestTwoAbsentLookupsPark(t *testing.T) {
	for name, resend := range map[string]bool{"parked": false, "sent once more": true} {
		t.Run(name, func(t *testing.T) {
			c := newCalled(setup(t), processed.VendorCall[string]{Lookup: canLookup, ResendAbsent: resend})
			c.sends = []error{errTimeout, errTimeout, errors.New("a third send")}
			c.want(processed.ErrInDoubt, "send")
			c.b.age(5 * time.Second)
			c.looks = []error{errNotThere, errNotThere, errNotThere, errNotThere}
			if err := c.want(processed.ErrInDoubt, "lookup"); processed.RetryAfter(err) != 5*time.Second {
				t.Errorf("it is asked again after %v", processed.RetryAfter(err))
			}
			c.want(processed.ErrInDoubt)
			c.b.age(5 * time.Second)
			if resend {
				c.want(processed.ErrInDoubt, "lookup", "send")
				c.b.age(5 * time.Second)
				c.want(processed.ErrInDoubt, "lookup")
				c.b.age(5 * time.Second)
			}
			c.want(processed.ErrParked, "lookup")
			c.want(processed.ErrParked)
		})
	}
}

func TestUnsentCallIsSentAgain(t *testing.T) {
	if !errors.Is(dispatcher.ErrUnsent, processed.ErrUnsent) {
		t.Fatal("the errors of httpclient do not count")
	}
	for name, call := range map[string]processed.VendorCall[string]{"no class": {}, "lookup": {Lookup: canLookup}, "keys": {KeyWindow: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			c := newCalled(setup(t), call)
			unsent := fmt.Errorf("dial: %w", processed.ErrUnsent)
			c.sends = []error{unsent, unsent}
			c.want(processed.ErrUnsent, "send")
			c.want(processed.ErrUnsent, "send")
			c.want(nil, "send")
		})
	}
	// After a send that may have arrived, an unsent one proves nothing about the first.
	c := newCalled(setup(t), processed.VendorCall[string]{KeyWindow: time.Hour})
	c.sends = []error{errTimeout, processed.ErrUnsent}
	c.want(processed.ErrInDoubt, "send")
	c.want(processed.ErrUnsent, "send")
	c.call.KeyWindow = 0
	c.want(processed.ErrParked)
}

func TestSameCallMayBeMadeAgainAtOnce(t *testing.T) {
	b := setup(t)
	sends := 0
	res, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (value int, err error) {
		for range 3 {
			if value, err = processed.Call(ctx, op, "a", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) {
				if sends++; sends < 3 {
					return 0, processed.ErrUnsent
				}
				return sends, nil
			}}); !errors.Is(err, processed.ErrUnsent) {
				break
			}
		}
		return value, err
	})
	if err != nil || res.Value != 3 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestPanicInACallLeavesItInDoubt(t *testing.T) {
	c := newCalled(setup(t), processed.VendorCall[string]{})
	send := c.call.Send
	c.call.Send = func(context.Context, uuid.UUID) (string, error) { panic("boom") }
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not come through")
			}
		}()
		_, _ = c.run()
	}()
	c.call.Send = send
	c.want(processed.ErrParked)
}

func TestAnswerThatCannotBeStoredIsInDoubt(t *testing.T) {
	b := setup(t)
	_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (string, error) {
		return processed.Call(ctx, op, "charge", processed.VendorCall[string]{Send: func(context.Context, uuid.UUID) (string, error) { return "\xff", nil }})
	})
	if !errors.Is(err, processed.ErrInDoubt) || !errors.Is(err, processed.ErrAnswerUnstorable) || b.stepStatus() != "in_flight" {
		t.Errorf("%v, %s", err, b.stepStatus())
	}
}

// A cancelled caller, such as a client that disconnected, does not cut off the note of what happened.
func TestCancelledCallIsRecorded(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	fn := func(send func(context.Context) (string, error)) func(context.Context, *processed.Operation) (string, error) {
		return func(ctx context.Context, op *processed.Operation) (string, error) {
			return processed.Call(ctx, op, "charge", processed.VendorCall[string]{Send: func(ctx context.Context, _ uuid.UUID) (string, error) { return send(ctx) }})
		}
	}
	res, err := processed.Steps(ctx, b.db.Pool, request(t, "k", `1`), fn(func(context.Context) (string, error) { cancel(); return "ch_1", nil }))
	if err != nil || res.Value != "ch_1" {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := processed.Steps(ctx, b.db.Pool, request(t, "k2", `1`), fn(nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("already cancelled: %v", err)
	}
	if n := b.count("samekey.operations"); n != 0 {
		t.Errorf("%d operations are left", n)
	}
}

// Nor does it if the connection breaks too: the answer is stored with another one.
func TestCancelledCallSurvivesALostConnection(t *testing.T) {
	b, proxy := wired(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	hit := proxy.Arm(wiretest.CutBefore, "samekey.call_put")
	res, err := processed.Steps(ctx, b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (string, error) {
		return processed.Call(ctx, op, "charge", processed.VendorCall[string]{Send: func(context.Context, uuid.UUID) (string, error) { cancel(); return "ch_1", nil }})
	})
	dbtest.Receive(t, "the fault strikes", hit)
	if err != nil || res.Value != "ch_1" {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestStoredReasonHasNoSecrets(t *testing.T) {
	c := newCalled(setup(t), processed.VendorCall[string]{})
	c.sends = []error{fmt.Errorf("send: %w", &url.Error{Op: "Post", URL: "https://vendor.example/?token=secret", Err: errors.New("EOF\x00\xff" + strings.Repeat("é", 4096))})}
	c.want(processed.ErrInDoubt, "send")
	stored := dbtest.Value[string](t, c.b.db, "select error from samekey.operation_steps")
	if strings.Contains(stored, "secret") || !strings.HasPrefix(stored, "send: Post [URL]: EOF") || len(stored) < 4090 {
		t.Errorf("%.80q .. %d bytes", stored, len(stored))
	}
}

// The connection breaks around the mark and around the answer, before and after the server executes them.
func TestCallSurvivesLostConnections(t *testing.T) {
	for name, c := range map[string]struct {
		fault wiretest.Fault
		text  string
		again bool // the first run fails, and nothing was sent
	}{
		"mark, not executed":   {wiretest.CutBefore, "samekey.call_mark", true},
		"mark, executed":       {wiretest.LoseAnswer, "samekey.call_mark", true},
		"answer, not executed": {wiretest.CutBefore, "samekey.call_put", false},
		"answer, executed":     {wiretest.LoseAnswer, "samekey.call_put", false},
		"start, not executed":  {wiretest.CutBefore, "samekey.operation_start", false},
		"start, executed":      {wiretest.LoseAnswer, "samekey.operation_start", false},
		"end, not executed":    {wiretest.CutBefore, "samekey.operation_complete", false},
		"end, executed":        {wiretest.LoseAnswer, "samekey.operation_complete", false},
	} {
		t.Run(name, func(t *testing.T) {
			b, proxy := wired(t, 2)
			o := newCalled(b, processed.VendorCall[string]{}) // sent once, for certain
			hit := proxy.Arm(c.fault, c.text)
			o.did = nil
			value, err := o.run()
			dbtest.Receive(t, "the fault strikes", hit)
			if c.again {
				if err == nil || !processed.SafeToRetry(err) || len(o.did) != 0 {
					t.Fatalf("%q, %v, did %v", value, err, o.did)
				}
				value, err = o.run()
			}
			if err != nil || value != "send" || fmt.Sprint(o.did) != "[send]" {
				t.Fatalf("%q, %v, did %v", value, err, o.did)
			}
			o.want(nil)
		})
	}
}

func TestStepSurvivesLostCommit(t *testing.T) {
	for name, c := range map[string]struct {
		fault wiretest.Fault
		again bool
	}{"not executed": {wiretest.CutBefore, true}, "executed": {wiretest.LoseAnswer, false}} {
		t.Run(name, func(t *testing.T) {
			b, proxy := wired(t, 2)
			o := newTrip(b)
			hit := proxy.Arm(c.fault, "samekey.step_put")
			res, err := o.run()
			dbtest.Receive(t, "the fault strikes", hit)
			if c.again {
				if err == nil || !processed.SafeToRetry(err) {
					t.Fatalf("%+v, %v", res, err)
				}
				res, err = o.run()
			}
			if err != nil || res.Value != o.answer() {
				t.Fatalf("%+v, %v", res, err)
			}
			b.stored(2, 1, 1)
		})
	}
}

// The COMMIT of a step arrives after its sender has given up: either its step counts, or a later call does it again.
func TestStepWhoseCommitComesLate(t *testing.T) {
	b, proxy := wired(t, 2)
	o := newTrip(b)
	hit := proxy.Arm(wiretest.Hold, "samekey.step_put")
	ended := make(chan error, 1)
	go func() { _, err := o.run(); ended <- err }()
	dbtest.Receive(t, "the COMMIT is held", hit)
	// The first call waits for the row's lock, and another one finds it locked.
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), o.steps); !errors.Is(err, processed.ErrInFlight) {
		t.Errorf("while the step commits: %v", err)
	}
	proxy.Release()
	if err := dbtest.Receive(t, "the first call ends", ended); err != nil {
		t.Fatal(err)
	}
	b.stored(2, 1, 1)
}

func TestStepsWorkInEveryExecModeOfPgx(t *testing.T) {
	b := setup(t)
	for _, mode := range modes {
		pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode })
		o := newTrip(b)
		b.exec("truncate orders")
		k := request(t, strings.ReplaceAll(mode.String(), " ", "-"), `1`)
		own := errors.New("own")
		o.after["charge"] = own
		if _, err := processed.Steps(t.Context(), pool, k, o.steps); !errors.Is(err, own) {
			t.Errorf("%s: %v", mode, err)
		}
		o.after = nil
		if res, err := processed.Steps(t.Context(), pool, k, o.steps); err != nil || res.Value != o.answer() {
			t.Errorf("%s: %+v, %v", mode, res, err)
		}
	}
}

func TestAPersonResolvesAStep(t *testing.T) {
	by := processed.By{Actor: "ann", Reason: "asked the vendor"}
	for name, r := range map[string]struct {
		what processed.StepResolution
		did  string
		code int // of a failure
	}{
		"it acted":   {what: processed.StepResolution{Result: json.RawMessage(`"ch_1"`)}, did: "[]"},
		"it was not": {what: processed.StepResolution{NotSent: true}, did: "[send]"},
		"it refused": {what: processed.StepResolution{Failure: failureOf(processed.Fail(402, "no"))}, did: "[]", code: 402},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCalled(setup(t), processed.VendorCall[string]{})
			c.sends = []error{errTimeout}
			c.want(processed.ErrInDoubt, "send")
			c.want(processed.ErrParked)
			k := key(t, "k")
			if err := processed.ResolveStep(t.Context(), c.b.db.Pool, k, "charge", r.what, by); err != nil {
				t.Fatal(err)
			}
			who := dbtest.Value[string](t, c.b.db, "select concat_ws(', ', resolved_by, resolved_reason, resolved_db_user = session_user) from samekey.operation_steps")
			if who != "ann, asked the vendor, t" {
				t.Error(who)
			}
			if err := processed.ResolveStep(t.Context(), c.b.db.Pool, k, "charge", r.what, by); !isState(err, "SK011") {
				t.Errorf("again: %v", err)
			}
			c.did = nil
			if _, err := c.run(); r.code == 0 && err != nil || r.code != 0 && failureOf(err).Code != r.code || fmt.Sprint(c.did) != r.did {
				t.Errorf("%v, did %v", err, c.did)
			}
		})
	}
}

func TestActsOnOperationsAreRefused(t *testing.T) {
	b := setup(t)
	by := processed.By{Actor: "ann", Reason: "asked"}
	k := key(t, "k")
	acted := processed.StepResolution{Result: json.RawMessage(`1`)}
	resolve := func(what processed.StepResolution, by processed.By) error {
		return processed.ResolveStep(t.Context(), b.db.Pool, k, "charge", what, by)
	}
	abandon := func(by processed.By) error {
		return processed.AbandonOperation(t.Context(), b.db.Pool, k, failureOf(processed.Fail(410, "gave up")), by)
	}
	state := func(err error, code string) {
		t.Helper()
		if !isState(err, code) {
			t.Errorf("%v, want %s", err, code)
		}
	}
	state(resolve(acted, by), "SK010")
	state(abandon(by), "SK010")
	c := newCalled(b, processed.VendorCall[string]{})
	c.sends = []error{errTimeout}
	c.want(processed.ErrInDoubt, "send")
	state(resolve(acted, processed.By{Actor: " ", Reason: "x"}), "22023")
	state(resolve(acted, processed.By{Actor: "ann"}), "22023")
	state(resolve(processed.StepResolution{Result: json.RawMessage(`{`)}, by), "22023")
	for _, none := range []processed.StepResolution{{}, {NotSent: true, Result: json.RawMessage(`1`)}} {
		if err := resolve(none, by); err == nil || !strings.Contains(err.Error(), "exactly one") {
			t.Error(err)
		}
	}
	state(processed.ResolveStep(t.Context(), b.db.Pool, k, "other", acted, by), "SK010")
	state(abandon(by), "SK011") // the charge may exist
	b.exec("update samekey.operations set lease_until = clock_timestamp() + interval '1 minute'")
	state(resolve(acted, by), "SK011")
	state(abandon(by), "SK011")
	b.expire()
	if err := resolve(processed.StepResolution{NotSent: true}, by); err != nil {
		t.Fatal(err)
	}
	if err := abandon(by); err != nil {
		t.Fatal(err)
	}
	_, err := c.run()
	if f := failureOf(err); f.Code != 410 || string(f.Body) != `"gave up"` {
		t.Errorf("after it was abandoned: %v", err)
	}
	if n := b.count("samekey.operation_steps where name = 'samekey.abandoned' and resolved_by = 'ann'"); n != 1 {
		t.Error("the act left no trace")
	}
	state(abandon(by), "SK010")
}

// What a person decided is kept, also if the next call sends nothing.
func TestResolutionOutlivesAnUnsentCall(t *testing.T) {
	b := setup(t)
	c := newCalled(b, processed.VendorCall[string]{})
	c.sends = []error{errTimeout, processed.ErrUnsent}
	c.want(processed.ErrInDoubt, "send")
	err := processed.ResolveStep(t.Context(), b.db.Pool, key(t, "k"), "charge", processed.StepResolution{NotSent: true}, processed.By{Actor: "ann", Reason: "asked"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.run(); !errors.Is(err, processed.ErrUnsent) {
		t.Fatal(err)
	}
	if n := b.count("samekey.operation_steps where status = 'unsent' and resolved_by = 'ann'"); n != 1 {
		t.Error("the act left no trace")
	}
}

func TestOperationWithAllItsStepsCanBeAbandoned(t *testing.T) {
	b := setup(t)
	c := newCalled(b, processed.VendorCall[string]{})
	c.sends = []error{errTimeout}
	c.want(processed.ErrInDoubt, "send")
	b.exec(`insert into samekey.operation_steps (idem_key, scope, position, name, status, result, finished_at)
		select idem_key, scope, n, 'step-' || n, 'done', '1', now() from samekey.operations, generate_series(2, 1000) n`)
	by := processed.By{Actor: "ann", Reason: "asked"}
	if err := processed.ResolveStep(t.Context(), b.db.Pool, key(t, "k"), "charge", processed.StepResolution{NotSent: true}, by); err != nil {
		t.Fatal(err)
	}
	if err := processed.AbandonOperation(t.Context(), b.db.Pool, key(t, "k"), failureOf(processed.Fail(410, "gave up")), by); err != nil {
		t.Error(err)
	}
}

func TestOperatorsMayResolveAndAppsMayNot(t *testing.T) {
	b := setup(t)
	c := newCalled(b, processed.VendorCall[string]{})
	c.sends = []error{errTimeout}
	c.want(processed.ErrInDoubt, "send")
	_, appDSN, workerDSN := dbtest.Logins(t, b.db)
	operator, operatorDSN := dbtest.Login(t, b.db)
	if err := schema.Grant(t.Context(), b.db.Pool, schema.Roles{Operator: operator}); err != nil {
		t.Fatal(err)
	}
	by := processed.By{Actor: "ann", Reason: "asked"}
	for who, dsn := range map[string]string{"app": appDSN, "worker": workerDSN, "operator": operatorDSN} {
		err := processed.ResolveStep(t.Context(), b.pool(dsn, 1, nil), key(t, "k"), "charge", processed.StepResolution{Result: json.RawMessage(`"ch_1"`)}, by)
		if (who == "operator") != (err == nil) || err != nil && !isState(err, "42501") {
			t.Errorf("%s: %v", who, err)
		}
	}
}

func TestPruneKeepsOperationsInProgress(t *testing.T) {
	b := setup(t)
	c := newCalled(b, processed.VendorCall[string]{})
	c.sends = []error{errTimeout}
	c.want(processed.ErrInDoubt, "send")
	b.exec("update samekey.processed_events set expires_at = clock_timestamp() - interval '1 day'")
	prune := func() processed.Pruned {
		t.Helper()
		pruned, err := processed.Prune(t.Context(), b.db.Pool, processed.Pruning{})
		if err != nil {
			t.Fatal(err)
		}
		return pruned
	}
	if got := prune(); got != (processed.Pruned{Abandoned: 1}) {
		t.Fatalf("in progress: %+v", got)
	}
	b.exec("update samekey.operations set lease_until = clock_timestamp() + interval '1 minute'")
	if got := prune(); got != (processed.Pruned{}) {
		t.Fatalf("while a call works on it: %+v", got)
	}
	b.expire()
	by := processed.By{Actor: "ann", Reason: "asked"}
	if err := processed.ResolveStep(t.Context(), b.db.Pool, key(t, "k"), "charge", processed.StepResolution{NotSent: true}, by); err != nil {
		t.Fatal(err)
	}
	c.want(nil, "send")
	if got := prune(); got != (processed.Pruned{}) {
		t.Fatalf("completed a moment ago: %+v", got)
	}
	b.exec("update samekey.processed_events set expires_at = clock_timestamp() - interval '1 day'")
	if got := prune(); got != (processed.Pruned{Records: 1}) || b.count("samekey.operation_steps") != 0 {
		t.Fatalf("expired: %+v, %d steps", got, b.count("samekey.operation_steps"))
	}
}

// A process that was paused between the mark and the send sends nothing late.
func TestCallPausedAfterItsMarkIsNotSent(t *testing.T) {
	b := setup(t)
	b.exec(`create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.3); return new; end $$`)
	b.exec("create trigger slow before update on samekey.operation_steps for each row execute function public.slow()")
	c := newCalled(b, processed.VendorCall[string]{Timeout: 200 * time.Millisecond})
	if err := c.want(processed.ErrUnsent); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	b.exec("drop trigger slow on samekey.operation_steps")
	c.call.Timeout = 0
	c.want(nil, "send")
}

// People copy the statements from the page.
func TestSQLOnTheStepsPageRuns(t *testing.T) {
	page, err := os.ReadFile("../docs/steps.md")
	if err != nil {
		t.Fatal(err)
	}
	b := setup(t)
	k := dbtest.Key(t, "5c1d3f0a", "acme", "book_seat")
	for range 2 { // sent, then parked
		_, err = processed.Steps(t.Context(), b.db.Pool, processed.Request{Key: k, Payload: []byte(`1`)}, func(ctx context.Context, op *processed.Operation) (int, error) {
			return processed.Call(ctx, op, "charge", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) { return 0, errTimeout }})
		})
	}
	if !errors.Is(err, processed.ErrParked) {
		t.Fatal(err)
	}
	statements := 0
	for _, block := range strings.Split(string(page), "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for statement := range strings.SplitSeq(block, ";\n") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			statements++
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(statement, "abandon_operation") {
				what := processed.StepResolution{NotSent: true}
				if err := processed.ResolveStep(t.Context(), tx, k, "charge", what, processed.By{Actor: "ann", Reason: "asked"}); err != nil {
					t.Fatal(err)
				}
			}
			if tag, err := tx.Exec(t.Context(), statement); err != nil || tag.RowsAffected() != 1 {
				t.Errorf("%s: %v, %v", statement, tag, err)
			}
			_ = tx.Rollback(t.Context())
		}
	}
	if statements != 6 {
		t.Errorf("%d statements", statements)
	}
}
