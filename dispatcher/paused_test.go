package dispatcher_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// pausing has a dispatcher with two actions of one destination, and counts their calls.
func (b *bundle) pausing() (d *dispatcher.Dispatcher, charges, refunds *counting) {
	charges, refunds = &counting{}, &counting{}
	d = b.counted(charges, dispatcher.Limits{})
	handle(d, "refund", policyOf(dispatcher.IdempotentWrite), refunds.handle)
	return d, charges, refunds
}

func (b *bundle) wantTotal(c *counting, want int, when string) {
	b.Helper()
	if got := c.total(); got != want {
		b.Fatalf("%d calls %s, want %d", got, when, want)
	}
}

func (b *bundle) pauses() []outbox.PauseRecord {
	b.Helper()
	records, err := outbox.Pauses(b.ctx, b.db, "vendor", 0)
	if err != nil {
		b.Fatal(err)
	}
	return records
}

var vendorTarget = outbox.Target{Destination: "vendor"}

// River deletes the row of a queue that no client has used for a day, and then creates a new row that is not paused.
func TestRiverPauseOutlivesItsRow(t *testing.T) {
	b := setup(t)
	d, charges, _ := b.pausing()
	r := b.start(d)
	client, queue := b.riverClient(), dispatcher.QueueName("vendor")
	b.until("River has the queue", func() bool { return b.count(`select count(*) from samekey.river_queue where name = $1`, queue) == 1 })
	if err := client.QueuePause(b.ctx, queue, nil); err != nil {
		t.Fatal(err)
	}
	b.until("the pause is stored", func() bool { return len(b.pauses()) == 1 })
	if p := b.pauses()[0]; !p.InRiver || p.By.Actor != "river" || !p.EndedAt.IsZero() {
		t.Errorf("the stored pause is %+v", p)
	}
	b.insertMany("charge_card", 10)

	const paused = `select count(*) from samekey.river_queue where name = $1 and paused_at is not null`
	b.exec(`delete from samekey.river_queue`)
	b.sweeps(d, 300*time.Millisecond)
	b.exec(`insert into samekey.river_queue (name, updated_at) values ($1, now())`, queue)
	b.until("it is paused in River again", func() bool { return b.count(paused, queue) == 1 })
	b.sweeps(d, 300*time.Millisecond)
	b.wantTotal(charges, 0, "at a paused vendor")
	if p := b.pauses(); len(p) != 1 || !p[0].EndedAt.IsZero() {
		t.Errorf("River's new row ended the pause: %+v", p)
	}

	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	b.exec(`delete from samekey.river_queue`)
	next, charges, _ := b.pausing()
	b.start(next)
	b.until("it is paused in River again", func() bool { return b.count(paused, queue) == 1 })
	b.sweeps(next, time.Second)
	b.wantTotal(charges, 0, "by a worker that was started after a day")
	b.expectPaused("river")

	if err := client.QueueResume(b.ctx, queue, nil); err != nil {
		t.Fatal(err)
	}
	b.untilFinished()
	charges.wantOnceEach(b, 10)
	b.until("the pause has ended", func() bool { return !b.pauses()[0].EndedAt.IsZero() })
	if p := b.pauses()[0]; p.Ended.Actor != "river" {
		t.Errorf("it was ended by %+v", p.Ended)
	}
}

// expectPaused compares the actors of the pauses in force.
func (b *bundle) expectPaused(actors ...string) {
	b.Helper()
	var got []string
	for _, p := range b.pauses() {
		if p.EndedAt.IsZero() {
			got = append(got, p.By.Actor)
		}
	}
	if len(got) != len(actors) {
		b.Fatalf("paused by %v, want %v", got, actors)
	}
}

func TestPauseAndResumeDestination(t *testing.T) {
	for name, resume := range map[string]func(b *bundle){
		"by Resume": func(b *bundle) {
			if err := outbox.Resume(b.ctx, b.db.Pool, vendorTarget, by); err != nil {
				b.Fatal(err)
			}
		},
		"by SQL":  func(b *bundle) { b.exec(`delete from samekey.pauses`) },
		"by time": func(b *bundle) { b.exec(`update samekey.pauses set until = clock_timestamp()`) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			if err := outbox.Pause(b.ctx, b.db.Pool, vendorTarget, time.Time{}, by); err != nil {
				t.Fatal(err)
			}
			if err := outbox.Pause(b.ctx, b.db.Pool, vendorTarget, time.Time{}, outbox.By{Actor: "eve", Reason: "me too"}); !errors.Is(err, outbox.ErrPaused) {
				t.Errorf("a second pause: %v", err)
			}
			one, charges, refunds := b.pausing()
			two := b.counted(charges, dispatcher.Limits{})
			b.start(one)
			b.start(two)
			b.insertMany("charge_card", 5)
			b.insertMany("refund", 5)
			b.sweeps(one, 1500*time.Millisecond)
			b.wantTotal(charges, 0, "while it is paused")
			resume(b)
			b.untilFinished()
			charges.wantOnceEach(b, 5)
			refunds.wantOnceEach(b, 5)
			if err := outbox.Resume(b.ctx, b.db.Pool, vendorTarget, by); name != "by time" && !errors.Is(err, outbox.ErrNotPaused) {
				t.Errorf("a second Resume: %v", err)
			}
		})
	}
}

