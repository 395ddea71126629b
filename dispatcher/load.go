package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
)

// If the payloads do not fit into the answer of a claim, they are loaded after its commit. A load locks nothing, so a
// slow connection holds up its own worker alone.
//
//	the load fails, or takes too long         the batch is given back at once, unsent; no attempt is used
//	the worker is stopped while it loads      the load is cut off, and the batch is given back, due at once
//	killed or halted while it loads           intents that may be repeated are sent by the worker that takes them over; the
//	                                          others were leased as unsent (see OutboxQueueClaim) and are pending again
//	stopped, taken over, and goes on          OutboxQueueMarkSending finds the fence closed for intents that may not be repeated;
//	                                          the others meet the attempt's deadline, as any zombie does
//	the intent is pruned meanwhile            impossible: an intent in the queue is never pruned

const (
	// inlineBytes fit into the answer of a claim: what Postgres and a socket buffer, so that the commit waits for
	// nobody.
	inlineBytes = 32 << 10
	// loadTimeout bounds one load, as the attempt's deadline does.
	loadTimeout = 30 * time.Second
)

// loadBatch loads what the claim left out. A stop cuts it off. If it fails, the batch is given back: nothing was sent.
func (d *destination) loadBatch(ctx context.Context, b batch) error {
	if !b.claims[0].PayloadDeferred {
		return nil
	}
	err := d.load.batch(ctx, d.core.q, b)
	if err == nil {
		return nil
	}
	d.breaker.Unused(b.epoch, len(b.claims))
	delay := time.Second // no busy loop against a connection that is too slow
	if ctx.Err() != nil {
		delay = 0 // a stop: another worker may send it at once
	}
	for _, c := range b.claims {
		c.visit.delay = delay
	}
	d.giveBack(ctx, b.claims)
	return err
}

// batch loads the payloads of a batch, and adapts the budget to how long that took.
func (l *loadBudget) batch(ctx context.Context, q *db.Queries, b batch) error {
	ids := make([]uuid.UUID, len(b.claims))
	byID := make(map[uuid.UUID]*claim, len(b.claims))
	for i, c := range b.claims {
		ids[i], byID[c.ID] = c.ID, c
	}
	began, bytes := time.Now(), b.claims[0].Bytes
	loading, cancel := context.WithDeadline(ctx, b.claims[0].asked.Add(min(b.action.policy.Timeout, loadTimeout)))
	defer cancel()
	rows, err := q.OutboxLoad(loading, ids)
	if err == nil && len(rows) != len(b.claims) {
		err = fmt.Errorf("%d of %d payloads were found", len(rows), len(b.claims))
	}
	if err != nil {
		if ctx.Err() == nil {
			l.failed()
		}
		return fmt.Errorf("load payloads of %d bytes: %w", bytes, err)
	}
	l.took(bytes, time.Since(began))
	for _, row := range rows {
		byID[row.ID].loaded(row)
	}
	return nil
}

// markSending marks claims that were leased as unsent and are about to be sent. What is not marked is given back.
func (d *destination) markSending(ctx context.Context, a *action, claims []*claim) {
	if a.policy.Class.repeatable() || len(claims) == 0 {
		return
	}
	p := db.OutboxQueueMarkSendingParams{Worker: claims[0].worker, Renders: a.renders()}
	p.KeyWindowForever, p.KeyWindow = a.keyWindow()
	var marking []*claim
	for _, c := range claims {
		if c.Status == statusLeased && c.resting == nil {
			p.Ids, p.Attempts = append(p.Ids, c.ID), append(p.Attempts, c.Attempt)
			marking = append(marking, c)
		}
	}
	if len(marking) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	marked, err := d.core.q.OutboxQueueMarkSending(ctx, p)
	if err != nil {
		d.core.log.WarnContext(ctx, "dispatcher: intents could not be marked as sent, nothing was sent", slog.String("destination", d.name), slog.String("error", errorText(err)))
	}
	ours := make(map[uuid.UUID]bool, len(marked))
	for _, id := range marked {
		ours[id] = true
	}
	for _, c := range marking {
		c.unmarked = !ours[c.ID]
	}
}
