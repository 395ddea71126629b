package processed

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/hook"
)

// What a transaction looks for and stores beside the function's rows: the record of the request, or a step of an
// operation. The statements for both take the same way through Run's code.

// tryLock takes the lock of the key, or of the operation, and reads when the transaction began.
func (m *memory) tryLock(ctx context.Context) (sql string, args []any) {
	switch {
	case m.step != nil:
		return db.OperationStepsLock, []any{m.key.Scope, m.key.Value, m.step.fence}
	case hook.LockOff(ctx):
		return "select true, now()", nil
	}
	return db.ProcessedEventsTryLock, []any{m.key.Scope, m.key.Value}
}

// waitForLock waits until a transaction whose COMMIT was lost has ended, either way.
func (m *memory) waitForLock() (sql string, args []any) {
	if m.step != nil {
		return db.OperationStepsLock, []any{m.key.Scope, m.key.Value, m.step.fence}
	}
	return db.ProcessedEventsLock, []any{m.key.Scope, m.key.Value}
}

// queueFind looks for what is stored already.
func (m *memory) queueFind(batch *pgx.Batch, found **db.ProcessedEventsFindRow) {
	sql, args := db.ProcessedEventsFind, []any{m.key.Value, m.key.Scope}
	if m.step != nil {
		sql, args = db.OperationStepsFind, append(args, m.step.position, m.step.name)
	}
	batch.Queue(sql, args...).QueryRow(func(row pgx.Row) (err error) {
		*found, err = find(row)
		return err
	})
}

// queueRecord stores the answer. Its statement raises if another attempt has stored one, or if the transaction is not
// the one in which the request began.
func (m *memory) queueRecord(batch *pgx.Batch, began time.Time, ans answer) {
	if m.step != nil {
		queueChecked(batch, db.OperationStepsPut, append(m.stepArgs(ans), began)...)
		return
	}
	queueChecked(batch, db.ProcessedEventsInsert, m.recordArgs(began, ans)...)
}

func (m *memory) recordArgs(began time.Time, ans answer) []any {
	return []any{m.key.Value, m.key.Scope, m.fingerprint.Hash[:], m.fingerprint.Version, began, m.retain.Microseconds(),
		ans.failed, ans.code, ans.header, ans.body, m.subject}
}

// insertFailure stores a failure in a transaction of its own. It affects no row if another attempt has stored an answer.
func (m *memory) insertFailure(ans answer) (sql string, args []any) {
	if m.step != nil {
		return db.OperationStepsPutFailure, m.stepArgs(ans)
	}
	return db.ProcessedEventsInsertFailure, []any{m.key.Value, m.key.Scope, m.fingerprint.Hash[:], m.fingerprint.Version,
		m.retain.Microseconds(), ans.failed, ans.code, ans.header, ans.body, m.subject}
}

func (m *memory) stepArgs(ans answer) []any {
	return []any{m.key.Scope, m.key.Value, m.step.fence, stepLease.Microseconds(), m.step.position, m.step.name,
		ans.failed, ans.code, ans.body}
}

// queueChecked adds a statement whose error tells what happened to the request: see lostRace and replaced.
func queueChecked(batch *pgx.Batch, sql string, args ...any) {
	batch.Queue(sql, args...).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		return ofRecord(err)
	}
}
