package dispatcher

import (
	"context"
	"time"
)

// backoff is a wait that doubles from first to most.
type backoff struct{ first, most, next time.Duration }

// delay returns the next wait.
func (b *backoff) delay() time.Duration {
	d := max(b.next, b.first)
	b.next = min(2*d, b.most)
	return d
}

// sleep waits. False means that ctx ended first.
func (b *backoff) sleep(ctx context.Context) bool { return sleep(ctx, b.delay()) }

// reset starts again with the first wait.
func (b *backoff) reset() { b.next = 0 }

// sleep waits for d. False means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
