package dbtest

import (
	"testing"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

// Until waits until the condition is true. It checks at once, and then at growing intervals up to 20 ms: most
// conditions are queries, and many tests wait at the same time.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	limit := time.After(Patience)
	for pause := time.Millisecond; !condition(); pause = min(pause*2, 20*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-limit:
			t.Fatalf("timed out after %v waiting until %s", Patience, what)
		}
	}
}

// Receive waits for a signal and returns its value.
func Receive[T any](t testing.TB, what string, signal <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-signal:
	case <-time.After(Patience):
		t.Fatalf("timed out after %v waiting until %s", Patience, what)
	}
	return value
}

// LockWaits returns how many sessions of the database wait for a lock.
func LockWaits(t testing.TB, db *samekeytest.DB) int {
	t.Helper()
	return Value[int](t, db, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
}
