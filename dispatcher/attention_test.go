package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// attended is a bundle whose vendor is a variable, and whose application writes what it is told to a table.
type attended struct {
	*bundle
	answer atomic.Pointer[dispatcher.Outcome]
}

func setupAttended(t *testing.T) *attended {
	t.Helper()
	b := &attended{bundle: setup(t)}
	b.exec(`create table told (n bigint generated always as identity, intent uuid not null, what text not null)`)
	b.answers(dispatcher.Dead(dispatcher.Response{Code: "card_type"}))
	return b
}

func (b *attended) answers(o dispatcher.Outcome) { b.answer.Store(&o) }

func (b *attended) send(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
	return *b.answer.Load(), nil
}

func withAttention(fn func(context.Context, pgx.Tx, []byte, dispatcher.Attention) error) option {
	return func(dl *delivery) { dl.Attention = fn }
}

// tell is an Attention function that writes down what it is told.
func tell(ctx context.Context, tx pgx.Tx, _ []byte, at dispatcher.Attention) error {
	_, err := tx.Exec(ctx, `insert into told (intent, what) values ($1, $2)`, at.ID, string(at.Status))
	return err
}

// tellApply is an Apply that writes down its outcome.
func tellApply(ctx context.Context, tx pgx.Tx, _ []byte, s dispatcher.Settled) error {
	_, err := tx.Exec(ctx, `insert into told (intent, what) values ($1, $2)`, s.ID, "apply:"+string(s.Status))
	return err
}

// charges returns a dispatcher whose charge_card answers what the test says.
func (b *attended) charges(class dispatcher.Class, options ...option) *dispatcher.Dispatcher {
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	p := policyOf(class)
	p.Timeout = 4 * patience
	handle(d, "charge_card", p, b.send, options...)
	return d
}

// told returns what the application was told about an intent, in order.
func (b *attended) told(id uuid.UUID) string {
	b.Helper()
	return value[string](b.bundle, `select coalesce(string_agg(what, ' ' order by n), '') from told where intent = $1`, id)
}

func (b *attended) wantTold(id uuid.UUID, want string) {
	b.Helper()
	if got := b.told(id); got != want {
		b.Fatalf("the application was told %q, want %q; the intent's history: %s", got, want, b.history(id))
	}
}

func (b *attended) untilTold(id uuid.UUID, want string) {
	b.Helper()
	b.until("the application is told "+want, func() bool { return b.told(id) == want })
}

func (b *attended) events() int {
	b.Helper()
	return b.count(`select count(*) from samekey.outbox_attention`)
}

// holding is an Attention function whose first calls wait.
type holding struct {
	began   chan uuid.UUID
	release func()
	open    chan struct{}
}

func newHolding(b *attended) *holding {
	h := &holding{began: make(chan uuid.UUID, 100), open: make(chan struct{})}
	h.release = sync.OnceFunc(func() { close(h.open) })
	b.Cleanup(h.release)
	return h
}

