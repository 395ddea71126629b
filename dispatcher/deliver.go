package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

// claim is one claimed intent.
type claim struct {
	db.OutboxQueueClaimRow
	action *action
	asked  time.Time // read before the claim was sent: the attempt's deadline counts from here
}

func (c *claim) call() Call {
	call := Call{
		ID: c.ID, DeliveryKey: c.DeliveryKey, Key: samekey.Key{Scope: c.Scope, Value: c.IdemKey},
		Action: c.action.name, Part: c.Part, Attempt: int(c.Attempt), Payload: c.Payload, ContentType: c.ContentType,
		Headers: map[string]string{}, CreatedAt: c.CreatedAt,
	}
	if c.TraceContext != nil {
		call.TraceContext = *c.TraceContext
	}
	// The column holds an object; a value that is no string was put there by hand, and is left out.
	var headers map[string]any
	_ = json.Unmarshal(c.Headers, &headers)
	for name, value := range headers {
		if text, ok := value.(string); ok {
			call.Headers[name] = text
		}
	}
	return call
}

// work brings one claim to its settlement. It runs in a goroutine of its own, in a slot of its lane, and holds no
// connection while the vendor is called.
func (n *node) work(c *claim) {
	switch c.Status {
	case statusAnswered:
		n.apply(c, int(c.Spent))
	case statusUnknown:
		n.settle(c, n.lookUp(c))
	default:
		if s, send := c.action.beforeSend(&c.OutboxQueueClaimRow); !send {
			n.settle(c, s)
			return
		}
		select {
		case <-n.stopping:
			n.settle(c, c.action.givenBack(&c.OutboxQueueClaimRow))
		default:
			n.settle(c, n.attempt(c))
		}
	}
}

func (n *node) attempt(c *claim) settlement {
	ctx, cancel := c.context(n.calls)
	defer cancel()
	if ctx.Err() != nil {
		return c.action.givenBack(&c.OutboxQueueClaimRow) // the claim alone took as long as the attempt may
	}
	call, began := c.call(), time.Now()
	answer, err := guard(func() (Answer, error) { return c.action.handle(ctx, &call) })
	s := c.action.afterCall(&c.OutboxQueueClaimRow, answer, err)
	s.took = time.Since(began)
	return s
}

func (n *node) lookUp(c *claim) settlement {
	if c.action.lookup == nil {
		return c.action.noLookup(&c.OutboxQueueClaimRow)
	}
	ctx, cancel := c.context(n.calls)
	defer cancel()
	call, began := c.call(), time.Now()
	finding, err := guard(func() (Finding, error) { return c.action.lookup(ctx, &call) })
	s := c.action.afterLookup(&c.OutboxQueueClaimRow, finding, err)
	s.took = time.Since(began)
	return s
}

// context is the attempt's: it ends Timeout after the moment before the claim was sent, however long the claim took.
func (c *claim) context(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(parent, c.asked.Add(c.action.policy.Timeout))
}

// settle hands a settlement to the settler, and goes on with the Apply of what was answered once that is written.
func (n *node) settle(c *claim, s settlement) {
	if limit := max(c.action.policy.ResponseCap, 0); len(s.answer.Body) > limit {
		s.answer.Body = s.answer.Body[:limit]
	}
	n.report(c, s)
	r := result{claim: c, settlement: s, settled: func(settled bool) {
		if settled && s.status == statusAnswered && s.keep {
			n.applyLater(c)
			return
		}
		n.count(s, settled)
	}}
	select {
	case <-n.abandoned: // first, since a buffer that nobody reads would take it too
		n.count(s, false)
		return
	default:
	}
	select {
	case n.results <- r:
	case <-n.abandoned:
		n.count(s, false)
	}
}

// applyLater applies an answer that was just written, under the lease that its attempt kept.
func (n *node) applyLater(c *claim) {
	go func() {
		n.applySlots <- struct{}{}
		defer func() { <-n.applySlots }()
		n.apply(c, 0)
	}()
}

// apply runs the action's Apply in the transaction that finishes the intent. The row is locked first, fenced, so that
// nobody takes it over meanwhile; it is gone when the transaction commits. Where it fails, the answer stays, and apply
// is tried again.
func (n *node) apply(c *claim, spent int) {
	outcome, err := n.applyOnce(c)
	switch {
	case errors.Is(err, errFenced):
		n.count(settlement{status: statusAnswered}, false)
	case err != nil:
		n.log.Error("dispatcher: Apply failed; the vendor has answered and is not called again", append(c.attrs(),
			slog.Int("failures", spent+1))...)
		n.settle(c, c.action.applyFailed(&c.OutboxQueueClaimRow, spent, err))
	default:
		n.count(settlement{status: outcome, outcome: outcome}, true)
	}
}

func (n *node) applyOnce(c *claim) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(n.calls, c.action.policy.Timeout)
	defer cancel()
	var promoted []string
	err = pgx.BeginTxFunc(ctx, n.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		q := n.q.WithTx(tx)
		var keys []string
		if c.OrderingKey != nil {
			keys = []string{*c.OrderingKey}
			if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
				return err
			}
		}
		fence := db.OutboxQueueLockHeldParams{ID: c.ID, Attempt: c.Attempt, Worker: n.session.id}
		if _, err := q.OutboxQueueLockHeld(ctx, fence); err != nil {
			return fenced(err)
		}
		answer, err := q.OutboxHistoryAnswer(ctx, c.ID)
		if err != nil {
			return err
		}
		outcome = answer.Outcome
		if err := n.callApply(ctx, tx, c, answer); err != nil {
			return err
		}
		rows, err := q.OutboxQueueFinishApplied(ctx, db.OutboxQueueFinishAppliedParams{
			ID: c.ID, Attempt: c.Attempt, Worker: n.session.id, Outcome: outcome, Code: answer.Code})
		if err != nil {
			return err
		}
		if rows != 1 {
			return errFenced
		}
		if len(keys) > 0 {
			promoted, err = q.OutboxQueuePromote(ctx, keys)
		}
		return err
	})
	if err == nil {
		n.wake(promoted...)
	}
	return outcome, err
}

func (n *node) callApply(ctx context.Context, tx pgx.Tx, c *claim, answer db.OutboxHistoryAnswerRow) error {
	if c.action.apply == nil {
		return nil // resolved by a person, or registered without its Apply in this release
	}
	outcome := Outcome{
		Call:     c.call(),
		Answer:   Answer{Code: answer.Code, ContentType: answer.ResponseType, Body: answer.Response},
		Refused:  answer.Outcome == outcomeRefused,
		Resolved: answer.Resolved,
	}
	written := &applyTx{Tx: tx, key: outcome.Key}
	_, err := guard(func() (struct{}, error) { return struct{}{}, c.action.apply(ctx, written, outcome) })
	return err
}

// applyTx is the transaction that an Apply gets: outbox.Insert takes the key of the intent's own request from it.
type applyTx struct {
	pgx.Tx
	key samekey.Key
}

// RequestKey implements keyed.Tx.
func (t *applyTx) RequestKey() samekey.Key { return t.key }
