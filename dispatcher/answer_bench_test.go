package dispatcher_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// BenchmarkCommitToAnswer is a service that commits an intent and waits for its end (outbox.Await). The vendor takes 20
// ms, and an Apply writes a row. Requests come at 100 per second, for 6 seconds. For each request it takes these times,
// so the load of the machine is the same for all of them:
//
//	commit          the service's COMMIT
//	commit-to-call  from then to the vendor's call
//	call-to-finish  from the vendor's answer to the last statement of Apply's transaction: the settle, and Apply
//	finish-to-us    from then to the end of Await: Apply's COMMIT, the announcement and the read
//	all-but-vendor  from the service's COMMIT to the end of Await, without the vendor's time
//
// alone- is the same for requests that come one after the other.
func BenchmarkCommitToAnswer(b *testing.B) {
	const vendorTime = 20 * time.Millisecond
	for b.Loop() {
		db := samekeytest.NewDB(b)
		if _, err := db.Exec(b.Context(), `create table payments (intent uuid primary key)`); err != nil {
			b.Fatal(err)
		}
		calls := &vendorTimes{began: map[uuid.UUID]time.Time{}, ended: map[uuid.UUID]time.Time{}}
		d := dispatcher.New(benchPool(b, db), &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
		dispatcher.Handle(d, outbox.NewAction[[]byte]("charge_card"), dispatcher.Delivery[[]byte]{
			Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour},
			Send: func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
				calls.note(calls.began, call.ID)
				time.Sleep(vendorTime)
				calls.note(calls.ended, call.ID)
				return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
			},
			Apply: func(ctx context.Context, tx pgx.Tx, _ []byte, s dispatcher.Settled) error {
				_, err := tx.Exec(ctx, `insert into payments values ($1)`, s.ID)
				return err
			},
		})
		ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()

		service := benchPool(b, db)
		request := func() (took answerTimes) {
			key := samekey.Key{Scope: "bench/latency", Value: samekey.Mint()}
			tx, err := service.Begin(b.Context())
			if err != nil {
				b.Error(err)
				return took
			}
			id, err := outbox.Insert(b.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: []byte(`"x"`)})
			if err != nil {
				b.Error(err)
				return took
			}
			began := time.Now()
			if err := tx.Commit(b.Context()); err != nil {
				b.Error(err)
				return took
			}
			committed := time.Now()
			outbox.Flush(service, "charge_card")
			end, err := outbox.Await(b.Context(), service, key, id)
			answered := time.Now()
			if err != nil || end.Status != outbox.StatusDelivered {
				b.Errorf("%+v, %v", end, err)
			}
			called, returned := calls.of(id)
			finished := dbtest.Value[time.Time](b, db, `select at from samekey.outbox_history where intent_id = $1 and final_status is not null`, id)
			return answerTimes{commit: committed.Sub(began), toCall: called.Sub(committed), toFinish: finished.Sub(returned),
				toAnswer: answered.Sub(finished), all: answered.Sub(committed) - returned.Sub(called)}
		}
		request() // the worker is there
		report := func(prefix string, times []answerTimes) {
			for name, of := range map[string]func(answerTimes) time.Duration{
				"commit":         func(t answerTimes) time.Duration { return t.commit },
				"commit-to-call": func(t answerTimes) time.Duration { return t.toCall },
				"call-to-finish": func(t answerTimes) time.Duration { return t.toFinish },
				"finish-to-us":   func(t answerTimes) time.Duration { return t.toAnswer },
				"all-but-vendor": func(t answerTimes) time.Duration { return t.all },
			} {
				var ds []time.Duration
				for _, t := range times {
					ds = append(ds, of(t))
				}
				b.ReportMetric(milliseconds(ds, 0.5), fmt.Sprint(prefix, name, "-p50-ms"))
				b.ReportMetric(milliseconds(ds, 0.99), fmt.Sprint(prefix, name, "-p99-ms"))
			}
		}

		var alone []answerTimes
		for range 100 {
			alone = append(alone, request())
		}
		report("alone-", alone)

		const perSecond, seconds = 100, 6
		var mu sync.Mutex
		var loaded []answerTimes
		var wg sync.WaitGroup
		tick := time.NewTicker(time.Second / perSecond)
		for range perSecond * seconds {
			<-tick.C
			wg.Go(func() {
				took := request()
				mu.Lock()
				defer mu.Unlock()
				loaded = append(loaded, took)
			})
		}
		tick.Stop()
		wg.Wait()
		report("", loaded)
		b.ReportMetric(0, "ns/op")

		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

type answerTimes struct{ commit, toCall, toFinish, toAnswer, all time.Duration }

// vendorTimes records when the calls of each intent began and ended.
type vendorTimes struct {
	mu           sync.Mutex
	began, ended map[uuid.UUID]time.Time
}

func (v *vendorTimes) note(in map[uuid.UUID]time.Time, id uuid.UUID) {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	in[id] = now
}

func (v *vendorTimes) of(id uuid.UUID) (began, ended time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.began[id], v.ended[id]
}
