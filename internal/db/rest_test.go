package db_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// A release takes back expired leases. From a dead worker it also takes lookups, Applies and what is safe to resend.
func TestReleaseConditions(t *testing.T) {
	s := newQueue(t)
	const out, held = `, leased_by = 8, lease_until = now() - interval '1 minute'`, `, leased_by = 8, lease_until = now() + interval '1 hour'`
	const call, lookup = `status = 'leased', attempt = 3, last_sent_attempt = 1, attempts_used = 2, first_sent_at = now(), last_code = 'absent'`,
		`status = 'unknown', attempt = 3, last_sent_attempt = 1, attempts_used = 2, first_sent_at = now(), last_code = 'accepted'`
	for _, c := range []struct {
		name, row string
		gone      bool
		want      []string // nil: it stays
	}{
		{"an attempt with a lease", call + held, false, nil},
		{"an attempt of a dead worker", call + held, true, nil},
		{"a lookup with a lease", lookup + held, false, nil},
		{"a resendable attempt with a lease", call + `, safe_to_resend = true` + held, false, nil},
		{"an attempt with an expired lease", call + out, false, []string{"status = 'unknown'", "last_sent_attempt = 3", "attempts_used = 0", "last_code = 'orphaned'", "due_at > now() + interval '59 minutes'"}},
		{"a resendable attempt of a dead worker", call + `, safe_to_resend = true` + held, true,
			[]string{"status = 'pending'", "last_sent_attempt = 3", "attempts_used = 3", "last_code = 'orphaned'", "due_at <= clock_timestamp()"}},
		{"a lookup of a dead worker", lookup + held, true, []string{"status = 'unknown'", "last_sent_attempt = 1", "attempts_used = 3", "last_code = 'accepted'", "due_at <= clock_timestamp()"}},
		{"another worker's", call + `, leased_by = 9, lease_until = now() - interval '1 minute'`, true, nil},
	} {
		s.clear()
		id := s.insert(c.row)
		before := s.rows()
		rows, err := s.q.OutboxQueueRelease(t.Context(), db.OutboxQueueReleaseParams{Holder: 8, HolderGone: c.gone, MaxCount: 10, SettlingDelay: time.Hour})
		if err != nil || len(rows) != min(1, len(c.want)) {
			t.Errorf("%s: released %v, %v", c.name, rows, err)
		}
		if c.want == nil {
			if got := s.rows(); got != before {
				t.Errorf("%s: it changed\n%s\nto\n%s", c.name, before, got)
			}
			continue
		}
		for _, condition := range append(c.want, "leased_by is null", "lease_until is null", "attempt = 3") {
			s.holds(c.name, id, condition)
		}
		if got := s.text(`select string_agg(concat_ws(' ', event, outcome, code, attempt, worker), ', ') from samekey.outbox_history`); got != "orphaned unknown orphaned 3 8" {
			t.Errorf("%s: the history is %s", c.name, got)
		}
	}
}

