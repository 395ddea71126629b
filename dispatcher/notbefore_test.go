package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// No call starts before the time that the vendor asked for, whatever causes the call.

// impatient returns a policy with short waits.
func impatient(class dispatcher.Class) dispatcher.Policy {
	p := policyOf(class)
	p.Backoff, p.MaxBackoff, p.SettlingDelay, p.Attempts = time.Millisecond, time.Millisecond, -1, 2
	return p
}

// asking is a lookup that returns the outcome that the test sets, and counts.
type asking struct {
	asked int
	next  dispatcher.Outcome
}

var found = dispatcher.Delivered(dispatcher.Response{Code: "200"})

func (f *asking) option() option {
	return withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		f.asked++
		return f.next, nil
	})
}

// idle drains until no intent is due. Waits of a millisecond may end within a drain.
func (b *bundle) idle(d *dispatcher.Dispatcher) {
	b.Helper()
	b.until("nothing is due", func() bool { return b.drain(d) == nothing })
}

func TestLookupWaitsForTheVendor(t *testing.T) {
	for name, tc := range map[string]struct {
		outcome dispatcher.Outcome
		waits   bool
	}{
		"later":         {dispatcher.Retry(dispatcher.Response{}).After(time.Hour), true},
		"not before":    {dispatcher.Denied(dispatcher.Response{Code: "401"}).After(time.Hour), true},
		"credentials":   {dispatcher.Denied(dispatcher.Response{Code: "401"}), false},
		"not reachable": {dispatcher.Unsent(nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &asking{next: tc.outcome}
			b, d, s := scriptedSetup(t, impatient(dispatcher.NonIdempotentWrite), f.option())
			s.next = failing(errors.New("reset"))
			id := b.insert("charge_card")
			for range 5 {
				before := f.asked
				b.drain(d)
				b.elapse(time.Minute)
				b.drain(d)
				if tc.waits && f.asked > before+1 {
					t.Fatalf("the vendor got %d lookups within a minute, but asked for an hour", f.asked-before)
				}
				b.wantStatus(id, "unknown")
				b.elapse(time.Hour)
			}
			f.next = found
			b.idle(d)
			b.wantStatus(id, "delivered")
		})
	}
}

func TestUnknownWaitsForTheVendor(t *testing.T) {
	for name, tc := range map[string]struct {
		class   dispatcher.Class
		outcome dispatcher.Outcome
	}{
		"sent again":         {dispatcher.IdempotentWrite, dispatcher.Unknown(dispatcher.Response{Code: "409"})},
		"the zero outcome":   {dispatcher.IdempotentWrite, dispatcher.Outcome{}},
		"looked up":          {dispatcher.NonIdempotentWrite, dispatcher.Unknown(dispatcher.Response{Code: "503"})},
		"stuck":              {dispatcher.IdempotentWrite, dispatcher.Stuck(dispatcher.Response{Code: "500"})},
		"credentials":        {dispatcher.NonIdempotentWrite, dispatcher.Denied(dispatcher.Response{Code: "401"})},
		"the longer of both": {dispatcher.IdempotentWrite, dispatcher.Retry(dispatcher.Response{}).After(time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			f := &asking{next: found}
			b, d, s := scriptedSetup(t, impatient(tc.class), f.option())
			s.next = answering(tc.outcome.After(time.Hour))
			id := b.insert("charge_card")
			b.drain(d)
			s.next = succeeding
			b.elapse(59 * time.Minute)
			b.expect(d, nothing)
			if s.calls != 1 || f.asked != 0 {
				t.Errorf("the vendor got %d calls and %d lookups within the hour", s.calls, f.asked)
			}
			b.elapse(2 * time.Minute)
			b.idle(d)
			b.wantStatus(id, "delivered")
		})
	}
}

func TestAfterIsCutAtADay(t *testing.T) {
	b, d, s := scriptedSetup(t, impatient(dispatcher.IdempotentWrite))
	id := b.insert("charge_card")
	s.next = answering(dispatcher.Refused(dispatcher.Response{Code: "402"}).After(1 << 62))
	b.expect(d, dispatcher.Summary{Refused: 1})
	b.wantStatus(id, "refused")
	id = b.insert("charge_card")
	s.next = answering(dispatcher.Unsent(nil).After(1 << 62))
	b.expect(d, retried)
	s.next = succeeding
	b.elapse(24*time.Hour + time.Second)
	b.expect(d, delivered)
	b.wantStatus(id, "delivered")
}

func TestApprovalWaitsForTheVendor(t *testing.T) {
	p := impatient(dispatcher.IrreversibleWrite)
	p.Attempts = 0 // there is no lookup
	b, d, s := scriptedSetup(t, p)
	id := b.insert("charge_card")
	b.expect(d, awaiting)
	b.approve(id)
	s.next = answering(dispatcher.Retry(dispatcher.Response{}).After(time.Hour))
	b.expect(d, awaiting)
	s.next = succeeding
	b.approve(id)
	b.elapse(59 * time.Minute)
	b.expect(d, nothing)
	b.elapse(2 * time.Minute)
	b.expect(d, delivered)
	if s.calls != 2 {
		t.Errorf("%d calls, want 2", s.calls)
	}
}
