package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
)

// wantWait checks that an intent is due after a wait of its schedule, with up to a tenth more.
func (b *bundle) wantWait(id uuid.UUID, want time.Duration) {
	b.Helper()
	got := time.Duration(value[float64](b, `select extract(epoch from q.due_at - h.at)::float8 from samekey.outbox_queue q
		join samekey.outbox_history h on h.intent_id = q.id where q.id = $1 order by h.id desc limit 1`, id) * float64(time.Second))
	if got < want-time.Second || got > want+want/10+time.Second {
		b.Errorf("it waits for %v, want %v", got, want)
	}
}

// scheduledSetup has an action with a schedule and no breaker.
func scheduledSetup(t *testing.T, class dispatcher.Class, options ...option) (*bundle, *dispatcher.Dispatcher, *scripted) {
	b := setup(t)
	s := &scripted{}
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{BreakAfter: -1})
	p := policyOf(class)
	p.Backoff, p.MaxBackoff = 0, 0
	p.Schedule = []time.Duration{time.Minute, time.Hour, 10 * time.Hour, 24 * time.Hour}
	if class == dispatcher.IdempotentWrite {
		p.KeyWindow = dispatcher.Forever
	}
	handle(d, "charge_card", p, s.handle, options...)
	return b, d, s
}

// A claim that is postponed, or given back, is no attempt, and a redrive begins again. An endpoint that hangs postpones an
// intent many times.
func TestScheduleCountsAttemptsThatWereMade(t *testing.T) {
	for what, outcome := range map[string]dispatcher.Outcome{
		"unsent": dispatcher.Unsent(dispatcher.ErrUnsent), "retry": dispatcher.Retry(dispatcher.Response{Code: "429"}), "denied": dispatcher.Denied(dispatcher.Response{Code: "401"}),
	} {
		t.Run(what, func(t *testing.T) {
			b, d, s := scheduledSetup(t, dispatcher.IdempotentWrite)
			id := b.insert("charge_card")
			b.exec(`update samekey.outbox_queue set attempt = 40`) // as 40 claims that were postponed leave it
			b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, code) select $1, 'attempt', 'unsent', c from unnest('{given_back,payload_version}'::text[]) c`, id)
			for _, wait := range []time.Duration{time.Minute, time.Hour, 10 * time.Hour} {
				s.next = answering(outcome)
				b.expect(d, retried)
				b.wantWait(id, wait)
				b.elapse(wait + wait/5)
			}
			s.next = answering(dispatcher.Dead(dispatcher.Response{Code: "400"}))
			b.expect(d, dispatcher.Summary{Dead: 1})
			b.redrive(id)
			s.next = answering(outcome.After(2 * time.Minute))
			b.expect(d, retried)
			b.wantWait(id, 2*time.Minute)
		})
	}
}

func TestScheduleCountsLookupsThatWereMade(t *testing.T) {
	b, d, s := scheduledSetup(t, dispatcher.NonIdempotentWrite, withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		return dispatcher.Outcome{}, dispatcher.ErrUnsent
	}))
	s.next = failing(errors.New("reset"))
	id := b.insert("charge_card")
	b.exec(`update samekey.outbox_queue set attempt = 40`)
	b.expect(d, dispatcher.Summary{Unknown: 1})
	b.elapse(time.Minute)
	for _, wait := range []time.Duration{time.Minute, time.Hour} {
		b.expect(d, dispatcher.Summary{Unknown: 1})
		b.wantWait(id, wait)
		b.elapse(wait + wait/5)
	}
}
