package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqltext"
	"github.com/samekey/samekey/internal/wake"
)

// claim is one claimed intent.
type claim struct {
	db.OutboxQueueClaimRow
	action *action
	worker int32     // the id under which it was claimed; the session may have another one by now
	asked  time.Time // read before the claim was sent: the attempt's deadline counts from here
	visit  visit

	calls   bool       // it leads to a call
	resting settlement // else what becomes of it

	unloaded bool // of an answered intent: it has no payload until its Apply begins
	unmarked bool // leased as unsent, and not marked since: it is not sent

	endpointName string
	endpoint     *storedEndpoint // where the call goes; nil: not to a stored one
	endpointErr  error           // why that is not known
}

// work brings one claim to its settlement. It runs in a goroutine of its own, in a slot of its lane.
func (n *node) work(c *claim) {
	settled := false
	defer func() {
		if !settled { // runtime.Goexit, as by t.FailNow in a user's test, runs deferred functions and nothing else
			n.settle(c, c.action.decide(&c.OutboxQueueClaimRow, conclude(Outcome{}, errGoexitCall, c.Status == statusUnknown)))
		}
	}()
	s := n.deliver(c)
	settled = true
	n.settle(c, s)
}

// deliver prepares a claim's call, makes it, and decides what its outcome means.
func (n *node) deliver(c *claim) settlement {
	ctx, cancel := c.context(n.calls)
	defer cancel()
	call, s := n.prepare(ctx, c)
	if call == nil {
		return s
	}
	outcome, took := n.call(ctx, c, call)
	s = c.action.decide(&c.OutboxQueueClaimRow, outcome)
	s.took = took
	n.judge(c, s.answer.Code, outcome)
	n.stopIfGone(c, outcome)
	return s
}

func (n *node) isStopping() bool {
	select {
	case <-n.stopping:
		return true
	default:
		return false
	}
}

// settle hands a settlement to the settler, and goes on with the Apply of what was answered once that is written.
func (n *node) settle(c *claim, s settlement) {
	if limit := max(c.action.policy.ResponseCap, 0); len(s.answer.Body) > limit {
		s.answer.Body = s.answer.Body[:limit]
	}
	n.report(c, s)
	unapplied := s.status == statusAnswered && s.keep // its Apply has not run yet
	s.keep = s.keep && (!unapplied || n.applier.promise(c.action))
	ended := func(settled bool) {
		switch {
		case unapplied && settled && s.keep:
			n.applier.answered(c)
			return
		case unapplied && settled: // counted when it is claimed again
			n.applier.written(c.action)
			n.open.Done()
			return
		case unapplied && s.keep:
			n.applier.unpromise(c.action)
		}
		n.count(s, settled)
	}
	r := result{claim: c, settlement: s, settled: ended}
	select {
	case <-n.abandoned: // first, since a buffer that nobody reads would take it too
		ended(false)
		return
	default:
	}
	select {
	case n.results <- r:
	case <-n.abandoned:
		ended(false)
	}
}

