package processed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/hook"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/internal/wake"
)

const (
	// maxTries bounds the attempts at one transaction. With the pauses between
	// them (at most 2, 4, 8, .. 250 ms, half of that on average) the last is made
	// after about 400 ms: two dozen transactions that all want one row are through
	// by then.
	maxTries = 10
	maxPause = 250 * time.Millisecond

	// rollbackWithin bounds a rollback, which is not cut short by the caller's
	// context: a connection whose transaction cannot be ended is thrown away.
	rollbackWithin = 5 * time.Second

	// commitGrace is how long a commit goes on after the caller's context has
	// ended. Cutting it short would leave nobody the wiser.
	commitGrace = 10 * time.Second

	// deadlineSlack is how much earlier than the caller's deadline the server may
	// give up waiting, by its clock's steps.
	deadlineSlack = 20 * time.Millisecond
)

// Run does a request once: it calls fn in a transaction and commits the rows
// that fn wrote, the intents that it inserted and the record with its answer
// together. All exist afterwards, or none does. Where the request was done
// before, fn is not called, and the first answer is returned with
// Result.Deduplicated.
//
// On a warm connection Run adds two round trips to fn's own, one before and one
// after: three with one statement in fn, as a bare BEGIN, INSERT, COMMIT takes.
// A replay costs two.
//
//   - The same key with another Payload gives [ErrConflict], and while another
//     first attempt with the key is running, [ErrInFlight]. Neither waits.
//   - An error of fn is returned (find it with errors.Is and errors.As), and nothing
//     is stored: the key can be used again. Where it is the server's or the
//     connection's, [SafeToRetry] tells. So it is after a panic, and where ctx has ended by the time fn
//     returns (from then on, a commit under way is given ten seconds).
//   - A business error that is to replay is made by [Fail], and Run's error is a
//     [*Failure] the first time and at each replay: it is stored.
//   - An answer that JSON does not keep as it is gives [ErrAnswerInexact], before
//     anything is stored. The first caller gets what every replay gives: the value
//     decoded from its JSON. That costs about five to nine times the encoding, 40
//     to 150 microseconds for 1 KB on a busy machine; []byte and json.RawMessage
//     are kept without.
//   - fn waits for its goroutines. One that is still in a statement when fn returns
//     makes it [ErrAborted], and the connection is broken; one that comes later
//     gets pgx.ErrTxClosed.
//   - A statement of fn that failed leaves the transaction aborted; if fn
//     returns nil all the same, the error is [ErrAborted].
//   - A connection lost during COMMIT is looked into: under the key's lock, which
//     that transaction holds until it has ended, either its record is found, and
//     its answer returned as a replay, or it was certainly not committed, and the
//     error is [SafeToRetry]. Where this takes more than five seconds the error
//     is [ErrAmbiguous].
//
// fn may be called more than once, each time in a transaction of its own after
// the one before was rolled back: after a serialization failure or a deadlock
// (SQLSTATE 40001, 40P01; at most ten times), where an intent under the same
// key exists already that was written outside Run, or where another attempt won
// after all. What it does outside the transaction is done again: leave that to
// intents.
//
// The transaction given to fn is Run's: its Commit and Rollback return an error
// and do nothing, so a deferred Rollback is harmless. Begin starts a nested
// one. outbox.Insert in it needs no key, and costs no round trip: the intents
// are written with the commit, unless fn uses savepoints of its own or takes
// tx.Conn(), and an intent's conflict then comes out of Run. After the commit
// Run wakes their workers.
//
// A text with a statement that begins or ends a transaction is refused. What reaches the
// database in another way (tx.Conn(), a pgx.QueryRewriter) is not looked at: where Run finds
// that its transaction was ended, or that another is in its place, it returns
// [ErrAborted], and what was committed so stays. An intent
// goes the way of the savepoint that it was inserted behind, however that was set: before
// a nested transaction, and before a text that may deal with savepoints (whatever
// is not plainly one SELECT, INSERT, UPDATE, DELETE, WITH, VALUES or MERGE), the
// intents that are queued are written, which costs a round trip.
//
// Inside fn, Run and Once on the same pool are refused ([ErrNested]), and so is the
// same key in any call on the same database: use [Do] with tx, under a key of its own. The call is known
// from the context that fn gets.
//
// A commit that has to wait for an ordering key waits until ctx's deadline; then the
// error is the deadline's, and nothing was stored.
func Run[T any](ctx context.Context, pool *pgxpool.Pool, req Request, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (Result[T], error) {
	var value T
	m, err := req.checked(true)
	if err != nil {
		return Result[T]{}, err
	}
	ans, err := m.run(ctx, pool, func(ctx context.Context, tx pgx.Tx) (ans answer, err error) {
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

// Once does the work for an event once: for consumers of a broker or a webhook,
// which may hand over the same event again and need no answer. It is Run
// without one. The event is acknowledged after a nil error, first or not.
//
// first says that fn's work was committed by this call. It is false where the
// event was handled before, and also where this call's own commit was found to
// have happened after its connection was lost during COMMIT: count with it, and
// let nothing depend on it.
//
// Request.Payload may be nil: then the key alone says that two events are the
// same. [Fail] is an ordinary error here: nothing is stored.
func Once(ctx context.Context, pool *pgxpool.Pool, req Request, fn func(ctx context.Context, tx pgx.Tx) error) (first bool, err error) {
	m, err := req.checked(false)
	if err != nil {
		return false, err
	}
	ans, err := m.run(ctx, pool, func(ctx context.Context, tx pgx.Tx) (answer, error) {
		return answer{}, fn(ctx, tx)
	})
	return err == nil && !ans.replay, err
}

// work is the caller's function, its answer encoded.
type work func(ctx context.Context, tx pgx.Tx) (answer, error)

func (m *memory) run(ctx context.Context, pool *pgxpool.Pool, fn work) (answer, error) {
	if err := m.checkNested(ctx, pool); err != nil {
		return answer{}, err
	}
	immediate := false
	for try := 1; ; try++ {
		ans, err := m.attempt(ctx, pool, immediate, fn)
		if lost := (*lostError)(nil); errors.As(err, &lost) {
			return m.findOut(ctx, pool, lost)
		}
		more := (*againError)(nil)
		if !errors.As(err, &more) {
			return ans, err
		}
		immediate = immediate || more.immediate
		if try == maxTries {
			return answer{}, unstored("processed: given up after %d attempts, nothing was stored: %w", try, more.cause)
		}
		if more.wait {
			if err := pause(ctx, try); err != nil {
				return answer{}, err
			}
		}
	}
}

// pause waits up to twice as long after each try, at random, so that those who
// collided do not do so again.
func pause(ctx context.Context, try int) error {
	longest := min(2*time.Millisecond<<(try-1), maxPause)
	timer := time.NewTimer(rand.N(longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// attempt is one transaction.
func (m *memory) attempt(ctx context.Context, pool *pgxpool.Pool, immediate bool, fn work) (answer, error) {
	pooled, err := m.acquire(ctx, pool)
	if err != nil {
		return answer{}, err
	}
	conn := pooled.Conn()
	q := &queue{key: m.key, immediate: immediate}
	var tx pgx.Tx
	defer func() { // also when fn panics
		if !q.close() {
			abandon(pooled)
			return
		}
		if q.large && !conn.IsClosed() && !conn.PgConn().IsBusy() {
			closeTx(ctx, tx)
		}
		rollback(ctx, conn)
		pooled.Release()
	}()

	opened, began, found, err := m.open(ctx, conn)
	if err != nil {
		return answer{}, err
	}
	if found != nil {
		return m.replay(found)
	}
	tx = opened
	ans, err := fn(m.running(ctx, pool, conn, &q.gate), &runTx{tx: tx, q: q, ctx: ctx})
	failure := m.failureOf(err)
	if err == nil || failure != nil {
		if cancelled := ended(ctx); cancelled != nil {
			return answer{}, cancelled
		}
		if !q.close() { // a goroutine that outlives fn gets an error from here on
			return answer{}, m.leftBehindError()
		}
	}
	if failure != nil {
		return m.storeFailure(ctx, conn, began, *failure)
	}
	failed := cmp.Or(again(q.failure()), again(err))
	if failed == nil && err != nil {
		if failed = err; ctx.Err() == nil && q.close() {
			failed = retryable(conn, err)
		}
	}
	if failed != nil {
		if q.close() {
			failed = m.unlessEnded(ctx, conn, began, failed)
		}
		return answer{}, failed
	}
	actions, err := m.commit(ctx, conn, q, began, ans)
	if err != nil {
		return answer{}, err
	}
	wake.Flush(pool, actions...)
	return ans, nil
}

// open begins the transaction, takes the key's lock and looks for the record,
// in one round trip. No record and no error mean that the lock is held.
func (m *memory) open(ctx context.Context, conn *pgx.Conn) (tx pgx.Tx, began time.Time, found *db.ProcessedEventsFindRow, err error) {
	locked := false
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: m.isolation})
	sql, args := m.tryLock(ctx)
	batch.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, &began) })
	batch.Queue(db.ProcessedEventsFind, m.key.Value, m.key.Scope).QueryRow(func(row pgx.Row) (err error) {
		found, err = find(row)
		return err
	})
	results := conn.SendBatch(ctx, batch)
	tx = results.Tx()
	switch err = results.Close(); {
	case err == nil && found == nil && !locked:
		return nil, began, nil, m.inFlight(ctx)
	case err == nil:
		return tx, began, found, nil
	}
	if cancelled := ended(ctx); cancelled != nil {
		return nil, began, nil, cancelled
	}
	if conn.IsClosed() { // nothing was done yet: another connection will do
		return nil, began, nil, &againError{cause: fmt.Errorf("processed: look up key:%s: %w", m.key.Hash(), err), wait: true}
	}
	if failed := again(err); failed != nil {
		return nil, began, nil, failed
	}
	dropStatements(ctx, conn, err)
	return nil, began, nil, retryable(conn, fmt.Errorf("processed: look up key:%s: %w%s", m.key.Hash(), keyed.Named(err), advice(err)))
}

// tryLock is the statement that takes the key's lock and tells when the
// transaction began.
func (m *memory) tryLock(ctx context.Context) (sql string, args []any) {
	if hook.LockOff(ctx) {
		return "select true, now()", nil
	}
	return db.ProcessedEventsTryLock, []any{m.key.Scope, m.key.Value}
}

// dropStatements closes a connection whose prepared statements are not the
// server's any more (26000), so that the next attempt gets another.
func dropStatements(ctx context.Context, conn *pgx.Conn, err error) {
	if sqlstate.Of(err) == sqlstate.NoStatement {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
		defer cancel()
		_ = conn.Close(ctx)
	}
}

// commit writes the record and the queued intents, and commits, in one round
// trip. Each statement raises on a conflict: after one that did not, COMMIT
// would keep the rows of an attempt that lost.
//
// What the batch meets:
//
//   - The transaction is not the one that open began, since a text such as
//     "..; rollback; begin" replaced it: the record's statement raises, and the
//     rest of the batch, the COMMIT included, is not executed.
//   - Another attempt's record is there: the record's statement raises.
//   - An ordering key is held by another transaction. The batch waits, as long as
//     the caller does: the server gives up (lock_timeout) when the caller's
//     deadline comes, before the COMMIT is executed, so it is certain that nothing
//     was stored. To cut the connection instead would leave that open. A caller
//     that is cancelled without a deadline has the batch end within commitGrace.
//   - The COMMIT itself is not cut short: from its answer alone the outcome is
//     known.
func (m *memory) commit(ctx context.Context, conn *pgx.Conn, q *queue, began time.Time, ans answer) (actions []string, err error) {
	if err := m.committable(conn, q); err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	deadline, bounded := ctx.Deadline()
	if bounded = bounded && q.waits(); bounded {
		batch.Queue(db.ProcessedEventsSetLockTimeout, max(time.Until(deadline).Milliseconds(), 1))
	}
	// The record before the intents: an attempt that lost is told so by the record, and
	// not by an intent whose payload names a row of the loser's own.
	m.insertRecord(batch, db.ProcessedEventsInsert, m.recordArgs(began, ans))
	actions = q.addAll(batch)
	committed := ""
	batch.Queue("commit").Fn = func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		committed = tag.String()
		return err
	}
	within, cancel := grace(ctx)
	defer cancel()
	if err := conn.SendBatch(within, batch).Close(); err != nil {
		if bounded && sqlstate.Of(err) == sqlstate.LockTimeout && time.Until(deadline) < deadlineSlack {
			return nil, fmt.Errorf("processed: nothing was stored: the commit waited for an ordering key until the deadline (key:%s): %w",
				m.key.Hash(), errors.Join(context.DeadlineExceeded, err))
		}
		return nil, m.commitError(ctx, conn, err, actions)
	}
	if committed != "COMMIT" { // of an aborted transaction: ROLLBACK, and no error
		return nil, m.named(ErrAborted)
	}
	return actions, nil
}

// committable looks at the state in which the function left the transaction.
func (m *memory) committable(conn *pgx.Conn, q *queue) error {
	if err := q.failure(); err != nil {
		return retryable(conn, err)
	}
	switch {
	case conn.IsClosed():
		return unstored("processed: the connection was lost before the commit, nothing was stored (key:%s)", m.key.Hash())
	case conn.PgConn().IsBusy():
		return fmt.Errorf("%w: rows or batch results were left open: close them (key:%s)", ErrAborted, m.key.Hash())
	}
	switch conn.PgConn().TxStatus() {
	case 'E':
		return fmt.Errorf("%w: a statement failed and its error was not returned (key:%s)", ErrAborted, m.key.Hash())
	case 'I':
		return m.endedError()
	}
	return nil
}

// unlessEnded returns the function's error, or ErrAborted where that would have the
// work done again although the function ended the transaction of the first time: what
// it committed would be there twice. In a failed transaction that cannot be asked.
func (m *memory) unlessEnded(ctx context.Context, conn *pgx.Conn, began time.Time, err error) error {
	more := (*againError)(nil)
	if again := errors.As(err, &more); !again && !SafeToRetry(err) || conn.IsClosed() || conn.PgConn().IsBusy() {
		return err
	}
	ended := error(nil)
	switch conn.PgConn().TxStatus() {
	case 'I':
		ended = m.endedError()
	case 'T':
		within, cancel := grace(ctx)
		defer cancel()
		var at time.Time
		if replaced(ofRecord(conn.QueryRow(within, db.ProcessedEventsCheckTransaction, began).Scan(&at))) {
			ended = m.replacedError()
		}
	}
	if ended == nil {
		return err
	}
	if more != nil {
		err = more.cause // not again
	}
	return fmt.Errorf("%w: %w", ended, err)
}

// commitError tells what is certain after the last batch failed. An error of
// the server's on a connection that lives means that the transaction is, or
// will be, rolled back, unless it says that the server went away: behind a pooler
// the connection lives on.
func (m *memory) commitError(ctx context.Context, conn *pgx.Conn, err error, actions []string) error {
	if pgconn.SafeToRetry(err) {
		return unstored("processed: the connection was lost before the commit, nothing was stored (key:%s): %w", m.key.Hash(), err)
	}
	if conn.IsClosed() || sqlstate.Lost(sqlstate.Of(err)) { // the pooler's to the server, maybe
		return &lostError{cause: err, actions: actions}
	}
	if failed := again(err); failed != nil {
		return failed
	}
	if replaced(err) {
		return m.replacedError()
	}
	if conflict(err) {
		return err
	}
	dropStatements(ctx, conn, err)
	return retryable(conn, fmt.Errorf("processed: commit key:%s: %w", m.key.Hash(), err))
}

// grace is a context that outlives ctx by commitGrace.
func grace(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(commitGrace, cancel)
		context.AfterFunc(within, func() { timer.Stop() })
	})
	return within, func() { stop(); cancel() }
}

// abandon takes the connection out of the pool and breaks it, which ends its
// transaction. It does not look at the connection's state: another goroutine is
// changing it.
func abandon(pooled *pgxpool.Conn) {
	_ = pooled.Hijack().PgConn().Conn().Close()
}

// closeTx has pgx refuse what still comes through the transaction, which is past the
// gate: its large objects.
func closeTx(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	_ = tx.Rollback(ctx) // a warning of the server's, where it was committed
}

// rollback ends what is still open. A connection on which that fails is closed,
// and the server rolls back when it notices.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' || conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback") // without arguments: the simple protocol, which works in a failed transaction
}
