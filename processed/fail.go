package processed

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
)

// storeFailure rolls back what the function did and keeps the failure, in one
// round trip. Between the rollback and the insert another first attempt may
// begin and even commit: then its answer is the answer.
func (m *memory) storeFailure(ctx context.Context, conn *pgx.Conn, began time.Time, failure answer) (answer, error) {
	if err := failure.checkSize(); err != nil {
		return answer{}, err
	}
	batch := &pgx.Batch{}
	if conn.PgConn().TxStatus() == 'E' {
		// By itself: statements that are new to the connection are prepared before
		// the batch runs, which a failed transaction refuses (25P02).
		rollback(ctx, conn)
	} else {
		m.insertRecord(batch, db.ProcessedEventsCheckTransaction, []any{began})
		batch.Queue("rollback")
	}
	batch.Queue("begin isolation level read committed")
	inserted := int64(0)
	batch.Queue(db.ProcessedEventsInsertFailure, m.failureArgs(failure)...).Fn = func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		inserted = tag.RowsAffected()
		return err
	}
	var found *db.ProcessedEventsFindRow
	batch.Queue(db.ProcessedEventsFind, m.key.Value, m.key.Scope).QueryRow(func(row pgx.Row) (err error) {
		found, err = find(row)
		return err
	})
	batch.Queue("commit")
	within, cancel := grace(ctx)
	defer cancel()
	err := conn.SendBatch(within, batch).Close()
	switch {
	case err != nil && conn.IsClosed():
		// Harmless in either case: if it was stored it replays, if not the function
		// runs again, and nothing else was written.
		return answer{}, unstored("processed: the connection was lost while failure %d was stored, nothing else was: call again with the same key: %w", failure.statusCode(), err)
	case replaced(err):
		return answer{}, m.replacedError()
	case err != nil:
		dropStatements(ctx, conn, err)
		return answer{}, retryable(conn, fmt.Errorf("processed: store failure %d of key:%s: %w", failure.statusCode(), m.key.Hash(), err))
	case inserted == 1:
		return failure, nil
	case found == nil: // pruned in the same moment
		return answer{}, &againError{cause: fmt.Errorf("processed: the record of key:%s went away", m.key.Hash())}
	}
	return m.replay(found)
}
