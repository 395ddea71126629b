package processed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/hook"
	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/internal/wake"
)

// findOutWithin bounds the lookup after a lost COMMIT. A server that sees the connection break ends its transaction
// within milliseconds. A failover takes longer than any request waits.
const findOutWithin = 5 * time.Second

var errInRecovery = errors.New("the server is in recovery, and its rows may be out of date")

// findOut finds out whether a COMMIT happened whose response was lost. The transaction holds the key's lock until it
// has ended. So once we hold the lock, the record exists now or never will. A lookup without the lock could miss a
// commit that is still running.
func (m *memory) findOut(ctx context.Context, pool *pgxpool.Pool, lost *lostError) (answer, error) {
	within, caller := hook.FindOut(ctx, findOutWithin), ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	for try := 1; ; try++ {
		found, err := m.findUnderLock(ctx, pool)
		switch {
		case err == nil && found != nil:
			wake.Flush(pool, lost.actions...)
			return m.replay(found)
		case err == nil && caller.Err() != nil:
			return answer{}, fmt.Errorf("%w (its commit was cut short: %w)", ended(caller), lost.cause)
		case err == nil:
			return answer{}, unstored("processed: the connection was lost during COMMIT, and nothing was stored (key:%s): %w", m.key.Hash(), lost.cause)
		}
		if sqlstate.Of(err) == sqlstate.LockTimeout || pause(ctx, try) != nil {
			return answer{}, fmt.Errorf("%w (key:%s): %w", ErrAmbiguous, m.key.Hash(), errors.Join(lost.cause, err))
		}
	}
}

func (m *memory) findUnderLock(ctx context.Context, pool *pgxpool.Pool) (found *db.ProcessedEventsFindRow, err error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer pooled.Release()
	deadline, _ := ctx.Deadline()
	// Shorter than the context, whose end would break the connection.
	wait := max(time.Until(deadline)*9/10, time.Millisecond) // 0 means no limit
	recovering := false
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	batch.Queue("select set_config('lock_timeout', $1, true)", fmt.Sprint(wait.Milliseconds()))
	sql, args := m.waitForLock()
	batch.Queue(sql, args...)
	m.queueFind(batch, &found)
	batch.Queue("select pg_is_in_recovery()").QueryRow(func(row pgx.Row) error { return row.Scan(&recovering) })
	batch.Queue("rollback")
	err = pooled.SendBatch(ctx, batch).Close()
	rollback(ctx, pooled.Conn())
	if err == nil && recovering {
		err = errInRecovery
	}
	return found, err
}
