package dispatcher

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// A breaker stops the calls to a vendor that fails, and finds out by one call at a time whether it is back. It is this
// process's own: another finds out for itself.
//
//	32 calls are under way when it opens      what they come to belongs to an epoch that is over, and is not counted: the
//	                                          delay does not double for each of them
//	one of them is answered late              neither does that close it: the probe decides
//	the probe claims nothing, or is given     the probe is given back, and the next claim may have it
//	back without a call
//	the probe's handler never returns         after probePatience there is another one; the first answer counts
//	two drains, or two actions, at its end    one gets the probe, the other nothing
//	it opens while a claim is under way       the calls of that claim are made: they are of the epoch that is over
//	failures and answers mixed                an answer begins a new row: it never opens on a vendor that mostly answers
//	it is throttled by several calls at once  it holds until the last of the times that it was told; then all go on, since
//	                                          the vendor answers: it is neither open nor asked by one call alone
//	the vendor wants fewer calls and says     it holds for a time that doubles with each such answer, up to the longest delay;
//	no time (429), or wants to be asked       then one call goes out, and with each that is answered otherwise twice as many
//	later so often in a row (503)             may be under way
//	32 calls are under way when it holds      theirs is the epoch that is over: one hold for all of them
//	of those that come back one by one, one   after probePatience another may go
//	never returns
//
// A library does not fit well: failsafe-go's breaker brings the requirements of grpc and protobuf along, its half-open
// state has no way to give a permit back without a verdict, and it counts one kind of failure, by one threshold.
type breaker struct {
	after           int // failures in a row that open it; negative: it never opens
	delay, maxDelay time.Duration
	draw            func(ceiling time.Duration) time.Duration

	mu               sync.Mutex
	failures, denied int       // in a row
	trips            int       // how often it opened since it was last closed
	until            time.Time // open until then, and until a probe is answered; zero while it is closed
	probed           time.Time // when the probe that is out was given; zero where none is
	held             time.Time // nothing is admitted before: the vendor asked for that
	laters           int       // answers in a row by which the vendor wants to be asked later
	holds            int       // that followed each other without a better answer
	window           int       // after a hold: how many calls may be under way; zero: any number
	out              int       // those that are, of this epoch, while there is a window
	admitted         time.Time // when the last of those was
	epoch            int
}

// health is what a claim says of the vendor.
type health int

const (
	healthNone      health = iota // nothing: nobody was called
	healthGood                    // it answered, whatever it said
	healthBad                     // it could not be reached, or nobody knows what it did
	healthDenied                  // it refused the credentials
	healthThrottled               // it answered that it wants fewer calls
	healthLater                   // it answered that it did not act, and wants to be asked later
)

const (
	deniedBreaks  = 3           // refusals of the credentials in a row that open it
	probePatience = time.Minute // after which a probe that has not come back is given again
	holdFraction  = 8           // of the first delay is the first hold: one 429 among many answers costs little
	fullWindow    = 256         // with so many calls under way the hold before is forgotten
)

// fullJitter draws a wait.
func fullJitter(ceiling time.Duration) time.Duration { return rand.N(ceiling) + 1 }

func newBreaker(l Limits, draw func(time.Duration) time.Duration) *breaker {
	return &breaker{after: l.BreakAfter, delay: l.BreakDelay, maxDelay: l.MaxBreakDelay, draw: draw}
}

// admit says how many of want may be claimed: all, none, or one as a probe. The epoch belongs to what is claimed then,
// and record must be told of each, or of none with healthNone.
func (b *breaker) admit(now time.Time, want int) (may, epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.waits(now) > 0:
		return 0, b.epoch
	case !b.until.IsZero():
		b.probed = now
		return 1, b.epoch
	case b.window > 0:
		b.out = min(b.out, b.window-1) // one that has not come back for so long is not waited for
		may = min(want, b.window-b.out)
		b.out, b.admitted = b.out+may, now
		return may, b.epoch
	}
	return want, b.epoch
}

// unused gives back what admit gave of that epoch and nothing was claimed for.
func (b *breaker) unused(epoch, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch == b.epoch && n > 0 {
		b.probed = time.Time{}
		b.out = max(b.out-n, 0)
	}
}

