package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
)

// result is a settlement on its way to the database.
type result struct {
	claim *claim
	settlement
	settled func(settled bool) // told when it is written; settled is false where the fence was closed
}

// settler writes results back in batches: whatever came in while the last batch was written is the next one. A batch
// that the database does not take is kept and tried again until it does, or until a stop runs out of time; what is
// lost then is found by a sweep, as after a crash.
type settler struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	worker int32
	log    *slog.Logger
	in     chan result
	wake   func(actions ...string) // actions that became due by a promotion
	behind *atomic.Bool            // set while a batch is kept: nothing is claimed then
}

const (
	settleBatch   = 1000
	orderedBatch  = 50 // each ordering key takes an advisory lock, and a slot of the server's shared table
	settleTimeout = 30 * time.Second
)

// run settles until in is closed and empty, or ctx ends.
func (s *settler) run(ctx context.Context) {
	for {
		var first result
		var ok bool
		select {
		case first, ok = <-s.in:
		case <-ctx.Done():
		}
		if !ok {
			return
		}
		batch := append(make([]result, 0, settleBatch), first)
	fill:
		for len(batch) < settleBatch {
			select {
			case next, ok := <-s.in:
				if !ok {
					break fill
				}
				batch = append(batch, next)
			default:
				break fill
			}
		}
		s.settle(ctx, batch)
	}
}

// settle splits off ordered intents, whose successors are promoted in the same transaction.
func (s *settler) settle(ctx context.Context, batch []result) {
	var ordered []result
	plain := slices.DeleteFunc(batch, func(r result) bool {
		if r.claim.OrderingKey == nil {
			return false
		}
		ordered = append(ordered, r)
		return true
	})
	if len(plain) > 0 {
		s.persist(ctx, plain, s.writePlain)
	}
	for chunk := range slices.Chunk(ordered, orderedBatch) {
		s.persist(ctx, chunk, s.writeOrdered)
	}
}

