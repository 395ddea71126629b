package dispatcher

import (
	"sync/atomic"
	"time"
)

// identity is what a worker knows of itself: its id, and whether it holds the id's lock. The session writes it.
//
// A claim checks the lock itself, in the same statement, so held is only what this process believes: it saves claims
// that would find nothing.
type identity struct {
	current atomic.Int32              // the id; changes where a stranger has taken it
	held    atomic.Pointer[time.Time] // since when the lock is held, by the monotonic clock; nil while it is not
}

// id is the worker's, by which it claims.
func (i *identity) id() int32 { return i.current.Load() }

// holds says whether the lock is held, as far as this process knows.
func (i *identity) holds() bool { return i.held.Load() != nil }

// heldFor says for how long it has been.
func (i *identity) heldFor() time.Duration {
	since := i.held.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}