func (h *holding) tell(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
	h.began <- at.ID
	select {
	case <-h.open:
		return tell(ctx, tx, payload, at)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestAttentionTellsOfEachRest(t *testing.T) {
	b := setupAttended(t)
	var got []dispatcher.Attention
	record := withAttention(func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
		if string(payload) != string(at.Payload) || at.Key.Value == "" || at.At.IsZero() || at.PayloadError != nil {
			t.Errorf("the call of the event is %+v", at)
		}
		got = append(got, dispatcher.Attention{Status: at.Status, Now: at.Now, Event: at.Event, Code: at.Code, Error: at.Error, Actor: at.Actor, Reason: at.Reason})
		return tell(ctx, tx, payload, at)
	})
	want := func(what dispatcher.Attention) {
		t.Helper()
		if len(got) != 1 || fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", what) {
			t.Errorf("the application was told %+v, want %+v", got, what)
		}
		got = nil
	}

	d := b.charges(dispatcher.IdempotentWrite, record)
	b.answers(dispatcher.Dead(dispatcher.Response{Code: "card_type"}).Because(errors.New("not this card")))
	id := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Dead: 1})
	want(dispatcher.Attention{Status: outbox.StatusDead, Now: outbox.StatusDead, Event: "attempt", Code: "card_type", Error: "not this card"})
	if err := outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	b.drain(d)
	if len(got) > 0 {
		t.Errorf("a dead intent that stays dead was told again: %+v", got)
	}
	if err := outbox.Cancel(b.ctx, b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.drain(d)
	want(dispatcher.Attention{Status: outbox.StatusCancelled, Now: outbox.StatusCancelled, Event: "cancelled", Actor: by.Actor, Reason: by.Reason})
	b.wantTold(id, "dead cancelled")

	d = b.charges(dispatcher.NonIdempotentWrite, record)
	b.answers(dispatcher.Unknown(dispatcher.Response{Code: "500"}))
	parked := b.insert("charge_card")
	unknown := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Unknown: 2})
	b.exec(`update samekey.outbox_queue set due_at = clock_timestamp() + interval '1 year' where id = $1`, unknown)
	if err := outbox.Resolve(b.ctx, b.db.Pool, unknown, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	b.drain(d)
	want(dispatcher.Attention{Status: outbox.StatusParked, Now: outbox.StatusParked, Event: "resolved", Actor: by.Actor, Reason: by.Reason})
	b.elapse(time.Minute)
	b.expect(d, dispatcher.Summary{Parked: 1})
	b.wantTold(parked, "parked")
	got = nil

	d = b.charges(dispatcher.IrreversibleWrite, record)
	waits := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{AwaitingApproval: 1})
	want(dispatcher.Attention{Status: outbox.StatusAwaitingApproval, Now: outbox.StatusAwaitingApproval, Event: "attempt", Code: "approval"})
	if err := outbox.Reject(b.ctx, b.db.Pool, waits, by); err != nil {
		t.Fatal(err)
	}
	b.drain(d)
	want(dispatcher.Attention{Status: outbox.StatusCancelled, Now: outbox.StatusCancelled, Event: "rejected", Actor: by.Actor, Reason: by.Reason})
	if n := b.events(); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

// The function for "dead" hangs while a person redrives the intent and the vendor takes it. Apply comes after it.
func TestApplyWaitsForEarlierAttention(t *testing.T) {
	b := setupAttended(t)
	hold := newHolding(b)
	b.start(b.charges(dispatcher.IdempotentWrite, withAttention(hold.tell), withApply(tellApply)))
	id := b.insert("charge_card")
	wait(b.bundle, "the function begins", hold.began)
	b.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
	if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.untilStatus(id, "answered")
	b.logs.Wait(b, "the Apply waits for earlier attention events")
	other := b.insert("charge_card") // neither its outcome nor its Apply waits
	b.untilTold(other, "apply:delivered")
	b.wantTold(id, "")
	hold.release()
	b.untilTold(id, "dead apply:delivered")
	b.untilStatus(id, "delivered")
	b.wantHistory(id, "attempt:dead:card_type redriven attempt:delivered:200 apply:delivered:200")
}

// Without an Apply, the intent is delivered before its event is handled. The event is not lost, and tells both.
func TestAttentionAfterDeliveryIsNotLost(t *testing.T) {
	b := setupAttended(t)
	hold := newHolding(b)
	statuses := make(chan string, 10)
	b.start(b.charges(dispatcher.IdempotentWrite, withAttention(
		func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
			if err := hold.tell(ctx, tx, payload, at); err != nil {
				return err
			}
			var now string
			err := tx.QueryRow(ctx, `select coalesce((select status from samekey.outbox_queue where id = $1), 'finished')`, at.ID).Scan(&now)
			statuses <- fmt.Sprintf("%s, then %s, now %s", at.Status, at.Now, now)
			return err
		})))
	id := b.insert("charge_card")
	wait(b.bundle, "the function begins", hold.began)
	b.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
	if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.untilStatus(id, "delivered")
	hold.release()
	if got := wait(b.bundle, "the function ends", statuses); got != "dead, then dead, now finished" {
		t.Error(got)
	}
	b.untilTold(id, "dead")
	b.until("the event is gone", func() bool { return b.events() == 0 })
}

