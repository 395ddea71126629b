package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/intent"
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
	last, err := n.q.OutboxHistoryLastAnswer(ctx, c.ID)
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

// illegal is called for a settlement that the table of transitions does not have. The tests of this package set it.
var illegal func(from, event, to string)

// check holds a settlement to the table of transitions. Another one is a mistake in this package, and is reported.
func (n *node) check(c *claim, s settlement) {
	from := c.Status
	if s.event == intent.EventApply {
		from = intent.Answered // the claim may be older than the answer
	}
	if intent.Allowed(from, s.event, s.status) {
		return
	}
	n.log.Error("dispatcher: a settlement is not in the table of transitions; please report it", append(c.attrs(),
		slog.String("from", from), slog.String("event", s.event), slog.String("to", s.status))...)
	if illegal != nil {
		illegal(from, s.event, s.status)
	}
}

// settle hands a settlement to the settler, and goes on with the Apply of what was answered once that is written.
func (n *node) settle(c *claim, s settlement) {
	if limit := max(c.action.policy.ResponseCap, 0); len(s.answer.Body) > limit {
		s.answer.Body = s.answer.Body[:limit]
	}
	n.check(c, s)
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
