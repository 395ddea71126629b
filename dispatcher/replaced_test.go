package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// A person reports that a call never arrived, and replaces the intent. Then the call is answered: the vendor did act.
func TestLateAnswerHoldsTheSuccessor(t *testing.T) {
	for name, paused := range map[string]bool{"not sent yet": true, "sent": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			g := newGate(1)
			d := b.gated(b.db.Pool, g, policyOf(dispatcher.NonIdempotentWrite))
			id := b.insert("charge_card")
			b.start(d)
			wait(b, "the call", g.began)
			b.elapse(lease)
			b.untilStatus(id, "unknown")
			b.elapse(settling)
			b.untilStatus(id, "parked")
			if paused {
				if err := outbox.Pause(b.ctx, b.db, outbox.Target{Destination: "vendor"}, time.Time{}, by); err != nil {
					t.Fatal(err)
				}
			}
			if err := outbox.Resolve(b.ctx, b.db, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
				t.Fatal(err)
			}
			successor, err := outbox.Replace(b.ctx, b.db, id, outbox.Replacement{}, by)
			if err != nil {
				t.Fatal(err)
			}
			if !paused {
				b.untilStatus(successor, "delivered")
			}
			g.release()
			line := b.logs.Wait(t, "delivered after it had been replaced")
			b.untilStatus(successor, map[bool]string{true: "parked", false: "delivered"}[paused])
			for _, want := range []string{"level=ERROR", "successor=" + successor.String(), "charge_card",
				map[bool]string{true: "its successor is parked", false: "look for two effects"}[paused]} {
				if !strings.Contains(line, want) {
					t.Errorf("the line lacks %q: %s", want, line)
				}
			}
			if paused {
				if err := outbox.Resume(b.ctx, b.db, outbox.Target{Destination: "vendor"}, by); err != nil {
					t.Fatal(err)
				}
				b.wantHistory(successor, "held:parked:predecessor_delivered")
				g.wantCalls(b, 1)
			}
		})
	}
}

// As above, but the person cancels the intent. The application learns that the vendor acted all the same.
func TestLateAnswerOfACancelledIntentIsAnAlarm(t *testing.T) {
	b := setup(t)
	g := newGate(1)
	d := b.gated(b.db.Pool, g, policyOf(dispatcher.NonIdempotentWrite))
	id := b.insert("charge_card")
	b.start(d)
	wait(b, "the call", g.began)
	b.elapse(lease)
	b.untilStatus(id, "unknown")
	b.elapse(settling)
	b.untilStatus(id, "parked")
	b.exec(`update samekey.actions set attention = true where action = 'charge_card'`)
	if err := outbox.Resolve(b.ctx, b.db, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Cancel(b.ctx, b.db, id, by); err != nil {
		t.Fatal(err)
	}
	g.release()
	if line := b.logs.Wait(t, "delivered after a person had cancelled it"); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "charge_card") {
		t.Error(line)
	}
	b.wantStatus(id, "cancelled")
	if n := b.count(`select count(*) from samekey.outbox_attention where status = 'cancelled' and event = 'late' and code = 'delivered_after_cancel'`); n != 1 {
		t.Errorf("%d attention events, want 1", n)
	}
}
