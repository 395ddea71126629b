package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// gate is a handler whose first calls wait until it is released, and ignore their contexts. Later calls do not wait.
type gate struct {
	hold  int
	began chan string // the delivery key of each call
	open  chan struct{}
	once  sync.Once
	calls atomic.Int32
}

func newGate(hold int) *gate {
	return &gate{hold: hold, began: make(chan string, 1000), open: make(chan struct{})}
}

func (g *gate) handle(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	n := int(g.calls.Add(1))
	g.began <- call.DeliveryKey.String()
	if n <= g.hold {
		<-g.open
	}
	return dispatcher.Delivered(dispatcher.Response{Code: fmt.Sprint("call-", n)}), nil
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) wantCalls(b *bundle, want int) {
	b.Helper()
	if got := int(g.calls.Load()); got != want {
		b.Fatalf("%d calls, want %d", got, want)
	}
}

// gated returns a dispatcher whose charge_card goes through g.
func (b *bundle) gated(pool *pgxpool.Pool, g *gate, p dispatcher.Policy, options ...option) *dispatcher.Dispatcher {
	b.gates = append(b.gates, g)
	d := b.dispatcherOn(pool, dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", p, g.handle, options...)
	return d
}

func TestZombieAnswerIsKeptOnce(t *testing.T) {
	b := setup(t)
	g := newGate(1)
	d := b.gated(b.db.Pool, g, policyOf(dispatcher.IdempotentWrite))
	id := b.insert("charge_card")
	b.start(d)
	first := wait(b, "the first call", g.began)
	b.elapse(lease)
	if second := wait(b, "the second call", g.began); second != first {
		t.Errorf("the second call came with key %s, the first with %s", second, first)
	}
	b.untilStatus(id, "delivered")
	b.wantHistory(id, "orphaned:unknown:orphaned attempt:delivered:call-2")
	g.release()
	b.until("the late answer is recorded", func() bool {
		return b.history(id) == "orphaned:unknown:orphaned attempt:delivered:call-2 late:delivered:call-1"
	})
	b.wantStatus(id, "delivered")
	g.wantCalls(b, 2)
}

// The intent is taken over, delivered and erased while its first attempt is still at the vendor.
func TestLateAnswerAfterAnErasureHasNoContent(t *testing.T) {
	const secret = "jane@example.com"
	for name, end := range map[string]handler{
		"answer": func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{Code: "201", ContentType: secret, Body: []byte(secret)}).Reference(secret), nil
		},
		"error": func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, errors.New(secret)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			g := newGate(1)
			b.gates = append(b.gates, g)
			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
				if out, err := g.handle(ctx, call); call.Attempt > 1 {
					return out, err
				}
				return end(ctx, call)
			}, withRender(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error) {
				return dispatcher.Rendered{Type: "text/plain", Request: []byte(secret)}, nil
			}))
			id := b.insert("charge_card", func(in *outbox.Intent) { in.Subject = "customer/1" })
			b.start(d)
			wait(b, "the first call", g.began)
			if _, err := outbox.Erase(b.ctx, b.db, outbox.Content{Subject: "customer/1"}, by); err == nil {
				t.Error("erased during an attempt")
			}
			b.elapse(lease)
			b.untilStatus(id, "delivered")
			if done, err := outbox.Erase(b.ctx, b.db, outbox.Content{Subject: "customer/1"}, by); err != nil || done.Intents != 1 {
				t.Fatalf("Erase: %+v, %v", done, err)
			}
			g.release()
			b.until("the late answer is recorded", func() bool { return strings.Contains(b.history(id), " late:") })
			for _, table := range []string{"outbox", "outbox_history", "outbox_sends", "outbox_attention"} {
				if n := b.count(`select count(*) from samekey.`+table+` r where strpos(r::text, $1) > 0 or strpos(r::text, encode(convert_to($1, 'UTF8'), 'hex')) > 0`, secret); n != 0 {
					t.Errorf("the secret is in %d rows of %s", n, table)
				}
			}
		})
	}
}

