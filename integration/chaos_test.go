package integration

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/samekey/samekey/samekeytest"
)

// The other tests kill processes at named points. This one kills them at random moments, and half of the vendor's calls
// have a fault.
func TestRandomKillsNeitherLoseNorDoubleAnEffect(t *testing.T) {
	t.Parallel()
	const clients, each, kills = 4, 25, 8
	b := setup(t, &samekeytest.VendorOptions{Faults: samekeytest.FaultPlan{
		Every: 2, Calls: 2,
		Faults: []samekeytest.Fault{
			samekeytest.FaultLoseAnswer, samekeytest.FaultResetBefore, samekeytest.FaultResetAfter, "500",
			"500_after", "429", samekeytest.FaultTruncate,
		},
	}})
	config := workerConfig{Apply: true, Concurrency: 8}
	service, first := b.service()
	var url atomic.Value
	url.Store(first)
	workers := []*process{b.worker("worker 0", config), b.worker("worker 1", config)}

	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for i := range each {
				c := call{key: fmt.Sprintf("%d-%d", client, i), item: fmt.Sprintf("book %d-%d", client, i)}
				current := func() string { return url.Load().(string) }
				got := askUntilAnswered(t, c, current)
				if got.status != http.StatusOK {
					t.Errorf("a request gets %+v", got)
				}
				if again := askUntilAnswered(t, c, current); !again.deduplicated || again.body != got.body {
					t.Errorf("a request gets %+v, and the same request again %+v", got, again)
				}
			}
		})
	}
	for kill := range kills {
		b.effects((kill + 1) * clients * each / (kills + 2))
		if victim := rand.N(3); victim < 2 {
			workers[victim].kill()
			workers[victim] = b.worker(fmt.Sprintf("worker %d", kill+2), config)
		} else {
			service.kill()
			var next string
			service, next = b.service()
			url.Store(next)
		}
	}
	all.Wait()
	b.effects(clients * each)
	b.settled()

	b.count(clients*each, "orders")
	b.count(clients*each, "receipts")
	b.count(clients*each, "(select distinct item from orders) items")
	b.count(clients*each, "samekey.outbox_history where final_status = 'delivered'")
	samekeytest.AssertEffects(t, b.vendor, clients*each)
	b.oneEffectEach()
}
