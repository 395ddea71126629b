package dispatcher

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/wake"
)

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
		began, err := q.OutboxQueueHeld(ctx, c.held())
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

func (c *claim) held() db.OutboxQueueHeldParams {
	return db.OutboxQueueHeldParams{ID: c.ID, Attempt: c.Attempt, Worker: c.worker}
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
	rows, err := q.OutboxQueueFinishApplied(ctx, db.OutboxQueueFinishAppliedParams{
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
		began, err := q.OutboxQueueHeld(ctx, c.held())
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
	call := c.call()
	call.Endpoint = nil // there only where the same claim has called it
	outcome := Outcome{
		Call:     call,
		Answer:   Answer{Code: answer.Code, ContentType: answer.ResponseType, Body: answer.Response},
		Refused:  answer.Outcome == outcomeRefused,
		Resolved: answer.Resolved,
	}
	_, err := guard(func() (struct{}, error) { return struct{}{}, c.action.apply(ctx, tx, outcome) })
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
	if endsTransaction(sql) {
		return pgconn.CommandTag{}, errApplyEnds
	}
	return t.Tx.Exec(ctx, sql, args...)
}

// SendBatch refuses a batch with a statement that ends the transaction.
func (t *applyTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	for _, query := range batch.QueuedQueries {
		if endsTransaction(query.SQL) {
			return pgx.FailedBatchResults(batch, errApplyEnds)
		}
	}
	return t.Tx.SendBatch(ctx, batch)
}

// endsTransaction looks at the first words only. It tells those who err before anything is lost; the finishing statement
// finds the rest.
func endsTransaction(sql string) bool {
	words := strings.Fields(strings.ToLower(strings.ReplaceAll(sql[:min(len(sql), 100)], ";", " ")))
	switch words = append(words, "", "", ""); words[0] {
	case "commit", "end", "abort":
		return true
	case "rollback":
		return words[1] != "to" && words[2] != "to"
	case "prepare":
		return words[1] == "transaction"
	}
	return false
}
