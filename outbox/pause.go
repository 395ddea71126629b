package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/internal/wake"
)

// ErrPaused says that somebody has paused the same already: their reason
// stays. [Pauses] tells who it was.
var ErrPaused = errors.New("outbox: it is paused already")

// ErrNotPaused says that there was nothing to resume.
var ErrNotPaused = errors.New("outbox: it is not paused")

// Target is what a pause stops: a destination of the dispatcher, or one action
// of it.
type Target struct {
	Destination string
	Action      string // empty: all actions of the destination
}

// check holds the names to what the table takes.
func (t Target) check() error {
	if err := names.CheckDestination(t.Destination); err != nil {
		return fmt.Errorf("Destination %w", err)
	}
	if t.Action == "" {
		return nil
	}
	return checkAction(t.Action)
}

// Pause stops the calls to a destination, or of one of its actions, on every
// worker: no call begins more than a second later, lookups included. Calls
// under way go on to their end, with their Apply. What is due waits, spends
// nothing, and is delivered after [Resume]; its deadline and its key window run
// on. The zero until means: until somebody resumes; another time ends the pause
// by itself, and must be in the future.
//
// It is kept in the database, whatever restarts. Whether a destination of that
// name exists is not checked, so that it can be paused before its first worker
// runs. [ErrPaused] means that somebody else's pause of the same is in force.
func Pause(ctx context.Context, on DB, what Target, until time.Time, by By) error {
	err := pauses(ctx, on, what, by, func(q *db.Queries) error {
		p := db.PausesAddParams{Destination: what.Destination, Action: what.Action, Actor: by.Actor, Reason: by.Reason}
		if !until.IsZero() {
			p.Until = &until
		}
		if err := q.PausesExpire(ctx); err != nil { // or it would be in the way of this one
			return err
		}
		switch row, err := q.PausesAdd(ctx, p); {
		case errors.Is(err, pgx.ErrNoRows):
			return ErrPaused
		case err != nil:
			return err
		case row.Past:
			return errors.New("until is in the past")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("outbox: pause %s: %w", what, err)
	}
	return nil
}

// Resume ends every pause of exactly this target: a destination's leaves those
// of its single actions alone. Where the whole destination is meant, it ends a
// pause that was made in River, too. Workers go on within a second.
// [ErrNotPaused] means that there was none.
func Resume(ctx context.Context, on DB, what Target, by By) error {
	err := pauses(ctx, on, what, by, func(q *db.Queries) error {
		ended, err := q.PausesEnd(ctx, db.PausesEndParams{Destination: what.Destination, Action: what.Action, Actor: by.Actor, Reason: by.Reason})
		if err == nil && ended == 0 {
			err = ErrNotPaused
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: resume %s: %w", what, err)
	}
	return nil
}

// String names the target in texts.
func (t Target) String() string {
	if t.Action == "" {
		return fmt.Sprintf("destination %q", t.Destination)
	}
	return fmt.Sprintf("action %q of destination %q", t.Action, t.Destination)
}

// pauses changes pauses in one transaction, and has workers look at them.
func pauses(ctx context.Context, on DB, what Target, by By, change func(*db.Queries) error) error {
	if err := errors.Join(what.check(), by.Validate()); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) error { return change(db.New(tx)) }); err != nil {
		return err
	}
	if pool, ok := on.(*pgxpool.Pool); ok {
		wake.Flush(pool, "") // look everywhere; over a transaction, the next sweep does
	}
	return nil
}

// PauseRecord is one reason for which a target is or was paused.
type PauseRecord struct {
	Target
	At      time.Time
	By      By
	Until   time.Time // zero: until somebody resumes
	InRiver bool      // it was made in River: River UI, or QueuePause
	EndedAt time.Time // zero: it is in force, unless Until is over
	Ended   By        // who resumed, and why
}

// Pauses returns the pauses of a destination, or of all where it is empty:
// those in force first, then what ended, the latest first, limit at most (0
// means 100, 1000 is the most). What ended is kept for a year.
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
			Until: orZero(row.Until), EndedAt: orZero(row.EndedAt), Ended: By{orZero(row.EndedBy), orZero(row.EndReason)},
		}
	}
	return records, nil
}
