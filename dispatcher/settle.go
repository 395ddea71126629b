package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// result is a settlement on its way to the database.
type result struct {
	claim *claim
	settlement
	settled func(settled bool) // told when it is written; settled is false where the fence was closed
}

// settler writes results back in batches: whatever came in while the last batch was written is the next one.
//
// A database that is away is waited for, with nothing claimed meanwhile. What only somebody else's lock or its own
// values hold up is set apart, so that it costs its neighbours nothing: a batch that fails while the database answers is
// halved until what is wrong stands alone, and goes on alone. Ordered intents, whose keys a writer may hold locked for
// as long as his transaction lasts, are written by a goroutine of their own, see order.go. What waits for long has its
// lease renewed.
type settler struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	log    *slog.Logger
	in     chan result
	wake   func(actions ...string) // actions that became due by a promotion or a late answer
	behind *atomic.Bool            // set while the database does not take outcomes: nothing is claimed then
	stuck  *atomic.Int64           // outcomes that something holds up

	ordered chan result
	alone   sync.WaitGroup // single outcomes that are tried for as long as it takes
}

const (
	settleBatch   = 1000
	settleBytes   = 8 << 20         // of answers in one batch, about
	settleTimeout = 3 * time.Second // for one statement
	settleRetry   = 50 * time.Millisecond
	settleMaxWait = 2 * time.Second
	renewedLease  = time.Minute
	maxStuck      = 1000 // with more outcomes held up, nothing is claimed
)

