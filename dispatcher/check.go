package dispatcher

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/appfunction"
	"github.com/samekey/samekey/internal/names"
)

// The checks of what was registered. Each adds its mistakes in the order in which they are best corrected.

// The bounds of [Config]. Those of Retention are what processed.Pruning takes as IntentRetain.
const (
	maxName      = 255
	minSweep     = 10 * time.Millisecond
	maxSweep     = time.Minute
	minStop      = time.Millisecond
	maxStop      = 24 * time.Hour
	minRetention = time.Minute
	maxRetention = 10 * 365 * 24 * time.Hour
)

func (c Config) check(errs *ConfigErrors) {
	if n := len(c.Name); n > maxName {
		errs.Add(itemConfig, "Name", "has %d bytes, but at most %d are allowed", n, maxName)
	}
	if c.Deployment != "" {
		if err := names.CheckDeployment(c.Deployment); err != nil {
			errs.Add(itemConfig, "Deployment", "%v", err)
		}
	}
	errs.checkRange(itemConfig, "SweepInterval", c.SweepInterval, minSweep, maxSweep)
	errs.checkRange(itemConfig, "StopTimeout", c.StopTimeout, minStop, maxStop)
	errs.checkRange(itemConfig, "Retention", c.Retention, minRetention, maxRetention)
	if c.ArchiveFunction != "" && !appfunction.IsName(c.ArchiveFunction) {
		errs.Add(itemConfig, "ArchiveFunction", "%q %v", c.ArchiveFunction, appfunction.ErrName)
	}
}

// checkRange adds a mistake where a duration is less than low or more than high.
func (e *ConfigErrors) checkRange(item, field string, d, low, high time.Duration) {
	if d < low || d > high {
		e.Add(item, field, "%v is outside the range %v to %v", d, low, high)
	}
}

// check adds what is wrong with an action's policy, by itself and with what is known of its destination.
func (a *action) check(errs *ConfigErrors, dest *account) {
	item, p := itemAction(a.name), a.policy
	if !dest.declared {
		errs.Add(item, "Destination", "%q is not declared: call Dispatcher.Destination, or correct the name", dest.name)
	}
	p.check(errs, item, a.declared)
	if p.Class < Read || p.Class > IrreversibleWrite {
		return
	}
	dest.vendor.checkPolicy(errs, item, p)
	if p.ResendAbsent && a.lookup == nil {
		errs.Add(item, "ResendAbsent", "needs a %s", GoName("Lookup"))
	}
	if p.ResendAbsent && a.proxied {
		errs.Add(item, "ResendAbsent", "not allowed with a proxy, which can deliver a request late, after lookups have found nothing: "+
			"call the vendor directly, or leave %s out", GoName("ResendAbsent"))
	}
	if n := a.declared.Attempts; n > 1 && a.lookup == nil && !p.Class.repeatable() {
		errs.Add(item, "Attempts", "%d is not allowed for %v without a %s: such a call is not repeated, and %s limits only the tries of a lookup",
			n, p.Class, GoName("Lookup"), GoName("Attempts"))
	}
	if first := p.Timeout + max(p.SettlingDelay, time.Second); a.lookup != nil && p.CompletionTime <= first {
		errs.Add(item, "CompletionTime", "%v must be longer than %s and %s together (%v): an accepted call would be parked before its first lookup",
			p.CompletionTime, GoName("Timeout"), GoName("SettlingDelay"), first)
	}
	a.checkFunctionNames(errs, item)
	if a.stored && p.Deadline == 0 {
		errs.Add(item, "Deadline", "missing: calls to an endpoint that cannot be reached use up no attempts, so set when to give up")
	}
}

// checkFunctionNames adds what is wrong with the names of SQL functions. What the database knows about the functions is
// checked at a worker's start.
func (a *action) checkFunctionNames(errs *ConfigErrors, item string) {
	for _, f := range []struct {
		field, name, goField string
		both                 bool
	}{{"ApplyFunction", a.applyFunction, "Apply", a.bothApply}, {"AttentionFunction", a.attentionFunction, "Attention", a.bothAttention}} {
		switch {
		case f.both:
			errs.Add(item, f.field, "not allowed together with %s: set one of them", GoName(f.goField))
		case f.name != "" && !appfunction.IsName(f.name):
			errs.Add(item, f.field, "%q %v", f.name, appfunction.ErrName)
		}
	}
}

