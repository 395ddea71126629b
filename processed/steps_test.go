package processed_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// trip is an operation of three steps: it reserves, charges and confirms.
type trip struct {
	b      *bundle
	charge processed.VendorCall[string]
	after  map[string]error // what the function returns after a step
	did    []string         // the steps that did something
}

func newTrip(b *bundle) *trip {
	t := &trip{b: b, after: map[string]error{}}
	t.charge.Send = func(context.Context, uuid.UUID) (string, error) { return "ch_1", nil }
	return t
}

func (o *trip) steps(ctx context.Context, op *processed.Operation) (string, error) {
	reserved, err := processed.Step(ctx, op, "reserve", func(ctx context.Context, tx pgx.Tx) (string, error) {
		o.did = append(o.did, "reserve")
		return "order", orderRow("reserved")(ctx, tx)
	})
	if err = errors.Join(err, o.after["reserve"]); err != nil {
		return "", err
	}
	charge := o.charge
	charge.Send = func(ctx context.Context, key uuid.UUID) (string, error) {
		o.did = append(o.did, "charge")
		return o.charge.Send(ctx, key)
	}
	charged, err := processed.Call(ctx, op, "charge", charge)
	if err != nil {
		return "", err
	}
	if err := o.after["charge"]; err != nil {
		return "", err
	}
	confirmed, err := processed.Step(ctx, op, "confirm", func(ctx context.Context, tx pgx.Tx) (string, error) {
		o.did = append(o.did, "confirm")
		return "receipt", place(ctx, tx, order{"confirmed", 7})
	})
	if err = errors.Join(err, o.after["confirm"]); err != nil {
		return "", err
	}
	return strings.Join([]string{reserved, charged, confirmed}, " "), nil
}

func (o *trip) run() (processed.Result[string], error) {
	o.did = nil
	return processed.Steps(o.b.t.Context(), o.b.db.Pool, request(o.b.t, "k", `1`), o.steps)
}

// want runs the operation and fails unless it gives this answer and does these steps.
func (o *trip) want(answer string, dedup bool, did ...string) {
	o.b.t.Helper()
	res, err := o.run()
	if err != nil || res.Value != answer || res.Deduplicated != dedup || fmt.Sprint(o.did) != fmt.Sprint(did) {
		o.b.t.Fatalf("%+v, %v; did %v, want %q, deduplicated %t, did %v", res, err, o.did, answer, dedup, did)
	}
}

// fails runs the operation and fails unless it gives this error and does these steps.
func (o *trip) fails(want error, did ...string) error {
	o.b.t.Helper()
	res, err := o.run()
	if !errors.Is(err, want) || fmt.Sprint(o.did) != fmt.Sprint(did) {
		o.b.t.Fatalf("%+v, %v; did %v, want %v, did %v", res, err, o.did, want, did)
	}
	return err
}

func (o *trip) answer() string { return "order ch_1 receipt" }

func TestStepsRunOnceAndTheAnswerReplays(t *testing.T) {
	b := setup(t)
	o := newTrip(b)
	o.want(o.answer(), false, "reserve", "charge", "confirm")
	b.stored(2, 1, 1)
	o.want(o.answer(), true)
	b.stored(2, 1, 1)
	if n := b.count("samekey.operations"); n != 0 {
		t.Errorf("%d operations in progress", n)
	}
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `2`), o.steps); !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another payload: %v", err)
	}
	// Run with the same key gets the same answer.
	res, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(context.Context, pgx.Tx) (string, error) { panic("called") })
	if err != nil || res.Value != o.answer() || !res.Deduplicated {
		t.Errorf("Run: %+v, %v", res, err)
	}
}

func TestStepsResumeAfterTheLastFinishedStep(t *testing.T) {
	b := setup(t)
	o := newTrip(b)
	own := errors.New("own")
	o.after["reserve"] = own
	o.fails(own, "reserve")
	b.stored(1, 0, 1)
	// The key belongs to the request from now on.
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `2`), o.steps); !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another payload: %v", err)
	}
	if _, err := b.place(request(t, "k", `1`), order{"o", 1}); !errors.Is(err, processed.ErrInFlight) {
		t.Errorf("Run: %v", err)
	}
	o.after = map[string]error{"charge": own}
	o.fails(own, "charge")
	o.after = map[string]error{"confirm": own}
	o.fails(own, "confirm")
	b.stored(2, 1, 1)
	o.after = nil
	o.want(o.answer(), false)
	o.want(o.answer(), true)
	b.stored(2, 1, 1)
}