// applyOnce runs the action's Apply in the transaction that finishes the intent, see applier. Locks are taken in the order in which the application's own transactions take them,
// which write their rows first and their intents last: the rows of Apply, then the ordering key, then the queue's row,
// whose fence decides whether any of it is committed.
//
// An Apply can end the transaction by a statement of its own, which applyTx refuses where it sees it. What it does not
// see ("insert ..; commit" in one text, or past it by tx.Conn) the finishing statement does, by the transaction's id:
//
//	rollback; or rollback, begin     the rows are gone: nothing is finished, and Apply is tried again
//	commit; or commit, begin         the rows are there: to try again would write them twice, so the intent is finished
//	                                 now, in a transaction of its own, with an error in the log. After a crash between
//	                                 the two Apply runs again: that is what the Apply gave up
func (n *node) applyOnce(ctx context.Context, c *claim) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.action.policy.Timeout)
	defer cancel()
	var promoted []string
	var answer db.OutboxHistoryAnswerRow
	var committed bool
	written := &applyTx{key: samekey.Key{Scope: c.Scope, Value: c.IdemKey}}
	err = pgx.BeginTxFunc(ctx, n.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := n.q.WithTx(tx)
		written.Tx = tx
		began, err := q.OutboxQueueCheckClaim(ctx, c.held())
		if err != nil {
			return fenced(err)
		}
		if answer, err = q.OutboxHistoryAnswer(ctx, c.ID); err != nil {
			return err
		}
		touch(tx.Conn())
		if err := n.callApply(ctx, written, c, answer); err != nil {
			if tx.Conn().PgConn().TxStatus() == 'I' { // it failed, and there is nothing left to roll back
				err = errors.Join(err, errApplyEndedFirst)
			}
			return err
		}
		promoted, err = n.finishApplied(ctx, q, c, answer, began)
		if committed = errors.Is(err, errApplyCommitted); committed {
			return nil // what the Apply wrote after its commit is its own as well
		}
		return err
	})
	if err == nil && committed {
		n.log.Error("dispatcher: Apply committed its transaction itself; its rows and the end of the intent are not one: take COMMIT out of it", c.attrs()...)
		promoted, err = n.finishCommitted(ctx, c, answer)
	}
	if err == nil {
		n.wake(promoted...)
		wake.Flush(n.pool, written.actions...)
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

func (n *node) finishApplied(ctx context.Context, q *db.Queries, c *claim, answer db.OutboxHistoryAnswerRow, began string) (promoted []string, err error) {
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
func (n *node) finishCommitted(ctx context.Context, c *claim, answer db.OutboxHistoryAnswerRow) (promoted []string, err error) {
	err = pgx.BeginTxFunc(ctx, n.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := n.q.WithTx(tx)
		began, err := q.OutboxQueueCheckClaim(ctx, c.held())
		if err == nil {
			promoted, err = n.finishApplied(ctx, q, c, answer, began)
		}
		return fenced(err)
	})
	return promoted, err
}

func (n *node) callApply(ctx context.Context, tx *applyTx, c *claim, answer db.OutboxHistoryAnswerRow) error {
	if c.action.apply == nil {
		return nil // resolved by a person, or registered without its Apply in this release
	}
	_, err := guard(func() (struct{}, error) { return struct{}{}, c.action.apply(ctx, tx, settledOf(c, answer)) })
	return err
}

// applyTx is the transaction that an Apply gets: outbox.Insert takes the key of the intent's own request from it, writes
// at once, and notes whom to wake after the commit. It is not the Apply's to end.
type applyTx struct {
	pgx.Tx
	key     samekey.Key
	actions []string
}

var _ keyed.Queue = (*applyTx)(nil)

// RequestKey implements keyed.Tx.
func (t *applyTx) RequestKey() samekey.Key { return t.key }

// Enqueue implements keyed.Queue: it queues nothing.
func (t *applyTx) Enqueue(keyed.Intent) (uuid.UUID, bool, error) { return uuid.Nil, false, nil }

// Wrote implements keyed.Queue.
func (t *applyTx) Wrote(action string) { t.actions = append(t.actions, action) }

var errApplyEnds = errors.New("dispatcher: the transaction of an Apply is committed with the end of its intent, or rolled back by an error: return instead")

// Commit returns an error and does nothing.
func (t *applyTx) Commit(context.Context) error { return errApplyEnds }

// Rollback returns an error and does nothing, so that a deferred one is harmless.
func (t *applyTx) Rollback(context.Context) error { return errApplyEnds }

// Exec refuses a statement that ends the transaction.
func (t *applyTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if sqltext.EndsTransaction(sql) {
		return pgconn.CommandTag{}, errApplyEnds
	}
	return t.Tx.Exec(ctx, sql, args...)
}

// SendBatch refuses a batch with a statement that ends the transaction.
func (t *applyTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	for _, query := range batch.QueuedQueries {
		if sqltext.EndsTransaction(query.SQL) {
			return pgx.FailedBatchResults(batch, errApplyEnds)
		}
	}
	return t.Tx.SendBatch(ctx, batch)
}
