package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// recorder is a handler that records deliveries in order. fail says which attempts fail.
type recorder struct {
	mu   sync.Mutex
	done []string
	fail func(call *dispatcher.Call, payload string) error
}

// errDead makes the recorder return Dead.
var errDead = errors.New("dead")

func (r *recorder) handle(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	payload := string(call.Payload)
	if r.fail != nil {
		switch err := r.fail(call, payload); {
		case errors.Is(err, errDead):
			return dispatcher.Dead(dispatcher.Response{}), nil
		case err != nil:
			return dispatcher.Outcome{}, err
		}
	}
	r.done = append(r.done, payload)
	return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
}

func (r *recorder) delivered() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.done)
}

// wantOrder fails unless all payloads that begin with the key were delivered, in the order of their numbers.
func (r *recorder) wantOrder(b *bundle, key string, n int) {
	b.Helper()
	var got, want []string
	for _, payload := range r.delivered() {
		if strings.HasPrefix(payload, `"`+key+"/") {
			got = append(got, payload)
		}
	}
	for i := range n {
		want = append(want, fmt.Sprintf(`"%s/%d"`, key, i))
	}
	if !slices.Equal(got, want) {
		b.Errorf("key %s was delivered in the order %v, want %v", key, got, want)
	}
}

// insertOrdered commits n intents of one ordering key, each in its own transaction.
func (b *bundle) insertOrdered(key string, n int) (ids []uuid.UUID) {
	b.Helper()
	for i := range n {
		ids = append(ids, b.insert("charge_card", ordered(key), func(in *outbox.Intent) { in.Payload = []byte(fmt.Sprintf("%q", fmt.Sprintf("%s/%d", key, i))) }))
	}
	return ids
}

// recorded returns a dispatcher whose charge_card is recorded.
func (b *bundle) recorded(r *recorder, change func(*dispatcher.Policy)) *dispatcher.Dispatcher {
	p := policyOf(dispatcher.IdempotentWrite)
	if change != nil {
		change(&p)
	}
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", p, r.handle)
	return d
}

func quick(p *dispatcher.Policy) { p.Backoff, p.MaxBackoff = 5*time.Millisecond, 50*time.Millisecond }

func TestOrderingKeyKeepsItsOrderAcrossRetries(t *testing.T) {
	b := setup(t)
	failures, others := 0, 0
	r := &recorder{fail: func(_ *dispatcher.Call, payload string) error {
		if payload == `"b/3"` {
			others++
		}
		// The head of key a fails until key b is done, and then once more at each step.
		if payload == `"a/0"` && others == 0 {
			return errors.New("reset")
		}
		if failures < 3 && strings.HasPrefix(payload, `"a/`) {
			failures++
			return errors.New("reset")
		}
		return nil
	}}
	b.insertOrdered("a", 4)
	b.insertOrdered("b", 4)
	b.start(b.recorded(r, quick))
	b.untilFinished()
	r.wantOrder(b, "a", 4)
	r.wantOrder(b, "b", 4)
}

func TestDeadHeadBlocksOnlyItsKey(t *testing.T) {
	for name, decide := range map[string]func(b *bundle, id uuid.UUID) error{
		"redrive": func(b *bundle, id uuid.UUID) error { return outbox.Redrive(b.ctx, b.db.Pool, id, by) },
		"cancel": func(b *bundle, id uuid.UUID) error {
			notSent := outbox.Resolution{Outcome: outbox.NotSent}
			return errors.Join(outbox.Resolve(b.ctx, b.db.Pool, id, notSent, by), outbox.Cancel(b.ctx, b.db.Pool, id, by))
		},
		"resolve": func(b *bundle, id uuid.UUID) error {
			return outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.Delivered}, by)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			broken := true
			r := &recorder{fail: func(_ *dispatcher.Call, payload string) error {
				if payload == `"a/0"` && broken {
					return errDead
				}
				return nil
			}}
			d := b.recorded(r, nil)
			ids := b.insertOrdered("a", 3)
			b.insertOrdered("b", 2)
			b.expect(d, dispatcher.Summary{Delivered: 2, Dead: 1})
			b.elapse(time.Hour)
			b.expect(d, nothing)
			broken = false
			if err := decide(b, ids[0]); err != nil {
				t.Fatal(err)
			}
			b.drain(d)
			b.wantStatus(ids[1], "delivered")
			b.wantStatus(ids[2], "delivered")
			if name == "redrive" {
				r.wantOrder(b, "a", 3)
			}
		})
	}
}

