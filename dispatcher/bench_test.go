package dispatcher_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// benchIntents returns the number of intents and jobs. It is large enough that starting and stopping do not matter, or
// small with -short.
func benchIntents() int { return dbtest.Size(100_000, 2_000) }

// BenchmarkDrainBesideRiver drains intents of 1 KB with handlers that do nothing. In the same run, on the same server,
// it works as many bare River jobs of the same size. Compare the ratio; the rates are those of this machine.
func BenchmarkDrainBesideRiver(b *testing.B) {
	for b.Loop() {
		ours := benchDrain(b, "", 1)
		rivers := benchRiver(b)
		b.ReportMetric(float64(benchIntents())/ours.Seconds(), "intents/s")
		b.ReportMetric(float64(benchIntents())/rivers.Seconds(), "river-jobs/s")
		b.ReportMetric(rivers.Seconds()/ours.Seconds(), "times-river")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkDrainFair drains the same intents without shares, in one share, a hundred to a share, and one to a share.
// Compare the ratios, and several runs: each run drains once in each way.
func BenchmarkDrainFair(b *testing.B) {
	for b.Loop() {
		plain := benchDrain(b, "", 1)
		one := benchDrain(b, dispatcher.FairByScope, 1)
		some := benchDrain(b, dispatcher.FairByScope, benchIntents()/100)
		many := benchDrain(b, dispatcher.FairByScope, benchIntents())
		b.ReportMetric(float64(benchIntents())/plain.Seconds(), "intents/s")
		b.ReportMetric(plain.Seconds()/one.Seconds(), "one-share")
		b.ReportMetric(plain.Seconds()/some.Seconds(), "100-in-each")
		b.ReportMetric(plain.Seconds()/many.Seconds(), "1-in-each")
		b.ReportMetric(0, "ns/op")
	}
}

func benchPool(b *testing.B, db *samekeytest.DB) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// benchDrain drains intents that have so many scopes.
func benchDrain(b *testing.B, by dispatcher.FairBy, scopes int) time.Duration {
	db := samekeytest.NewDB(b)
	pool := benchPool(b, db)
	mustExec(b, pool, `insert into samekey.actions (action, fair_by) values ('noop', nullif($1, ''))`, string(by))
	mustExec(b, pool, `select samekey.enqueue('bench/' || i % $3, 'k' || i, 'noop', convert_to($1, 'UTF8'))
		from generate_series(1, $2::int) i`, `"`+strings.Repeat("x", 1022)+`"`, benchIntents(), scopes)
	mustExec(b, pool, `vacuum analyze samekey.outbox, samekey.outbox_queue`)
	mustExec(b, pool, `checkpoint`)

	d := dispatcher.New(pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	d.Destination("bench", dispatcher.Limits{Concurrency: 2000})
	handle(d, "noop", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour, Destination: "bench", FairBy: by},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		})
	began := time.Now()
	sum, err := d.Drain(b.Context())
	took := time.Since(began)
	if err != nil || sum.Delivered != benchIntents() {
		b.Fatalf("drained %+v: %v", sum, err)
	}
	return took
}

type noopArgs struct {
	Payload string `json:"payload"`
}

func (noopArgs) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noopArgs]
	left atomic.Int64
	done chan struct{}
}

func (w *noopWorker) Work(context.Context, *river.Job[noopArgs]) error {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

func benchRiver(b *testing.B) time.Duration {
	db := samekeytest.NewDB(b)
	pool := benchPool(b, db)
	worker := &noopWorker{done: make(chan struct{})}
	worker.left.Store(int64(benchIntents()))
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Schema: schema.Name, Workers: workers, Logger: slog.New(slog.DiscardHandler),
		// So many workers, with so short a pause between fetches, that neither limits the measurement.
		Queues: map[string]river.QueueConfig{"default": {MaxWorkers: 2000, FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 10 * time.Millisecond}},
	})
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]river.InsertManyParams, min(5000, benchIntents()))
	for i := range batch {
		batch[i] = river.InsertManyParams{Args: noopArgs{Payload: strings.Repeat("x", 1010)}}
	}
	for range benchIntents() / len(batch) {
		if _, err := client.InsertManyFast(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	mustExec(b, pool, `vacuum analyze samekey.river_job`)
	mustExec(b, pool, `checkpoint`)
	began := time.Now()
	if err := client.Start(context.WithoutCancel(b.Context())); err != nil {
		b.Fatal(err)
	}
	<-worker.done
	if err := client.Stop(context.WithoutCancel(b.Context())); err != nil { // its completer writes to the end
		b.Fatal(err)
	}
	return time.Since(began)
}

func mustExec(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	if _, err := pool.Exec(context.WithoutCancel(tb.Context()), sql, args...); err != nil {
		tb.Fatal(err)
	}
}
