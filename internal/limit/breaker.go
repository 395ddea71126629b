package limit

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A Breaker stops the calls to a vendor that fails, and tries one call at a time until the vendor answers again. Each
// process has its own and finds out for itself.
//
//	32 calls are in flight when it opens      their ends belong to an epoch that is over and are not counted: the delay
//	                                          does not double for each of them
//	one of them is answered late              that does not close it: the probe decides
//	the probe claims nothing, or is given     the probe is returned, and the next claim may have it
//	back without a call
//	the probe's handler never returns         after probePatience there is another probe; the first answer counts
//	two drains, or two actions, want it       one gets the probe, the other gets nothing
//	it opens while a claim runs               the calls of that claim are made: they belong to the epoch that is over
//	failures and answers mixed                an answer starts the count again: it never opens on a vendor that mostly answers
//	several calls are throttled at once       it holds until the latest of the times they were told. Then all calls go on:
//	                                          the vendor answers, so it is not open and needs no probe
//	the vendor wants fewer calls and gives    it holds for a time that doubles with each such answer, up to the longest delay;
//	no time (429), or wants to be asked       then one call goes out, and each better answer doubles the calls in flight
//	later so often in a row (503)
//	32 calls are in flight when it holds      they belong to the epoch that is over: one hold for all of them
//	a call of a window never returns          after probePatience another call may go
//
// A library does not fit well: failsafe-go's breaker brings in grpc and protobuf, its half-open state cannot return a
// permit without a verdict, and it counts one kind of failure by one threshold.
type Breaker struct {
	after           int // failures in a row that open it; negative: it never opens
	delay, maxDelay time.Duration
	draw            func(ceiling time.Duration) time.Duration

	mu               sync.Mutex
	failures, denied int       // in a row
	trips            int       // how often it opened since it was last closed
	until            time.Time // open until then and until a probe is answered; zero while it is closed
	probed           time.Time // when the probe that is out was given; zero if no probe is out
	held             time.Time // nothing is admitted before, since the vendor asked for that
	laters           int       // answers in a row that ask to be called later
	holds            int       // in a row, without a better answer between
	window           int       // after a hold: how many calls may be in flight; zero: any number
	out              int       // calls in flight in this epoch, while there is a window
	admitted         time.Time // when the last of them was admitted
	epoch            int
}

// Health is what the end of a claim says about the vendor.
type Health int

// The signs of a vendor's health.
const (
	NoSign    Health = iota // nothing: no call was made
	Good                    // it answered, whatever the answer was
	Bad                     // it could not be reached, or it may have acted
	Denied                  // it refused the credentials
	Throttled               // it answered that it wants fewer calls
	Later                   // it answered that it did not act, and wants to be asked later
)

const (
	deniedBreaks  = 3           // this many refused credentials in a row open it
	probePatience = time.Minute // after which a probe that has not returned is given again
	holdFraction  = 8           // the first hold is this fraction of the first delay: one 429 among many answers costs little
	fullWindow    = 256         // with so many calls in flight the last hold is forgotten
)

// FullJitter draws a wait up to the ceiling.
func FullJitter(ceiling time.Duration) time.Duration { return rand.N(ceiling) + 1 }

// BreakerConfig are the numbers of a breaker.
type BreakerConfig struct {
	After           int                                       // failures in a row that open it; negative: there is no breaker
	Delay, MaxDelay time.Duration                             // the longest first wait, and how far it doubles
	Draw            func(ceiling time.Duration) time.Duration // the wait below that: FullJitter
}

// NewBreaker makes a closed breaker.
func NewBreaker(c BreakerConfig) *Breaker {
	return &Breaker{after: c.After, delay: c.Delay, maxDelay: c.MaxDelay, draw: c.Draw}
}

// Admit returns how many of want may be claimed: all, none, or one as a probe. Record takes the epoch with each of
// them, and Unused takes back those that were not claimed.
func (b *Breaker) Admit(now time.Time, want int) (may, epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.waits(now) > 0:
		return 0, b.epoch
	case !b.until.IsZero():
		b.probed = now
		return 1, b.epoch
	case b.window > 0:
		b.out = min(b.out, b.window-1) // a call that has not returned for so long no longer counts
		may = min(want, b.window-b.out)
		b.out, b.admitted = b.out+may, now
		return may, b.epoch
	}
	return want, b.epoch
}

