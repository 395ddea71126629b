package dispatcher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/samekeytest"
)

// stranger opens a session that holds the lock of an id, as another worker's session does.
func stranger(t *testing.T, on *samekeytest.DB, id int32) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	if _, err := conn.Exec(t.Context(), `select pg_advisory_lock(samekey.worker_class(), $1)`, id); err != nil {
		t.Fatal(err)
	}
	return conn
}

// unharmed reports whether a stranger's session still exists and holds its lock.
func unharmed(t *testing.T, conn *pgx.Conn, id int32) {
	t.Helper()
	held, err := db.New(conn).WorkersHoldsLock(t.Context(), id)
	if err != nil || !held {
		t.Errorf("the stranger's session was ended, or lost its lock: held %v, %v", held, err)
	}
}

// reopened reconnects, as keep does. The server may need a moment to notice that a session has ended.
func reopened(t *testing.T, s *session) *pgx.Conn {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := s.reopen(t.Context())
		if err == nil {
			t.Cleanup(func() { closeConn(conn) })
			return conn
		}
		if !errors.Is(err, errLockBusy) || time.Now().After(deadline) {
			t.Fatalf("it does not reconnect: %v", err)
		}
	}
}

func rowOf(t *testing.T, on *samekeytest.DB, id int32) (name string) {
	t.Helper()
	if err := on.QueryRow(t.Context(), `select coalesce((select name from samekey.workers where id = $1), '')`, id).Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTakenIDIsDrawnAgain(t *testing.T) {
	on, n, _ := settling(t)
	mustExec(t, on, `insert into samekey.workers (id, name, actions) values (11, 'other', '{}')`)
	mustExec(t, on, `update samekey.outbox_queue set status = 'leased', leased_by = 12, lease_until = now()`)
	held := stranger(t, on, 13) // whose row was deleted
	s, drawn := n.session, []int32{11, 12, 13, 14}
	s.draw = func() (id int32) { id, drawn = drawn[0], drawn[1:]; return id }
	conn, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.leave(conn)
	if s.id() != 14 {
		t.Errorf("the worker has the id %d, want 14", s.id())
	}
	unharmed(t, held, 13)
	for id, want := range map[int32]string{11: "other", 12: "", 13: "", 14: s.name} {
		if got := rowOf(t, on, id); got != want {
			t.Errorf("the row of %d is of %q, want %q", id, got, want)
		}
	}
}

func TestRandomIDsArePositiveAndDiffer(t *testing.T) {
	seen := map[int32]bool{}
	for range 1000 {
		id := randomID()
		if id <= 0 || seen[id] {
			t.Fatalf("drew %d, seen before: %v", id, seen[id])
		}
		seen[id] = true
	}
}

// A restored or copied database can give the id of a running worker to another worker.
func TestWorkerDrawsANewIDIfAnotherHoldsIt(t *testing.T) {
	on, n, s := settling(t)
	c := claimOne(t, n)
	old := n.session.id()
	end(t, on, old)
	other := stranger(t, on, old)
	mustExec(t, on, `update samekey.workers set name = 'stranger' where id = $1`, old)

	reopened(t, n.session)
	if n.session.id() == old || !n.session.holds() {
		t.Fatalf("the worker has the id %d and holds its lock: %v", n.session.id(), n.session.holds())
	}
	unharmed(t, other, old)
	if got := rowOf(t, on, old); got != "stranger" {
		t.Errorf("the stranger's row is of %q", got)
	}
	if got := rowOf(t, on, n.session.id()); got != n.session.name {
		t.Errorf("the worker's new row is of %q", got)
	}

	// An earlier claim is settled under the id of its claim, in one batch with new claims.
	mustExec(t, on, `select samekey.enqueue('tenant/orders', 'order-2', 'charge_card', '{}')`)
	later := claimOne(t, n)
	n.settler.take(resultOf(c, Delivered(Response{Code: "200"})))
	n.settler.take(resultOf(later, Delivered(Response{Code: "200"})))
	n.settler.stop()
	s.run(t.Context())
	if before, after := <-c.settled, <-later.settled; !before || !after {
		t.Errorf("settled: the old claim %v, the new one %v", before, after)
	}
}

// end ends the session that holds the lock of an id, and waits until the lock is free.
func end(t *testing.T, on *samekeytest.DB, id int32) {
	t.Helper()
	if _, err := on.Exec(t.Context(), `select pg_terminate_backend(pid, 20000) from pg_locks where locktype = 'advisory' and classid::bigint = samekey.worker_class()
		and objid::bigint = $1 and database = (select oid from pg_database where datname = current_database())`, id); err != nil {
		t.Fatal(err)
	}
}

// The server may keep a connection that the worker has lost until keepalives fail, hours later.
func TestWorkerEndsItsFormerSession(t *testing.T) {
	on, n, _ := settling(t)
	id, former := n.session.id(), n.session.former[0].Pid
	conn := reopened(t, n.session)
	if n.session.id() != id {
		t.Errorf("the worker has the id %d, want %d as before", n.session.id(), id)
	}
	if held, err := db.New(conn).WorkersHoldsLock(t.Context(), id); err != nil || !held {
		t.Errorf("the lock is not the new session's: %v, %v", held, err)
	}
	var there bool
	if err := on.QueryRow(t.Context(), `select exists (select from pg_stat_activity where pid = $1)`, former).Scan(&there); err != nil || there {
		t.Errorf("the former session is still there: %v, %v", there, err)
	}
}

// The process id of an earlier session may belong to a stranger now.
func TestSessionWithAnotherStartIsForeign(t *testing.T) {
	on, n, _ := settling(t)
	old := n.session.id()
	end(t, on, old)
	other := stranger(t, on, old)
	n.session.former[0].Pid = int32(other.PgConn().PID())
	reopened(t, n.session)
	unharmed(t, other, old)
}

// The row belongs to an earlier worker with this id, and no session holds its lock: the row follows the lock.
func TestWorkerRowFollowsTheLock(t *testing.T) {
	on, n, _ := settling(t)
	id := n.session.id()
	end(t, on, id)
	mustExec(t, on, `update samekey.workers set name = 'stranger', actions = '{}' where id = $1`, id)
	reopened(t, n.session)
	if got := rowOf(t, on, id); got != n.session.name || n.session.id() != id {
		t.Errorf("the worker %d has a row of %q", n.session.id(), got)
	}
}

func TestDeletedWorkerRowIsRegisteredAgain(t *testing.T) {
	on, n, _ := settling(t)
	id := n.session.id()
	conn := reopened(t, n.session)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.session.listen(ctx, conn) }()
	defer func() { cancel(); <-ended }()
	mustExec(t, on, `delete from samekey.workers`)
	// Notifications arrive all the time. They do not show other workers that this one is alive.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for rowOf(t, on, id) == "" {
		select {
		case <-tick.C:
			mustExec(t, on, `select pg_notify('samekey_outbox', 'charge_card')`)
		case <-deadline:
			t.Fatal("the worker's row does not come back")
		}
	}
	if err := n.q.OutboxStatsRefresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	unhandled, err := n.q.OutboxStatsUnhandled(t.Context())
	if err != nil || len(unhandled) != 0 {
		t.Errorf("no live worker is reported for %+v, %v", unhandled, err)
	}
}