// Each way from rest to Apply, and from one rest to another, with the functions running only afterwards.
func TestEventsOfAnIntentAreInOrder(t *testing.T) {
	for name, test := range map[string]struct {
		class dispatcher.Class
		then  func(*attended, *dispatcher.Dispatcher, uuid.UUID)
		told  string
	}{
		"dead, resolved as delivered": {dispatcher.IdempotentWrite, func(b *attended, _ *dispatcher.Dispatcher, id uuid.UUID) {
			err := outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.Delivered}, by)
			if err != nil {
				b.Fatal(err)
			}
		}, "dead apply:delivered"},
		"dead, redriven, dead, cancelled": {dispatcher.IdempotentWrite, func(b *attended, d *dispatcher.Dispatcher, id uuid.UUID) {
			if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err != nil {
				b.Fatal(err)
			}
			b.expect(d, dispatcher.Summary{Dead: 1})
			if err := outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
				b.Fatal(err)
			}
			if err := outbox.Cancel(b.ctx, b.db.Pool, id, by); err != nil {
				b.Fatal(err)
			}
		}, "dead dead cancelled"},
		"awaiting approval, cancelled": {dispatcher.IrreversibleWrite, func(b *attended, _ *dispatcher.Dispatcher, id uuid.UUID) {
			if err := outbox.Cancel(b.ctx, b.db.Pool, id, by); err != nil {
				b.Fatal(err)
			}
		}, "awaiting_approval cancelled"},
		"awaiting approval, approved, delivered": {dispatcher.IrreversibleWrite, func(b *attended, d *dispatcher.Dispatcher, id uuid.UUID) {
			b.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
			b.approve(id)
			b.drain(d)
		}, "awaiting_approval apply:delivered"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupAttended(t)
			broken := true
			d := b.charges(test.class, withApply(tellApply), withAttention(
				func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
					if broken {
						return errors.New("no such order")
					}
					return tell(ctx, tx, payload, at)
				}))
			id := b.insert("charge_card")
			b.drain(d)
			test.then(b, d, id)
			b.drain(d)
			b.wantTold(id, "")
			broken = false
			b.elapse(backoff)
			b.drain(d)
			b.elapse(backoff)
			b.drain(d)
			b.wantTold(id, test.told)
			if n := b.events(); n != 0 {
				t.Errorf("%d events are left", n)
			}
		})
	}
}

// A successor is the same effect under another id: its Apply, and its own events, come after the events of the intents
// that it replaces.
func TestSuccessorsWaitForEarlierEvents(t *testing.T) {
	for name, test := range map[string]struct {
		answer dispatcher.Outcome
		told   string
	}{
		"delivered": {dispatcher.Delivered(dispatcher.Response{Code: "200"}), "dead cancelled apply:delivered"},
		"dead too":  {dispatcher.Dead(dispatcher.Response{Code: "400"}), "dead cancelled dead"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupAttended(t)
			broken := true
			d := b.charges(dispatcher.IdempotentWrite, withApply(tellApply), withAttention(
				func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
					if broken && at.Event != "replaced" {
						return errors.New("no such order")
					}
					return tell(ctx, tx, payload, at)
				}))
			id := b.insert("charge_card")
			b.drain(d)
			b.answers(test.answer)
			if _, err := outbox.Replace(b.ctx, b.db.Pool, id, outbox.Replacement{}, by); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				b.drain(d)
				b.elapse(backoff)
				broken = false
			}
			if told := value[string](b.bundle, `select coalesce(string_agg(what, ' ' order by n), '') from told`); told != test.told {
				t.Errorf("the application was told %q, want %q", told, test.told)
			}
			if n := b.events(); n != 0 {
				t.Errorf("%d events are left", n)
			}
		})
	}
}

