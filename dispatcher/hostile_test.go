package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// A writer holds the lock of its ordering key until it commits. That must not delay other keys.
func TestOpenWriterDelaysOnlyItsOrderingKey(t *testing.T) {
	b := setup(t)
	b.exec(`select samekey.enqueue('t', 'head', 'ordered', '1', ordering_key => 'k')`)
	open, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(context.WithoutCancel(t.Context()))
	if _, err := open.Exec(t.Context(), `select samekey.enqueue('t', 'next', 'ordered', '1', ordering_key => 'k')`); err != nil {
		t.Fatal(err)
	}
	b.exec(`select samekey.enqueue('t', 'other' || i, 'plain', '1') from generate_series(1, 5) i`)

	d := dispatcher.New(b.db.Pool, &dispatcher.Config{SweepInterval: 50 * time.Millisecond})
	p := dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Timeout: 500 * time.Millisecond, Lease: time.Second}
	calls := make(chan string, 100)
	handler := func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		calls <- call.Key.Value
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}
	handle(d, "ordered", p, handler)
	handle(d, "plain", p, handler)
	run := b.start(d)
	defer run.stop()
	delivered := func() int {
		return b.count(`select count(*) from samekey.outbox_history where final_status = 'delivered'`)
	}
	b.until("the others are delivered", func() bool { return delivered() == 5 })
	// The head is answered, and waits for the writer longer than its lease.
	renewed := func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where ordering_key = 'k' and status = 'leased' and lease_until > clock_timestamp() + interval '30 s'`) == 1
	}
	b.until("its lease is renewed", renewed)
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until("the ordered ones are delivered in their order", func() bool { return delivered() == 7 })
	if len(calls) != 7 {
		t.Errorf("%d calls were made for 7 intents", len(calls))
	}
}

// An open transaction on one intent must not delay other intents.
func TestLockedRowDelaysOnlyItsOutcome(t *testing.T) {
	b := setup(t)
	b.exec(`select samekey.enqueue('t', 'k' || i, 'plain', '1') from generate_series(1, 10) i`)
	d := dispatcher.New(b.db.Pool, nil)
	locked := make(chan struct{})
	handle(d, "plain", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		<-locked
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	})
	run := b.start(d)
	defer run.stop()
	b.until("all are leased", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where status = 'leased'`) == 10
	})
	open, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(context.WithoutCancel(t.Context()))
	if _, err := open.Exec(t.Context(), `select from samekey.outbox_queue order by id limit 1 for update`); err != nil {
		t.Fatal(err)
	}
	close(locked)
	delivered := func() int {
		return b.count(`select count(*) from samekey.outbox_history where final_status = 'delivered'`)
	}
	b.until("the other intents are delivered", func() bool { return delivered() == 9 })
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until("it is delivered too", func() bool { return delivered() == 10 })
}

// The application writes its row first and its intent last. Apply must take the locks in the same order.
func TestApplyAndWriterDoNotDeadlock(t *testing.T) {
	b := setup(t)
	b.exec(`create table orders (id int primary key, state text)`)
	b.exec(`insert into orders values (1, 'pending')`)
	b.exec(`select samekey.enqueue('t', 'head', 'ordered', '1', ordering_key => 'order-1')`)

	writer, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Rollback(context.WithoutCancel(t.Context()))
	if _, err := writer.Exec(t.Context(), `update orders set state = 'changed' where id = 1`); err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{}, 10)
	d := dispatcher.New(b.db.Pool, nil)
	handle(d, "ordered", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: time.Hour, Attempts: 1},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{}), nil
		},
		withApply(func(ctx context.Context, tx pgx.Tx, _ []byte, _ dispatcher.Settled) error {
			began <- struct{}{}
			_, err := tx.Exec(ctx, `update orders set state = 'paid' where id = 1`)
			return err
		}))
	run := b.start(d)
	defer run.stop()
	wait(b, "the Apply", began)
	b.until("the Apply waits for the writer's row", func() bool {
		return b.count(`select count(*) from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database()`) > 0
	})
	if _, err := writer.Exec(t.Context(), `select samekey.enqueue('t', 'next', 'ordered', '2', ordering_key => 'order-1')`); err != nil {
		t.Errorf("the writer: %v", err)
	}
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until("both are delivered", func() bool {
		return b.count(`select count(*) from samekey.outbox_history where final_status = 'delivered'`) == 2
	})
	if n := b.count(`select count(*) from samekey.outbox_history where event = 'apply' and outcome = 'retry'`); n != 0 {
		t.Errorf("an Apply failed %d times", n)
	}
}

