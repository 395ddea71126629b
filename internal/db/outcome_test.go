package db_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
)

// What a claim returns for an intent that was sent before.
func TestClaimReportsPastWindowAndDeadline(t *testing.T) {
	s := newQueue(t)
	for _, c := range []struct {
		name, row string
		window    time.Duration // as the policy has it now
		late      bool
		first     bool
	}{
		{"never sent", "", time.Second, false, true},
		{"provably unsent, an hour ago", `key_window_until = null`, time.Second, false, true},
		{"inside both windows", `first_sent_at = now() - interval '1 hour', key_window_until = now() + interval '1 hour'`, 24 * time.Hour, false, false},
		{"within the reserve of the stored one", `first_sent_at = now() - interval '1 hour', key_window_until = now() + interval '30 seconds'`, 24 * time.Hour, true, false},
		{"past the stored one", `first_sent_at = now() - interval '1 hour', key_window_until = now() - interval '1 minute'`, 24 * time.Hour, true, false},
		{"past the policy's", `first_sent_at = now() - interval '1 hour', key_window_until = 'infinity'`, time.Hour, true, false},
		{"unknown, when is not known", `status = 'unknown'`, time.Hour, false, true},
	} {
		s.clear()
		s.insert(c.row)
		rows := s.claim(func(p *db.OutboxQueueClaimParams) {
			p.KeyWindow = pgtype.Interval{Microseconds: c.window.Microseconds(), Valid: true}
		})
		if len(rows) != 1 || rows[0].PastWindow != c.late || rows[0].FirstSend != c.first {
			t.Errorf("%s: %+v; want too late: %v, the first send: %v", c.name, rows, c.late, c.first)
		}
	}
}

// MarkSending keeps what is known about earlier sends.
func TestMarkSendingRecordsFirstSend(t *testing.T) {
	s := newQueue(t)
	const held = `status = 'leased', attempt = 3, leased_by = 7, lease_until = now() + interval '1 hour', safe_to_resend = true`
	for _, c := range []struct {
		name, row string
		renders   bool
		forever   bool
		want      []string
	}{
		{"the first", "", true, false, []string{"not safe_to_resend", "first_sent_at > now() - interval '1 minute'", "key_window_until = first_sent_at + interval '1 day'", "not sent_unrendered"}},
		{"forever", "", true, true, []string{"key_window_until = 'infinity'"}},
		{"unrendered", "", false, false, []string{"sent_unrendered"}},
		{"unrendered before", ", sent_unrendered = true", true, false, []string{"sent_unrendered"}},
		{"sent before", ", first_sent_at = now() - interval '1 hour', key_window_until = now() + interval '1 hour'", true, false,
			[]string{"not safe_to_resend", "first_sent_at < now() - interval '50 minutes'", "key_window_until < now() + interval '2 hours'"}},
	} {
		s.clear()
		id := s.insert(held + c.row)
		ids, err := s.q.OutboxQueueMarkSending(t.Context(), db.OutboxQueueMarkSendingParams{Renders: c.renders, KeyWindowForever: c.forever, KeyWindow: day,
			Worker: 7, Ids: []uuid.UUID{id}, Attempts: []int32{3}})
		if err != nil || len(ids) != 1 {
			t.Fatalf("%s: %v, %v", c.name, ids, err)
		}
		for _, condition := range c.want {
			s.holds(c.name, id, condition)
		}
	}
}

