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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// counting is a handler that succeeds and records when each intent was called.
type counting struct {
	mu     sync.Mutex
	starts []time.Time
	order  []string // payloads, in the order of the calls
	ids    map[uuid.UUID]int
}

func (c *counting) handle(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = map[uuid.UUID]int{}
	}
	c.starts, c.order = append(c.starts, time.Now()), append(c.order, string(call.Payload))
	c.ids[call.ID]++
	return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
}

func (c *counting) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.starts)
}

func (c *counting) wantOnceEach(b *bundle, intents int) {
	b.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) != intents || len(c.starts) != intents {
		b.Fatalf("%d calls for %d intents, want one for each of %d", len(c.starts), len(c.ids), intents)
	}
}

// counted returns a dispatcher whose charge_card is counted.
func (b *bundle) counted(c *counting, limits dispatcher.Limits) *dispatcher.Dispatcher {
	d := b.dispatcher()
	d.Destination("vendor", limits)
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), c.handle)
	return d
}

func TestTwoWorkersCallOncePerIntent(t *testing.T) {
	b := setup(t)
	c := &counting{}
	b.start(b.counted(c, dispatcher.Limits{Concurrency: 4}))
	b.start(b.counted(c, dispatcher.Limits{Concurrency: 4}))
	for range 4 {
		b.insertManyMore("charge_card", 25)
		outbox.Flush(b.db.Pool, "charge_card")
	}
	b.untilFinished()
	c.wantOnceEach(b, 100)
}

// insertManyMore is insertMany with new keys.
func (b *bundle) insertManyMore(action string, n int) {
	b.Helper()
	b.exec(`select samekey.enqueue('tenant/bulk', gen_random_uuid()::text, $1, '{}') from generate_series(1, $2::int)`, action, n)
}

// Without a notification, the sweep finds the intents.
func TestLateCommitIsDeliveredWithinASecond(t *testing.T) {
	b := setup(t)
	c := &counting{}
	b.start(b.counted(c, dispatcher.Limits{}))
	early, err := b.db.Begin(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early.Exec(b.ctx, `select samekey.enqueue('tenant/orders', 'early', 'charge_card', '{}')`); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the mark moves on
		b.insertManyMore("charge_card", 10)
		b.until("the others are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue`) == 0 })
	}
	if err := early.Commit(b.ctx); err != nil {
		t.Fatal(err)
	}
	committed := time.Now()
	b.untilFinished()
	if took := time.Since(committed); took > 5*time.Second {
		t.Errorf("it took %v from the commit", took)
	}
	b.exec(`select samekey.enqueue('tenant/orders', 'below', 'charge_card', '{}', due_at => now() - interval '1 day')`)
	b.untilFinished()
	c.wantOnceEach(b, 32)
}

func TestUnhandledActionIsLeftAndReported(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.counted(c, dispatcher.Limits{})
	b.insert("of_another_release")
	for range 10 {
		b.insert("charge_card")
	}
	b.start(d)
	b.until("the others are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue`) == 1 })
	c.wantOnceEach(b, 10)
	if err := d.Upkeep(b.ctx, "statistics"); err != nil {
		t.Fatal(err)
	}
	if n := b.count(`select intents from samekey.outbox_stats where action = 'of_another_release' and status = 'pending' and not handled`); n != 1 {
		t.Error("the statistics do not show it")
	}
	if !strings.Contains(b.logs.String(), "no live worker handles this action") || !strings.Contains(b.logs.String(), "of_another_release") {
		t.Error("the log does not name it")
	}
}

// A worker whose breaker is open keeps the one drain that it took. It leaves further drains to other workers.
func TestHeldWorkerLeavesDrainsToOthers(t *testing.T) {
	b := setup(t)
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{MaxBreakDelay: time.Hour}, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Retry(dispatcher.Response{}).After(time.Hour).ForAccount().Because(errors.New("429")), nil
	})
	b.insert("charge_card")
	b.start(d)
	b.logs.Wait(b, "wants fewer calls")
	b.exec(`insert into samekey.river_job (args, kind, max_attempts, queue) select '{"destination":"vendor"}', 'samekey.drain', 1, $1 from generate_series(1, 3)`, dispatcher.QueueName("vendor"))
	b.until("one drain runs, and others wait", func() bool {
		return b.count(`select count(*) from samekey.river_job where kind = 'samekey.drain' and state = 'running'`) == 1 &&
			b.count(`select count(*) from samekey.river_job where kind = 'samekey.drain' and state = 'available'`) > 0
	})
	b.sweeps(d, 600*time.Millisecond)
	if n := b.count(`select count(*) from samekey.river_job where kind = 'samekey.drain' and state = 'available'`); n < 2 {
		t.Errorf("%d drains are left to other workers", n)
	}
}

