package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// queue is a database in which worker 7 is alive. For each condition of a query, a test has a row that only this
// condition excludes.
type queue struct {
	*testing.T
	*samekeytest.DB
	q    *db.Queries
	keys int
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	on := samekeytest.NewDB(t)
	dbtest.OtherWriter(t, on)
	s := &queue{T: t, DB: on, q: db.New(on)}
	s.live(7)
	return s
}

// live holds a worker's session lock until the test ends.
func (s *queue) live(worker int32) {
	s.Helper()
	dbtest.LiveWorker(s, s.DB, worker)
}

func (s *queue) exec(sql string, args ...any) {
	s.Helper()
	dbtest.Exec(s, s.DB, sql, args...)
}

func (s *queue) text(sql string, args ...any) string {
	s.Helper()
	return dbtest.Value[string](s, s.DB, sql, args...)
}

// insert writes an intent of action charge, and sets columns of its row in the queue.
func (s *queue) insert(set string) uuid.UUID {
	s.Helper()
	s.keys++
	id := uuid.MustParse(s.text(`select samekey.enqueue('tenant/orders', $1, 'charge', '{}')::text`, fmt.Sprintf("order-%d", s.keys)))
	if set != "" {
		s.exec(`update samekey.outbox_queue set `+set+` where id = $1`, id)
	}
	return id
}

// clear empties the queue.
func (s *queue) clear() {
	s.Helper()
	s.exec(`delete from samekey.outbox_queue`)
	s.exec(`delete from samekey.outbox_history`)
	s.exec(`delete from samekey.outbox_sends`)
}

// rows returns everything that the queries can change, except the times of leases.
func (s *queue) rows() string {
	s.Helper()
	return s.text(`select concat((select string_agg(q::text, ' ' order by q.id) from samekey.outbox_queue q),
		(select string_agg(h::text, ' ' order by h.id) from samekey.outbox_history h),
		(select string_agg(x::text, ' ') from samekey.outbox_sends x))`)
}

// holds checks a condition on the row of one intent.
func (s *queue) holds(what string, id uuid.UUID, condition string) {
	s.Helper()
	var ok bool
	err := s.QueryRow(s.Context(), `select coalesce(bool_and(`+condition+`), false) from samekey.outbox_queue q where q.id = $1`, id).Scan(&ok)
	if err != nil || !ok {
		s.Errorf("%s: not %q (%v): %s", what, condition, err, s.rows())
	}
}

const leased = `status = 'leased', attempt = 3, leased_by = 7, lease_until = now() + interval '1 hour', first_sent_at = now(), safe_to_resend = true`

var day = pgtype.Interval{Microseconds: (24 * time.Hour).Microseconds(), Valid: true}

func (s *queue) claimParams() db.OutboxQueueClaimParams {
	return db.OutboxQueueClaimParams{KeyWindow: day, MinWindowLeft: time.Minute, Action: "charge", DueFrom: time.Unix(0, 0), Worker: 7,
		Destination: "bank", MaxCount: 10, InlineBytes: 1 << 20, MaxBytes: 1 << 20, Lease: time.Minute, SafeToResend: true, SentTo: "bank 1"}
}

func (s *queue) claim(change func(*db.OutboxQueueClaimParams)) []db.OutboxQueueClaimRow {
	s.Helper()
	p := s.claimParams()
	if change != nil {
		change(&p)
	}
	rows, err := s.q.OutboxQueueClaim(s.Context(), p)
	if err != nil {
		s.Fatal(err)
	}
	return rows
}

func settleOne(id uuid.UUID, attempt, worker int32, status string, change func(*db.OutboxQueueSettleParams)) db.OutboxQueueSettleParams {
	outcome := map[string]string{"pending": "retry", "answered": "delivered"}[status]
	if outcome == "" {
		outcome = status
	}
	p := db.OutboxQueueSettleParams{Worker: worker, Ids: []uuid.UUID{id}, Attempts: []int32{attempt}, Statuses: []string{status},
		Delays: []int64{0}, AttemptsUsed: []int32{1}, ClearSent: []bool{false}, KeepLease: []bool{false}, LeaveOrder: []bool{false}, WasSent: []bool{false},
		ForbidResend: []bool{false}, Events: []string{"attempt"}, Outcomes: []string{outcome}, Codes: []string{"200"}, Errors: []string{""},
		ResponseTypes: []string{""}, Responses: [][]byte{nil}, TookUs: []int64{0}}
	if change != nil {
		change(&p)
	}
	return p
}

