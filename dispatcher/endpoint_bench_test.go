package dispatcher_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/samekeytest"
)

// BenchmarkPostpone measures 100,000 due intents for one dead endpoint: the cost of postponing each of them once, with
// the default concurrency and with a large one, compared with a delivery that does nothing.
func BenchmarkPostpone(b *testing.B) {
	for _, bench := range []struct {
		name        string
		concurrency int
		dead        bool
	}{{"dead/32", 32, true}, {"delivered/32", 32, false}, {"dead/1000", 1000, true}, {"delivered/1000", 1000, false}} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				benchPutOff(b, bench.concurrency, bench.dead)
			}
		})
	}
}

func benchPutOff(b *testing.B, concurrency int, dead bool) {
	db := samekeytest.NewDB(b)
	pool := benchPool(b, db)
	mustExec(b, pool, `select samekey.enqueue('bench', 'k' || i, 'webhook', '{}') from generate_series(1, $1::int) i`, benchIntents())
	mustExec(b, pool, `vacuum analyze samekey.outbox, samekey.outbox_queue`)
	mustExec(b, pool, `checkpoint`)
	d := dispatcher.New(pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	d.NoJitter()
	d.Destination("bench", dispatcher.Limits{Concurrency: concurrency, BreakDelay: time.Hour, PerEndpoint: min(concurrency, 4)})
	endpoint := "one"
	if !dead {
		endpoint = ""
	}
	handle(d, "webhook", dispatcher.Policy{Class: dispatcher.Read, Destination: "bench", Backoff: time.Hour, MaxBackoff: time.Hour},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			if dead {
				return dispatcher.Unsent(errors.New("refused")), nil
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		}, withEndpoint(func(*dispatcher.Call) string { return endpoint }))
	var before, after int64
	const wal = `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`
	if err := pool.QueryRow(b.Context(), wal).Scan(&before); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if _, err := d.Drain(b.Context()); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	if err := pool.QueryRow(b.Context(), wal).Scan(&after); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(benchIntents())/took.Seconds(), "intents/s")
	b.ReportMetric(float64(after-before)/float64(benchIntents()), "WAL-bytes/intent")
	b.ReportMetric(0, "ns/op")
}
