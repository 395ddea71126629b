package processed

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey"
)

// guarded is a transaction as the function sees it: it takes statements until the function has returned, and none that
// begins or ends the transaction.
type guarded struct {
	inner samekey.Tx
	gate  *gate
	// admit refuses a statement, or does what has to be done before it.
	admit func(ctx context.Context, sql string, args []any) error
}

// batcher is a transaction that takes batches: a pgx.Tx, and not one of database/sql.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// enter lets the statement begin. After a nil error the caller calls gate.exit.
func (g guarded) enter(ctx context.Context, sql string, args []any) error {
	if err := g.gate.enter(); err != nil {
		return err
	}
	if err := g.admit(ctx, sql, args); err != nil {
		g.gate.exit()
		return err
	}
	return nil
}

func (g guarded) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := g.enter(ctx, sql, args); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer g.gate.exit()
	return g.inner.Exec(ctx, sql, args...)
}

func (g guarded) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := g.enter(ctx, sql, args); err != nil {
		return refusedRows{err: err}, err
	}
	defer g.gate.exit()
	return g.inner.Query(ctx, sql, args...)
}

func (g guarded) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := g.enter(ctx, sql, args); err != nil {
		return refusedRows{err: err}
	}
	defer g.gate.exit()
	return g.inner.QueryRow(ctx, sql, args...)
}

// sendBatch is SendBatch, for a transaction that takes batches.
func (g guarded) sendBatch(ctx context.Context, sender batcher, b *pgx.Batch) pgx.BatchResults {
	if err := g.gate.enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer g.gate.exit()
	for _, query := range b.QueuedQueries {
		if err := g.admit(ctx, query.SQL, query.Arguments); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return sender.SendBatch(ctx, b)
}

// gate lets statements through until the function has returned.
type gate struct {
	mu     sync.Mutex
	closed bool
	open   int // running statements
}

// close lets no further statement begin. It reports whether the transaction is idle: otherwise a goroutine that fn
// left behind is still using the connection.
func (g *gate) close() (idle bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.open == 0
}

// enter lets a statement begin; exit ends it.
func (g *gate) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return pgx.ErrTxClosed
	}
	g.open++
	return nil
}

func (g *gate) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

func (g *gate) over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// refusedRows are the rows of a statement that was not sent.
type refusedRows struct{ err error }

func (r refusedRows) Close()                                       {}
func (r refusedRows) Err() error                                   { return r.err }
func (r refusedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r refusedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r refusedRows) Next() bool                                   { return false }
func (r refusedRows) Scan(...any) error                            { return r.err }
func (r refusedRows) Values() ([]any, error)                       { return nil, r.err }
func (r refusedRows) RawValues() [][]byte                          { return nil }
func (r refusedRows) Conn() *pgx.Conn                              { return nil }
func (r refusedRows) TypeMap() *pgtype.Map                         { return pgtype.NewMap() }