// persist writes a batch for as long as that takes, then tells whoever waits.
func (s *settler) persist(ctx context.Context, batch []result, write func(context.Context, []result) ([]db.OutboxQueueSettleRow, error)) {
	wait := 50 * time.Millisecond
	for {
		writing, cancel := context.WithTimeout(ctx, settleTimeout)
		attempts, err := write(writing, batch)
		cancel()
		s.behind.Store(err != nil)
		if err == nil {
			s.tell(ctx, batch, attempts)
			return
		}
		if poisonous(err) {
			s.behind.Store(false)
			s.isolate(ctx, batch, write)
			return
		}
		s.log.ErrorContext(ctx, "dispatcher: outcomes could not be written back; they are kept and tried again",
			slog.Int("outcomes", len(batch)), slog.String("error", errorText(err)))
		if !sleep(ctx, wait) {
			s.log.ErrorContext(ctx, "dispatcher: stopped with outcomes that were not written back; their intents are taken over",
				slog.Int("outcomes", len(batch)))
			s.tell(ctx, batch, nil)
			return
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// isolate writes a batch that holds something which the tables refuse, one outcome at a time, so that it costs its
// neighbours nothing. What is refused alone too is given up, with an alarm: its lease runs out, and it is taken over.
func (s *settler) isolate(ctx context.Context, batch []result, write func(context.Context, []result) ([]db.OutboxQueueSettleRow, error)) {
	if len(batch) > 1 {
		for _, r := range batch {
			s.persist(ctx, []result{r}, write)
		}
		return
	}
	r := batch[0]
	s.log.ErrorContext(ctx, "dispatcher: an outcome is refused by the tables and cannot be written back", append(r.claim.attrs(),
		slog.String("outcome", r.outcome))...)
	if r.settled != nil {
		r.settled(false)
	}
}

// poisonous says whether the server refused the values themselves (SQLSTATE classes 22 and 23), which another try does
// not change.
func poisonous(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (strings.HasPrefix(pgErr.Code, "22") || strings.HasPrefix(pgErr.Code, "23"))
}

func (s *settler) tell(ctx context.Context, batch []result, attempts []db.OutboxQueueSettleRow) {
	written := make(map[db.OutboxQueueSettleRow]bool, len(attempts))
	for _, attempt := range attempts {
		written[attempt] = true
	}
	for _, r := range batch {
		settled := written[db.OutboxQueueSettleRow{ID: r.claim.ID, Attempt: r.claim.Attempt}]
		if !settled && ctx.Err() == nil {
			s.late(ctx, r)
		}
		if r.settled != nil {
			r.settled(settled)
		}
	}
}

func (s *settler) writePlain(ctx context.Context, batch []result) ([]db.OutboxQueueSettleRow, error) {
	return s.q.OutboxQueueSettle(ctx, settleParams(s.worker, batch))
}

// writeOrdered settles and promotes under the ordering keys' locks. Each is a statement of its own, whose snapshot is
// younger than the locks.
func (s *settler) writeOrdered(ctx context.Context, batch []result) (attempts []db.OutboxQueueSettleRow, err error) {
	var keys, promoted []string
	for _, r := range batch {
		keys = append(keys, *r.claim.OrderingKey)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		q := s.q.WithTx(tx)
		if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
			return err
		}
		if attempts, err = q.OutboxQueueSettle(ctx, settleParams(s.worker, batch)); err != nil {
			return err
		}
		promoted, err = q.OutboxQueuePromote(ctx, keys)
		return err
	})
	if err == nil && len(promoted) > 0 {
		s.wake(promoted...)
	}
	return attempts, err
}

// late keeps the answer of an attempt that somebody else has taken over.
func (s *settler) late(ctx context.Context, r result) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	row, err := s.q.OutboxQueueSettleLate(ctx, db.OutboxQueueSettleLateParams{
		ID: r.claim.ID, Attempt: r.claim.Attempt, Worker: s.worker, Outcome: r.outcome,
		Code: clean(r.answer.Code, codeLimit), Error: clean(r.err, errorLimit),
		ResponseType: clean(r.answer.ContentType, typeLimit), Response: r.answer.Body,
	})
	attrs := []any{slog.String("action", r.claim.action.name), slog.Any("intent", r.claim.ID),
		slog.Int("attempt", int(r.claim.Attempt)), slog.String("outcome", r.outcome)}
	switch {
	case err != nil:
		s.log.ErrorContext(ctx, "dispatcher: a late answer could not be kept", append(attrs, slog.String("error", errorText(err)))...)
	case row.Resolved > 0:
		s.log.WarnContext(ctx, "dispatcher: a late answer resolved an intent whose outcome was unknown", attrs...)
		s.wake(r.claim.action.name)
	case row.Logged > 0:
		s.log.WarnContext(ctx, "dispatcher: an attempt ended after somebody else had taken its intent over; its answer is kept", attrs...)
	}
}

func settleParams(worker int32, batch []result) db.OutboxQueueSettleParams {
	p := db.OutboxQueueSettleParams{Worker: worker}
	for _, r := range batch {
		p.Ids = append(p.Ids, r.claim.ID)
		p.Attempts = append(p.Attempts, r.claim.Attempt)
		p.Statuses = append(p.Statuses, r.status)
		p.Delays = append(p.Delays, r.delay.Microseconds())
		p.Spents = append(p.Spents, int32(r.spent))
		p.Unsends = append(p.Unsends, r.unsend)
		p.Keeps = append(p.Keeps, r.keep)
		p.Leaves = append(p.Leaves, r.leave)
		p.Events = append(p.Events, r.event)
		p.Outcomes = append(p.Outcomes, r.outcome)
		p.Codes = append(p.Codes, clean(r.answer.Code, codeLimit))
		p.Errors = append(p.Errors, clean(r.err, errorLimit))
		p.ResponseTypes = append(p.ResponseTypes, clean(r.answer.ContentType, typeLimit))
		p.Responses = append(p.Responses, r.answer.Body)
		p.TookUs = append(p.TookUs, r.took.Microseconds())
	}
	return p
}