func TestPauseOfOneAction(t *testing.T) {
	b := setup(t)
	action := outbox.Target{Destination: "vendor", Action: "charge_card"}
	if err := outbox.Pause(b.ctx, b.db.Pool, action, time.Time{}, by); err != nil {
		t.Fatal(err)
	}
	d, charges, refunds := b.pausing()
	b.start(d)
	b.insertMany("charge_card", 3)
	b.insertMany("refund", 3)
	b.until("the other action goes on", func() bool { return b.count(`select count(*) from samekey.outbox_queue where action = 'refund'`) == 0 })
	refunds.wantOnceEach(b, 3)
	b.sweeps(d, 500*time.Millisecond)
	b.wantTotal(charges, 0, "of the paused action")
	if err := outbox.Resume(b.ctx, b.db.Pool, vendorTarget, by); !errors.Is(err, outbox.ErrNotPaused) {
		t.Errorf("Resume of the destination: %v", err)
	}
	if err := outbox.Resume(b.ctx, b.db.Pool, action, by); err != nil {
		t.Fatal(err)
	}
	b.untilFinished()
	charges.wantOnceEach(b, 3)
}

// Resume ends a person's pause, River's pause and its copy.
func TestResumeEndsRiversPause(t *testing.T) {
	b := setup(t)
	d, charges, _ := b.pausing()
	b.start(d)
	queue := dispatcher.QueueName("vendor")
	b.until("River has the queue", func() bool { return b.count(`select count(*) from samekey.river_queue where name = $1`, queue) == 1 })
	if err := b.riverClient().QueuePause(b.ctx, queue, nil); err != nil {
		t.Fatal(err)
	}
	b.until("the pause is stored", func() bool { return len(b.pauses()) == 1 })
	if err := outbox.Pause(b.ctx, b.db.Pool, vendorTarget, time.Now().Add(time.Hour), by); err != nil {
		t.Fatal(err)
	}
	b.expectPaused("ann", "river")
	b.insertMany("charge_card", 3)
	b.sweeps(d, 500*time.Millisecond)
	b.wantTotal(charges, 0, "while it is paused")
	if err := outbox.Resume(b.ctx, b.db.Pool, vendorTarget, by); err != nil {
		t.Fatal(err)
	}
	b.untilFinished()
	charges.wantOnceEach(b, 3)
	b.sweeps(d, 300*time.Millisecond)
	b.expectPaused()
	for _, p := range b.pauses() {
		if p.Ended != by {
			t.Errorf("%s's pause was ended by %+v", p.By.Actor, p.Ended)
		}
	}
}

// Answered intents of a paused action wait for their Apply, as those of a paused destination do.
func TestPauseStopsApplies(t *testing.T) {
	for name, target := range map[string]outbox.Target{
		"of the destination": vendorTarget, "of the action": {Destination: "vendor", Action: "charge_card"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			if err := outbox.Pause(b.ctx, b.db.Pool, target, time.Time{}, by); err != nil {
				t.Fatal(err)
			}
			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			c := &counting{}
			var applied atomic.Int32
			handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), c.handle,
				withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error { applied.Add(1); return nil }))
			b.insertMany("charge_card", 3)
			b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, code) select id, 'attempt', 'delivered', '200' from samekey.outbox_queue`)
			b.exec(`update samekey.outbox_queue set status = 'answered', first_sent_at = now()`)
			b.start(d)
			b.sweeps(d, time.Second)
			if n := applied.Load(); n != 0 {
				t.Errorf("%d Applies ran while it was paused", n)
			}
			if err := outbox.Resume(b.ctx, b.db.Pool, target, by); err != nil {
				t.Fatal(err)
			}
			b.untilFinished()
		})
	}
}