func TestLateAnswerResolvesUnknownOrParked(t *testing.T) {
	for _, state := range []string{"unknown", "parked"} {
		t.Run(state, func(t *testing.T) {
			b := setup(t)
			b.applied()
			g := newGate(1)
			d := b.gated(b.db.Pool, g, policyOf(dispatcher.NonIdempotentWrite), withApply(recordPayment))
			id := b.insert("charge_card")
			b.start(d)
			wait(b, "the call", g.began)
			b.elapse(lease)
			b.untilStatus(id, "unknown")
			before := "orphaned:unknown:orphaned "
			if state == "parked" {
				b.elapse(settling)
				b.untilStatus(id, "parked")
				before += "lookup:parked:no_lookup "
			}
			g.release()
			b.untilStatus(id, "delivered")
			b.wantHistory(id, before+"late:delivered:call-1 apply:delivered:call-1")
			if n := b.count(`select count(*) from payments`); n != 1 {
				t.Errorf("%d payments are written, want 1", n)
			}
			g.wantCalls(b, 1)
		})
	}
}

// A person resolves an intent as not sent while the vendor is asked, and the vendor knows the key after all. A redrive
// would make the effect twice.
func TestRunningLookupCorrectsNotSent(t *testing.T) {
	b := setup(t)
	b.applied()
	asked, answer := make(chan struct{}), make(chan struct{})
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite),
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, errors.New("reset")
		},
		withLookup(func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			close(asked)
			select {
			case answer <- struct{}{}:
			case <-ctx.Done():
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "found"}).Reference("ch_1"), nil
		}), withApply(recordPayment))
	id := b.insert("charge_card")
	b.expect(d, unknown)
	b.elapse(settling)
	b.start(d)
	wait(b, "the lookup", asked)
	if err := outbox.Resolve(b.ctx, b.db, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	b.wantStatus(id, "parked")
	<-answer
	b.untilStatus(id, "delivered")
	b.wantHistory(id, "attempt:unknown:unknown resolved:not_sent late:delivered:found apply:delivered:found")
	if n := b.count(`select count(*) from payments`); n != 1 {
		t.Errorf("%d payments are written, want 1", n)
	}
}

