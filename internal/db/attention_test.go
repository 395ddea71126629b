package db_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/samekeytest"
)

// event writes an attention event of an intent, and sets columns of it.
func (s *queue) event(intent uuid.UUID, set string) (id int64) {
	s.Helper()
	err := s.QueryRow(s.Context(), `insert into samekey.outbox_attention (intent_id, first_id, action, status, event) values ($1, $1, 'charge', 'dead', 'attempt') returning id`, intent).Scan(&id)
	if err != nil {
		s.Fatal(err)
	}
	if set != "" {
		s.exec(`update samekey.outbox_attention set `+set+` where id = $1`, id)
	}
	return id
}

func TestNextAttentionConditions(t *testing.T) {
	s := newQueue(t)
	s.event(s.insert(""), `action = 'refund'`)
	s.event(s.insert(""), `due_at = now() + interval '1 hour'`)
	behind := s.insert("")
	s.event(behind, `due_at = now() + interval '1 hour'`)
	s.event(behind, `due_at = now() - interval '3 hours'`)
	later := s.event(s.insert(""), `due_at = now() - interval '1 minute'`)
	sooner := s.event(s.insert(""), `due_at = now() - interval '1 hour'`)
	other := s.insert("")
	locked := s.event(other, `due_at = now() - interval '2 hours'`)
	s.event(other, `due_at = now() - interval '2 hours'`)
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	q := s.q.WithTx(tx)
	if row, err := q.OutboxAttentionOfIntent(t.Context(), other); err != nil || row.ID != locked {
		t.Fatalf("%+v, %v", row, err)
	}
	for _, want := range []int64{sooner, later} {
		row, err := s.q.OutboxAttentionNext(t.Context(), db.OutboxAttentionNextParams{Action: "charge"})
		if err != nil || row.ID != want {
			t.Errorf("%+v, %v; want %d", row, err, want)
		}
		s.exec(`delete from samekey.outbox_attention where id = $1`, want)
	}
	if row, err := s.q.OutboxAttentionNext(t.Context(), db.OutboxAttentionNextParams{Action: "charge"}); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("%+v, %v; want none", row, err)
	}
	for _, intent := range []uuid.UUID{other, behind} {
		if row, err := s.q.OutboxAttentionOfIntent(t.Context(), intent); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("%+v, %v; want none", row, err)
		}
	}
}

func TestAttentionIsPutOffAndBackTogether(t *testing.T) {
	s := newQueue(t)
	ctx := t.Context()
	intent, other := s.insert(""), s.insert("")
	first, second := s.event(intent, ""), s.event(intent, "")
	unrelated := s.event(other, "")
	state := func() string {
		return s.text(`select string_agg(concat_ws(' ', id, attempts_used, case when due_at > now() + interval '50 minutes' then 'later' else 'now' end), ', ' order by id) from samekey.outbox_attention`)
	}
	want := func(what, rest string, left ...int64) {
		t.Helper()
		ids := make([]any, len(left))
		for i := range left {
			ids[i] = left[i]
		}
		if got := state(); got != fmt.Sprintf(rest, ids...) {
			t.Errorf("%s: %s", what, got)
		}
	}
	failed := func(id int64, attempts int32) {
		t.Helper()
		err := s.q.OutboxAttentionFailed(ctx, db.OutboxAttentionFailedParams{ID: id, DelayUs: time.Hour.Microseconds(), AttemptsUsed: attempts})
		if err != nil {
			t.Fatal(err)
		}
	}
	failed(first, 0)
	want("failed", "%d 1 later, %d 0 later, %d 0 now", first, second, unrelated)
	failed(first, 0) // another worker's, late
	want("failed again", "%d 1 later, %d 0 later, %d 0 now", first, second, unrelated)

	end := func(id int64, began string, rows int64) {
		t.Helper()
		n, err := s.q.OutboxAttentionDelete(ctx, db.OutboxAttentionDeleteParams{ID: id, Began: began})
		if err != nil || n != rows {
			t.Errorf("%d rows, %v, want %d", n, err, rows)
		}
	}
	end(first, "1", 0) // the id of another transaction
	if !strings.HasPrefix(state(), fmt.Sprintf("%d 1 later", first)) {
		t.Errorf("deleted in another transaction: %s", state())
	}
	s.exec(`update samekey.outbox_attention set due_at = now() + interval '1 hour' where id = $1`, second)
	end(first, "", 1)
	want("ended", "%d 0 now, %d 0 now", second, unrelated)
}

