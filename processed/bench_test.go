package processed_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// What Run costs beside the bare transaction with the same writes, 16 clients at once:
//
//	go test -run '^$' -bench Commit -benchtime 5s ./processed
//
// Bare is begin, two inserts (the order, a row as wide as a record), commit: the transaction of a service that
// writes such a table by hand. The two take turns, so that both meet the same machine.
func BenchmarkCommit(b *testing.B) {
	db := samekeytest.NewDB(b)
	for _, sql := range []string{
		"create table orders (id text primary key, amount bigint not null)",
		"create table remembered (id text primary key, hash bytea not null, answer bytea, at timestamptz not null default clock_timestamp())",
	} {
		if _, err := db.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	var serial atomic.Int64
	next := func() string { return strconv.FormatInt(serial.Add(1), 10) }
	insert := func(ctx context.Context, tx pgx.Tx, id string) error {
		_, err := tx.Exec(ctx, "insert into orders (id, amount) values ($1, 7)", id)
		return err
	}
	hash := make([]byte, 32)
	answer := []byte(`{"id":"o1","amount":7}`)
	bare := func(ctx context.Context) error {
		id := next()
		return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			if err := insert(ctx, tx, id); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "insert into remembered (id, hash, answer) values ($1, $2, $3)", id, hash, answer)
			return err
		})
	}
	run := func(ctx context.Context) error {
		id := next()
		_, err := processed.Run(ctx, db.Pool, processed.Request{Key: key(b, id), Payload: answer}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			return answer, insert(ctx, tx, id)
		})
		return err
	}
	replay := func(ctx context.Context) error {
		_, err := processed.Run(ctx, db.Pool, processed.Request{Key: key(b, "replay"), Payload: answer}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			return answer, nil
		})
		return err
	}
	if err := replay(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, turn := range []struct {
		name string
		do   func(context.Context) error
	}{{"bare", bare}, {"run", run}, {"bare", bare}, {"run", run}, {"replay", replay}} {
		b.Run(turn.name, func(b *testing.B) {
			b.SetParallelism(8) // times GOMAXPROCS
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := turn.do(context.Background()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
