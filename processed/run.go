package processed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/backoff"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/wake"
)

const (
	// maxTries bounds the attempts at one transaction. The pauses between them are at most 2, 4, 8, .. 250 ms, and half
	// of that on average, so the last attempt starts after about 400 ms. By then two dozen transactions that all want
	// the same row are done.
	maxTries   = 10
	firstPause = 2 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// Run does a request once: it calls fn in a transaction, and commits the rows that fn wrote, the intents that it
// inserted and the record with its answer together. Either all of them exist afterwards, or none. If the request was
// done before, fn is not called, and Run returns the first answer with Result.Deduplicated.
//
// Errors:
//
//   - The same key with another Payload gives [ErrConflict]. While another first attempt with the key is running, it
//     gives [ErrInFlight]. Neither waits.
//   - If fn returns an error, Run returns it (find it with errors.Is and errors.As) and stores nothing: the key can be
//     used again. [SafeToRetry] tells whether it is the server's or the connection's. The same applies after a panic,
//     and if ctx has ended when fn returns. Once the commit has begun, it gets ten more seconds after ctx ends.
//   - A business error that must replay is made with [Fail]. It is stored, and Run returns it as a [*Failure] the first
//     time and at each replay.
//   - An answer that JSON does not preserve, or that is larger than 1 MiB, gives [ErrAnswerUnstorable] before anything
//     is stored. The first caller gets the value decoded from its JSON, exactly as every replay does. That costs five
//     to nine times the encoding: 40 to 150 microseconds for 1 KB on a busy machine. []byte and json.RawMessage avoid
//     it.
//   - If a statement of fn failed and fn returns nil nevertheless, the error is [ErrAborted].
//   - If a goroutine is still in a statement when fn returns, the error is [ErrAborted] and the connection is broken. A
//     statement that comes later gets pgx.ErrTxClosed.
//   - If the connection is lost during COMMIT, Run takes the key's lock, which that transaction holds until it has
//     ended. Then either the record exists, and Run returns its answer as a replay, or it was certainly not committed,
//     and the error is [SafeToRetry]. If this takes more than five seconds, the error is [ErrAmbiguous].
//   - A commit that has to wait for an ordering key waits until ctx's deadline. Then the error is the deadline's, and
//     nothing was stored.
//
// Run may call fn several times, each time in a new transaction after the previous one was rolled back: after a
// serialization failure or a deadlock (SQLSTATE 40001, 40P01; at most ten times), if an intent under the same key
// exists that was written outside Run, or if another attempt won the race. So leave effects outside the database to
// intents.
//
// The transaction belongs to Run. Its Commit and Rollback return an error and do nothing, so a deferred Rollback is
// harmless. Begin starts a nested transaction. outbox.Insert in it needs no key and costs no round trip, because the
// intents are written with the commit; their conflicts then come out of Run. After the commit Run wakes their workers.
//
// An intent shares the fate of the savepoint behind which it was inserted. So Run writes the queued intents, in one
// more round trip, before a nested transaction, before tx.Conn() is returned, and before a statement that may deal with
// savepoints (any text that is not plainly one SELECT, INSERT, UPDATE, DELETE, WITH, VALUES or MERGE).
//
// A statement that begins or ends a transaction is refused. Run cannot see statements that go through tx.Conn() or a
// pgx.QueryRewriter. If it finds that its transaction was ended or replaced, it returns [ErrAborted], and what was
// committed that way stays.
//
// Inside fn, Run and Once on the same pool are refused ([ErrNested]), and so is any call with the same key on the same
// database. Use [Do] with tx and another key. The outer call is known from the context that fn gets.
//
// On a warm connection Run adds one round trip before fn and one after it: three with one statement in fn, like a bare
// BEGIN, INSERT, COMMIT. A replay costs two.
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

// Once does the work for an event once. It is [Run] without an answer, for consumers of a broker or a webhook, which
// may deliver the same event again. Acknowledge the event after a nil error, whether first is true or not.
//
// first is true if this call committed fn's work. It is false if the event was handled before, and also if this call's
// own commit is found after its connection was lost during COMMIT: use it for counting only.
//
// Request.Payload may be nil: then the key alone identifies the event. An error of [Fail] is an ordinary error here,
// and stores nothing.
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

// work is the caller's function, with its answer encoded.
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
		if more.immediate && m.step != nil {
			return answer{}, m.intentExists(more.cause)
		}
		immediate = immediate || more.immediate
		if try == maxTries {
			return answer{}, unstored("processed: gave up after %d attempts, and nothing was stored: %w", try, more.cause)
		}
		if more.wait {
			if pause(ctx, try) != nil {
				return answer{}, ended(ctx)
			}
		}
	}
}

// pause waits between two attempts, at random, so that transactions that collided do not collide again.
func pause(ctx context.Context, try int) error {
	return backoff.Sleep(ctx, rand.N(backoff.Ceiling(firstPause, maxPause, try)))
}

// attempt is one transaction.
func (m *memory) attempt(ctx context.Context, pool *pgxpool.Pool, immediate bool, fn work) (answer, error) {
	pooled, err := m.acquire(ctx, pool)
	if err != nil {
		return answer{}, err
	}
	conn := pooled.Conn()
	q := &queue{key: m.key, subject: m.subject, immediate: immediate, unique: m.step != nil}
	var tx pgx.Tx
	defer func() { // also when fn panics
		if !q.gate.Close() {
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
	ans, err := fn(m.running(ctx, pool, conn, &q.gate), newRunTx(ctx, tx, q, 0))
	failure := m.failureOf(err)
	if err == nil || failure != nil {
		if cancelled := ended(ctx); cancelled != nil {
			return answer{}, cancelled
		}
		if !q.gate.Close() { // from here on a goroutine that outlives fn gets an error
			return answer{}, m.leftBehindError()
		}
	}
	if failure != nil {
		return m.storeFailure(ctx, conn, began, *failure)
	}
	failed := cmp.Or(again(q.failure()), again(err))
	if failed == nil && err != nil {
		if failed = err; ctx.Err() == nil && q.gate.Close() {
			failed = retryable(conn, err)
		}
	}
	if failed != nil {
		if q.gate.Close() {
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

// open begins the transaction, takes the key's lock and looks for the record, in one round trip. If it returns no
// record and no error, the lock is held.
func (m *memory) open(ctx context.Context, conn *pgx.Conn) (tx pgx.Tx, began time.Time, found *db.ProcessedEventsFindRow, err error) {
	locked := false
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: m.isolation})
	sql, args := m.tryLock(ctx)
	batch.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&locked, &began) })
	m.queueFind(batch, &found)
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
	if conn.IsClosed() { // nothing was done yet: use another connection
		return nil, began, nil, &againError{cause: fmt.Errorf("processed: look up key:%s: %w", m.key.Hash(), err), wait: true}
	}
	if failed := again(err); failed != nil {
		return nil, began, nil, failed
	}
	dropStatements(ctx, conn, err)
	return nil, began, nil, retryable(conn, fmt.Errorf("processed: look up key:%s: %w%s", m.key.Hash(), keyed.Named(err), advice(err)))
}
