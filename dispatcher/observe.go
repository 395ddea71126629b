package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/samekey/samekey/internal/limit"
)

// observe tells a claim's breaker what its call says about the vendor, as soon as it has ended.
func (n *node) observe(c *claim, code string, err error) {
	v := &c.visit
	if v.told || v.breaker == nil {
		return
	}
	v.told, v.health = true, healthOf(err)
	attrs := append(c.where(), slog.String("code", clean(code, codeLimit)))
	if after := askedWait(err); v.health == limit.Throttled && after > 0 { // not a failure, and there may be many
		if held := v.breaker.Throttle(v.epoch, after, time.Now()); held > 0 {
			n.log.Info("dispatcher: the vendor wants fewer calls; none is made until the delay is over",
				append(attrs, slog.Duration("again_in", held))...)
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
		n.log.Log(n.calls, repeated, "dispatcher: the vendor wants to be asked later; no call is made until the delay is over, then one by one",
			append(attrs, slog.Int("holds", made.Holds), slog.Duration("again_in", made.Delay))...)
	case made.Opened:
		n.log.Log(n.calls, level, "dispatcher: calls fail; none is made until the delay is over, then one to try",
			append(attrs, slog.Int("failures", made.Failures), slog.Duration("again_in", made.Delay))...)
	case made.Closed:
		n.log.Info("dispatcher: calls are answered again", c.where()...)
	}
	if made.Closed || made.Room || made.Holds > 0 { // the drain waits for another time now
		n.destinations.poke(c.action.name)
	}
}

// healthOf is what the end of a call says of the vendor, whatever it means for its intent. A handler that panicked, or
// whose payload did not decode, has said nothing; neither has one that was cut off by a stop.
func healthOf(err error) limit.Health {
	if err == nil {
		return limit.Good
	}
	var panicked *panicError
	failure := classify(err, true)
	switch failure.verdict {
	case verdictUnsent:
		return limit.Bad
	case verdictDenied:
		return limit.Denied
	case verdictRetryAfter:
		if failure.account {
			return limit.Throttled
		}
		return limit.Later
	case verdictUnknown:
		if errors.As(err, &panicked) || errors.Is(err, context.Canceled) {
			return limit.NoSign
		}
		return limit.Bad
	case verdictDead:
		if failure.answer.Code == codePayload {
			return limit.NoSign
		}
	}
	return limit.Good
}
