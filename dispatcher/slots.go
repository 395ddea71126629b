package dispatcher

import (
	"context"
	"time"
)

// slots bound the calls that a destination has in flight. A slot is held until its call has ended, not until the
// outcome is settled: otherwise a slow settle would cost calls. So the number of claims that wait for their settle is
// bounded too, or a slow database would fill the memory.
type slots struct {
	calls chan struct{} // one for each call in flight
	open  chan struct{} // one for each claim that is not settled
}

// claimLimit bounds one claim.
const claimLimit = 1000

// openClaims is how many claims may wait for their settle, beside two for each call: a batch that is written, and the
// next.
const openClaims = 2 * settleBatch

func newSlots(calls int) slots {
	return slots{calls: make(chan struct{}, calls), open: make(chan struct{}, 2*calls+openClaims)}
}

// wait waits until a slot is free, which it stays until the drain takes it: only the drain takes slots. False means
// that ctx or the time ended first.
func (s slots) wait(ctx context.Context, end <-chan time.Time) bool {
	for _, free := range []chan struct{}{s.calls, s.open} {
		select {
		case free <- struct{}{}:
			<-free
		case <-end:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// reserve takes all free slots, up to the limit of one claim.
func (s slots) reserve() (n int) {
	for ; n < claimLimit; n++ {
		select {
		case s.calls <- struct{}{}:
		default:
			return n
		}
		select {
		case s.open <- struct{}{}:
		default:
			<-s.calls
			return n
		}
	}
	return n
}

// release gives back slots in which no call was made.
func (s slots) release(n int) {
	for range n {
		<-s.calls
		<-s.open
	}
}

// callEnded frees the place of a call, and settled the place of its claim.
func (s slots) callEnded() { <-s.calls }

func (s slots) settled() { <-s.open }

// allTaken reports whether no call can begin before another one ends or is settled.
func (s slots) allTaken() bool { return len(s.calls) == cap(s.calls) || len(s.open) == cap(s.open) }
