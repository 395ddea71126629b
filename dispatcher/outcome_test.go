package dispatcher_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/outbox"
)

// An outcome that a function must not return counts as unknown, and is logged as a mistake.
const wrongOutcome = "level=ERROR msg=\"dispatcher: an action's function returned a wrong outcome"

func TestZeroOutcomeIsUnknown(t *testing.T) {
	for class, want := range map[dispatcher.Class]string{
		dispatcher.Read:               "attempt:unknown:no_outcome",
		dispatcher.IdempotentWrite:    "attempt:unknown:no_outcome",
		dispatcher.NonIdempotentWrite: "attempt:unknown:no_outcome",
		dispatcher.IrreversibleWrite:  "attempt:unknown:no_outcome",
	} {
		t.Run(class.String(), func(t *testing.T) {
			var applied bool
			b, d, s := scriptedSetup(t, policyOf(class), withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error {
				applied = true
				return nil
			}))
			s.next = answering(dispatcher.Outcome{})
			id := b.insert("charge_card")
			if class == dispatcher.IrreversibleWrite {
				b.expect(d, awaiting)
				b.approve(id)
				want = "attempt:awaiting_approval:approval approved " + want
			}
			if sum := b.drain(d); sum.Delivered != 0 || applied {
				t.Errorf("a forgotten outcome counts as delivered: %+v", sum)
			}
			b.wantHistory(id, want)
			if !strings.Contains(b.logs.String(), wrongOutcome) {
				t.Error("the mistake is not logged")
			}
		})
	}
}

func TestErrorWinsOverTheOutcome(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite))
	s.next = func(*dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{Code: "200", Body: []byte("half of")}), errors.New("the body broke off")
	}
	id := b.insert("charge_card")
	b.expect(d, unknown)
	b.wantHistory(id, "attempt:unknown:200")
	if n := b.count(`select count(*) from samekey.outbox_history where response = 'half of' and error = 'the body broke off'`); n != 1 {
		t.Error("the response or the error's text is lost")
	}
	if strings.Contains(b.logs.String(), wrongOutcome) {
		t.Error("an error is logged as a mistake of the function")
	}
}

