package dispatcher

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqltext"
)

// applyTx is the transaction that an Apply or an Attention function gets: outbox.Insert takes the key of the intent's own
// request and the intent's subject from it, writes at once, and notes whom to wake after the commit. It is not the
// function's to end.
//
// It has no gate, unlike the transactions of processed. A statement of a goroutine that the function left behind makes the
// finishing statement fail on a busy connection, or comes after the commit, when pgx refuses it.
type applyTx struct {
	pgx.Tx
	guard   guarded.Tx // of Tx
	of      *claim
	actions []string
}

var _ keyed.Queue = (*applyTx)(nil)

// begun takes the transaction of this try.
func (t *applyTx) begun(tx pgx.Tx) {
	t.Tx, t.guard = tx, guarded.Tx{Inner: tx, Admit: guarded.Refuse(errApplyEnds)}
}

// RequestKey implements keyed.Tx.
func (t *applyTx) RequestKey() samekey.Key {
	return samekey.Key{Scope: t.of.Scope, Value: t.of.IdemKey}
}

// RequestSubject implements keyed.Tx.
func (t *applyTx) RequestSubject() string { return t.of.subject() }

// Enqueue implements keyed.Queue: it queues nothing.
func (t *applyTx) Enqueue(keyed.Intent) (uuid.UUID, bool, error) { return uuid.Nil, false, nil }

// Wrote implements keyed.Queue.
func (t *applyTx) Wrote(action string) { t.actions = append(t.actions, action) }

var errApplyEnds = errors.New("dispatcher: the worker commits this transaction when the function returns, and rolls it back if the function returns an error: return instead")

// Commit returns an error and does nothing.
func (t *applyTx) Commit(context.Context) error { return errApplyEnds }

// Rollback returns an error and does nothing, so that a deferred one is harmless.
func (t *applyTx) Rollback(context.Context) error { return errApplyEnds }

// The rest refuses a statement that ends the transaction.

func (t *applyTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.guard.Exec(ctx, sql, args...)
}

func (t *applyTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.guard.Query(ctx, sql, args...)
}

func (t *applyTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.guard.QueryRow(ctx, sql, args...)
}

func (t *applyTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return t.guard.Batch(ctx, t.Tx, batch)
}

func (t *applyTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if sqltext.EndsTransaction(sql) {
		return nil, errApplyEnds
	}
	return t.Tx.Prepare(ctx, name, sql)
}

// What a function of the application can do to its transaction by a statement that applyTx does not see.
var (
	errEndedFirst = errors.New("dispatcher: before it failed, the function ended its transaction by a statement of its own: what it committed is there, and is written again at the next try")
	errCommitted  = errors.New("dispatcher: the function committed its transaction by a statement of its own")
	errRolledBack = errors.New("dispatcher: the function rolled its transaction back by a statement of its own, and its rows are gone: return an error instead, and use tx.Begin for a part that may fail")
)

// failed adds to a function's error that there is nothing left to roll back.
func (t *applyTx) failed(err error) error {
	if t.Conn().PgConn().TxStatus() == 'I' {
		return errors.Join(err, errEndedFirst)
	}
	return err
}

// notEnded says why the last statement of a function's transaction changed nothing. began is the transaction's id.
func notEnded(ctx context.Context, q *db.Queries, began string) error {
	switch tx, err := q.OutboxQueueApplyEnded(ctx, began); {
	case err != nil:
		return err
	case tx.Committed:
		return errCommitted
	case tx.Ended:
		return errRolledBack
	}
	return errFenced
}

// errFenced means that another worker has taken the intent over, or finished it.
var errFenced = errors.New("dispatcher: the intent was taken over")

// errGoexit is the failure of a function that called runtime.Goexit.
var errGoexit = errors.New("the function ended its goroutine")
