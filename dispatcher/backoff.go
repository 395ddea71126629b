package dispatcher

import (
	"context"
	"time"

	"github.com/samekey/samekey/internal/backoff"
)

// doubling is a wait that doubles from first to most.
type doubling struct{ first, most, next time.Duration }

// delay returns the next wait.
func (b *doubling) delay() time.Duration {
	d := max(b.next, b.first)
	b.next = min(2*d, b.most)
	return d
}

// sleep waits. False means that ctx ended first.
func (b *doubling) sleep(ctx context.Context) bool { return sleep(ctx, b.delay()) }

// reset starts again with the first wait.
func (b *doubling) reset() { b.next = 0 }

// sleep waits for d. False means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool { return backoff.Sleep(ctx, d) == nil }
