package dispatcher_test

import (
	"errors"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// The margin before the end of the key window of 24 h: the timeout of 5 s, and 10 s.
const lastSend = 24*time.Hour - 15*time.Second

func TestResendInsideTheKeyWindow(t *testing.T) {
	b, d := classSetup(t, dispatcher.IdempotentWrite, nil)
	b.vendor.Next("500")
	id := b.insert("charge_card")
	b.expect(d, retried)
	b.elapse(lastSend - 10*time.Second)
	b.expect(d, delivered)
	b.wantCalls(2)
	b.wantStatus(id, "delivered")
}

func TestPastKeyWindowIsLookedUpNeverSent(t *testing.T) {
	for name, c := range map[string]struct {
		fault samekeytest.Fault
		want  dispatcher.Summary
		last  string
	}{
		"acted":       {"500_after", delivered, " lookup:delivered:201"},
		"did not act": {"500", parked, " lookup:absent:absent lookup:absent:404"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			d := b.handles(dispatcher.IdempotentWrite, nil, withLookup(b.lookup))
			b.vendor.Next(c.fault)
			id := b.insert("charge_card")
			b.expect(d, retried)
			b.elapse(lastSend + time.Second)
			want := c.want
			want.Unknown++
			if c.want == parked { // absent needs two lookups
				b.expect(d, dispatcher.Summary{Unknown: 2})
				b.elapse(settling)
				want = parked
			}
			b.expect(d, want)
			b.wantHistory(id, "attempt:unknown:500 attempt:unknown:key_window"+c.last)
			b.elapse(48 * time.Hour)
			b.expect(d, nothing)
			b.wantCalls(1)
		})
	}
}

func TestPastKeyWindowWithoutLookupIsParked(t *testing.T) {
	b, d := classSetup(t, dispatcher.IdempotentWrite, nil)
	b.vendor.Next("500")
	id := b.insert("charge_card")
	b.expect(d, retried)
	b.elapse(25 * time.Hour)
	past := dispatcher.Summary{Unknown: 1, Parked: 1}
	b.expect(d, past)
	b.redrive(id)
	b.expect(d, past)
	b.wantCalls(1)

	// Only a person who resolves it as not sent starts a new window.
	if err := outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	b.redrive(id)
	b.expect(d, delivered)
	b.wantCalls(2)
}

func TestOutageLongerThanTheKeyWindowParksNothing(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.IdempotentWrite))
	for range 5 {
		b.insert("charge_card")
	}
	s.next = answering(dispatcher.Unsent(errors.New("connection refused")))
	for range 5 {
		b.expect(d, dispatcher.Summary{Retried: 5})
		b.elapse(5 * time.Hour)
	}
	s.next = succeeding
	b.expect(d, dispatcher.Summary{Delivered: 5})
}

func TestKeyWindowCountsFromTheFirstSend(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.IdempotentWrite))
	b.insert("charge_card")
	s.next = failing(errors.New("reset"))
	b.expect(d, retried)
	b.elapse(12 * time.Hour)
	s.next = answering(dispatcher.Unsent(nil)) // the first attempt may still have been sent
	b.expect(d, retried)
	b.elapse(13 * time.Hour)
	b.expect(d, dispatcher.Summary{Unknown: 1, Parked: 1})
	if s.calls != 2 {
		t.Errorf("%d calls, want 2", s.calls)
	}
}

func TestHistoryKeepsTheEndOfTheKeyWindow(t *testing.T) {
	b, d := classSetup(t, dispatcher.IdempotentWrite, nil)
	b.insert("charge_card")
	b.expect(d, delivered)
	if n := b.count(`select count(*) from samekey.outbox_history where final_status is not null
		and key_window_until between clock_timestamp() + interval '23 h 59 min' and clock_timestamp() + interval '24 h'`); n != 1 {
		t.Error("the finishing event does not have the end of the key window")
	}
}

// The vendor forgets keys sooner than the policy assumed. A corrected policy also applies to waiting intents.
func TestCorrectedKeyWindowAppliesToEarlierSends(t *testing.T) {
	for name, before := range map[string]time.Duration{"longer": 48 * time.Hour, "forever": dispatcher.Forever} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(dispatcher.IdempotentWrite)
			p.KeyWindow = before
			b, d, s := scriptedSetup(t, p)
			s.next = failing(errors.New("reset"))
			b.insert("charge_card")
			b.expect(d, retried)
			p.KeyWindow = 24 * time.Hour
			d = b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", p, s.handle)
			b.elapse(lastSend - time.Hour)
			b.expect(d, retried)
			b.elapse(time.Hour + time.Second)
			b.expect(d, dispatcher.Summary{Unknown: 1, Parked: 1})
			if s.calls != 2 {
				t.Errorf("%d calls, want 2", s.calls)
			}
		})
	}
}