// Each column that a settle writes if the intent stays in the queue.
func TestSettleColumns(t *testing.T) {
	s := newQueue(t)
	const known = `, key_window_until = now() + interval '1 hour', sent_unrendered = true, approved_at = now(), last_sent_attempt = 2, last_code = 'accepted', ordering_key = 'o'`
	type params = db.OutboxQueueSettleParams
	for _, c := range []struct {
		name, status string
		change       func(p *params)
		want         []string
	}{
		{"a retry", "pending", nil, []string{"status = 'pending'", "leased_by is null", "lease_until is null", "last_sent_attempt = 2", "first_sent_at is not null",
			"key_window_until is not null", "sent_unrendered", "approved_at is not null", "ordering_key = 'o'", "last_code = '200'", "not no_resend", "due_at <= clock_timestamp()", "attempt = 3", "attempts_used = 1"}},
		{"sent", "unknown", func(p *params) { p.WasSent[0] = true }, []string{"last_sent_attempt = 3"}},
		{"unsent", "pending", func(p *params) { p.ClearSent[0] = true }, []string{"first_sent_at is null", "key_window_until is null", "not sent_unrendered"}},
		{"delayed", "pending", func(p *params) { p.Delays[0] = 3600e6 }, []string{"due_at > now() + interval '59 minutes'"}},
		{"answered, the lease is kept", "answered", func(p *params) { p.KeepLease[0] = true }, []string{"leased_by = 7", "lease_until > now() + interval '50 minutes'"}},
		{"awaiting approval", "awaiting_approval", nil, []string{"approved_at is null"}},
		{"left the order", "parked", func(p *params) { p.LeaveOrder[0] = true }, []string{"ordering_key is null"}},
		{"resend forbidden", "pending", func(p *params) { p.ForbidResend[0] = true }, []string{"no_resend"}},
		{"no code", "pending", func(p *params) { p.Codes[0] = "" }, []string{"last_code is null"}},
		{"a lookup without a result", "pending", func(p *params) { p.Events[0] = "lookup" }, []string{"last_code = 'accepted'"}},
		{"a lookup that waits", "pending", func(p *params) { p.Events[0], p.Codes[0] = "lookup", "settling" }, []string{"last_code = 'settling'"}},
		{"a lookup with a finding", "pending", func(p *params) { p.Events[0], p.Outcomes[0], p.Codes[0] = "lookup", "absent", "absent" }, []string{"last_code = 'absent'"}},
	} {
		s.clear()
		id := s.insert(leased + known)
		settled, err := s.q.OutboxQueueSettle(t.Context(), settleOne(id, 3, 7, c.status, c.change))
		if err != nil || len(settled) != 1 {
			t.Fatalf("%s: %v, %v", c.name, settled, err)
		}
		for _, condition := range c.want {
			s.holds(c.name, id, condition)
		}
	}
	s.clear()
	id := s.insert(leased + `, no_resend = true`)
	if _, err := s.q.OutboxQueueSettle(t.Context(), settleOne(id, 3, 7, "pending", nil)); err != nil {
		t.Fatal(err)
	}
	s.holds("resend forbidden before", id, "no_resend")
}

// One batch contains two attempts of an intent. The history gets one event, with the answer of the attempt that holds
// the claim.
func TestSettleOfTwoAttemptsWritesOneEvent(t *testing.T) {
	s := newQueue(t)
	for _, status := range []string{"delivered", "pending"} {
		s.clear()
		id := s.insert(leased)
		p, other := settleOne(id, 3, 7, status, nil), settleOne(id, 2, 7, "dead", nil)
		p.Ids, p.Attempts, p.Statuses, p.Delays = append(p.Ids, id), append(p.Attempts, 2), append(p.Statuses, "dead"), append(p.Delays, 0)
		p.AttemptsUsed, p.ClearSent, p.KeepLease, p.LeaveOrder = append(p.AttemptsUsed, 1), append(p.ClearSent, false), append(p.KeepLease, false), append(p.LeaveOrder, false)
		p.WasSent, p.ForbidResend, p.Events = append(p.WasSent, false), append(p.ForbidResend, false), append(p.Events, other.Events...)
		p.Outcomes, p.Codes, p.Errors = append(p.Outcomes, "dead"), append(p.Codes, "500"), append(p.Errors, "")
		p.ResponseTypes, p.Responses, p.TookUs = append(p.ResponseTypes, ""), append(p.Responses, nil), append(p.TookUs, 0)
		p.TookUs[0] = 3600e6
		settled, err := s.q.OutboxQueueSettle(t.Context(), p)
		if err != nil || len(settled) != 1 || settled[0].Attempt != 3 {
			t.Errorf("%s: settled %v, %v", status, settled, err)
		}
		if got := s.text(`select string_agg(concat_ws(' ', attempt, code, started_at < at - interval '59 minutes'), ', ') from samekey.outbox_history`); got != "3 200 t" {
			t.Errorf("%s: the history is %s", status, got)
		}
	}
}

// A postponed claim leaves the intent as if it had not been claimed, and writes no event.
func TestPostponeUndoesClaim(t *testing.T) {
	s := newQueue(t)
	const known = `, key_window_until = now() + interval '1 hour', sent_unrendered = true, attempts_used = 2, last_code = 'absent'`
	for _, c := range []struct {
		name, status string
		clearSent    bool
		want         []string
	}{
		{"sent before", "leased", false, []string{"status = 'pending'", "first_sent_at is not null", "key_window_until is not null", "sent_unrendered", "leased_by is null", "attempt = 3", "attempts_used = 2", "last_code = 'absent'", "due_at > now() + interval '59 minutes'"}},
		{"the first", "leased", true, []string{"first_sent_at is null", "key_window_until is null", "not sent_unrendered"}},
		{"unknown", "unknown", false, []string{"status = 'unknown'"}},
		{"answered", "answered", false, []string{"status = 'answered'"}},
	} {
		s.clear()
		id := s.insert(strings.Replace(leased, "'leased'", "'"+c.status+"'", 1) + known)
		n, err := s.q.OutboxQueuePostpone(t.Context(), db.OutboxQueuePostponeParams{Worker: 7, Ids: []uuid.UUID{id}, Attempts: []int32{3}, Delays: []int64{3600e6}, ClearSent: []bool{c.clearSent}})
		if err != nil || n != 1 || s.text(`select count(*)::text from samekey.outbox_history`) != "0" {
			t.Fatalf("%s: %d, %v", c.name, n, err)
		}
		for _, condition := range c.want {
			s.holds(c.name, id, condition)
		}
	}
}

