package dispatcher

// deliver brings one claim to its end. It runs in a goroutine of its own, in a slot of the destination.
func (d *destination) deliver(c *claim) {
	var s settlement
	returned := false
	defer func() {
		if !returned { // runtime.Goexit, as in t.FailNow, runs deferred functions only
			s = c.action.decide(&c.OutboxQueueClaimRow, conclude(Outcome{}, errGoexitCall, c.Status == statusUnknown, false))
		}
		d.leave(c)
		d.shareEnded(c)
		d.slots.callEnded() // slots count calls, not settles
		d.finish(c, s)
		d.slots.settled()
	}()
	s = d.attempt(c)
	returned = true
}

// attempt prepares a claim's call, makes it, and decides what its outcome means.
func (d *destination) attempt(c *claim) settlement {
	ctx, cancel := c.context(d.core.calls)
	defer cancel()
	call, s := d.prepare(ctx, c)
	if call == nil {
		return s
	}
	outcome, took := d.call(ctx, c, call)
	s = c.action.decide(&c.OutboxQueueClaimRow, outcome)
	s.took, s.delay = took, d.waitAfter(c, outcome, s)
	c.reference = or(s.reference, c.reference)
	d.observe(c, s.response.Code, outcome)
	works, fails := serves(outcome)
	d.noteEndpoint(c, outcome, works, fails)
	return s
}

// finish settles a claim, and passes an answered intent on to its Apply.
func (d *destination) finish(c *claim, s settlement) {
	if limit := max(c.action.policy.ResponseCap, 0); len(s.response.Body) > limit {
		s.response.Body = s.response.Body[:limit]
	}
	d.reports.report(d.core.calls, c, s)
	if s.status == statusAnswered && s.keepLease {
		d.finishAnswered(c, s)
		return
	}
	d.reports.end(s.status, d.settler.settle(c, s))
}

// finishAnswered settles an answered intent. If its Apply has a place in memory, the lease is kept, and the Apply goes
// on with the same claim; else the intent is claimed again when there is a slot.
func (d *destination) finishAnswered(c *claim, s settlement) {
	s.keepLease = d.applier.promise(c.action)
	settled := d.settler.settle(c, s)
	switch {
	case settled && s.keepLease:
		d.applier.answered(c) // which ends the claim
		return
	case settled:
		d.applier.written(c.action)
		d.core.open.Done() // it counts when it is claimed again
		return
	case s.keepLease:
		d.applier.unpromise(c.action)
	}
	d.reports.end(s.status, false)
}