// run settles until in is closed and all is written, or ctx ends; what is not written then is found by a sweep, as
// after a crash.
func (s *settler) run(ctx context.Context) {
	s.ordered = make(chan result, settleBatch)
	var order sync.WaitGroup
	order.Go(func() { (&orderSettler{settler: s}).run(ctx) })
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

// next collects what is there, unordered; ordered intents go their own way.
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
		size += len(r.answer.Body) + len(r.err)
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

// persist writes a batch, for as long as the database is away.
func (s *settler) persist(ctx context.Context, batch []result) {
	for wait := settleRetry; ; wait = min(2*wait, settleMaxWait) {
		err := s.write(ctx, batch)
		switch {
		case err == nil:
			s.behind.Store(false)
			return
		case !refusesAll(err) && s.answers(ctx):
			s.behind.Store(false)
			s.divide(ctx, batch, err)
			return
		}
		s.behind.Store(true)
		s.log.ErrorContext(ctx, "dispatcher: outcomes could not be written back; they are kept and tried again",
			slog.Int("outcomes", len(batch)), slog.String("error", errorText(err)))
		if !sleep(ctx, wait) {
			for _, r := range batch {
				s.giveUp(ctx, r)
			}
			return
		}
	}
}

// write writes a batch in one statement, and tells whoever waits.
func (s *settler) write(ctx context.Context, batch []result) error {
	writing, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	attempts, err := s.q.OutboxQueueSettle(writing, settleParams(batch))
	if err != nil {
		resetReadOnly(s.pool, err)
		return err
	}
	s.tell(ctx, batch, attempts)
	return nil
}

// answers asks whether the database is there.
func (s *settler) answers(ctx context.Context) bool {
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.pool.Ping(asking) == nil
}

// divide sets apart what somebody holds locked of a batch that failed while the database answers, and halves it where
// that is not why; one outcome alone goes on by itself.
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
	if poisonous(err) {
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

// insist writes one outcome that something holds up, such as a person's open transaction on the intent.
func (s *settler) insist(ctx context.Context, r result) {
	s.stuck.Add(1)
	defer s.stuck.Add(-1)
	for wait := settleRetry; sleep(ctx, wait); wait = min(2*wait, settleMaxWait) {
		err := s.write(ctx, []result{r})
		if err == nil {
			return
		}
		if poisonous(err) {
			break
		}
		_ = s.renew(ctx, []result{r}) // where this fails too, the lease runs out
	}
	s.giveUp(ctx, r)
}

// giveUp lets an outcome go that cannot be written: its lease runs out, and its intent is taken over.
func (s *settler) giveUp(ctx context.Context, r result) {
	s.log.ErrorContext(ctx, "dispatcher: an outcome was not written back; its intent is taken over", append(r.claim.attrs(),
		slog.String("outcome", r.outcome))...)
	r.settled(false)
}

// poisonous says whether the server refused the values themselves (SQLSTATE classes 22 and 23), which another try does
// not change.
func poisonous(err error) bool {
	code := sqlstate.Of(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23")
}

// refusesAll says whether the server is there, and takes nothing from anybody: it shuts down (57P0x), is short of space,
// memory or connections (53), has become a standby (25006), or cannot read its files (58).
func refusesAll(err error) bool {
	code := sqlstate.Of(err)
	return slices.ContainsFunc([]string{"57P", "53", "25006", "58", "XX"}, func(class string) bool { return strings.HasPrefix(code, class) })
}

// resetReadOnly replaces a pool's connections after a failover that left them on a server which takes no writes.
func resetReadOnly(pool *pgxpool.Pool, err error) {
	if sqlstate.Of(err) == "25006" {
		pool.Reset()
	}
}

// tell says what became of each outcome of a batch, and keeps those that came too late.
func (s *settler) tell(ctx context.Context, batch []result, attempts []db.OutboxQueueSettleRow) {
	written := make(map[db.OutboxQueueSettleRow]bool, len(attempts))
	for _, attempt := range attempts {
		written[attempt] = true
	}
	for _, r := range batch {
		settled := written[db.OutboxQueueSettleRow{ID: r.claim.ID, Attempt: r.claim.Attempt}]
		if !settled {
			s.alone.Go(func() { s.keepLate(ctx, r) })
			continue
		}
		r.settled(true)
	}
}

// keepLate keeps the answer of an attempt that somebody else has taken over. It may be the only proof that a vendor
// acted, so it is tried for as long as it takes.
func (s *settler) keepLate(ctx context.Context, r result) {
	defer r.settled(false)
	for wait := settleRetry; ; wait = min(2*wait, settleMaxWait) {
		err := s.late(ctx, r)
		if err == nil {
			return
		}
		s.log.ErrorContext(ctx, "dispatcher: a late answer could not be kept", append(r.claim.attrs(),
			slog.String("outcome", r.outcome), slog.String("error", errorText(err)))...)
		if poisonous(err) || !sleep(ctx, wait) {
			return
		}
	}
}

func (s *settler) late(ctx context.Context, r result) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	row, err := s.q.OutboxQueueSettleLate(ctx, db.OutboxQueueSettleLateParams{
		ID: r.claim.ID, Attempt: r.claim.Attempt, Worker: r.claim.worker, Outcome: r.outcome,
		Code: clean(r.answer.Code, codeLimit), Error: clean(r.err, errorLimit),
		ResponseType: clean(r.answer.ContentType, typeLimit), Response: r.answer.Body,
	})
	switch {
	case err != nil:
		return err
	case row.Resolved > 0:
		s.log.WarnContext(ctx, "dispatcher: a late answer resolved an intent", append(r.claim.attrs(), slog.String("outcome", r.outcome))...)
		s.wake(r.claim.action.name)
	case row.Logged > 0:
		s.log.WarnContext(ctx, "dispatcher: an attempt ended after somebody else had taken its intent over; its answer is kept",
			append(r.claim.attrs(), slog.String("outcome", r.outcome))...)
	}
	return nil
}

// byWorker divides a batch by the id under which its intents were claimed. It is one, unless a stranger took the id.
func byWorker(batch []result) (parts [][]result) {
	for len(batch) > 0 {
		n := slices.IndexFunc(batch, func(r result) bool { return r.claim.worker != batch[0].claim.worker })
		if n < 0 {
			n = len(batch)
		}
		parts, batch = append(parts, batch[:n:n]), batch[n:]
	}
	return parts
}

// settleParams are those of a batch of one worker.
func settleParams(batch []result) db.OutboxQueueSettleParams {
	p := db.OutboxQueueSettleParams{Worker: batch[0].claim.worker}
	for _, r := range batch {
		p.Ids = append(p.Ids, r.claim.ID)
		p.Attempts = append(p.Attempts, r.claim.Attempt)
		p.Statuses = append(p.Statuses, r.status)
		p.Delays = append(p.Delays, r.delay.Microseconds())
		p.AttemptsUsed = append(p.AttemptsUsed, int32(r.spent))
		p.ClearSent = append(p.ClearSent, r.unsend)
		p.KeepLease = append(p.KeepLease, r.keep)
		p.LeaveOrder = append(p.LeaveOrder, r.leave)
		p.WasSent = append(p.WasSent, r.sent)
		p.ForbidResend = append(p.ForbidResend, r.resend)
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

// renew keeps the leases of outcomes that wait.
func (s *settler) renew(ctx context.Context, waiting []result) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for _, part := range byWorker(waiting) {
		p := db.OutboxQueueRenewParams{Worker: part[0].claim.worker, Lease: renewedLease}
		for _, r := range part {
			p.Ids = append(p.Ids, r.claim.ID)
			p.Attempts = append(p.Attempts, r.claim.Attempt)
		}
		if err := s.q.OutboxQueueRenew(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// isReadCommitted: a statement must see what was committed before it began, whatever the database's default.
var isReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
