package outbox

import (
	"time"

	"github.com/samekey/samekey"
)

// Intent says that an effect must happen if the transaction commits. Action and
// Payload are required, and Key outside of a request's transaction; the rest is
// for those who need it.
//
// No secrets in an intent: it is stored as it is, and people look at it. What a
// vendor's account needs belongs to the worker's configuration.
type Intent struct {
	// Key is the idempotency key of the operation that wants this effect. Leave
	// it zero in processed.Run, processed.Do and a handler's Apply, which know it:
	// another key there is an error. In any other transaction it is required.
	Key samekey.Key

	// Action says what is to be done, such as "charge_card"; the worker has a
	// handler for it. It starts with a lower-case letter, goes on with letters,
	// digits, "_", "." or "-", and has at most 63 bytes.
	Action string

	// Part tells several intents of one action under one key apart: the line of
	// an order, one of several recipients. At most 255 bytes of printable text
	// (no control characters, nothing invisible), usually empty. It is part of the delivery key: give the same effect the
	// same part at every attempt. Take an id for it, and no personal data: the
	// line's number, the recipient's id and not the address.
	Part string

	// Payload is what the handler gets, and by default the body of the request to
	// the vendor: the same bytes at every attempt. At most 1 MiB.
	//
	// A []byte, a json.RawMessage, any other type of bytes (sql.RawBytes, a type of
	// your own) or a pointer to one is copied and kept as it is, to the byte.
	// Anything else is encoded once, as JSON, without HTML escaping; integers and
	// json.Number keep their digits; a []byte inside a struct becomes base64, as
	// always in JSON, and a String method is not asked. Refused are a string, which
	// may be meant with or without its quotation marks; a string inside that is not
	// valid UTF-8; what encodes to null; and what JSON shows nothing of: an
	// io.Reader, a struct without exported fields. For an effect without a payload, use struct{}{} or an
	// empty []byte with a ContentType that is not JSON.
	Payload any

	// ContentType is the payload's media type, application/json by default. Bytes
	// that are declared as JSON (or "+json") must be JSON in valid UTF-8, else
	// they are refused; bytes of any other type are not looked at. At most 255
	// bytes: type/subtype, then parameters as "; name=value".
	ContentType string

	// Headers go out with the request, for handlers that make one. Names are HTTP
	// tokens, values visible ASCII with single spaces or tabs inside; 16 KiB in
	// all. What the worker sets itself (Idempotency-Key, Host, Content-Length,
	// Content-Type, traceparent, ...) and what carries secrets (Authorization,
	// Cookie, ...) is refused.
	Headers map[string]string

	// OrderingKey, if set, makes this intent wait until those before it with the
	// same ordering key are finished. 1 to 255 bytes of printable text, shared by
	// all actions and scopes: put both into it where they should not meet.
	OrderingKey string

	// DueAt is when the effect may happen at the earliest; zero means now. It is
	// compared with the database's clock. From 1970 to 9999 in UTC.
	DueAt time.Time

	// Deadline is when it is too late: from then on the intent is not sent any
	// more, and rests as dead, for a person. Zero means never. From 1970 to 9999
	// in UTC, and at least a microsecond after DueAt.
	Deadline time.Time

	// TraceContext is the W3C traceparent of the request that wants this effect,
	// so that a trace goes on in the worker. At most 512 bytes of visible ASCII.
	TraceContext string

	// RequestedBy is who wants this effect, for an action that needs approval: the
	// same actor may not [Approve] it. At most 255 bytes. Empty: anybody may.
	RequestedBy string
}
