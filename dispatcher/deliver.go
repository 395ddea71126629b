package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/internal/wire"
)

// claim is one claimed intent.
type claim struct {
	db.OutboxQueueClaimRow
	action *action
	worker int32     // the id under which it was claimed; the session may have another one by now
	asked  time.Time // read before the claim was sent: the attempt's deadline counts from here
	visit  visit

	unloaded bool // of an answered intent: it has no payload until its Apply begins
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
	var s settlement
	switch send := false; {
	case n.isStopping():
		s = c.action.givenBack(row)
	case c.unmarked:
		s = n.notSent(n.calls, c, "", nil) // that it was not marked has been said
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
		if n.calls.Err() == nil {
			s.err = "the claim alone took as long as the policy's Timeout: nothing was sent"
			n.log.Warn("dispatcher: the claim alone took as long as the policy's Timeout; nothing was sent", append(c.attrs(),
				slog.Duration("timeout", c.action.policy.Timeout), slog.Duration("took", time.Since(c.asked)))...)
		}
		return s
	}
	if s, ok := n.mayCall(ctx, c); !ok {
		return s
	}
	if s, ok := n.fix(ctx, c); !ok {
		return s
	}
	sending := c.action.attempt()
	defer sending.End() // before the attempt is settled
	ctx = sending.In(ctx)
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
	sending := &wire.Attempt{} // it may ask several times
	defer sending.End()
	ctx = sending.In(ctx)
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
	last, err := n.q.OutboxHistoryLastResponse(ctx, c.ID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &Answer{Code: last.Code, ContentType: last.ResponseType, Body: last.Response}, nil
}

// attempt is what the handler may send by package httpclient.
func (a *action) attempt() *wire.Attempt {
	return &wire.Attempt{Once: a.policy.Class != Read, Direct: a.policy.ResendAbsent}
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
