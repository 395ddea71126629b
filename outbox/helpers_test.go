package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

var ada = outbox.By{Actor: "ada", Reason: "seen in the vendor's dashboard"}

func newKey(t testing.TB, value string, scope ...string) samekey.Key {
	t.Helper()
	return dbtest.Key(t, value, scope...)
}

// insert writes one intent and commits. Without a key it gets one of its own.
func insert(t testing.TB, on *samekeytest.DB, in outbox.Intent) uuid.UUID {
	t.Helper()
	return dbtest.Insert(t, on, in)
}

func count(t testing.TB, on *samekeytest.DB, query string, args ...any) int {
	t.Helper()
	return dbtest.Value[int](t, on, query, args...)
}

func get(t testing.TB, on *samekeytest.DB, id uuid.UUID) outbox.Entry {
	t.Helper()
	e, err := outbox.Get(t.Context(), on, id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// newGuardedDB is a database in which a change of state that the table of
// transitions does not have is an error.
func newGuardedDB(t testing.TB) *samekeytest.DB {
	t.Helper()
	on := samekeytest.NewDB(t)
	dbtest.OtherWriter(t, on)
	pairs := ""
	for _, pair := range outbox.Transitions() {
		pairs += fmt.Sprintf("'%s>%s',", pair[0], pair[1])
	}
	_, err := on.Exec(t.Context(), `
		create function guard_queue() returns trigger language plpgsql as $$
		declare before text := ''; after text := '';
		begin
			if tg_op <> 'INSERT' then before := old.status; end if;
			if tg_op <> 'DELETE' then after := new.status; end if;
			if tg_op <> 'DELETE' and before <> after and not (before || '>' || after = any (array[`+pairs+`''])) then
				raise exception 'no such transition: % > %', before, after;
			end if;
			if tg_op = 'DELETE' then
				select final_status into after from samekey.outbox_history where intent_id = old.id and final_status is not null;
				if after is null or not (before || '>' || after = any (array[`+pairs+`''])) then
					raise exception 'no such transition: % > %', before, after;
				end if;
			end if;
			return null;
		end $$;
		create constraint trigger guard after insert or update or delete on samekey.outbox_queue
			deferrable initially deferred for each row execute function guard_queue();`)
	if err != nil {
		t.Fatal(err)
	}
	return on
}

// force puts an intent into a state, past the guard. sent: a vendor may have
// seen its key.
func force(t testing.TB, on *samekeytest.DB, id uuid.UUID, status outbox.Status, sent, repeatable bool) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local session_replication_role = replica`); err != nil {
			return err
		}
		if status.Finished() {
			if _, err := tx.Exec(t.Context(), `delete from samekey.outbox_queue where id = $1`, id); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `insert into samekey.outbox_history (intent_id, event, outcome, final_status, code)
				values ($1, 'attempt', case when $2 <> 'cancelled' then $2 end, $2, '200')`, id, status)
			return err
		}
		_, err := tx.Exec(t.Context(), `
			update samekey.outbox_queue
			set status = $2, attempt = case when $3 then 3 else 0 end, last_sent_attempt = case when $3 then 3 else 0 end,
			    attempts_used = case when $3 then 3 else 0 end, first_sent_at = case when $3 then clock_timestamp() end,
			    safe_to_resend = $4, last_code = case when $3 then 'timeout' end,
			    leased_by = case when $2 = 'leased' then 7 end,
			    lease_until = case when $2 = 'leased' then clock_timestamp() + interval '1 minute' end
			where id = $1`, id, status, sent, repeatable)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// worker claims and settles as the dispatcher does, by its queries.
type worker struct {
	t  testing.TB
	q  *db.Queries
	on *samekeytest.DB
	id int32
}

// newWorker holds the session lock that a claim asks for, until the test ends.
func newWorker(t testing.TB, on *samekeytest.DB, id int32) *worker {
	t.Helper()
	dbtest.LiveWorker(t, on, id)
	return &worker{t: t, q: db.New(on.Pool), on: on, id: id}
}

// claim takes due intents of an action, with q or, if it is nil, by itself.
func (w *worker) claim(q *db.Queries, action string, repeatable bool) []db.OutboxQueueClaimRow {
	w.t.Helper()
	if q == nil {
		q = w.q
	}
	claims, err := q.OutboxQueueClaim(w.t.Context(), db.OutboxQueueClaimParams{
		Action: action, Worker: w.id, MaxCount: 100, Lease: time.Minute, SafeToResend: repeatable, Destination: "none", MaxBytes: 1 << 22, InlineBytes: 1 << 22,
		KeyWindow: pgtype.Interval{},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return claims
}

// claimAnswered takes an answered intent of an action, which has only its Apply left.
func (w *worker) claimAnswered(action string) []db.OutboxAnsweredClaimRow {
	w.t.Helper()
	claims, err := w.q.OutboxAnsweredClaim(w.t.Context(), db.OutboxAnsweredClaimParams{Action: action, Worker: w.id, MaxCount: 100, Lease: time.Minute})
	if err != nil {
		w.t.Fatal(err)
	}
	return claims
}

// claimOne expects one due intent.
func (w *worker) claimOne(action string, repeatable bool) db.OutboxQueueClaimRow {
	w.t.Helper()
	claims := w.claim(nil, action, repeatable)
	if len(claims) != 1 {
		w.t.Fatalf("claimed %d intents of %s, want 1", len(claims), action)
	}
	return claims[0]
}

// settle returns how many intents were settled: 0 where the fence is closed.
func (w *worker) settle(c db.OutboxQueueClaimRow, status outbox.Status, outcome, code string) int {
	w.t.Helper()
	settled, err := w.q.OutboxQueueSettle(w.t.Context(), db.OutboxQueueSettleParams{
		Ids: []uuid.UUID{c.ID}, Attempts: []int32{c.Attempt}, Statuses: []string{string(status)}, Delays: []int64{0},
		AttemptsUsed: []int32{1}, ClearSent: []bool{false}, KeepLease: []bool{false}, LeaveOrder: []bool{false}, Events: []string{"attempt"},
		Outcomes: []string{outcome}, Codes: []string{code}, Errors: []string{""}, ResponseTypes: []string{""},
		Responses: [][]byte{nil}, TookUs: []int64{1000}, Worker: w.id,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(settled)
}

// late is the answer of a zombie; it returns whether it resolved the intent.
func (w *worker) late(c db.OutboxQueueClaimRow, outcome string) (resolved, logged int32) {
	w.t.Helper()
	row, err := w.q.OutboxQueueSettleLate(w.t.Context(), db.OutboxQueueSettleLateParams{
		ID: c.ID, Attempt: c.Attempt, Worker: w.id, Outcome: outcome, Code: "200",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return row.Resolved, row.Logged
}

// eventually waits until a condition in the database holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	dbtest.Until(t, what, holds)
}

// waiting is how many sessions of this database wait for a lock.
func waiting(t testing.TB, on *samekeytest.DB) int {
	return dbtest.LockWaits(t, on)
}
