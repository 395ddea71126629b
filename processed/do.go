package processed

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/hook"
	"github.com/samekey/samekey/internal/keyed"
)

// Do does a request once in a transaction that the caller owns: a pgx.Tx, or
// samekey.SQL of a *sql.Tx. What fn writes, its intents and the record exist
// exactly if the caller commits; until then nobody sees them, and others with
// the same key get [ErrInFlight].
//
// Results and errors are those of [Run], with these differences. fn runs inside
// a savepoint: after any error, and after a Failure, nothing of fn is left in
// the transaction, and unless the error says otherwise it is still usable. An
// error that is [SafeToRetry] and not [ErrInFlight] means that the whole
// transaction has to be rolled back and run again; under RepeatableRead and
// Serializable that is how a record shows that was committed since the
// transaction's start. Do runs fn once and retries nothing. An ambiguous COMMIT
// is the caller's: making the same request again tells.
//
// Inside fn, outbox.Insert takes the key and writes at once. Call outbox.Flush
// after the commit to wake the workers. Do costs up to two round trips for a
// pgx.Tx beside fn's own, up to five over samekey.SQL, and one more for a Failure.
//
// Inside Run, Do or a handler's Apply another request may be done, under another
// key: under the key of the one that is being done already Do is refused.
func Do[T any](ctx context.Context, tx samekey.Tx, req Request, fn func(ctx context.Context, tx samekey.Tx) (T, error)) (Result[T], error) {
	var value T
	m, err := req.checked(true)
	if err != nil {
		return Result[T]{}, err
	}
	if err := m.checkOwned(tx); err != nil {
		return Result[T]{}, err
	}
	ans, err := m.do(ctx, tx, func(ctx context.Context, tx samekey.Tx) (answer, error) {
		var err error
		if value, err = fn(ctx, tx); err != nil {
			return answer{}, err
		}
		return encode(value)
	})
	if err != nil {
		return Result[T]{}, err
	}
	return outcome(ans, value)
}

func (m *memory) checkOwned(tx samekey.Tx) error {
	switch tx.(type) {
	case nil:
		return errors.New("processed: Do: tx is nil: begin a transaction, or use Run")
	case *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn:
		return fmt.Errorf("processed: Do: tx is a %T, where each statement commits by itself: begin a transaction, or use Run", tx)
	}
	if outer, ok := tx.(keyed.Tx); ok && outer.RequestKey() == m.key {
		return fmt.Errorf("processed: Do: tx is that of the request with this very key (key:%s), which is being done: use another key, or no Do", m.key.Hash())
	}
	if m.isolation != "" {
		return errors.New("processed: Do: Request.Isolation must be zero: begin the transaction with it instead")
	}
	return nil
}

const (
	savepoint  = "savepoint samekey_do"
	rollbackTo = "rollback to savepoint samekey_do"
	release    = "release savepoint samekey_do"
)