// A worker was taken for dead, and its intent with it. Its answer comes after all, before the application was told of
// the death.
func TestLateAnswerFollowsTheDeath(t *testing.T) {
	b := setupAttended(t)
	hold := newHolding(b)
	b.start(b.charges(dispatcher.IdempotentWrite, withAttention(hold.tell), withApply(tellApply)))
	id := b.insert("charge_card")
	wait(b.bundle, "the function begins", hold.began)
	b.exec(`update samekey.outbox_queue set status = 'answered', attempt = attempt + 1, due_at = clock_timestamp() where id = $1`, id)
	b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, code, attempt, worker) values ($1, 'late', 'delivered', '200', 1, 1)`, id)
	b.logs.Wait(b, "the Apply waits for earlier attention events")
	b.wantTold(id, "")
	hold.release()
	b.untilTold(id, "dead apply:delivered")
}

func TestFailedAttentionIsRetriedWithAlarm(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error":  func() error { return errors.New("no such order") },
		"panic":  func() error { panic("no such order") },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := setupAttended(t)
			broken, calls := true, 0
			d := b.charges(dispatcher.IdempotentWrite, withAttention(
				func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
					calls++
					if err := tell(ctx, tx, payload, at); err != nil || !broken {
						return err
					}
					return fail()
				}))
			id := b.insert("charge_card")
			b.expect(d, dispatcher.Summary{Dead: 1})
			b.drain(d)
			if calls != 1 {
				t.Errorf("the function was called %d times before its backoff was over", calls)
			}
			b.wantTold(id, "")
			b.logs.Wait(b, "level=ERROR msg=\"dispatcher: Attention failed")
			b.elapse(backoff)
			b.drain(d)
			if n := b.count(`select attempts_used from samekey.outbox_attention`); n != 2 || calls != 2 {
				t.Errorf("%d calls, %d of them counted, want 2", calls, n)
			}
			broken = false
			b.elapse(backoff)
			b.drain(d)
			b.wantTold(id, "dead")
			if n := b.events(); n != 0 {
				t.Errorf("%d events are left", n)
			}
		})
	}
}

func TestAttentionOfPayloadThatDoesNotDecode(t *testing.T) {
	b := setupAttended(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	dispatcher.Handle(d, outbox.NewAction[charge]("charge_card"), dispatcher.Delivery[charge]{
		Policy: policyOf(dispatcher.IdempotentWrite),
		Send: func(ctx context.Context, call *dispatcher.Call, _ charge) (dispatcher.Outcome, error) {
			return b.send(ctx, call)
		},
		Attention: func(ctx context.Context, tx pgx.Tx, payload charge, at dispatcher.Attention) error {
			if payload != (charge{}) || at.PayloadError == nil || string(at.Payload) != `{"amount":"b","order":"a"}` {
				t.Errorf("the function got %+v, %v, %s", payload, at.PayloadError, at.Payload)
			}
			return tell(ctx, tx, at.Payload, at)
		},
	})
	id := b.insert("charge_card", func(in *outbox.Intent) { in.Payload = map[string]string{"order": "a", "amount": "b"} })
	b.expect(d, dispatcher.Summary{Dead: 1})
	b.wantTold(id, "dead")
}

// A person cancels an intent in psql. No worker and no code of the application is involved.
func TestAttentionOfCancelInPsql(t *testing.T) {
	b := setupAttended(t)
	d := b.charges(dispatcher.IdempotentWrite, withAttention(tell))
	b.drain(d)
	id := b.insert("charge_card")
	b.exec(`select samekey.cancel($1, 'ann', 'ordered by mistake')`, id)
	if n := b.events(); n != 1 {
		t.Fatalf("%d events", n)
	}
	tx, err := b.db.Begin(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	undone := b.insert("charge_card", func(in *outbox.Intent) { in.DueAt = time.Now().Add(time.Hour) })
	if _, err := tx.Exec(b.ctx, `select samekey.cancel($1, 'ann', 'ordered by mistake')`, undone); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.start(d)
	b.untilTold(id, "cancelled")
	b.wantTold(undone, "")
	if n := b.events(); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

// Functions that hang hold up neither outcomes, nor Applies, nor another action's functions.
func TestHangingAttentionHoldsUpNothingElse(t *testing.T) {
	b := setupAttended(t)
	hold := newHolding(b)
	d := b.charges(dispatcher.IdempotentWrite, withAttention(hold.tell), withApply(tellApply))
	handle(d, "refund", policyOf(dispatcher.IdempotentWrite), b.send, withAttention(tell))
	b.insertMany("charge_card", 30)
	b.start(d)
	wait(b.bundle, "a function begins", hold.began)
	b.until("all are dead", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where status = 'dead'`) == 30
	})
	b.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
	delivered := b.insert("charge_card")
	b.untilTold(delivered, "apply:delivered")
	b.answers(dispatcher.Dead(dispatcher.Response{Code: "400"}))
	refund := b.insert("refund")
	b.untilTold(refund, "dead")
	if n := b.count(`select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`); n > 4 {
		t.Errorf("%d functions of an action run", n)
	}
	hold.release()
	b.until("all are told", func() bool { return b.events() == 0 })
	if n := b.count(`select count(*) from told where what = 'dead'`); n != 31 {
		t.Errorf("the application was told %d times, want 31", n)
	}
}