func TestOperationThatDidNothingLeavesTheKeyFree(t *testing.T) {
	b := setup(t)
	own := errors.New("own")
	do := func(fn func(ctx context.Context, op *processed.Operation) (int, error)) error {
		_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), fn)
		return err
	}
	for name, fn := range map[string]func(ctx context.Context, op *processed.Operation) (int, error){
		"before the first step": func(context.Context, *processed.Operation) (int, error) { return 0, own },
		"in the first step": func(ctx context.Context, op *processed.Operation) (int, error) {
			return processed.Step(ctx, op, "a", func(ctx context.Context, tx pgx.Tx) (int, error) { return 0, errors.Join(orderRow("a")(ctx, tx), own) })
		},
		"unsent": func(ctx context.Context, op *processed.Operation) (int, error) {
			return processed.Call(ctx, op, "a", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) {
				return 0, fmt.Errorf("%w: %w", processed.ErrUnsent, own)
			}})
		},
	} {
		if err := do(fn); !errors.Is(err, own) {
			t.Errorf("%s: %v", name, err)
		}
		if b.stored(0, 0, 0); b.count("samekey.operations")+b.count("samekey.operation_steps") != 0 {
			t.Errorf("%s: rows are left", name)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = do(func(context.Context, *processed.Operation) (int, error) { panic("boom") })
	}()
	b.stored(0, 0, 0)
}

func TestFailureOfAStepIsItsResult(t *testing.T) {
	b := setup(t)
	calls, own := 0, errors.New("own")
	last := own
	fn := func(ctx context.Context, op *processed.Operation) (string, error) {
		if _, err := processed.Step(ctx, op, "reserve", func(ctx context.Context, tx pgx.Tx) (int, error) {
			return 1, orderRow("reserved")(ctx, tx)
		}); err != nil {
			return "", err
		}
		_, refused := processed.Call(ctx, op, "charge", processed.VendorCall[string]{Send: func(context.Context, uuid.UUID) (string, error) {
			calls++
			return "", processed.Fail(402, "declined")
		}})
		if failureOf(refused).Code != 402 {
			return "", refused
		}
		_, taken := processed.Step(ctx, op, "seat", func(ctx context.Context, tx pgx.Tx) (int, error) {
			calls++
			return 0, errors.Join(orderRow("seat")(ctx, tx), processed.Fail(409, nil))
		})
		if failureOf(taken).Code != 409 {
			return "", taken
		}
		if last != nil {
			return "", last
		}
		if _, err := processed.Step(ctx, op, "release", func(ctx context.Context, tx pgx.Tx) (int, error) { // compensation
			return 1, exec("delete from orders where id = 'reserved'")(ctx, tx)
		}); err != nil {
			return "", err
		}
		return "", refused
	}
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), fn); !errors.Is(err, own) || calls != 2 {
		t.Fatalf("%v, %d calls", err, calls)
	}
	b.stored(1, 0, 1)
	last = nil
	for _, dedup := range []bool{false, true} {
		res, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), fn)
		if failureOf(err).Code != 402 || string(failureOf(err).Body) != `"declined"` || res.Deduplicated != dedup || calls != 2 {
			t.Fatalf("%+v, %v, %d calls", res, err, calls)
		}
	}
	b.stored(0, 0, 1)
}

