package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/jsonvalue"
)

// Intents as JSON, for people who read them. plainEntry, plainSent and plainEvent have the tags of their types and no
// methods. What needs another form stands beside them.

type (
	plainEntry Entry
	plainSent  Sent
	plainEvent Event
)

// entryJSON names ID, Sent and History again, to place them first and last: a member of the outer struct hides that of
// the embedded one.
type entryJSON struct {
	ID    uuid.UUID `json:"id,omitzero"`
	Scope string    `json:"scope,omitzero"`
	Key   string    `json:"key,omitzero"`
	plainEntry
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadText   *string         `json:"payload_text,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
	Sent          Sent            `json:"sent,omitzero"`
	History       []Event         `json:"history,omitempty"`
}

type sentJSON struct {
	plainSent
	Request       json.RawMessage `json:"request,omitempty"`
	RequestText   *string         `json:"request_text,omitempty"`
	RequestBase64 []byte          `json:"request_base64,omitempty"`
}

type eventJSON struct {
	plainEvent
	Response       json.RawMessage `json:"response,omitempty"`
	ResponseText   *string         `json:"response_text,omitempty"`
	ResponseBase64 []byte          `json:"response_base64,omitempty"`
}

// MarshalJSON encodes the intent for people and for programs that show it. A later release can add members, and
// renames none of them.
//
//   - The members are named as the columns of the view samekey.intents, with "scope" and "key" for Key, and those of the
//     events in "history" as the columns of samekey.timeline. A field that is not set has no member. Times are in UTC.
//   - A payload that is JSON is the member "payload", unchanged in value: the members in their order, also those that
//     occur twice, and numbers with all digits, such as 1e400. White space and the escaping of characters can change.
//     Other bytes are the string "payload_text" if they are valid UTF-8, or else "payload_base64".
//   - Objects and arrays count as JSON whatever the media type is. A string, a number, true, false or null does so only
//     if the media type is JSON's. JSON nested more than 1000 levels deep is shown as text.
//   - The same holds for the answer of an event ("response", "response_text", "response_base64") and for the request in
//     Sent ("request", ..).
//
// The JSON has the key, the payload and the vendor's answers in full, as they are stored. (The worker's credentials were
// redacted before an answer or an error was stored.) So do not log it. A slog line of an Entry, a Sent, an Event or a Page
// has no content; one of a slice of them has.
func (e Entry) MarshalJSON() ([]byte, error) {
	j := entryJSON{ID: e.ID, Scope: e.Key.Scope, Key: e.Key.Value, plainEntry: plainEntry(e), Sent: e.Sent, History: e.History}
	j.Payload, j.PayloadText, j.PayloadBase64 = shown(e.Payload, e.ContentType)
	inUTC(&j.plainEntry)
	return jsonvalue.Encode(j)
}

// UnmarshalJSON decodes what MarshalJSON has encoded. Encoded again, the result gives the same JSON.
func (e *Entry) UnmarshalJSON(data []byte) error {
	var j entryJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return fmt.Errorf("outbox: decode entry: %w", err)
	}
	payload, err := stored(j.Payload, j.PayloadText, j.PayloadBase64)
	if err != nil {
		return fmt.Errorf("outbox: decode entry: payload: %w", err)
	}
	*e = Entry(j.plainEntry)
	e.ID, e.Key, e.Payload, e.Sent, e.History = j.ID, samekey.Key{Scope: j.Scope, Value: j.Key}, payload, j.Sent, j.History
	return nil
}

// LogValue logs the id, the action, the status, the code and the hash of the key, and no content.
func (e Entry) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", e.ID.String()), slog.String("action", e.Action), slog.String("status", string(e.Status)),
		slog.String("code", e.Code), slog.Any("key", e.Key))
}

// LogValue logs the type of the request, and no content.
func (s Sent) LogValue() slog.Value {
	return slog.GroupValue(slog.String("request_type", s.RequestType))
}

// LogValue logs the event, its outcome and its code, and no content.
func (e Event) LogValue() slog.Value {
	return slog.GroupValue(slog.String("event", e.Event), slog.String("outcome", e.Outcome), slog.String("code", e.Code))
}

// LogValue logs the number of entries.
func (p Page) LogValue() slog.Value { return slog.GroupValue(slog.Int("entries", len(p.Entries))) }

// MarshalJSON encodes what was sent: see [Entry.MarshalJSON].
func (s Sent) MarshalJSON() ([]byte, error) {
	j := sentJSON{plainSent: plainSent(s)}
	j.Request, j.RequestText, j.RequestBase64 = shown(s.Request, s.RequestType)
	inUTC(&j.plainSent)
	return jsonvalue.Encode(j)
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Sent) UnmarshalJSON(data []byte) error {
	var j sentJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	request, err := stored(j.Request, j.RequestText, j.RequestBase64)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	*s = Sent(j.plainSent)
	s.Request = request
	return nil
}

// MarshalJSON encodes a line of the history: see [Entry.MarshalJSON].
func (e Event) MarshalJSON() ([]byte, error) {
	j := eventJSON{plainEvent: plainEvent(e)}
	j.Response, j.ResponseText, j.ResponseBase64 = shown(e.Response, e.ResponseType)
	inUTC(&j.plainEvent)
	return jsonvalue.Encode(j)
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (e *Event) UnmarshalJSON(data []byte) error {
	var j eventJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	response, err := stored(j.Response, j.ResponseText, j.ResponseBase64)
	if err != nil {
		return fmt.Errorf("response: %w", err)
	}
	*e = Event(j.plainEvent)
	e.Response = response
	return nil
}

// maxShownDepth is far below the 10,000 levels at which encoding/json gives up, since the document is shown inside others.
const maxShownDepth = 1000

// shown returns the bytes as a JSON document, as text or as other bytes. nil is none of them.
func shown(b []byte, mediaType string) (document json.RawMessage, text *string, other []byte) {
	switch {
	case b == nil:
	case isDocument(b, mediaType):
		document = b
	case utf8.Valid(b):
		text = new(string(b))
	default:
		other = b
	}
	return document, text, other
}

// stored is the reverse of shown.
func stored(document json.RawMessage, text *string, other []byte) ([]byte, error) {
	switch {
	case document != nil && (text != nil || other != nil) || text != nil && other != nil:
		return nil, errors.New("is given in more than one form")
	case document != nil:
		return document, nil
	case text != nil:
		return []byte(*text), nil
	}
	return other, nil
}

func isDocument(b []byte, mediaType string) bool {
	start := bytes.TrimLeft(b, " \t\r\n")
	structured := len(start) > 0 && (start[0] == '{' || start[0] == '[')
	return (structured || jsonType.MatchString(mediaType)) && utf8.Valid(b) && json.Valid(b) && depth(b) <= maxShownDepth
}

// depth returns how deep a valid JSON document is nested.
func depth(document []byte) (deepest int) {
	level, quoted := 0, false
	for i := 0; i < len(document); i++ {
		switch c := document[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

// inUTC puts the times of a struct in UTC, so that an instant has one text.
func inUTC(fields any) {
	v := reflect.ValueOf(fields).Elem()
	for i := range v.NumField() {
		if at, ok := v.Field(i).Addr().Interface().(*time.Time); ok {
			*at = at.UTC()
		}
	}
}
