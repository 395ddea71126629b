package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
)

// Redrive makes a dead or parked intent due now. It has all its attempts again, and the same delivery key and bytes. An
// irreversible action needs approval again. If its ordering key moved on without it, the intent stays out of the order.
//
// If its deadline has passed, the intent becomes dead again: insert a new one. If the vendor refused the bytes, a
// redrive sends the same bytes: resolve the intent as not sent, [Cancel] it, and insert the corrected payload with
// another part.
//
// Any other state is a [*StateError], and so is an intent that may have been sent and must not be sent twice. Find out
// what happened and [Resolve] it; an intent that is resolved as not sent can be redriven.
func Redrive(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return act(ctx, on, "redrive", id, by, func(q *db.Queries) ([]string, error) {
		return q.ActRedrive(ctx, db.ActRedriveParams{ID: id, Actor: by.Actor, Reason: by.Reason})
	})
}

// RedriveAll redrives every dead or parked intent that the filter finds, as [Redrive] does, oldest first, at most Limit
// of them, in one transaction. It returns how many. It leaves intents that may have been sent and must not be sent
// twice, and intents that another person is changing at this moment.
//
// Set Status to StatusDead or StatusParked, or leave it empty for both. For many intents, call it again until it
// returns 0, with an OlderThan that leaves out those that became dead again meanwhile. After is not used.
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
		actions, err = db.New(tx).ActRedriveAll(ctx, db.ActRedriveAllParams{
			Statuses: statuses, Action: f.Action, Code: f.Code, Scope: f.Scope, Part: f.Part, IdemKey: f.Key,
			Subject: f.Subject, Reference: f.Reference, AgeUs: f.OlderThan.Microseconds(), MaxCount: f.limit(), Actor: by.Actor, Reason: by.Reason,
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("outbox: redrive intents: %w", err)
	}
	flush(on, actions)
	return len(actions), nil
}

// checkRedrive is check for RedriveAll.
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
