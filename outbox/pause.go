package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/internal/sqlstate"
)

// ErrPaused means that this target is paused already. That pause and its reason stay; [Pauses] returns them.
var ErrPaused = errors.New("outbox: already paused")

// ErrNotPaused means that there was no pause to end.
var ErrNotPaused = errors.New("outbox: not paused")

// Target is what a pause stops: a destination of the dispatcher, or one of its actions.
type Target struct {
	Destination string
	Action      string // empty: all actions of the destination
}

func (t Target) check() error {
	if err := names.CheckDestination(t.Destination); err != nil {
		return fmt.Errorf("Destination %w", err)
	}
	if t.Action == "" {
		return nil
	}
	return checkAction(t.Action)
}

// Pause stops the calls to a destination, or of one of its actions, on all workers. Calls and lookups stop starting
// within a second. Running calls go on to their end, with their Apply. Due intents wait, use no attempt, and are
// delivered after [Resume]; their deadlines and key windows keep running. If until is zero, the pause lasts until [Resume]. Otherwise
// until must be in the future, and the pause ends at that time.
//
// The pause is stored in the database and survives restarts. Pause does not check that the destination exists, so you
// can pause it before its first worker starts. [ErrPaused] means that the target is paused already.
func Pause(ctx context.Context, on DB, what Target, until time.Time, by By) error {
	p := db.ActPauseParams{Destination: what.Destination, Action: what.Action, Actor: by.Actor, Reason: by.Reason}
	if !until.IsZero() {
		p.Until = &until
	}
	err := pauses(ctx, on, what, by, ErrPaused, func(q *db.Queries) error { return q.ActPause(ctx, p) })
	if err != nil {
		return fmt.Errorf("outbox: pause %s: %w", what, err)
	}
	return nil
}

// Resume ends the pause of exactly this target: resuming a destination leaves the pauses of its actions. For a
// destination it also ends a pause that was made in River. Workers continue within a second. [ErrNotPaused] means that
// there was no pause.
func Resume(ctx context.Context, on DB, what Target, by By) error {
	err := pauses(ctx, on, what, by, ErrNotPaused, func(q *db.Queries) error {
		return q.ActResume(ctx, db.ActResumeParams{Destination: what.Destination, Action: what.Action, Actor: by.Actor, Reason: by.Reason})
	})
	if err != nil {
		return fmt.Errorf("outbox: resume %s: %w", what, err)
	}
	return nil
}

// String returns the target as it appears in errors.
func (t Target) String() string {
	if t.Action == "" {
		return fmt.Sprintf("destination %q", t.Destination)
	}
	return fmt.Sprintf("action %q of destination %q", t.Action, t.Destination)
}

// pauses changes pauses in one transaction, and wakes the workers. refusal is the error if the present state does not
// allow it.
func pauses(ctx context.Context, on DB, what Target, by By, refusal error, change func(*db.Queries) error) error {
	if err := errors.Join(what.check(), by.Validate()); err != nil {
		return err
	}
	err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) error { return change(db.New(tx)) })
	switch sqlstate.Of(err) {
	case sqlstate.StateRefuses:
		return refusal
	case sqlstate.Denied:
		return denied(err)
	}
	if err != nil {
		return err
	}
	flush(on, []string{""}) // all workers; in a transaction of the caller, the next sweep sees it
	return nil
}

// PauseRecord is a present or past pause.
type PauseRecord struct {
	Target
	At      time.Time
	By      By
	Until   time.Time // zero: until Resume
	InRiver bool      // it was made in River, by River UI or QueuePause
	EndedAt time.Time // zero: in force, unless Until has passed
	Ended   By        // who resumed, and why
}

// Pauses returns the pauses of a destination, or of all destinations if it is empty. Pauses in force come first, then
// ended ones, latest first. Limit is 1 to 1000; 0 means 100. Ended pauses are kept for a year.
func Pauses(ctx context.Context, on samekey.Tx, destination string, limit int) ([]PauseRecord, error) {
	if limit < 0 || limit > 1000 {
		return nil, fmt.Errorf("outbox: list pauses: limit %d is outside 0 to 1000", limit)
	}
	if limit == 0 {
		limit = 100
	}
	rows, err := db.New(on).PausesList(ctx, db.PausesListParams{Destination: destination, MaxCount: int32(limit)})
	if err != nil {
		return nil, fmt.Errorf("outbox: list pauses: %w", err)
	}
	records := make([]PauseRecord, len(rows))
	for i, row := range rows {
		records[i] = PauseRecord{
			Target: Target{row.Destination, row.Action}, At: row.PausedAt, By: By{row.PausedBy, row.Reason}, InRiver: row.ByRiver,
			Until: keyed.OrZero(row.Until), EndedAt: keyed.OrZero(row.EndedAt), Ended: By{keyed.OrZero(row.EndedBy), keyed.OrZero(row.EndReason)},
		}
	}
	return records, nil
}
