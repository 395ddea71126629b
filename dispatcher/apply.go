package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/sqltext"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/outbox"
)

// applyRunner runs single Applies.
type applyRunner struct {
	core    *core
	reports *reports
	settle  func(*claim, settlement) (written bool) // of an Apply that failed
	poke    func(actions ...string)

	announcer *announcer
}

// apply runs the Apply of an answered intent, from loading its payload to finishing it. It returns the intent's
// outcome.
func (r *applyRunner) apply(ctx context.Context, c *claim) (outcome string, err error) {
	if err := r.loadForApply(ctx, c); err != nil {
		return "", err
	}
	r.renewForApply(ctx, c)
	return r.applyOnce(ctx, c)
}

// loadForApply loads what the claim of an answered intent left out.
func (r *applyRunner) loadForApply(ctx context.Context, c *claim) error {
	if !c.unloaded {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.action.policy.Timeout)
	defer cancel()
	rows, err := r.core.q.OutboxLoad(ctx, []uuid.UUID{c.ID})
	if err == nil && len(rows) != 1 {
		err = errors.New("the intent is not there")
	}
	if err != nil {
		return fmt.Errorf("load the intent for its Apply: %w", err)
	}
	c.loaded(rows[0])
	return nil
}

// renewForApply renews the lease of a call's claim if less of it is left than the Apply may take. If that fails, the
// fence decides.
func (r *applyRunner) renewForApply(ctx context.Context, c *claim) {
	p := c.action.policy
	if time.Until(c.asked.Add(p.Lease)) > p.Timeout+minSettle {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := r.core.q.OutboxQueueRenew(ctx, db.OutboxQueueRenewParams{Worker: c.worker, Lease: p.Lease, Ids: []uuid.UUID{c.ID}, Attempts: []int32{c.Attempt}})
	if err != nil {
		r.core.log.WarnContext(ctx, "dispatcher: a lease could not be renewed for an Apply", append(c.attrs(), slog.String("error", errorText(err)))...)
	}
}

// errGaveWay ends an Apply that takes long while others have no slot.
var errGaveWay = errors.New("it took long while the Applies of other actions had no connection: rolled back, and tried again")

// applied ends a claim after its Apply.
func (r *applyRunner) applied(c *claim, failures int, outcome string, err error) {
	switch {
	case err == nil:
		r.reports.end(outcome, true)
	case errors.Is(err, errFenced):
		r.reports.end(statusAnswered, false)
	default:
		level, message := slog.LevelError, "dispatcher: Apply failed; the vendor has answered and is not called again"
		if errors.Is(err, errGaveWay) {
			level, message = slog.LevelWarn, "dispatcher: an Apply takes long and others have no connection; it is rolled back and tried again"
		}
		r.core.log.Log(r.core.calls, level, message, append(c.attrs(), slog.Int("failures", failures+1), slog.String("error", causeOf(c, err)))...)
		s := c.action.applyFailed(&c.OutboxQueueClaimRow, failures, err)
		r.reports.report(r.core.calls, c, s)
		r.reports.end(s.status, r.settle(c, s))
	}
}

// applyFailed leaves an answered intent to be applied again, for as long as it takes.
func (a *action) applyFailed(row *db.OutboxQueueClaimRow, failures int, err error) settlement {
	return settlement{event: "apply", status: statusAnswered, outcome: outcomeRetry, attemptsUsed: failures + 1,
		delay: a.policy.delay(failures + 1), response: Response{Code: "apply_failed"}, err: redact.WithoutURLs(err)}
}

// applyOnce runs the action's Apply in the transaction that finishes the intent. It takes locks in the order in which
// the application's own transactions take them, which write their rows first and their intents last: the rows of Apply,
// then the ordering key, then the queue's row, whose fence decides whether any of it is committed.
//
// An Apply can end the transaction by a statement of its own. applyTx refuses the statements that it sees. The others
// ("insert ..; commit" in one text, or by tx.Conn) are found by the finishing statement, which compares the
// transaction's id:
//
//	rollback; or rollback, begin     the rows are gone: nothing is finished, and Apply is tried again
//	commit; or commit, begin         the rows are there: another try would write them twice, so the intent is finished now, in
//	                                 a transaction of its own, with an error in the log. After a crash between the two, Apply
//	                                 runs again: that is what the Apply gave up
func (r *applyRunner) applyOnce(ctx context.Context, c *claim) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.action.policy.Timeout)
	defer cancel()
	var promoted []string
	var answer db.OutboxHistoryAnswerRow
	var committed bool
	written := &applyTx{of: c}
	err = pgx.BeginTxFunc(ctx, r.core.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := r.core.q.WithTx(tx)
		written.begun(tx)
		began, err := q.OutboxQueueCheckClaim(ctx, c.held())
		if err != nil {
			return fenced(err)
		}
		if answer, err = q.OutboxHistoryAnswer(ctx, c.ID); err != nil {
			return err
		}
		c.reference = answer.Reference
		touch(tx.Conn())
		if err := r.callApply(ctx, written, c, answer); err != nil {
			if tx.Conn().PgConn().TxStatus() == 'I' { // it failed, and there is nothing left to roll back
				err = errors.Join(err, errApplyEndedFirst)
			}
			return err
		}
		promoted, err = r.finishApplied(ctx, q, c, answer, began)
		if committed = errors.Is(err, errApplyCommitted); committed {
			return nil // what the Apply wrote after its commit is its own as well
		}
		return err
	})
	if err == nil && committed {
		r.core.log.Error("dispatcher: Apply committed its transaction itself; its rows and the end of the intent are not one: take COMMIT out of it", c.attrs()...)
		promoted, err = r.finishCommitted(ctx, c, answer)
	}
	if err == nil {
		r.announcer.settled(c, answer.Outcome)
		r.poke(promoted...)
		wake.Flush(r.core.pool, written.actions...)
	}
	return answer.Outcome, err
}