func TestErrUnsentUsesNoAttempt(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite))
	s.next = failing(fmt.Errorf("charge: %w", fmt.Errorf("client: %w: no route", dispatcher.ErrUnsent)))
	id := b.insert("charge_card")
	b.expect(d, retried)
	b.wantHistory(id, "attempt:unsent:unsent")
	if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used = 0 and first_sent_at is null`); n != 1 {
		t.Error("an unsent call used an attempt")
	}
}

func TestAbsentFromSendIsUnknownAndLogged(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite))
	s.next = answering(dispatcher.Absent(dispatcher.Response{Code: "404"}))
	id := b.insert("charge_card")
	b.expect(d, unknown)
	b.wantHistory(id, "attempt:unknown:404")
	if log := b.logs.String(); !strings.Contains(log, wrongOutcome) || !strings.Contains(log, "only a Lookup may return") {
		t.Error("the mistake is not logged")
	}
}

func TestWrongLookupOutcomesAreParkedAndLogged(t *testing.T) {
	for name, test := range map[string]struct {
		outcome dispatcher.Outcome
		code    string
	}{
		"gone":    {dispatcher.Gone(dispatcher.Response{Code: "410"}), "410"},
		"nothing": {dispatcher.Outcome{}, "no_outcome"},
	} {
		t.Run(name, func(t *testing.T) {
			var none error
			p := storedPolicy(dispatcher.NonIdempotentWrite)
			b, d, s := scriptedSetup(t, p, storedByPart, lookingUp(&test.outcome, &none))
			b.putEndpoint("to-1", "https://one.example")
			s.next = failing(errors.New("reset"))
			id := b.insert("charge_card", to("to-1"))
			b.expect(d, unknown)
			b.elapse(settling)
			b.expect(d, parked)
			b.wantHistory(id, "attempt:unknown:unknown lookup:unknown:"+test.code)
			if !strings.Contains(b.logs.String(), wrongOutcome) {
				t.Error("the mistake is not logged")
			}
			if b.endpoint("to-1").Stopped() {
				t.Error("a lookup stopped the endpoint")
			}
		})
	}
}

func TestBecauseIsKeptInTheHistory(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.Read))
	s.next = answering(dispatcher.Dead(dispatcher.Response{Code: "404"}).Because(errors.New("no such order")))
	b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Dead: 1})
	if n := b.count(`select count(*) from samekey.outbox_history where error = 'no such order'`); n != 1 {
		t.Error("the explanation is not in the history")
	}
}

func TestOutcomeString(t *testing.T) {
	for want, o := range map[string]dispatcher.Outcome{
		"no outcome":                         {},
		"delivered 200":                      dispatcher.Delivered(dispatcher.Response{Code: "200", Body: []byte("secret")}),
		"retry 429 after 2s for the account": dispatcher.Retry(dispatcher.Response{Code: "429"}).After(2 * time.Second).ForAccount(),
		"unsent: no route":                   dispatcher.Unsent(errors.New("no route")),
	} {
		if got := o.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The writer and the worker share one declaration. Apply inserts the next intent with the same type.
func TestTypedActionEndToEnd(t *testing.T) {
	b := setup(t)
	type receipt struct{ Order string }
	chargeCard, sendReceipt := outbox.NewAction[charge]("charge_card"), outbox.NewAction[receipt]("send_receipt")
	receipts := make(chan receipt, 1)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	dispatcher.Handle(d, chargeCard, dispatcher.Delivery[charge]{
		Policy: policyOf(dispatcher.IdempotentWrite),
		Send: func(_ context.Context, _ *dispatcher.Call, c charge) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{Code: c.Order}), nil
		},
		Apply: func(ctx context.Context, tx pgx.Tx, c charge, settled dispatcher.Settled) error {
			if settled.Status != outbox.StatusDelivered || settled.Resolved || settled.Response.Code != c.Order {
				t.Errorf("Apply got %+v", settled)
			}
			_, err := sendReceipt.Insert(ctx, tx, receipt{c.Order})
			return err
		},
	})
	dispatcher.Handle(d, sendReceipt, dispatcher.Delivery[receipt]{
		Policy: policyOf(dispatcher.IdempotentWrite),
		Send: func(_ context.Context, _ *dispatcher.Call, r receipt) (dispatcher.Outcome, error) {
			receipts <- r
			return dispatcher.Delivered(dispatcher.Response{}), nil
		},
	})
	b.insert("charge_card", func(in *outbox.Intent) {
		key := in.Key
		*in = chargeCard.Intent(charge{Order: "order-7", Amount: 1})
		in.Key = key
	})
	b.expect(d, dispatcher.Summary{Delivered: 2})
	if r := wait(b, "the receipt was sent", receipts); r.Order != "order-7" {
		t.Errorf("sent %+v", r)
	}
}

// doc is a type of bytes: the writer stores them unchanged.
type doc []byte

// What the writer stores of a type, the worker decodes into it.
func TestTypesOfBytesReachTheWorkerUnchanged(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	text := []byte(`{"n": 1.0 }`)
	raw := json.RawMessage(text)
	payloads := []payload{payloadOf("bytes", text), payloadOf("raw_message", raw), payloadOf("named", doc(text)),
		payloadOf("pointer", &text), payloadOf("pointer_to_raw_message", &raw), payloadOf("database_sql", sql.RawBytes(text))}
	d.Destination("vendor", dispatcher.Limits{})
	var got []*[]byte
	for _, p := range payloads {
		in := p.intent()
		b.insert(in.Action, func(i *outbox.Intent) { i.Payload = in.Payload })
		got = append(got, p.handle(d))
	}
	b.expect(d, dispatcher.Summary{Delivered: len(payloads)})
	for i, p := range payloads {
		if string(*got[i]) != string(text) {
			t.Errorf("%s got %q", p.intent().Action, *got[i])
		}
	}
}

// payload is an action with one payload, and the same bytes as the worker got them.
type payload struct {
	intent func() outbox.Intent
	handle func(*dispatcher.Dispatcher) (got *[]byte)
}

func payloadOf[T any](name string, value T) payload {
	action := outbox.NewAction[T](name)
	return payload{
		func() outbox.Intent { return action.Intent(value) },
		func(d *dispatcher.Dispatcher) *[]byte {
			got := new([]byte)
			dispatcher.Handle(d, action, dispatcher.Delivery[T]{
				Policy: policyOf(dispatcher.IdempotentWrite),
				Send: func(_ context.Context, _ *dispatcher.Call, value T) (dispatcher.Outcome, error) {
					*got, _ = jsonvalue.Bytes(value)
					return dispatcher.Delivered(dispatcher.Response{}), nil
				},
			})
			return got
		},
	}
}
