package dispatcher

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
)

// What the application's functions get and return. [Outcome] is in outcome.go.

// Call is one attempt to deliver an intent, or one lookup. DeliveryKey and Payload are the same bytes at every attempt
// of the intent, across restarts, deploys and redrives.
type Call struct {
	ID           uuid.UUID   // of the intent
	DeliveryKey  uuid.UUID   // the idempotency key for the vendor
	Key          samekey.Key // of the request that inserted the intent
	Action, Part string
	Subject      string            // the application's own name of what the intent is about; may be empty
	Attempt      int               // grows with every claim; numbers may be missing
	Payload      []byte            // for Send, Render and Lookup: what an earlier version became (outbox.Action.Version)
	ContentType  string            // without the version of the payload (outbox.Action.Version)
	Headers      map[string]string // never nil

	storedType string // with it

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

	// Reference is the vendor's own id of what it did ([Outcome.Reference]), such as "ch_123". In a Lookup it is that of
	// the last answer to an attempt or a lookup, such as the id of an operation in a 202, under the rules of
	// LastResponse. In an Apply (Settled.Reference) it is the answer's, or else the last one before it. In an Attention it
	// is the last one of all. It is empty in a Send, and if no answer had one.
	Reference string

	TraceContext string    // W3C traceparent, or empty
	CreatedAt    time.Time // by the database's clock
}

// Rendered is what each attempt of an intent sends. It is made once, by [Delivery].Render, and stored, so every attempt
// sends the same bytes even if the template, the environment or the release changes.
type Rendered struct {
	Request   []byte // at most 2 MiB
	Type      string // describes Request for the code that made it; at most 255 bytes
	MessageID string // of a mail; at most 998 bytes
}

// Endpoint is where a call goes, as it was stored right before the call.
type Endpoint struct {
	Name    string
	URL     string
	Secrets Secrets // each of them signs the call
	Headers Headers // are sent with the call
}

// Headers are a receiver's own headers, which may be credentials. Printed, logged or encoded they read "[secrets]".
type Headers map[string]string

// Format writes "[secrets]", whatever the verb.
func (Headers) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hiddenSecrets)) }

// MarshalText returns "[secrets]".
func (Headers) MarshalText() ([]byte, error) { return []byte(hiddenSecrets), nil }

// Secrets are the texts that sign a call. Printed, logged or encoded they read "[secrets]".
type Secrets []string

const hiddenSecrets = "[secrets]"

// Format writes "[secrets]", whatever the verb.
func (Secrets) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hiddenSecrets)) }

// MarshalText returns "[secrets]".
func (Secrets) MarshalText() ([]byte, error) { return []byte(hiddenSecrets), nil }

// Response is what a vendor answered. It is stored in the intent's history.
type Response struct {
	Code        string // a status or an error code, such as "200" or "card_declined"; at most 128 bytes are kept
	ContentType string
	Body        []byte // cut at the policy's ResponseCap
}

// Settled is what an Apply is told about its intent.
type Settled struct {
	Call
	Status   outbox.Status // outbox.StatusDelivered or outbox.StatusRefused
	Response Response      // what the vendor answered, or what a person recorded
	Resolved bool          // recorded by a person or an event (outbox.Resolve), and not by a call of a worker
}

// Attention is what an Attention function is told: its intent came to rest, or a person cancelled it. One event is about
// an endpoint instead, see Event.
type Attention struct {
	Call // its Attempt is 0

	// Status is what the intent became: outbox.StatusDead, StatusParked, StatusAwaitingApproval or StatusCancelled.
	Status outbox.Status
	// Now is the intent's status as the function starts. It differs from Status if the intent was redriven, resolved or
	// cancelled since. A later event, or Apply, tells what followed.
	Now outbox.Status
	At  time.Time // when the intent came to Status, by the database's clock

	// Event is what led there, as in the history: "attempt", "lookup", "resolved", "cancelled", "rejected", "replaced" or
	// "held". With the Code "successor_sent", the intent was delivered after it had been replaced, and its successor may
	// have been sent too: look for two effects at the vendor. With the Code "delivered_after_cancel" and the Event "late",
	// the vendor acted although a person had cancelled the intent as not sent.
	//
	// "endpoint_stopped" is about a stored endpoint, whose name is Call.Endpoint.Name: an attempt of this intent stopped
	// it, by a [Gone] or after Limits.StopEndpointAfter. Status is then empty, Reason tells why, and the intent has events
	// of its own. It is told once for each stop.
	Event         string
	Code, Error   string // of the attempt or lookup; Error may quote the vendor: do not log it
	Actor, Reason string // of the person; empty if a worker found it

	// PayloadError is set if the payload does not decode, which is one reason to be dead. The function then gets the
	// zero value of its type, and finds the bytes in Call.Payload.
	PayloadError error
}