// The bounds of [Policy].
const (
	// minTimeout is many times what a claim takes, so that some of the time is left for the call.
	minTimeout = 100 * time.Millisecond
	maxTimeout = time.Hour

	maxLease = 24 * time.Hour

	maxAttempts = 1000

	// minDelay finds a number that was given without a unit, such as SettlingDelay: 5.
	minDelay = time.Millisecond

	// maxBackoff keeps the horizon of 1000 attempts far from the longest time.Duration.
	maxBackoff = 30 * 24 * time.Hour

	minDeadline    = time.Second
	minCompletion  = time.Second
	maxCompletion  = 90 * 24 * time.Hour
	maxResponseCap = 1 << 20
)

// check adds what is wrong with a policy that has its defaults. Declared is the policy without them.
func (p Policy) check(errs *ConfigErrors, item string, declared Policy) {
	known := p.Class >= Read && p.Class <= IrreversibleWrite
	if !known {
		errs.Add(item, "Class", "missing: say whether the vendor may be called again: %v, %v, %v or %v",
			Read, IdempotentWrite, NonIdempotentWrite, IrreversibleWrite)
	}
	errs.checkRange(item, "Timeout", p.Timeout, minTimeout, maxTimeout)
	switch {
	case p.Lease < p.Timeout+minSettle:
		errs.Add(item, "Lease", "%v must be longer than %s (%v) by at least %v", p.Lease, GoName("Timeout"), p.Timeout, minSettle)
	case declared.Lease > maxLease:
		errs.Add(item, "Lease", "%v is longer than %v", p.Lease, maxLease)
	}
	if len(p.Schedule) == 0 && (p.Attempts < 1 || p.Attempts > maxAttempts) {
		errs.Add(item, "Attempts", "%d is outside the range 1 to %d", p.Attempts, maxAttempts)
	}
	p.checkSchedule(errs, item, declared)
	errs.checkRange(item, "Backoff", p.Backoff, minDelay, maxBackoff)
	switch {
	case p.MaxBackoff < p.Backoff:
		errs.Add(item, "MaxBackoff", "%v is shorter than %s (%v)", p.MaxBackoff, GoName("Backoff"), p.Backoff)
	case declared.MaxBackoff > maxBackoff:
		errs.Add(item, "MaxBackoff", "%v is longer than %v", p.MaxBackoff, maxBackoff)
	}
	if p.Deadline != 0 && p.Deadline < minDeadline {
		errs.Add(item, "Deadline", "%v is shorter than %v", p.Deadline, minDeadline)
	}
	if p.SettlingDelay > 0 && p.SettlingDelay < minDelay {
		errs.Add(item, "SettlingDelay", "%v is shorter than %v", p.SettlingDelay, minDelay)
	}
	errs.checkRange(item, "CompletionTime", p.CompletionTime, minCompletion, maxCompletion)
	if p.ResponseCap > maxResponseCap {
		errs.Add(item, "ResponseCap", "%d is more than %d bytes", p.ResponseCap, maxResponseCap)
	}
	if p.FairBy != "" && p.FairBy != FairByScope && p.FairBy != FairByPart {
		errs.Add(item, "FairBy", "%q is neither %s nor %s", string(p.FairBy), GoName("FairByScope"), GoName("FairByPart"))
	}
	if known {
		p.checkRepeats(errs, item)
	}
}

// checkSchedule adds what is wrong with a list of waits, which replaces three other fields.
func (p Policy) checkSchedule(errs *ConfigErrors, item string, declared Policy) {
	if len(p.Schedule) == 0 {
		return
	}
	for _, other := range []struct {
		field string
		set   bool
	}{{"Attempts", declared.Attempts != 0}, {"Backoff", declared.Backoff != 0}, {"MaxBackoff", declared.MaxBackoff != 0}} {
		if other.set {
			errs.Add(item, other.field, "not allowed with %s, which lists all waits and so the number of attempts: remove one of them", GoName("Schedule"))
		}
	}
	if len(p.Schedule) >= maxAttempts {
		errs.Add(item, "Schedule", "has %d waits, more than %d", len(p.Schedule), maxAttempts-1)
	}
	for i, wait := range p.Schedule {
		errs.checkRange(item, fmt.Sprintf("Schedule[%d]", i+1), wait, minDelay, maxBackoff)
	}
}

