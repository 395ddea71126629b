package outbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func begin(t testing.TB, on *samekeytest.DB) pgx.Tx {
	t.Helper()
	tx, err := on.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestDecisionsAboutALeasedIntentAreRefused(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	c := w.claimOne("charge_card", false)
	for verb, do := range verbs {
		refusedAs(t, verb, do(t.Context(), on, id), outbox.StatusLeased)
	}
	if n, err := outbox.RedriveAll(outbox.Filter{}, ada).Run(t.Context(), on); n != 0 || err != nil {
		t.Errorf("RedriveAll: %d, %v", n, err)
	}
	if n := w.settle(c, outbox.StatusDelivered, "delivered", "200"); n != 1 {
		t.Error("the worker's settle matched nothing")
	}
}

func TestADecisionWaitsForAClaimThatIsUnderWayAndSeesIt(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	tx := begin(t, on)
	if n := len(w.claim(db.New(tx), "charge_card", false)); n != 1 {
		t.Fatalf("claimed %d", n)
	}
	cancelled := make(chan error, 1)
	go func() { cancelled <- outbox.Cancel(t.Context(), on, id, ada) }()
	eventually(t, "the cancel waits for the claim", func() bool { return waiting(t, on) == 1 })
	commit(t, tx)
	refusedAs(t, "cancel", <-cancelled, outbox.StatusLeased)
}

func TestAClaimSkipsAnIntentThatAPersonIsDecidingAbout(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	tx := begin(t, on)
	if err := outbox.Cancel(t.Context(), tx, id, ada); err != nil {
		t.Fatal(err)
	}
	if n := len(w.claim(nil, "charge_card", false)); n != 0 {
		t.Errorf("claimed %d intents that are being cancelled", n)
	}
	commit(t, tx)
	if e := get(t, on, id); e.Status != outbox.StatusCancelled {
		t.Errorf("it is %s", e.Status)
	}
}

func TestLookupOvertakenByADecisionSettlesNothing(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	for verb, want := range map[string]outbox.Status{"resolve delivered": outbox.StatusAnswered, "resolve not sent": outbox.StatusParked} {
		id := insert(t, on, outbox.Intent{Action: strings.ReplaceAll(verb, " ", "_")})
		w.settle(w.claimOne(strings.ReplaceAll(verb, " ", "_"), false), outbox.StatusUnknown, "unknown", "timeout")
		lookup := w.claimOne(strings.ReplaceAll(verb, " ", "_"), false)
		if err := verbs[verb](t.Context(), on, id); err != nil {
			t.Fatal(err)
		}
		if n := w.settle(lookup, outbox.StatusPending, "absent", ""); n != 0 {
			t.Errorf("%s: the lookup changed what the person decided", verb)
		}
		if e := get(t, on, id); e.Status != want || e.LeasedBy != 0 {
			t.Errorf("%s: it is %s, held by %d", verb, e.Status, e.LeasedBy)
		}
	}
}

func TestSettleAfterADecisionMatchesNothing(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	w.settle(w.claimOne("charge_card", false), outbox.StatusUnknown, "unknown", "timeout")
	lookup := w.claimOne("charge_card", false)
	tx := begin(t, on)
	if err := verbs["resolve refused"](t.Context(), tx, id); err != nil {
		t.Fatal(err)
	}
	settled := make(chan int, 1)
	go func() { settled <- w.settle(lookup, outbox.StatusParked, "unknown", "") }()
	eventually(t, "the settle waits for the decision", func() bool { return waiting(t, on) == 1 })
	commit(t, tx)
	if n := <-settled; n != 0 {
		t.Error("the settle matched")
	}
	if e := get(t, on, id); e.Status != outbox.StatusAnswered {
		t.Errorf("it is %s, want answered", e.Status)
	}
}

func TestLateAnswerResolvesParkedButNotRedriven(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	zombie := newWorker(t, on, 2)
	for _, redriven := range []bool{false, true} {
		action := map[bool]string{false: "wire_money", true: "wire_more"}[redriven]
		id := insert(t, on, outbox.Intent{Action: action})
		c := zombie.claimOne(action, false)
		if _, err := on.Exec(t.Context(), "update samekey.outbox_queue set lease_until = clock_timestamp() where id = $1", id); err != nil {
			t.Fatal(err)
		}
		if _, err := w.q.OutboxQueueRelease(t.Context(), db.OutboxQueueReleaseParams{Holder: 2, MaxCount: 10}); err != nil {
			t.Fatal(err)
		}
		if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.NotSent}, ada); err != nil {
			t.Fatal(err)
		}
		want := outbox.StatusAnswered
		if redriven {
			want = outbox.StatusPending
			if err := outbox.Redrive(t.Context(), on, id, ada); err != nil {
				t.Fatal(err)
			}
		}
		if n := zombie.settle(c, outbox.StatusDelivered, "delivered", "200"); n != 0 {
			t.Error("the zombie's settle matched")
		}
		resolved, logged := zombie.late(c, "delivered")
		if (resolved == 1) == redriven || logged != 1 {
			t.Errorf("redriven %v: resolved %d, logged %d", redriven, resolved, logged)
		}
		if e := get(t, on, id); e.Status != want {
			t.Errorf("redriven %v: it is %s, want %s", redriven, e.Status, want)
		}
	}
}

