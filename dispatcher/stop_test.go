package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/samekeytest"
)

func TestStopFinishesCallsAndClaimsNothing(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1})
	p := policyOf(dispatcher.NonIdempotentWrite)
	p.Timeout = time.Minute
	handle(d, "charge_card", p, b.post)
	b.vendor.Hold()
	first := b.insert("charge_card")
	r := b.start(d)
	if err := b.vendor.WaitOpen(b.ctx, 1); err != nil {
		t.Fatal(err)
	}
	second := b.insert("charge_card")
	r.end()
	b.until("it is no longer ready", func() bool { return d.Ready() != nil })
	select {
	case err := <-r.done:
		t.Fatalf("Run returned %v with a call in flight", err)
	case <-time.After(100 * time.Millisecond): // a stop that does not wait returns by then
	}
	b.wantStatus(first, "leased")
	b.vendor.Release()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	b.wantHistory(first, "attempt:delivered:201")
	b.wantStatus(second, "pending")
	b.wantHistory(second, "")
	b.wantCalls(1)
	if n := b.count(`select count(*) from samekey.workers`); n != 0 {
		t.Errorf("%d workers are left in the table", n)
	}
}

func TestStopCancelsCallsPastStopTimeoutAndSettlesThem(t *testing.T) {
	for class, want := range map[dispatcher.Class]string{
		dispatcher.IdempotentWrite:    "attempt:unknown:stopped",
		dispatcher.NonIdempotentWrite: "attempt:unknown:stopped",
	} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			d := b.dispatcherOn(b.db.Pool, dispatcher.Config{StopTimeout: 50 * time.Millisecond})
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(class), b.post)
			b.vendor.Hold()
			id := b.insert("charge_card")
			r := b.start(d)
			if err := b.vendor.WaitOpen(b.ctx, 1); err != nil {
				t.Fatal(err)
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			b.wantHistory(id, want)
			b.vendor.Release()
			samekeytest.AssertEffects(t, b.vendor, 0)
		})
	}
}

func TestHandlerThatIgnoresItsContextDelaysNoStop(t *testing.T) {
	b := setup(t)
	g := newGate(1)
	d := b.dispatcherOn(b.db.Pool, dispatcher.Config{StopTimeout: 50 * time.Millisecond})
	d.SetStopMargin(500 * time.Millisecond)
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), g.handle)
	b.insert("charge_card")
	b.gates = append(b.gates, g)
	r := b.start(d)
	wait(b, "the call", g.began)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	g.wantCalls(b, 1)

	// Its intent is taken over as after a kill.
	other := b.dispatcher()
	other.Destination("vendor", dispatcher.Limits{})
	handle(other, "charge_card", policyOf(dispatcher.IdempotentWrite), g.handle)
	b.expect(other, delivered)
	g.wantCalls(b, 2)
}

func TestConcurrentRunIsRefused(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.counted(c, dispatcher.Limits{})
	for i := range 3 {
		r := b.start(d)
		if err := d.Run(b.ctx); !errors.Is(err, dispatcher.ErrRunning) {
			t.Errorf("a second Run returned %v", err)
		}
		if _, err := d.Drain(b.ctx); !errors.Is(err, dispatcher.ErrRunning) {
			t.Errorf("a Drain during a Run returned %v", err)
		}
		b.insert("charge_card")
		b.untilFinished()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		c.wantOnceEach(b, i+1)
	}
}

func TestRunReturnsConfigErrors(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	handle(d, "charge_card", dispatcher.Policy{}, b.post)
	if err := d.Run(b.ctx); err == nil {
		t.Error("Run accepted a policy without a class")
	}
	if _, err := d.Drain(b.ctx); err == nil {
		t.Error("Drain accepted a policy without a class")
	}
}

func TestRunWithoutTablesSaysWhatToDo(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewEmptyDB(t)
	d := dispatcher.New(on.Pool, nil)
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.Read}, ok)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Run(ctx); err == nil {
		t.Error("Run returned nil")
	}
}

func TestCancelledDrainStops(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, nil)
	b.vendor.Hold()
	id := b.insert("charge_card")
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := d.Drain(ctx)
		done <- err
	}()
	if err := b.vendor.WaitOpen(b.ctx, 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	b.vendor.Release()
	if err := wait(b, "the drain ended", done); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain returned %v", err)
	}
	b.wantStatus(id, "delivered")
}

func TestActionsShareTheDestinationsLimit(t *testing.T) {
	b := setup(t)
	const limit = 3
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: limit})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), b.post)
	handle(d, "refund", policyOf(dispatcher.IdempotentWrite), b.post)
	b.vendor.Hold()
	b.insertMany("charge_card", 10)
	b.insertMany("refund", 10)
	b.start(d)
	if err := b.vendor.WaitOpen(b.ctx, limit); err != nil {
		t.Fatal(err)
	}
	b.sweeps(d, 300*time.Millisecond)
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'leased'`); n != limit {
		t.Errorf("%d intents are claimed, want no more than the free slots, %d", n, limit)
	}
	b.vendor.Release()
	b.untilFinished()
	if most := b.vendor.Counts().MaxOpen; most != limit {
		t.Errorf("%d calls were open at once, want %d", most, limit)
	}
	b.wantCalls(20)
}

func TestActionsOfADestinationTakeTurns(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	r := &recorder{}
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1})
	for _, action := range []string{"charge_card", "refund"} {
		handle(d, action, policyOf(dispatcher.IdempotentWrite), func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
			named := *call
			named.Payload = []byte(call.Action)
			return r.handle(ctx, &named)
		})
	}
	b.insertMany("charge_card", 30)
	b.insertMany("refund", 30)
	b.start(d)
	b.untilFinished()
	runs, last := 0, ""
	for _, action := range r.delivered() {
		if action != last {
			runs, last = runs+1, action
		}
	}
	if runs < 10 {
		t.Errorf("the actions took turns only %d times in 60 calls", runs)
	}
}

func TestSlowCallOutlivesItsShift(t *testing.T) {
	b := setup(t)
	g := newGate(1)
	d := b.gated(b.db.Pool, g, policyOf(dispatcher.NonIdempotentWrite))
	d.SetShift(200 * time.Millisecond)
	slow := b.insert("charge_card")
	b.start(d)
	wait(b, "the slow call", g.began)
	for i := range 5 {
		b.insertManyMore("charge_card", 4)
		b.until("the others are delivered", func() bool { return b.count(`select count(*) from samekey.outbox_queue`) == 1 })
		b.until("a shift ends", func() bool {
			return b.count(`select count(*) from samekey.river_job where kind = 'samekey.drain' and state = 'completed'`) > i
		})
	}
	b.wantStatus(slow, "leased")
	g.release()
	b.untilFinished()
	b.wantHistory(slow, "attempt:delivered:call-1")
	g.wantCalls(b, 21)
	if n := b.count(`select count(*) from samekey.river_job where state not in ('completed', 'running', 'available')`); n != 0 {
		t.Errorf("%d drains failed", n)
	}
}
