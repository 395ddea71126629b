// Package guarded is a transaction that application code uses and samekey ends: the one of processed.Run, of
// processed.Do, and of a dispatcher's Apply.
package guarded

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/sqltext"
)

// Tx is a transaction as the application's function sees it.
type Tx struct {
	Inner samekey.Tx
	// Gate lets statements through until the function has returned. Nil lets all through.
	Gate *Gate
	// Admit refuses a statement, or does what has to be done before it.
	Admit func(ctx context.Context, sql string, args []any) error
}

// Refuse returns a Tx.Admit that refuses every text that begins or ends a transaction.
func Refuse(err error) func(ctx context.Context, sql string, args []any) error {
	return func(_ context.Context, sql string, _ []any) error {
		if sqltext.EndsTransaction(sql) {
			return err
		}
		return nil
	}
}

// Batcher is a transaction that takes batches: a pgx.Tx, and not one of database/sql.
type Batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// enter lets the statement begin. After a nil error the caller calls Gate.Exit.
func (t Tx) enter(ctx context.Context, sql string, args []any) error {
	if err := t.Gate.Enter(); err != nil {
		return err
	}
	if err := t.Admit(ctx, sql, args); err != nil {
		t.Gate.Exit()
		return err
	}
	return nil
}

// Exec implements samekey.Tx.
func (t Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.enter(ctx, sql, args); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer t.Gate.Exit()
	return t.Inner.Exec(ctx, sql, args...)
}

// Query implements samekey.Tx.
func (t Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.enter(ctx, sql, args); err != nil {
		return RefusedRows{err}, err
	}
	defer t.Gate.Exit()
	return t.Inner.Query(ctx, sql, args...)
}

// QueryRow implements samekey.Tx.
func (t Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.enter(ctx, sql, args); err != nil {
		return RefusedRows{err}
	}
	defer t.Gate.Exit()
	return t.Inner.QueryRow(ctx, sql, args...)
}

// Batch is SendBatch, for a transaction that takes batches.
func (t Tx) Batch(ctx context.Context, sender Batcher, b *pgx.Batch) pgx.BatchResults {
	if err := t.Gate.Enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.Gate.Exit()
	for _, query := range b.QueuedQueries {
		if err := t.Admit(ctx, query.SQL, query.Arguments); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return sender.SendBatch(ctx, b)
}

// Gate lets statements through until the function has returned.
type Gate struct {
	mu     sync.Mutex
	closed bool
	open   int // running statements
}

// Close lets no further statement begin. It reports whether the transaction is idle: otherwise a goroutine that the
// function left behind is still using the connection.
func (g *Gate) Close() (idle bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.open == 0
}

// Enter lets a statement begin; Exit ends it.
func (g *Gate) Enter() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return pgx.ErrTxClosed
	}
	g.open++
	return nil
}

// Exit ends a statement.
func (g *Gate) Exit() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

// Over reports whether the gate is closed.
func (g *Gate) Over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// RefusedRows are the rows of a statement that was not sent.
type RefusedRows struct{ err error }

// Close implements pgx.Rows.
func (r RefusedRows) Close() {}

// Err implements pgx.Rows.
func (r RefusedRows) Err() error { return r.err }

// CommandTag implements pgx.Rows.
func (r RefusedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// FieldDescriptions implements pgx.Rows.
func (r RefusedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

// Next implements pgx.Rows.
func (r RefusedRows) Next() bool { return false }

// Scan implements pgx.Rows.
func (r RefusedRows) Scan(...any) error { return r.err }

// Values implements pgx.Rows.
func (r RefusedRows) Values() ([]any, error) { return nil, r.err }

// RawValues implements pgx.Rows.
func (r RefusedRows) RawValues() [][]byte { return nil }

// Conn implements pgx.Rows.
func (r RefusedRows) Conn() *pgx.Conn { return nil }

// TypeMap implements pgx.Rows.
func (r RefusedRows) TypeMap() *pgtype.Map { return pgtype.NewMap() }
