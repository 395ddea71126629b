package processed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Do does a request once in a transaction that the caller owns: a pgx.Tx, or
// samekey.SQL of a *sql.Tx. What fn writes, its intents and the record exist
// exactly if the caller commits; until then nobody sees them, and others with
// the same key get [ErrInFlight].
//
// Results and errors are those of [Run], with these differences. fn runs inside
// a savepoint: after any error nothing of fn is left in the transaction, and
// unless the error says otherwise the transaction is still usable. A [*Failure] is
// stored by the caller's commit, so commit after it. An error that is
// [SafeToRetry] and not [ErrInFlight] means that the whole transaction has to be
// rolled back and run again; under RepeatableRead and Serializable that is how a
// record shows that was committed since the transaction's start. Do runs fn once
// and retries nothing. An ambiguous COMMIT is the caller's: making the same
// request again tells.
//
// fn uses the transaction that it is given, and not the caller's variable: what is
// inserted through that one is not part of the request. When fn has returned, the
// transaction that it was given takes no more statements (pgx.ErrTxClosed). Where
// a goroutine is still in a statement then, the error is [ErrAborted], and the
// connection of a pgx.Tx is broken, so that it cannot be committed.
//
// Inside fn, outbox.Insert takes the key and writes at once. Call outbox.Flush
// after the commit to wake the workers. Do costs up to two round trips for a
// pgx.Tx beside fn's own, up to five over samekey.SQL, and one more for a Failure.
//
// Inside Run, Do or a handler's Apply another request may be done, under another
// key: under the key of one that is being done already Do is refused
// ([ErrNested]).
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
	switch tx.(type) {
	case nil:
		return errors.New("processed: Do: tx is nil: begin a transaction, or use Run")
	case *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn:
		return fmt.Errorf("processed: Do: tx is a %T, where each statement commits by itself: begin a transaction, or use Run", tx)
	}
	if outer, ok := tx.(keyed.Tx); ok && outer.RequestKey() == m.key {
		return fmt.Errorf("%w: Do: tx is that of the request with this very key (key:%s), which is being done: use another key, or no Do", ErrNested, m.key.Hash())
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
	found, began, locked, err := m.lookUp(ctx, tx)
	if err != nil {
		return answer{}, m.doError("look up", err)
	}
	// From here on the savepoint exists. It is released in the end, after it took
	// back what must not stay: also when fn panics, for a caller who recovers.
	keep, inside := false, &gate{}
	defer func() {
		idle := inside.close()
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
			err = fmt.Errorf("%w (and nothing more can be done in this transaction, roll it back: %w)", err, failed)
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
	if idle := inside.close(); !idle && (err == nil || failure != nil) {
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

// spoil makes it impossible to commit what a goroutine may still write to. Over
// database/sql nothing is needed: it lets one statement through at a time, and
// Do's error has the caller roll back.
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
	case sqlstate.Of(err) == sqlstate.Aborted:
		return fmt.Errorf("processed: Do: %s: the transaction was aborted by an earlier statement, roll it back (key:%s): %w", verb, m.key.Hash(), err)
	case again(err) != nil, sqlstate.Transient(sqlstate.Of(err)):
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
func (m *memory) lookUp(ctx context.Context, tx samekey.Tx) (found *db.ProcessedEventsFindRow, began time.Time, locked bool, err error) {
	lock, args := m.tryLock(ctx)
	if sender, ok := tx.(batcher); ok {
		batch := &pgx.Batch{}
		batch.Queue(lock, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, &began) })
		batch.Queue(db.ProcessedEventsFind, m.key.Value, m.key.Scope).QueryRow(func(row pgx.Row) (err error) {
			found, err = find(row)
			return err
		})
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
	if sender, ok := tx.(batcher); ok {
		batch := &pgx.Batch{}
		m.insertRecord(batch, db.ProcessedEventsInsert, m.recordArgs(began, ans))
		batch.Queue(release)
		return sender.SendBatch(ctx, batch).Close()
	}
	if _, err := tx.Exec(ctx, db.ProcessedEventsInsert, m.recordArgs(began, ans)...); err != nil {
		return ofRecord(err)
	}
	_, err := tx.Exec(ctx, release)
	return err
}

// owned is the caller's transaction as fn sees it: it knows the key, and takes
// statements until fn has returned.
func (m *memory) owned(tx samekey.Tx, inside *gate) samekey.Tx {
	parent, _ := tx.(keyed.Queue)
	known := doTx{tx: tx, key: m.key, parent: parent, gate: inside}
	if sender, ok := tx.(batcher); ok {
		return doBatchTx{known, sender}
	}
	return known
}

// errCallers is what a statement returns that begins or ends the transaction.
var errCallers = errors.New("processed: the transaction is the caller's of Do, who commits it: return nil to keep the work, an error to take it back")

// doTx is a keyed.Queue that queues nothing: an intent is written at once. One
// inside Run's transaction passes on whom to wake.
type doTx struct {
	tx     samekey.Tx
	key    samekey.Key
	parent keyed.Queue
	gate   *gate
}

var _ keyed.Queue = doTx{}

func (t doTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.gate.enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer t.gate.exit()
	if endsTransaction(sql) {
		return pgconn.CommandTag{}, errCallers
	}
	return t.tx.Exec(ctx, sql, args...)
}

func (t doTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.gate.enter(); err != nil {
		return refusedRows{err: err}, err
	}
	defer t.gate.exit()
	if endsTransaction(sql) {
		return refusedRows{err: errCallers}, errCallers
	}
	return t.tx.Query(ctx, sql, args...)
}

func (t doTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.gate.enter(); err != nil {
		return refusedRows{err: err}
	}
	defer t.gate.exit()
	if endsTransaction(sql) {
		return refusedRows{err: errCallers}
	}
	return t.tx.QueryRow(ctx, sql, args...)
}

func (t doTx) RequestKey() samekey.Key { return t.key }

func (t doTx) Enqueue(keyed.Intent) (uuid.UUID, bool, error) {
	if t.gate.over() {
		return uuid.Nil, false, pgx.ErrTxClosed
	}
	return uuid.Nil, false, nil // and the statement that writes it enters the gate
}

func (t doTx) Wrote(action string) {
	if t.parent != nil {
		t.parent.Wrote(action)
	}
}

func (t doTx) spoil(err error) { spoil(t.tx, err) }

// doBatchTx is doTx over a transaction that takes batches.
type doBatchTx struct {
	doTx
	sender batcher
}

func (t doBatchTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.gate.enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.gate.exit()
	for _, query := range b.QueuedQueries {
		if endsTransaction(query.SQL) {
			return pgx.FailedBatchResults(b, errCallers)
		}
	}
	return t.sender.SendBatch(ctx, b)
}
