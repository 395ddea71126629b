package db_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// A queue on a bad day: one ordering key with many blocked intents, many intents due tomorrow, a long history, and a
// few intents that are due now. A million rows, or 400,000 with -short. With a tenth, reading a whole table is the
// better plan.
const (
	waiting  = 400_000
	tomorrow = 400_000
	finished = 200_000
	due      = 3_000
	batch    = 1_000
)

// Ids in order, as a UUIDv7 is, and tables that write no WAL, so that the fill is quick. Autovacuum is off, so
// that the test decides when statistics are taken.
const fillSQL = `
create function pg_temp.id(n bigint) returns uuid language sql as $$ select lpad(to_hex(n), 32, '0')::uuid $$;

-- The statistics know a queue in which nothing but another action's dead intents lay.
insert into samekey.outbox_queue (id, action, status, due_at)
select pg_temp.id(n), 'send_receipt', 'dead', now() - interval '1 day' from generate_series(1, 10000) n;
analyze samekey.outbox_queue;
delete from samekey.outbox_queue;

insert into samekey.outbox_queue (id, action, status, due_at, ordering_key)
values (pg_temp.id(900000), 'charge_card', 'pending', now() + interval '1 hour', 'order-1');
insert into samekey.outbox_queue (id, seq, action, status, due_at, ordering_key)
select pg_temp.id(1000000 + n), n, 'charge_card', 'blocked', now() - interval '1 hour', 'order-1' from generate_series(1, %[1]d) n;
insert into samekey.outbox_queue (id, action, status, due_at)
select pg_temp.id(2000000 + n), 'charge_card', 'pending', now() + interval '1 day' + n * interval '1 ms' from generate_series(1, %[2]d) n;

insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at, created_at, subject)
select pg_temp.id(3000000 + n), 's', 'finished ' || to_char(n, 'FM0000000'), 'charge_card', pg_temp.id(n), 'payload', 'text/plain',
       now(), now() - interval '1 day', case when n %% 2 = 0 then 'booking/' || n %% 10000 end from generate_series(1, %[3]d) n;
insert into samekey.outbox_history (intent_id, event, outcome, attempt, worker, final_status, reference)
select pg_temp.id(3000000 + n), 'attempt', 'delivered', 1, 1, 'delivered', case when n %% 2 = 0 then 'ch_' || n end from generate_series(1, %[3]d) n;
insert into samekey.processed_events (idem_key, scope, expires_at, hash_version, payload_hash, completed_at, subject)
select 'finished ' || to_char(n, 'FM0000000'), 's', now() + interval '1 day', 1, sha256(''), now(), case when n %% 2 = 0 then 'booking/' || n %% 10000 end
from generate_series(1, %[3]d) n;

select count(samekey.enqueue('s', 'due ' || n, 'charge_card', '{}', due_at => now() - interval '1 minute'))
from generate_series(1, %[4]d) n;
insert into samekey.outbox_sends (intent_id, carried_key, request) select o.id, 'key', 'request' from samekey.outbox o where hashtext(o.idem_key) %% 2 = 0;
-- Attention events: those of a function that fails, put off until tomorrow, with a second one behind each; and some due.
insert into samekey.actions (action, attention) values ('charge_card', true);
insert into samekey.outbox_attention (intent_id, first_id, action, status, event, due_at)
select pg_temp.id(4000000 + n / 2), pg_temp.id(4000000 + n / 2), 'charge_card', 'dead', 'attempt', now() + interval '1 day' from generate_series(1, %[3]d) n;
insert into samekey.outbox_attention (intent_id, first_id, action, status, event, due_at)
select pg_temp.id(5000000 + n), pg_temp.id(5000000 + n), 'charge_card', 'dead', 'attempt', now() - interval '1 minute' from generate_series(1, %[4]d) n;
insert into samekey.endpoints (destination, name, url) select 'hooks', 'shop-' || n, 'https://shop.example' from generate_series(1, %[3]d) n;
`

