package integration

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

// withAndWithoutLock runs a test with the advisory lock and without it. The primary key alone must guarantee one run:
// the lock only lets other requests fail fast with "in flight".
func withAndWithoutLock(t *testing.T, test func(t *testing.T, lock string)) {
	for _, lock := range []string{"on", "off"} {
		t.Run("lock "+lock, func(t *testing.T) {
			t.Parallel()
			test(t, lock)
		})
	}
}

func TestOneOfOverlappingFirstAttemptsCommits(t *testing.T) {
	withAndWithoutLock(t, func(t *testing.T, lock string) {
		b := setup(t, nil)
		holder, url := b.service()
		_, other := b.service()
		header := map[string]string{"Test-Lock": lock, "Test-Stand": inFunction}

		// The first request waits in its function while another process handles five more. With the lock they are refused as
		// in flight. Without it one of them commits first.
		first := begin(t, call{key: "k1", header: header}, url)
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
			t.Errorf("%d calls committed, want 1: %+v", runs, answers)
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

func TestAfterARollbackOneOfFiveWaitingRequestsRuns(t *testing.T) {
	withAndWithoutLock(t, func(t *testing.T, lock string) {
		b := setup(t, nil)
		holder, url := b.service()
		_, other := b.service()
		b.worker("worker", workerConfig{})

		first := begin(t, call{key: "k1", header: map[string]string{
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
			t.Errorf("the request that rolls back gets %+v, want 500", got)
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
			t.Errorf("%d calls ran the function, want 1", runs)
		}
		b.effects(1)
		b.settled()
		b.count(1, "orders")
		b.count(1, "samekey.outbox")
		samekeytest.AssertEffects(t, b.vendor, 1)
	})
}

func TestRollbackLeavesNothingAndFreesTheKey(t *testing.T) {
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
	// A client that disconnects cancels the request's context.
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
	b.eventually(noOpenTransaction)

	b.count(0, "orders")
	b.count(0, "samekey.outbox")
	b.count(0, "samekey.processed_events")
	// A rollback to a savepoint removes the intent that was inserted after it. The rest commits.
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

func TestTwentyRequestsForOneKeyDoNotBlockAPoolOfFour(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	p, url := b.service(serviceConfig{Conns: 4})
	first := begin(t, call{key: "k1", header: map[string]string{"Test-Stand": inFunction}}, url)
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
			t.Errorf("a query without a key gets %v, %v", got, err)
			return
		}
		_ = got.Body.Close()
	})
	all.Wait()
	// The first request still holds its transaction, so the others must not have waited for it.
	if waited := time.Since(began); waited > patience/2 {
		t.Errorf("the other requests took %v", waited)
	}
	p.release()
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("the first gets %+v", got)
	}
	b.count(1, "orders")
}

func TestSerializableTransactionsOfOneKeyGetOneAnswer(t *testing.T) {
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