func TestTwoWorkersShareAttention(t *testing.T) {
	b := setupAttended(t)
	var at sync.Map
	b.exec(`select samekey.enqueue('tenant/bulk', 'bulk-' || g, 'charge_card', convert_to('{}', 'UTF8')) from generate_series(1, 60) g`)
	running := func(ctx context.Context, tx pgx.Tx, payload []byte, e dispatcher.Attention) error {
		if _, twice := at.LoadOrStore(e.ID, true); twice {
			t.Error("two events of an intent run at once")
		}
		defer at.Delete(e.ID)
		return tell(ctx, tx, payload, e)
	}
	b.expect(b.charges(dispatcher.IdempotentWrite), dispatcher.Summary{Dead: 60}) // registers no function: no events
	if n := b.events(); n != 0 {
		t.Fatalf("%d events of an action without a function", n)
	}
	for range 3 {
		b.exec(`insert into samekey.outbox_attention (intent_id, first_id, action, status, event) select id, id, action, 'dead', 'attempt' from samekey.outbox_queue`)
	}
	b.start(b.charges(dispatcher.IdempotentWrite, withAttention(running)))
	b.start(b.charges(dispatcher.IdempotentWrite, withAttention(running)))
	b.until("all are told", func() bool { return b.events() == 0 })
	if n := b.count(`select count(*) from told`); n != 180 {
		t.Errorf("the application was told %d times, want 180", n)
	}
}

// A worker without the function, which restarts in a rollout, loses no event. The events end when no worker has had the
// function for ten minutes.
func TestAttentionEndsAfterTenMinutesWithoutFunction(t *testing.T) {
	b := setupAttended(t)
	flagged := func() bool {
		return value[bool](b.bundle, `select attention from samekey.actions where action = 'charge_card'`)
	}
	with := b.start(b.charges(dispatcher.IdempotentWrite, withApply(tellApply), withAttention(tell)))
	if !flagged() {
		t.Error("the action's function is not registered")
	}
	_ = with.stop()
	b.start(b.charges(dispatcher.IdempotentWrite, withApply(tellApply)))
	first := b.insert("charge_card")
	b.untilStatus(first, "dead")
	if n := b.events(); n != 1 {
		t.Errorf("%d events while no worker has the function, want 1", n)
	}
	samekeytest.Elapse(t, b.db, 11*time.Minute)
	b.until("a heartbeat ends the events", func() bool { return !flagged() })
	second := b.insert("charge_card")
	b.untilStatus(second, "dead")
	if n := b.events(); n != 1 {
		t.Errorf("%d events, want the first alone", n)
	}
	// Nothing waits for the first event any more.
	if err := outbox.Resolve(b.ctx, b.db.Pool, first, outbox.Resolution{Outcome: outbox.Delivered}, by); err != nil {
		t.Fatal(err)
	}
	b.untilTold(first, "apply:delivered")
	b.start(b.charges(dispatcher.IdempotentWrite, withApply(tellApply), withAttention(tell)))
	b.untilTold(first, "apply:delivered dead")
	b.exec(`update samekey.actions set attention = false`)
	b.until("a heartbeat of a worker with the function begins the events again", flagged)
	b.wantTold(second, "")
}

