package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/outbox"
)

// attentionRunner runs single attention events. The lock of the event's row is the claim; queries/outbox_attention.sql
// has the interleavings.
type attentionRunner struct{ core *core }

// attentionEvent is one event, with its intent.
type attentionEvent struct {
	db.OutboxAttentionNextRow
	claim *claim // of the intent; nothing is leased
}

// next runs one event: the first one of the action that is due, or the first one of the intent if that is due. It
// reports whether there was one. A failure of the application's function is logged and written down; the error is the
// database's.
func (r *attentionRunner) next(ctx context.Context, a *action, intent *uuid.UUID) (ran bool, err error) {
	running, cancel := context.WithTimeout(ctx, a.policy.Timeout)
	defer cancel()
	var e *attentionEvent
	written := &applyTx{}
	failure := errGoexit
	defer func() { ran, err = r.ended(ctx, e, written, failure) }() // also after runtime.Goexit
	failure = pgx.BeginTxFunc(running, r.core.pool, isReadCommitted, func(tx pgx.Tx) (err error) {
		q := r.core.q.WithTx(tx)
		if e, err = r.lock(running, q, a, intent); err != nil || e == nil {
			return err
		}
		written.of = e.claim
		written.begun(tx)
		touch(tx.Conn())
		if _, err := guard(func() (struct{}, error) { return struct{}{}, a.attention(running, written, e.value()) }); err != nil {
			return written.failed(err)
		}
		switch rows, err := q.OutboxAttentionDelete(running, db.OutboxAttentionDeleteParams{ID: e.ID, Began: e.Began}); {
		case err != nil:
			return err
		case rows != 1:
			return notEnded(running, q, e.Began)
		}
		return nil
	})
	return ran, err // see ended
}

// ended is what follows the transaction.
func (r *attentionRunner) ended(ctx context.Context, e *attentionEvent, written *applyTx, err error) (ran bool, _ error) {
	if e == nil {
		return false, err
	}
	if errors.Is(err, errCommitted) { // another try would write its rows twice
		r.core.log.Error("dispatcher: Attention committed its transaction itself; its rows and the end of the event are not one: take COMMIT out of it", e.attrs()...)
		err = r.deleteCommitted(ctx, e)
	}
	switch {
	case err == nil:
		wake.Flush(r.core.pool, written.actions...)
		return true, nil
	case ctx.Err() != nil: // a stop, or an Apply that gives way: not the function's fault
		return true, context.Cause(ctx)
	}
	return true, r.failed(ctx, e, err)
}

// deleteCommitted ends the event of a function that has committed its own transaction.
func (r *attentionRunner) deleteCommitted(ctx context.Context, e *attentionEvent) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	_, err := r.core.q.OutboxAttentionDelete(ctx, db.OutboxAttentionDeleteParams{ID: e.ID})
	return err
}

// lock locks the event and loads its intent. No event and no error: nothing is due, or others have it.
func (r *attentionRunner) lock(ctx context.Context, q *db.Queries, a *action, intent *uuid.UUID) (*attentionEvent, error) {
	e := &attentionEvent{}
	var err error
	if intent == nil {
		e.OutboxAttentionNextRow, err = q.OutboxAttentionNext(ctx, db.OutboxAttentionNextParams{Action: a.name, Deployment: r.core.deployment.current()})
	} else {
		var row db.OutboxAttentionOfIntentRow
		row, err = q.OutboxAttentionOfIntent(ctx, *intent)
		e.OutboxAttentionNextRow = db.OutboxAttentionNextRow(row)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	e.claim = newClaim(db.OutboxQueueClaimRow{ID: e.IntentID}, a, time.Now(), 0)
	rows, err := q.OutboxLoad(ctx, []uuid.UUID{e.IntentID})
	if err == nil && len(rows) != 1 {
		err = errors.New("the intent is not there")
	}
	if err != nil {
		return nil, fmt.Errorf("load the intent for its Attention: %w", err)
	}
	e.claim.loaded(rows[0])
	e.claim.reference = e.Reference
	return e, nil
}

// failed writes down that the function failed, and when it is tried again.
func (r *attentionRunner) failed(ctx context.Context, e *attentionEvent, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	delay := e.claim.action.policy.delay(int(e.AttemptsUsed) + 1)
	r.core.log.ErrorContext(ctx, "dispatcher: Attention failed; it is tried again, and later events and the Apply of the intent wait for it; samekey.outbox_attention has the whole error", append(e.attrs(),
		slog.Int("failures", int(e.AttemptsUsed)+1), slog.Duration("again_in", delay), slog.String("error", causeOf(e.claim, err)))...)
	return r.core.q.OutboxAttentionFailed(ctx, db.OutboxAttentionFailedParams{ID: e.ID, AttemptsUsed: e.AttemptsUsed, DelayUs: delay.Microseconds(),
		LastError: clean(redact.WithoutURLs(err), errorLimit)})
}

// value is what the function is told.
func (e *attentionEvent) value() Attention {
	call := e.claim.call()
	if e.Endpoint != nil {
		call.Endpoint = &Endpoint{Name: *e.Endpoint}
	}
	return Attention{
		Call: call, Status: outbox.Status(e.Status), Now: outbox.Status(e.NowStatus), At: e.At,
		Event: e.Event, Code: text(e.Code), Error: text(e.Error), Actor: text(e.Actor), Reason: text(e.Reason),
	}
}

func (e *attentionEvent) attrs() []any {
	return append(e.claim.attrs(), slog.String("status", e.Status))
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
