// Package hook lets samekey's own tests switch off a lock or shorten a wait. Nothing else uses it.
package hook

import (
	"context"
	"time"
)

type lockKey struct{}

// WithoutLock makes processed skip the advisory lock on the key, so that a test can show that the primary key is the
// guarantee.
func WithoutLock(ctx context.Context) context.Context { return context.WithValue(ctx, lockKey{}, true) }

// LockOff reports whether ctx comes from WithoutLock.
func LockOff(ctx context.Context) bool { return ctx.Value(lockKey{}) != nil }

type findOutKey struct{}

// FindOutWithin limits the lookup after a commit whose answer was lost.
func FindOutWithin(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, findOutKey{}, d)
}

// FindOut returns the limit of FindOutWithin, or otherwise.
func FindOut(ctx context.Context, otherwise time.Duration) time.Duration {
	if d, ok := ctx.Value(findOutKey{}).(time.Duration); ok {
		return d
	}
	return otherwise
}
