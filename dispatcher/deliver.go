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
	"github.com/samekey/samekey/internal/wire"
)

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

// deliver brings one claim to its end. It runs in a goroutine of its own, in a slot of the destination, and holds no connection
// while the vendor is called.
func (d *destination) deliver(c *claim) {
	// What becomes of a handler that calls runtime.Goexit, as t.FailNow does: deferred functions still run.
	s := c.action.afterCall(&c.OutboxQueueClaimRow, Answer{}, errors.New("the handler ended its goroutine"))
	defer func() {
		d.leave(c)
		d.slots.callEnded() // slots count calls, not settles
		d.node.finish(c, s)
		d.slots.settled()
	}()
	s = d.node.work(c)
}

func (n *node) work(c *claim) settlement {
	row := &c.OutboxQueueClaimRow
	switch {
	case n.isStopping():
		return c.action.givenBack(row)
	case c.unmarked:
		return n.notSent(n.calls, c, "", nil) // the log has said that it was not marked
	case c.Status == statusUnknown:
		return n.lookUp(c)
	}
	s, send := c.action.beforeSend(row)
	if !send {
		return s
	}
	return n.attempt(c)
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
	n.observe(c, s.answer.Code, err)
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
	n.observe(c, s.answer.Code, err)
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

// finish settles a claim, and passes an answered intent on to its Apply.
func (n *node) finish(c *claim, s settlement) {
	if limit := max(c.action.policy.ResponseCap, 0); len(s.answer.Body) > limit {
		s.answer.Body = s.answer.Body[:limit]
	}
	n.check(c, s)
	n.report(c, s)
	if s.status == statusAnswered && s.keep {
		n.finishAnswered(c, s)
		return
	}
	n.end(s.status, n.settler.settle(c, s))
}

// finishAnswered settles an answered intent. If its Apply has a place in memory, the lease is kept, and the Apply goes on with the
// same claim; else the intent is claimed again when there is a slot.
func (n *node) finishAnswered(c *claim, s settlement) {
	s.keep = n.applier.promise(c.action)
	settled := n.settler.settle(c, s)
	switch {
	case settled && s.keep:
		n.applier.answered(c) // which ends the claim
		return
	case settled:
		n.applier.written(c.action)
		n.open.Done() // it counts when it is claimed again
		return
	case s.keep:
		n.applier.unpromise(c.action)
	}
	n.end(s.status, false)
}

// end counts a claim that is over.
func (n *node) end(status string, settled bool) {
	n.summary.count(status, settled)
	n.open.Done()
}