// A release leaves locked rows to the next sweep.
func TestReleaseSkipsLockedRows(t *testing.T) {
	s := newQueue(t)
	s.insert(`status = 'unknown', leased_by = 8, lease_until = now()`)
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select from samekey.outbox_queue for update`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rows, err := s.q.OutboxQueueRelease(ctx, db.OutboxQueueReleaseParams{Holder: 8, MaxCount: 10, SettlingDelay: time.Hour})
	if err != nil || len(rows) != 0 {
		t.Errorf("released %v, %v", rows, err)
	}
}

// The first blocked intent of an ordering key becomes its head if there is none. It is not due before its own due_at.
func TestPromoteOnlyWithoutHead(t *testing.T) {
	s := newQueue(t)
	const waits = `status = 'blocked', ordering_key = 'o', seq = `
	head := s.insert(`status = 'dead', ordering_key = 'o', seq = 1`)
	third := s.insert(waits + `3`)
	second := s.insert(waits + `2, due_at = now() - interval '1 day'`)
	promote := func() int {
		t.Helper()
		actions, err := s.q.OutboxQueuePromote(t.Context(), []string{"o", "another"})
		if err != nil {
			t.Fatal(err)
		}
		return len(actions)
	}
	headless := func() int {
		t.Helper()
		n := 0
		rows, err := s.q.OutboxQueueHeadless(t.Context(), db.OutboxQueueHeadlessParams{MaxCount: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if row.Headless {
				n++
			}
		}
		return n
	}
	if n := promote(); n != 0 || headless() != 0 {
		t.Errorf("behind a head that is dead %d were promoted", n)
	}
	s.exec(`delete from samekey.outbox_queue where id = $1`, head)
	if headless() != 1 || promote() != 1 || headless() != 0 {
		t.Error("without a head: not one is promoted")
	}
	if rows, err := s.q.OutboxQueueHeadless(t.Context(), db.OutboxQueueHeadlessParams{After: "o", MaxCount: 10}); err != nil || len(rows) != 0 {
		t.Errorf("the page after the last key has %v, %v", rows, err)
	}
	s.holds("the second", second, "status = 'pending' and due_at > now() - interval '1 hour'")
	s.holds("the third", third, "status = 'blocked'")
	s.exec(`delete from samekey.outbox_queue where id = $1`, second)
	s.exec(`update samekey.outbox_queue set due_at = now() + interval '1 hour'`)
	if promote() != 1 {
		t.Error("the third is not promoted")
	}
	s.holds("one that is meant for later", third, "status = 'pending' and due_at > now() + interval '50 minutes'")
}

// Reconcile restores an intent with neither a queue row nor a finishing event, as one that may have been sent.
func TestReconcileRestoresOnlyLostIntents(t *testing.T) {
	s := newQueue(t)
	lost, young, finished, queued := s.insert(""), s.insert(""), s.insert(""), s.insert("")
	s.exec(`delete from samekey.outbox_queue where id <> $1`, queued)
	s.exec(`update samekey.outbox set created_at = now() - interval '1 hour', due_at = now() + interval '1 day' where id <> $1`, young)
	s.exec(`insert into samekey.outbox_history (intent_id, event, final_status) values ($1, 'attempt', 'delivered')`, finished)
	s.exec(`insert into samekey.outbox_history (intent_id, event, attempt) values ($1, 'attempt', 4)`, lost)
	rows, err := s.q.OutboxQueueRestore(t.Context(), db.OutboxQueueRestoreParams{MaxCount: 10})
	if err != nil || len(rows) != 3 {
		t.Fatalf("%v, %v", rows, err)
	}
	for _, row := range rows {
		if row.Restored != (row.ID == lost) {
			t.Errorf("%v: restored: %v", row.ID, row.Restored)
		}
	}
	s.holds("lost", lost, "status = 'pending' and first_sent_at < now() - interval '50 minutes' and due_at > now() + interval '1 hour' and attempt = 4 and last_code = 'restored'")
	if n := s.text(`select count(*)::text from samekey.outbox_history where event = 'restored'`); n != "1" {
		t.Errorf("%s lines", n)
	}
}

// A worker's row is deleted once it is old, its lock is free and it holds no lease. An id that leases name is not given
// out.
func TestWorkerRowStaysWhileInUse(t *testing.T) {
	s := newQueue(t)
	s.exec(`insert into samekey.workers (id, name, actions, seen_at) values (1, 'old', '{}', now() - interval '1 hour'),
		(2, 'seen', '{}', now() - interval '5 minutes'), (3, 'leasing', '{}', now() - interval '1 hour'), (7, 'living', '{}', now() - interval '1 hour')`)
	s.insert(`status = 'unknown', leased_by = 3, lease_until = now()`)
	if err := s.q.WorkersPrune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.text(`select string_agg(name, ' ' order by id) from samekey.workers`); got != "seen leasing living" {
		t.Errorf("what is left: %s", got)
	}
	s.exec(`delete from samekey.workers`)
	for id, want := range map[int32]int64{3: 0, 4: 1} {
		if n, err := s.q.WorkersRegister(t.Context(), db.WorkersRegisterParams{ID: id, Name: "new", Actions: []string{}}); err != nil || n != want {
			t.Errorf("worker %d: registered %d, %v; want %d", id, n, err, want)
		}
	}
}

// The statistics after each change of the queue, and the actions that a running worker handles.
func TestStatsFollowTheQueue(t *testing.T) {
	s := newQueue(t)
	s.exec(`insert into samekey.workers (id, name, actions) values (7, 'living', '{charge}'), (8, 'dead', '{refund}')`)
	take := func(want string) {
		t.Helper()
		if err := s.q.OutboxStatsRefresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := s.text(`select coalesce(string_agg(concat_ws(' ', action, status, intents, handled, oldest_due_at < now() - interval '50 minutes', taken_at > now() - interval '10 minutes'), ', '
			order by action, status), '') from samekey.outbox_stats`)
		if got != want {
			t.Errorf("the statistics are\n%s\nwant\n%s", got, want)
		}
	}
	s.insert("")
	s.insert(`due_at = now() - interval '1 hour'`)
	s.insert(`action = 'refund', status = 'dead'`)
	take("charge pending 2 t t t, refund dead 1 f f t")
	s.exec(`update samekey.outbox_stats set taken_at = now() - interval '1 hour'`)
	s.exec(`update samekey.workers set actions = case id when 7 then '{refund}'::text[] else '{charge}' end`)
	s.exec(`update samekey.outbox_queue set due_at = now() where action = 'charge'`)
	take("charge pending 2 f f t, refund dead 1 t f t")
	s.exec(`delete from samekey.outbox_queue where action = 'refund'`)
	take("charge pending 2 f f t")
}

// acted returns how many intents an act changed: none if their state does not allow it.
func acted(_ []string, err error) (int64, error) {
	if sqlstate.Of(err) == sqlstate.StateRefuses {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// What operators change in a row besides its state.
func TestOperatorChangesToARow(t *testing.T) {
	s := newQueue(t)
	ctx := t.Context()
	const known = `attempt = 3, attempts_used = 2, last_sent_attempt = 3, first_sent_at = now(), key_window_until = now() + interval '1 day', sent_unrendered = true, no_resend = true, approved_at = now(), last_code = 'absent'`
	resolve := func(outcome, code string) func(uuid.UUID) (int64, error) {
		return func(id uuid.UUID) (int64, error) {
			return acted(s.q.ActResolve(ctx, db.ActResolveParams{ID: id, Outcome: outcome, Code: code, Actor: "ann", Reason: "r"}))
		}
	}
	redrive := func(id uuid.UUID) (int64, error) {
		return acted(s.q.ActRedrive(ctx, db.ActRedriveParams{ID: id, Actor: "ann", Reason: "r"}))
	}
	approve := func(id uuid.UUID) (int64, error) {
		return acted(s.q.ActApprove(ctx, db.ActApproveParams{ID: id, Actor: "ann", Reason: "r"}))
	}
	redriveAll := func(uuid.UUID) (int64, error) {
		row, err := s.q.ActRedriveAll(ctx, db.ActRedriveAllParams{Filter: "{}", MaxCount: 10, Actor: "ann", Reason: "r"})
		return int64(row.Changed), err
	}
	for _, c := range []struct {
		name, row string
		do        func(uuid.UUID) (int64, error)
		want      []string // nil: nothing
	}{
		{"delivered", `status = 'unknown', leased_by = 8, lease_until = now(), `, resolve("delivered", "200"), []string{"status = 'answered'", "attempt = 4", "attempts_used = 0", "leased_by is null", "lease_until is null",
			"first_sent_at is not null", "key_window_until is not null", "sent_unrendered", "no_resend", "last_code = '200'", "due_at <= clock_timestamp()"}},
		{"refused, without a code", `status = 'parked', `, resolve("refused", ""), []string{"status = 'answered'", "last_code = 'absent'"}},
		{"not sent", `status = 'unknown', `, resolve("not_sent", ""), []string{"status = 'parked'", "attempt = 4", "attempts_used = 2", "first_sent_at is null", "key_window_until is null", "not sent_unrendered", "not no_resend", "last_sent_attempt = 3"}},
		{"dead, not sent", `status = 'dead', `, resolve("not_sent", ""), []string{"status = 'dead'", "first_sent_at is null"}},
		{"resolve what is pending", `status = 'pending', `, resolve("delivered", ""), nil},
		{"resolve what is answered", `status = 'answered', `, resolve("delivered", ""), nil},
		{"redrive", `status = 'dead', safe_to_resend = true, `, redrive, []string{"status = 'pending'", "attempt = 4", "attempts_used = 0", "approved_at is null", "first_sent_at is not null", "due_at <= clock_timestamp()"}},
		{"redrive what is unknown", `status = 'unknown', `, redrive, nil},
		{"approve", `status = 'awaiting_approval', due_at = now() + interval '1 hour', `, approve, []string{"status = 'pending'", "attempt = 4", "approved_at is not null", "due_at > now() + interval '50 minutes'"}},
		{"approve what is parked", `status = 'parked', `, approve, nil},
		{"redrive all", `status = 'parked', safe_to_resend = true, `, redriveAll, []string{"status = 'pending'", "attempt = 4", "attempts_used = 0", "approved_at is null", "due_at <= clock_timestamp()"}},
		{"redrive all, not resendable", `status = 'parked', `, redriveAll, nil},
	} {
		s.clear()
		id := s.insert(c.row + known)
		before := s.rows()
		n, err := c.do(id)
		if err != nil || n != int64(min(1, len(c.want))) {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
		if c.want == nil {
			if got := s.rows(); got != before {
				t.Errorf("%s: it changed\n%s\nto\n%s", c.name, before, got)
			}
			continue
		}
		for _, condition := range c.want {
			s.holds(c.name, id, condition)
		}
		if got := s.text(`select string_agg(concat_ws(' ', actor, reason), ', ') from samekey.outbox_history`); got != "ann r" {
			t.Errorf("%s: the history has %q", c.name, got)
		}
	}
	s.clear()
	never := s.insert(`status = 'dead'`) // never sent, whatever its class
	if n, err := redriveAll(never); err != nil || n != 1 {
		t.Errorf("redrive all of what was never sent: %d, %v", n, err)
	}
	s.clear()
	locked := s.insert(`status = 'dead'`)
	tx, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, `select from samekey.outbox_queue where id = $1 for update`, locked); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	row, err := s.q.ActRedriveAll(within, db.ActRedriveAllParams{Filter: "{}", MaxCount: 10, Actor: "ann", Reason: "r"})
	if err != nil || row.Changed != 0 {
		t.Errorf("redrive all of what another person holds: %v, %v", row, err)
	}
}
