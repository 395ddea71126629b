package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/internal/wake"
)

// act runs one SQL function about one intent, in a transaction or a savepoint of its own, and wakes the workers of the
// actions that the function returns. The function makes the whole decision.
func act(ctx context.Context, on DB, verb string, id uuid.UUID, by By, call func(*db.Queries) ([]string, error)) error {
	if err := by.Validate(); err != nil {
		return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
	}
	var actions []string
	err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) (err error) {
		actions, err = call(db.New(tx))
		return err
	})
	if err != nil {
		return refused(verb, id, err)
	}
	flush(on, actions)
	return nil
}

// refused returns the error of an act: the fields of the database's error say why.
func refused(verb string, id uuid.UUID, err error) error {
	pg := (*pgconn.PgError)(nil)
	if !errors.As(err, &pg) {
		return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
	}
	switch pg.Code {
	case sqlstate.NotFound:
		err = ErrNotFound
	case sqlstate.StateRefuses, sqlstate.SecondPerson:
		return &StateError{ID: id, Verb: verb, Status: Status(pg.ConstraintName), Do: pg.Hint}
	case sqlstate.Denied:
		err = denied(err)
	}
	return fmt.Errorf("outbox: %s intent %s: %w", verb, id, err)
}

// denied adds what to do about a missing right.
func denied(err error) error {
	return fmt.Errorf("%w: connect as the operator's or the approver's role (schema.Roles)", err)
}

// flush wakes workers if the change is committed.
func flush(on DB, actions []string) {
	if pool, ok := on.(*pgxpool.Pool); ok {
		wake.Flush(pool, actions...)
	}
}
