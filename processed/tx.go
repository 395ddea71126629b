package processed

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqltext"
)

// errOwned is the error of Commit and Rollback in Run's transaction, and of a statement that begins or ends it.
var errOwned = errors.New("processed: Run owns the transaction: return nil to commit it, or an error to roll it back")

// runTx is the pgx.Tx that Run passes to the function. It knows the request's key and queues intents (keyed.Queue).
type runTx struct {
	guarded.Tx
	tx pgx.Tx // the transaction itself, or a savepoint's
	q  *queue
	//nolint:containedctx // Conn has no context of its own
	ctx  context.Context
	nest int // the number of a nested transaction; 0 for Run's own
}

var (
	_ pgx.Tx      = (*runTx)(nil)
	_ keyed.Queue = (*runTx)(nil)
)

func newRunTx(ctx context.Context, tx pgx.Tx, q *queue, nest int) *runTx {
	t := &runTx{tx: tx, q: q, ctx: ctx, nest: nest}
	t.Tx = guarded.Tx{Inner: tx, Gate: &q.gate, Admit: t.admit}
	return t
}

func (t *runTx) RequestKey() samekey.Key { return t.q.key }

func (t *runTx) RequestSubject() string { return t.q.subject }

func (t *runTx) Enqueue(in keyed.Intent) (uuid.UUID, bool, error) { return t.q.enqueue(in) }

// MustBeNew is part of keyed.MustBeNew.
func (t *runTx) MustBeNew(in keyed.Intent) bool { return t.q.mustBeNew(in) }

func (t *runTx) Wrote(action string) { t.q.wrote(action) }

// spoil keeps Run from committing.
func (t *runTx) spoil(err error) { t.q.fail(err) }

// Begin starts a nested transaction, a savepoint.
func (t *runTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.q.gate.Enter(); err != nil {
		return nil, err
	}
	defer t.q.gate.Exit()
	if err := t.q.flush(ctx, t.tx.Conn()); err != nil {
		return nil, err
	}
	nested, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return newRunTx(t.ctx, nested, t.q, t.q.nest()), nil
}

// Commit releases a nested transaction. In Run's own it returns an error and does nothing.
func (t *runTx) Commit(ctx context.Context) error {
	if err := t.q.gate.Enter(); err != nil {
		return err
	}
	defer t.q.gate.Exit()
	if t.nest == 0 {
		return errOwned
	}
	return t.tx.Commit(ctx)
}

// Rollback rolls back a nested transaction, with the intents queued in it. In Run's own it returns an error and does
// nothing.
func (t *runTx) Rollback(ctx context.Context) error {
	if err := t.q.gate.Enter(); err != nil {
		return err
	}
	defer t.q.gate.Exit()
	if t.nest == 0 {
		return errOwned
	}
	err := t.tx.Rollback(ctx)
	if err == nil {
		t.q.rollback(t.nest)
	}
	return err
}

func (t *runTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := t.Tx.Query(ctx, sql, args...)
	if _, refused := rows.(guarded.RefusedRows); refused {
		return rows, err
	}
	return runRows{rows, t}, err
}

func (t *runTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.Batch(ctx, t.tx, b)
}

func (t *runTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.q.gate.Enter(); err != nil {
		return nil, err
	}
	defer t.q.gate.Exit()
	if sqltext.EndsTransaction(sql) {
		return nil, errOwned
	}
	return t.tx.Prepare(ctx, name, sql)
}

func (t *runTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.q.gate.Enter(); err != nil {
		return 0, err
	}
	defer t.q.gate.Exit()
	return t.tx.CopyFrom(ctx, table, columns, source)
}

// LargeObjects returns those of a closed transaction after Run has ended.
func (t *runTx) LargeObjects() pgx.LargeObjects {
	if err := t.q.gate.Enter(); err != nil {
		batch := &pgx.Batch{}
		batch.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(batch, err).Tx().LargeObjects()
	}
	defer t.q.gate.Exit()
	t.q.setLarge()
	return t.tx.LargeObjects()
}

// Conn returns the connection itself. Statements sent through it cannot be seen, so the queued intents are written
// first.
func (t *runTx) Conn() *pgx.Conn {
	conn := t.tx.Conn()
	if t.q.gate.Enter() == nil {
		defer t.q.gate.Exit()
		t.q.flushAll(t.ctx, conn)
	}
	return conn
}

// runRows are the rows of Run's transaction: their Conn is the transaction's.
type runRows struct {
	pgx.Rows
	tx *runTx
}

func (r runRows) Conn() *pgx.Conn { return r.tx.Conn() }

// admit refuses a statement that would end the transaction, and writes the queued intents before a statement that may
// set a savepoint or roll back to one.
func (t *runTx) admit(ctx context.Context, sql string, args []any) error {
	if sqltext.EndsTransaction(sql) {
		return errOwned
	}
	if !plain(sql, args) {
		return t.q.flush(ctx, t.tx.Conn())
	}
	return nil
}

// plain reports whether the statement certainly has nothing to do with savepoints. For any other statement the queued
// intents are written first, which costs a round trip.
func plain(sql string, args []any) bool {
	for _, arg := range args {
		switch arg.(type) {
		case pgx.NamedArgs, pgx.StrictNamedArgs: // they rewrite arguments only
		case pgx.QueryRewriter:
			return false
		}
	}
	return sqltext.IsPlain(sql)
}
