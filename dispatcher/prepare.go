package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/outbox"
)

// What happens between a claim and its call: may the call be made, and with which bytes?

// beforeCall decides whether a claimed intent is called at all: if it is not, it returns the settlement that says why,
// else nil. The answer depends on the row and the policy alone, so a claim asks once and keeps the answer.
func (a *action) beforeCall(row *db.OutboxQueueClaimRow) (resting *settlement) {
	before := a.beforeSend
	if row.Status == statusUnknown {
		before = a.beforeLookup
	}
	s, ok := before(row)
	if ok {
		return nil
	}
	rests := s // on the heap only here
	return &rests
}

// beforeSend decides whether a pending intent is sent.
func (a *action) beforeSend(row *db.OutboxQueueClaimRow) (s settlement, ok bool) {
	p := a.policy
	s = settlement{event: "attempt", attemptsUsed: int(row.AttemptsUsed), clearSent: row.FirstSend}
	switch {
	case a.moved(row):
		s.status, s.outcome, s.response.Code = statusUnknown, outcomeUnknown, codeMoved
	case !p.Class.repeatable() && !row.FirstSend:
		// It may have been sent before, and nothing proves that it was not.
		s.status, s.outcome, s.response.Code = statusUnknown, outcomeUnknown, "maybe_sent"
	case a.reformed(row):
		s.status, s.outcome, s.response.Code, s.attemptsUsed = statusUnknown, outcomeUnknown, codeForm, 0
		s.err = "an earlier release may have sent it as another request, or with its key in another header: it is looked up, or parked"
	case row.PastWindow && p.Class == IdempotentWrite:
		s.status, s.outcome, s.response.Code = statusUnknown, outcomeUnknown, "key_window"
		s.err = fmt.Sprintf("the key window of %v is over, or would end during the attempt: it is looked up, or parked", p.KeyWindow)
		s.attemptsUsed = 0
	case row.PastDeadline || p.Deadline > 0 && row.Now.Sub(row.CreatedAt) >= p.Deadline:
		s.status, s.outcome, s.response.Code = statusDead, outcomeDead, "deadline"
	case p.Class == IrreversibleWrite && row.ApprovedAt == nil:
		s.status, s.outcome, s.response.Code = statusAwaiting, outcomeAwaiting, "approval"
	case p.Class.repeatable() && int(row.AttemptsUsed) >= p.Attempts:
		s.status, s.outcome, s.response.Code = statusDead, outcomeDead, "attempts"
	default:
		return s, true
	}
	s.leaveOrder = p.PassFailed && s.status == statusDead
	return s, false
}

// beforeLookup decides whether an unknown intent is looked up.
func (a *action) beforeLookup(row *db.OutboxQueueClaimRow) (s settlement, ok bool) {
	s = settlement{event: "lookup", status: statusParked, outcome: outcomeParked, attemptsUsed: int(row.AttemptsUsed), leaveOrder: a.policy.PassFailed}
	accepted := row.LastCode != nil && *row.LastCode == codeAccepted
	switch settling := a.policy.SettlingDelay - settlingOrphans; {
	case accepted && row.FirstSentAt != nil && row.Now.Sub(*row.FirstSentAt) >= a.policy.CompletionTime:
		s.response.Code = "not_completed"
		s.err = fmt.Sprintf("the vendor accepted it and did not complete it within %v: find out what happened, then resolve the intent", a.policy.CompletionTime)
	case a.moved(row):
		s.response.Code = codeMoved
		s.err = fmt.Sprintf("destination %q may have acted on it, and the action now goes to %q: find out what happened there, then resolve the intent", sentDestination(row), a.destination())
	case a.lookup == nil:
		s.response.Code = "no_lookup"
		s.err = "the action has no lookup: find out what happened at the vendor, then resolve the intent"
	case row.LastCode != nil && *row.LastCode == codeOrphaned && settling > 0:
		// The worker that took the intent over does not know the policy, and waited settlingOrphans. Wait for the rest.
		s.status, s.outcome, s.leaveOrder = statusUnknown, outcomeRetry, false
		s.response.Code, s.delay = codeSettling, settling
	case int(row.AttemptsUsed) >= a.policy.Attempts: // a lookup that kills its worker is not repeated without end
		s.response.Code = "attempts"
	default:
		return s, true
	}
	return s, false
}

// moved reports whether another destination may have acted: this one would act again, and cannot be asked either.
func (a *action) moved(row *db.OutboxQueueClaimRow) bool {
	return a.policy.Class != Read && !row.FirstSend && row.SentTo != "" && sentDestination(row) != a.destination()
}

func sentDestination(row *db.OutboxQueueClaimRow) string { return strings.Split(row.SentTo, " ")[0] }

// reformed reports whether the vendor may have seen the key in another form.
func (a *action) reformed(row *db.OutboxQueueClaimRow) bool {
	sent := append(strings.Split(row.SentTo, " "), "", "") // destination, key, request, as far as they are known
	if a.policy.Class != IdempotentWrite || row.FirstSend {
		return false
	}
	// A decoder makes the request of a first send only, unless the request is stored. Another release may have made it if
	// the payload is older than this release's, or if that release had a form and this one has none.
	older := !a.bytes && names.PayloadVersion(row.ContentType) < a.version
	formless := sent[2] != "" && a.form.request == ""
	return a.render == nil && (older || formless) && sent[2] != a.form.request || a.form.differs(form{sent[1], sent[2]})
}

