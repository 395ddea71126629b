package dispatcher

import (
	"math/rand/v2"
	"time"
)

// Policy says how an action's intents are delivered. Class is required, and KeyWindow for an [IdempotentWrite]; the
// zero value of every other field is its default. [Dispatcher.Check] and [Dispatcher.Run] return every contradiction at
// once, each naming the action and the field.
type Policy struct {
	// Class says what may be repeated. Required.
	Class Class

	// Destination names the vendor account, declared with [Dispatcher.Destination]. Default: one of the action's own
	// name with default limits. Where it is changed, what the destination before may have seen is not sent to the new one,
	// nor looked up there: it is parked, but for a [Read].
	Destination string

	// Timeout bounds one attempt, connecting and reading included. It begins before the claim is sent, so the claim's
	// round trip counts: a shorter one than a claim takes would be claimed and given back without end. Default 30 s; 100 ms to 1 h.
	Timeout time.Duration

	// Lease is how long a claim is good for. It must exceed Timeout by 100 ms or more, in which the outcome is written: a
	// write that may not be repeated is touched only when its lease has run out. Default: Timeout and 10 s; at most 24 h.
	Lease time.Duration

	// Attempts is how often an intent may be sent before it is dead; attempts that were provably unsent or that the
	// vendor put off do not count. Default: as many as fit the KeyWindow, at most 25. For a [NonIdempotentWrite] and an
	// [IrreversibleWrite] the number bounds look-ups instead: they are sent again only where nothing was sent. More than one is
	// refused for them where there is no look-up.
	Attempts int

	// Backoff is the longest wait before the second attempt; it doubles with each further one up to MaxBackoff, and the
	// wait is drawn between zero and that (full jitter). Defaults: 1 s and 10 min; 1 ms to 30 days.
	Backoff, MaxBackoff time.Duration

	// Deadline is the age after which an intent is dead instead of sent, counted from its insert. An intent's own
	// deadline holds besides. Default: none; at least 1 s.
	Deadline time.Duration

	// KeyWindow is how long the vendor remembers a key, counted from the first attempt that may have reached it.
	// Required for an IdempotentWrite; [Forever] is a value. Past it, less Timeout and 10 s, nothing is sent: the intent
	// is looked up, else parked. What was sent under another window is held to the shorter of the two.
	KeyWindow time.Duration

	// SettlingDelay is how long an outcome stays unknown before it is looked up, so that a call still under way at the
	// vendor can end. Default 5 s, at least 1 ms; negative: none.
	SettlingDelay time.Duration

	// ResendAbsent lets a [NonIdempotentWrite] be sent once more after two look-ups, a SettlingDelay apart, have found that
	// the vendor knows nothing of it. Only where the vendor's look-up misses nothing that it has accepted: else it acts
	// twice. It needs a look-up, and a direct connection: what a proxy or a sidecar has taken it can send late
	// ([ThroughProxy]). Default: it is parked for a person.
	ResendAbsent bool

	// CompletionTime is how long an accepted call ([Accepted]) may take until its look-up finds it done, or
	// outbox.Resolve records it; then it is parked. Where there is a look-up it must exceed Timeout and SettlingDelay together,
	// or nothing would ever be looked up. Default 24 h; 1 s to 90 days.
	CompletionTime time.Duration

	// ResponseCap is how much of an answer's body is kept, in bytes. Default 64 KiB, at most 1 MiB; negative: nothing.
	ResponseCap int

	// PassFailed lets the next intent of an ordering key go on past a dead or parked one. Default: it waits until a
	// person has redriven, resolved or cancelled the failed one.
	PassFailed bool
}

// windowMargin is kept free at the end of a key window, besides the attempt's own timeout.
const windowMargin = 10 * time.Second

// maxDelay caps what a vendor may ask for with RetryAfter. It is generous, so that no vendor that means it is asked early.
const maxDelay = 24 * time.Hour

// defaultAttempts is the most that is sent where Policy.Attempts is zero.
const defaultAttempts = 25

func (p Policy) withDefaults() Policy {
	p.Timeout = or(p.Timeout, 30*time.Second)
	p.Lease = or(p.Lease, p.Timeout+10*time.Second)
	p.Backoff = or(p.Backoff, time.Second)
	p.MaxBackoff = or(p.MaxBackoff, max(10*time.Minute, p.Backoff))
	p.SettlingDelay = or(p.SettlingDelay, 5*time.Second)
	p.ResponseCap = or(p.ResponseCap, 64<<10)
	p.CompletionTime = or(p.CompletionTime, 24*time.Hour)
	if p.Attempts == 0 {
		p.Attempts = defaultAttempts
		for p.Class == IdempotentWrite && p.Attempts > 1 && p.horizon() > p.KeyWindow {
			p.Attempts--
		}
	}
	return p
}

func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// horizon is the longest time from the first attempt's start to the last one's end.
func (p Policy) horizon() time.Duration {
	total := time.Duration(p.Attempts)*p.Timeout + windowMargin
	for n := 1; n < p.Attempts; n++ {
		total += p.ceiling(n)
	}
	return total
}

// ceiling is the longest wait after n attempts.
func (p Policy) ceiling(n int) time.Duration {
	wait := p.Backoff
	for ; n > 1 && wait < p.MaxBackoff; n-- {
		wait *= 2
	}
	return min(wait, p.MaxBackoff)
}

// delay draws the wait after n attempts: full jitter.
func (p Policy) delay(n int) time.Duration {
	return rand.N(p.ceiling(max(n, 1)) + 1)
}
