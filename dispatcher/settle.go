package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// settler writes settlements in batches: what comes in while a batch is written is the next batch.
//
// If the database is unavailable, nothing is claimed and settling is tried again until it returns. A settlement that
// only a lock or its own values hold up is set apart, so that it costs its neighbors nothing: a batch that fails while
// the database answers is halved until that settlement stands alone. Ordered intents, whose keys a writer may hold
// locked for as long as its transaction lasts, are written by a goroutine of their own, see order.go. A settlement that
// waits for long has its lease renewed.
type settler struct {
	settleWriter

	in        chan result
	abandoned chan struct{} // closed when a stop waits no longer for calls: nothing more is taken
	ended     chan struct{} // closed when run has ended

	behind  atomic.Bool // the database does not take settlements
	ordered chan result
}

func newSettler(pool *pgxpool.Pool, q *db.Queries, log *slog.Logger, poke func(...string), announcer *announcer) *settler {
	return &settler{settleWriter: settleWriter{pool: pool, q: q, log: log, poke: poke, announcer: announcer},
		in: make(chan result, settleBatch), ordered: make(chan result, settleBatch), abandoned: make(chan struct{}), ended: make(chan struct{})}
}

// isBehind reports whether the database does not take settlements at the moment: they are kept and tried again.
func (s *settler) isBehind() bool { return s.behind.Load() }

// isHeldUp reports whether so many settlements wait for locks of others that nothing is claimed.
func (s *settler) isHeldUp() bool { return s.stuck.Load() >= maxStuck }

// settle writes the settlement of a claim, and returns whether it was written. If it was not, another worker has taken
// the intent over, or will.
func (s *settler) settle(c *claim, what settlement) (written bool) {
	select {
	case <-s.abandoned: // first, since a buffer without a reader would take it too
		return false
	default:
	}
	select {
	case s.in <- result{c, what}:
	case <-s.abandoned:
		return false
	}
	select {
	case written = <-c.settled:
	case <-s.ended:
		select {
		case written = <-c.settled:
		default: // run did not take it
		}
	}
	return written
}

// stop has run end when all settlements are written. abandon takes no more of them. One of the two is called, once.
func (s *settler) stop()    { close(s.in) }
func (s *settler) abandon() { close(s.abandoned) }

const (
	settleBytes = 8 << 20 // responses in one batch, about
	maxStuck    = 1000    // with so many settlements held up, nothing is claimed
)

// run settles until stop is called and all is written, or ctx ends. What is not written then is found by a sweep, as
// after a crash.
func (s *settler) run(ctx context.Context) {
	defer close(s.ended)
	var order sync.WaitGroup
	order.Go(func() { (&orderSettler{settleWriter: &s.settleWriter, ordered: s.ordered}).run(ctx) })
	for {
		batch, more := s.next(ctx)
		for _, part := range byWorker(batch) {
			s.persist(ctx, part)
		}
		if !more {
			break
		}
	}
	close(s.ordered)
	order.Wait()
	s.alone.Wait()
}

// next collects the settlements that are there. Ordered intents go to their own goroutine.
func (s *settler) next(ctx context.Context) (batch []result, more bool) {
	size := 0
	take := func(r result) {
		if r.claim.OrderingKey != nil {
			select {
			case s.ordered <- r:
			case <-ctx.Done():
				s.giveUp(ctx, r)
			}
			return
		}
		size += len(r.response.Body) + len(r.err)
		batch = append(batch, r)
	}
	select {
	case r, ok := <-s.in:
		if !ok {
			return nil, false
		}
		take(r)
	case <-ctx.Done():
		return nil, false
	}
	for len(batch) < settleBatch && size < settleBytes {
		select {
		case r, ok := <-s.in:
			if !ok {
				return batch, false
			}
			take(r)
		default:
			return batch, true
		}
	}
	return batch, true
}

// persist writes a batch, for as long as the database is unavailable.
func (s *settler) persist(ctx context.Context, batch []result) {
	for retry := s.retry(); ; {
		err := s.write(ctx, batch)
		switch {
		case err == nil:
			s.behind.Store(false)
			return
		case !sqlstate.Refuses(err) && s.answers(ctx):
			s.behind.Store(false)
			s.divide(ctx, batch, err)
			return
		}
		s.behind.Store(true)
		s.log.ErrorContext(ctx, "dispatcher: outcomes could not be written back; they are kept and tried again",
			slog.Int("outcomes", len(batch)), slog.String("error", errorText(err)))
		if !retry.sleep(ctx) {
			for _, r := range batch {
				s.giveUp(ctx, r)
			}
			return
		}
	}
}

// divide handles a batch that failed while the database answers. It sets apart the intents that others hold locked; if
// there are none it halves the batch. A settlement alone goes on by itself.
func (s *settler) divide(ctx context.Context, batch []result, err error) {
	if free, locked := s.partLocked(ctx, batch); len(batch) > 1 && len(locked) > 0 {
		for _, r := range locked {
			s.divide(ctx, []result{r}, err)
		}
		if len(free) > 0 {
			s.persist(ctx, free)
		}
		return
	}
	if len(batch) > 1 {
		s.persist(ctx, batch[:len(batch)/2])
		s.persist(ctx, batch[len(batch)/2:])
		return
	}
	r := batch[0]
	s.log.ErrorContext(ctx, "dispatcher: an outcome could not be written back", append(r.claim.attrs(),
		slog.String("outcome", r.outcome), slog.String("error", errorText(err)))...)
	if sqlstate.BadValue(err) {
		s.giveUp(ctx, r)
		return
	}
	s.alone.Go(func() { s.insist(ctx, r) })
}

func (s *settler) partLocked(ctx context.Context, batch []result) (free, locked []result) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	ids, err := s.q.OutboxQueueLocked(ctx, settleParams(batch).Ids)
	if err != nil {
		return batch, nil
	}
	for _, r := range batch {
		if slices.Contains(ids, r.claim.ID) {
			locked = append(locked, r)
		} else {
			free = append(free, r)
		}
	}
	return free, locked
}

// insist writes one settlement that something else holds up, such as a person's open transaction on the intent.
func (s *settler) insist(ctx context.Context, r result) {
	s.stuck.Add(1)
	defer s.stuck.Add(-1)
	for retry := s.retry(); retry.sleep(ctx); {
		err := s.write(ctx, []result{r})
		if err == nil {
			return
		}
		if sqlstate.BadValue(err) {
			break
		}
		_ = s.renew(ctx, []result{r}) // if this fails too, the lease runs out
	}
	s.giveUp(ctx, r)
}