func (m *memory) do(ctx context.Context, tx samekey.Tx, fn func(context.Context, samekey.Tx) (answer, error)) (ans answer, err error) {
	found, locked, err := m.lookUp(ctx, tx)
	if err != nil {
		return answer{}, m.doError("look up", err)
	}
	// From here on the savepoint exists. It is released in the end, after it took
	// back what must not stay: also when fn panics, for a caller who recovers.
	keep := false
	defer func() {
		if keep {
			return
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
		defer cancel()
		if _, failed := tx.Exec(within, rollbackTo+"; "+release); failed != nil && err != nil {
			err = fmt.Errorf("%w (and nothing more can be done in this transaction, roll it back: %w)", err, failed)
		}
	}()
	if found != nil {
		return m.replay(found)
	}
	if !locked {
		return answer{}, m.named(ErrInFlight)
	}
	ans, err = fn(ctx, m.owned(tx))
	failure := m.failureOf(err)
	if err == nil || failure != nil {
		if cancelled := ended(ctx); cancelled != nil {
			return answer{}, cancelled
		}
	}
	switch {
	case failure != nil:
		if err := failure.checkSize(); err != nil {
			return answer{}, err
		}
		if _, err := tx.Exec(ctx, rollbackTo); err != nil {
			return answer{}, fmt.Errorf("processed: Do: roll back to keep failure %d: %w", failure.statusCode(), err)
		}
		ans = *failure
	case err != nil:
		return answer{}, err
	}
	err = m.keep(ctx, tx, ans)
	switch {
	case err == nil:
		keep = true
		return ans, nil
	case sqlState(err) == stateAborted:
		return answer{}, fmt.Errorf("%w: a statement failed and its error was not returned (key:%s)", ErrAborted, m.key.Hash())
	case lostRace(err):
		return m.lost(ctx, tx, err)
	}
	return answer{}, m.doError("store the record", err)
}

// lost answers where another attempt's record is there after all. The
// transaction may be one that cannot see it.
func (m *memory) lost(ctx context.Context, tx samekey.Tx, cause error) (answer, error) {
	if _, err := tx.Exec(ctx, rollbackTo); err != nil {
		return answer{}, m.doError("roll back", err)
	}
	found, err := find(tx.QueryRow(ctx, db.ProcessedEventsFind, m.key.Value, m.key.Scope))
	switch {
	case err != nil:
		return answer{}, m.doError("look up", err)
	case found == nil:
		return answer{}, unstored("processed: Do: the record of key:%s was committed by a transaction that this one cannot see: roll back and run the whole transaction again: %w", m.key.Hash(), cause)
	}
	return m.replay(found)
}

// doError says what the state of the caller's transaction is.
func (m *memory) doError(verb string, err error) error {
	switch {
	case sqlState(err) == stateAborted:
		return fmt.Errorf("processed: Do: %s: the transaction was aborted by an earlier statement, roll it back (key:%s): %w", verb, m.key.Hash(), err)
	case again(err) != nil:
		return unstored("processed: Do: %s: roll back and run the whole transaction again (key:%s): %w", verb, m.key.Hash(), err)
	}
	return fmt.Errorf("processed: Do: %s: key:%s: %w%s", verb, m.key.Hash(), keyed.Named(err), advice(err))
}

// batcher is what a pgx.Tx has and a database/sql transaction lacks.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// lookUp takes the lock, looks for the record and opens the savepoint, as open
// does.
func (m *memory) lookUp(ctx context.Context, tx samekey.Tx) (found *db.ProcessedEventsFindRow, locked bool, err error) {
	locked = hook.LockOff(ctx)
	if sender, ok := tx.(batcher); ok {
		batch := &pgx.Batch{}
		if !locked {
			batch.Queue(db.ProcessedEventsTryLock, m.key.Scope, m.key.Value).QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
		}
		batch.Queue(db.ProcessedEventsFind, m.key.Value, m.key.Scope).QueryRow(func(row pgx.Row) (err error) {
			found, err = find(row)
			return err
		})
		batch.Queue(savepoint)
		err = sender.SendBatch(ctx, batch).Close()
		return found, locked, err
	}
	if !locked {
		if err := tx.QueryRow(ctx, db.ProcessedEventsTryLock, m.key.Scope, m.key.Value).Scan(&locked); err != nil {
			return nil, false, err
		}
	}
	if found, err = find(tx.QueryRow(ctx, db.ProcessedEventsFind, m.key.Value, m.key.Scope)); err != nil {
		return nil, false, err
	}
	_, err = tx.Exec(ctx, savepoint)
	return found, locked, err
}

// keep writes the record and releases the savepoint.
func (m *memory) keep(ctx context.Context, tx samekey.Tx, ans answer) error {
	if sender, ok := tx.(batcher); ok {
		batch := &pgx.Batch{}
		batch.Queue(db.ProcessedEventsInsert, m.recordArgs(ans)...)
		batch.Queue(release)
		return sender.SendBatch(ctx, batch).Close()
	}
	if _, err := tx.Exec(ctx, db.ProcessedEventsInsert, m.recordArgs(ans)...); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, release)
	return err
}

// owned is the caller's transaction as fn sees it: it knows the key.
func (m *memory) owned(tx samekey.Tx) samekey.Tx {
	parent, _ := tx.(keyed.Queue)
	known := doTx{Tx: tx, key: m.key, parent: parent}
	if sender, ok := tx.(batcher); ok {
		return struct {
			doTx
			batcher
		}{known, sender}
	}
	return known
}

// doTx is a keyed.Queue that queues nothing: an intent is written at once. One
// inside Run's transaction passes on whom to wake.
type doTx struct {
	samekey.Tx
	key    samekey.Key
	parent keyed.Queue
}

var _ keyed.Queue = doTx{}

func (t doTx) RequestKey() samekey.Key { return t.key }

func (t doTx) Enqueue(keyed.Intent) (uuid.UUID, bool, error) { return uuid.Nil, false, nil }

func (t doTx) Wrote(action string) {
	if t.parent != nil {
		t.parent.Wrote(action)
	}
}