var tables = []string{"outbox", "outbox_queue", "outbox_history", "outbox_sends", "outbox_attention", "processed_events", "endpoints"}

// unlogged makes the tables write no WAL, and leaves the statistics to the test. (On a slow machine, autovacuum analyzed
// pauses while it was empty. Then the sweep reads all pauses that ever were, 1 ms for 1,000.)
func unlogged() string {
	var text strings.Builder
	for _, table := range append([]string{"pauses"}, tables...) {
		fmt.Fprintf(&text, "alter table samekey.%[1]s set (autovacuum_enabled = false); alter table samekey.%[1]s set unlogged;\n", table)
	}
	return text.String()
}

func fill(t *testing.T, database *samekeytest.DB) {
	t.Helper()
	start := time.Now()
	size := func(full int) int { return dbtest.Size(full, full*2/5) }
	text := unlogged() + fmt.Sprintf(fillSQL, size(waiting), size(tomorrow), size(finished), due)
	if _, err := database.Exec(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	t.Logf("filled in %v", time.Since(start).Round(time.Millisecond))
}

// Each query on the hot path finds its rows by an index, whatever the statistics say. This also holds for a generic
// plan, which a prepared statement gets after five runs.
func TestHotQueriesReadOnlyTheirBatch(t *testing.T) {
	database := samekeytest.NewDB(t)
	fill(t, database)
	eachPlan(t, database, kinds, planner.checkAll)
}

// A fair action with intents of 100,000 shares, one of which has a burst.
func TestFairQueriesReadOnlyTheirShares(t *testing.T) {
	database := samekeytest.NewDB(t)
	shares := dbtest.Size(100_000, 40_000)
	text := `
create function pg_temp.id(n bigint) returns uuid language sql as $$ select lpad(to_hex(n), 32, '0')::uuid $$;
insert into samekey.outbox_queue (id, action, status, due_at) select pg_temp.id(n), 'send_receipt', 'dead', now() from generate_series(1, 10000) n;
analyze samekey.outbox_queue; -- the statistics know no share
delete from samekey.outbox_queue;
insert into samekey.outbox_queue (id, action, status, due_at, share)
select pg_temp.id(1000000 + n), 'charge_card', 'pending', now() - interval '2 hours' + n * interval '1 ms', 'big' from generate_series(1, %[1]d * 4) n;
insert into samekey.outbox_queue (id, action, status, due_at, share)
select pg_temp.id(2000000 + n), 'charge_card', 'pending', now() - interval '1 hour' + n * interval '1 ms', 'tenant-' || to_char(n %% %[1]d, 'FM000000')
from generate_series(1, %[1]d * 6) n;
insert into samekey.outbox_queue (id, action, status, due_at)
select pg_temp.id(n), 'charge_card', 'pending', now() - interval '3 hours' + n * interval '1 ms' from generate_series(1, 3) n;
insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at)
select q.id, coalesce(q.share, 's'), q.id::text, q.action, q.id, 'payload', 'text/plain', q.due_at from samekey.outbox_queue q;
insert into samekey.outbox_sends (intent_id, carried_key) select q.id, 'key' from samekey.outbox_queue q where hashtext(q.id::text) %% 10 = 0;`
	if _, err := database.Exec(t.Context(), unlogged()+fmt.Sprintf(text, shares)); err != nil {
		t.Fatal(err)
	}
	eachPlan(t, database, kinds, planner.checkFair)
}

// statistics are what the planner may know, and the statement that leaves it so. once is how many rows more a statement
// may read with them: a statement that may read a whole table once.
type statistics struct {
	name, sql string
	once      int
}

var (
	fresh = statistics{name: "fresh", sql: "analyze samekey." + strings.Join(tables, ", samekey.")}

	kinds = []statistics{
		{name: "stale"}, // as the test left them
		{name: "never taken", sql: `delete from pg_statistic where starelid in (select oid from pg_class where relnamespace = 'samekey'::regnamespace)`},
		fresh,
		// As a vacuum of an empty queue leaves them, if it could not truncate the table. Until the next analyze, a minute
		// later, MarkSending, Settle and Postpone read the queue from end to end: to name the ids twice makes that worse
		// with any other statistics.
		{name: "of an empty queue", sql: `update pg_class set reltuples = 0, relpages = 1 where oid = any (array['samekey.outbox_queue', 'samekey.outbox', 'samekey.outbox_sends']::regclass[]);
			delete from pg_statistic where starelid in (select oid from pg_class where relnamespace = 'samekey'::regnamespace)`},
	}
)

// eachPlan runs the checks with statistics and plans of each kind, and undoes what they change.
func eachPlan(t *testing.T, database *samekeytest.DB, all []statistics, checks func(planner)) {
	t.Helper()
	// A claim checks that its worker's session lock is held by another session.
	liveness, err := database.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer liveness.Release()
	if _, err := liveness.Exec(t.Context(), "select pg_advisory_lock(samekey.worker_class(), n) from generate_series(7, 9) n"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = liveness.Exec(context.WithoutCancel(t.Context()), "select pg_advisory_unlock_all()") }()
	for _, statistics := range all {
		if statistics.sql != "" {
			if _, err := database.Exec(t.Context(), statistics.sql); err != nil {
				t.Fatal(err)
			}
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			t.Run(statistics.name+"/"+mode, func(t *testing.T) {
				conn, err := database.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Release()
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
				p := planner{t: t, tx: tx, once: statistics.once, empty: statistics.name == "of an empty queue"}
				p.exec("set local plan_cache_mode = " + mode)
				checks(p)
			})
		}
	}
}

type planner struct {
	t     *testing.T
	tx    pgx.Tx
	once  int  // see statistics
	empty bool // the statistics are of an empty queue
}

// checkFair runs the queries of a fair action: a walk and a claim over many shares, and over one that has many intents.
func (p planner) checkFair() {
	from := time.Unix(0, 0)
	claim := db.OutboxQueueClaimParams{Action: "charge_card", DueFrom: from, Worker: 7, Destination: "stripe", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: batch, Lease: time.Minute}
	p.check("walk over many shares", db.OutboxQueueShares, 4*batch, db.OutboxQueueSharesParams{Action: "charge_card", DueFrom: from, FromShare: "tenant-02", MaxSteps: batch, PageSize: 1})
	p.check("walk in one scan", db.OutboxQueueShares, 5*batch, db.OutboxQueueSharesParams{Action: "charge_card", DueFrom: from, FromShare: "tenant-02", MaxSteps: batch, PageSize: batch})
	p.check("walk past a burst", db.OutboxQueueShares, 20, db.OutboxQueueSharesParams{Action: "charge_card", DueFrom: from, FromShare: "", MaxSteps: 3, PageSize: 1})
	p.check("walk at the end", db.OutboxQueueShares, 5, db.OutboxQueueSharesParams{Action: "charge_card", DueFrom: from, FromShare: "zzz", MaxSteps: batch, PageSize: batch})
	for i := range batch {
		claim.Shares, claim.Quotas = append(claim.Shares, fmt.Sprintf("tenant-%06d", 7*i)), append(claim.Quotas, 1)
	}
	p.check("claim from many shares", db.OutboxQueueClaim, 8*batch, claim)
	claim.Shares, claim.Quotas = []string{"big", "nobody"}, []int32{batch, batch}
	p.check("claim from a burst", db.OutboxQueueClaim, 8*batch, claim)
	p.check("fill, and the first due intent", db.OutboxQueueShareFill, 5*batch, db.OutboxQueueShareFillParams{Action: "charge_card", After: from, MaxCount: batch})
}

// checkAll runs the queries in the order of a batch's life. Each works on the result of the one before.
func (p planner) checkAll() {
	claim := db.OutboxQueueClaimParams{
		Action: "charge_card", DueFrom: time.Now().Add(-time.Hour), Worker: 7, Destination: "stripe", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: batch, Lease: time.Minute, SafeToResend: true,
	}
	// Two reads each of the queue, outbox and outbox_sends, and the ids.
	p.check("claim", db.OutboxQueueClaim, 8*batch, claim)
	ids := p.ids(`select id from samekey.outbox_queue where leased_by = 7`)
	if len(ids) != batch {
		p.t.Fatalf("claimed %d, want %d", len(ids), batch)
	}
	p.check("load", db.OutboxLoad, 3*batch, ids)
	joined := 3 * batch
	if p.empty {
		joined = math.MaxInt
	}
	p.check("sending", db.OutboxQueueMarkSending, joined, db.OutboxQueueMarkSendingParams{Worker: 7, Ids: ids, Attempts: repeat(int32(1), len(ids))})
	p.check("claim, from the first row", db.OutboxQueueClaim, 100, db.OutboxQueueClaimParams{
		Action: "charge_card", DueFrom: time.Unix(0, 0), Worker: 8, Destination: "stripe", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: 10, Lease: time.Minute,
	})
	p.check("claim, nothing is there", db.OutboxQueueClaim, 10, db.OutboxQueueClaimParams{
		Action: "send_receipt", DueFrom: time.Unix(0, 0), Worker: 8, Destination: "mail", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: 100, Lease: time.Minute,
	})

	p.exec(`insert into samekey.pauses (destination, action, paused_by, reason, ended_at, ended_by, end_reason)
		select 'stripe', 'charge_card', 'ann', 'r', now(), 'ann', 'r' from generate_series(1, 1000)`)
	p.check("claim, after many pauses", db.OutboxQueueClaim, 100, db.OutboxQueueClaimParams{
		Action: "charge_card", DueFrom: time.Unix(0, 0), Worker: 9, Destination: "stripe", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: 10, Lease: time.Minute,
	})
	// A sweep may run it twice a second: it reads River's queues and the pauses in force, not the ended ones.
	p.exec(`insert into samekey.river_queue (name, updated_at, paused_at) values ('samekey_stripe', now(), now()), ('samekey_mail', now(), null)`)
	p.check("mirror pauses", db.PausesSyncRiver, 20, nil)
	p.check("mirror pauses, nothing changed", db.PausesSyncRiver, 20, nil)
	p.exec(`insert into samekey.rate_limits (destination, updated_at) values ('bank', now())`)
	// It reads the index entries of the intents that were just claimed, and of those that it counts.
	p.check("take permits", db.RateLimitsTake, 4*batch, db.RateLimitsTakeParams{
		Action: "charge_card", DueFrom: time.Unix(0, 0), MaxCount: 500, Rate: 1000, Burst: 100, Batch: 50, Destination: "bank"})
	p.check("take permits, nothing is due", db.RateLimitsTake, 10, db.RateLimitsTakeParams{
		Action: "send_receipt", DueFrom: time.Unix(0, 0), MaxCount: 500, Rate: 1000, Burst: 100, Batch: 50, Destination: "bank"})

	p.check("claim answered, there are none", db.OutboxAnsweredClaim, 10, db.OutboxAnsweredClaimParams{
		Action: "charge_card", Worker: 8, MaxCount: 4, Lease: time.Minute})
	p.exec(`update samekey.outbox_queue set status = 'answered' where id = any (array(select id from samekey.outbox_queue
		where action = 'charge_card' and status = 'pending' and leased_by is null and due_at < now() limit 200))`)
	// A claim for calls does not read intents that wait for an Apply.
	p.check("claim, past answered ones", db.OutboxQueueClaim, 40, db.OutboxQueueClaimParams{
		Action: "charge_card", DueFrom: time.Unix(0, 0), Worker: 8, Destination: "stripe", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: 4, Lease: time.Minute})
	p.check("claim answered", db.OutboxAnsweredClaim, 40, db.OutboxAnsweredClaimParams{
		Action: "charge_card", Worker: 8, MaxCount: 4, Lease: time.Minute})

	p.check("sweep", db.OutboxQueueSweep, 100, db.OutboxQueueSweepParams{Actions: []string{"charge_card", "send_receipt"}, Worker: 9})
	n := len(ids)
	settle := db.OutboxQueueSettleParams{
		Worker: 7, Ids: ids, Attempts: repeat(int32(1), n), Statuses: repeat("delivered", n), Delays: repeat(int64(0), n),
		AttemptsUsed: repeat(int32(1), n), ClearSent: repeat(false, n), KeepLease: repeat(false, n), LeaveOrder: repeat(false, n),
		Events: repeat("attempt", n), Outcomes: repeat("delivered", n), Codes: repeat("200", n), Errors: repeat("", n),
		ResponseTypes: repeat("", n), Responses: repeat([]byte(nil), n), VendorReferences: repeat("ch_1", n), TookUs: repeat(int64(1), n),
	}
	for i := range n / 2 {
		settle.Statuses[i], settle.Outcomes[i], settle.Codes[i], settle.Delays[i] = "pending", "retry", "500", 1_000_000
	}
	// The delete and the update each read every row.
	p.check("settle", db.OutboxQueueSettle, max(joined, 4*n), settle)
	p.check("postpone", db.OutboxQueuePostpone, joined, db.OutboxQueuePostponeParams{Worker: 7, Ids: ids, Attempts: repeat(int32(1), n),
		Delays: repeat(int64(1), n), ClearSent: repeat(true, n)})
	p.check("last answer", db.OutboxHistoryLast, 10, ids[0])
	p.check("attempts made", db.OutboxHistoryMade, 10, db.OutboxHistoryMadeParams{ID: ids[0], Event: "attempt"})
	p.check("settle late", db.OutboxQueueSettleLate, 30, db.OutboxQueueSettleLateParams{ID: ids[0], Attempt: 9, Outcome: "delivered", Worker: 7})

	p.exec(`update samekey.outbox_queue set status = 'leased', leased_by = 11, lease_until = now() + interval '1 minute', attempt = 1, safe_to_resend = true
		where id = any (array(select id from samekey.outbox_queue where action = 'charge_card' and status = 'pending' and leased_by is null and due_at < now() limit 1000))`)
	p.check("sweep, with orphans", db.OutboxQueueSweep, 100, db.OutboxQueueSweepParams{Actions: []string{"charge_card"}, Worker: 9})
	p.check("release", db.OutboxQueueRelease, 4*500, db.OutboxQueueReleaseParams{Holder: 11, HolderGone: true, MaxCount: 500, SettlingDelay: time.Second})
	p.check("release, none ran out", db.OutboxQueueRelease, 1000, db.OutboxQueueReleaseParams{Holder: 11, MaxCount: 500, SettlingDelay: time.Second})

	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("order-%d", i)
	}
	p.check("lock order", db.OutboxQueueLockOrder, 1000, keys)
	p.check("promote, a head is there", db.OutboxQueuePromote, 1000, keys)
	p.check("headless", db.OutboxQueueHeadless, 10, db.OutboxQueueHeadlessParams{MaxCount: 1000})
	p.exec(`delete from samekey.outbox_queue where ordering_key = 'order-1' and status <> 'blocked'`)
	p.check("promote, after the head", db.OutboxQueuePromote, 1000, keys)
	p.check("restore", db.OutboxQueueRestore, 5*batch, db.OutboxQueueRestoreParams{MaxCount: batch})

	p.checkScans("enqueue", `select samekey.enqueue('s', 'another', 'charge_card', '{}')`)
	p.checkScans("enqueue again", `select samekey.enqueue('s', 'another', 'charge_card', '{}')`)
	p.checkScans("enqueue behind many", `select samekey.enqueue('s', 'behind', 'charge_card', '{}', ordering_key => 'order-1')`)
	p.checkScans("enqueue a head", `select samekey.enqueue('s', 'head', 'charge_card', '{}', ordering_key => 'another')`)
	p.checkScans("states of waiters", `select count(s.status) from (
			select array_agg('s'::text) as scopes, array_agg('finished ' || to_char(n, 'FM0000000')) as keys,
			       array_agg(lpad(to_hex(3000000 + n), 32, '0')::uuid) as ids
			from generate_series(1, 1000) n) w, samekey.intent_states(w.scopes, w.keys, w.ids) s`)
	// A thousand intents rest. Groups and acts on many read them, or a batch of them, and not the queue.
	p.exec(`update samekey.outbox_queue set status = 'dead', last_code = '503', cause = 'overloaded', ordering_key = null, leased_by = null, lease_until = null
		where id = any (array(select id from samekey.outbox_queue where action = 'charge_card' and ordering_key is null order by id limit 1000))`)
	p.checkReads("groups", `select * from samekey.cause_groups()`, 1500)
	p.checkReads("groups of one action", `select * from samekey.cause_groups('{charge_card}')`, 1500)
	p.checkReads("plan of many", `select * from samekey.bulk_plan('redrive_all', '{"action": "charge_card", "from": "2020-01-01"}')`, 3000)
	p.checkReads("redrive many", `select * from samekey.redrive_all('{}', 'ann', 'r', 100)`, 500)
	p.checkReads("resolve many", `select * from samekey.resolve_all('{"cause": "overloaded"}', 'not_sent', 'ann', 'r', max_count => 100)`, 500)
	// A replacement also reads an intent's row and history, twice: as it picks it, and after the lock.
	p.exec(`insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at)
		select q.id, 's', q.id::text, q.action, q.id, '{}', 'application/json', now() from samekey.outbox_queue q where q.status = 'dead' on conflict do nothing`)
	p.exec(`insert into samekey.outbox_history (intent_id, event, outcome) select q.id, 'attempt', 'dead' from samekey.outbox_queue q where q.status = 'dead'`)
	p.exec(`update samekey.outbox_queue set first_sent_at = now() where status = 'dead'`)
	p.checkReads("plan of replacements", `select * from samekey.bulk_plan('replace_payload_all', '{"action": "charge_card", "from": "2020-01-01"}', patch => '{"a": 1}')`, 6000)
	p.checkReads("replace many", `select * from samekey.replace_all('{"status": "dead"}', 'ann', 'r', max_count => 100)`, 1500)
	p.checkReads("replace many payloads", `select * from samekey.replace_payload_all('{"code": "503"}', '{"a": 1}', 'ann', 'r', max_count => 100)`, 1500)
	p.checkReads("cancel many", `select * from samekey.cancel_all('{"status": "dead", "code": "503"}', 'ann', 'r', 100)`, 1000)
	// In other states, a run reads the primary key once: a batch goes on after the last one.
	p.checkReads("cancel pending ones", `select * from samekey.cancel_all('{"status": "pending", "action": "charge_card"}', 'ann', 'r', 100,
		lpad(to_hex(2002000), 32, '0')::uuid)`, 1000)
	p.checkReads("cancel blocked ones", `select * from samekey.cancel_all('{"status": "blocked"}', 'ann', 'r', 100,
		lpad(to_hex(1002000), 32, '0')::uuid)`, 1000)

	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("shop-%d", 1000*i+1)
	}
	p.check("endpoints of calls", db.EndpointsForCalls, 2*len(names), db.EndpointsForCallsParams{Destination: "hooks", Names: names})
	p.check("attention, the next event", db.OutboxAttentionNext, 20, db.OutboxAttentionNextParams{Action: "charge_card"})
	var event db.OutboxAttentionDeleteParams
	var intent uuid.UUID
	if err := p.tx.QueryRow(p.t.Context(), `select id, intent_id from samekey.outbox_attention order by due_at desc, id limit 1`).Scan(&event.ID, &intent); err != nil {
		p.t.Fatal(err)
	}
	p.check("attention of an intent", db.OutboxAttentionOfIntent, 10, intent)
	p.check("attention failed", db.OutboxAttentionFailed, 10, db.OutboxAttentionFailedParams{ID: event.ID, DelayUs: 1})
	p.check("attention ends", db.OutboxAttentionDelete, 10, event)
	// A subject has 40 intents at full size, and each of them an event.
	p.check("list by subject", db.OutboxListBySubject, 200, db.OutboxListBySubjectParams{Subject: "booking/42", Before: uuid.Max, MaxCount: 100})
	p.check("list by reference", db.OutboxListByReference, 10, db.OutboxListByReferenceParams{Reference: "ch_42", Before: uuid.Max, MaxCount: 100})
	p.checkReads("erase a subject", `select * from samekey.erase_subject('booking/42', 'ann', 'r')`, 800)
	p.checkReads("erase its records", `select * from samekey.erase_subject('booking/42', 'ann', 'r', after => '{"key": "", "scope": ""}')`, 500)
	// A scope is a walk along the primary keys, 10,000 rows at a time.
	p.checkReads("erase a scope", `select * from samekey.erase_scope('s', 'ann', 'r', 100,
		jsonb_build_object('intent', lpad(to_hex(3000000), 32, '0')))`, 12_000)
	p.checkReads("look for a scope", `select * from samekey.erase_scope('none', 'ann', 'r', 100, '{"key": "", "scope": ""}')`, 10_100)
	p.checkReads("plan an erasure", `select * from samekey.erase_plan('booking/44')`, 800)
	p.check("find a record", db.ProcessedEventsFind, 5, db.ProcessedEventsFindParams{IdemKey: "finished 0000001", Scope: "s"})
}