func TestStatsReportHandledAndOldest(t *testing.T) {
	b := setup(t)
	d := b.counted(&counting{}, dispatcher.Limits{})
	b.start(d)
	b.insert("charge_card", func(in *outbox.Intent) { in.DueAt = time.Now().Add(time.Hour) })
	b.insert("send_receipt", func(in *outbox.Intent) { in.DueAt = time.Now().Add(2 * time.Hour) })
	b.elapse(30 * time.Minute)
	if err := d.Upkeep(b.ctx, "statistics"); err != nil {
		t.Fatal(err)
	}
	got := value[string](b, `select string_agg(concat_ws(' ', action, status, intents, handled,
		round(extract(epoch from oldest_due_at - clock_timestamp()) / 60)), ', ' order by action) from samekey.outbox_stats`)
	if got != "charge_card pending 1 t 30, send_receipt pending 1 f 90" {
		t.Errorf("the statistics are %q", got)
	}
	b.exec(`with intents as (delete from samekey.outbox) delete from samekey.outbox_queue`) // or a reconcile restores the rows
	if err := d.Upkeep(b.ctx, "statistics"); err != nil {
		t.Fatal(err)
	}
	if n := b.count(`select count(*) from samekey.outbox_stats`); n != 0 {
		t.Errorf("%d obsolete rows of statistics", n)
	}
}

func TestPoisonPayloadIsDeadAndOthersDelivered(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	c := &counting{}
	dispatcher.Handle(d, outbox.NewAction[charge]("charge_card"), dispatcher.Delivery[charge]{
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: time.Hour},
		Send: func(ctx context.Context, call *dispatcher.Call, _ charge) (dispatcher.Outcome, error) {
			return c.handle(ctx, call)
		},
	})
	const secret = "4242424242424242"
	for i, payload := range []string{`{"order":"4242424242424242"`, `{"amount":"4242424242424242"}`, `[]`, ``, `{} {}`, "\xff\x00", `{"amount":1e400}`} {
		b.exec(`select samekey.enqueue('tenant/poison', $1, 'charge_card', $2::bytea, content_type => 'application/octet-stream')`, fmt.Sprint("poison-", i), []byte(payload))
	}
	for range 10 {
		b.insert("charge_card")
	}
	b.expect(d, dispatcher.Summary{Delivered: 10, Dead: 7})
	c.wantOnceEach(b, 10)
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'dead' and last_code = 'payload'`); n != 7 {
		t.Errorf("%d of 7 are dead with the code payload", n)
	}
	if n := b.count(`select count(*) from samekey.outbox_history where error like '%' || $1 || '%'`, secret); n != 0 || strings.Contains(b.logs.String(), secret) {
		t.Error("the payload is quoted in an error or a log")
	}
}

func TestInvalidErrorTextAffectsOneIntent(t *testing.T) {
	b := setup(t)
	good := &counting{}
	var bad uuid.UUID
	var calls atomic.Int32
	d := b.dispatcher()
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour, Backoff: 10 * time.Millisecond},
		func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
			if call.ID != bad {
				return good.handle(ctx, call)
			}
			text := "a\x00b\xff" + strings.Repeat("é", 5000)
			if calls.Add(1) < 3 {
				return dispatcher.Unknown(dispatcher.Response{Code: text, ContentType: text}).Because(errors.New(text)), nil
			}
			return dispatcher.Delivered(dispatcher.Response{Code: text, ContentType: text, Body: []byte(text)}), nil
		})
	bad = b.insert("charge_card")
	for range 10 {
		b.insert("charge_card")
	}
	r := b.start(d)
	b.untilFinished()
	good.wantOnceEach(b, 10)
	if n := calls.Load(); n != 3 {
		t.Errorf("the failing intent was called %d times, want 3", n)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// riverClient returns a client that only inserts and pauses.
func (b *bundle) riverClient() *river.Client[pgx.Tx] {
	b.Helper()
	client, err := river.NewClient(riverpgxv5.New(b.db.Pool), &river.Config{Schema: "samekey"})
	if err != nil {
		b.Fatal(err)
	}
	return client
}

func TestRiverQueuePauseStopsAllNodes(t *testing.T) {
	b := setup(t)
	// The intents have been due for a while, in an order that a claim has to keep.
	b.exec(`insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at)
		select gen_random_uuid(), 's', 'k' || g, 'charge_card', gen_random_uuid(), '{}', 'application/json', now() from generate_series(1, 100000) g`)
	b.exec(`insert into samekey.outbox_queue (id, action, status, due_at) select id, action, 'pending', due_at from samekey.outbox`)
	c := &counting{}
	one, two := b.counted(c, dispatcher.Limits{Concurrency: 8}), b.counted(c, dispatcher.Limits{Concurrency: 8})
	b.start(one)
	b.start(two)
	b.until("both work", func() bool { return c.total() > 200 })

	client := b.riverClient()
	if err := client.QueuePause(b.ctx, dispatcher.QueueName("vendor"), nil); err != nil {
		t.Fatal(err)
	}
	limit := time.Now().Add(time.Second)
	b.sweeps(one, 1500*time.Millisecond)
	b.sweeps(two, 500*time.Millisecond)
	c.mu.Lock()
	late := 0
	for _, start := range c.starts {
		if start.After(limit) {
			late++
		}
	}
	c.mu.Unlock()
	if late > 0 {
		t.Errorf("%d calls began more than a second after the pause", late)
	}
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'pending'`); n == 0 {
		t.Fatal("no intent was left to hold back, so the test proves nothing")
	}

	before := c.total()
	if err := client.QueueResume(b.ctx, dispatcher.QueueName("vendor"), nil); err != nil {
		t.Fatal(err)
	}
	b.until("calls go on", func() bool { return c.total() > before+100 })
}

