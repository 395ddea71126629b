package processed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Do does a request once in a transaction that the caller owns: a pgx.Tx, or samekey.SQL of a *sql.Tx. What fn writes,
// its intents and the record exist if and only if the caller commits. Until then they are invisible to others, who get
// [ErrInFlight] for the same key.
//
// Results and errors are those of [Run], with these differences:
//
//   - fn runs inside a savepoint. After any error nothing of fn is left in the transaction, and the transaction is
//     still usable unless the error says otherwise.
//   - A [*Failure] is stored by the caller's commit, so commit after it.
//   - Do calls fn once and retries nothing. An error that is [SafeToRetry] and not [ErrInFlight] means: roll back, and
//     run the whole transaction again. Under RepeatableRead and Serializable this also happens if the record was
//     committed after the transaction's start.
//   - An ambiguous COMMIT is the caller's to resolve: make the same request again.
//
// fn must use the transaction that it is given, not the caller's variable: intents inserted through the latter are not
// part of the request. After fn has returned, that transaction refuses statements (pgx.ErrTxClosed). If a goroutine is
// still in a statement at that point, the error is [ErrAborted], and the connection of a pgx.Tx is broken so that it
// cannot be committed.
//
// Inside fn, outbox.Insert takes the request's key and writes at once. Call outbox.Flush after the commit to wake the
// workers. Beside fn's own statements, Do costs up to two round trips over a pgx.Tx, up to five over samekey.SQL, and
// one more for a Failure.
//
// Do can be nested in Run, in Do and in an Apply, under another key. Under a key that is already being done it is
// refused ([ErrNested]).
func Do[T any](ctx context.Context, tx samekey.Tx, req Request, fn func(ctx context.Context, tx samekey.Tx) (T, error)) (Result[T], error) {
	var value T
	m, err := req.checked(true)
	if err != nil {
		return Result[T]{}, err
	}
	if err := cmp.Or(m.checkOwned(tx), m.checkSameKey(ctx, connOf(tx))); err != nil {
		return Result[T]{}, err
	}
	ans, err := m.do(ctx, tx, func(ctx context.Context, tx samekey.Tx) (ans answer, err error) {
		if value, err = fn(ctx, tx); err != nil {
			return answer{}, err
		}
		ans, value, err = keepable(value)
		return ans, err
	})
	if err != nil {
		return Result[T]{}, err
	}
	return outcome(ans, value)
}

func (m *memory) checkOwned(tx samekey.Tx) error {
	if err := keyed.CheckTx(tx); err != nil {
		return fmt.Errorf("processed: Do: %w", err)
	}
	if outer, ok := tx.(keyed.Tx); ok && outer.RequestKey() == m.key {
		return fmt.Errorf("%w: Do: tx belongs to the running request with the same key (key:%s): use another key, or leave out this Do", ErrNested, m.key.Hash())
	}
	if m.isolation != "" {
		return &RequestError{"Isolation", errors.New("must be zero in Do: begin the transaction with it instead")}
	}
	return nil
}

const (
	savepoint  = "savepoint samekey_do"
	rollbackTo = "rollback to savepoint samekey_do"
	release    = "release savepoint samekey_do"
)

func (m *memory) do(ctx context.Context, tx samekey.Tx, fn func(context.Context, samekey.Tx) (answer, error)) (ans answer, err error) {
	if outer, ok := tx.(keyed.Tx); ok {
		m.subject = cmp.Or(m.subject, outer.RequestSubject())
	}
	found, began, locked, err := m.openInTx(ctx, tx)
	if err != nil {
		return answer{}, m.doError("look up", err)
	}
	// The savepoint exists from here on. At the end it is released, after a rollback to it of whatever must not stay.
	// This also happens if fn panics, for a caller that recovers.
	keep, inside := false, &guarded.Gate{}
	defer func() {
		idle := inside.Close()
		switch {
		case keep:
			return
		case !idle:
			spoil(tx, m.leftBehindError())
			return
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
		defer cancel()
		_, failed := tx.Exec(within, rollbackTo+"; "+release)
		if state := sqlstate.Of(failed); (state == sqlstate.NoSavepoint || state == sqlstate.NoTransaction) && SafeToRetry(err) {
			err = fmt.Errorf("%w: %w", m.replacedError(), err)
		}
		if failed != nil && err != nil {
			err = fmt.Errorf("%w (and the transaction is not usable any more: roll it back: %w)", err, failed)
		}
	}()
	if found != nil {
		return m.replay(found)
	}
	if !locked {
		return answer{}, m.inFlight(ctx)
	}
	ans, err = fn(m.running(ctx, nil, connOf(tx), inside), m.owned(tx, inside))
	failure := m.failureOf(err)
	if idle := inside.Close(); !idle && (err == nil || failure != nil) {
		return answer{}, m.leftBehindError()
	}
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
			return answer{}, m.keepError(ctx, tx, fmt.Sprintf("roll back to keep failure %d", failure.statusCode()), err)
		}
		ans = *failure
	case err != nil && ctx.Err() == nil:
		return answer{}, retryable(nil, err)
	case err != nil:
		return answer{}, err
	}
	if err = m.keep(ctx, tx, began, ans); err == nil {
		keep = true
		return ans, nil
	}
	if lostRace(err) {
		return m.lost(ctx, tx, err)
	}
	return answer{}, m.keepError(ctx, tx, "store the record", err)
}