// Unused takes back permits of Admit, of that epoch, for which nothing was claimed.
func (b *Breaker) Unused(epoch, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch == b.epoch && n > 0 {
		b.probed = time.Time{}
		b.out = max(b.out-n, 0)
	}
}

// Wait returns how long nothing is admitted.
func (b *Breaker) Wait(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits(now)
}

func (b *Breaker) waits(now time.Time) time.Duration {
	held := max(b.held.Sub(now), 0)
	switch {
	case b.until.IsZero() && b.window > 0 && b.out >= b.window:
		return max(b.admitted.Add(probePatience).Sub(now), held)
	case b.until.IsZero():
		return held
	case !b.probed.IsZero():
		return max(b.probed.Add(probePatience).Sub(now), held)
	}
	return max(b.until.Sub(now), held)
}

// delayEnds is when the delay of the last opening ends or ended, or when a hold ends; zero while it admits all. A probe
// may still be out.
func (b *Breaker) delayEnds(now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held.After(now) && b.held.After(b.until) {
		return b.held
	}
	return b.until
}

// spotless reports whether there is nothing to remember.
func (b *Breaker) spotless(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until.IsZero() && b.failures == 0 && b.laters == 0 && b.window == 0 && !b.held.After(now)
}

// Change says how the end of a call changed the breaker.
type Change struct {
	Opened, Closed bool
	Failures       int  // in a row, that opened it
	Trips          int  // how often it opened since it was last closed
	Holds          int  // more than zero: it holds now, and how many holds in a row this is
	Room           bool // one more call may be in flight
	Delay          time.Duration
}

// Record takes what a claim of that epoch says about the vendor.
func (b *Breaker) Record(epoch int, h Health, now time.Time) (c Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch != b.epoch {
		return Change{}
	}
	open := !b.until.IsZero()
	c.Room = b.window > 0
	b.out = max(b.out-1, 0)
	switch h {
	case NoSign:
		b.probed = time.Time{}
		return c
	case Good:
		b.answers()
		b.laters, b.holds = 0, 0
		if b.window *= 2; b.window > fullWindow {
			b.window = 0
		}
		c.Closed = open
		return c
	case Later, Throttled:
		b.answers()
		b.laters++
		c.Closed = open
		if b.after < 0 || h == Later && b.window == 0 && b.laters < b.after {
			return c
		}
		b.holds++
		c.Holds, c.Delay = b.holds, b.draw(b.ceiling(max(b.delay/holdFraction, time.Millisecond), b.holds))
		if until := now.Add(c.Delay); until.After(b.held) {
			b.held = until
		}
		b.window, b.out = 1, 0
		b.epoch++
		return c
	case Denied:
		b.denied++
	}
	b.failures++
	if b.after < 0 || !open && b.failures < b.after && b.denied < min(deniedBreaks, b.after) {
		return c
	}
	b.trips++
	c = Change{Opened: true, Failures: b.failures, Trips: b.trips, Delay: b.draw(b.ceiling(b.delay, b.trips))}
	b.until, b.probed = now.Add(c.Delay), time.Time{}
	b.epoch++
	return c
}

// answers closes the breaker: the vendor answers.
func (b *Breaker) answers() {
	b.failures, b.denied, b.trips, b.until, b.probed = 0, 0, 0, time.Time{}, time.Time{}
}

// Throttle takes a vendor's answer to a claim of that epoch that it wants no call before d has passed. Nothing is
// admitted until then. It returns how long it holds, or zero if it held already.
func (b *Breaker) Throttle(epoch int, d time.Duration, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch == b.epoch {
		b.answers()
		b.out = max(b.out-1, 0)
	}
	d = min(d, b.maxDelay)
	already, until := b.held.After(now), now.Add(d)
	if b.after < 0 || !until.After(b.held) {
		return 0
	}
	b.held = until
	if already {
		return 0
	}
	return d
}

// ceiling is the longest wait after so many trips or holds.
func (b *Breaker) ceiling(wait time.Duration, times int) time.Duration {
	for n := 1; n < times && wait < b.maxDelay; n++ {
		wait *= 2
	}
	return min(wait, b.maxDelay)
}
