package integration

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// prune prunes as the worker's role.
func (b *bundle) prune(pool *pgxpool.Pool) processed.Pruned {
	b.t.Helper()
	pruned, err := processed.Prune(b.t.Context(), pool, processed.Pruning{})
	if err != nil {
		b.t.Fatal(err)
	}
	return pruned
}

func (b *bundle) workerPool() *pgxpool.Pool {
	b.t.Helper()
	return dbtest.Pool(b.t, b.workerDSN)
}

func TestKeyReplaysUntilItIsPruned(t *testing.T) {
	t.Parallel()
	// The vendor ignores keys, so every call is an effect.
	b := setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})
	pool := b.workerPool()
	_, url := b.service()
	worker := b.worker("worker", workerConfig{})
	first := call{key: "k1"}.do(t.Context(), url)
	b.effects(1)
	b.settled()
	worker.kill() // it prunes by itself

	samekeytest.Elapse(t, b.DB, 48*time.Hour)
	if pruned := b.prune(pool); pruned.Records+pruned.Intents != 0 {
		t.Errorf("a day before the end of its retention, %+v was pruned", pruned)
	}
	if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusOK || !got.deduplicated || got.body != first.body {
		t.Errorf("a day before the end of its retention, the request gets %+v, want %+v", got, first)
	}
	samekeytest.Elapse(t, b.DB, 25*time.Hour)
	// The record has expired and is not pruned, so it still replays.
	if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusOK || !got.deduplicated {
		t.Errorf("expired and not pruned, the request gets %+v, want a replay", got)
	}
	if pruned := b.prune(pool); pruned != (processed.Pruned{Records: 1, Intents: 1}) {
		t.Errorf("past its retention, %+v was pruned, want the record and its intent", pruned)
	}
	if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusOK || got.deduplicated {
		t.Errorf("after it was pruned, the request gets %+v, want a first answer", got)
	}
	b.worker("next", workerConfig{})
	b.effects(2)
	b.settled()
	b.count(2, "orders")
	samekeytest.AssertEffects(t, b.vendor, 2)
}

func TestPruneOfAKeyInUseLeavesOneTruthfulAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})
	pool := b.workerPool()
	_, url := b.service(serviceConfig{Conns: 8})
	b.worker("worker", workerConfig{})

	const keys = 20
	// each calls do with every key, four at a time.
	each := func(do func(c call)) {
		var all sync.WaitGroup
		for lane := range 4 {
			all.Go(func() {
				for i := lane; i < keys; i += 4 {
					name := fmt.Sprintf("k%d", i)
					do(call{key: name, item: name})
				}
			})
		}
		all.Wait()
	}
	var mu sync.Mutex
	runs := 0
	ask := func(c call) {
		got := untilAnswered(t, c, url)
		if got.status != http.StatusOK {
			t.Errorf("a request gets %+v", got)
		}
		if !got.deduplicated {
			mu.Lock()
			runs++
			mu.Unlock()
		}
	}
	ran := func() int {
		mu.Lock()
		defer mu.Unlock()
		return runs
	}
	each(ask)
	b.effects(keys)
	b.settled()
	samekeytest.Elapse(t, b.DB, 73*time.Hour)

	done := make(chan struct{})
	var pruner sync.WaitGroup
	pruner.Go(func() {
		for {
			if _, err := processed.Prune(t.Context(), pool, processed.Pruning{Batch: 1}); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for deadline := time.Now().Add(patience); ran() < 2*keys && time.Now().Before(deadline); {
		each(ask)
	}
	close(done)
	pruner.Wait()

	// Each key ran once more. Each answer that reports a run has its order, and each record has its intent.
	if runs != 2*keys {
		t.Errorf("the function ran %d times, want %d", runs, 2*keys)
	}
	b.effects(2 * keys)
	b.settled()
	b.count(2*keys, "orders")
	samekeytest.AssertEffects(t, b.vendor, 2*keys)
	b.count(keys, "samekey.processed_events")
	b.count(0, `samekey.processed_events p full join samekey.outbox o using (idem_key, scope) where o.id is null or p.created_at is null`)
}
