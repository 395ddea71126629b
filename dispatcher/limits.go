package dispatcher

import (
	"math"
	"time"
)

// Limits are a destination's. The zero value of each field is its default. [Dispatcher.Check] returns every contradiction,
// naming destination and field.
type Limits struct {
	// Concurrency is how many calls are under way at once, at most, in this process. Default 32, at most 10,000. Of many
	// endpoints ([WithEndpoint]) those that hang hold up to PerEndpoint of them each until their breakers open, and one
	// from then on: give the others room beside them.
	Concurrency int

	// Rate is how many calls a second all workers together make, at most, look-ups included: it is shared by means of the
	// database, whose clock decides. Over any time of W seconds no more than Burst + Rate*W are given out; a worker uses
	// what it was given at once, or within a fraction of a second, or not at all. Waiting for the rate spends nothing.
	// Default: no limit. At least one a day, at most 100,000. All workers must be given the same Rate and Burst.
	Rate float64

	// Burst is how many calls may be made at once after a time without any. Default: what Rate gives in 100 ms, at least 1.
	// At most 1,000,000. It has no meaning without Rate.
	Burst int

	// BreakAfter is how many failures in a row open the breaker: calls that could not be sent, that timed out or whose
	// outcome is unknown. So do three refusals of the credentials ([Denied]) in a row. A refusal, an answer for a person
	// ([Dead]) and [RetryAfter] are no failures. While it is open this process claims nothing of the destination, so that
	// nothing is spent and nothing written; then it tries one intent, and goes on where that one is answered.
	//
	// A vendor that wants fewer calls is no failure either. [Throttled] with a time: nothing is claimed for so long, up to
	// MaxBreakDelay, then all goes on. Throttled without a time, or BreakAfter answers of [RetryAfter] in a row: nothing is
	// claimed for an eighth of BreakDelay at most, which doubles with each such answer up to MaxBreakDelay; then one call is
	// made, and while calls are answered otherwise, twice as many at once with each. Any other answer ends the doubling.
	//
	// The actions of [WithEndpoint] have a breaker for each endpoint instead. Each process finds out for itself: of N, each
	// makes at most Concurrency calls before it waits, and one after each wait. Default 10; negative: there is no breaker,
	// and no such wait.
	BreakAfter int

	// BreakDelay is the longest wait before the first such try. It doubles with each try that fails, up to MaxBreakDelay,
	// and the wait is drawn between zero and that (full jitter). Defaults 1 s and 1 min; 1 ms to 1 h.
	BreakDelay, MaxBreakDelay time.Duration

	// PerEndpoint is how many calls are under way at once to one endpoint, at most, in this process; see [WithEndpoint].
	// Default 4, or Concurrency where that is less. It has no meaning without an action that has endpoints.
	PerEndpoint int
}

const (
	defaultConcurrency = 32
	defaultBreakAfter  = 10
	defaultPerEndpoint = 4

	maxConcurrency = 10_000
	minRate        = 1.0 / (24 * 60 * 60)
	maxRate        = 100_000
	maxBurst       = 1_000_000
	maxBreak       = time.Hour

	// burstTime is how much of the rate a default burst holds.
	burstTime = 100 * time.Millisecond
)

func (l Limits) withDefaults() Limits {
	l.Concurrency = or(l.Concurrency, defaultConcurrency)
	l.BreakAfter = or(l.BreakAfter, defaultBreakAfter)
	l.MaxBreakDelay = or(l.MaxBreakDelay, max(time.Minute, l.BreakDelay))
	l.BreakDelay = or(l.BreakDelay, min(time.Second, l.MaxBreakDelay))
	l.PerEndpoint = or(l.PerEndpoint, min(defaultPerEndpoint, l.Concurrency))
	if l.Rate > 0 && l.Burst == 0 {
		l.Burst = max(int(math.Ceil(min(l.Rate, maxRate)*burstTime.Seconds())), 1)
	}
	return l
}
