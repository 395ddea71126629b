package integration

import (
	"net/http"
	"testing"

	"github.com/samekey/samekey/samekeytest"
)

// untold makes a request of which the client will not hear the answer.
func untold(t *testing.T, c call, url string) <-chan response {
	got := make(chan response, 1)
	go func() { got <- c.do(t.Context(), url) }()
	return got
}

func TestAServiceKilledBeforeItsCommitLeavesNothingAndTheRetryRunsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	victim, url := b.service()
	_, other := b.service()
	b.worker("worker", workerConfig{})

	lost := untold(t, call{key: "k1", header: map[string]string{"Test-Stand": inFunction}}, url)
	victim.wait("at " + inFunction)
	if got := (call{key: "k1"}).do(t.Context(), other); got.status != http.StatusConflict {
		t.Errorf("while the first is running, a retry gets %+v, want 409", got)
	}
	victim.kill()
	if got := <-lost; got.status != 0 {
		t.Errorf("the killed service answered %+v", got)
	}
	// The server ends the transaction as soon as it sees the connection break.
	b.eventually(`not exists (select from pg_stat_activity where datname = current_database() and state = 'idle in transaction')`)
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

func TestAServiceKilledAfterItsCommitIsReplayedAndHasOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	victim, url := b.service()
	_, other := b.service()
	b.worker("worker", workerConfig{})

	lost := untold(t, call{key: "k1", header: map[string]string{"Test-Stand": beforeAnswer}}, url)
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
