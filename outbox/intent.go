package outbox

import (
	"time"

	"github.com/samekey/samekey"
)

// Intent is an outbox message: an effect that must happen if the transaction commits. Action and Payload are required,
// and Key outside of a request's transaction.
//
// Put no secrets into an intent: it is stored as it is, and people read it. A vendor's credentials belong to the
// worker's configuration.
type Intent struct {
	// Key is the idempotency key of the operation that needs this effect. Leave it zero in processed.Run, processed.Do
	// and a handler's Apply: the intent takes the request's key there, and another key is an error. In any other
	// transaction it is required.
	Key samekey.Key

	// Action names the effect, such as "charge_card". The worker has a handler for this name. It has 1 to 63 bytes of
	// a-z, 0-9, "_", "." and "-", and starts with a letter.
	Action string

	// Part distinguishes several intents of one action under one key (a sub-key): the line of an order, one of several
	// recipients. It is usually empty. It is part of the delivery key: a repeated operation must give the same effect
	// the same part. Use an id, such as the line's number, and no personal data. At most 255 bytes of printable text,
	// without control or invisible characters.
	Part string

	// Payload is the handler's input and, by default, the body of the request to the vendor: the same bytes at every
	// attempt. At most 1 MiB.
	//
	// A []byte, a json.RawMessage, another type of bytes (such as sql.RawBytes) or a pointer to one is copied and
	// stored unchanged. Any other value is encoded once, as JSON without HTML escaping. Integers and json.Number keep
	// their digits. A []byte inside a struct becomes base64, as always in JSON, and a String method is not called.
	//
	// Refused are: a string, which could be meant with or without quotation marks; a string inside the value that is
	// not valid UTF-8; a value that encodes to null; and a value whose content JSON leaves out, such as an io.Reader or
	// a struct without exported fields. For an effect without a payload use struct{}{}, or an empty []byte with a
	// ContentType that is not JSON.
	Payload any

	// ContentType is the payload's media type. Default: application/json. Bytes declared as JSON (or "+json") must be
	// valid JSON in UTF-8; other bytes are not checked. At most 255 bytes: type/subtype, then parameters as ";
	// name=value".
	ContentType string

	// Headers are sent with the request, by handlers that make one. Names are HTTP tokens. Values are visible ASCII,
	// with spaces or tabs inside only. At most 16 KiB together. Refused are headers that the worker sets
	// (Idempotency-Key, Host, Content-Length, Content-Type, traceparent, ...) and headers that carry secrets
	// (Authorization, Cookie, ...).
	Headers map[string]string

	// OrderingKey makes this intent wait until all earlier intents with the same ordering key are finished. At most 255
	// bytes of printable text; empty means no order. All actions and scopes share ordering keys: include both in the
	// key to keep them apart.
	OrderingKey string

	// DueAt is the earliest time of the first attempt, by the database's clock. Zero means now. From 1970 to 9999 in
	// UTC.
	DueAt time.Time

	// Deadline is the time after which the intent is not sent any more. It then rests as dead, for a person. Zero means
	// none. From 1970 to 9999 in UTC, and after DueAt.
	Deadline time.Time

	// TraceContext is the W3C traceparent of the request, so that its trace continues in the worker. At most 512 bytes
	// of visible ASCII.
	TraceContext string

	// RequestedBy is the actor who requested the effect, for an action that needs approval: this actor cannot [Approve]
	// it. At most 255 bytes. If it is empty, any actor can.
	RequestedBy string

	// Subject is the application's own name of what the effect is about, such as "booking/42". [List] finds all intents
	// of a subject, so "what happened to booking 42" is one lookup. In processed.Run, processed.Do and a handler's Apply
	// an empty Subject takes the request's or the intent's; elsewhere it means none. It changes nothing about the
	// delivery and is not compared when the same intent is inserted again. At most 255 bytes of printable text. Use an
	// id and no personal data; logs show a short hash of it (samekey.text_hash in SQL).
	Subject string
}
