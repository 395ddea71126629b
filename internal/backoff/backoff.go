// Package backoff holds the two parts that every retry loop shares: how long to wait, and the wait itself.
package backoff

import (
	"context"
	"time"
)

// Ceiling returns the longest wait after n failures: first, doubled with each further failure, and at most longest.
// Draw the wait between zero and the ceiling (full jitter), so that callers that collided do not collide again.
func Ceiling(first, longest time.Duration, n int) time.Duration {
	wait := min(first, longest)
	for ; n > 1 && wait < longest; n-- {
		if wait > longest/2 { // doubling could overflow
			return longest
		}
		wait *= 2
	}
	return wait
}

// Sleep waits for d, or until ctx ends. It returns ctx's error in the second case, and nil otherwise.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
