package dispatcher_test

import (
	"context"
	"errors"
	"testing"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// goingTo returns a dispatcher of a release that sends the action to that destination.
func (b *bundle) goingTo(destination string, p dispatcher.Policy, s *scripted, options ...option) *dispatcher.Dispatcher {
	d := b.dispatcher()
	p.Destination = destination
	d.Destination(destination, dispatcher.Limits{Concurrency: 1})
	handle(d, "charge_card", p, s.handle, options...)
	return d
}

// The old vendor may have acted. The new vendor does not know the key and would act again.
func TestMovedIntentThatMayBeSentIsNotSentAgain(t *testing.T) {
	for class, want := range map[dispatcher.Class]string{
		dispatcher.NonIdempotentWrite: "attempt:unknown:unknown lookup:parked:moved",
		dispatcher.IdempotentWrite:    "attempt:unknown:unknown attempt:unknown:moved lookup:parked:moved",
	} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			p := policyOf(class)
			p.ResendAbsent = class == dispatcher.NonIdempotentWrite
			old, other := &scripted{next: failing(errors.New("reset"))}, &scripted{next: succeeding}
			asked := 0
			absent := withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
				asked++
				return dispatcher.Absent(dispatcher.Response{}), nil
			})
			id := b.insert("charge_card")
			b.drain(b.goingTo("old", p, old, absent))
			b.elapse(backoff)
			for range 3 {
				b.drain(b.goingTo("other", p, other, absent))
				b.elapse(backoff)
			}
			b.wantStatus(id, "parked")
			b.wantHistory(id, want)
			if other.calls != 0 || asked != 0 {
				t.Errorf("the other destination got %d calls and %d lookups", other.calls, asked)
			}

			// After a person resolves it as not sent, it goes to the other destination.
			if err := outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
				t.Fatal(err)
			}
			b.redrive(id)
			b.expect(b.goingTo("other", p, other, absent), delivered)
		})
	}
}

func TestMovedUnsentIntentGoesToTheNewDestination(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.NonIdempotentWrite, dispatcher.IdempotentWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			old, other := &scripted{next: answering(dispatcher.Unsent(nil))}, &scripted{next: succeeding}
			b.insert("charge_card")
			b.expect(b.goingTo("old", policyOf(class), old), retried)
			b.elapse(backoff)
			if class == dispatcher.IdempotentWrite { // from now on it belongs to the other
				other.next = failing(errors.New("reset"))
				b.expect(b.goingTo("other", policyOf(class), other), retried)
				other.next = succeeding
				b.elapse(backoff)
			}
			b.expect(b.goingTo("other", policyOf(class), other), delivered)
		})
	}
}

// A read has no effect, so it can be repeated at another vendor.
func TestMovedReadIsRepeated(t *testing.T) {
	b := setup(t)
	old, other := &scripted{next: failing(errors.New("reset"))}, &scripted{next: succeeding}
	b.insert("charge_card")
	b.expect(b.goingTo("old", policyOf(dispatcher.Read), old), retried)
	b.elapse(backoff)
	b.expect(b.goingTo("other", policyOf(dispatcher.Read), other), delivered)
}
