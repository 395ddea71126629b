package dispatcher

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// sweeping returns the sweep of another worker, which has held its own lock for an hour.
func sweeping(t *testing.T, on *samekeytest.DB) *sweeper {
	t.Helper()
	d := New(on.Pool, &Config{Logger: slog.New(slog.DiscardHandler)})
	Handle(d, outbox.NewAction[[]byte]("charge_card"), Delivery[[]byte]{
		Policy: Policy{Class: IdempotentWrite, KeyWindow: Forever},
		Send:   func(context.Context, *Call, []byte) (Outcome, error) { return Delivered(Response{}), nil },
	})
	n, err := d.newWorker(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	conn, err := n.session.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.session.leave(conn) })
	held := time.Now().Add(-time.Hour)
	n.session.held.Store(&held)
	return newSweeper(n.core, n.destinations, n.settler, n.applier, n.attender)
}

// withPolicy sets the action's times to the policy's defaults, such as the lease, as Check does.
func withPolicy(n *worker) {
	a := n.destinations.list[0].actions[0]
	a.policy = a.declared.withDefaults()
}

func sweepOnce(t *testing.T, s *sweeper) {
	t.Helper()
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// holder returns the worker that leases the only intent (0: none), and the number of lines in its history.
func holder(t *testing.T, on *samekeytest.DB) (worker int32, lines int) {
	t.Helper()
	err := on.QueryRow(t.Context(), `select coalesce((select leased_by from samekey.outbox_queue), 0),
		(select count(*) from samekey.outbox_history)`).Scan(&worker, &lines)
	if err != nil {
		t.Fatal(err)
	}
	return worker, lines
}

// missingFor waits until the lock is gone, sweeps once, and then pretends that the lock has been missing for d.
func missingFor(t *testing.T, on *samekeytest.DB, s *sweeper, worker int32, d time.Duration) {
	t.Helper()
	end(t, on, worker)
	sweepOnce(t, s)
	since, seen := s.gone[worker]
	if !seen {
		t.Fatal("the sweep does not see that the lock is missing")
	}
	s.gone[worker] = since.Add(-d)
}

// A connection drops and returns before the second look. The worker keeps its leases, and its call counts.
func TestLockMissingOnceReleasesNothing(t *testing.T) {
	on, n, _ := settling(t)
	withPolicy(n)
	calls := 0
	n.destinations.list[0].actions[0].send = func(context.Context, *Call) (Outcome, error) {
		calls++
		return Delivered(Response{Code: "200"}), nil
	}
	other, worker := sweeping(t, on), n.session.id()
	c := claimOne(t, n)
	missingFor(t, on, other, worker, 0)
	if by, lines := holder(t, on); by != worker || lines != 0 {
		t.Fatalf("after the first look worker %d holds it, with %d lines in the history; want %d, 0", by, lines, worker)
	}
	reopened(t, n.session)
	sweepOnce(t, other)
	if by, lines := holder(t, on); by != worker || lines != 0 || len(other.gone) != 0 {
		t.Fatalf("after its return worker %d holds it, with %d lines in the history, and %d are missing; want %d, 0, 0", by, lines, len(other.gone), worker)
	}
	deliver(t, n, c)
	if got := timeline(t, on); calls != 1 || got != "attempt:1:delivered" {
		t.Errorf("%d calls, and the history is %q; want 1 and the first attempt alone", calls, got)
	}
}

// Only the second look takes over, and only by a worker that has held its own lock all the time.
func TestLockMissingTwiceReleasesOnce(t *testing.T) {
	on, n, _ := settling(t)
	withPolicy(n)
	other, worker := sweeping(t, on), n.session.id()
	claimOne(t, n)
	missingFor(t, on, other, worker, time.Minute)
	for _, own := range []time.Duration{0, 30 * time.Second} {
		held := time.Now().Add(-own)
		other.core.self.held.Store(&held)
		sweepOnce(t, other)
		if by, _ := holder(t, on); by != worker {
			t.Errorf("it is released by a worker that has held its own lock for %v, while the other lock has been missing for a minute", own)
		}
	}
	held := time.Now().Add(-time.Hour)
	other.core.self.held.Store(&held)
	sweepOnce(t, other)
	if by, lines := holder(t, on); by != 0 || lines != 1 {
		t.Errorf("after the second look worker %d holds it, with %d lines in the history; want 0, 1", by, lines)
	}
}

// The sweep checks all ordering keys, one page at a time.
func TestSweepPromotesAllHeadlessKeys(t *testing.T) {
	on, n, _ := settling(t)
	mustExec(t, on, `select samekey.enqueue('tenant/bulk', p || '-' || g, 'charge_card', '{}', ordering_key => to_char(g, 'FM00000'))
		from generate_series(1, $1::int) g, generate_series(1, 2) p`, headsPage+1) // one intent of each waits
	mustExec(t, on, `delete from samekey.outbox_queue where status = 'pending' and ordering_key = to_char($1::int, 'FM00000')`, headsPage+1)
	s := newSweeper(n.core, n.destinations, n.settler, n.applier, n.attender)
	for range 2 {
		s.heads = time.Time{}
		if err := s.promote(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var status string
	if err := on.QueryRow(t.Context(), `select status from samekey.outbox_queue where ordering_key = to_char($1::int, 'FM00000')`, headsPage+1).Scan(&status); err != nil {
		t.Fatal(err)
	}
	if status != statusPending || s.after != "" {
		t.Errorf("the one without a head is %s after two pages, and the next page begins after %q", status, s.after)
	}
}