func TestOneOfManyCallsWorksOnAnOperation(t *testing.T) {
	b := setup(t)
	var ran, refused atomic.Int32
	inside, resume := make(chan struct{}), make(chan struct{})
	fn := func(ctx context.Context, op *processed.Operation) (int, error) {
		return processed.Call(ctx, op, "a", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) {
			ran.Add(1)
			close(inside)
			<-resume
			return 1, nil
		}})
	}
	var all sync.WaitGroup
	start := make(chan struct{})
	const others = 5
	left := make(chan error, others+1)
	for range others + 1 {
		all.Go(func() {
			<-start
			_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), fn)
			left <- err
		})
	}
	close(start)
	<-inside
	for range others {
		err := <-left
		if !errors.Is(err, processed.ErrInFlight) || !processed.SafeToRetry(err) {
			t.Error(err)
			continue
		}
		refused.Add(1)
	}
	// The one call holds the operation for the call's timeout and 10 s.
	_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), fn)
	if after := processed.RetryAfter(err); !errors.Is(err, processed.ErrInFlight) || after < 30*time.Second || after > 40*time.Second {
		t.Errorf("%v, retry after %v", err, after)
	}
	close(resume)
	all.Wait()
	if err := <-left; err != nil || ran.Load() != 1 || refused.Load() != others {
		t.Errorf("%v; ran %d, refused %d", err, ran.Load(), refused.Load())
	}
}

// expire ends the lease of the operation, as time does.
func (b *bundle) expire() { b.exec("update samekey.operations set lease_until = clock_timestamp()") }

// The old holder's writes fail, wherever it comes back.
func TestTakenOverCallStoresNothing(t *testing.T) {
	put := func(ctx context.Context, op *processed.Operation, name string) (int, error) {
		return processed.Step(ctx, op, name, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, orderRow(name)(ctx, tx) })
	}
	for name, back := range map[string]func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error){
		"before a step": func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error) {
			takeOver()
			return put(ctx, op, "a")
		},
		"before a call": func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error) {
			takeOver()
			return processed.Call(ctx, op, "a", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) { panic("sent") }})
		},
		"with an answer": func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error) {
			return processed.Call(ctx, op, "a", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) { takeOver(); return 1, nil }})
		},
		"unsent": func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error) {
			return processed.Call(ctx, op, "a", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) { takeOver(); return 1, processed.ErrUnsent }})
		},
		"at the end": func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error) {
			if _, err := put(ctx, op, "a"); err != nil {
				return 0, err
			}
			takeOver()
			return 1, nil
		},
		"with a failure of a step": func(ctx context.Context, op *processed.Operation, takeOver func()) (int, error) {
			return processed.Step(ctx, op, "a", func(context.Context, pgx.Tx) (int, error) { return 0, processed.Fail(402, nil) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			taken := false
			takeOver := func() {
				b.exec("update samekey.operations set fence = fence + 1, lease_until = clock_timestamp() + interval '1 minute'")
				taken = true
			}
			if name == "with a failure of a step" { // stored in another transaction than the step's
				b.exec(`create function public.take() returns trigger language plpgsql as $$ begin
					update samekey.operations set fence = fence + 1; return new; end $$`)
				b.exec("create trigger take before insert on samekey.operation_steps for each row execute function public.take()")
				b.exec("alter table samekey.operation_steps disable trigger take")
				taken = true
			}
			_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
				if name == "with a failure of a step" {
					takeOver()
				}
				return back(ctx, op, takeOver)
			})
			if !errors.Is(err, processed.ErrInFlight) || !processed.SafeToRetry(err) || !taken {
				t.Fatal(err)
			}
			if n := b.count("samekey.operation_steps where status = 'done' and name <> 'a'"); n != 0 {
				t.Errorf("%d steps", n)
			}
			if n := b.count("samekey.processed_events where completed_at is not null"); n != 0 {
				t.Error("completed")
			}
			if n := b.count("samekey.operations where lease_until > clock_timestamp()"); n != 1 {
				t.Error("the new holder lost its lease")
			}
		})
	}
}

