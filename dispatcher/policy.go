package dispatcher

import (
	"math/rand/v2"
	"time"

	"github.com/samekey/samekey/internal/backoff"
)

// Policy states how an action's intents are delivered. Class is required, and KeyWindow for an [IdempotentWrite]; the
// zero value of every other field is its default. [Dispatcher.Check] returns every mistake with the action and the
// field.
type Policy struct {
	// Class states what may be repeated. Required.
	Class Class

	// Destination names the vendor account, declared with [Dispatcher.Destination]. Default: a destination with the
	// action's name and default limits. If you change it, an intent that the former destination may have seen is
	// neither sent to nor looked up at the new one: it is parked, except for a [Read].
	Destination string

	// Timeout limits one attempt, with connecting and reading. It starts before the claim is sent, so it includes the
	// claim's round trip: with a Timeout shorter than a claim, intents would be claimed and given back without end.
	// Default 30 s; 100 ms to 1 h.
	Timeout time.Duration

	// Lease is how long a claim is valid. It must exceed Timeout by 100 ms or more, the time in which the outcome is
	// written. After a kill, a write that may not be repeated waits for the end of its lease. Default: Timeout and 10
	// s; at most 24 h.
	Lease time.Duration

	// Attempts is how many times an intent may be sent before it is dead. Attempts that were provably unsent, or after
	// which the vendor asked to wait, do not count. Default: as many as fit the KeyWindow, at most 25.
	//
	// A [NonIdempotentWrite] and an [IrreversibleWrite] are sent again only if nothing was sent; for them Attempts
	// limits the lookups. Without a Lookup, more than one is a mistake.
	Attempts int

	// Backoff is the longest wait before the second attempt. It doubles with each further attempt, up to MaxBackoff.
	// Each wait is drawn between zero and this length (full jitter). Defaults: 1 s and 10 min; 1 ms to 30 days.
	Backoff, MaxBackoff time.Duration

	// Schedule lists the waits between attempts, instead of Attempts, Backoff and MaxBackoff: after the attempt number n
	// it waits for Schedule[n-1] and up to a tenth more, so that intents that failed together do not come back together.
	// The intent is dead after the attempt that follows the last wait. A vendor's longer Retry-After is respected. Waits
	// after attempts that do not count (see Attempts) take the list's values in the same order, and then repeat the
	// last one. A redrive begins with the first value again. An Apply and an Attention function that fail keep the
	// default backoff. Default: none; each 1 ms to 30 days, at most 999.
	Schedule []time.Duration

	// Deadline is the age, counted from the insert, at which an intent is dead instead of sent. An intent's own
	// deadline applies too. Default: none; at least 1 s.
	Deadline time.Duration

	// KeyWindow is how long the vendor remembers a key, counted from the first attempt that may have reached it.
	// Required for an IdempotentWrite; [Forever] is a value. From KeyWindow less Timeout and 10 s on, nothing is sent:
	// the intent is looked up, or parked. For an intent that was sent under another window, the shorter of both
	// applies.
	KeyWindow time.Duration

	// SettlingDelay is how long an outcome stays unknown before it is looked up, so that a call in progress at the
	// vendor can end. Default 5 s, at least 1 ms; negative: none.
	SettlingDelay time.Duration

	// ResendAbsent sends a [NonIdempotentWrite] once more if two lookups, a SettlingDelay apart, have returned
	// [Absent]. Set it only if the vendor's lookup finds everything that the vendor has accepted; else the vendor acts
	// twice. It needs a Lookup, and a direct connection: a proxy or a sidecar can send late what it has taken
	// ([Delivery].Proxied). Default: such an intent is parked for a person.
	ResendAbsent bool

	// CompletionTime is how long an accepted call ([Accepted]) may take until a lookup finds it finished or
	// outbox.Resolve records its end; then it is parked. With a Lookup it must exceed Timeout and SettlingDelay
	// together, or nothing would be looked up. Default 24 h; 1 s to 90 days.
	CompletionTime time.Duration

	// ResponseCap is how many bytes of a response's body are kept. Default 64 KiB, at most 1 MiB; negative: none.
	ResponseCap int

	// FairBy gives each value of the intents' scope or part an equal share of the destination's Concurrency while several
	// have due intents. Otherwise intents are sent in the order in which they are due, and one tenant's burst of
	// thousands makes another tenant's intent wait for all of them. With it, that intent waits for about one call. Values
	// take turns; one with fewer calls in progress in this process goes first. No slot stays free while something is due.
	//
	// Intents that were written before the setting get their share within seconds. All workers must use the same setting:
	// the last one to start decides what is written with an intent. Default: no shares.
	FairBy FairBy

	// PassFailed lets the next intent of an ordering key pass a dead or parked one. Default: the next intent waits
	// until a person has redriven, resolved or cancelled the failed one.
	PassFailed bool
}

// FairBy names what the intents of an action are told apart by, to share the destination's slots.
type FairBy string

const (
	// FairByScope shares by the scope of the intent's key, such as "acme/orders.create".
	FairByScope FairBy = "scope"

	// FairByPart shares by the intent's part. If the part names the endpoint, each endpoint has its share.
	FairByPart FairBy = "part"
)

// windowMargin is left at the end of a key window, in addition to the attempt's Timeout.
const windowMargin = 10 * time.Second

// minSettle is what a lease has left, at least, to record the outcome of an attempt that took all its time.
const minSettle = 100 * time.Millisecond

// maxDelay is the longest wait that a vendor may ask for ([Outcome.After]). It is generous, so that a vendor that asks
// for hours is not called early.
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
	switch {
	case p.Attempts == 0 && len(p.Schedule) > 0:
		p.Attempts = len(p.Schedule) + 1
	case p.Attempts == 0:
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
		shortest, spread := p.waits(n)
		total += shortest + spread
	}
	return total
}

// waits returns the shortest wait after n attempts, and how much longer it can be.
func (p Policy) waits(n int) (shortest, spread time.Duration) {
	if len(p.Schedule) > 0 {
		wait := p.Schedule[min(max(n, 1), len(p.Schedule))-1]
		return wait, wait / 10
	}
	return 0, backoff.Ceiling(p.Backoff, p.MaxBackoff, max(n, 1)) // full jitter
}

// wait draws the wait after n attempts.
func (p Policy) wait(n int) time.Duration {
	shortest, spread := p.waits(n)
	return shortest + rand.N(spread+1)
}

// delay draws the wait after n failures of a function, which calls no vendor.
func (p Policy) delay(n int) time.Duration {
	p.Schedule = nil
	return p.wait(n)
}
