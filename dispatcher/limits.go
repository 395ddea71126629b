package dispatcher

import (
	"math"
	"time"
)

// Limits limit the calls to a destination. The zero value of each field is its default. [Dispatcher.Check] returns
// every mistake with the destination and the field.
type Limits struct {
	// Concurrency is the largest number of calls in progress in this process. Default 32, at most 10,000. With many
	// endpoints ([Delivery].Endpoint), each endpoint that hangs occupies up to PerEndpoint of these calls until its
	// breaker opens, and one from then on: leave room for the others.
	Concurrency int

	// Rate is the largest number of calls per second of all workers together, lookups included. The workers share it
	// through the database, whose clock counts. In any W seconds at most Burst + Rate*W calls are permitted. A worker
	// uses its permits within a fraction of a second, or they expire. Waiting for the rate uses no attempt. Default: no
	// limit; at least one call a day, at most 100,000 per second. All workers must use the same Rate and Burst.
	Rate float64

	// Burst is how many calls may start at once after a pause. Default: the Rate's calls of 100 ms, at least 1; at most
	// 1,000,000. It is used only with a Rate.
	Burst int

	// BreakAfter is how many failures in a row open the breaker. Failures are calls that could not be sent, that timed
	// out, or whose outcome is unknown. Three [Denied] in a row open it too. [Refused], [Dead] and [Retry] are not
	// failures. While the breaker is open, this process claims nothing for the destination, so no attempt is used and
	// nothing is written. Then it tries one intent, and continues if the vendor answers.
	//
	// A vendor that asks for fewer calls is handled separately. After a [Retry] with [Outcome.ForAccount] and a wait,
	// nothing is claimed until the wait is over, up to MaxBreakDelay. After one without a wait, or after BreakAfter
	// Retries in a row, nothing is claimed for up to an eighth of BreakDelay. This delay doubles with each such answer,
	// up to MaxBreakDelay. Then one call is made, and after each call with another answer twice as many at once. Any
	// other answer ends the doubling.
	//
	// Actions with an Endpoint have a breaker for each endpoint instead. Each process has its own breakers: of N
	// processes, each makes at most Concurrency calls before it waits, and one after each wait. Default 10; negative:
	// no breaker, and no such delay.
	BreakAfter int

	// BreakDelay is the longest wait before the first try with an open breaker. It doubles with each failed try, up to
	// MaxBreakDelay. Each wait is drawn between zero and this length (full jitter). Defaults 1 s and 1 min; 1 ms to 1
	// h.
	BreakDelay, MaxBreakDelay time.Duration

	// PerEndpoint is the largest number of calls in progress to one endpoint in this process; see [Delivery].Endpoint.
	// Default 4, or Concurrency if that is less. It is used only by actions with an Endpoint.
	PerEndpoint int

	// StopEndpointAfter stops a stored endpoint that has failed for this long without a success in between, as
	// [Gone] does. The endpoint fails if an attempt ends without a connection, without an answer, or with one that means
	// [Retry], [Denied], [Unknown] or [Stuck]. [Delivered], [Refused] and [Accepted] are successes. Attempts that were not
	// made, lookups, and [Dead], which is about one intent, do not count. A healthy endpoint costs no write. The failed
	// attempt after that time stops the endpoint, so it needs intents that are still tried then. All workers must use the
	// same value. Default: an endpoint is never stopped for failing; 1 min to 90 days.
	StopEndpointAfter time.Duration
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

	minStopEndpoint = time.Minute
	maxStopEndpoint = 90 * 24 * time.Hour

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
