package processed

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// stepLease is how long an operation is left to the call that works on it after each statement of that call. Between
// two statements only Go code runs. A transaction holds a row lock besides, and a vendor's call adds its Timeout.
const stepLease = 10 * time.Second

// Steps does a request once that takes several transactions: an operation. fn divides the work into named steps. [Step]
// is a transaction of the database, and [Call] is a call of a vendor. The result of each finished step is stored with
// what the step wrote. If the process dies, the next call with the same key resumes the operation: fn runs again, the
// finished steps return their stored results, and the first unfinished step is done.
//
// The answer of fn completes the operation. It is stored under the key, and later calls return it with
// Result.Deduplicated, as in [Run].
//
// If a vendor's answer is not needed within the operation, use [Run] and an intent: it is one transaction, and the
// worker retries the call. docs/steps.md compares the two, and a workflow engine.
//
// fn must take the same way whenever it runs with the same request: its steps and their order may depend on the request
// and on the results of earlier steps, and on nothing else. Do nothing outside the steps that must not be repeated.
// Steps run one after another. A new release that changes the steps of an operation in progress gets a
// [*StepsChangedError]; docs/steps.md tells how to change them.
//
// Errors:
//
//   - If fn returns an error, Steps returns it. The finished steps stay, and the next call with the key resumes. If no
//     step was stored or may have been sent, nothing is left, and the key can be used again.
//   - An error of [Fail] completes the operation: it is stored as the answer. What finished steps did stays; undo it in
//     further steps before you return the failure (compensation).
//   - While another call works on the operation, the error is [ErrInFlight]. [RetryAfter] tells when to call again: the
//     other call's lease expires by then, if its process is dead. The lease is 10 seconds after the last statement, and
//     the call's Timeout longer while a vendor is called.
//   - A call that is stopped for longer than its lease (a paused machine) can lose the operation to another call. Its
//     next write fails with [ErrInFlight], and nothing of it is stored.
//   - The same key with another Payload is [ErrConflict], as in Run.
//   - If a step fails and fn returns an answer or a failure nevertheless, the operation stays in progress, and the error
//     names the step.
//
// Request.Retain counts from the completion. An operation in progress is never pruned: see [Prune].
//
// Steps adds a round trip to the start and one to the end. A step costs two besides the function's own statements, one
// for the beginning and one for the commit; a call costs two, one of them before the vendor is called.
func Steps[T any](ctx context.Context, pool *pgxpool.Pool, req Request, fn func(ctx context.Context, op *Operation) (T, error)) (Result[T], error) {
	var value T
	m, err := req.checked(true)
	if err != nil {
		return Result[T]{}, err
	}
	ans, err := m.steps(ctx, pool, func(ctx context.Context, op *Operation) (ans answer, err error) {
		if value, err = fn(ctx, op); err != nil {
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

func (m *memory) steps(ctx context.Context, pool *pgxpool.Pool, fn func(context.Context, *Operation) (answer, error)) (answer, error) {
	if err := m.checkNested(ctx, pool); err != nil {
		return answer{}, err
	}
	op, found, err := m.start(ctx, pool)
	if err != nil {
		return answer{}, err
	}
	if found != nil {
		return m.replay(found)
	}
	completed := false
	defer func() { // also when fn panics
		if idle := op.gate.Close(); idle && !completed { // otherwise a goroutine is in a step: the lease has to expire
			op.release(ctx)
		}
	}()
	ans, err := fn(m.running(ctx, betweenSteps, nil, &op.gate), op)
	if failure := m.failureOf(err); failure != nil {
		ans, err = *failure, failure.checkSize()
	}
	if err != nil {
		return answer{}, err
	}
	op.gate.Close()
	if err := op.checkEnd(); err != nil {
		return answer{}, err
	}
	ans, err = op.complete(ctx, ans)
	completed = err == nil
	return ans, err
}

// start starts the operation or takes it over. It returns the record instead if the request was done before.
func (m *memory) start(ctx context.Context, pool *pgxpool.Pool) (*Operation, *db.ProcessedEventsFindRow, error) {
	op := &Operation{m: m, pool: pool, fence: rand.Int64()}
	for try := 1; ; try++ {
		var begun db.OperationsStartRow
		var found *db.ProcessedEventsFindRow
		err := m.persist(ctx, pool, func(batch *pgx.Batch) {
			batch.Queue(db.OperationsStart, m.key.Scope, m.key.Value, m.fingerprint.Hash[:], m.fingerprint.Version,
				m.retain.Microseconds(), m.subject, op.fence, stepLease.Microseconds()).
				QueryRow(func(row pgx.Row) error { return row.Scan(&begun.Outcome, &begun.RetryUs) })
			m.queueFind(batch, &found)
			op.queueStored(batch)
		})
		switch {
		case err != nil:
			return nil, nil, err
		case begun.Outcome == "mine":
			return op, nil, nil
		case begun.Outcome == "held":
			return nil, nil, m.held(ctx, time.Duration(begun.RetryUs)*time.Microsecond)
		case found != nil && !found.InProgress:
			return nil, found, nil
		case found != nil:
			if err := m.compare(found); err != nil {
				return nil, nil, err
			}
			// The same request under an earlier version of the fingerprint: take that one.
			copy(m.fingerprint.Hash[:], found.PayloadHash)
			m.fingerprint.Version = found.HashVersion
		}
		if try == maxTries { // the record comes and goes
			return nil, nil, m.held(ctx, 0)
		}
	}
}

// complete stores the answer. If another call has completed the operation, that call's answer counts; and if this call
// has, and lost the response, its own.
func (op *Operation) complete(ctx context.Context, ans answer) (answer, error) {
	m := op.m
	err := m.persist(ctx, op.pool, func(batch *pgx.Batch) {
		batch.Queue(db.OperationsComplete, m.key.Scope, m.key.Value, op.fence, m.retain.Microseconds(), ans.failed, ans.code, ans.header, ans.body)
	})
	if err == nil {
		return ans, nil
	}
	if !errors.Is(err, ErrInFlight) {
		return answer{}, err
	}
	var found *db.ProcessedEventsFindRow
	if lookUp := m.persist(ctx, op.pool, func(batch *pgx.Batch) { m.queueFind(batch, &found) }); lookUp != nil || found == nil {
		return answer{}, err
	}
	return m.replay(found)
}

// release lets the next call resume at once. If it fails, the lease expires.
func (op *Operation) release(ctx context.Context) {
	_ = op.m.transact(context.WithoutCancel(ctx), op.pool, func(batch *pgx.Batch) {
		batch.Queue(db.OperationsRelease, op.m.key.Scope, op.m.key.Value, op.fence)
	})
}

// persist runs statements in a transaction of their own, in one round trip, and again if the connection is lost or the
// server asks for it: they change nothing the second time.
func (m *memory) persist(ctx context.Context, pool *pgxpool.Pool, queue func(*pgx.Batch)) error {
	for try := 1; ; try++ {
		err := m.transact(ctx, pool, queue)
		if err == nil || try == maxTries || errors.Is(err, ErrInFlight) || !SafeToRetry(err) || pause(ctx, try) != nil {
			return err
		}
	}
}

// transact is one attempt of persist.
func (m *memory) transact(ctx context.Context, pool *pgxpool.Pool, queue func(*pgx.Batch)) error {
	ctx, cancel := grace(ctx)
	defer cancel()
	pooled, err := m.acquire(ctx, pool)
	if err != nil {
		return err
	}
	defer pooled.Release()
	conn := pooled.Conn()
	batch := &pgx.Batch{}
	batch.Queue("begin isolation level read committed")
	queue(batch)
	batch.Queue("commit")
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		rollback(ctx, conn)
		dropStatements(ctx, conn, err)
		if sqlstate.Of(err) == sqlstate.OperationLost {
			return m.takenOver()
		}
		return retryable(conn, m.operationError(err))
	}
	return nil
}