func repeat[T any](value T, n int) []T { return slices.Repeat([]T{value}, n) }

func (p planner) ids(sql string) []uuid.UUID {
	p.t.Helper()
	rows, err := p.tx.Query(p.t.Context(), sql)
	if err != nil {
		p.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		p.t.Fatal(err)
	}
	return ids
}

// checkReads covers statements inside functions, which explain does not show. It uses the server's count of rows read.
func (p planner) checkReads(name, sql string, most int) {
	p.t.Helper()
	before, start := p.fetched(), time.Now()
	p.exec(sql)
	read := p.fetched() - before
	p.t.Logf("%-28s %8.1f ms %8d rows read", name, float64(time.Since(start).Microseconds())/1000, read)
	if read > most {
		p.t.Errorf("%s read %d rows, want at most %d", name, read, most)
	}
}

// checkScans covers statements inside functions, which explain does not show. It uses the server's count of rows read
// by sequential scans.
func (p planner) checkScans(name, sql string) {
	p.t.Helper()
	count := func() (rows int) {
		const sql = `select coalesce(sum(seq_tup_read), 0)::int from pg_stat_xact_user_tables where schemaname = 'samekey' and relname = any ($1)`
		if err := p.tx.QueryRow(p.t.Context(), sql, tables).Scan(&rows); err != nil {
			p.t.Fatal(err)
		}
		return rows
	}
	before := count()
	p.exec(sql)
	if read := count() - before; read > 0 {
		p.t.Errorf("%s read %d rows from end to end", name, read)
	}
}

