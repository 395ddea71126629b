package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// applied is the application's table. Only Apply writes to it.
func (b *bundle) applied() {
	b.Helper()
	b.exec(`create table payments (intent uuid primary key, state text not null)`)
}

func recordPayment(ctx context.Context, tx pgx.Tx, _ []byte, o dispatcher.Settled) error {
	state := "paid"
	if o.Status == outbox.StatusRefused {
		state = "declined"
	}
	_, err := tx.Exec(ctx, `insert into payments values ($1, $2)`, o.ID, state)
	return err
}

func TestApplyCommitsWithTheFinish(t *testing.T) {
	b := setup(t)
	b.applied()
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(recordPayment))
	b.vendor.Next("402")
	declined := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Refused: 1})
	paid := b.insert("charge_card")
	b.expect(d, delivered)
	for id, want := range map[uuid.UUID]string{declined: "declined", paid: "paid"} {
		if got := value[string](b, `select state from payments where intent = $1`, id); got != want {
			t.Errorf("the payment is %s, want %s", got, want)
		}
	}
	b.wantHistory(declined, "attempt:refused:402 apply:refused:402")
	b.wantHistory(paid, "attempt:delivered:201 apply:delivered:201")
	b.wantCalls(2)

	// One transaction wrote both.
	if n := b.count(`select count(*) from payments p join samekey.outbox_history h on h.intent_id = p.intent
		where h.final_status is not null and h.xmin::text = p.xmin::text`); n != 2 {
		t.Errorf("%d of 2 payments were written in the transaction that finished the intent", n)
	}
}

func TestApplyInsertsUnderTheRequestsKey(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_receipt", Payload: c})
			return err
		}))
	handle(d, "send_receipt", policyOf(dispatcher.IdempotentWrite), b.post)
	b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Delivered: 2})
	b.wantCalls(2)
	if n := b.count(`select count(distinct (scope, idem_key)) from samekey.outbox`); n != 1 {
		t.Errorf("the two intents have %d keys, want the request's", n)
	}
}

func TestApplyMayNotUseAnotherKey(t *testing.T) {
	b := setup(t)
	refused := make(chan error, 1)
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
			key := o.Key
			key.Value += "-2"
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Key: key, Action: "send_receipt", Payload: c})
			refused <- err
			return nil
		}))
	b.insert("charge_card")
	b.expect(d, delivered)
	if err := wait(b, "Apply ran", refused); err == nil {
		t.Error("an intent under another key was accepted in Apply")
	}
}

func TestFailedApplyIsRetriedWithoutAnotherCall(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("no such order") },
		"panic": func() error { panic("no such order") },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.applied()
			var bad uuid.UUID
			broken := true
			d := b.handles(dispatcher.IdempotentWrite, nil, withApply(
				func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
					if err := recordPayment(ctx, tx, c, o); err != nil || o.ID != bad || !broken {
						return err
					}
					return fail()
				}))
			bad = b.insert("charge_card")
			for range 4 {
				b.insert("charge_card")
			}
			b.expect(d, dispatcher.Summary{Delivered: 4, Retried: 1})
			b.wantStatus(bad, "answered")
			if n := b.count(`select count(*) from payments`); n != 4 {
				t.Errorf("%d payments are written, want those of the other intents", n)
			}
			for range 3 {
				b.elapse(backoff)
				b.expect(d, retried)
			}
			broken = false
			b.elapse(backoff)
			b.expect(d, delivered)
			b.wantStatus(bad, "delivered")
			b.wantCalls(5)
			if n := b.count(`select count(*) from payments`); n != 5 {
				t.Errorf("%d payments are written, want 5", n)
			}
		})
	}
}

func TestApplyThatIgnoresAnSQLErrorFinishesNothing(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, _ []byte, _ dispatcher.Settled) error {
			_, _ = tx.Exec(ctx, `select 1/0`)
			return nil
		}))
	id := b.insert("charge_card")
	b.expect(d, retried)
	b.wantStatus(id, "answered")
}

func TestApplyBacksOff(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, func(p *dispatcher.Policy) {
		p.Backoff, p.MaxBackoff = time.Hour, time.Hour
		p.KeyWindow = dispatcher.Forever
	},
		withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error { return errors.New("no") }))
	for range 8 {
		b.insert("charge_card")
	}
	b.expect(d, dispatcher.Summary{Retried: 8})
	// Full jitter over an hour: all eight are due within a minute with a probability of 1 in 10^14.
	if n := b.count(`select count(*) from samekey.outbox_queue where due_at > clock_timestamp() + interval '1 min'`); n == 0 {
		t.Error("a failed Apply is retried at once")
	}
}

func TestKillBetweenAnswerAndApply(t *testing.T) {
	b := setup(t)
	b.applied()
	id := b.insert("charge_card")
	worker := b.startWorker(workerSettings{Class: dispatcher.NonIdempotentWrite, Timeout: 50 * time.Second, Apply: true})
	b.untilStatus(id, "answered")
	worker.kill()

	d := b.handles(dispatcher.NonIdempotentWrite, nil, withApply(recordPayment))
	b.until("the killed worker's answer is applied", func() bool { return b.drain(d).Delivered == 1 })
	b.wantStatus(id, "delivered")
	b.wantCalls(1)
	if n := b.count(`select count(*) from payments`); n != 1 {
		t.Errorf("%d payments are written, want 1", n)
	}
}