func TestPassFailedContinuesPastDeadOrParked(t *testing.T) {
	for state, class := range map[string]dispatcher.Class{"dead": dispatcher.IdempotentWrite, "parked": dispatcher.NonIdempotentWrite} {
		t.Run(state, func(t *testing.T) {
			b := setup(t)
			r := &recorder{fail: func(_ *dispatcher.Call, payload string) error {
				if payload == `"a/0"` {
					return errors.New("reset")
				}
				return nil
			}}
			d := b.recorded(r, func(p *dispatcher.Policy) {
				*p = policyOf(class)
				p.Attempts, p.PassFailed = 1, true
			})
			ids := b.insertOrdered("a", 3)
			b.drain(d)
			b.elapse(settling)
			b.drain(d)
			b.wantStatus(ids[0], state)
			b.wantStatus(ids[1], "delivered")
			b.wantStatus(ids[2], "delivered")
		})
	}
}

func TestKilledWorkersOrderingKeyKeepsItsOrder(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, nil)
	ids := []uuid.UUID{b.insert("charge_card", ordered("a")), b.insert("charge_card", ordered("a")), b.insert("charge_card", ordered("a"))}
	b.killInTheCall(dispatcher.IdempotentWrite)
	b.expect(d, dispatcher.Summary{Delivered: 3})
	b.wantCalls(4)
	var want []string
	for _, id := range []uuid.UUID{ids[0], ids[0], ids[1], ids[2]} {
		want = append(want, b.deliveryKey(id))
	}
	var got []string
	for _, call := range b.vendor.Ledger().Calls {
		got = append(got, call.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the vendor saw %v, want %v", got, want)
	}
	samekeytest.AssertEffects(t, b.vendor, 3)
}

func TestManyOrderingKeysKeepOrderWithTwoWorkers(t *testing.T) {
	b := setup(t)
	r := &recorder{fail: func(call *dispatcher.Call, _ string) error {
		if call.Attempt == 1 && call.ID[15]%4 == 0 {
			return errors.New("reset")
		}
		return nil
	}}
	b.start(b.recorded(r, quick))
	b.start(b.recorded(r, quick))
	const keys, each = 12, 6
	var writers sync.WaitGroup
	for k := range keys {
		writers.Go(func() {
			for i := range each {
				_, err := b.db.Exec(b.ctx, `select samekey.enqueue('tenant/orders', $1 || '/' || $2::int, 'charge_card',
					convert_to('"' || $1 || '/' || $2::int || '"', 'UTF8'), ordering_key => $1)`, fmt.Sprint("key", k), i)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	b.untilFinished()
	for k := range keys {
		r.wantOrder(b, fmt.Sprint("key", k), each)
	}
}

func TestHeadlessOrderingKeyIsPromoted(t *testing.T) {
	b := setup(t)
	r := &recorder{}
	ids := b.insertOrdered("a", 3)
	b.insertOrdered("b", 1)
	b.exec(`delete from samekey.outbox_queue where id = $1`, ids[0])
	b.start(b.recorded(r, nil))
	b.untilFinished()
	b.wantStatus(ids[1], "delivered")
	b.wantStatus(ids[2], "delivered")
}

func TestManyBehindAFailingHeadDoNotDelayOtherKeys(t *testing.T) {
	b := setup(t)
	r := &recorder{fail: func(_ *dispatcher.Call, payload string) error {
		if payload == `"a/0"` {
			return errors.New("reset")
		}
		return nil
	}}
	head := b.insertOrdered("a", 1)[0]
	b.exec(`insert into samekey.outbox_queue (id, action, status, due_at, ordering_key)
		select gen_random_uuid(), 'charge_card', 'blocked', clock_timestamp() - interval '1 hour', 'a' from generate_series(1, 100000)`)
	b.start(b.recorded(r, quick))
	b.until("the head has failed a few times", func() bool { return strings.Count(b.history(head), "attempt:unknown") > 2 })
	b.insertOrdered("b", 5)
	b.insertManyMore("charge_card", 50)
	b.until("the others are delivered", func() bool { return len(r.delivered()) == 55 })
	r.wantOrder(b, "b", 5)
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'blocked'`); n != 100_000 {
		t.Errorf("%d intents still wait behind the head, want all", n)
	}
}