// keepError says why an answer could not be stored.
func (m *memory) keepError(ctx context.Context, tx samekey.Tx, verb string, err error) error {
	switch {
	case replaced(err), sqlstate.Of(err) == sqlstate.NoSavepoint:
		return m.replacedError()
	case sqlstate.Of(err) == sqlstate.Aborted:
		return fmt.Errorf("%w: a statement failed and its error was not returned (key:%s)", ErrAborted, m.key.Hash())
	case ctx.Err() != nil:
		return fmt.Errorf("processed: Do: %s: key:%s: %w", verb, m.key.Hash(), err)
	}
	return m.doError(verb, err)
}

// spoil makes the transaction impossible to commit, because a goroutine may still write to it. database/sql needs
// nothing: it runs one statement at a time, and the error makes the caller roll back.
func spoil(tx samekey.Tx, err error) {
	switch t := tx.(type) {
	case interface{ spoil(error) }:
		t.spoil(err)
	case interface{ Conn() *pgx.Conn }:
		if conn := t.Conn(); conn != nil {
			_ = conn.PgConn().Conn().Close()
		}
	}
}

// lost answers if another attempt's record exists after all. The transaction may be unable to see it.
func (m *memory) lost(ctx context.Context, tx samekey.Tx, cause error) (answer, error) {
	if _, err := tx.Exec(ctx, rollbackTo); err != nil {
		return answer{}, m.doError("roll back", err)
	}
	found, err := find(tx.QueryRow(ctx, db.ProcessedEventsFind, m.key.Value, m.key.Scope))
	switch {
	case err != nil:
		return answer{}, m.doError("look up", err)
	case found == nil:
		return answer{}, unstored("processed: Do: the record of key:%s was committed by a transaction that this one cannot see: roll back, and run the whole transaction again: %w", m.key.Hash(), cause)
	}
	return m.replay(found)
}

// doError says in which state the caller's transaction is.
func (m *memory) doError(verb string, err error) error {
	switch {
	case sqlstate.Of(err) == sqlstate.Aborted:
		return fmt.Errorf("processed: Do: %s: an earlier statement aborted the transaction: roll it back (key:%s): %w", verb, m.key.Hash(), err)
	case again(err) != nil, sqlstate.Transient(sqlstate.Of(err)):
		return unstored("processed: Do: %s: roll back and run the whole transaction again (key:%s): %w", verb, m.key.Hash(), err)
	}
	return fmt.Errorf("processed: Do: %s: key:%s: %w%s", verb, m.key.Hash(), keyed.Named(err), advice(err))
}

// openInTx takes the lock, looks for the record and opens the savepoint. It is Do's form of open.
func (m *memory) openInTx(ctx context.Context, tx samekey.Tx) (found *db.ProcessedEventsFindRow, began time.Time, locked bool, err error) {
	lock, args := m.tryLock(ctx)
	if sender, ok := tx.(guarded.Batcher); ok {
		batch := &pgx.Batch{}
		batch.Queue(lock, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, &began) })
		m.queueFind(batch, &found)
		batch.Queue(savepoint)
		err = sender.SendBatch(ctx, batch).Close()
		return found, began, locked, err
	}
	if err := tx.QueryRow(ctx, lock, args...).Scan(&locked, &began); err != nil {
		return nil, began, false, err
	}
	if found, err = find(tx.QueryRow(ctx, db.ProcessedEventsFind, m.key.Value, m.key.Scope)); err != nil {
		return nil, began, false, err
	}
	_, err = tx.Exec(ctx, savepoint)
	return found, began, locked, err
}

// keep writes the record and releases the savepoint.
func (m *memory) keep(ctx context.Context, tx samekey.Tx, began time.Time, ans answer) error {
	if sender, ok := tx.(guarded.Batcher); ok {
		batch := &pgx.Batch{}
		m.queueRecord(batch, began, ans)
		batch.Queue(release)
		return sender.SendBatch(ctx, batch).Close()
	}
	if _, err := tx.Exec(ctx, db.ProcessedEventsInsert, m.recordArgs(began, ans)...); err != nil {
		return ofRecord(err)
	}
	_, err := tx.Exec(ctx, release)
	return err
}

// owned returns the caller's transaction as fn sees it: it knows the key, and takes statements until fn has returned.
func (m *memory) owned(tx samekey.Tx, inside *guarded.Gate) samekey.Tx {
	parent, _ := tx.(keyed.Queue)
	known := doTx{Tx: guarded.Tx{Inner: tx, Gate: inside, Admit: guarded.Refuse(errCallers)}, key: m.key, subject: m.subject, parent: parent}
	if sender, ok := tx.(guarded.Batcher); ok {
		return doBatchTx{known, sender}
	}
	return known
}

// errCallers is the error of a statement that begins or ends the caller's transaction.
var errCallers = errors.New("processed: the caller of Do owns the transaction: return nil to keep the work, or an error to undo it")

// doTx is a keyed.Queue that queues nothing: intents are written at once. Inside Run's transaction it passes on which
// workers to wake.
type doTx struct {
	guarded.Tx
	key     samekey.Key
	subject string
	parent  keyed.Queue // nil outside Run and Apply
}

var _ keyed.Queue = doTx{}

func (t doTx) RequestKey() samekey.Key { return t.key }

func (t doTx) RequestSubject() string { return t.subject }

func (t doTx) Enqueue(keyed.Intent) (uuid.UUID, bool, error) {
	if t.Gate.Over() {
		return uuid.Nil, false, pgx.ErrTxClosed
	}
	return uuid.Nil, false, nil // the statement that writes the intent enters the gate
}

func (t doTx) Wrote(action string) {
	if t.parent != nil {
		t.parent.Wrote(action)
	}
}

func (t doTx) spoil(err error) { spoil(t.Inner, err) }

// doBatchTx is doTx over a transaction that takes batches.
type doBatchTx struct {
	doTx
	sender guarded.Batcher
}

func (t doBatchTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.Batch(ctx, t.sender, b)
}
