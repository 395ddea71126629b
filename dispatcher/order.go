package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// orderSettler settles ordered intents, and promotes the next of each ordering key in the same transaction, under the
// key's lock. Writers hold that lock until they commit, so a settle never waits for it: a key that is locked is tried
// again, with the leases renewed, while the others go on.
type orderSettler struct {
	*settleWriter
	ordered chan result
	waiting []result
	renewed time.Time
}

const (
	orderedBatch = 50                    // each ordering key takes an advisory lock, and a slot of the server's shared table
	orderedRetry = 25 * time.Millisecond // doubles while nothing moves
	// orderedMaxWait is short: writers of a busy key leave its lock free for moments only, and a settle must meet one.
	// With a key that was locked 30 of each 36 ms, a settle took 0.1 s at the median, and 1.8 s with a wait of 500 ms.
	orderedMaxWait = 50 * time.Millisecond
	renewEvery     = time.Second
)

// run settles until ordered is closed and all is written, or ctx ends.
func (s *orderSettler) run(ctx context.Context) {
	open := true
	retry := doubling{first: orderedRetry, most: orderedMaxWait}
	for wait := retry.first; open || len(s.waiting) > 0; {
		held := len(s.waiting) // a new settlement counts only if it stays
		open = s.collect(ctx, open, wait)
		if ctx.Err() != nil {
			break
		}
		before := len(s.waiting)
		s.round(ctx)
		s.stuck.Add(int64(len(s.waiting) - held))
		if before == 0 || len(s.waiting) < before {
			retry.reset()
		}
		wait = retry.delay()
	}
	for _, r := range s.waiting {
		s.giveUp(ctx, r)
	}
	for r := range s.ordered { // until it is closed: no claim is left waiting
		s.giveUp(ctx, r)
	}
}

// collect takes in the settlements that are there: at once if one comes, else after wait if some wait already.
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

// round tries each waiting settlement once.
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

// try settles the intents of a chunk whose ordering keys are free, and returns the others. Lock, settle and promotion
// are separate statements, each with a snapshot younger than the locks.
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
		s.poke(promoted...)
		return left
	case len(chunk) > 1 && !sqlstate.Refuses(err) && s.answers(ctx): // find out which intent it is
		return append(s.try(ctx, chunk[:len(chunk)/2]), s.try(ctx, chunk[len(chunk)/2:])...)
	case sqlstate.BadValue(err):
		s.giveUp(ctx, chunk[0])
		return nil
	}
	resetReadOnly(s.pool, err)
	s.log.ErrorContext(ctx, "dispatcher: outcomes of ordered intents could not be written back; they are kept and tried again",
		slog.Int("outcomes", len(chunk)), slog.String("error", errorText(err)))
	return chunk
}

// promote gives heads to ordering keys that have none, and returns the actions that have something due by that.
func promote(ctx context.Context, pool *pgxpool.Pool, q *db.Queries, keys []string) (promoted []string, err error) {
	err = pgx.BeginTxFunc(ctx, pool, isReadCommitted, func(tx pgx.Tx) error {
		q := q.WithTx(tx)
		if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
			return err
		}
		promoted, err = q.OutboxQueuePromote(ctx, keys)
		return err
	})
	return promoted, err
}
