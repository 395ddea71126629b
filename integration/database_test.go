package integration

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestCommitWithALostAnswerIsFoundAndHasOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	proxy := wiretest.Start(t, b.appDSN)
	_, url := b.service(serviceConfig{DSN: proxy.DSN()})
	b.worker("worker", workerConfig{})

	lost := proxy.Arm(wiretest.LoseAnswer, "commit")
	got := call{key: "k1"}.do(t.Context(), url)
	<-lost
	if got.status != http.StatusOK || !got.deduplicated {
		t.Errorf("the answer is %+v, want the stored answer", got)
	}
	if again := (call{key: "k1"}).do(t.Context(), url); again.status != http.StatusOK || again.body != got.body {
		t.Errorf("the retry gets %+v, want %+v", again, got)
	}
	b.effects(1)
	b.settled()
	b.count(1, "orders")
	samekeytest.AssertEffects(t, b.vendor, 1)
}

func TestCommitThatNeverArrivedIsRunAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	proxy := wiretest.Start(t, b.appDSN)
	_, url := b.service(serviceConfig{DSN: proxy.DSN()})
	b.worker("worker", workerConfig{})

	cut := proxy.Arm(wiretest.CutBefore, "commit")
	if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusServiceUnavailable {
		t.Errorf("the answer is %+v, want 503", got)
	}
	<-cut
	b.count(0, "orders")
	b.count(0, "samekey.outbox")
	if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusOK || got.deduplicated {
		t.Errorf("the retry gets %+v, want a first answer", got)
	}
	b.effects(1)
	b.settled()
	b.count(1, "orders")
	samekeytest.AssertEffects(t, b.vendor, 1)
}

func TestRunWaitsForACommitThatIsInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	proxy := wiretest.Start(t, b.appDSN)
	_, url := b.service(serviceConfig{DSN: proxy.DSN()})
	b.worker("worker", workerConfig{})

	held := proxy.Arm(wiretest.Hold, "commit")
	first := begin(t, call{key: "k1"}, url)
	<-held
	// A lookup without the key's lock would find no record now, and the commit would arrive later.
	b.eventually(`exists (select from pg_stat_activity where datname = current_database() and wait_event = 'advisory')`)
	proxy.Release()
	if got := <-first; got.status != http.StatusOK || !got.deduplicated {
		t.Errorf("the answer is %+v, want the stored answer", got)
	}
	b.effects(1)
	b.settled()
	b.count(1, "orders")
	samekeytest.AssertEffects(t, b.vendor, 1)
}

func TestWorkersResumeWhenTheDatabaseReturns(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	road := newRoad(t, b.workerDSN)
	var workers []*process
	for _, name := range []string{"one", "two"} {
		workers = append(workers, b.worker(name, workerConfig{DSN: road.dsn, Apply: true}))
	}
	b.vendor.HoldAnswers()
	b.insertMany("book-", 4)
	b.effects(4)
	road.close()
	b.vendor.Release() // the answers arrive while the database is unavailable
	for _, w := range workers {
		w.wait("sweep failed") // a repeated line comes ten seconds later
	}
	b.insertMany("pen-", 20) // not through the proxy
	if n := road.refused(); n > 200 {
		t.Errorf("the workers tried to connect %d times meanwhile, want at most 200", n)
	}
	road.open()
	b.effects(24)
	b.settled()
	b.count(24, "receipts")
	samekeytest.AssertEffects(t, b.vendor, 24)
	b.oneEffectEach()
	for _, w := range workers {
		w.wait("holds the worker's lock again")
	}
}

func TestColumnsAddedLiveLoseNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, url := b.service()
	for _, name := range []string{"one", "two"} {
		b.worker(name, workerConfig{Apply: true})
	}
	const clients, each = 4, 25
	var all sync.WaitGroup
	midway := make(chan struct{}, clients)
	for client := range clients {
		all.Go(func() {
			for i := range each {
				if i == each/5 {
					midway <- struct{}{}
				}
				key := string(rune('a'+client)) + strings.Repeat("x", i)
				if got := untilAnswered(t, call{key: key, item: key}, url); got.status != http.StatusOK {
					t.Errorf("a request gets %+v", got)
				}
			}
		})
	}
	for range clients {
		<-midway
	}
	// Open calls hold no transaction, so the change does not wait for them.
	b.vendor.HoldAnswers()
	b.open(1)
	for _, table := range []string{"outbox", "outbox_queue", "outbox_history", "processed_events", "workers"} {
		b.exec(`begin; set local lock_timeout = '10s'; alter table samekey.` + table + ` add column added_live text not null default 'x'; commit`)
	}
	b.vendor.Release()
	all.Wait()
	b.effects(clients * each)
	b.settled()
	b.count(clients*each, "orders")
	b.count(clients*each, "receipts")
	samekeytest.AssertEffects(t, b.vendor, clients*each)
	page, err := outbox.List(t.Context(), b.Pool, outbox.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(page.Entries, func(e outbox.Entry) bool { return e.Status != outbox.StatusDelivered }) {
		t.Error("an intent is not delivered")
	}
}
