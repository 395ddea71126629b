package dispatcher

import (
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/framed"
	"github.com/samekey/samekey/internal/limit"
	"github.com/samekey/samekey/internal/names"
)

// claim is one claimed intent, on its way from the claim to its settlement.
type claim struct {
	db.OutboxQueueClaimRow
	action  *action
	worker  int32     // the id under which it was claimed; the session may have another one by now
	asked   time.Time // read before the claim was sent: the attempt's deadline counts from here
	visit   visit     // its way past the limits
	settled chan bool // what the settler wrote; see settler.settle

	resting *settlement // of a claim that leads to no call, else nil

	unloaded bool // of an answered intent: it has no payload until its Apply begins
	unmarked bool // leased as unsent, and not marked since: it is not sent

	reference string // the vendor's, as far as it is known

	endpointName string
	endpoint     *storedEndpoint // where the call goes; nil: not to a stored one
	endpointErr  error           // why that is not known
}

// newClaim makes the claim of a row. asked and worker are those of the statement that claimed it.
func newClaim(row db.OutboxQueueClaimRow, a *action, asked time.Time, worker int32) *claim {
	return &claim{OutboxQueueClaimRow: row, action: a, asked: asked, worker: worker, settled: make(chan bool, 1)}
}

// batch is what one claim took, of one action.
type batch struct {
	action *action
	claims []*claim
	epoch  int // of the destination's breaker
}

// visit is a claim's way past a breaker, and to an endpoint if its action has endpoints.
type visit struct {
	breaker  *limit.Breaker
	epoch    int
	endpoint *limit.Endpoint
	start    time.Time
	health   limit.Health
	told     bool          // the breaker knows how the call ended
	delay    time.Duration // postponed for so long
	broken   bool          // postponed because the endpoint's breaker is open
}

// storedEndpoint is an endpoint, and of which version it was read.
type storedEndpoint struct {
	Endpoint
	version uuid.UUID
	stopped bool
	failing time.Duration // since its first failure after the last success; negative: it is not failing
}

// loaded takes what the claim left out.
func (c *claim) loaded(row db.OutboxLoadRow) {
	c.Scope, c.IdemKey, c.Part, c.Subject, c.DeliveryKey, c.CreatedAt = row.Scope, row.IdemKey, row.Part, row.Subject, row.DeliveryKey, row.CreatedAt
	c.Payload, c.ContentType, c.Headers, c.TraceContext = row.Payload, row.ContentType, row.Headers, row.TraceContext
	c.CarriedKey, c.RequestType, c.Request, c.MessageID = row.CarriedKey, row.RequestType, row.Request, row.MessageID
	c.PastDeadline = row.Deadline != nil && !row.Deadline.After(c.Now)
}

// call makes the Call of a claim.
func (c *claim) call() Call {
	call := Call{
		ID: c.ID, DeliveryKey: c.DeliveryKey, Key: samekey.Key{Scope: c.Scope, Value: c.IdemKey},
		Action: c.action.name, Part: c.Part, Subject: c.subject(), Attempt: int(c.Attempt), Payload: c.Payload,
		ContentType: names.WithoutPayloadVersion(c.ContentType), storedType: c.ContentType,
		Headers: map[string]string{}, CreatedAt: c.CreatedAt, Reference: c.reference,
	}
	if c.TraceContext != nil {
		call.TraceContext = *c.TraceContext
	}
	if c.endpoint != nil { // other calls of the same claim use it too
		endpoint := c.endpoint.Endpoint
		endpoint.Secrets, endpoint.Headers = slices.Clone(endpoint.Secrets), maps.Clone(endpoint.Headers)
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
	// The column holds an object. A value that is not a string was written by hand, and is left out.
	var headers map[string]any
	_ = json.Unmarshal(c.Headers, &headers)
	for name, value := range headers {
		if text, ok := value.(string); ok {
			call.Headers[name] = text
		}
	}
	return call
}

func (c *claim) subject() string {
	if c.Subject == nil {
		return ""
	}
	return *c.Subject
}

// attrs name a claim in logs.
func (c *claim) attrs() []any {
	attrs := []any{slog.String("action", c.action.name), slog.Any("intent", c.ID), slog.Int("attempt", int(c.Attempt)),
		slog.String("key", samekey.Key{Scope: c.Scope, Value: c.IdemKey}.Hash())}
	if subject := c.subject(); subject != "" {
		attrs = append(attrs, slog.String("subject", framed.LogHash(subject)))
	}
	if c.reference != "" {
		attrs = append(attrs, slog.String("reference", framed.LogHash(c.reference)))
	}
	return attrs
}

// where names whom a claim calls, in logs.
func (c *claim) where() []any {
	where := []any{slog.String("destination", c.action.destination())}
	if e := c.visit.endpoint; e != nil {
		where = append(where, slog.String("endpoint", e.Digest()))
	}
	return where
}
