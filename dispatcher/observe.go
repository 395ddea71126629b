package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/samekey/samekey/internal/limit"
)

// observe tells a claim's breaker what its call says about the vendor, as soon as it has ended.
func (d *destination) observe(c *claim, code string, outcome Outcome) {
	v := &c.visit
	if v.told || v.breaker == nil {
		return
	}
	v.told, v.health = true, healthOf(outcome, c.Status == statusUnknown)
	attrs := func(more ...any) []any { // not made for the calls of which nothing is logged
		return append(append(c.where(), slog.String("code", clean(code, codeLimit))), more...)
	}
	if after := outcome.wait(); v.health == limit.Throttled && after > 0 { // not a failure, and there may be many
		if held := v.breaker.Throttle(v.epoch, after, time.Now()); held > 0 {
			d.core.log.Info("dispatcher: the vendor wants fewer calls; no call is made until the delay is over",
				attrs(slog.Duration("again_in", held))...)
		}
		return
	}
	made := v.breaker.Record(v.epoch, v.health, time.Now())
	level, repeated := slog.LevelWarn, slog.LevelInfo
	if v.endpoint != nil { // there may be many endpoints: say the same once
		if made.Trips > 1 {
			level = slog.LevelDebug
		}
		if made.Holds > 1 {
			repeated = slog.LevelDebug
		}
	}
	switch {
	case made.Holds > 0:
		d.core.log.Log(d.core.calls, repeated, "dispatcher: the vendor wants to be asked later; no call is made until the delay is over, then one by one",
			attrs(slog.Int("holds", made.Holds), slog.Duration("again_in", made.Delay))...)
	case made.Opened:
		d.core.log.Log(d.core.calls, level, "dispatcher: calls fail; no call is made until the delay is over, then one to try",
			attrs(slog.Int("failures", made.Failures), slog.Duration("again_in", made.Delay))...)
	case made.Closed:
		d.core.log.Info("dispatcher: calls are answered again", c.where()...)
	}
	if made.Closed || made.Room || made.Holds > 0 { // the drain waits for another time now
		d.poke(c.action.name)
	}
}

// healthOf is what the outcome of a call says about the vendor, whatever it means for the intent. A function that
// panicked or returned a wrong outcome says nothing, nor does a payload that did not decode, or a call that a stop cut
// off.
func healthOf(o Outcome, lookup bool) limit.Health {
	var panicked *panicError
	switch {
	case o.mistake, o.kind == outcomeDead && o.response.Code == codePayload:
		return limit.NoSign
	case o.kind == outcomeFailed, o.kind == outcomeUnknown && !lookup: // a lookup that cannot tell was answered
		if errors.As(o.reason, &panicked) || errors.Is(o.reason, context.Canceled) {
			return limit.NoSign
		}
		return limit.Bad
	case o.kind == outcomeUnsent:
		return limit.Bad
	case o.kind == outcomeDenied:
		return limit.Denied
	case o.kind == outcomeRetry && o.account:
		return limit.Throttled
	case o.kind == outcomeRetry:
		return limit.Later
	}
	return limit.Good
}

// serves reports whether an attempt shows that its endpoint works, and whether it shows that the endpoint fails. Dead is
// about one intent, and shows neither.
func serves(o Outcome) (works, fails bool) {
	switch o.kind {
	case outcomeDelivered, outcomeRefused, outcomeAccepted:
		return true, false
	case outcomeDead, outcomeGone:
		return false, false
	}
	return false, healthOf(o, false) != limit.NoSign
}

// leave ends a claim's visit.
func (d *destination) leave(c *claim) {
	v := &c.visit
	if v.breaker != nil && !v.told { // no call was made
		if made := v.breaker.Record(v.epoch, limit.NoSign, time.Now()); made.Room {
			d.poke(c.action.name)
		}
	}
	if v.endpoint != nil && d.endpoints.Leave(v.endpoint, v.start, time.Now(), v.health) {
		d.poke(c.action.name)
	}
}
