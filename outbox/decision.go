package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/wake"
)

// decision is a person's change of one intent, whose row is locked.
type decision struct {
	verb string
	id   uuid.UUID
	by   By
	q    *db.Queries
	row  db.OutboxOperatorLockRow
	wake []string
}

// decide runs change in one transaction, with the intent's ordering key and its row locked, and wakes the workers.
func decide(ctx context.Context, on DB, verb string, id uuid.UUID, by By, change func(*decision) error) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
	}
	d := &decision{verb: verb, id: id, by: by}
	err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) (err error) {
		d.q = db.New(tx)
		if err := d.q.OutboxOperatorLockOrder(ctx, id); err != nil {
			return err
		}
		if d.row, err = d.q.OutboxOperatorLock(ctx, id); errors.Is(err, pgx.ErrNoRows) {
			return d.missing(ctx)
		} else if err != nil {
			return err
		}
		return change(d)
	})
	if state := (*StateError)(nil); errors.As(err, &state) {
		return err // it has the verb and the id
	}
	if err != nil {
		return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
	}
	flush(on, d.wake)
	return nil
}

// flush wakes workers if the change is committed.
func flush(on DB, actions []string) {
	if pool, ok := on.(*pgxpool.Pool); ok {
		wake.Flush(pool, actions...)
	}
}

// missing returns why an intent has no row in the queue.
func (d *decision) missing(ctx context.Context) error {
	status, err := d.q.OutboxOperatorFinalStatus(ctx, d.id)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	d.row.Status = status
	return d.in()
}

// in returns an error unless the intent is in one of the states.
func (d *decision) in(states ...Status) error {
	status := Status(d.row.Status)
	for _, s := range states {
		if s == status {
			return nil
		}
	}
	return d.refused(status, advice(status))
}

func (d *decision) refused(now Status, do string) error {
	return &StateError{ID: d.id, Verb: d.verb, Status: now, Do: do}
}

// unsent returns an error if the intent may have been sent and must not be sent twice.
func (d *decision) unsent() error {
	if d.row.Sent && !d.row.SafeToResend {
		return d.refused(Status(d.row.Status), "it may have been sent and must not be sent twice: find out what the vendor did, and Resolve it; "+
			"resolved as not sent, it can be redriven or cancelled")
	}
	return nil
}

// finish finishes the intent as cancelled if it is in one of the states and was not sent, and promotes the next intent
// with its ordering key.
func (d *decision) finish(ctx context.Context, event string, states ...Status) error {
	if err := d.in(states...); err != nil {
		return err
	}
	switch status := Status(d.row.Status); {
	case d.row.Sent && status != StatusParked && status != StatusDead:
		return d.refused(status, "it may have been sent at an earlier attempt: wait until it is finished, dead or parked")
	case d.row.Sent && d.row.SafeToResend:
		return d.refused(status, "it may have been sent: Redrive it, or Resolve it; resolved as not sent, it can be cancelled")
	}
	if err := d.unsent(); err != nil {
		return err
	}
	err := d.changed(d.q.OutboxOperatorCancel(ctx, db.OutboxOperatorCancelParams{
		ID: d.id, Event: event, Actor: d.by.Actor, Reason: d.by.Reason,
	}))
	if err != nil || d.row.OrderingKey == nil {
		return err
	}
	promoted, err := d.q.OutboxQueuePromote(ctx, []string{*d.row.OrderingKey})
	if err != nil {
		return fmt.Errorf("promote the next intent with its ordering key: %w", err)
	}
	d.due(promoted...)
	return nil
}

// due notes actions whose workers decide wakes after the commit.
func (d *decision) due(actions ...string) { d.wake = append(d.wake, actions...) }

// changed expects that one row was changed: the locked one.
func (d *decision) changed(rows int64, err error) error {
	if err == nil && rows != 1 {
		return fmt.Errorf("%d rows were changed, want 1: the row is locked", rows)
	}
	return err
}
