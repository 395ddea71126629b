package db_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/samekeytest"
)

// BenchmarkRateLimitsTake measures what a shared rate adds to a claim. It takes 10,000 permits in batches of a
// destination's default concurrency, and in the same run makes as many bare claims of that size.
func BenchmarkRateLimitsTake(b *testing.B) {
	const permits, size = 10_000, 32
	database := samekeytest.NewDB(b)
	ctx := context.Background()
	for statement := range strings.SplitSeq(benchDue, ";\n") {
		if _, err := database.Pool.Exec(ctx, statement); err != nil {
			b.Fatal(err)
		}
	}
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
	q := db.New(conn)
	if err := q.RateLimitsAdd(ctx, "bank"); err != nil {
		b.Fatal(err)
	}
	take := db.RateLimitsTakeParams{Action: "charge_card", MaxCount: size, Rate: 100_000, Burst: 1_000_000, Batch: 1000, Destination: "bank"}
	claim := db.OutboxQueueClaimParams{
		Action: "charge_card", Worker: worker, Destination: "bank", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: size, Lease: time.Minute,
		SafeToResend: true, MinWindowLeft: time.Minute, KeyWindow: pgtype.Interval{Days: 1, Valid: true},
	}
	var takes, claims time.Duration
	given, rounds := 0, 0
	for b.Loop() {
		for before := given; given < before+permits; rounds++ {
			began := time.Now()
			row, err := q.RateLimitsTake(ctx, take)
			takes += time.Since(began)
			if err != nil || row.Given != size {
				b.Fatal(row, err)
			}
			given += int(row.Given)

			tx, err := conn.Begin(ctx)
			if err != nil {
				b.Fatal(err)
			}
			began = time.Now()
			rows, err := db.New(tx).OutboxQueueClaim(ctx, claim)
			claims += time.Since(began)
			if err != nil || len(rows) != size {
				b.Fatal(len(rows), err)
			}
			if err := tx.Rollback(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(takes.Microseconds())/1000/float64(rounds), "ms/take")
	b.ReportMetric(float64(claims.Microseconds())/1000/float64(rounds), "ms/claim")
	b.ReportMetric(float64(takes.Microseconds())/float64(given), "us/permit")
	b.ReportMetric(0, "ns/op")
}
