package outbox

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/internal/names"
)

// Transitions are the changes of status in the table, for the guard of the tests.
func Transitions() (pairs [][2]Status) {
	for _, t := range intent.Table {
		for _, to := range t.To {
			if to != t.From {
				pairs = append(pairs, [2]Status{Status(t.From), Status(to)})
			}
		}
	}
	return pairs
}

// BulkSize is the size of a batch.
const BulkSize = bulkSize

var Unfinished, Finished = unfinished, finished

// Statuses are all statuses.
func Statuses() []Status { return slices.Concat(unfinished, finished) }

// ReservedHeaders are the names that an intent's headers must not have.
func ReservedHeaders() []string {
	return slices.Concat(names.ConnectionHeaders, names.WorkerHeaders, secretHeaders)
}

// SetPace makes the listeners that begin from now on read regularly at this interval only, and changes their other
// limits unless they are zero. The test must not run in parallel to others.
func SetPace(t testing.TB, every, patience time.Duration, maxWaiters int) {
	listeners.Lock()
	defer listeners.Unlock()
	before := usualPace
	usualPace.firstRead, usualPace.deafRead, usualPace.lastRead = every, every, every
	if patience > 0 {
		usualPace.patience = patience
	}
	if maxWaiters > 0 {
		usualPace.maxWaiters = maxWaiters
	}
	t.Cleanup(func() {
		listeners.Lock()
		defer listeners.Unlock()
		usualPace = before
	})
}

// Waiters are the calls of Await that wait on a pool. quiet: a connection listens, and no state is being read, nor to be.
func Waiters(pool *pgxpool.Pool) (waiting int, quiet bool) {
	listeners.Lock()
	defer listeners.Unlock()
	if l := listeners.of[pool]; l != nil {
		return l.count, l.hears && len(l.due) == 0
	}
	return 0, false
}

// Due reports whether a waiter is to be read again.
func Due(pool *pgxpool.Pool) bool {
	listeners.Lock()
	defer listeners.Unlock()
	if l := listeners.of[pool]; l != nil {
		for _, now := range l.due {
			if now {
				return true
			}
		}
	}
	return false
}
