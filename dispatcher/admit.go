package dispatcher

import (
	"context"
	"time"
)

// admit lets claims go on to their calls, or postpones them because their endpoint is busy or its breaker is open. The
// others get the URL and the secrets of their endpoint, if it is a stored one.
func (d *destination) admit(ctx context.Context, b batch) (on, postponed []*claim) {
	for _, c := range b.claims {
		c.resting = b.action.beforeCall(&c.OutboxQueueClaimRow)
		if d.enter(c, b.epoch) {
			on = append(on, c)
		} else {
			postponed = append(postponed, c)
		}
	}
	if b.action.stored {
		d.readEndpoints(ctx, on)
		d.rate.Unused(uncallable(on)) // an intent that rests for a stopped endpoint takes nothing from the others
	}
	return on, postponed
}

// enter reports whether a claim goes on. A claim that leads to no call always does.
func (d *destination) enter(c *claim, epoch int) bool {
	c.visit = visit{breaker: d.breaker, epoch: epoch}
	if c.action.endpoint == nil {
		return true
	}
	c.visit.breaker = nil
	if c.resting != nil {
		return true
	}
	call := c.call()
	name, err := guard(func() (string, error) { return c.action.endpoint(&call), nil })
	if err != nil || name == "" {
		return true
	}
	c.endpointName = name
	now := time.Now()
	e, epoch, delay, broken := d.endpoints.Enter(name, now)
	if e == nil {
		c.visit.delay, c.visit.broken = delay, broken
		return false
	}
	c.visit = visit{breaker: e.Breaker(), epoch: epoch, endpoint: e, start: now}
	return true
}

// postpone gives back claims whose endpoints cannot be called now.
func (d *destination) postpone(ctx context.Context, claims []*claim) {
	if len(claims) > 0 {
		d.giveBack(ctx, claims)
		d.postponed += len(claims)
	}
}

// giveBack undoes claims of which nothing was sent, and frees their slots. Each is due after the delay of its visit.
func (d *destination) giveBack(ctx context.Context, claims []*claim) {
	if err := writePostpone(ctx, d.core.q, claims, true); err == nil {
		now := time.Now() // after the statement, by whose clock they are due
		for _, c := range claims {
			if !c.visit.broken {
				d.busyUntil(now.Add(c.visit.delay))
			}
		}
	} else {
		for _, c := range claims { // settle them like an outcome, which is tried until it is written
			s := c.action.givenBack(&c.OutboxQueueClaimRow)
			s.delay = c.visit.delay
			d.core.open.Add(1)
			go d.finish(c, s)
		}
	}
	d.rate.Unused(len(claims))
	for _, c := range claims {
		d.shareEnded(c)
	}
	d.slots.release(len(claims))
}