// fetched is the server's count of rows that this transaction has read so far, also inside functions.
func (p planner) fetched() (rows int) {
	p.t.Helper()
	const sql = `select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int from pg_stat_xact_user_tables where schemaname = 'samekey' and relname = any ($1)`
	if err := p.tx.QueryRow(p.t.Context(), sql, tables).Scan(&rows); err != nil {
		p.t.Fatal(err)
	}
	return rows
}

// check runs explain analyze for a query. It fails if the query scans a large table, reads more rows than the limit, or
// has an estimated cost at which the server compiles it (JIT), which takes a second.
func (p planner) check(name, sql string, most int, params any) {
	p.t.Helper()
	p.exec("prepare q as " + sql)
	literals := arguments(params)
	var text []byte
	before := p.fetched()
	execute := "execute q"
	if len(literals) > 0 {
		execute += "(" + strings.Join(literals, ", ") + ")"
	}
	if err := p.tx.QueryRow(p.t.Context(), "explain (analyze, buffers, timing off, format json) "+execute,
		pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		p.t.Fatalf("%s: %v", name, err)
	}
	p.exec("deallocate q")
	var plans []struct {
		Plan node
		Time float64 `json:"Execution Time"`
		JIT  json.RawMessage
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		p.t.Fatal(err)
	}
	plan := plans[0].Plan
	read := max(plan.read(), p.fetched()-before) // the plan does not show what functions read
	p.t.Logf("%-24s %8.1f ms %7d rows read %7d buffers", name, plans[0].Time, read, plan.Hit+plan.Read)
	whole := slices.Concat(plan.wholeTables()...)
	if read > most+p.once || p.once == 0 && (len(whole) > 0 || len(plans[0].JIT) > 0) {
		p.t.Errorf("%s read %d rows (at most %d are right), from end to end: %v, compiled: %s\n%s",
			name, read, most, whole, plans[0].JIT, plan.text(0))
	}
}