func TestAttentionWaitsForAWorkerThatHasTheFunction(t *testing.T) {
	b := setupAttended(t)
	without := b.start(b.charges(dispatcher.IdempotentWrite, withApply(tellApply)))
	b.exec(`update samekey.actions set attention = true`)
	id := b.insert("charge_card")
	b.untilStatus(id, "dead")
	b.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
	if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.logs.Wait(b, "the Apply waits for earlier attention events")
	_ = without.stop()
	b.start(b.charges(dispatcher.IdempotentWrite, withApply(tellApply), withAttention(tell)))
	b.untilTold(id, "dead apply:delivered")
}

func TestAttentionInsertsUnderTheRequestsKey(t *testing.T) {
	b := setupAttended(t)
	d := b.charges(dispatcher.IdempotentWrite, withAttention(func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
		_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "warn_customer", Payload: payload})
		return err
	}))
	handle(d, "warn_customer", policyOf(dispatcher.IdempotentWrite), b.post)
	b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Dead: 1, Delivered: 1})
	if n := b.count(`select count(distinct (scope, idem_key)) from samekey.outbox`); n != 1 {
		t.Errorf("the two intents have %d keys, want the request's", n)
	}
}

func TestAttentionThatEndsItsTransaction(t *testing.T) {
	for statement, told := range map[string]string{"commit": "dead", "rollback": ""} {
		t.Run(statement, func(t *testing.T) {
			b := setupAttended(t)
			d := b.charges(dispatcher.IdempotentWrite, withAttention(func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
				if _, err := tx.Exec(ctx, statement); err == nil {
					t.Errorf("%s was not refused", statement)
				}
				if err := tell(ctx, tx, payload, at); err != nil {
					return err
				}
				_, err := tx.Conn().Exec(ctx, "select; "+statement, pgx.QueryExecModeSimpleProtocol)
				return err
			}))
			id := b.insert("charge_card")
			b.expect(d, dispatcher.Summary{Dead: 1})
			b.elapse(backoff)
			b.drain(d)
			b.wantTold(id, told)
			if n := b.events(); (n == 0) != (told != "") {
				t.Errorf("%d events are left", n)
			}
		})
	}
}

