package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
)

// Where a claim's answer is too small for its payloads, all that stands in the outbox is loaded after its commit. A load
// locks nothing, so a slow connection holds up its own worker alone.
//
//	the load fails, or takes too long         what was claimed is given back at once, unsent; nothing is spent
//	the worker is stopped while it loads      the load is cut off, and what was claimed is given back, due at once
//	killed or halted while it loads           what may be repeated is sent by whoever takes it over; the rest was leased as
//	                                          unsent (see OutboxQueueClaim), and is pending again
//	stopped, taken over, and goes on          OutboxQueueMarkSending finds the fence closed for what may not be repeated; the rest
//	                                          meets the attempt's deadline, as any zombie does
//	the intent is pruned meanwhile            it is not: an intent in the queue stays

const (
	// inlineBytes fit into the answer of a claim: what Postgres and a socket buffer, so that the commit waits for nobody.
	inlineBytes = 32 << 10
	// A claim takes what the connection is expected to carry in loadTarget, between these.
	minClaimBytes, firstClaimBytes, maxClaimBytes = 64 << 10, 256 << 10, 4 << 20
	loadTarget                                    = 500 * time.Millisecond
	// loadTimeout bounds one load, as the attempt's deadline does.
	loadTimeout = 30 * time.Second
)

// loadBudget is how many bytes a claim may take.
type loadBudget struct{ limit int64 }

func newLoadBudget() loadBudget { return loadBudget{limit: firstClaimBytes} }

// took adapts the budget to a load of so many bytes that took so long.
func (b *loadBudget) took(bytes int64, so time.Duration) {
	switch {
	case so < loadTarget/4:
		b.limit = max(b.limit, 2*min(b.limit, bytes))
	default:
		b.limit = int64(float64(bytes) * loadTarget.Seconds() / so.Seconds())
	}
	b.limit = min(max(b.limit, minClaimBytes), maxClaimBytes)
}

// failed: the connection carries less than was thought, or nothing.
func (b *loadBudget) failed() { b.limit = minClaimBytes }

// read loads what the answer of the claim left out. A stop cuts it off.
func (l *lane) read(ctx context.Context, claims []*claim) error {
	ids := make([]uuid.UUID, len(claims))
	byID := make(map[uuid.UUID]*claim, len(claims))
	for i, c := range claims {
		ids[i], byID[c.ID] = c.ID, c
	}
	began := time.Now()
	deadline := claims[0].asked.Add(min(claims[0].action.policy.Timeout, loadTimeout))
	loading, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	rows, err := l.node.q.OutboxLoad(loading, ids)
	if err == nil && len(rows) != len(claims) {
		err = fmt.Errorf("%d of %d payloads were found", len(rows), len(claims))
	}
	if err != nil {
		if ctx.Err() == nil {
			l.load.failed()
		}
		return fmt.Errorf("load payloads of %d bytes: %w", claims[0].Bytes, err)
	}
	l.load.took(claims[0].Bytes, time.Since(began))
	for _, row := range rows {
		byID[row.ID].loaded(row)
	}
	return nil
}

// loaded takes what the answer of the claim left out.
func (c *claim) loaded(row db.OutboxLoadRow) {
	c.Scope, c.IdemKey, c.Part, c.DeliveryKey, c.CreatedAt = row.Scope, row.IdemKey, row.Part, row.DeliveryKey, row.CreatedAt
	c.Payload, c.ContentType, c.Headers, c.TraceContext = row.Payload, row.ContentType, row.Headers, row.TraceContext
	c.CarriedKey, c.RequestType, c.Request, c.MessageID = row.CarriedKey, row.RequestType, row.Request, row.MessageID
	c.PastDeadline = row.Deadline != nil && !row.Deadline.After(c.Now)
}

// sending marks those that were leased as unsent and are about to be sent. What is not marked is given back.
func (l *lane) sending(ctx context.Context, a *action, claims []*claim) {
	if a.policy.Class.repeatable() || len(claims) == 0 {
		return
	}
	p := db.OutboxQueueMarkSendingParams{Worker: claims[0].worker, Renders: a.fixes()}
	p.KeyWindowForever, p.KeyWindow = a.keyWindow()
	var marking []*claim
	for _, c := range claims {
		if c.Status == statusLeased && c.calls {
			p.Ids, p.Attempts = append(p.Ids, c.ID), append(p.Attempts, c.Attempt)
			marking = append(marking, c)
		}
	}
	if len(marking) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	marked, err := l.node.q.OutboxQueueMarkSending(ctx, p)
	if err != nil {
		l.node.log.WarnContext(ctx, "dispatcher: intents could not be marked as sent, nothing was sent", slog.String("destination", l.name), slog.String("error", errorText(err)))
	}
	ours := make(map[uuid.UUID]bool, len(marked))
	for _, id := range marked {
		ours[id] = true
	}
	for _, c := range marking {
		c.unmarked = !ours[c.ID]
	}
}

// giveBack undoes claims of which nothing was sent.
func (l *lane) giveBack(ctx context.Context, claims []*claim, delay time.Duration) {
	delays := make([]time.Duration, len(claims))
	for i := range delays {
		delays[i] = delay
	}
	l.putOff(ctx, claims, delays)
	l.rate.unused(len(claims))
	l.release(len(claims))
}