// A query that is fenced by a claim changes nothing if the attempt, the worker or the state differs.
func TestFenceComparesAttemptWorkerAndState(t *testing.T) {
	s := newQueue(t)
	ctx := t.Context()
	for _, c := range []struct {
		name, status string
		other        string // a state that closes the fence too
		run          func(id uuid.UUID, attempt, worker int32) error
	}{
		{"settle, finished", "leased", "", func(id uuid.UUID, attempt, worker int32) error {
			_, err := s.q.OutboxQueueSettle(ctx, settleOne(id, attempt, worker, "delivered", nil))
			return err
		}},
		{"settle, kept", "leased", "", func(id uuid.UUID, attempt, worker int32) error {
			_, err := s.q.OutboxQueueSettle(ctx, settleOne(id, attempt, worker, "pending", nil))
			return err
		}},
		{"postpone", "leased", "", func(id uuid.UUID, attempt, worker int32) error {
			_, err := s.q.OutboxQueuePostpone(ctx, db.OutboxQueuePostponeParams{Worker: worker, Ids: []uuid.UUID{id}, Attempts: []int32{attempt},
				Delays: []int64{0}, ClearSent: []bool{false}})
			return err
		}},
		{"renew", "leased", "", func(id uuid.UUID, attempt, worker int32) error {
			return s.q.OutboxQueueRenew(ctx, db.OutboxQueueRenewParams{Lease: 2 * time.Hour, Worker: worker, Ids: []uuid.UUID{id}, Attempts: []int32{attempt}})
		}},
		{"sending", "leased", "unknown", func(id uuid.UUID, attempt, worker int32) error {
			ids, err := s.q.OutboxQueueMarkSending(ctx, db.OutboxQueueMarkSendingParams{Renders: true, KeyWindow: day, Worker: worker, Ids: []uuid.UUID{id}, Attempts: []int32{attempt}})
			if open := attempt == 3 && worker == 7; err == nil && len(ids) > 0 && !open {
				err = fmt.Errorf("sending gave out %v", ids)
			}
			return err
		}},
		{"fix", "leased", "unknown", func(id uuid.UUID, attempt, worker int32) error {
			_, err := s.q.OutboxSendsStore(ctx, db.OutboxSendsStoreParams{ID: id, Attempt: attempt, Worker: worker, CarriedKey: "k"})
			return err
		}},
		{"finish applied", "answered", "unknown", func(id uuid.UUID, attempt, worker int32) error {
			tx, err := s.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Commit(ctx) }()
			var began string
			if err := tx.QueryRow(ctx, `select pg_current_xact_id()::text`).Scan(&began); err != nil {
				return err
			}
			_, err = s.q.WithTx(tx).OutboxQueueFinish(ctx, db.OutboxQueueFinishParams{Outcome: "delivered", Attempt: attempt, Worker: worker, ID: id, Began: began})
			return err
		}},
		{"held", "answered", "unknown", func(id uuid.UUID, attempt, worker int32) error {
			rows, err := s.Query(ctx, db.OutboxQueueCheckClaim, id, attempt, worker)
			if err != nil {
				return err
			}
			held := rows.Next()
			rows.Close()
			if held { // shown as a change, since the query makes none
				s.exec(`update samekey.outbox_queue set last_code = 'held' where id = $1`, id)
			}
			return rows.Err()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.T = t
			s.clear()
			id := s.insert(leased)
			s.exec(`update samekey.outbox_queue set status = $1`, c.status)
			before := s.rows()
			for _, other := range []struct{ attempt, worker int32 }{{2, 7}, {4, 7}, {3, 8}, {3, 0}} {
				if err := c.run(id, other.attempt, other.worker); err != nil && !strings.Contains(err.Error(), "no rows") {
					t.Error(err)
				}
				if got := s.rows(); got != before {
					t.Errorf("as attempt %d of worker %d it changed\n%s\nto\n%s", other.attempt, other.worker, before, got)
				}
			}
			if c.other != "" {
				s.exec(`update samekey.outbox_queue set status = $1`, c.other)
				before := s.rows()
				if err := c.run(id, 3, 7); err != nil && !strings.Contains(err.Error(), "no rows") {
					t.Error(err)
				}
				if got := s.rows(); got != before {
					t.Errorf("of one that is %s it changed\n%s\nto\n%s", c.other, before, got)
				}
				s.exec(`update samekey.outbox_queue set status = $1`, c.status)
			}
			before = s.rows()
			if err := c.run(id, 3, 7); err != nil {
				t.Error(err)
			}
			if s.rows() == before {
				t.Error("as the claim itself it changed nothing")
			}
		})
	}
}

