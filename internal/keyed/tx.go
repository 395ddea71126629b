package keyed

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
)

// Tx is a transaction that knows its request's key and subject: the one of processed.Run, of processed.Do, and of a
// dispatcher's Apply. outbox.Insert takes both from it.
type Tx interface {
	samekey.Tx
	RequestKey() samekey.Key
	RequestSubject() string // empty: none
}

// Queue is a Tx that may hold intents back and write them in the batch that commits.
type Queue interface {
	Tx
	// Enqueue takes an intent and returns its id, or the id of the same intent if it is queued already. If ok is false,
	// the transaction queues nothing (any more): write the intent at once.
	Enqueue(Intent) (id uuid.UUID, ok bool, err error)
	// Wrote notes the action of an intent that was written at once, so that its worker is woken after the commit.
	Wrote(action string)
}

// MustBeNew reports whether an intent that is written at once in tx must not exist yet: each step of an operation has
// intents of its own (processed.Steps).
func MustBeNew(tx samekey.Tx, in Intent) bool {
	t, ok := tx.(interface{ MustBeNew(in Intent) bool })
	return ok && t.MustBeNew(in)
}

// CheckTx refuses values that have the methods of a transaction and are not one.
func CheckTx(tx samekey.Tx) error {
	switch tx.(type) {
	case nil:
		return errors.New("tx is nil: begin a transaction, or use processed.Run")
	case *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn:
		return fmt.Errorf("tx is a %T, where each statement commits by itself: begin a transaction, or use processed.Run", tx)
	}
	return nil
}
