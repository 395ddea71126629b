package dispatcher_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/samekeytest"
)

// BenchmarkStoredEndpoint delivers intents that name one of 1,000 endpoints, with a handler that does nothing. It
// compares endpoints that are read from the database right before each call with endpoints that are only names.
func BenchmarkStoredEndpoint(b *testing.B) {
	for b.Loop() {
		named, stored := benchEndpoints(b, withEndpoint), benchEndpoints(b, withStoredEndpoint)
		b.ReportMetric(float64(benchIntents())/named.Seconds(), "named/s")
		b.ReportMetric(float64(benchIntents())/stored.Seconds(), "stored/s")
		b.ReportMetric(stored.Seconds()/named.Seconds(), "times-named")
		b.ReportMetric(0, "ns/op")
	}
}

func benchEndpoints(b *testing.B, with func(func(*dispatcher.Call) string) option) time.Duration {
	db := samekeytest.NewDB(b)
	pool := benchPool(b, db)
	mustExec(b, pool, `select samekey.enqueue('bench', 'k' || i, 'webhook', '{}', part => 'to-' || i % 1000) from generate_series(1, $1::int) i`, benchIntents())
	mustExec(b, pool, `insert into samekey.endpoints (destination, name, url, secrets) select 'bench', 'to-' || i, 'https://shop.example', '{secret}' from generate_series(0, 999) i`)
	mustExec(b, pool, `vacuum analyze samekey.outbox, samekey.outbox_queue, samekey.endpoints`)
	mustExec(b, pool, `checkpoint`)
	d := dispatcher.New(pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	d.Destination("bench", dispatcher.Limits{Concurrency: 1000})
	p := dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour, Deadline: time.Hour, Destination: "bench"}
	handle(d, "webhook", p, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}, with(func(call *dispatcher.Call) string { return call.Part }))
	began := time.Now()
	sum, err := d.Drain(b.Context())
	if err != nil || sum.Delivered != benchIntents() {
		b.Fatalf("drained %+v: %v", sum, err)
	}
	return time.Since(began)
}
