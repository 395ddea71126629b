package keyed

import (
	"errors"
	"fmt"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/sqlstate"
)

// InsertError describes why samekey.enqueue refused the intent: the intent's Conflict for another payload, else the
// error with advice. It is nil for nil.
func InsertError(in Intent, err error) error {
	if err == nil {
		return nil
	}
	advice := ""
	switch code := sqlstate.Of(err); {
	case code == sqlstate.IntentConflict:
		return in.Conflict(err)
	case code == sqlstate.Serialization || code == sqlstate.Deadlock:
		advice = " (roll back and run the transaction again)"
	case code == sqlstate.Aborted:
		advice = " (an earlier statement of this transaction failed: roll it back)"
	case code == "42883" || code == "3F000":
		advice = " (this database lacks samekey's schema: run schema.Migrate)"
	}
	return fmt.Errorf("outbox: insert %q intent: %w%s", in.Action, Named(err), advice)
}

// Named adds samekey.ErrOtherService, on which callers branch, where the database reports it.
func Named(err error) error {
	if refused := (interface{ SQLState() string })(nil); errors.As(err, &refused) && refused.SQLState() == "SK003" {
		return fmt.Errorf("%w: %w", samekey.ErrOtherService, err)
	}
	return err
}
