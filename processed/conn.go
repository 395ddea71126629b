package processed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/sqlstate"
)

// rollbackWithin bounds a rollback, which the caller's context does not cut short. A connection whose transaction
// cannot be ended is closed.
const rollbackWithin = 5 * time.Second

// acquire takes a connection from the pool.
func (m *memory) acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	within := ctx
	outer := outerCall(ctx, func(c *call) bool { return c.pool == nil })
	if outer != nil {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, nestedWait)
		defer cancel()
	}
	pooled, err := pool.Acquire(within)
	if err == nil {
		return pooled, nil
	}
	stat := pool.Stat()
	if stat.AcquiredConns() == stat.MaxConns() {
		err = fmt.Errorf("all %d connections of the pool are in use: %w", stat.MaxConns(), err)
	}
	switch cancelled := ended(ctx); {
	case outer != nil && errors.Is(err, within.Err()):
		return nil, fmt.Errorf("%w: Run of key:%s in Do of key:%s got no connection, and may be waiting for Do's own: call Do for both: %w",
			ErrNested, m.key.Hash(), outer.key.Hash(), err)
	case cancelled != nil:
		return nil, fmt.Errorf("processed: nothing was stored: acquire a connection: %w", err)
	}
	return nil, unstored("processed: acquire a connection: %w", err)
}

// abandon takes the connection out of the pool and breaks it, which ends its transaction. It does not look at the
// connection's state, because another goroutine is changing it.
func abandon(pooled *pgxpool.Conn) {
	_ = pooled.Hijack().PgConn().Conn().Close()
}

// closeTx makes pgx refuse later use of the transaction's large objects, which the gate cannot see.
func closeTx(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	_ = tx.Rollback(ctx) // if it was committed, the server warns only
}

// rollback ends an open transaction. If that fails pgx closes the connection, and the server rolls back when it
// notices.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' || conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback") // without arguments: the simple protocol, which works in a failed transaction
}

// dropStatements closes a connection whose prepared statements the server does not have any more (26000), so that the
// next attempt gets another connection.
func dropStatements(ctx context.Context, conn *pgx.Conn, err error) {
	if sqlstate.Of(err) == sqlstate.NoStatement {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
		defer cancel()
		_ = conn.Close(ctx)
	}
}
