package dispatcher_test

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// blocking is a bundle in which the Applies of some actions wait for a row that an application transaction has locked.
type blocking struct {
	*bundle
	holder  pgx.Tx
	calls   atomic.Int32 // of the blocked actions
	applied atomic.Int32 // of the others
}

func setupBlocking(t *testing.T) *blocking {
	t.Helper()
	b := &blocking{bundle: setup(t)}
	b.exec(`create table orders (id text primary key, paid int not null default 0)`)
	b.exec(`insert into orders values ('locked'), ('free')`)
	conn, err := pgx.Connect(b.ctx, b.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(b.ctx)) })
	if b.holder, err = conn.Begin(b.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := b.holder.Exec(b.ctx, `select from orders where id = 'locked' for update`); err != nil {
		t.Fatal(err)
	}
	return b
}

// on returns a dispatcher whose pool has that many connections.
func (b *blocking) on(connections int, logs ...string) *dispatcher.Dispatcher {
	b.Helper()
	separator := "?"
	if strings.Contains(b.db.DSN, "?") {
		separator = "&"
	}
	if _, err := url.Parse(b.db.DSN); err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.New(b.ctx, fmt.Sprintf("%s%spool_max_conns=%d", b.db.DSN, separator, connections))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return b.dispatcherOn(pool, dispatcher.Config{})
}

// handle registers an action whose Applies update one of the orders.
func (b *blocking) handle(d *dispatcher.Dispatcher, action, destination, order string) {
	p := policyOf(dispatcher.IdempotentWrite)
	p.Destination, p.Timeout = destination, 4*patience
	p.Backoff, p.MaxBackoff = time.Second, time.Second
	handle(d, action, p, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		if order == "locked" {
			b.calls.Add(1)
		}
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}, withApply(func(ctx context.Context, tx pgx.Tx, _ []byte, _ dispatcher.Settled) error {
		_, err := tx.Exec(ctx, `update orders set paid = paid + 1 where id = $1`, order)
		if err == nil && order != "locked" {
			b.applied.Add(1)
		}
		return err
	}))
}

// waiters counts the sessions that wait for the locked order.
func (b *blocking) waiters() int {
	b.Helper()
	return b.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like 'update orders%'`)
}

func (b *blocking) finished(action string) int {
	b.Helper()
	return b.count(`select count(*) from samekey.outbox_history h join samekey.outbox o on o.id = h.intent_id where o.action = $1 and h.final_status = 'delivered'`, action)
}

func (b *blocking) release() {
	b.Helper()
	if err := b.holder.Rollback(b.ctx); err != nil {
		b.Fatal(err)
	}
}

func TestBlockedAppliesDoNotDelayOtherActions(t *testing.T) {
	b := setupBlocking(t)
	d := b.on(10)
	d.Destination("vendor", dispatcher.Limits{Concurrency: 8})
	d.Destination("mail", dispatcher.Limits{})
	b.handle(d, "charge_card", "vendor", "locked")
	b.handle(d, "refund", "vendor", "free")
	b.handle(d, "send_receipt", "mail", "free")
	b.insertMany("charge_card", 20)
	b.start(d)
	b.until("Applies wait for the row", func() bool { return b.waiters() >= 3 })
	b.insertMany("send_receipt", 100)
	b.insertMany("refund", 20)
	outbox.Flush(b.db.Pool, "send_receipt", "refund")
	b.until("the others are delivered", func() bool { return b.finished("send_receipt") == 100 && b.finished("refund") == 20 })
	b.insertManyMore("charge_card", 50)
	b.until("the blocked action's calls are made", func() bool { return b.calls.Load() == 70 })
	if n := b.waiters(); n < 3 || n > 4 {
		t.Errorf("%d Applies of the action run", n)
	}
	b.release()
	b.until("all are delivered", func() bool { return b.finished("charge_card") == 70 })
}

// Six actions are blocked. Applies have two connections of the pool, and an Apply that takes long gives way to others.
func TestBlockedActionsDoNotStopAHealthyOne(t *testing.T) {
	b := setupBlocking(t)
	d := b.on(4)
	d.Destination("vendor", dispatcher.Limits{Concurrency: 8})
	d.Destination("webhooks", dispatcher.Limits{}) // the last in order, so its turn comes last
	for i := range 6 {
		b.handle(d, fmt.Sprintf("blocked_%d", i), "vendor", "locked")
		b.insertMany(fmt.Sprintf("blocked_%d", i), 10)
	}
	b.handle(d, "send_receipt", "webhooks", "free")
	b.start(d)
	b.until("all calls are made", func() bool { return b.calls.Load() == 60 })
	b.until("Applies wait for the row", func() bool { return b.waiters() == 2 })
	began := time.Now()
	b.insertMany("send_receipt", 50)
	outbox.Flush(b.db.Pool, "send_receipt")
	b.until("the others are delivered", func() bool { return b.finished("send_receipt") == 50 })
	t.Logf("50 Applies of the healthy action in %v", time.Since(began))
	b.logs.Wait(b, "an Apply takes long and others have no connection")
	if n := b.waiters(); n > 2 {
		t.Errorf("%d Applies run in a pool of 4", n)
	}
	b.release()
	began = time.Now()
	b.until("all are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue`) == 0 })
	t.Logf("the others in %v", time.Since(began))
	if n := b.calls.Load(); n != 60 {
		t.Errorf("%d calls, want 60", n)
	}
}

