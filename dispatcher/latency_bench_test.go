package dispatcher_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// BenchmarkCommitToCall commits 500 intents a second for 6 seconds, each followed by Flush. p50-ms and p99-ms are the
// times from the end of a commit to the start of its Send. cold-start-ms is the time from Run to the first call of an
// existing intent. idle-ms is the time from a commit to its call after two idle seconds. Both are medians of several
// rounds.
func BenchmarkCommitToCall(b *testing.B) {
	for b.Loop() {
		db := samekeytest.NewDB(b)
		pool := benchPool(b, db)
		writers := benchPool(b, db)
		calls := &callTimes{at: map[string]time.Time{}, news: make(chan struct{}, 1)}
		newDispatcher := func() *dispatcher.Dispatcher {
			d := dispatcher.New(pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
			dispatcher.Handle(d, outbox.NewAction[[]byte]("noop"), dispatcher.Delivery[[]byte]{
				Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour},
				Send: func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
					calls.note(call.Key.Value)
					return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
				},
			})
			return d
		}
		commit := func(key string) time.Time {
			err := pgx.BeginFunc(b.Context(), writers, func(tx pgx.Tx) error {
				_, err := outbox.Insert(b.Context(), tx, outbox.Intent{Key: samekey.Key{Scope: "bench/latency", Value: key}, Action: "noop", Payload: []byte(`"x"`)})
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			at := time.Now()
			outbox.Flush(writers, "noop")
			return at
		}
		var cold []time.Duration
		run := func() (stop func()) {
			ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
			d, done := newDispatcher(), make(chan error, 1)
			go func() { done <- d.Run(ctx) }()
			return func() {
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		}
		var stop func()
		for i := range 9 {
			key := fmt.Sprint("cold-", i)
			commit(key)
			began := time.Now()
			stop = run()
			cold = append(cold, calls.wait(key).Sub(began))
			if i < 8 {
				stop()
			}
		}
		var idle []time.Duration
		for i := range 7 {
			time.Sleep(2 * time.Second)
			key := fmt.Sprint("idle-", i)
			at := commit(key)
			idle = append(idle, calls.wait(key).Sub(at))
		}
		const perSecond, seconds, clients = 500, 6, 10
		committed := make([]map[string]time.Time, clients)
		var wg sync.WaitGroup
		for c := range clients {
			committed[c] = map[string]time.Time{}
			wg.Go(func() {
				tick := time.NewTicker(time.Second * clients / perSecond)
				defer tick.Stop()
				for i := range perSecond * seconds / clients {
					<-tick.C
					key := fmt.Sprint("load-", c, "-", i)
					committed[c][key] = commit(key)
				}
			})
		}
		wg.Wait()
		var took []time.Duration
		for _, keys := range committed {
			for key, at := range keys {
				took = append(took, calls.wait(key).Sub(at))
			}
		}
		stop()
		b.ReportMetric(milliseconds(took, 0.5), "p50-ms")
		b.ReportMetric(milliseconds(took, 0.99), "p99-ms")
		b.ReportMetric(milliseconds(cold, 0.5), "cold-start-ms")
		b.ReportMetric(milliseconds(idle, 0.5), "idle-ms")
		b.ReportMetric(0, "ns/op")
	}
}

// milliseconds returns a quantile.
func milliseconds(d []time.Duration, of float64) float64 {
	slices.Sort(d)
	return float64(d[int(of*float64(len(d)-1))].Microseconds()) / 1000
}

// callTimes records when each key was first called.
type callTimes struct {
	mu   sync.Mutex
	at   map[string]time.Time
	news chan struct{}
}

func (c *callTimes) note(key string) {
	now := time.Now()
	c.mu.Lock()
	if _, ok := c.at[key]; !ok {
		c.at[key] = now
	}
	c.mu.Unlock()
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// wait returns the time of the first call of the key.
func (c *callTimes) wait(key string) time.Time {
	for {
		c.mu.Lock()
		at, ok := c.at[key]
		c.mu.Unlock()
		if ok {
			return at
		}
		<-c.news
	}
}