// checkRepeats adds what the class does not allow of the fields about repeating a call.
func (p Policy) checkRepeats(errs *ConfigErrors, item string) {
	if p.ResendAbsent && p.Class != NonIdempotentWrite {
		errs.Add(item, "ResendAbsent", "not allowed for %v: only a %v is sent again after lookups found nothing", p.Class, NonIdempotentWrite)
	}
	switch {
	case p.KeyWindow < 0:
		errs.Add(item, "KeyWindow", "%v is negative", p.KeyWindow)
	case p.Class != IdempotentWrite && p.KeyWindow != 0:
		errs.Add(item, "KeyWindow", "not allowed for %v: only an %v has one", p.Class, IdempotentWrite)
	case p.Class == IdempotentWrite && p.KeyWindow == 0:
		errs.Add(item, "KeyWindow", "missing: set how long the vendor remembers a key (%v is a value), here or for its %s", Forever, GoName("Destination"))
	case p.Class == IdempotentWrite && p.horizon() > p.KeyWindow && len(p.Schedule) > 0:
		errs.Add(item, "KeyWindow", "%v is shorter than the %v that all attempts can take, with a margin of %v: shorten %s, or lower %s (%v)",
			p.KeyWindow, p.horizon(), windowMargin, GoName("Schedule"), GoName("Timeout"), p.Timeout)
	case p.Class == IdempotentWrite && p.horizon() > p.KeyWindow:
		errs.Add(item, "KeyWindow", "%v is shorter than the %v that all attempts can take, with a margin of %v: lower %s (%d), %s (%v), %s (%v) or %s (%v)",
			p.KeyWindow, p.horizon(), windowMargin, GoName("Attempts"), p.Attempts, GoName("Timeout"), p.Timeout,
			GoName("Backoff"), p.Backoff, GoName("MaxBackoff"), p.MaxBackoff)
	}
}

// checkPolicy adds what of a policy contradicts the vendor. Of a vendor without a Key.Place nothing is known.
func (v Vendor) checkPolicy(errs *ConfigErrors, item string, p Policy) {
	if v.Key.Place == 0 {
		return
	}
	if p.Class == IdempotentWrite && !v.remembers() {
		errs.Add(item, "Class", "%v does not fit the vendor, which acts again when a call is repeated: use %v", p.Class, NonIdempotentWrite)
	}
	if v.Window > 0 && p.KeyWindow > v.Window {
		errs.Add(item, "KeyWindow", "%v is longer than the vendor remembers a key, %v", p.KeyWindow, v.Window)
	}
}

// check adds the mistakes in limits as they were given, for a destination whose actions have endpoints or do not.
func (l Limits) check(errs *ConfigErrors, item string, endpoints bool) {
	with := l.withDefaults()
	if l.Concurrency < 0 || l.Concurrency > maxConcurrency {
		errs.Add(item, "Concurrency", "%d is outside the range 1 to %d", l.Concurrency, maxConcurrency)
	}
	if l.Rate != 0 && !(l.Rate >= minRate && l.Rate <= maxRate) { // NaN too
		errs.Add(item, "Rate", "%v calls a second is outside the range of one a day to %d a second", l.Rate, maxRate)
	}
	switch {
	case l.Burst < 0 || l.Burst > maxBurst:
		errs.Add(item, "Burst", "%d is outside the range 1 to %d", l.Burst, maxBurst)
	case l.Burst > 0 && l.Rate == 0:
		errs.Add(item, "Burst", "%d is not allowed without a %s", l.Burst, GoName("Rate"))
	}
	l.checkBreaker(errs, item, with)
	switch {
	case l.PerEndpoint < 0 || l.PerEndpoint > with.Concurrency:
		errs.Add(item, "PerEndpoint", "%d is outside the range 1 to %s (%d)", l.PerEndpoint, GoName("Concurrency"), with.Concurrency)
	case l.PerEndpoint > 0 && !endpoints:
		errs.Add(item, "PerEndpoint", "%d is not allowed: no action of the destination has endpoints", l.PerEndpoint)
	}
	if l.StopEndpointAfter != 0 {
		errs.checkRange(item, "StopEndpointAfter", l.StopEndpointAfter, minStopEndpoint, maxStopEndpoint)
	}
}