// A step's transaction holds the operation, however old its lease.
func TestRunningStepIsNotTakenOver(t *testing.T) {
	b := setup(t)
	res, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
		if _, err := processed.Step(ctx, op, "first", func(context.Context, pgx.Tx) (int, error) { return 1, nil }); err != nil {
			return 0, err
		}
		b.expire()
		return processed.Step(ctx, op, "a", func(context.Context, pgx.Tx) (int, error) {
			within, cancel := context.WithTimeout(t.Context(), dbtest.Patience)
			defer cancel()
			_, err := processed.Steps(within, b.db.Pool, request(t, "k", `1`), func(context.Context, *processed.Operation) (int, error) { panic("taken over") })
			if !errors.Is(err, processed.ErrInFlight) {
				t.Errorf("%v", err)
			}
			return 7, nil
		})
	})
	if err != nil || res.Value != 7 {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestExpiredOperationIsTakenOverByOne(t *testing.T) {
	b := setup(t)
	o := newTrip(b)
	o.after["reserve"] = errors.New("own")
	_, _ = o.run()
	b.exec("update samekey.operations set lease_until = clock_timestamp() + interval '3 seconds'")
	err := o.fails(processed.ErrInFlight)
	if after := processed.RetryAfter(err); after <= time.Second || after > 3*time.Second {
		t.Errorf("retry after %v", after)
	}
	b.expire()
	inside, resume := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (string, error) {
			close(inside)
			<-resume
			o.after = nil
			return o.steps(ctx, op)
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-inside
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), o.steps); !errors.Is(err, processed.ErrInFlight) {
		t.Error(err)
	}
	if n := b.count("samekey.operations where attempts = 2"); n != 1 {
		t.Error("not taken over once")
	}
	close(resume)
	all.Wait()
	o.want(o.answer(), true)
}

func TestChangedStepsAreATypedError(t *testing.T) {
	name := func(_ context.Context, op *processed.Operation, name string) error {
		_, err := processed.Step(t.Context(), op, name, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		return err
	}
	call := func(ctx context.Context, op *processed.Operation, name string) error {
		_, err := processed.Call(ctx, op, name, processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) { return 1, nil }})
		return err
	}
	own := errors.New("own")
	b := setup(t)
	steps := func(end error, all ...func(context.Context, *processed.Operation) error) error {
		_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
			for _, step := range all {
				if err := step(ctx, op); err != nil {
					return 0, err
				}
			}
			return 1, end
		})
		return err
	}
	do := func(how func(context.Context, *processed.Operation, string) error, n string) func(context.Context, *processed.Operation) error {
		return func(ctx context.Context, op *processed.Operation) error { return how(ctx, op, n) }
	}
	a, c := do(name, "a"), do(name, "c")
	if err := steps(own, a, c); !errors.Is(err, own) {
		t.Fatal(err)
	}
	for what, err := range map[string]struct {
		err  error
		want processed.StepsChangedError
	}{
		"renamed":      {steps(nil, do(name, "b")), processed.StepsChangedError{Position: 1, Stored: "a", Name: "b"}},
		"inserted":     {steps(nil, a, do(name, "b"), c), processed.StepsChangedError{Position: 2, Stored: "c", Name: "b"}},
		"swapped":      {steps(nil, c, a), processed.StepsChangedError{Position: 1, Stored: "a", Name: "c"}},
		"removed":      {steps(nil, a), processed.StepsChangedError{Position: 2, Stored: "c"}},
		"another kind": {steps(nil, do(call, "a")), processed.StepsChangedError{Position: 1, Stored: "a", Name: "a"}},
	} {
		changed := (*processed.StepsChangedError)(nil)
		if !errors.As(err.err, &changed) || *changed != err.want {
			t.Errorf("%s: %v", what, err.err)
		}
	}
	if err := steps(nil, a, c, do(name, "d")); err != nil {
		t.Errorf("a step at the end: %v", err)
	}
}

