package limit

import (
	"math"
	"sync"
	"time"
)

// Rate is one worker's share of a destination's rate. The budget is one row for all workers. Before a claim, one
// statement takes as many permits as have come due and as there are slots. A claim never asks for more than there are
// permits.
//
//	two workers take at once                 the second waits for the first one's row and counts on from there
//	killed between the take and the claim    the permits are lost: fewer calls are made, never more
//	the claim gets fewer than it may         another worker took them; the rest can be used for permitLife, then it is lost
//	nothing is due                           the statement takes nothing: an idle destination's budget stays whole
//	nothing is left                          the statement returns when the next batch is there; no claim asks before
//	the rate or the burst is changed         the row holds a number of calls, not a time: see queries/rate_limits.sql
//	the database's clock is set back         no time has passed: a permit comes after 1/rate
//	serializable by default                  a take that lost against another (40001) took nothing, and waits
type Rate struct {
	PerSecond    float64 // zero: no limit
	Burst, Batch int     // how many permits there are at most, and how many to wait for once there are none

	mu      sync.Mutex
	permits int       // in hand
	expire  time.Time // when they can no longer be used
	next    time.Time // when the next ones may be asked for
}

const (
	// permitLife is how long a permit can be used.
	permitLife = 200 * time.Millisecond
	// TakeEvery is about how often a destination at its rate asks for permits: it waits for what comes in that time.
	TakeEvery = 50 * time.Millisecond
)

// NewRate makes a rate of that many calls a second.
func NewRate(perSecond float64, burst int) *Rate {
	// Half of the burst at most: what a late asker does not take while the budget is whole is lost.
	batch := min(int(math.Ceil(perSecond*TakeEvery.Seconds())), burst/2)
	return &Rate{PerSecond: perSecond, Burst: burst, Batch: max(batch, 1)}
}

// Wait returns how long no permit may be asked for.
func (r *Rate) Wait(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inHand(now) > 0 {
		return 0
	}
	return max(r.next.Sub(now), 0)
}

func (r *Rate) inHand(now time.Time) int {
	if !now.Before(r.expire) {
		r.permits = 0
	}
	return r.permits
}

// Use takes up to want permits that are in hand.
func (r *Rate) Use(now time.Time, want int) (have int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have = min(r.inHand(now), want)
	r.permits -= have
	return have
}

// Unused takes back permits for which no call was made. They can be used for as long as before.
func (r *Rate) Unused(permits int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.permits += permits
}

// Took takes that permits were asked for and all that came are in use. They expire permitLife after asked. No others
// are there before wait has passed; zero if that is not known.
func (r *Rate) Took(asked time.Time, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.permits, r.expire = 0, asked.Add(permitLife)
	if wait > 0 {
		r.next = time.Now().Add(wait)
	}
}
