package processed

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/keyed"
)

// What an intent costs does not grow with the number that is queued: each is found by its name.
func TestAnIntentCostsTheSameInALongQueue(t *testing.T) {
	intents := make([]keyed.Intent, 20_000)
	for i := range intents {
		intents[i] = keyed.Intent{ID: uuid.New(), Action: "send_mail", Part: fmt.Sprint(i), Payload: []byte("1")}
	}
	each := func(n int) time.Duration { // with as many intents altogether
		best := time.Duration(math.MaxInt64)
		for range 5 {
			began := time.Now()
			for range len(intents) / n {
				q := &queue{}
				for _, in := range intents[:n] {
					if _, queued, err := q.enqueue(in); err != nil || !queued {
						t.Fatal(queued, err)
					}
				}
				if id, _, _ := q.enqueue(intents[n/2]); id != intents[n/2].ID || len(q.intents) != n {
					t.Fatalf("%d intents, and one again has the id %s", len(q.intents), id)
				}
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	short, long := each(200), each(20_000)
	if long > 10*short { // 100 times where each looks at all
		t.Errorf("20,000 intents took %s in queues of 200 and %s in one queue", short, long)
	}
}

func TestAnotherPayloadInTheQueueIsKeptAsTheError(t *testing.T) {
	own := errors.New("own")
	q := &queue{}
	in := keyed.Intent{ID: uuid.New(), Action: "a", Payload: []byte("1"), Conflict: func(error) error { return own }}
	_, _, _ = q.enqueue(in)
	in.Payload = []byte("2")
	if _, _, err := q.enqueue(in); !errors.Is(err, own) || !errors.Is(q.failure(), own) {
		t.Errorf("%v, %v", err, q.failure())
	}
}
