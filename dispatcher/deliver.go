package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/wake"
)

// claim is one claimed intent.
type claim struct {
	db.OutboxQueueClaimRow
	action *action
	asked  time.Time // read before the claim was sent: the attempt's deadline counts from here
	visit  visit

	unmarked bool // leased as unsent, and not marked since: it is not sent

	endpointName string
	endpoint     *storedEndpoint // where the call goes; nil: not to a stored one
	endpointErr  error           // why that is not known
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
	if c.endpoint != nil { // which the other calls of the claim share
		endpoint := c.endpoint.Endpoint
		endpoint.Secrets = slices.Clone(endpoint.Secrets)
		call.Endpoint = &endpoint
	}
	call.CarriedKey = or(c.CarriedKey, c.DeliveryKey.String())
	if c.RequestType != nil || c.MessageID != nil {
		call.Rendered = &Rendered{Request: c.Request}
		if c.RequestType != nil {
			call.Rendered.Type = *c.RequestType
		}
		if c.MessageID != nil {
			call.Rendered.MessageID = *c.MessageID
		}
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
	row := &c.OutboxQueueClaimRow
	settled := false
	defer func() {
		if !settled { // runtime.Goexit, as by t.FailNow in a user's test, runs deferred functions and nothing else
			n.settle(c, c.action.afterCall(row, Answer{}, errors.New("the handler ended its goroutine")))
		}
	}()
	if c.Status == statusAnswered {
		settled = true
		n.apply(c, int(c.Spent))
		return
	}
	var s settlement
	switch send := false; {
	case n.isStopping() || c.unmarked:
		s = c.action.givenBack(row)
	case c.Status == statusUnknown:
		s = n.lookUp(c)
	default:
		if s, send = c.action.beforeSend(row); send {
			s = n.attempt(c)
		}
	}
	settled = true
	n.settle(c, s)
}

func (n *node) isStopping() bool {
	select {
	case <-n.stopping:
		return true
	default:
		return false
	}
}

func (n *node) attempt(c *claim) settlement {
	row := &c.OutboxQueueClaimRow
	ctx, cancel := c.context(n.calls)
	defer cancel()
	if ctx.Err() != nil { // the claim alone took as long as the attempt may
		s := c.action.givenBack(row)
		s.delay = time.Second // no hot loop against a database that is slower than the calls
		return s
	}
	if s, ok := n.mayCall(ctx, c); !ok {
		return s
	}
	if s, ok := n.fix(ctx, c); !ok {
		return s
	}
	call, began := c.call(), time.Now()
	answer, err := guard(func() (Answer, error) { return c.action.handle(ctx, &call) })
	s := c.action.afterCall(row, answer, err)
	s.took = time.Since(began)
	n.judge(c, s.answer.Code, err)
	n.stopIfGone(c, err)
	return s
}

func (n *node) lookUp(c *claim) settlement {
	row := &c.OutboxQueueClaimRow
	if s, ask := c.action.beforeLookup(row); !ask {
		return s
	}
	ctx, cancel := c.context(n.calls)
	defer cancel()
	switch err := c.endpointErr; {
	case errors.Is(err, errNoEndpoint):
		return c.action.afterLookup(row, Finding{}, err)
	case err != nil:
		return n.notSent(ctx, c, "dispatcher: the endpoint could not be read, nothing was looked up", err)
	}
	call := c.call()
	var err error
	if call.LastAnswer, err = n.lastAnswer(ctx, c); err != nil {
		return n.notSent(ctx, c, "dispatcher: the last answer could not be read, nothing was looked up", err)
	}
	began := time.Now()
	finding, err := guard(func() (Finding, error) { return c.action.lookup(ctx, &call) })
	s := c.action.afterLookup(row, finding, err)
	s.took = time.Since(began)
	n.judge(c, s.answer.Code, err)
	return s
}

// notSent gives a claim back, of which nothing was sent since the database did not answer.
func (n *node) notSent(ctx context.Context, c *claim, message string, err error) settlement {
	if err != nil {
		n.log.WarnContext(ctx, message, append(c.attrs(), slog.String("error", errorText(err)))...)
	}
	s := c.action.givenBack(&c.OutboxQueueClaimRow)
	s.delay = time.Second // no hot loop against a database that is in trouble
	return s
}

// lastAnswer is what a look-up may go by; nil where nothing was kept.
func (n *node) lastAnswer(ctx context.Context, c *claim) (*Answer, error) {
	last, err := n.q.OutboxHistoryLastAnswer(ctx, c.ID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &Answer{Code: last.Code, ContentType: last.ResponseType, Body: last.Response}, nil
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
	go n.apply(c, 0)
}

// apply runs the action's Apply in the transaction that finishes the intent. Where it fails, the answer stays, and apply
// is tried again. Only a few run at once: each takes a connection from the pool, which claims and settles need too.
func (n *node) apply(c *claim, spent int) {
	n.applySlots <- struct{}{}
	outcome, err := n.applyOnce(c)
	<-n.applySlots
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

// applyOnce is one such transaction. Locks are taken in the order in which the application's own transactions take them,
// which write their rows first and their intents last: the rows of Apply, then the ordering key, then the queue's row,
// whose fence decides whether any of it is committed.
func (n *node) applyOnce(c *claim) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(n.calls, c.action.policy.Timeout)
	defer cancel()
	var promoted []string
	written := &applyTx{key: samekey.Key{Scope: c.Scope, Value: c.IdemKey}}
	err = pgx.BeginTxFunc(ctx, n.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := n.q.WithTx(tx)
		written.Tx = tx
		held := db.OutboxQueueHeldParams{ID: c.ID, Attempt: c.Attempt, Worker: n.session.id}
		if _, err := q.OutboxQueueHeld(ctx, held); err != nil {
			return fenced(err)
		}
		answer, err := q.OutboxHistoryAnswer(ctx, c.ID)
		if err != nil {
			return err
		}
		outcome = answer.Outcome
		if err := n.callApply(ctx, written, c, answer); err != nil {
			return err
		}
		promoted, err = n.finishApplied(ctx, q, c, answer)
		return err
	})
	if err == nil {
		n.wake(promoted...)
		wake.Flush(n.pool, written.actions...)
	}
	return outcome, err
}

func (n *node) finishApplied(ctx context.Context, q *db.Queries, c *claim, answer db.OutboxHistoryAnswerRow) (promoted []string, err error) {
	var keys []string
	if c.OrderingKey != nil {
		keys = []string{*c.OrderingKey}
		if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
			return nil, err
		}
	}
	rows, err := q.OutboxQueueFinishApplied(ctx, db.OutboxQueueFinishAppliedParams{
		ID: c.ID, Attempt: c.Attempt, Worker: n.session.id, Outcome: answer.Outcome, Code: answer.Code})
	if err != nil {
		return nil, err
	}
	if rows != 1 {
		return nil, errFenced
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return q.OutboxQueuePromote(ctx, keys)
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