// The rule of samekey.note_attention for each of its callers: the action has a function, as the last worker registered.
func TestNoteAttentionOnlyForRegisteredActions(t *testing.T) {
	s := newQueue(t)
	register := func(attention ...bool) {
		t.Helper()
		err := s.q.OutboxActionsRegister(t.Context(), db.OutboxActionsRegisterParams{Actions: []string{"refund", "charge"}, Attention: attention, FairBy: []string{"", ""}})
		if err != nil {
			t.Fatal(err)
		}
	}
	dies := func() int {
		t.Helper()
		id := s.insert(leased)
		if _, err := s.q.OutboxQueueSettle(t.Context(), settleOne(id, 3, 7, "dead", nil)); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := s.QueryRow(t.Context(), `select count(*) from samekey.outbox_attention`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := dies(); n != 0 {
		t.Errorf("%d events of an action that no worker registered", n)
	}
	register(true, false)
	before := s.text(`select changed_at::text from samekey.actions where action = 'charge'`)
	if n := dies(); n != 0 {
		t.Errorf("%d events of an action without a function", n)
	}
	register(true, false)
	if after := s.text(`select changed_at::text from samekey.actions where action = 'charge'`); after != before {
		t.Errorf("registering what is registered changed the row at %s", after)
	}
	register(true, true)
	if n := dies(); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	for _, status := range []string{"pending", "unknown", "answered", "delivered", "refused"} {
		id := s.insert(leased)
		if _, err := s.q.OutboxQueueSettle(t.Context(), settleOne(id, 3, 7, status, nil)); err != nil {
			t.Fatal(err)
		}
	}
	id := s.insert(leased)
	if rows, err := s.q.OutboxQueueSettle(t.Context(), settleOne(id, 2, 7, "dead", nil)); err != nil || len(rows) != 0 {
		t.Fatalf("a fenced settle: %v, %v", rows, err)
	}
	if got := s.text(`select string_agg(concat_ws(' ', status, event, code, error), ', ') from samekey.outbox_attention`); got != "dead attempt 200" {
		t.Errorf("the events are %s", got)
	}
}

// The interleavings of WorkersHeartbeat. Worker 7 has the function, worker 8 does not.
func TestHeartbeatsDecideWhetherEventsAreWritten(t *testing.T) {
	s := newQueue(t)
	beat := func(id int32, has bool) {
		t.Helper()
		if err := s.q.WorkersHeartbeat(t.Context(), db.WorkersHeartbeatParams{ID: id, Name: "w", Actions: []string{"charge", "unregistered"}, Attention: []bool{has, has}}); err != nil {
			t.Fatal(err)
		}
	}
	start := func(has bool, fairBy string) {
		t.Helper()
		if err := s.q.OutboxActionsRegister(t.Context(), db.OutboxActionsRegisterParams{Actions: []string{"charge"}, Attention: []bool{has}, FairBy: []string{fairBy}}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, want bool) {
		t.Helper()
		if got := s.text(`select attention::text from samekey.actions`); got != strconv.FormatBool(want) {
			t.Errorf("%s: %s, want %t", when, got, want)
		}
	}
	pass := func(d time.Duration) { samekeytest.Elapse(t, s, d) }
	start(true, "")
	beat(7, true)
	start(false, "scope") // it writes the row
	beat(8, false)
	want("a worker without it starts", true)
	pass(11 * time.Minute)
	beat(7, true)
	beat(8, false)
	want("the other reports", true)
	pass(9 * time.Minute)
	beat(8, false)
	want("gone for 9 minutes", true)
	pass(2 * time.Minute)
	start(false, "")
	beat(9, false)
	beat(9, false)
	want("a worker that has just started", true)
	beat(8, false)
	want("gone for 11 minutes", false)
	beat(7, true)
	want("it is back", true)
	seen := s.text(`select attention_seen_at::text from samekey.actions`)
	beat(7, true)
	if s.text(`select attention_seen_at::text from samekey.actions`) != seen {
		t.Error("each heartbeat writes the row")
	}
	pass(11 * time.Minute)
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `update samekey.actions set fair_by = null`); err != nil {
		t.Fatal(err)
	}
	beat(8, false) // does not wait for the row
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("the row was locked", true)
	if got := s.text(`select string_agg(action, ' ') from samekey.actions`); got != "charge" {
		t.Errorf("heartbeats made rows of %s", got)
	}
}