func TestDrainSkipsAPausedDestination(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.counted(c, dispatcher.Limits{})
	b.exec(`insert into samekey.river_queue (name, paused_at, updated_at) values ($1, now(), now())`, dispatcher.QueueName("vendor"))
	b.insert("charge_card")
	b.expect(d, nothing)
	b.exec(`update samekey.river_queue set paused_at = null`)
	b.expect(d, delivered)
}

func TestRiverJobsMayBeDeleted(t *testing.T) {
	b := setup(t)
	c := &counting{}
	b.start(b.counted(c, dispatcher.Limits{Concurrency: 2}))
	for i := range 30 {
		b.insertManyMore("charge_card", 10)
		outbox.Flush(b.db.Pool, "charge_card")
		switch i % 3 {
		case 0:
			b.exec(`delete from samekey.river_job`)
		case 1:
			b.exec(`truncate samekey.river_job`)
		case 2:
			b.exec(`update samekey.river_job set state = 'discarded', finalized_at = now()`)
		}
	}
	b.untilFinished()
	c.wantOnceEach(b, 300)
}

func TestReconcileRestoresALostQueueRow(t *testing.T) {
	for _, c := range []struct {
		class dispatcher.Class
		age   time.Duration
		want  dispatcher.Summary
		calls int32
	}{
		{dispatcher.Read, 48 * time.Hour, delivered, 1},
		{dispatcher.IdempotentWrite, time.Hour, delivered, 1},
		{dispatcher.IdempotentWrite, 25 * time.Hour, dispatcher.Summary{Unknown: 1, Parked: 1}, 0},
		{dispatcher.NonIdempotentWrite, time.Hour, dispatcher.Summary{Unknown: 1, Parked: 1}, 0},
		{dispatcher.IrreversibleWrite, time.Hour, dispatcher.Summary{Unknown: 1, Parked: 1}, 0},
	} {
		t.Run(fmt.Sprint(c.class, " after ", c.age), func(t *testing.T) {
			b := setup(t)
			g := newGate(0)
			d := b.gated(b.db.Pool, g, policyOf(c.class))
			id, finished := b.insert("charge_card"), b.insert("send_receipt")
			b.exec(`delete from samekey.outbox_queue`)
			b.exec(`insert into samekey.outbox_history (intent_id, event, final_status, db_user) values ($1, 'cancelled', 'cancelled', 'ann')`, finished)
			b.elapse(30 * time.Second)
			if err := d.Upkeep(b.ctx, "reconcile"); err != nil {
				t.Fatal(err)
			}
			b.wantStatus(id, "lost") // it may be in flight
			b.elapse(c.age)
			for range 2 {
				if err := d.Upkeep(b.ctx, "reconcile"); err != nil {
					t.Fatal(err)
				}
			}
			b.wantStatus(id, "pending")
			b.wantHistory(id, "restored")
			b.wantStatus(finished, "cancelled")
			sum := b.drain(d)
			b.elapse(settling)
			later := b.drain(d)
			sum.Parked += later.Parked
			if sum != c.want {
				t.Errorf("the drains returned %+v, want %+v", sum, c.want)
			}
			g.wantCalls(b, int(c.calls))
		})
	}
}