func (p planner) exec(sql string) {
	p.t.Helper()
	if _, err := p.tx.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatalf("%.60s: %v", sql, err)
	}
}

// node is one step of a plan.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Joined   float64 `json:"Rows Removed by Join Filter"`
	Recheck  float64 `json:"Rows Removed by Index Recheck"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []node
}

// read counts the rows that a plan read, including those that a filter removed. Entries of a bitmap count once, when
// the table is read: dead rows that another run's rollback left are not counted.
func (n node) read() int {
	rows := 0.0
	if strings.Contains(n.Type, "Scan") && n.Type != "CTE Scan" && n.Type != "Bitmap Index Scan" {
		rows = n.Rows
	}
	total := int((rows + n.Filtered + n.Joined + n.Recheck) * n.Loops)
	for _, child := range n.Plans {
		total += child.read()
	}
	return total
}

func (n node) wholeTables() (found [][]string) {
	if n.Type == "Seq Scan" && slices.Contains(tables, n.Relation) && n.Loops > 0 {
		found = append(found, []string{n.Relation})
	}
	for _, child := range n.Plans {
		found = append(found, child.wholeTables()...)
	}
	return found
}

func (n node) text(depth int) string {
	s := fmt.Sprintf("%s%s %s %s rows=%.0f loops=%.0f removed=%.0f\n", strings.Repeat("  ", depth), n.Type, n.Relation, n.Index, n.Rows, n.Loops, n.Filtered+n.Joined)
	for _, child := range n.Plans {
		s += child.text(depth + 1)
	}
	return s
}

// arguments writes the parameters of a query into SQL, in the order in which sqlc numbers them. A prepared statement
// gives each its type.
func arguments(params any) []string {
	if params == nil {
		return nil
	}
	v := reflect.ValueOf(params)
	if v.Kind() != reflect.Struct {
		return []string{literal(params)}
	}
	var literals []string
	for i := range v.NumField() {
		literals = append(literals, literal(v.Field(i).Interface()))
	}
	return literals
}

func literal(arg any) string {
	switch v := arg.(type) {
	case time.Duration:
		return fmt.Sprintf("'%d us'", v.Microseconds())
	case time.Time:
		return "'" + v.Format(time.RFC3339Nano) + "'"
	case pgtype.Interval:
		return "'1 day'"
	case []byte:
		return fmt.Sprintf(`'\x%x'`, v)
	}
	v := reflect.ValueOf(arg)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return "null"
	}
	if v.Kind() != reflect.Slice {
		return fmt.Sprintf("'%v'", arg)
	}
	parts := make([]string, v.Len())
	for i := range parts {
		element := v.Index(i).Interface()
		if b, ok := element.([]byte); ok {
			element = fmt.Sprintf(`\\x%x`, b)
		}
		parts[i] = fmt.Sprintf(`"%v"`, element)
	}
	return "'{" + strings.Join(parts, ",") + "}'"
}
