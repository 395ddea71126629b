package integration

import (
	"net/http"
	"testing"

	"github.com/samekey/samekey/samekeytest"
)

// begin starts a request and returns its answer in a channel.
func begin(t *testing.T, c call, url string) <-chan response {
	got := make(chan response, 1)
	go func() { got <- c.do(t.Context(), url) }()
	return got
}

func TestServiceKilledBeforeItsCommitLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	victim, url := b.service()
	_, other := b.service()
	b.worker("worker", workerConfig{})

	lost := begin(t, call{key: "k1", header: map[string]string{"Test-Stand": inFunction}}, url)
	victim.wait("at " + inFunction)
	if got := (call{key: "k1"}).do(t.Context(), other); got.status != http.StatusConflict {
		t.Errorf("while the first is running, a retry gets %+v, want 409", got)
	}
	victim.kill()
	if got := <-lost; got.status != 0 {
		t.Errorf("the killed service answered %+v", got)
	}
	b.eventually(noOpenTransaction) // the server ends it when it sees the connection break
	b.count(0, "orders")
	b.count(0, "samekey.outbox")
	b.count(0, "samekey.processed_events")
	if got := (call{key: "k1"}).do(t.Context(), other); got.status != http.StatusOK || got.deduplicated {
		t.Errorf("the retry gets %+v, want a first answer", got)
	}
	b.effects(1)
	b.settled()
	b.count(1, "orders")
	samekeytest.AssertEffects(t, b.vendor, 1)
}

func TestServiceKilledAfterItsCommitIsReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	victim, url := b.service()
	_, other := b.service()
	b.worker("worker", workerConfig{})

	lost := begin(t, call{key: "k1", header: map[string]string{"Test-Stand": beforeAnswer}}, url)
	victim.wait("at " + beforeAnswer)
	victim.kill()
	if got := <-lost; got.status != 0 {
		t.Errorf("the killed service answered %+v", got)
	}
	if got := (call{key: "k1"}).do(t.Context(), other); got.status != http.StatusOK || !got.deduplicated {
		t.Errorf("the retry gets %+v, want the first answer again", got)
	}
	b.effects(1)
	b.settled()
	b.count(1, "orders")
	b.count(1, "samekey.outbox")
	samekeytest.AssertOneEffect(t, b.vendor, deliveryKey("k1", "acme", "charge"))
	samekeytest.AssertEffects(t, b.vendor, 1)
}