// Which intents a claim leaves out. It takes the others in the order of due_at.
func TestClaimConditions(t *testing.T) {
	s := newQueue(t)
	for _, status := range []string{"answered", "awaiting_approval", "parked", "dead"} {
		s.insert(`status = '` + status + `'`)
	}
	s.insert(leased)
	s.insert(`status = 'unknown', leased_by = 8, lease_until = now() + interval '1 hour'`)
	s.insert(`due_at = now() + interval '1 hour'`)
	s.insert(`action = 'refund'`)
	s.insert(`due_at = now() - interval '3 hours'`) // before the mark
	late := s.insert(`due_at = now() - interval '1 minute'`)
	early := s.insert(`status = 'unknown', due_at = now() - interval '1 hour'`)
	locked := s.insert(`due_at = now() - interval '2 hours'`)
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select from samekey.outbox_queue where id = $1 for update`, locked); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it would wait for the lock
	defer cancel()
	for _, want := range []uuid.UUID{early, late} {
		p := s.claimParams()
		p.MaxCount, p.DueFrom = 1, time.Now().Add(-150*time.Minute)
		rows, err := s.q.OutboxQueueClaim(ctx, p)
		if err != nil || len(rows) != 1 || rows[0].ID != want {
			t.Fatalf("claimed %v, %v; want %v", rows, err, want)
		}
	}
	if rows := s.claim(func(p *db.OutboxQueueClaimParams) { p.DueFrom = time.Now().Add(-150 * time.Minute) }); len(rows) != 0 {
		t.Errorf("claimed %v too", rows)
	}
}

func TestClaimsOfAnotherDeploymentTakeNothing(t *testing.T) {
	s := newQueue(t)
	s.event(s.insert(""), "")
	s.insert(`status = 'answered'`)
	claimed := func() (attention int) {
		t.Helper()
		if _, err := s.q.OutboxAttentionNext(t.Context(), db.OutboxAttentionNextParams{Action: "charge"}); err == nil {
			attention++
		}
		answered, err := s.q.OutboxAnsweredClaim(t.Context(), db.OutboxAnsweredClaimParams{Action: "charge", Worker: 7, MaxCount: 10, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return attention + len(answered) + len(s.claim(nil))
	}
	s.exec(`insert into samekey.deployment (name, database_oid) values ('production', 1)`)
	if n := claimed(); n != 0 {
		t.Errorf("with the rows of two deployments, %d were claimed", n)
	}
	s.exec(`delete from samekey.deployment where test`)
	if n := claimed(); n != 0 {
		t.Errorf("with the row of another deployment, %d were claimed", n)
	}
	s.exec(`delete from samekey.deployment`)
	if n := claimed(); n != 0 {
		t.Errorf("without a row, %d were claimed", n)
	}
	s.exec(`insert into samekey.deployment (id, name, database_oid) values ($1, 'staging', 1)`, uuid.Nil)
	if n := claimed(); n != 3 {
		t.Errorf("with the right row, %d were claimed, want 3", n)
	}
}

// Payload, headers and the rendered request count towards the bytes of a claim.
func TestClaimCountsAllBytes(t *testing.T) {
	s := newQueue(t)
	for name, large := range map[string]string{
		"payloads": `update samekey.outbox set payload = convert_to(repeat('1', 1000), 'UTF8')`,
		"headers":  `update samekey.outbox set headers = jsonb_build_object('X-Note', repeat('ab1', 400))`,
		"requests": `insert into samekey.outbox_sends (intent_id, carried_key, request) select id, 'k', convert_to(repeat('1', 1000), 'UTF8') from samekey.outbox_queue`,
	} {
		s.clear()
		s.insert("")
		s.insert("")
		s.exec(large)
		rows := s.claim(func(p *db.OutboxQueueClaimParams) { p.MaxBytes = 1500 })
		if len(rows) != 1 || !rows[0].HasMore {
			t.Errorf("large %s: claimed %d, want one of two, and that it was cut", name, len(rows))
		}
		if rows := s.claim(nil); len(rows) != 1 || rows[0].HasMore || rows[0].PayloadDeferred {
			t.Errorf("large %s: what was left: %d", name, len(rows))
		}
	}
}

// What a claim records about the send, depending on earlier sends.
func TestClaimRecordsFirstSend(t *testing.T) {
	s := newQueue(t)
	const sent = `first_sent_at = now() - interval '1 hour', key_window_until = now() + interval '1 hour', sent_to = 'bank 0'`
	once := func(p *db.OutboxQueueClaimParams) { p.SafeToResend = false }
	deferred := func(p *db.OutboxQueueClaimParams) { p.SafeToResend, p.InlineBytes = false, 0 }
	unapproved := func(p *db.OutboxQueueClaimParams) {
		p.SafeToResend, p.NeedsApproval, p.KeyWindow = false, true, pgtype.Interval{} // no such action has a window
	}
	for _, c := range []struct {
		name, row string
		change    func(*db.OutboxQueueClaimParams)
		want      []string
	}{
		{"never sent", "", nil, []string{"safe_to_resend", "first_sent_at > now() - interval '1 minute'", "key_window_until = first_sent_at + interval '1 day'",
			"sent_to = 'bank 1'", "sent_unrendered", "status = 'leased'", "attempt = 1", "lease_until between now() and now() + interval '2 minutes'"}},
		{"never sent, key window forever", "", func(p *db.OutboxQueueClaimParams) { p.KeyWindowForever = true }, []string{"key_window_until = 'infinity'"}},
		{"never sent, not resendable", "", once, []string{"not safe_to_resend", "first_sent_at is not null"}},
		{"rendered", "", func(p *db.OutboxQueueClaimParams) { p.Renders = true }, []string{"not sent_unrendered"}},
		{"sent unrendered before", sent + ", sent_unrendered = true", func(p *db.OutboxQueueClaimParams) { p.Renders = true }, []string{"sent_unrendered"}},
		{"sent before", sent, nil, []string{"first_sent_at < now() - interval '50 minutes'", "key_window_until < now() + interval '2 hours'", "sent_to = 'bank 0'"}},
		{"sent before, without its window", `first_sent_at = now() - interval '1 hour'`, nil, []string{"key_window_until = first_sent_at + interval '1 day'", "sent_to = 'bank 1'"}},
		{"provably unsent", `sent_to = 'bank 0'`, nil, []string{"sent_to = 'bank 1'"}},
		{"unknown", `status = 'unknown', sent_to = null, ` + strings.TrimSuffix(sent, ", sent_to = 'bank 0'"), nil, []string{"not sent_unrendered", "sent_to is null", "status = 'unknown'", "key_window_until < now() + interval '2 hours'"}},
		{"unknown, never sent", `status = 'unknown'`, nil, []string{"first_sent_at is null", "key_window_until is null"}},
		{"payload deferred", "", deferred, []string{"safe_to_resend", "first_sent_at is null", "key_window_until is null", "not sent_unrendered"}},
		{"payload deferred, resendable", "", func(p *db.OutboxQueueClaimParams) { p.InlineBytes = 0 }, []string{"first_sent_at is not null", "key_window_until is not null", "sent_unrendered"}},
		{"not approved", "", unapproved, []string{"safe_to_resend", "first_sent_at is null"}},
		{"approved", "approved_at = now()", unapproved, []string{"not safe_to_resend", "first_sent_at is not null"}},
	} {
		s.clear()
		id := s.insert(c.row)
		if rows := s.claim(c.change); len(rows) != 1 {
			t.Fatalf("%s: claimed %d", c.name, len(rows))
		}
		for _, condition := range c.want {
			s.holds(c.name, id, condition)
		}
	}
}
