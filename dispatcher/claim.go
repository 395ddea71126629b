package dispatcher

import (
	"context"
	"time"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/limit"
	"github.com/samekey/samekey/internal/sqlstate"
)

// next says what follows a claim of an action.
type next int

const (
	nothingMore next = iota
	mayBeMore        // claim again at once
	notYet           // something may be due, but a limit holds it up
)

const (
	// fullScan is how often a claim starts from the beginning.
	fullScan = time.Second
)

// claim takes due intents of one action under leases: as many as there are reserved slots, and as the limits allow. The
// rows are read to their end, which is after the claim's commit, before any of them is started: a fast settle must find
// its row.
func (d *destination) claim(ctx context.Context, index, reserved int) (b batch, next next, err error) {
	a, m := d.actions[index], &d.marks[index]
	from, began := m.dueAt, time.Now()
	full := began.Sub(m.full) >= fullScan
	if full {
		from = time.Time{}
	}
	fair := d.turns[index]
	may, epoch, due, err := d.permits(ctx, a, from, reserved)
	d.slots.release(reserved - may)
	if full && (may > 0 || !due) {
		m.full = began
	}
	switch {
	case err != nil:
		return b, nothingMore, err
	case may == 0 && due:
		return b, notYet, nil
	case may == 0:
		return b, nothingMore, nil
	}
	// A stop does not cut it off: a claim that commits unseen would leave its intents leased to nobody.
	claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	if fair != nil {
		from, err = d.findShares(claiming, index, full)
	}
	asked := time.Now()
	params := d.claimParams(a, from, may)
	var rows []db.OutboxQueueClaimRow
	switch {
	case err != nil:
	case fair == nil:
		rows, err = d.core.q.OutboxQueueClaim(claiming, params)
	default:
		rows, err = d.claimFair(claiming, a, fair, params)
	}
	unused := may - len(rows)
	d.slots.release(unused)
	d.breaker.Unused(epoch, unused)
	if err != nil {
		return b, nothingMore, err
	}
	d.rate.Unused(unused)
	if len(rows) == 0 {
		return b, nothingMore, nil
	}
	b = batch{action: a, claims: make([]*claim, len(rows)), epoch: epoch}
	var latest time.Time
	for i, row := range rows {
		if row.DueAt.After(latest) {
			latest = row.DueAt
		}
		b.claims[i] = newClaim(row, a, asked, params.Worker)
	}
	if unused == 0 || rows[0].HasMore || fair != nil && fair.mayHaveMore() {
		next = mayBeMore
	}
	if fair != nil {
		return b, next, nil
	}
	if mark := latest.Add(-markSlack); next == mayBeMore || mark.After(m.dueAt) {
		m.dueAt = mark // a full batch may lower it: there may be more above the rows of a full scan
	}
	return b, next, nil
}

// permits returns how many intents the breaker and the rate let a claim take, up to want. If it is none, due reports
// whether something may be due all the same. The epoch is the breaker's.
func (d *destination) permits(ctx context.Context, a *action, from time.Time, want int) (may, epoch int, due bool, err error) {
	may, epoch = want, -1
	if a.endpoint == nil {
		if may, epoch = d.breaker.Admit(time.Now(), want); may == 0 {
			return 0, epoch, true, nil
		}
	}
	if d.rate.PerSecond == 0 {
		return may, epoch, true, nil
	}
	admitted := may
	may, due, err = d.takeRate(ctx, a, from, admitted)
	d.breaker.Unused(epoch, admitted-may)
	return may, epoch, due, err
}

// takeRate gets up to want permits of the destination's rate, for intents of the action that are due from a mark on. No
// permit and nothing due: the destination is idle.
func (d *destination) takeRate(ctx context.Context, a *action, from time.Time, want int) (may int, due bool, err error) {
	now := time.Now()
	if have := d.rate.Use(now, want); have > 0 {
		return have, true, nil
	}
	if d.rate.Wait(now) > 0 {
		return 0, true, nil
	}
	row, err := d.askRate(ctx, db.RateLimitsTakeParams{
		Destination: d.name, Action: a.name, DueFrom: from, MaxCount: int32(want),
		Rate: d.rate.PerSecond, Burst: int32(d.rate.Burst), Batch: int32(d.rate.Batch)})
	switch {
	case sqlstate.Of(err) == sqlstate.Serialization: // the database's transactions are serializable by default, and this one lost
		row.Due, row.WaitUs = int32(want), limit.TakeEvery.Microseconds()
	case err != nil || row.Due == 0:
		return 0, err != nil, err
	}
	d.rate.Took(now, time.Duration(row.WaitUs)*time.Microsecond)
	return int(row.Given), true, nil
}

// askRate takes permits, and adds the destination's row if there is none yet.
func (d *destination) askRate(ctx context.Context, p db.RateLimitsTakeParams) (row db.RateLimitsTakeRow, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	if row, err = d.core.q.RateLimitsTake(ctx, p); err != nil || row.Due == 0 || row.Found {
		return row, err
	}
	if err = d.core.q.RateLimitsAdd(ctx, p.Destination); err != nil {
		return row, err
	}
	return d.core.q.RateLimitsTake(ctx, p)
}

func (d *destination) claimParams(a *action, from time.Time, maxCount int) db.OutboxQueueClaimParams {
	p := db.OutboxQueueClaimParams{
		Action: a.name, DueFrom: from, Worker: d.core.self.id(), Deployment: d.core.deployment.current(), Destination: d.name, MaxCount: int32(maxCount),
		MaxBytes: d.load.limit, InlineBytes: inlineBytes,
		Lease: a.policy.Lease, SafeToResend: a.policy.Class.repeatable(), NeedsApproval: a.policy.Class == IrreversibleWrite, MinWindowLeft: a.policy.Timeout + windowMargin,
		Renders: a.renders(), SentTo: a.sentTo(),
	}
	p.KeyWindowForever, p.KeyWindow = a.keyWindow()
	return p
}
