package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// Intents that rest for one cause are one group, whatever values their messages have.
func TestRestingIntentsHaveACauseWithoutValues(t *testing.T) {
	p := policyOf(dispatcher.IdempotentWrite)
	p.Attempts = 1
	for name, c := range map[string]struct {
		answer func(n int) (dispatcher.Outcome, error)
		cause  string
	}{
		"an error": {func(n int) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, fmt.Errorf("dial tcp 10.0.0.%d:443: connection refused", n)
		}, "dial tcp #: connection refused"},
		"an explanation": {func(n int) (dispatcher.Outcome, error) {
			return dispatcher.Dead(dispatcher.Response{Code: "401"}).Because(fmt.Errorf("key %d was revoked", n)), nil
		}, "key # was revoked"},
		"an answer": {func(n int) (dispatcher.Outcome, error) {
			return dispatcher.Dead(dispatcher.Response{Code: "404", Body: fmt.Appendf(nil, `{"error":{"message":"no customer cus_%d"}}`, n)}), nil
		}, "no customer #"},
		"the payload's text": {func(int) (dispatcher.Outcome, error) {
			return dispatcher.Dead(dispatcher.Response{Code: "404"}).Because(errors.New("cannot charge Miller today")), nil
		}, "cannot charge [redacted] today"},
		"nothing": {func(int) (dispatcher.Outcome, error) {
			return dispatcher.Dead(dispatcher.Response{Code: "404"}), nil
		}, "no message"},
	} {
		t.Run(name, func(t *testing.T) {
			b, d, s := scriptedSetup(t, p)
			n := 0
			s.next = func(*dispatcher.Call) (dispatcher.Outcome, error) { n++; return c.answer(n) }
			for range 2 {
				b.insert("charge_card", func(in *outbox.Intent) { in.Payload = charge{Order: "Miller", Amount: 1} })
			}
			b.expect(d, dispatcher.Summary{Dead: 2})
			groups, err := outbox.Groups(b.ctx, b.db)
			if err != nil || len(groups) != 1 || groups[0].Count != 2 || groups[0].Cause != c.cause || groups[0].Status != outbox.StatusDead {
				t.Fatalf("%+v, %v", groups, err)
			}
			s.next = succeeding
			if n, err := outbox.RedriveAll(groups[0].Filter(), by).Run(b.ctx, b.db.Pool); n != 2 || err != nil {
				t.Errorf("redriven: %d, %v", n, err)
			}
			if n := b.count(`select count(*) from samekey.outbox_queue where cause is not null`); n != 0 {
				t.Errorf("%d have a cause and do not rest", n)
			}
			b.expect(d, dispatcher.Summary{Delivered: 2})
		})
	}
}

func TestAParkedIntentHasTheCauseOfItsLookup(t *testing.T) {
	p := policyOf(dispatcher.NonIdempotentWrite)
	b, d, s := scriptedSetup(t, p, withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		return dispatcher.Unknown(dispatcher.Response{Code: "500"}).Because(errors.New("report 7 is not ready")), nil
	}))
	id := b.insert("charge_card")
	s.next = failing(errors.New("reset"))
	b.expect(d, unknown)
	if n := b.count(`select count(*) from samekey.outbox_queue where cause is not null`); n != 0 {
		t.Error("an unknown intent has a cause")
	}
	b.elapse(settling)
	b.expect(d, parked)
	b.wantStatus(id, "parked")
	if got := value[string](b, `select cause from samekey.outbox_queue`); got != "report # is not ready" {
		t.Errorf("the cause is %q", got)
	}
}
