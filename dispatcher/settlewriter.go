package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// settleWriter has the statements by which settlements are written. settle.go and order.go decide which ones are
// written together.
type settleWriter struct {
	pool *pgxpool.Pool
	q    *db.Queries
	log  *slog.Logger
	poke func(actions ...string) // actions that became due by a promotion or a late answer

	announcer *announcer

	stuck atomic.Int64   // settlements that something else holds up, each by itself
	alone sync.WaitGroup // settlements that are tried alone, for as long as it takes
}

const (
	settleBatch   = 1000
	settleRetry   = 50 * time.Millisecond
	settleMaxWait = 2 * time.Second
	renewedLease  = time.Minute
)

// result is a settlement on its way to the database.
type result struct {
	claim *claim
	settlement
}

// cause is empty unless the intent comes to rest.
func (r result) cause() string {
	if r.status != statusDead && r.status != statusParked {
		return ""
	}
	return r.claim.restCause(r.err, r.response.Body)
}

// tell says whether the settlement was written. False means that the fence was closed, or that it was given up.
func (r result) tell(written bool) { r.claim.settled <- written }

// write writes a batch in one statement, and tells each claim.
func (s *settleWriter) write(ctx context.Context, batch []result) error {
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

func (s *settleWriter) retry() *doubling { return &doubling{first: settleRetry, most: settleMaxWait} }

// answers reports whether the database is available.
func (s *settleWriter) answers(ctx context.Context) bool {
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.pool.Ping(asking) == nil
}

// tell tells each claim of a batch, and keeps the answers that came too late.
func (s *settleWriter) tell(ctx context.Context, batch []result, attempts []db.OutboxQueueSettleRow) {
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
		s.announcer.settled(r.claim, r.status)
		r.tell(true)
	}
}

// keepLate keeps the answer of an attempt that another worker has taken over. It may be the only proof that the vendor
// acted, so it is tried for as long as it takes.
func (s *settleWriter) keepLate(ctx context.Context, r result) {
	defer r.tell(false)
	for retry := s.retry(); ; {
		err := s.late(ctx, r)
		if err == nil {
			return
		}
		s.log.ErrorContext(ctx, "dispatcher: a late answer could not be kept", append(r.claim.attrs(),
			slog.String("outcome", r.outcome), slog.String("error", errorText(err)))...)
		if sqlstate.BadValue(err) || !retry.sleep(ctx) {
			return
		}
	}
}

