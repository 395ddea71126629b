package processed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

const (
	// commitGrace is how long a commit continues after the caller's context has ended. To cut it short would leave its
	// outcome unknown.
	commitGrace = 10 * time.Second

	// deadlineSlack is how much before the caller's deadline the server may give up waiting, since its clock ticks in
	// steps.
	deadlineSlack = 20 * time.Millisecond
)

// commit writes the record and the queued intents, and commits, in one round trip. Each statement raises on a conflict:
// otherwise COMMIT would keep the rows of an attempt that lost.
//
// What the batch can meet:
//
//   - The transaction is not the one that open began, because a text such as "..; rollback; begin" replaced it: the
//     record's statement raises, and the rest of the batch, with the COMMIT, is not executed.
//   - Another attempt's record exists: the record's statement raises.
//   - Another transaction holds an ordering key: the batch waits as long as the caller does. The server gives up
//     (lock_timeout) at the caller's deadline, before COMMIT is executed, so nothing was stored for certain. Cutting
//     the connection instead would leave that open. If the caller is cancelled without a deadline, the batch ends
//     within commitGrace.
//   - The COMMIT itself is never cut short: only its response tells the outcome.
func (m *memory) commit(ctx context.Context, conn *pgx.Conn, q *queue, began time.Time, ans answer) (actions []string, err error) {
	if err := m.committable(conn, q); err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	deadline, bounded := ctx.Deadline()
	if bounded = bounded && q.waits(); bounded {
		batch.Queue(db.ProcessedEventsSetLockTimeout, max(time.Until(deadline).Milliseconds(), 1))
	}
	// The record comes before the intents: an attempt that lost must learn it from the record, and not from an intent
	// whose payload names a row of the losing attempt.
	m.queueRecord(batch, began, ans)
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
	if committed != "COMMIT" { // an aborted transaction answers ROLLBACK, and no error
		return nil, m.named(ErrAborted)
	}
	return actions, nil
}

// committable checks the state in which the function left the transaction.
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

// unlessEnded returns the function's error. It returns ErrAborted instead if the work would be done again although the
// function ended its transaction: what it committed would exist twice. In a failed transaction that cannot be asked.
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
		err = more.cause // do not try again
	}
	return fmt.Errorf("%w: %w", ended, err)
}

// commitError says what is certain after the last batch failed. A server's error on a live connection means that the
// transaction is rolled back, or will be. The exception is an error that says the server went away: behind a pooler the
// client's connection survives that.
func (m *memory) commitError(ctx context.Context, conn *pgx.Conn, err error, actions []string) error {
	if pgconn.SafeToRetry(err) {
		return unstored("processed: the connection was lost before the commit, nothing was stored (key:%s): %w", m.key.Hash(), err)
	}
	if conn.IsClosed() || sqlstate.Lost(sqlstate.Of(err)) { // perhaps only the pooler's connection to the server
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

// grace returns a context that outlives ctx by commitGrace.
func grace(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(commitGrace, cancel)
		context.AfterFunc(within, func() { timer.Stop() })
	})
	return within, func() { stop(); cancel() }
}
