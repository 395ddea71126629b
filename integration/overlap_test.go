package integration

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

// withAndWithoutLock runs a test twice: the advisory lock is only for a fast
// "in flight", and the primary key is the guarantee.
func withAndWithoutLock(t *testing.T, test func(t *testing.T, lock string)) {
	for _, lock := range []string{"on", "off"} {
		t.Run("lock "+lock, func(t *testing.T) {
			t.Parallel()
			test(t, lock)
		})
	}
}

func TestOfFirstAttemptsThatOverlapOneRunsToCommit(t *testing.T) {
	withAndWithoutLock(t, func(t *testing.T, lock string) {
		b := setup(t, nil)
		holder, url := b.service()
		_, other := b.service()
		header := map[string]string{"Test-Lock": lock, "Test-Stand": inFunction}

		// The first stands in its function; five come meanwhile, by way of another
		// process. With the lock they are in flight, without it they overtake.
		first := untold(t, call{key: "k1", header: header}, url)
		holder.wait("at " + inFunction)
		answers := make([]response, 5)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				answers[i] = call{key: "k1", header: map[string]string{"Test-Lock": lock}}.do(t.Context(), other)
			})
		}
		all.Wait()
		holder.release()
		answers = append(answers, <-first)

		runs, want := 0, response{}
		for _, got := range answers {
			switch {
			case got.status == http.StatusOK && !got.deduplicated:
				runs, want = runs+1, got
			case got.status == http.StatusConflict && lock == "on":
			case got.status == http.StatusOK && got.deduplicated:
			default:
				t.Errorf("an answer is %+v", got)
			}
		}
		if runs != 1 {
			t.Errorf("%d calls say that they ran to commit, want 1: %+v", runs, answers)
		}
		for _, got := range answers {
			if got.status == http.StatusOK && got.body != want.body {
				t.Errorf("one answer is %+v, another %+v", want, got)
			}
		}
		b.count(1, "orders")
		b.count(1, "samekey.outbox")
		b.count(1, "samekey.processed_events")
	})
}

func TestWhereTheFirstRollsBackExactlyOneOfFiveWaitingRuns(t *testing.T) {
	withAndWithoutLock(t, func(t *testing.T, lock string) {
		b := setup(t, nil)
		holder, url := b.service()
		_, other := b.service()
		b.worker("worker", workerConfig{})

		first := untold(t, call{key: "k1", header: map[string]string{
			"Test-Lock": lock, "Test-Stand": inFunction, "Test-End": "rollback"}}, url)
		holder.wait("at " + inFunction)
		answers := make([]response, 5)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				answers[i] = untilAnswered(t, call{key: "k1", header: map[string]string{"Test-Lock": lock}}, other)
			})
		}
		holder.release()
		if got := <-first; got.status != http.StatusInternalServerError {
			t.Errorf("the one that rolls back gets %+v, want 500", got)
		}
		all.Wait()
		runs := 0
		for _, got := range answers {
			if got.status != http.StatusOK || got.body != answers[0].body {
				t.Errorf("one answer is %+v, another %+v", answers[0], got)
			}
			if !got.deduplicated {
				runs++
			}
		}
		if runs != 1 {
			t.Errorf("%d calls say that they ran, want 1", runs)
		}
		b.effects(1)
		b.settled()
		b.count(1, "orders")
		b.count(1, "samekey.outbox")
		samekeytest.AssertEffects(t, b.vendor, 1)
	})
}

func TestWhatIsRolledBackLeavesNothingAndTheKeyIsFree(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	stopped, stoppedURL := b.service()
	_, url := b.service()
	b.worker("worker", workerConfig{})
	for _, end := range []string{"rollback", "panic", "swallow"} {
		got := call{key: "k1", header: map[string]string{"Test-End": end}}.do(t.Context(), url)
		if got.status == http.StatusOK {
			t.Errorf("%s gets %+v", end, got)
		}
	}
	// A client that hangs up cancels the request's context.
	ctx, hangUp := context.WithCancel(t.Context())
	lost := make(chan response, 1)
	go func() {
		lost <- call{key: "k1", header: map[string]string{"Test-Stand": inFunction}}.do(ctx, stoppedURL)
	}()
	stopped.wait("at " + inFunction)
	hangUp()
	<-lost
	stopped.wait("hung up")
	stopped.release()
	b.eventually(`not exists (select from pg_stat_activity where datname = current_database() and state = 'idle in transaction')`)

	b.count(0, "orders")
	b.count(0, "samekey.outbox")
	b.count(0, "samekey.processed_events")
	// A savepoint that is rolled back takes its intent along; the rest commits.
	if got := (call{key: "k2", header: map[string]string{"Test-End": "savepoint"}}).do(t.Context(), url); got.status != http.StatusOK {
		t.Errorf("with a savepoint rolled back, the request gets %+v", got)
	}
	b.count(0, "orders")
	b.count(0, "samekey.outbox")
	b.count(1, "samekey.processed_events")
	if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusOK || got.deduplicated {
		t.Errorf("after that, the request gets %+v, want a first answer", got)
	}
	b.effects(1)
	b.settled()
	samekeytest.AssertEffects(t, b.vendor, 1)
}

func TestTwentyCallsOnOneKeyWithAPoolOfFourLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	p, url := b.service(serviceConfig{Conns: 4})
	first := untold(t, call{key: "k1", header: map[string]string{"Test-Stand": inFunction}}, url)
	p.wait("at " + inFunction)

	began := time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := (call{key: "k1"}).do(t.Context(), url); got.status != http.StatusConflict {
				t.Errorf("while the first is running, another gets %+v, want 409", got)
			}
		})
	}
	all.Go(func() {
		got, err := client.Get(url + "/count")
		if err != nil || got.StatusCode != http.StatusOK {
			t.Errorf("a query of no key gets %v, %v", got, err)
			return
		}
		_ = got.Body.Close()
	})
	all.Wait()
	// The first still holds its transaction: nobody waited for it.
	if waited := time.Since(began); waited > patience/2 {
		t.Errorf("they waited for %v", waited)
	}
	p.release()
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("the first gets %+v", got)
	}
	b.count(1, "orders")
}

func TestSerializableTransactionsOfOneKeyEndInOneAnswer(t *testing.T) {
	withAndWithoutLock(t, func(t *testing.T, lock string) {
		b := setup(t, nil)
		_, url := b.service(serviceConfig{Conns: 16})
		answers := make([]response, 8)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				answers[i] = untilAnswered(t, call{key: "k1", header: map[string]string{
					"Test-Lock": lock, "Test-Isolation": "serializable"}}, url)
			})
		}
		all.Wait()
		for _, got := range answers {
			if got.status != http.StatusOK || got.body != answers[0].body {
				t.Errorf("one answer is %+v, another %+v", answers[0], got)
			}
		}
		b.count(1, "orders")
		b.count(1, "samekey.outbox")
	})
}