func (s *settleWriter) late(ctx context.Context, r result) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var row db.OutboxQueueSettleLateRow
	var successor *db.OutboxQueueHoldSuccessorRow
	var cancelled db.OutboxHistoryWasCancelledRow
	err := pgx.BeginTxFunc(ctx, s.pool, isReadCommitted, func(tx pgx.Tx) (err error) {
		q := s.q.WithTx(tx)
		row, err = q.OutboxQueueSettleLate(ctx, db.OutboxQueueSettleLateParams{
			ID: r.claim.ID, Attempt: r.claim.Attempt, Worker: r.claim.worker, Outcome: r.outcome,
			Code: clean(r.response.Code, codeLimit), Error: clean(r.err, errorLimit),
			ResponseType: clean(r.response.ContentType, typeLimit), Response: r.response.Body, Reference: r.reference,
			Endpoint: r.loggedEndpoint(),
		})
		if err == nil && row.Logged > 0 && row.Resolved == 0 && r.outcome == statusDelivered {
			if successor, err = holdSuccessor(ctx, q, r.claim.ID); err == nil && successor == nil {
				cancelled, err = q.OutboxHistoryWasCancelled(ctx, r.claim.ID)
			}
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case row.Resolved > 0:
		s.log.WarnContext(ctx, "dispatcher: a late answer resolved an intent", append(r.claim.attrs(), slog.String("outcome", r.outcome))...)
		s.poke(r.claim.action.name)
	case cancelled.Cancelled:
		s.log.ErrorContext(ctx, "dispatcher: an intent was delivered after a person had cancelled it: the vendor acted, so take the effect back there, or correct your rows",
			r.claim.attrs()...)
	case row.Logged > 0:
		s.log.WarnContext(ctx, "dispatcher: an attempt ended after another worker had taken its intent over; its answer is kept",
			append(r.claim.attrs(), slog.String("outcome", r.outcome))...)
	}
	if successor != nil {
		s.reportSuccessor(ctx, r, *successor)
	}
	return nil
}

// holdSuccessor holds the successor of an intent that was delivered late. It returns nil if there is none.
func holdSuccessor(ctx context.Context, q *db.Queries, id uuid.UUID) (*db.OutboxQueueHoldSuccessorRow, error) {
	row, err := q.OutboxQueueHoldSuccessor(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &row, err
}

// reportSuccessor raises the alarm for an intent that was delivered after another one had replaced it.
func (s *settleWriter) reportSuccessor(ctx context.Context, r result, successor db.OutboxQueueHoldSuccessorRow) {
	attrs := append(r.claim.attrs(), slog.Any("successor", successor.Successor), slog.String("successor_status", successor.Status))
	const replaced = "dispatcher: an intent was delivered after it had been replaced"
	switch {
	case successor.Held && !successor.Sent:
		s.log.ErrorContext(ctx, replaced+"; its successor is parked and was not sent: resolve the successor as delivered, or cancel it", attrs...)
	case successor.Held:
		s.log.ErrorContext(ctx, replaced+"; its successor is parked, and an attempt of it may have taken effect: look for two effects at the vendor, and resolve the successor", attrs...)
	case !successor.Sent:
		s.log.ErrorContext(ctx, replaced+"; its successor was not sent: do not redrive it", attrs...)
	default:
		s.log.ErrorContext(ctx, replaced+", and its successor is sent or finished too: look for two effects at the vendor", attrs...)
	}
}

// renew keeps the leases of settlements that wait.
func (s *settleWriter) renew(ctx context.Context, waiting []result) error {
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

// giveUp drops a settlement that cannot be written. The lease runs out, and the intent is taken over.
func (s *settleWriter) giveUp(ctx context.Context, r result) {
	s.log.ErrorContext(ctx, "dispatcher: an outcome was not written back; its intent is taken over", append(r.claim.attrs(),
		slog.String("outcome", r.outcome))...)
	r.tell(false)
}

// settleParams makes the parameters of a batch of one worker.
func settleParams(batch []result) db.OutboxQueueSettleParams {
	p := db.OutboxQueueSettleParams{Worker: batch[0].claim.worker}
	for _, r := range batch {
		p.Ids = append(p.Ids, r.claim.ID)
		p.Attempts = append(p.Attempts, r.claim.Attempt)
		p.Statuses = append(p.Statuses, r.status)
		p.Delays = append(p.Delays, r.delay.Microseconds())
		p.AttemptsUsed = append(p.AttemptsUsed, int32(r.attemptsUsed))
		p.ClearSent = append(p.ClearSent, r.clearSent)
		p.KeepLease = append(p.KeepLease, r.keepLease)
		p.LeaveOrder = append(p.LeaveOrder, r.leaveOrder)
		p.WasSent = append(p.WasSent, r.wasSent)
		p.ForbidResend = append(p.ForbidResend, r.forbidResend)
		p.Events = append(p.Events, r.event)
		p.Outcomes = append(p.Outcomes, r.outcome)
		p.Codes = append(p.Codes, clean(r.response.Code, codeLimit))
		p.Errors = append(p.Errors, clean(r.err, errorLimit))
		p.ResponseTypes = append(p.ResponseTypes, clean(r.response.ContentType, typeLimit))
		p.Responses = append(p.Responses, r.response.Body)
		p.VendorReferences = append(p.VendorReferences, r.reference)
		p.TookUs = append(p.TookUs, r.took.Microseconds())
		p.Causes = append(p.Causes, r.cause())
		if endpoint := r.loggedEndpoint(); endpoint != "" { // most batches have none, and send no array
			p.Endpoints = append(append(p.Endpoints, make([]string, len(p.Ids)-1-len(p.Endpoints))...), endpoint)
		}
	}
	return p
}

// loggedEndpoint returns the stored endpoint whose log has the event, as outbox_history.endpoint, or "".
func (r result) loggedEndpoint() string {
	if r.claim.endpoint == nil || r.event == "apply" {
		return ""
	}
	return r.claim.action.destination() + "/" + r.claim.endpoint.Name
}

// byWorker divides a batch by the id under which its intents were claimed. That is one id, unless a stranger took it.
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
