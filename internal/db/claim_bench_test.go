package db_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/samekeytest"
)

// The histories of a queue before a claim. Each leaves 20,000 intents that are due.
const (
	benchDue = `
insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at)
select lpad(to_hex(9000000 + n), 32, '0')::uuid, 's', 'due ' || n, 'charge_card', gen_random_uuid(), convert_to(repeat('x', 1024), 'UTF8'), 'text/plain', now()
from generate_series(1, 20000) n;
insert into samekey.outbox_queue (id, action, status, due_at)
select o.id, o.action, 'pending', clock_timestamp() from samekey.outbox o where o.idem_key like 'due %' order by o.id;
vacuum analyze samekey.outbox_queue`

	benchFinished = `
insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at)
select lpad(to_hex(n), 32, '0')::uuid, 's', 'finished ' || n, 'charge_card', gen_random_uuid(), 'x', 'text/plain', now() from generate_series(1, 1000000) n;
insert into samekey.outbox_history (intent_id, event, outcome, attempt, worker, final_status)
select o.id, 'attempt', 'delivered', 1, 1, 'delivered' from samekey.outbox o`

	benchWaiting = `
insert into samekey.outbox_queue (id, action, status, due_at, ordering_key, attempt, attempts_used)
values (lpad('1', 32, '0')::uuid, 'charge_card', 'pending', now() + interval '1 hour', 'order-1', 3, 3);
insert into samekey.outbox_queue (id, action, status, due_at, ordering_key)
select lpad(to_hex(n), 32, '0')::uuid, 'charge_card', 'blocked', now() - interval '1 hour', 'order-1' from generate_series(2, 1000001) n`

	benchDead = `
insert into samekey.outbox_queue (id, action, status, due_at)
select lpad(to_hex(n), 32, '0')::uuid, 'charge_card', 'pending', now() - interval '1 hour' from generate_series(1, 500000) n`
)

// BenchmarkClaim claims ten intents and rolls back, with tables of very different histories. "plain" is the baseline.
// In "snapshot", a transaction has been open since before 500,000 rows were deleted: the claim starts once from the
// low-water mark, as the worker's usually does, and once from the beginning, as it does once a second.
func BenchmarkClaim(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchClaim(b, time.Time{}) })
	b.Run("finished", func(b *testing.B) { benchClaim(b, time.Time{}, benchFinished) })
	b.Run("waiting", func(b *testing.B) { benchClaim(b, time.Time{}, benchWaiting) })
	b.Run("snapshot/mark", func(b *testing.B) { benchClaim(b, time.Now().Add(-time.Minute), benchDead) })
	b.Run("snapshot/full", func(b *testing.B) { benchClaim(b, time.Time{}, benchDead) })
}

func benchClaim(b *testing.B, mark time.Time, past ...string) {
	database := samekeytest.NewDB(b)
	ctx := context.Background()
	run := func(sql string) {
		if testing.Short() {
			sql = strings.NewReplacer("1000000", "10000", "1000001", "10001", "500000", "5000").Replace(sql)
		}
		for _, statement := range strings.Split(sql, ";\n") { // one by one: vacuum runs in no transaction
			if _, err := database.Pool.Exec(ctx, statement); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, sql := range past {
		run(sql)
	}
	if len(past) > 0 && past[0] == benchDead {
		run("vacuum analyze samekey.outbox_queue")
		snapshot, err := database.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			b.Fatal(err)
		}
		defer snapshot.Rollback(ctx)
		if _, err := snapshot.Exec(ctx, "select count(*) from samekey.outbox_queue"); err != nil {
			b.Fatal(err)
		}
		run("delete from samekey.outbox_queue")
	}
	run(benchDue)

	holder, err := database.Pool.Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer holder.Release()
	worker := int32(4711)
	if held, err := db.New(holder).WorkersLock(ctx, worker); err != nil || !held {
		b.Fatal(held, err)
	}
	conn, err := database.Pool.Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	params := db.OutboxQueueClaimParams{
		Action: "charge_card", DueFrom: mark, Worker: worker, Destination: "x", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: 10, Lease: time.Minute,
		SafeToResend: true, MinWindowLeft: time.Minute, KeyWindow: pgtype.Interval{Days: 1, Valid: true},
	}
	var claims time.Duration
	for b.Loop() {
		tx, err := conn.Begin(ctx)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		rows, err := db.New(tx).OutboxQueueClaim(ctx, params)
		claims += time.Since(began)
		if err != nil || len(rows) != 10 {
			b.Fatal(len(rows), err)
		}
		if err := tx.Rollback(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(claims.Microseconds())/float64(b.N)/1000, "ms/claim")
	b.ReportMetric(0, "ns/op")
}
