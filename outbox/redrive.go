package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
)

// Redrive makes a dead or parked intent due now, with all its attempts before
// it, the same delivery key and the same bytes. An irreversible one asks for
// approval again. An intent whose order went on without it stays out of the
// order. Where its deadline has passed it will be dead again: insert a new
// intent instead. Where the vendor refused the bytes, a redrive sends the same
// ones: resolve it as not sent, [Cancel] it, and insert the corrected payload
// with another part.
//
// It is refused, with a [*StateError], in any other state, and where the intent
// may have been sent and must not be sent twice: find out what happened, and
// [Resolve] it; as not sent, it can be redriven.
func Redrive(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return decide(ctx, on, "redrive", id, by, func(d *decision) error {
		if err := d.in(StatusParked, StatusDead); err != nil {
			return err
		}
		if err := d.unsent(); err != nil {
			return err
		}
		d.due(d.row.Action)
		return d.changed(d.q.OutboxOperatorRedrive(ctx, db.OutboxOperatorRedriveParams{ID: id, Actor: by.Actor, Reason: by.Reason}))
	})
}

// RedriveAll does what [Redrive] does to every dead or parked intent that the
// filter finds, at most Limit of them, the oldest first, in one transaction, and
// returns how many. Those that may have been sent and must not be sent twice are
// left as they are, and so are those that somebody else is changing right now.
//
// Set Status to StatusDead or StatusParked, or leave it empty for both. For a
// long list call it again until it returns 0, with an OlderThan that leaves out
// those that died again meanwhile. After is not used.
func RedriveAll(ctx context.Context, on DB, f Filter, by By) (int, error) {
	statuses := []string{string(f.Status)}
	if f.Status == "" {
		statuses = []string{string(StatusDead), string(StatusParked)}
	}
	if err := errors.Join(f.checkRedrive(), by.Validate()); err != nil {
		return 0, fmt.Errorf("outbox: redrive intents: %w", err)
	}
	var actions []string
	err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) (err error) {
		actions, err = db.New(tx).OutboxOperatorRedriveAll(ctx, db.OutboxOperatorRedriveAllParams{
			Statuses: statuses, Action: f.Action, Code: f.Code, Scope: f.Scope, Part: f.Part, IdemKey: f.Key,
			AgeUs: f.OlderThan.Microseconds(), MaxCount: f.limit(), Actor: by.Actor, Reason: by.Reason,
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("outbox: redrive intents: %w", err)
	}
	flush(on, actions)
	return len(actions), nil
}

// checkRedrive is check for what can be redriven.
func (f Filter) checkRedrive() error {
	switch f.Status {
	case "", StatusDead, StatusParked:
	default:
		return fmt.Errorf("Status is %q: only dead and parked intents are redriven", f.Status)
	}
	if f.Status == "" {
		f.Status = StatusDead // a Code goes with both
	}
	return f.check()
}