// prepare makes a claim ready for its call. If the call is nil, no call is made, and s holds the reason.
func (d *destination) prepare(ctx context.Context, c *claim) (call *Call, s settlement) {
	switch {
	case d.core.isStopping():
		return nil, c.action.givenBack(&c.OutboxQueueClaimRow)
	case c.unmarked: // which is logged already
		return nil, d.notSent(ctx, c, "", nil)
	case c.resting != nil:
		return nil, *c.resting
	case c.Status == statusUnknown:
		return d.prepareLookup(ctx, c)
	}
	return d.prepareSend(ctx, c)
}

func (d *destination) prepareSend(ctx context.Context, c *claim) (*Call, settlement) {
	if ctx.Err() != nil { // the claim took as long as the attempt may take
		s := c.action.givenBack(&c.OutboxQueueClaimRow)
		s.delay = time.Second // no busy loop against a database that is slower than the calls
		if d.core.calls.Err() == nil {
			s.err = "the claim alone took as long as the policy's Timeout: nothing was sent"
			d.core.log.Warn("dispatcher: the claim alone took as long as the policy's Timeout; nothing was sent", append(c.attrs(),
				slog.Duration("timeout", c.action.policy.Timeout), slog.Duration("took", time.Since(c.asked)))...)
		}
		return nil, s
	}
	if s, ok := d.mayCall(ctx, c); !ok {
		return nil, s
	}
	switch version := names.PayloadVersion(c.ContentType); {
	case version > max(c.action.version, 1):
		return nil, d.leftToNewer(ctx, c, version)
	case version < c.action.version && !c.action.bytes:
		if err := c.upgrades(); err != nil {
			return nil, c.action.deadUnsent(&c.OutboxQueueClaimRow, codePayload, err)
		}
	}
	if s, ok := d.storeRequest(ctx, c); !ok {
		return nil, s
	}
	call := c.call()
	return &call, settlement{}
}

// upgrades tries the decoder of an earlier version before anything is stored or sent. In a Send its error or panic would be
// an outcome, and the intent would count as sent: a later release with a correct decoder could not send it.
func (c *claim) upgrades() error {
	call := c.call()
	_, err := guard(func() (struct{}, error) { return struct{}{}, c.action.decode(&call) })
	return err
}

// leftToNewer gives back an intent whose payload a later release wrote, which is running beside this one or was rolled
// back. Nothing was sent or looked up.
func (d *destination) leftToNewer(ctx context.Context, c *claim, version int) settlement {
	err := &outbox.PayloadVersionError{Action: c.action.name, Version: version, Newest: c.action.version}
	s := c.action.givenBack(&c.OutboxQueueClaimRow)
	s.delay, s.response.Code, s.err = newerPayloadDelay, codePayloadVersion, err.Error()
	d.core.log.WarnContext(ctx, "dispatcher: a later release wrote the payload; the intent is left to its workers", append(c.attrs(),
		slog.Int("version", version), slog.Int("newest", c.action.version))...)
	return s
}

func (d *destination) prepareLookup(ctx context.Context, c *claim) (*Call, settlement) {
	if version := names.PayloadVersion(c.ContentType); version > max(c.action.version, 1) {
		return nil, d.leftToNewer(ctx, c, version)
	}
	switch err := c.endpointErr; {
	case errors.Is(err, errNoEndpoint):
		return nil, c.action.decide(&c.OutboxQueueClaimRow, conclude(Outcome{}, err, true, false))
	case err != nil:
		return nil, d.notSent(ctx, c, "dispatcher: the endpoint could not be read; nothing was looked up", err)
	}
	last, err := d.lastResponse(ctx, c)
	if err != nil {
		return nil, d.notSent(ctx, c, "dispatcher: the last response could not be read; nothing was looked up", err)
	}
	call := c.call()
	call.LastResponse = last
	return &call, settlement{}
}

// mayCall reports whether the endpoint of an attempt may be called. If ok is false nothing is sent, and s holds the
// reason.
func (d *destination) mayCall(ctx context.Context, c *claim) (s settlement, ok bool) {
	row := &c.OutboxQueueClaimRow
	switch {
	case errors.Is(c.endpointErr, errNoEndpoint):
		return c.action.deadUnsent(row, codeEndpointMissing, errNoEndpoint), false
	case c.endpointErr != nil:
		return d.notSent(ctx, c, "dispatcher: the endpoint could not be read; nothing was sent", c.endpointErr), false
	case c.endpoint != nil && c.endpoint.stopped:
		return c.action.deadUnsent(row, codeEndpointStopped, errors.New("the endpoint is stopped: start it (outbox/endpoints), then redrive")), false
	}
	return settlement{}, true
}

// lastResponse is what the vendor last answered to an attempt; nil if nothing was kept. The claim learns the vendor's
// last reference.
func (d *destination) lastResponse(ctx context.Context, c *claim) (*Response, error) {
	last, err := d.core.q.OutboxHistoryLast(ctx, c.ID)
	if errors.Is(err, pgx.ErrNoRows) { // finished by another worker
		return nil, nil
	}
	c.reference = last.Reference
	if err != nil || last.Response == nil {
		return nil, err
	}
	return &Response{Code: last.Code, ContentType: last.ResponseType, Body: last.Response}, nil
}
