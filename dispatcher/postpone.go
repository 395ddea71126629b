package dispatcher

import (
	"context"

	"github.com/samekey/samekey/internal/db"
)

// writePostpone undoes claims in one statement for each id under which they were claimed. That is one id, unless a
// stranger took it. unsent means that the claims were made to send, and nothing was sent. It returns the last error.
func writePostpone(ctx context.Context, q *db.Queries, claims []*claim, unsent bool) (err error) {
	byWorker := map[int32]*db.OutboxQueuePostponeParams{}
	for _, c := range claims {
		p := byWorker[c.worker]
		if p == nil {
			p = &db.OutboxQueuePostponeParams{Worker: c.worker}
			byWorker[c.worker] = p
		}
		p.Ids, p.Attempts = append(p.Ids, c.ID), append(p.Attempts, c.Attempt)
		p.Delays = append(p.Delays, c.visit.delay.Microseconds())
		p.ClearSent = append(p.ClearSent, unsent && c.FirstSend)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for _, p := range byWorker {
		if _, failed := q.OutboxQueuePostpone(ctx, *p); failed != nil {
			err = failed
		}
	}
	return err
}