// A renewal never shortens a lease.
func TestRenewNeverShortensLease(t *testing.T) {
	s := newQueue(t)
	id := s.insert(leased)
	renew := func(lease time.Duration) {
		t.Helper()
		if err := s.q.OutboxQueueRenew(t.Context(), db.OutboxQueueRenewParams{Lease: lease, Worker: 7, Ids: []uuid.UUID{id}, Attempts: []int32{3}}); err != nil {
			t.Fatal(err)
		}
	}
	renew(time.Minute)
	s.holds("by less", id, "lease_until > now() + interval '50 minutes'")
	renew(2 * time.Hour)
	s.holds("by more", id, "lease_until > now() + interval '110 minutes'")
}

// A late answer ends the claim of a lookup in progress, counts once, and is dropped if the intent was deleted.
func TestLateAnswerCountsOnce(t *testing.T) {
	s := newQueue(t)
	late := func(id uuid.UUID) (resolved, logged int32) {
		t.Helper()
		row, err := s.q.OutboxQueueSettleLate(t.Context(), db.OutboxQueueSettleLateParams{ID: id, Attempt: 3, Worker: 7, Outcome: "delivered", Code: "200"})
		if err != nil {
			t.Fatal(err)
		}
		return row.Resolved, row.Logged
	}
	const unknown = `status = 'unknown', attempt = 5, last_sent_attempt = 3, attempts_used = 4, leased_by = 8, lease_until = now() + interval '1 hour', due_at = now() + interval '1 day'`
	id := s.insert(unknown)
	if resolved, logged := late(id); resolved != 1 || logged != 1 {
		t.Errorf("resolved %d, logged %d", resolved, logged)
	}
	for _, condition := range []string{"status = 'answered'", "attempt = 6", "leased_by is null", "lease_until is null", "attempts_used = 0", "due_at <= clock_timestamp()"} {
		s.holds("resolved", id, condition)
	}
	s.exec(`update samekey.outbox_queue set status = 'parked'`) // as after a person's word
	if resolved, logged := late(id); resolved != 0 || logged != 0 {
		t.Errorf("the same again: resolved %d, logged %d", resolved, logged)
	}
	s.holds("the same again", id, "status = 'parked'")
	for _, event := range []string{"attempt", "lookup", "apply"} {
		s.clear()
		id := s.insert(unknown)
		s.exec(`insert into samekey.outbox_history (intent_id, event, attempt, worker) values ($1, $2, 3, 7)`, id, event)
		if resolved, logged := late(id); resolved != 0 || logged != 0 {
			t.Errorf("after its %s: resolved %d, logged %d", event, resolved, logged)
		}
	}
	s.clear()
	s.exec(`delete from samekey.outbox where id = $1`, id)
	if resolved, logged := late(id); resolved != 0 || logged != 0 {
		t.Errorf("after the prune: resolved %d, logged %d", resolved, logged)
	}
}

// The claim for Applies takes answered intents that are due and not leased, under the worker's lock. Each claim is a
// new attempt.
func TestAnsweredClaimConditions(t *testing.T) {
	s := newQueue(t)
	for _, status := range []string{"pending", "unknown", "parked", "dead", "awaiting_approval"} {
		s.insert(`status = '` + status + `'`)
	}
	s.insert(`status = 'answered', due_at = now() + interval '1 hour'`)
	s.insert(`status = 'answered', leased_by = 8, lease_until = now() + interval '1 hour'`)
	s.insert(`status = 'answered', action = 'refund'`)
	late := s.insert(`status = 'answered', attempt = 3, due_at = now() - interval '1 minute'`)
	early := s.insert(`status = 'answered', attempt = 3, due_at = now() - interval '1 hour'`)
	locked := s.insert(`status = 'answered', attempt = 3, due_at = now() - interval '2 hours'`)
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
	p := db.OutboxAnsweredClaimParams{Action: "charge", Worker: 6, MaxCount: 1, Lease: time.Minute}
	if rows, err := s.q.OutboxAnsweredClaim(ctx, p); err != nil || len(rows) != 0 {
		t.Errorf("a worker without its lock claimed %v, %v", rows, err)
	}
	p.Worker = 7
	for _, want := range []uuid.UUID{early, late} {
		rows, err := s.q.OutboxAnsweredClaim(ctx, p)
		if err != nil || len(rows) != 1 || rows[0].ID != want || rows[0].Attempt != 4 {
			t.Fatalf("claimed %v, %v; want %v", rows, err, want)
		}
		s.holds("claimed", want, "status = 'answered' and leased_by = 7 and attempt = 4 and lease_until between now() and now() + interval '2 minutes'")
	}
	if rows, err := s.q.OutboxAnsweredClaim(ctx, p); err != nil || len(rows) != 0 {
		t.Errorf("claimed %v too, %v", rows, err)
	}
}