func TestMisusedStepsAreErrors(t *testing.T) {
	b := setup(t)
	one := func(ctx context.Context, op *processed.Operation, name string) error {
		_, err := processed.Step(ctx, op, name, func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		return err
	}
	own := errors.New("own")
	var kept *processed.Operation
	for want, fn := range map[string]func(ctx context.Context, op *processed.Operation) error{
		"a name must match":       func(ctx context.Context, op *processed.Operation) error { return one(ctx, op, "No") },
		"not begin with samekey.": func(ctx context.Context, op *processed.Operation) error { return one(ctx, op, "samekey.x") },
		"use another name": func(ctx context.Context, op *processed.Operation) error {
			return errors.Join(one(ctx, op, "a"), one(ctx, op, "a"))
		},
		"steps run one after another": func(ctx context.Context, op *processed.Operation) error {
			_, err := processed.Step(ctx, op, "a", func(ctx context.Context, _ pgx.Tx) (int, error) { return 1, one(ctx, op, "b") })
			return err
		},
		`the step "a" before it did not finish`: func(ctx context.Context, op *processed.Operation) error {
			_, err := processed.Step(ctx, op, "a", func(context.Context, pgx.Tx) (int, error) { return 1, own })
			return errors.Join(err, one(ctx, op, "b"))
		},
		`returned an answer, and the step "a"`: func(ctx context.Context, op *processed.Operation) error {
			_, _ = processed.Step(ctx, op, "a", func(context.Context, pgx.Tx) (int, error) { return 1, own })
			return nil
		},
		`returned an answer, and the step "b"`: func(ctx context.Context, op *processed.Operation) error {
			_, _ = processed.Call(ctx, op, "b", processed.VendorCall[int]{Send: func(context.Context, uuid.UUID) (int, error) { return 1, own }})
			return processed.Fail(402, nil)
		},
		"Send is nil":         vendorCall(processed.VendorCall[int]{}),
		"Timeout is 1ms":      vendorCall(processed.VendorCall[int]{Send: sent, Timeout: time.Millisecond}),
		"KeyWindow is 40s":    vendorCall(processed.VendorCall[int]{Send: sent, KeyWindow: 40 * time.Second}),
		"needs a Lookup":      vendorCall(processed.VendorCall[int]{Send: sent, ResendAbsent: true}),
		"without a KeyWindow": vendorCall(processed.VendorCall[int]{Send: sent, Lookup: sent, ResendAbsent: true, KeyWindow: processed.Forever}),
		"the operation has ended": func(ctx context.Context, op *processed.Operation) error {
			kept = op
			_, err := processed.Steps(ctx, b.db.Pool, request(t, "other", `1`), func(_ context.Context, op *processed.Operation) (int, error) {
				kept = op
				return 1, nil
			})
			return errors.Join(err, one(ctx, kept, "a"))
		},
		"is nested in another one": func(ctx context.Context, op *processed.Operation) error {
			_, err := processed.Steps[int](ctx, b.db.Pool, request(t, "k"+t.Name(), `1`), nil)
			_, err2 := processed.Run(ctx, b.db.Pool, request(t, "k"+t.Name(), `1`), func(context.Context, pgx.Tx) (int, error) { return 1, nil })
			if !errors.Is(err2, processed.ErrNested) {
				t.Errorf("Run: %v", err2)
			}
			return err
		},
		"in Run of key": func(ctx context.Context, op *processed.Operation) error {
			_, err := processed.Step(ctx, op, "a", func(ctx context.Context, _ pgx.Tx) (int, error) {
				return 1, b.run("inner", func(context.Context, pgx.Tx) error { return nil })
			})
			_, err2 := processed.Step(ctx, op, "b", func(ctx context.Context, _ pgx.Tx) (int, error) {
				_, err := processed.Run(ctx, b.db.Pool, request(t, "inner", `1`), func(context.Context, pgx.Tx) (int, error) { return 1, nil })
				return 1, err
			})
			return errors.Join(err, err2)
		},
	} {
		_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k"+t.Name(), `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
			return 1, fn(ctx, op)
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		b.exec("delete from samekey.operation_steps")
		b.exec("delete from samekey.operations")
		b.exec("delete from samekey.processed_events")
	}
}

func sent(context.Context, uuid.UUID) (int, error) { return 1, nil }

func vendorCall(call processed.VendorCall[int]) func(ctx context.Context, op *processed.Operation) error {
	return func(ctx context.Context, op *processed.Operation) error {
		_, err := processed.Call(ctx, op, "a", call)
		return err
	}
}

// Two steps that insert one intent would have one effect, and the second would be missing.
func TestStepsCannotShareAnIntent(t *testing.T) {
	b := setup(t)
	for name, before := range map[string]act{"queued": exec("select 1"), "written": exec("savepoint s"), "the connection": func(_ context.Context, tx pgx.Tx) error { tx.Conn(); return nil }} {
		_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k"+strings.ReplaceAll(name, " ", ""), `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
			if _, err := processed.Step(ctx, op, "a", func(ctx context.Context, tx pgx.Tx) (int, error) {
				return 1, acts(before, add("1"), add("1"), add("2"))(ctx, tx) // twice in one step is one intent
			}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return processed.Step(ctx, op, "b", func(ctx context.Context, tx pgx.Tx) (int, error) {
				return 1, acts(before, orderRow("b"), add("3"), add("2"))(ctx, tx)
			})
		})
		if err == nil || !strings.Contains(err.Error(), `step "b"`) || !strings.Contains(err.Error(), "give each its own Part") {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.parts(); got != "1 2" {
			t.Errorf("%s: intents %q", name, got)
		}
		if b.count("orders") != 0 {
			t.Errorf("%s: the step's rows are there", name)
		}
		b.exec("truncate samekey.outbox, samekey.outbox_queue")
	}
	conflict := (*outbox.ConflictError)(nil)
	_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "other", `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
		for n, name := range []string{"a", "b"} {
			if _, err := processed.Step(ctx, op, name, func(ctx context.Context, tx pgx.Tx) (int, error) {
				_, err := insert(ctx, tx, "", n)
				return 1, err
			}); err != nil {
				return 0, err
			}
		}
		return 1, nil
	})
	if !errors.As(err, &conflict) {
		t.Errorf("another payload: %v", err)
	}
}

func TestStepRunsAgainAfterACollision(t *testing.T) {
	b := setup(t)
	calls := 0
	res, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
		return processed.Step(ctx, op, "a", func(context.Context, pgx.Tx) (int, error) {
			if calls++; calls < 3 {
				return 0, &pgconn.PgError{Code: "40001"}
			}
			return calls, nil
		})
	})
	if err != nil || res.Value != 3 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestAServiceCannotTouchTheOperationsOfAnother(t *testing.T) {
	b := setup(t)
	roles, dsn, _ := dbtest.Logins(t, b.db)
	_ = roles
	pool := b.pool(dsn, 2, nil)
	o := newTrip(b)
	b.exec("grant all on orders to public")
	res, err := processed.Steps(t.Context(), pool, request(t, "mine", `1`), o.steps)
	if err != nil || res.Value != o.answer() {
		t.Fatalf("as the application's role: %+v, %v", res, err)
	}
	other, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	dbtest.Exec(t, other, "set samekey.service = 'billing'")
	for _, call := range []string{
		"operation_start($1, $2, sha256(''), 1::smallint, 1000000, '', 1, 1000000)", "operation_release($1, $2, 1)",
		"operation_complete($1, $2, 1, 1, false, null, null, null)", "step_lock($1, $2, 1)",
		"step_put($1, $2, 1, 1, 1::smallint, 'a', false, null, null)", "call_put($1, $2, 1, 1, 1::smallint, false, null, null)",
		"call_mark($1, $2, 1, 1, 1::smallint, 'a', 1, 1, 1, false, false, false)", "call_end($1, $2, 1, 1, 1::smallint, 1, false, '')",
	} {
		k := key(t, "mine")
		if _, err := other.Exec(t.Context(), "select samekey."+call, k.Scope, k.Value); !isState(err, "SK003") {
			t.Errorf("%s: %v", call, err)
		}
	}
	for _, sql := range []string{"select fence from samekey.operations", "update samekey.operations set lease_until = now()", "delete from samekey.operation_steps",
		"insert into samekey.operations (idem_key, scope, fence, lease_until) values ('a', 's', 1, now())", "update samekey.operation_steps set result = ''",
		"select samekey.resolve_step('s', 'k', 'a', 'not_sent', 'a', 'r')", "select samekey.abandon_operation('s', 'k', 'a', 'r', 1, '1')"} {
		if _, err := pool.Exec(t.Context(), sql); !isState(err, "42501") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func isState(err error, code string) bool {
	pg := (*pgconn.PgError)(nil)
	return errors.As(err, &pg) && pg.Code == code
}

func TestStepsCostFewRoundTrips(t *testing.T) {
	b, proxy := wired(t, 1)
	var keys int
	run := func(all ...func(context.Context, *processed.Operation) error) (int, string) {
		t.Helper()
		for range 3 { // the last one counts
			trips(proxy)
			keys++
			if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, fmt.Sprint(keys), `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
				for _, step := range all {
					if err := step(ctx, op); err != nil {
						return 0, err
					}
				}
				return 1, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		return trips(proxy)
	}
	step := func(ctx context.Context, op *processed.Operation) error {
		_, err := processed.Step(ctx, op, "step", func(ctx context.Context, tx pgx.Tx) (int, error) { // one statement and an intent
			return 1, place(ctx, tx, order{fmt.Sprint("o", keys), 7})
		})
		return err
	}
	for what, c := range map[string]struct {
		want int
		all  []func(context.Context, *processed.Operation) error
	}{
		"an operation without steps": {2, nil},
		"a step with one statement":  {2 + 3, []func(context.Context, *processed.Operation) error{step}},
		"a call":                     {2 + 2, []func(context.Context, *processed.Operation) error{vendorCall(processed.VendorCall[int]{Send: sent})}},
	} {
		if n, said := run(c.all...); n != c.want {
			t.Errorf("%s: %d round trips, want %d:\n%s", what, n, c.want, said)
		}
	}
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, fmt.Sprint(keys), `1`), func(context.Context, *processed.Operation) (int, error) { panic("called") }); err != nil {
		t.Fatal(err)
	}
	if n, said := trips(proxy); n != 1 {
		t.Errorf("a replay: %d round trips, want 1:\n%s", n, said)
	}
}

