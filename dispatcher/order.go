package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
)

// orderSettler writes back the outcomes of ordered intents, and promotes the next of each ordering key in the same
// transaction, under the key's lock. Writers hold that lock until they commit, so a settle never waits for it: what is
// locked is tried again, with its lease renewed, while the others go on.
type orderSettler struct {
	*settler
	waiting []result
	renewed time.Time
}

const (
	orderedBatch = 50 // each ordering key takes an advisory lock, and a slot of the server's shared table
	orderedRetry = 25 * time.Millisecond
	renewEvery   = time.Second
)

// run settles until ordered is closed and all is written, or ctx ends.
func (s *orderSettler) run(ctx context.Context) {
	open := true
	for wait := orderedRetry; open || len(s.waiting) > 0; {
		held := len(s.waiting) // what comes in now is counted only if it stays
		open = s.collect(ctx, open, wait)
		if ctx.Err() != nil {
			break
		}
		before := len(s.waiting)
		s.round(ctx)
		s.stuck.Add(int64(len(s.waiting) - held))
		if wait = orderedRetry; before > 0 && len(s.waiting) == before {
			wait = min(2*max(wait, orderedRetry), 500*time.Millisecond)
		}
	}
	for _, r := range s.waiting {
		s.giveUp(ctx, r)
	}
	for r := range s.ordered { // until run closes it: nothing is left behind
		s.giveUp(ctx, r)
	}
}

// collect takes in what is there: at once where something came, else after wait where something waits already.
func (s *orderSettler) collect(ctx context.Context, open bool, wait time.Duration) bool {
	var again <-chan time.Time
	if len(s.waiting) > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		again = timer.C
	}
	in := s.ordered
	if !open {
		in = nil
	}
	select {
	case r, ok := <-in:
		if !ok {
			return false
		}
		s.waiting = append(s.waiting, r)
	case <-again:
	case <-ctx.Done():
		return open
	}
	for open && len(s.waiting) < settleBatch {
		select {
		case r, ok := <-s.ordered:
			if !ok {
				return false
			}
			s.waiting = append(s.waiting, r)
		default:
			return open
		}
	}
	return open
}

// round tries everything that waits once.
func (s *orderSettler) round(ctx context.Context) {
	var left []result
	for _, part := range byWorker(s.waiting) {
		for chunk := range slices.Chunk(part, orderedBatch) {
			left = append(left, s.try(ctx, chunk)...)
		}
	}
	s.waiting = left
	if len(left) > 0 && time.Since(s.renewed) >= renewEvery {
		s.renewed = time.Now()
		if err := s.renew(ctx, left); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "dispatcher: leases could not be renewed", slog.Int("outcomes", len(left)), slog.String("error", errorText(err)))
		}
	}
}

// try settles those of a chunk whose ordering keys are free, and returns the others. Lock, settle and promotion are
// statements of their own, each with a snapshot younger than the locks.
func (s *orderSettler) try(ctx context.Context, chunk []result) (left []result) {
	var free, keys, promoted []string
	for _, r := range chunk {
		keys = append(keys, *r.claim.OrderingKey)
	}
	var batch []result
	var attempts []db.OutboxQueueSettleRow
	writing, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := pgx.BeginTxFunc(writing, s.pool, isReadCommitted, func(tx pgx.Tx) (err error) {
		q := s.q.WithTx(tx)
		if free, err = q.OutboxQueueTryLockOrder(writing, keys); err != nil {
			return err
		}
		for _, r := range chunk {
			if slices.Contains(free, *r.claim.OrderingKey) {
				batch = append(batch, r)
			} else {
				left = append(left, r)
			}
		}
		if len(batch) == 0 {
			return nil
		}
		if attempts, err = q.OutboxQueueSettle(writing, settleParams(batch)); err != nil {
			return err
		}
		promoted, err = q.OutboxQueuePromote(writing, free)
		return err
	})
	switch {
	case err == nil:
		s.tell(ctx, batch, attempts)
		s.wake(promoted...)
		return left
	case len(chunk) > 1 && !refusesAll(err) && s.answers(ctx): // find out which one it is
		return append(s.try(ctx, chunk[:len(chunk)/2]), s.try(ctx, chunk[len(chunk)/2:])...)
	case poisonous(err):
		s.giveUp(ctx, chunk[0])
		return nil
	}
	resetReadOnly(s.pool, err)
	s.log.ErrorContext(ctx, "dispatcher: outcomes of ordered intents could not be written back; they are kept and tried again",
		slog.Int("outcomes", len(chunk)), slog.String("error", errorText(err)))
	return chunk
}