func TestResolvedUnsentIntentDoesNotBlockClaims(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	force(t, on, id, outbox.StatusDead, false, false)
	if err := verbs["resolve delivered"](t.Context(), on, id); err != nil {
		t.Fatal(err)
	}
	insert(t, on, outbox.Intent{Action: "charge_card"})
	if called, answered := len(w.claim(nil, "charge_card", false)), len(w.claimAnswered("charge_card")); called != 1 || answered != 1 {
		t.Errorf("claimed %d to be called and %d to be applied, want one of each", called, answered)
	}
}

func TestOfTwoPeopleAtOnceOneDecides(t *testing.T) {
	on := newGuardedDB(t)
	for range 10 {
		for pair, status := range map[[2]string]outbox.Status{
			{"approve", "reject"}:                    outbox.StatusAwaitingApproval,
			{"redrive", "redrive"}:                   outbox.StatusDead,
			{"redrive", "cancel"}:                    outbox.StatusParked,
			{"resolve delivered", "resolve refused"}: outbox.StatusUnknown,
		} {
			id := insert(t, on, outbox.Intent{Action: "charge_card", OrderingKey: uuid.NewString()})
			force(t, on, id, status, false, false)
			var both sync.WaitGroup
			errs := make([]error, 2)
			start := make(chan struct{})
			for i, verb := range pair {
				both.Go(func() {
					<-start
					errs[i] = verbs[verb](t.Context(), on, id)
				})
			}
			close(start)
			both.Wait()
			told := 0
			for _, err := range errs {
				var state *outbox.StateError
				if errors.As(err, &state) {
					told++
				} else if err != nil {
					t.Errorf("%v: %v", pair, err)
				}
			}
			e := get(t, on, id)
			// A redrive that came first makes it pending and unsent, which may be cancelled: both decide, in order.
			inOrder := pair[1] == "cancel" && told == 0 && e.Status == outbox.StatusCancelled && len(e.History) == 2
			if !inOrder && (told != 1 || len(e.History) != 1) {
				t.Errorf("%v: %d were told, the history has %d events, it is %s", pair, told, len(e.History), e.Status)
			}
		}
	}
}

func TestCancelTakesTheOrderingLockBeforeTheRowAsASettleDoes(t *testing.T) {
	on := newGuardedDB(t)
	head := insert(t, on, outbox.Intent{Action: "a", OrderingKey: "order-1"})
	next := insert(t, on, outbox.Intent{Action: "b", OrderingKey: "order-1"})
	tx := begin(t, on)
	q := db.New(tx)
	if err := q.OutboxQueueLockOrder(t.Context(), []string{"order-1"}); err != nil {
		t.Fatal(err)
	}
	cancelled := make(chan error, 1)
	go func() { cancelled <- outbox.Cancel(t.Context(), on, head, ada) }()
	eventually(t, "the cancel waits for the ordering key", func() bool { return waiting(t, on) == 1 })
	// As a settle goes on: the row, which the cancel must not hold yet.
	if _, err := tx.Exec(t.Context(), "update samekey.outbox_queue set due_at = clock_timestamp() where id = $1", head); err != nil {
		t.Fatalf("the cancel holds the row and waits for the ordering key: %v", err)
	}
	commit(t, tx)
	if err := <-cancelled; err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, next); e.Status != outbox.StatusPending {
		t.Errorf("the next is %s, want pending", e.Status)
	}
}

func TestADecisionInTheCallersTransactionIsUndoneWithIt(t *testing.T) {
	on := newGuardedDB(t)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	tx := begin(t, on)
	if err := outbox.Cancel(t.Context(), tx, id, ada); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, id); e.Status != outbox.StatusPending || len(e.History) != 0 {
		t.Errorf("it is %s with %d events", e.Status, len(e.History))
	}
}

func TestARefusedDecisionLeavesTheCallersTransactionUsable(t *testing.T) {
	on := newGuardedDB(t)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	tx := begin(t, on)
	refusedAs(t, "redrive", outbox.Redrive(t.Context(), tx, id, ada), outbox.StatusPending)
	if err := outbox.Cancel(t.Context(), tx, id, ada); err != nil {
		t.Error(err)
	}
}
