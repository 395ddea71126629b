package integration

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/samekeytest"
)

func TestRepeatedRequestHasOneEffectAndOneAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, url := b.service()
	b.worker("worker", workerConfig{})

	first := call{key: "k1"}.do(t.Context(), url)
	if first.status != http.StatusOK || first.deduplicated {
		t.Fatalf("the first answer is %+v", first)
	}
	before := call{key: "k1"}.do(t.Context(), url)
	b.effects(1)
	b.settled()
	after := call{key: "k1"}.do(t.Context(), url)
	for _, again := range []response{before, after} {
		if again.status != first.status || again.body != first.body || !again.deduplicated {
			t.Errorf("the first answer is %+v, a later one %+v", first, again)
		}
	}
	b.count(1, "orders")
	b.count(1, "samekey.outbox")
	b.count(1, "samekey.processed_events")
	samekeytest.AssertOneEffect(t, b.vendor, deliveryKey("k1", "acme", "charge"))
	if calls := b.vendor.Counts().Calls; calls != 1 {
		t.Errorf("%d calls at the vendor, want 1", calls)
	}
}

func TestTwentyConcurrentRequestsHaveOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, url := b.service()
	b.worker("worker", workerConfig{})

	const clients = 20
	answers := make([]response, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { answers[i] = untilAnswered(t, call{key: "k1"}, url) })
	}
	all.Wait()
	runs := 0
	for _, a := range answers {
		if a.status != http.StatusOK || a.body != answers[0].body {
			t.Errorf("one answer is %+v, another %+v", answers[0], a)
		}
		if !a.deduplicated {
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
}

func TestKeyWithAnotherPayloadIsRefusedOnEveryPath(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	process, url := b.service()
	refused := func(when string) {
		t.Helper()
		if got := (call{key: "k1", amount: 101}).do(t.Context(), url); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%s, another payload gets %+v, want 422", when, got)
		}
	}

	// While the first request runs, another payload is in flight (409). After it, another payload is a conflict (422).
	done := make(chan response, 1)
	go func() {
		done <- call{key: "k1", header: map[string]string{"Test-Stand": inFunction}}.do(t.Context(), url)
	}()
	process.wait("at " + inFunction)
	if got := (call{key: "k1", amount: 101}).do(t.Context(), url); got.status != http.StatusConflict {
		t.Errorf("while the first is running, another payload gets %+v, want 409", got)
	}
	process.release()
	if first := <-done; first.status != http.StatusOK {
		t.Fatalf("the first answer is %+v", first)
	}
	refused("before the delivery")
	b.worker("worker", workerConfig{})
	b.effects(1)
	b.settled()
	refused("after the delivery")
	process.kill()
	_, url = b.service()
	refused("after a restart")

	b.count(1, "orders")
	b.count(1, "samekey.outbox")
	samekeytest.AssertEffects(t, b.vendor, 1)
}

func TestOtherKeysTenantsAndOperationsAreOtherEffects(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, url := b.service()
	b.worker("worker", workerConfig{})

	calls := []call{
		{key: "k1"}, {key: "k2"}, // two keys, one payload
		{key: "k1", tenant: "globex"},
		{key: "k1", operation: "refund"},
	}
	for range 2 {
		for _, c := range calls {
			if got := c.do(t.Context(), url); got.status != http.StatusOK {
				t.Fatalf("%+v gets %+v", c, got)
			}
		}
	}
	b.effects(len(calls))
	b.settled()
	b.count(int64(len(calls)), "orders")
	samekeytest.AssertEffects(t, b.vendor, len(calls))
	for _, key := range []string{
		deliveryKey("k1", "acme", "charge"), deliveryKey("k2", "acme", "charge"),
		deliveryKey("k1", "globex", "charge"), deliveryKey("k1", "acme", "refund"),
	} {
		samekeytest.AssertOneEffect(t, b.vendor, key)
	}
}

// deliveryKey returns the key that the vendor must receive for a request.
func deliveryKey(value, tenant, operation string) string {
	key, err := samekey.NewKey(value, tenant, operation)
	if err != nil {
		panic(err)
	}
	return samekey.DeliveryKey(key, actions[operation], "").String()
}

// untilAnswered repeats a request until it has a final answer. It retries a 409, a 503 and a broken connection, as
// clients should.
func untilAnswered(t *testing.T, c call, url string) response {
	return askUntilAnswered(t, c, func() string { return url })
}

// askUntilAnswered is untilAnswered for a service whose URL changes.
func askUntilAnswered(t *testing.T, c call, url func() string) (got response) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		switch got = c.do(t.Context(), url()); got.status {
		case 0, http.StatusConflict, http.StatusServiceUnavailable:
		default:
			return got
		}
	}
	t.Errorf("no answer within %v; the last was %+v", patience, got)
	return got
}