// wait is how long nothing is admitted.
func (b *breaker) wait(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits(now)
}

func (b *breaker) waits(now time.Time) time.Duration {
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

// delayEnds is when the delay of the last opening ends, or ended, or until when it is held; zero while it admits all. A probe
// may still be out.
func (b *breaker) delayEnds(now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held.After(now) && b.held.After(b.until) {
		return b.held
	}
	return b.until
}

// spotless says whether there is nothing to remember.
func (b *breaker) spotless(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until.IsZero() && b.failures == 0 && b.laters == 0 && b.window == 0 && !b.held.After(now)
}

// A change is what a record made of the breaker.
type change struct {
	opened, closed bool
	failures       int // that led to it, in a row
	trips          int
	holds          int  // more than zero: it holds, for the so manieth time in a row
	room           bool // one more call may be under way
	delay          time.Duration
}

// record takes what a claim of that epoch says of the vendor.
func (b *breaker) record(epoch int, h health, now time.Time) (c change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch != b.epoch {
		return change{}
	}
	open := !b.until.IsZero()
	c.room = b.window > 0
	b.out = max(b.out-1, 0)
	switch h {
	case healthNone:
		b.probed = time.Time{}
		return c
	case healthGood:
		b.answers()
		b.laters, b.holds = 0, 0
		if b.window *= 2; b.window > fullWindow {
			b.window = 0
		}
		c.closed = open
		return c
	case healthLater, healthThrottled:
		b.answers()
		b.laters++
		c.closed = open
		if b.after < 0 || h == healthLater && b.window == 0 && b.laters < b.after {
			return c
		}
		b.holds++
		c.holds, c.delay = b.holds, b.draw(b.ceiling(max(b.delay/holdFraction, time.Millisecond), b.holds))
		if until := now.Add(c.delay); until.After(b.held) {
			b.held = until
		}
		b.window, b.out = 1, 0
		b.epoch++
		return c
	case healthDenied:
		b.denied++
	}
	b.failures++
	if b.after < 0 || !open && b.failures < b.after && b.denied < min(deniedBreaks, b.after) {
		return c
	}
	b.trips++
	c = change{opened: true, failures: b.failures, trips: b.trips, delay: b.draw(b.ceiling(b.delay, b.trips))}
	b.until, b.probed = now.Add(c.delay), time.Time{}
	b.epoch++
	return c
}

// answers takes that the vendor is there: it closes.
func (b *breaker) answers() {
	b.failures, b.denied, b.trips, b.until, b.probed = 0, 0, 0, time.Time{}, time.Time{}
}

// throttle takes that the vendor answered a claim of that epoch that it wants no call for a time: nothing is admitted before.
// It returns for how long where it was not held already.
func (b *breaker) throttle(epoch int, d time.Duration, now time.Time) time.Duration {
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

// ceiling is the longest wait after so many trips, or holds.
func (b *breaker) ceiling(wait time.Duration, times int) time.Duration {
	for n := 1; n < times && wait < b.maxDelay; n++ {
		wait *= 2
	}
	return min(wait, b.maxDelay)
}

// healthOf is what the outcome of a call says about the vendor, whatever it means for the intent. A function that panicked
// or returned a wrong outcome says nothing, nor does a payload that did not decode, or a call that a stop cut off.
func healthOf(o Outcome, lookup bool) health {
	var panicked *panicError
	switch {
	case o.mistake, o.kind == outcomeDead && o.response.Code == codePayload:
		return healthNone
	case o.kind == outcomeFailed, o.kind == outcomeUnknown && !lookup: // a lookup that cannot tell was answered
		if errors.As(o.reason, &panicked) || errors.Is(o.reason, context.Canceled) {
			return healthNone
		}
		return healthBad
	case o.kind == outcomeUnsent:
		return healthBad
	case o.kind == outcomeDenied:
		return healthDenied
	case o.kind == outcomeRetry && o.account:
		return healthThrottled
	case o.kind == outcomeRetry:
		return healthLater
	}
	return healthGood
}