// The claim waits for a lock longer than the attempt may take. A send now could meet the attempt of a worker that takes
// the intent over.
func TestAttemptDeadlineCountsFromBeforeTheClaim(t *testing.T) {
	b := setup(t)
	p := policyOf(dispatcher.NonIdempotentWrite)
	p.Timeout = time.Second
	g := newGate(0)
	d := b.gated(b.db.Pool, g, p)
	id := b.insert("charge_card")
	locker, err := pgx.Connect(b.ctx, b.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.WithoutCancel(b.ctx))
	tx, err := locker.Begin(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.ctx, `lock table samekey.outbox in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	b.start(d)
	b.until("the claim waits", func() bool {
		return b.count(`select count(*) from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and l.relation = 'samekey.outbox'::regclass and a.query like '%name: OutboxQueueClaim %'`) > 0
	})
	<-time.After(p.Timeout) // the test needs this time to pass
	if err := tx.Rollback(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.untilStatus(id, "delivered")
	b.wantHistory(id, "attempt:unsent:given_back attempt:delivered:call-1")
	g.wantCalls(b, 1)
}

// cuttable returns a pool that can refuse new connections. Its open connections stay.
func (b *bundle) cuttable() (pool *pgxpool.Pool, cut *atomic.Bool) {
	b.Helper()
	config, err := pgxpool.ParseConfig(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	cut = &atomic.Bool{}
	config.MaxConns, config.MinConns = 8, 8
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if cut.Load() {
			return errors.New("the network is cut")
		}
		return nil
	}
	if pool, err = pgxpool.NewWithConfig(b.ctx, config); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool, cut
}

// loseLock ends the session that holds a worker's lock.
func (b *bundle) loseLock(worker int32) {
	b.Helper()
	if n := b.count(`select count(pg_terminate_backend(pid)) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock'
		and classid::bigint = samekey.worker_class() and objid::bigint = $1 and objsubid = 2
		and database = (select oid from pg_database where datname = current_database())`, worker); n != 1 {
		b.Fatalf("%d sessions hold the lock of worker %d, want 1", n, worker)
	}
}

func (b *bundle) holdsLock(worker int32) bool {
	b.Helper()
	return b.count(`select count(*) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
		and classid::bigint = samekey.worker_class() and objid::bigint = $1
		and database = (select oid from pg_database where datname = current_database())`, worker) == 1
}

// sweeps waits until d has swept for that long.
func (b *bundle) sweeps(d *dispatcher.Dispatcher, so time.Duration) {
	b.Helper()
	since := time.Now()
	b.until("it has swept for a while", func() bool { return d.Swept().Sub(since) > so })
}

// lostLock makes worker one call the vendor and lose its lock during the call, while worker two sweeps.
func lostLock(t *testing.T, class dispatcher.Class) (b *bundle, g *gate, one, two *dispatcher.Dispatcher, back func()) {
	b = setup(t)
	pool, cut := b.cuttable()
	g = newGate(1)
	one, two = b.gated(pool, g, policyOf(class)), b.gated(b.db.Pool, g, policyOf(class))
	b.insert("charge_card")
	if class == dispatcher.IrreversibleWrite {
		b.expect(one, awaiting)
		b.approve(value[[16]byte](b, `select id from samekey.outbox`))
	}
	b.start(one)
	wait(b, "the first call", g.began)
	cut.Store(true)
	b.loseLock(one.WorkerID())
	b.until("the worker knows", func() bool { return one.Ready() != nil })
	b.start(two)
	return b, g, one, two, func() {
		b.Helper()
		worker := one.WorkerID()
		cut.Store(false)
		b.until("the worker has its lock again", func() bool { return one.Ready() == nil })
		if one.WorkerID() != worker || !b.holdsLock(worker) {
			t.Errorf("the worker has the id %d, want %d with its lock", one.WorkerID(), worker)
		}
	}
}

func TestLostLockReadIsSentByAnother(t *testing.T) {
	lostLockIsTakenOver(t, dispatcher.Read)
}

func TestLostLockIdempotentWriteIsSentByAnother(t *testing.T) {
	lostLockIsTakenOver(t, dispatcher.IdempotentWrite)
}

func lostLockIsTakenOver(t *testing.T, class dispatcher.Class) {
	b, g, _, _, back := lostLock(t, class)
	if key := wait(b, "the second call", g.began); key != value[string](b, `select delivery_key::text from samekey.outbox`) {
		t.Errorf("the second call came with key %s", key)
	}
	b.untilFinished()
	back()
	g.release()
	b.until("the first call's answer is recorded", func() bool {
		return b.count(`select count(*) from samekey.outbox_history where event = 'late'`) == 1
	})
	g.wantCalls(b, 2)
}

func TestLostLockNonIdempotentWriteStaysLeased(t *testing.T) {
	lostLockIsLeft(t, dispatcher.NonIdempotentWrite)
}

func TestLostLockIrreversibleWriteStaysLeased(t *testing.T) {
	lostLockIsLeft(t, dispatcher.IrreversibleWrite)
}

func lostLockIsLeft(t *testing.T, class dispatcher.Class) {
	b, g, one, two, back := lostLock(t, class)
	b.sweeps(two, time.Second)
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'leased' and leased_by = $1`, one.WorkerID()); n != 1 {
		t.Error("the intent was taken from a worker that only lost its lock")
	}
	back()
	g.release()
	b.untilFinished()
	g.wantCalls(b, 1)
	if n := b.count(`select count(*) from samekey.outbox_history where event = 'orphaned'`); n != 0 {
		t.Error("the intent was orphaned")
	}
}

func TestWorkerWithoutItsLockClaimsNothing(t *testing.T) {
	b := setup(t)
	pool, cut := b.cuttable()
	g := newGate(0)
	d := b.gated(pool, g, policyOf(dispatcher.IdempotentWrite))
	b.start(d)
	cut.Store(true)
	b.loseLock(d.WorkerID())
	b.until("the worker knows", func() bool { return d.Ready() != nil })
	b.insert("charge_card")
	b.sweeps(d, 500*time.Millisecond)
	g.wantCalls(b, 0)
	cut.Store(false)
	b.untilFinished()
	g.wantCalls(b, 1)
}

func TestSingleWorkerThatLosesItsLockSendsOnce(t *testing.T) {
	b := setup(t)
	pool, cut := b.cuttable()
	g := newGate(20)
	d := b.gated(pool, g, policyOf(dispatcher.IdempotentWrite))
	b.insertMany("charge_card", 20)
	b.start(d)
	for range 20 {
		wait(b, "twenty calls", g.began)
	}
	for range 2 { // the lock is lost for some sweeps, and held for some
		cut.Store(true)
		b.loseLock(d.WorkerID())
		b.until("the worker knows", func() bool { return d.Ready() != nil })
		b.sweeps(d, 500*time.Millisecond)
		cut.Store(false)
		b.until("the worker has its lock again", func() bool { return d.Ready() == nil })
		b.sweeps(d, 300*time.Millisecond)
	}
	g.wantCalls(b, 20)
	g.release()
	b.untilFinished()
	g.wantCalls(b, 20)
}
