package dispatcher

import (
	"context"
	"time"

	"github.com/samekey/samekey/internal/db"
)

// A claim of a fair action (Policy.FairBy) takes from its shares in turn. turns.go decides from which; queries/
// outbox_queue.sql has the interleavings. All limits are those of any claim: slots, rate, breaker, pause, bytes, the
// low-water mark. Intents without a share, and shares that a walk has not come to, are taken by a claim that goes by
// due_at, as soon as the shares in the ring leave slots free.

// fillPage is how many intents are looked through once a second for some without a share. It continues at the next
// claim as long as it finds any.
const fillPage = 5000

// findShares looks for shares that have something due, if that is worth its time, and about once a second (full) for
// intents without a share. It returns the low-water mark.
func (d *destination) findShares(ctx context.Context, index int, full bool) (from time.Time, err error) {
	a, m := d.actions[index], &d.marks[index]
	if full {
		if err := d.fill(ctx, a, m); err != nil {
			return from, err
		}
	}
	if t := d.turns[index]; t.wantsWalk(time.Now()) {
		err = d.walk(ctx, a, t, m.dueAt)
	}
	return m.dueAt, err
}

// claimFair takes up to params.MaxCount intents, from the shares whose turn it is.
func (d *destination) claimFair(ctx context.Context, a *action, t *turns, params db.OutboxQueueClaimParams) (rows []db.OutboxQueueClaimRow, err error) {
	by := a.policy.FairBy
	if params.Shares, params.Quotas = t.pick(int(params.MaxCount), by, d.busy); len(params.Shares) > 0 {
		if rows, err = d.core.q.OutboxQueueClaim(ctx, params); err != nil {
			return nil, err
		}
		got := map[string]int{}
		for _, row := range rows {
			got[row.Share]++
		}
		t.took(params.Shares, params.Quotas, got, len(rows) > 0 && rows[0].HasMore)
	}
	if len(rows) == 0 {
		params.Shares, params.Quotas = nil, nil
		if rows, err = d.core.q.OutboxQueueClaim(ctx, params); err != nil {
			return nil, err
		}
	}
	for _, row := range rows {
		d.busy.add(by, row.Share, 1)
	}
	return rows, nil
}

// walk finds the shares that have something due, from where the last one ended, and around.
func (d *destination) walk(ctx context.Context, a *action, t *turns, from time.Time) error {
	began := time.Now()
	p := db.OutboxQueueSharesParams{Action: a.name, FromShare: t.next, DueFrom: from, MaxDue: shareWalk, MaxSteps: shareWalk, PageSize: t.page()}
	var due []string
	steps, whole := 0, false
	for around := false; ; around = true {
		rows, err := d.core.q.OutboxQueueShares(ctx, p)
		if err != nil {
			return err
		}
		last := ""
		for _, row := range rows {
			if around && row.Share >= t.next {
				whole = true
				break
			}
			if last = row.Share; row.Due {
				due = append(due, row.Share)
			}
			steps++
		}
		ended := len(rows) < int(p.MaxSteps) && len(due) < shareWalk
		whole = whole || ended && (around || t.next == "")
		if whole || !ended {
			if len(due) == 0 && !whole {
				t.next = behind(last) // nothing here has a turn
			}
			break
		}
		p.FromShare, p.MaxSteps, p.MaxDue = "", int32(shareWalk-steps), int32(shareWalk-len(due))
	}
	t.found(due, whole, steps, began, time.Now())
	return nil
}

// fill gives a share to intents that were written without one, and sets the low-water mark: claims of shares do not go
// by due_at, so they cannot tell it.
func (d *destination) fill(ctx context.Context, a *action, m *mark) error {
	row, err := d.core.q.OutboxQueueShareFill(ctx, db.OutboxQueueShareFillParams{
		Action: a.name, After: m.filled, MaxCount: fillPage, ByPart: a.policy.FairBy == FairByPart})
	if err != nil {
		return err
	}
	m.filled, m.dueAt = row.After, row.FirstDue.Add(-markSlack) // the epoch, where nothing is due
	if row.Filled > 0 {
		m.full = time.Time{}
	}
	return nil
}
