package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/wire"
)

// Call is one attempt to deliver an intent, or one lookup. DeliveryKey and Payload are the same bytes at every attempt
// of the intent, across restarts, deploys and redrives.
type Call struct {
	ID           uuid.UUID   // of the intent
	DeliveryKey  uuid.UUID   // the idempotency key for the vendor
	Key          samekey.Key // of the request that inserted the intent
	Action, Part string
	Attempt      int // grows with every claim; numbers may be missing
	Payload      []byte
	ContentType  string
	Headers      map[string]string // never nil

	// CarriedKey is the delivery key in the form that the vendor takes ([KeyRules.Project]). Send this one. It never
	// changes once it may have been sent, even if the rules change.
	CarriedKey string

	// Rendered is what [Delivery].Render made before the first attempt; nil if it made nothing.
	Rendered *Rendered

	// Endpoint is where the call goes if the [Delivery] has a StoredEndpoint; else nil.
	Endpoint *Endpoint

	// LastResponse is for a Lookup: what the vendor last answered to an attempt, such as the id of an operation in the
	// body of a 202 or a 5xx. It survives restarts. It is nil in a Send, and if no body was kept. Responses from before
	// a person recorded that nothing was sent are not used. Its Body is cut at the policy's ResponseCap, so longer JSON
	// does not parse.
	LastResponse *Response

	TraceContext string    // W3C traceparent, or empty
	CreatedAt    time.Time // by the database's clock
}

// call makes the Call of a claim.
func (c *claim) call() Call {
	call := Call{
		ID: c.ID, DeliveryKey: c.DeliveryKey, Key: samekey.Key{Scope: c.Scope, Value: c.IdemKey},
		Action: c.action.name, Part: c.Part, Attempt: int(c.Attempt), Payload: c.Payload, ContentType: c.ContentType,
		Headers: map[string]string{}, CreatedAt: c.CreatedAt,
	}
	if c.TraceContext != nil {
		call.TraceContext = *c.TraceContext
	}
	if c.endpoint != nil { // other calls of the same claim use it too
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

// context is the context of the claim's call. It ends Timeout after the claim was sent, however long the claim took.
func (c *claim) context(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(parent, c.asked.Add(c.action.policy.Timeout))
}

// call makes the claim's call: its Send, or its Lookup if the intent's outcome is unknown. No connection to the
// database is held meanwhile.
func (d *destination) call(ctx context.Context, c *claim, call *Call) (outcome Outcome, took time.Duration) {
	lookup := c.Status == statusUnknown
	fn, requests := c.action.send, c.action.requests()
	if lookup {
		fn, requests = c.action.lookup, &wire.Attempt{} // a lookup may make several requests
	}
	defer requests.End() // before the call is settled
	ctx = requests.In(ctx)
	began := time.Now()
	outcome, err := guard(func() (Outcome, error) {
		outcome, err := fn(ctx, call)
		_ = outcome.text() // it may panic, as the text of an error may
		return outcome, err
	})
	outcome = conclude(outcome, err, lookup, requests.Once && requests.Sent())
	if outcome.mistake {
		d.worker.log.ErrorContext(ctx, "dispatcher: an action's function returned a wrong outcome; it counts as unknown",
			append(c.attrs(), slog.String("error", outcome.reason.Error()))...)
	}
	return outcome, time.Since(began)
}

// requests is what a Send may send with the client of package httpclient.
func (a *action) requests() *wire.Attempt {
	return &wire.Attempt{Once: a.policy.Class != Read, Direct: a.policy.ResendAbsent}
}

// errGoexitCall is the error of a function that ended its goroutine, such as by t.FailNow in a test.
var errGoexitCall = errors.New("the function ended its goroutine")

// panicError is a panic in the application's code. It must not end the worker.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// guard turns a panic into an error. The methods of an error can panic too, such as those of a nil pointer that a
// function returned as an error: so guard reads its text once.
func guard[T any](fn func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	if value, err = fn(); err != nil {
		_ = withoutURL(err)
	}
	return value, err
}