func TestPausedActionsEventsWait(t *testing.T) {
	b := setupAttended(t)
	d := b.charges(dispatcher.IdempotentWrite, withAttention(tell))
	b.start(d)
	if err := outbox.Pause(b.ctx, b.db.Pool, outbox.Target{Destination: "vendor"}, time.Time{}, by); err != nil {
		t.Fatal(err)
	}
	b.logs.Wait(b, "paused: nothing is claimed")
	id := b.insert("charge_card")
	if err := outbox.Cancel(b.ctx, b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	swept := d.Swept()
	b.until("three sweeps", func() bool { return d.Swept().Sub(swept) > 150*time.Millisecond })
	b.wantTold(id, "")
	if err := outbox.Resume(b.ctx, b.db.Pool, outbox.Target{Destination: "vendor"}, by); err != nil {
		t.Fatal(err)
	}
	b.untilTold(id, "cancelled")
}

func TestStopWaitsForRunningAttention(t *testing.T) {
	b := setupAttended(t)
	hold := newHolding(b)
	running := b.start(b.charges(dispatcher.IdempotentWrite, withAttention(hold.tell)))
	id := b.insert("charge_card")
	wait(b.bundle, "the function begins", hold.began)
	stopped := make(chan error, 1)
	go func() { stopped <- running.stop() }()
	b.until("the dispatcher stops", func() bool { return running.d.Ready() != nil })
	hold.release()
	if err := wait(b.bundle, "it has stopped", stopped); err != nil {
		t.Fatal(err)
	}
	b.wantTold(id, "dead")
}

func TestUnreadableAttentionRaisesTheAlarm(t *testing.T) {
	b := setupAttended(t)
	d := b.charges(dispatcher.IdempotentWrite, withAttention(tell))
	d.SetAlarmAfter(700 * time.Millisecond)
	b.start(d)
	id := b.insert("charge_card")
	b.untilTold(id, "dead")
	b.exec(`alter table samekey.outbox_sends rename column request to away`) // loading the intent fails
	b.exec(`insert into samekey.outbox_attention (intent_id, first_id, action, status, event) values ($1, $1, 'charge_card', 'dead', 'attempt')`, id)
	b.until("the alarm", func() bool {
		err := d.Ready()
		return err != nil && strings.Contains(err.Error(), "attention events are not handled")
	})
	other, err := b.db.Begin(b.ctx) // a try that has the event: the worker's own find nothing, and no error
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(b.ctx) }()
	if _, err := other.Exec(b.ctx, `select from samekey.outbox_attention for update`); err != nil {
		t.Fatal(err)
	}
	b.sweeps(d, 300*time.Millisecond)
	if d.Ready() == nil {
		t.Error("the alarm ended while another try had the event")
	}
	if err := other.Rollback(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.exec(`alter table samekey.outbox_sends rename column away to request`)
	b.untilTold(id, "dead dead")
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}

// Of two tries at the same time, the one that fails ends after the one that takes the last event.
func TestAttentionAlarmEndsWhenNothingIsDue(t *testing.T) {
	b := setupAttended(t)
	d := b.charges(dispatcher.IdempotentWrite, withAttention(tell))
	d.SetAlarmAfter(time.Nanosecond)
	b.start(d)
	b.until("it is ready", func() bool { return d.Ready() == nil })
	b.until("the alarm", func() bool { d.FailAttention(errors.New("reset")); return d.Ready() != nil })
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}

// boundaries are the places at which a worker is killed. Each waits for a lock that the test holds: in the function of
// the worker's process, or in a trigger.
var boundaries = []struct{ name, point, trigger string }{
	{"while the event is written", "", `create trigger stop after insert on samekey.outbox_attention for each row execute function stop()`},
	{"as the function begins", "begins", ""},
	{"after the function has written its rows", "wrote", ""},
	{"while the event is deleted", "", `create trigger stop after delete on samekey.outbox_attention for each row execute function stop()`},
	{"during the commit", "", `create constraint trigger stop after delete on samekey.outbox_attention deferrable initially deferred for each row execute function stop()`},
}

const stopLock = 4711

func TestKilledAtEachBoundaryOfAttention(t *testing.T) {
	for _, at := range boundaries {
		t.Run(at.name, func(t *testing.T) {
			b := setupAttended(t)
			b.exec(fmt.Sprintf(`create function stop() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(%d); return null; end $$`, stopLock))
			if at.trigger != "" {
				b.exec(at.trigger)
			}
			holder, err := pgx.Connect(b.ctx, b.db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = holder.Close(context.WithoutCancel(b.ctx)) }()
			if _, err := holder.Exec(b.ctx, `select pg_advisory_lock($1)`, stopLock); err != nil {
				t.Fatal(err)
			}
			worker := b.startWorker(workerSettings{Class: dispatcher.IdempotentWrite, Timeout: 50 * time.Second, Attention: true, StopAt: at.point})
			b.until("the worker is there", func() bool { return b.count(`select count(*) from samekey.actions where attention`) == 1 })
			b.vendor.Next("400")
			id := b.insert("charge_card")
			b.until("the worker waits", func() bool {
				return b.count(`select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = $1
					and database = (select oid from pg_database where datname = current_database())`, stopLock) > 0
			})
			worker.kill()
			if _, err := holder.Exec(b.ctx, `select pg_advisory_unlock($1)`, stopLock); err != nil {
				t.Fatal(err)
			}
			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), postTo(&http.Client{}, b.vendor.URL), withAttention(tell))
			b.start(d)
			b.untilTold(id, "dead")
			b.until("the event is gone", func() bool { return b.events() == 0 })
			b.wantTold(id, "dead")
		})
	}
}

// attend is the Attention function of the worker in a process of its own.
func attend(stopAt string) option {
	stop := func(ctx context.Context, tx pgx.Tx, point string) error {
		if point != stopAt {
			return nil
		}
		_, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1)`, stopLock)
		return err
	}
	return withAttention(func(ctx context.Context, tx pgx.Tx, payload []byte, at dispatcher.Attention) error {
		if err := stop(ctx, tx, "begins"); err != nil {
			return err
		}
		if err := tell(ctx, tx, payload, at); err != nil {
			return err
		}
		return stop(ctx, tx, "wrote")
	})
}
