package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/outbox"
)

// announced collects the ids that workers announce.
type announced struct {
	mu  sync.Mutex
	ids map[uuid.UUID]int
}

func (b *bundle) announced() *announced {
	b.Helper()
	conn, err := pgx.Connect(b.ctx, b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	dbtest.Exec(b, conn, "listen "+wake.Ended)
	a, ctx, ended := &announced{ids: map[uuid.UUID]int{}}, b.ctx, make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	b.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		defer func() { _ = conn.Close(context.Background()) }()
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			a.mu.Lock()
			for id := range strings.SplitSeq(n.Payload, ",") {
				a.ids[uuid.MustParse(id)]++
			}
			a.mu.Unlock()
		}
	}()
	return a
}

func (a *announced) has(id uuid.UUID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids[id] > 0
}

func (b *bundle) untilAnnounced(a *announced, id uuid.UUID) {
	b.Helper()
	b.until("the intent is announced", func() bool { return a.has(id) })
}

// awaits tells the workers that ends of the action are awaited, and returns once one is announced.
func (b *bundle) awaits(a *announced, action string) {
	b.Helper()
	b.until("ends are announced", func() bool {
		wake.Await(b.db.Pool, action)
		id := b.insert(action)
		b.untilStatus(id, "delivered")
		return a.has(id)
	})
}

func TestAwaitedEndsAreAnnounced(t *testing.T) {
	b := setup(t)
	a := b.announced()
	d := b.dispatcher()
	outcomes := make(chan dispatcher.Outcome, 1)
	next := func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		select {
		case o := <-outcomes:
			return o, nil
		default:
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		}
	}
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), next)
	handle(d, "pay_out", policyOf(dispatcher.NonIdempotentWrite), next, withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error { return nil }))
	handle(d, "wire", policyOf(dispatcher.IrreversibleWrite), next)
	handle(d, "send_mail", policyOf(dispatcher.IdempotentWrite), next)
	b.start(d)

	early := b.insert("charge_card")
	b.untilStatus(early, "delivered")
	b.awaits(a, "charge_card")
	b.awaits(a, "pay_out")
	wake.Await(b.db.Pool, "wire", "another workers action")
	silent := []uuid.UUID{early}

	for _, end := range []struct {
		action, status string
		outcome        dispatcher.Outcome
		change         []func(*outbox.Intent)
		announced      bool
	}{
		{"charge_card", "delivered", dispatcher.Delivered(dispatcher.Response{}), nil, true},
		{"charge_card", "delivered", dispatcher.Delivered(dispatcher.Response{}), []func(*outbox.Intent){ordered("order-1")}, true},
		{"charge_card", "refused", dispatcher.Refused(dispatcher.Response{}), nil, true},
		{"charge_card", "dead", dispatcher.Dead(dispatcher.Response{}), nil, true},
		{"charge_card", "pending", dispatcher.Retry(dispatcher.Response{}), nil, false},
		{"pay_out", "delivered", dispatcher.Delivered(dispatcher.Response{}), nil, true}, // after its Apply
		{"pay_out", "parked", dispatcher.Stuck(dispatcher.Response{}), nil, true},
		{"send_mail", "delivered", dispatcher.Delivered(dispatcher.Response{}), nil, false}, // of no interest
	} {
		outcomes <- end.outcome
		id := b.insert(end.action, end.change...)
		b.untilStatus(id, end.status)
		if !end.announced {
			silent = append(silent, id)
			continue
		}
		b.untilAnnounced(a, id)
	}
	wired := b.insert("wire")
	b.untilStatus(wired, "awaiting_approval")
	b.untilAnnounced(a, wired)

	last := b.insert("charge_card")
	b.untilAnnounced(a, last) // after all others
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range silent {
		if a.ids[id] > 0 {
			t.Errorf("announced: %s", b.history(id))
		}
	}
	for id, n := range a.ids {
		if n != 1 {
			t.Errorf("announced %d times: %s", n, b.history(id))
		}
	}
}

// Await returns when the rows of Apply are there, and not when the vendor has answered.
func TestAwaitReturnsAfterTheCommitOfApply(t *testing.T) {
	b := setup(t)
	b.applied()
	applying, proceed := make(chan struct{}), make(chan struct{})
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(func(ctx context.Context, tx pgx.Tx, payload []byte, o dispatcher.Settled) error {
		if err := recordPayment(ctx, tx, payload, o); err != nil {
			return err
		}
		close(applying)
		select {
		case <-proceed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	b.start(d)
	b.vendor.Next("402")
	service := dbtest.Pool(b, b.db.DSN)
	key := dbtest.Key(b, "order-1", "tenant", "orders.create")
	id := b.insert("charge_card")

	type answer struct {
		outbox.Awaited
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		got, err := outbox.Await(b.ctx, service, key, id)
		answers <- answer{got, err}
	}()
	wait(b, "Apply runs", applying)
	if r, err := outbox.Await(expired(b), service, key, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while Apply runs: %+v, %v", r, err)
	}
	select {
	case r := <-answers:
		t.Fatalf("returned before the commit: %+v", r)
	default:
	}
	close(proceed)
	if r := wait(b, "the answer", answers); r.err != nil || r.Status != outbox.StatusRefused || r.Code != "402" {
		t.Errorf("got %+v", r)
	}
	if got := value[string](b, `select state from payments where intent = $1`, id); got != "declined" {
		t.Errorf("the payment is %q", got)
	}
	service.Close() // nothing holds a connection
}

// expired is a context that ends soon.
func expired(b *bundle) context.Context {
	ctx, cancel := context.WithTimeout(b.ctx, 200*time.Millisecond)
	b.Cleanup(cancel)
	return ctx
}
