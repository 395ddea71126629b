package dispatcher

import (
	"context"
	"slices"
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
		err = d.walk(ctx, a, t, m)
	}
	return m.dueAt, err
}

// claimFair takes up to params.MaxCount intents, from the shares whose turn it is.
func (d *destination) claimFair(ctx context.Context, a *action, t *turns, params db.OutboxQueueClaimParams) (rows []db.OutboxQueueClaimRow, err error) {
	by := a.policy.FairBy
	var got []string
	if params.Shares, params.Quotas = t.pick(int(params.MaxCount), by, d.busy); len(params.Shares) > 0 {
		if rows, err = d.core.q.OutboxQueueClaim(ctx, params); err != nil {
			return nil, err
		}
		got = sharesOf(rows)
		t.took(params.Shares, params.Quotas, got, len(rows) > 0 && rows[0].HasMore)
	}
	if len(rows) == 0 {
		params.Shares, params.Quotas = nil, nil
		if rows, err = d.core.q.OutboxQueueClaim(ctx, params); err != nil {
			return nil, err
		}
		got = sharesOf(rows)
	}
	d.busy.add(by, 1, got...)
	return rows, nil
}

// sharesOf returns the share of each claimed intent.
func sharesOf(rows []db.OutboxQueueClaimRow) []string {
	shares := make([]string, len(rows))
	for i, row := range rows {
		shares[i] = row.Share
	}
	return shares
}

// walk finds the shares that have something due, from where the last walk ended, and around. It finds few shares in one
// query, from the first share on.
func (d *destination) walk(ctx context.Context, a *action, t *turns, m *mark) error {
	began := time.Now()
	p := db.OutboxQueueSharesParams{Action: a.name, FromShare: t.next, DueFrom: m.dueAt, MaxSteps: shareWalk, PageSize: t.page()}
	if t.few() {
		p.FromShare = ""
	}
	first, err := d.core.q.OutboxQueueShares(ctx, p)
	if err != nil {
		return err
	}
	around, steps := first, len(first.Shares)
	whole := steps < shareWalk
	if whole && p.FromShare != "" {
		p.FromShare, p.MaxSteps = "", int32(shareWalk-steps)
		if around, err = d.core.q.OutboxQueueShares(ctx, p); err != nil {
			return err
		}
		n, _ := slices.BinarySearch(around.Shares, t.next)
		whole = n < int(p.MaxSteps)
		steps += n
	}
	due := append(dueOf(first, t.next, true), dueOf(around, t.next, false)...)
	if len(due) == 0 && !whole {
		t.next = behind(around.Shares[len(around.Shares)-1]) // nothing here has a turn
	}
	t.found(due, whole, steps, began, time.Now())
	if mark := around.FirstDue.Add(-markSlack); t.few() && mark.After(m.dueAt) {
		m.dueAt = mark // around has them all
	}
	return nil
}

// dueOf returns the shares with something due, of those from a share on (after) or of those before it.
func dueOf(row db.OutboxQueueSharesRow, from string, after bool) (due []string) {
	for i, share := range row.Shares {
		if row.Due[i] && share >= from == after {
			due = append(due, share)
		}
	}
	return due
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