func (c *claim) held() db.OutboxQueueCheckClaimParams {
	return db.OutboxQueueCheckClaimParams{ID: c.ID, Attempt: c.Attempt, Worker: c.worker}
}

var (
	errApplyEndedFirst = errors.New("dispatcher: before it failed, Apply ended its transaction by a statement of its own: what it committed is there, and is written again at the next try")
	errApplyCommitted  = errors.New("dispatcher: Apply committed its transaction by a statement of its own")
	errApplyRolledBack = errors.New("dispatcher: Apply rolled its transaction back by a statement of its own, and its rows are gone: return an error instead, and use tx.Begin for a part that may fail")
)

func (r *applyRunner) finishApplied(ctx context.Context, q *db.Queries, c *claim, answer db.OutboxHistoryAnswerRow, began string) (promoted []string, err error) {
	var keys []string
	if c.OrderingKey != nil {
		keys = []string{*c.OrderingKey}
		if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
			return nil, err
		}
	}
	rows, err := q.OutboxQueueFinish(ctx, db.OutboxQueueFinishParams{
		ID: c.ID, Attempt: c.Attempt, Worker: c.worker, Began: began, Outcome: answer.Outcome, Code: answer.Code})
	if err != nil {
		return nil, err
	}
	if rows != 1 {
		return nil, notFinished(ctx, q, began)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return q.OutboxQueuePromote(ctx, keys)
}

// notFinished says why nothing was finished.
func notFinished(ctx context.Context, q *db.Queries, began string) error {
	switch apply, err := q.OutboxQueueApplyEnded(ctx, began); {
	case err != nil:
		return err
	case apply.Committed:
		return errApplyCommitted
	case apply.Ended:
		return errApplyRolledBack
	}
	return errFenced
}

// finishCommitted finishes the intent of an Apply that committed its own transaction.
func (r *applyRunner) finishCommitted(ctx context.Context, c *claim, answer db.OutboxHistoryAnswerRow) (promoted []string, err error) {
	err = pgx.BeginTxFunc(ctx, r.core.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := r.core.q.WithTx(tx)
		began, err := q.OutboxQueueCheckClaim(ctx, c.held())
		if err == nil {
			promoted, err = r.finishApplied(ctx, q, c, answer, began)
		}
		return fenced(err)
	})
	return promoted, err
}

func (r *applyRunner) callApply(ctx context.Context, tx *applyTx, c *claim, answer db.OutboxHistoryAnswerRow) error {
	if c.action.apply == nil {
		return nil // resolved by a person, or registered without its Apply in this release
	}
	_, err := guard(func() (struct{}, error) { return struct{}{}, c.action.apply(ctx, tx, settledOf(c, answer)) })
	return err
}

// applyTx is the transaction that an Apply gets: outbox.Insert takes the key of the intent's own request and the
// intent's subject from it, writes at once, and notes whom to wake after the commit. It is not the Apply's to end.
//
// It has no gate, unlike the transactions of processed. A statement of a goroutine that the Apply left behind makes the
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

var errApplyEnds = errors.New("dispatcher: the transaction of an Apply is committed with the end of its intent, or rolled back by an error: return instead")

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

// errFenced means that another worker has taken the intent over, or finished it.
var errFenced = errors.New("dispatcher: the intent was taken over")

func fenced(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errFenced
	}
	return err
}

// settledOf is what the Apply of a claim is told.
func settledOf(c *claim, last db.OutboxHistoryAnswerRow) Settled {
	s := Settled{
		Call: c.call(), Status: outbox.Status(last.Outcome), Resolved: last.Resolved,
		Response: Response{Code: last.Code, ContentType: last.ResponseType, Body: last.Response},
	}
	s.Endpoint = nil // it was read only if the same claim made the call
	return s
}
