package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/internal/wake"
)

// DB is what people's decisions are written through: a *pgxpool.Pool, a
// *pgx.Conn, or a pgx.Tx, in which the decision is part of the caller's
// transaction. Over a pool the workers are woken at once; over the others call
// [Flush] after the commit, or let the sweep find what became due.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// By says who decided, and why; both are required, and stay in the intent's
// history for ever. It is text for the next person who looks: a name or a
// service in at most 255 bytes, a sentence or a ticket in at most 4096.
type By struct {
	Actor  string
	Reason string
}

// Cancel finishes an intent as cancelled: it is not sent, and the next of its
// ordering key takes its place. Nothing tells the application; it is the
// caller's to mend its rows, in one transaction if on is a pgx.Tx.
//
// It is refused, with a [*StateError], wherever the intent may have been sent: a
// worker has it, it waits for another attempt, or it rests, dead or parked, after
// an attempt that a vendor may have seen, also where that may be repeated. Find
// out what the vendor did, and [Resolve] it: as not sent it can be cancelled.
// [ErrNotFound] means that there is no such intent.
func Cancel(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return decide(ctx, on, "cancel", id, by, func(d *decision) error {
		return d.finish(ctx, intent.EventCancelled, StatusPending, StatusBlocked, StatusAwaitingApproval, StatusParked, StatusDead)
	})
}

// Reject finishes an intent that awaits approval as cancelled: it is not sent,
// and the next of its ordering key takes its place. Any other state is a
// [*StateError].
func Reject(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return decide(ctx, on, "reject", id, by, func(d *decision) error {
		return d.finish(ctx, intent.EventRejected, StatusAwaitingApproval)
	})
}

// Approve lets an intent that awaits approval be sent, once: it is due now, or when the vendor wants to be asked again. Any
// other state is a [*StateError], so of two people who approve or reject at the
// same time one is told that the other was first. So is an approval by the actor
// that the intent names as RequestedBy: another one has to approve.
func Approve(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return decide(ctx, on, "approve", id, by, func(d *decision) error {
		if err := d.in(StatusAwaitingApproval); err != nil {
			return err
		}
		if d.row.RequestedBy != nil && *d.row.RequestedBy == by.Actor {
			return &StateError{ID: id, Verb: d.verb, Status: StatusAwaitingApproval, Do: "its requester may not approve it: somebody else has to"}
		}
		d.due(d.row.Action)
		return d.changed(d.q.OutboxPeopleApprove(ctx, db.OutboxPeopleApproveParams{ID: id, Actor: by.Actor, Reason: by.Reason}))
	})
}

// decision is one person's change of one intent, whose row is locked.
type decision struct {
	verb string
	id   uuid.UUID
	by   By
	q    *db.Queries
	row  db.OutboxPeopleLockRow
	wake []string
}

// decide locks the intent, under the lock of its ordering key, and lets change
// look at it and change it, all in one transaction.
func decide(ctx context.Context, on DB, verb string, id uuid.UUID, by By, change func(*decision) error) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
	}
	d := &decision{verb: verb, id: id, by: by}
	err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) (err error) {
		d.q = db.New(tx)
		if err := d.q.OutboxPeopleLockOrder(ctx, id); err != nil {
			return err
		}
		if d.row, err = d.q.OutboxPeopleLock(ctx, id); errors.Is(err, pgx.ErrNoRows) {
			return d.missing(ctx)
		} else if err != nil {
			return err
		}
		return change(d)
	})
	if state := (*StateError)(nil); errors.As(err, &state) {
		return err // it says all of this itself
	}
	if err != nil {
		return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
	}
	flush(on, d.wake)
	return nil
}

// flush wakes workers where the change is committed.
func flush(on DB, actions []string) {
	if pool, ok := on.(*pgxpool.Pool); ok {
		wake.Flush(pool, actions...)
	}
}

// missing says why an intent has no row in the queue.
func (d *decision) missing(ctx context.Context) error {
	status, err := d.q.OutboxPeopleFinished(ctx, d.id)
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
	return &StateError{ID: d.id, Verb: d.verb, Status: status, Do: advice(status)}
}

// unsent returns an error if the intent may have been sent and must not be sent
// twice. A first_sent_at is taken back where an attempt is provably unsent.
func (d *decision) unsent() error {
	if d.row.Sent && !d.row.Repeatable {
		return &StateError{ID: d.id, Verb: d.verb, Status: Status(d.row.Status),
			Do: "it may have been sent and must not be sent twice: find out what the vendor did, and Resolve it; once resolved as not sent, it can be redriven or cancelled"}
	}
	return nil
}

// finish finishes the intent as cancelled if it is in one of the states and was
// not sent, and promotes the next of its ordering key.
func (d *decision) finish(ctx context.Context, event string, states ...Status) error {
	if err := d.in(states...); err != nil {
		return err
	}
	switch status := Status(d.row.Status); {
	case d.row.Sent && status != StatusParked && status != StatusDead:
		return &StateError{ID: d.id, Verb: d.verb, Status: status,
			Do: "it may have been sent at an earlier attempt: wait until it is finished or rests"}
	case d.row.Sent && d.row.Repeatable:
		return &StateError{ID: d.id, Verb: d.verb, Status: status,
			Do: "it may have been sent: Redrive it, or Resolve it; resolved as NotSent it can be cancelled"}
	}
	if err := d.unsent(); err != nil {
		return err
	}
	err := d.changed(d.q.OutboxPeopleFinish(ctx, db.OutboxPeopleFinishParams{
		ID: d.id, Event: event, Actor: d.by.Actor, Reason: d.by.Reason,
	}))
	if err != nil || d.row.OrderingKey == nil {
		return err
	}
	promoted, err := d.q.OutboxQueuePromote(ctx, []string{*d.row.OrderingKey})
	if err != nil {
		return fmt.Errorf("promote the next of its ordering key: %w", err)
	}
	d.due(promoted...)
	return nil
}

// due notes actions whose workers are woken after the commit.
func (d *decision) due(actions ...string) { d.wake = append(d.wake, actions...) }

// changed expects the one row that is locked.
func (d *decision) changed(rows int64, err error) error {
	if err == nil && rows != 1 {
		return fmt.Errorf("%d rows were changed, not one, although the row is locked", rows)
	}
	return err
}

// Validate says what is missing or too long, as each function that takes a By
// does by itself.
func (b By) Validate() error {
	if err := checkNote("Actor", b.Actor, 255); err != nil {
		return err
	}
	return checkNote("Reason", b.Reason, 4096)
}

// checkNote holds what a person wrote to what the tables take.
func checkNote(field, text string, limit int) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("%s is empty: it stays in the history, for the next person who looks", field)
	case len(text) > limit:
		return fmt.Errorf("%s is %d bytes long, more than %d: shorten it", field, len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Errorf("%s must be text in valid UTF-8, without NUL", field)
	}
	return nil
}