func TestApplyCannotEndItsTransaction(t *testing.T) {
	b := setup(t)
	b.exec(`create table receipts (n int)`)
	b.exec(`select samekey.enqueue('t', 'k', 'plain', '1')`)
	d := dispatcher.New(b.db.Pool, nil)
	handle(d, "plain", dispatcher.Policy{Class: dispatcher.Read}, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{}), nil
	}, withApply(func(ctx context.Context, tx pgx.Tx, n []byte, _ dispatcher.Settled) error {
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, `insert into receipts values ($1::text::int)`, string(n)); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}))
	if _, err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count(`select count(*) from receipts`); n != 0 {
		t.Errorf("%d rows were committed by an Apply that ended its transaction, want an error and none", n)
	}
}

// The type of a handler's error does not prove that nothing was sent.
func TestDialErrorProvesNothing(t *testing.T) {
	dial := fmt.Errorf("note it: %w", &net.OpError{Op: "dial", Err: errors.New("refused")})
	for _, class := range []dispatcher.Class{dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			id := b.insert("charge_card")
			calls := 0
			d := dispatcher.New(b.db.Pool, nil)
			handle(d, "charge_card", dispatcher.Policy{Class: class}, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
				calls++ // it acts, and then fails to report that elsewhere
				return dispatcher.Delivered(dispatcher.Response{Code: "200"}), dial
			})
			if class == dispatcher.IrreversibleWrite {
				b.drain(d)
				b.approve(id)
			}
			b.drain(d)
			b.elapse(time.Hour)
			b.drain(d)
			if b.status(id) != "parked" || calls != 1 {
				t.Errorf("after %d calls it is %s, want one and parked", calls, b.status(id))
			}
			if err := outbox.Redrive(t.Context(), b.db.Pool, id, outbox.By{Actor: "ada", Reason: "try"}); err == nil {
				t.Error("it was redriven before it was resolved")
			}
		})
	}
}

// brokenError is an error whose methods panic, such as a nil pointer that a function returned as an error.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func TestErrorWhoseMethodsPanicEndsNoWorker(t *testing.T) {
	var broken *brokenError
	for name, send := range map[string]func() (dispatcher.Outcome, error){
		"an error": func() (dispatcher.Outcome, error) { return dispatcher.Delivered(dispatcher.Response{}), broken },
		"wrapped":  func() (dispatcher.Outcome, error) { return dispatcher.Outcome{}, errors.Join(broken, broken) },
		"a reason": func() (dispatcher.Outcome, error) { return dispatcher.Dead(dispatcher.Response{}).Because(broken), nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(dispatcher.NonIdempotentWrite)
			p.Attempts = 1
			b, d, s := scriptedSetup(t, p, withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) { return send() }))
			s.next = func(*dispatcher.Call) (dispatcher.Outcome, error) { return send() }
			id := b.insert("charge_card")
			b.expect(d, unknown)
			b.elapse(settling)
			b.expect(d, parked)
			b.wantHistory(id, "attempt:unknown:panic lookup:unknown:lookup_failed")
		})
	}
	t.Run("in Apply", func(t *testing.T) {
		b, d, _ := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite),
			withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error { return broken }))
		b.insert("charge_card")
		b.expect(d, retried)
	})
	t.Run("in Render", func(t *testing.T) {
		b, d, _ := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite), withRender(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error) {
			return dispatcher.Rendered{}, broken
		}))
		b.insert("charge_card")
		b.expect(d, dispatcher.Summary{Dead: 1})
	})
}

func TestGoexitInSendIsUnknown(t *testing.T) {
	b := setup(t)
	id := b.insert("charge_card")
	d := dispatcher.New(b.db.Pool, nil)
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		runtime.Goexit()
		return dispatcher.Delivered(dispatcher.Response{}), nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	sum, err := d.Drain(ctx)
	if err != nil || sum.Unknown != 1 || b.status(id) != "unknown" {
		t.Errorf("%+v, %v, %s", sum, err, b.status(id))
	}
}

// A late answer resolves what its own attempt left open, regardless of later claims that sent nothing.
func TestUnsentClaimDoesNotReplaceTheLastSend(t *testing.T) {
	b := setup(t)
	id := b.insert("charge_card")
	p := policyOf(dispatcher.IdempotentWrite)
	p.Attempts = 1
	g := newGate(1)
	run := b.start(b.gated(b.db.Pool, g, p))
	wait(b, "the call", g.began)
	b.elapse(2 * lease) // another worker takes it over, and no attempt is left
	b.until("it is dead", func() bool { return b.status(id) == "dead" })
	g.release()
	b.until("the late answer ends it", func() bool {
		return b.count(`select count(*) from samekey.outbox_history where final_status = 'delivered'`) == 1
	})
	if err := run.stop(); err != nil {
		t.Error(err)
	}
	g.wantCalls(b, 1)
}
