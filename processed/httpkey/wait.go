package httpkey

import (
	"context"
	"time"
)

// Between two looks at a first attempt that is still running.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// wait is what Options.Wait gives to one request. It holds no connection.
type wait struct {
	until time.Time
	pause time.Duration
}

func newWait(d time.Duration) *wait { return &wait{until: time.Now().Add(d), pause: firstLook} }

// next waits until it is time for another look. It returns false where the time is
// over, or the client has gone.
func (w *wait) next(ctx context.Context) bool {
	d := min(w.pause, time.Until(w.until))
	if d <= 0 {
		return false
	}
	w.pause = min(2*w.pause, lastLook)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