// Waiting Applies are bounded in memory, leases and goroutines. The other intents stay in the table and use no attempt.
func TestAnswersWithoutASlotAreGivenBack(t *testing.T) {
	b := setupBlocking(t)
	d := b.on(10)
	d.Destination("vendor", dispatcher.Limits{Concurrency: 50})
	b.handle(d, "charge_card", "vendor", "locked")
	before := runtime.NumGoroutine()
	b.insertMany("charge_card", 500)
	b.start(d)
	b.until("all are called and answered", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where status = 'answered'`) == 500
	})
	if n := b.count(`select count(*) from samekey.outbox_queue where leased_by is not null`); n > 32+4 {
		t.Errorf("%d are leased", n)
	}
	b.until("only those that run are leased", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where leased_by is not null`) == b.waiters()
	})
	if n := runtime.NumGoroutine() - before; n > 250 {
		t.Errorf("%d goroutines more than before", n)
	}
	if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used > 0`); n != 0 {
		t.Errorf("%d intents used an attempt or were sent", n)
	}
	if n := b.count(`select count(*) from samekey.outbox_history where event <> 'attempt'`); n != 0 {
		t.Errorf("%d lines of history are about waiting", n)
	}
	b.release()
	b.untilFinished()
	if n := value[int](b.bundle, `select paid from orders where id = 'locked'`); n != 500 || b.calls.Load() != 500 {
		t.Errorf("applied %d times, called %d times, want 500", n, b.calls.Load())
	}
}

// After a slow call, little of the lease is left for the Apply. The lease is renewed; otherwise another worker would
// take the intent over.
func TestLeaseIsRenewedForApply(t *testing.T) {
	b := setupBlocking(t)
	d := b.on(10)
	p := policyOf(dispatcher.IdempotentWrite)
	p.Destination, p.Timeout, p.Lease = "", 2500*time.Millisecond, 3*time.Second
	handle(d, "charge_card", p, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		<-time.After(1500 * time.Millisecond)
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}, withApply(func(ctx context.Context, tx pgx.Tx, _ []byte, _ dispatcher.Settled) error {
		_, err := tx.Exec(ctx, `update orders set paid = paid + 1 where id = 'locked'`)
		return err
	}))
	b.insert("charge_card")
	b.start(d)
	b.until("the Apply waits for the row", func() bool { return b.waiters() == 1 })
	if left := value[float64](b.bundle, `select extract(epoch from q.lease_until - a.query_start) from samekey.outbox_queue q, pg_stat_activity a
		where a.datname = current_database() and a.wait_event_type = 'Lock' and a.query like 'update orders%'`); left < 2 {
		t.Errorf("when the Apply began, %v s of the lease of 3 s were left", left)
	}
	b.release()
}

func TestGoexitInApply(t *testing.T) {
	b := setup(t)
	var good atomic.Bool
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error {
			if !good.Load() {
				runtime.Goexit()
			}
			return nil
		}))
	for range 12 {
		b.insert("charge_card")
	}
	if got := b.drain(d); got.Retried < 12 || got != (dispatcher.Summary{Retried: got.Retried}) { // on a busy machine, a retry may come due
		t.Fatalf("the drain returned %+v", got)
	}
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'answered' and leased_by is null and attempts_used > 0`); n != 12 {
		t.Errorf("%d intents wait for a retry", n)
	}
	good.Store(true)
	b.elapse(backoff)
	b.expect(d, dispatcher.Summary{Delivered: 12})
	b.wantCalls(12)
}

// 10,000 intents with a blocked Apply are due, with a rate of 20 calls a second. Intents that need a call are still
// called.
func TestBlockedAppliesStopNoCalls(t *testing.T) {
	b := setupBlocking(t)
	d := b.on(10)
	d.Destination("vendor", dispatcher.Limits{Concurrency: 4, Rate: 20, Burst: 4})
	b.handle(d, "charge_card", "vendor", "locked")
	b.insertMany("charge_card", 10_000)
	b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, code) select id, 'attempt', 'delivered', '200' from samekey.outbox_queue`)
	b.exec(`update samekey.outbox_queue set status = 'answered', first_sent_at = now()`)
	claims := b.count(`select count(*) from samekey.outbox_queue where attempt > 0`)
	b.insertManyMore("charge_card", 40)
	began := time.Now()
	b.start(d)
	b.until("the calls are made", func() bool { return b.calls.Load() == 40 })
	t.Logf("40 calls in %v, at 20 a second", time.Since(began))
	b.until("Applies wait for the row", func() bool { return b.waiters() >= 3 })
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'answered' and attempt > 0`) - claims; n > 200 {
		t.Errorf("%d waiting intents were claimed", n)
	}
	if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used > 0`); n != 0 {
		t.Errorf("%d intents used an attempt or were sent", n)
	}
	b.release() // otherwise the stop waits for them
}

// If answered intents cannot be claimed for their Apply, the alarm is raised: the orders would stay "pending"
// unnoticed.
func TestFailingApplyClaimsRaiseTheAlarm(t *testing.T) {
	b := setup(t)
	b.applied()
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(recordPayment))
	d.SetAlarmAfter(700 * time.Millisecond)
	id := b.insert("charge_card")
	b.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise 'no claims today'; end $$`)
	b.exec(`create trigger refuse before update on samekey.outbox_queue for each row when (old.status = 'answered' and new.leased_by is not null) execute function refuse()`)
	b.exec(`update samekey.outbox_queue set status = 'answered' where id = $1`, id)
	b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, code, attempt, worker) values ($1, 'attempt', 'delivered', '200', 1, 1)`, id)
	b.start(d)
	b.until("the alarm", func() bool {
		err := d.Ready()
		return err != nil && strings.Contains(err.Error(), "answered intents are not applied")
	})
	b.exec(`drop trigger refuse on samekey.outbox_queue`)
	b.untilFinished()
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}
