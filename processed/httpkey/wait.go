package httpkey

import (
	"context"
	"time"

	"github.com/samekey/samekey/internal/backoff"
)

// The pause between two looks at a first attempt that is still running doubles between these limits.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// wait is the time that Options.Wait gives to one request. It holds no connection.
type wait struct {
	until time.Time
	looks int
}

func newWait(d time.Duration) *wait { return &wait{until: time.Now().Add(d)} }

// next waits until the next look. It returns false if the time is over or the client has disconnected.
func (w *wait) next(ctx context.Context) bool {
	w.looks++
	d := min(backoff.Ceiling(firstLook, lastLook, w.looks), time.Until(w.until))
	return d > 0 && backoff.Sleep(ctx, d) == nil
}