func TestStepKeysAreDeliveryKeys(t *testing.T) {
	b := setup(t)
	o := newTrip(b)
	var got uuid.UUID
	o.charge.Send = func(_ context.Context, key uuid.UUID) (string, error) { got = key; return "ch_1", nil }
	o.want(o.answer(), false, "reserve", "charge", "confirm")
	if want := samekey.DeliveryKey(key(t, "k"), "step:charge", ""); got != want {
		t.Errorf("sent %v, want %v", got, want)
	}
	if stored := dbtest.Value[uuid.UUID](t, b.db, "select delivery_key from samekey.operation_steps where name = 'charge'"); stored != got {
		t.Errorf("stored %v, sent %v", stored, got)
	}
}

func TestVersionStepKeepsOperationsOnTheirWay(t *testing.T) {
	b := setup(t)
	own := errors.New("own")
	var did []string
	do := func(ctx context.Context, op *processed.Operation, name string) error {
		_, err := processed.Step(ctx, op, name, func(context.Context, pgx.Tx) (int, error) { did = append(did, name); return 1, nil })
		return err
	}
	release := func(newest int, end error) error {
		_, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, op *processed.Operation) (int, error) {
			version, err := processed.Step(ctx, op, "version", func(context.Context, pgx.Tx) (int, error) { return newest, nil })
			if err != nil {
				return 0, err
			}
			if version == 1 {
				return version, errors.Join(do(ctx, op, "old"), end)
			}
			return version, errors.Join(do(ctx, op, "new"), end)
		})
		return err
	}
	if err := release(1, own); !errors.Is(err, own) {
		t.Fatal(err)
	}
	if err := release(2, nil); err != nil || fmt.Sprint(did) != "[old]" {
		t.Fatalf("%v, did %v", err, did)
	}
}

func TestSubjectOfAnOperationIsThatOfItsIntents(t *testing.T) {
	b := setup(t)
	req := request(t, "k", `1`)
	req.Subject = "booking/42"
	if _, err := processed.Steps(t.Context(), b.db.Pool, req, newTrip(b).steps); err != nil {
		t.Fatal(err)
	}
	if n := b.count("samekey.processed_events p join samekey.outbox o using (idem_key, scope, subject) where subject = 'booking/42'"); n != 1 {
		t.Errorf("%d intents", n)
	}
}