func (l Limits) checkBreaker(errs *ConfigErrors, item string, with Limits) {
	if l.BreakAfter < 0 {
		const reason = "not allowed without a breaker: %s switches it off"
		if l.BreakDelay != 0 {
			errs.Add(item, "BreakDelay", reason, GoName("BreakAfter"))
		}
		if l.MaxBreakDelay != 0 {
			errs.Add(item, "MaxBreakDelay", reason, GoName("BreakAfter"))
		}
		return
	}
	errs.checkRange(item, "BreakDelay", with.BreakDelay, minDelay, maxBreak)
	switch {
	case with.MaxBreakDelay < with.BreakDelay:
		errs.Add(item, "MaxBreakDelay", "%v is shorter than %s (%v)", with.MaxBreakDelay, GoName("BreakDelay"), with.BreakDelay)
	case l.MaxBreakDelay > maxBreak:
		errs.Add(item, "MaxBreakDelay", "%v is longer than %v", l.MaxBreakDelay, maxBreak)
	}
}

// minAlphabet is the smallest that makes sense: digits.
const minAlphabet = 10

// check adds every mistake in the description itself.
func (v Vendor) check(errs *ConfigErrors, item string) {
	k := v.Key
	if k.Place < KeyInHeader || k.Place > KeyNowhere {
		errs.Add(item, "Vendor.Key.Place", "missing: say where the vendor takes the key: %s, %s, %s or %s",
			GoName("KeyInHeader"), GoName("KeyInBody"), GoName("KeyInMessageID"), GoName("KeyNowhere"))
	} else {
		v.checkPlace(errs, item)
	}
	if v.Window < 0 {
		errs.Add(item, "Vendor.Window", "%v is negative", v.Window)
	}
	k.check(errs, item)
}

// checkPlace adds what does not fit the place of the key.
func (v Vendor) checkPlace(errs *ConfigErrors, item string) {
	k := v.Key
	takesKey := k.Place == KeyInHeader || k.Place == KeyInBody
	if takesKey && k.Name == "" {
		errs.Add(item, "Vendor.Key.Name", "missing: name the header or the field")
	}
	if k.Quoted && k.Place != KeyInHeader {
		errs.Add(item, "Vendor.Key.Quoted", "only allowed for a key in a header")
	}
	switch {
	case takesKey && (v.Replay < ReplayAnswer || v.Replay > ReplayNothing):
		errs.Add(item, "Vendor.Replay", "missing: say what the vendor answers to the same key: %s, %s, %s or %s",
			GoName("ReplayAnswer"), GoName("ReplaySuccess"), GoName("ReplayState"), GoName("ReplayNothing"))
	case !takesKey && v.Replay != 0 && v.Replay != ReplayNothing:
		errs.Add(item, "Vendor.Replay", "not allowed: a vendor that takes no key replays nothing")
	}
	switch {
	case v.Mismatch < 0 || v.Mismatch > MismatchIgnored:
		errs.Add(item, "Vendor.Mismatch", "%d is not one of %s and %s", int(v.Mismatch), GoName("MismatchRefused"), GoName("MismatchIgnored"))
	case v.Mismatch != 0 && !takesKey:
		errs.Add(item, "Vendor.Mismatch", "not allowed: a vendor that takes no key compares nothing with it")
	case v.Mismatch != 0 && v.Replay == ReplayNothing:
		errs.Add(item, "Vendor.Mismatch", "not allowed with %s: a vendor that acts again compares nothing with the first call", GoName("ReplayNothing"))
	}
}

func (k KeyRules) check(errs *ConfigErrors, item string) {
	seen := map[rune]bool{}
	for _, c := range k.Alphabet {
		if c < '!' || c > '~' || seen[c] {
			errs.Add(item, "Vendor.Key.Alphabet", "must have visible ASCII characters, each once")
			return
		}
		seen[c] = true
	}
	if n := len(k.Alphabet); n > 0 && n < minAlphabet {
		errs.Add(item, "Vendor.Key.Alphabet", "has %d characters, but needs at least %d", n, minAlphabet)
		return
	}
	if k.MaxLength < 0 || k.MaxLength > maxKeyLength {
		errs.Add(item, "Vendor.Key.MaxLength", "%d is outside the range 1 to %d", k.MaxLength, maxKeyLength)
	} else if _, err := k.Project(uuid.Max); err != nil {
		errs.Add(item, "Vendor.Key.MaxLength", "%v", err)
	}
}
