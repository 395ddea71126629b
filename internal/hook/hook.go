// Package hook lets samekey's own tests switch off or shorten what they must look behind. Nothing else sets it.
package hook

import (
	"context"
	"time"
)

type lockKey struct{}

// WithoutLock makes processed work without the advisory lock on the key, so that a test shows the primary key to be
// the guarantee.
func WithoutLock(ctx context.Context) context.Context { return context.WithValue(ctx, lockKey{}, true) }

// LockOff reports whether ctx comes from WithoutLock.
func LockOff(ctx context.Context) bool { return ctx.Value(lockKey{}) != nil }

type findOutKey struct{}

// FindOutWithin bounds the look-up after a commit whose answer was lost.
func FindOutWithin(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, findOutKey{}, d)
}

// FindOut returns the bound set by FindOutWithin, or the given one.
func FindOut(ctx context.Context, otherwise time.Duration) time.Duration {
	if d, ok := ctx.Value(findOutKey{}).(time.Duration); ok {
		return d
	}
	return otherwise
}
