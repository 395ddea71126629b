package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// A vendor that says when it wants to be asked again is never asked earlier, by whatever way the next call comes.

// impatient is a policy whose own waits are short.
func impatient(class dispatcher.Class) dispatcher.Policy {
	p := policyOf(class)
	p.Backoff, p.MaxBackoff, p.SettlingDelay, p.Attempts = time.Millisecond, time.Millisecond, -1, 2
	return p
}

// asking is a look-up that answers as the test says, and counts.
type asking struct {
	asked int
	next  error
}

func (f *asking) option() dispatcher.Option {
	return dispatcher.WithLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Finding, error) {
		f.asked++
		return dispatcher.Found(dispatcher.Answer{Code: "200"}), f.next
	})
}

// idle drains until nothing is due any more: waits of a millisecond may be over within a drain, or not.
func (b *bundle) idle(d *dispatcher.Dispatcher) {
	b.Helper()
	b.until("nothing is due", func() bool { return b.drain(d) == nothing })
}

func TestALookupWaitsForWhatTheVendorSaidAndSpendsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		waits bool
	}{
		"later":         {dispatcher.RetryAfter(time.Hour, nil), true},
		"not before":    {dispatcher.NotBefore(time.Hour, dispatcher.Denied(dispatcher.Answer{Code: "401"}, nil)), true},
		"credentials":   {dispatcher.Denied(dispatcher.Answer{Code: "401"}, nil), false},
		"not reachable": {dispatcher.Unsent(nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &asking{next: tc.err}
			b, d, s := scriptedSetup(t, impatient(dispatcher.NonIdempotentWrite), f.option())
			s.next = failing(errors.New("reset"))
			id := b.insert("charge_card")
			for range 5 {
				before := f.asked
				b.drain(d)
				b.elapse(time.Minute)
				b.drain(d)
				if tc.waits && f.asked > before+1 {
					t.Fatalf("the vendor was asked %d times within a minute, and wanted an hour", f.asked-before)
				}
				b.wantStatus(id, "unknown")
				b.elapse(time.Hour)
			}
			f.next = nil
			b.idle(d)
			b.wantStatus(id, "delivered")
		})
	}
}

func TestWhatIsUnknownWaitsForWhatTheVendorSaidToo(t *testing.T) {
	for name, tc := range map[string]struct {
		class dispatcher.Class
		err   error
	}{
		"sent again":         {dispatcher.IdempotentWrite, dispatcher.Unknown(dispatcher.Answer{Code: "409"}, nil)},
		"an unlisted error":  {dispatcher.IdempotentWrite, errors.New("reset")},
		"looked up":          {dispatcher.NonIdempotentWrite, dispatcher.Unknown(dispatcher.Answer{Code: "503"}, nil)},
		"stuck":              {dispatcher.IdempotentWrite, dispatcher.Stuck(dispatcher.Answer{Code: "500"}, nil)},
		"credentials":        {dispatcher.NonIdempotentWrite, dispatcher.Denied(dispatcher.Answer{Code: "401"}, nil)},
		"the longer of both": {dispatcher.IdempotentWrite, dispatcher.RetryAfter(time.Second, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			f := &asking{}
			b, d, s := scriptedSetup(t, impatient(tc.class), f.option())
			s.next = failing(dispatcher.NotBefore(time.Hour, tc.err))
			id := b.insert("charge_card")
			b.drain(d)
			s.next = succeeding
			b.elapse(59 * time.Minute)
			b.expect(d, nothing)
			if s.calls != 1 || f.asked != 0 {
				t.Errorf("the vendor was called %d times and asked %d times within the hour", s.calls, f.asked)
			}
			b.elapse(2 * time.Minute)
			b.idle(d)
			b.wantStatus(id, "delivered")
		})
	}
}

func TestNotBeforeIsCutToADayAndChangesNoEnd(t *testing.T) {
	b, d, s := scriptedSetup(t, impatient(dispatcher.IdempotentWrite))
	id := b.insert("charge_card")
	s.next = failing(dispatcher.NotBefore(1<<62, dispatcher.Refused(dispatcher.Answer{Code: "402"})))
	b.expect(d, dispatcher.Summary{Refused: 1})
	b.wantStatus(id, "refused")
	id = b.insert("charge_card")
	s.next = failing(dispatcher.NotBefore(1<<62, dispatcher.Unsent(nil)))
	b.expect(d, retried)
	s.next = succeeding
	b.elapse(24*time.Hour + time.Second)
	b.expect(d, delivered)
	b.wantStatus(id, "delivered")
}

func TestAnApprovalDoesNotComeBeforeWhatTheVendorSaid(t *testing.T) {
	p := impatient(dispatcher.IrreversibleWrite)
	p.Attempts = 0 // there is no look-up
	b, d, s := scriptedSetup(t, p)
	id := b.insert("charge_card")
	b.expect(d, awaiting)
	b.approve(id)
	s.next = failing(dispatcher.RetryAfter(time.Hour, nil))
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
