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

	mu      sync.Mutex
	waiting []result      // taken, and not in a batch yet
	closed  bool          // nothing more is taken
	some    chan struct{} // something waits, or closed is set

	behind  atomic.Bool // the database does not take settlements
	ordered chan result
}

func newSettler(pool *pgxpool.Pool, q *db.Queries, log *slog.Logger, poke func(...string), announcer *announcer) *settler {
	return &settler{settleWriter: settleWriter{pool: pool, q: q, log: log, poke: poke, announcer: announcer},
		some: make(chan struct{}, 1), ordered: make(chan result, settleBatch)}
}

// isBehind reports whether the database does not take settlements at the moment: they are kept and tried again.
func (s *settler) isBehind() bool { return s.behind.Load() }

// isHeldUp reports whether so many settlements wait for locks of others that nothing is claimed.
func (s *settler) isHeldUp() bool { return s.stuck.Load() >= maxStuck }

// settle writes the settlement of a claim, and returns whether it was written. If it was not, another worker has taken
// the intent over, or will.
func (s *settler) settle(c *claim, what settlement) (written bool) {
	return s.take(result{c, what}) && <-c.settled
}

// take queues a settlement, unless the settler is stopped. Each one that is taken is told whether it was written.
//
// The queue is a slice, not a channel: a settle that waits in a select over shared channels costs nearly twice as much.
func (s *settler) take(r result) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.waiting = append(s.waiting, r)
	s.wake()
	return true
}

// stop takes no more settlements. run ends when those that were taken are written.
func (s *settler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wake()
}

func (s *settler) wake() {
	select {
	case s.some <- struct{}{}:
	default: // run will look anyway
	}
}

const (
	settleBytes = 8 << 20 // responses in one batch, about
	maxStuck    = 1000    // with so many settlements held up, nothing is claimed
)

// run settles until stop is called and all is written, or ctx ends. What is not written then is found by a sweep, as
// after a crash.
func (s *settler) run(ctx context.Context) {
	var order sync.WaitGroup
	order.Go(func() { (&orderSettler{settleWriter: &s.settleWriter, ordered: s.ordered}).run(ctx) })
	var batch []result
	for more := true; more; {
		batch, more = s.next(ctx, batch)
		for _, part := range byWorker(s.unordered(ctx, batch)) {
			s.persist(ctx, part)
		}
		clear(batch) // so that the slice keeps no claim
	}
	close(s.ordered)
	order.Wait()
	s.alone.Wait()
}

// next waits for settlements and returns a batch of them, in the slice of an earlier batch. If more is false, it is the
// last one.
func (s *settler) next(ctx context.Context, used []result) (batch []result, more bool) {
	select {
	case <-s.some:
	case <-ctx.Done():
		s.stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := batchSize(s.waiting)
	batch = append(used[:0], s.waiting[:n]...)
	s.waiting = slices.Delete(s.waiting, 0, n)
	if len(s.waiting) > 0 {
		s.wake()
	}
	return batch, !s.closed || len(s.waiting) > 0
}

// unordered returns the settlements of unordered intents. The others go to their own goroutine.
func (s *settler) unordered(ctx context.Context, batch []result) []result {
	return slices.DeleteFunc(batch, func(r result) bool {
		if r.claim.OrderingKey == nil {
			return false
		}
		select {
		case s.ordered <- r:
		case <-ctx.Done():
			s.giveUp(ctx, r)
		}
		return true
	})
}

// batchSize returns how many of the settlements are written together.
func batchSize(waiting []result) (n int) {
	for size := 0; n < len(waiting) && n < settleBatch && size < settleBytes; n++ {
		size += len(waiting[n].response.Body) + len(waiting[n].err)
	}
	return n
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
