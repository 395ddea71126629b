package keyed

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
)

// ConflictError says that an intent's key, action and part are taken by one
// with another payload. It is exported as outbox.ConflictError, and is here
// because a queued intent meets its conflict in the commit of processed.Run. Its
// text leaves out Part, which may say more than belongs in a log.
type ConflictError struct {
	Action, Part string
	KeyHash      string // samekey.Key.Hash
	Err          error  // what the database said; nil where both were written in this transaction's queue
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("outbox: insert %q intent: key:%s has one of the same Part with another payload: "+
		"this transaction is aborted and must be rolled back; a second effect of one action under one key needs another Part",
		e.Action, e.KeyHash)
}

// Unwrap returns the database's error, which says SQLSTATE SK001.
func (e *ConflictError) Unwrap() error { return e.Err }

// InsertError names the intent that samekey.enqueue refused: a *ConflictError
// for another payload, also where err is one already, else the error with more
// words. It is nil for nil.
func InsertError(in Intent, err error) error {
	if err == nil {
		return nil
	}
	if conflict := (*ConflictError)(nil); errors.As(err, &conflict) {
		return conflict
	}
	code, advice := "", ""
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		code = refused.Code
	}
	switch code {
	case "SK001":
		return &ConflictError{Action: in.Action, Part: in.Part, KeyHash: in.Key.Hash(), Err: err}
	case "40001", "40P01":
		advice = " (roll back and run the transaction again)"
	case "25P02":
		advice = " (an earlier statement of this transaction failed: roll it back)"
	case "42883", "3F000":
		advice = " (this database lacks samekey's schema: run schema.Migrate)"
	}
	return fmt.Errorf("outbox: insert %q intent: %w%s", in.Action, Named(err), advice)
}

// Named adds the error that callers branch on: samekey.ErrOtherService.
func Named(err error) error {
	if refused := (interface{ SQLState() string })(nil); errors.As(err, &refused) && refused.SQLState() == "SK003" {
		return fmt.Errorf("%w: %w", samekey.ErrOtherService, err)
	}
	return err
}
