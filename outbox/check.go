package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/names"
)

// samekey.enqueue has the same rules, to the byte. A test runs one table of intents through both. Change both.

// Limits, all in bytes.
const (
	maxPart        = 255
	maxOrderingKey = 255
	maxPayload     = 1 << 20
	maxContentType = 255
	maxHeaders     = 16384
	maxTrace       = 512
	maxRequestedBy = 255
	maxReference   = 255
)

var (
	mediaType = regexp.MustCompile("^" + names.TokenPattern + "/" + names.TokenPattern + `([ \t]*;[ \t]*` + names.TokenPattern + "=(" + names.TokenPattern + `|"([ !#-\[\]-~]|\\[ -~])*"))*$`)
	jsonType  = regexp.MustCompile(`(?i)^(application/json|[^;]+\+json)[ \t]*(;|$)`)
)

// Headers that carry secrets.
var secretHeaders = []string{"authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token"}

// checked returns the intent in the form of samekey.enqueue, with a new id and without a key. Its error names the field
// and what to do, and quotes no value.
func (in Intent) checked() (keyed.Intent, error) {
	if err := checkAction(in.Action); err != nil {
		return keyed.Intent{}, invalid("Action", err)
	}
	payload, contentType, err := encodePayload(in.Payload, in.ContentType)
	if err != nil {
		return keyed.Intent{}, err
	}
	headers, err := encodeHeaders(in.Headers)
	if err != nil {
		return keyed.Intent{}, invalid("Headers", err)
	}
	if err := errors.Join(
		invalid("Part", checkText("Part", in.Part, maxPart)),
		invalid("OrderingKey", checkText("OrderingKey", in.OrderingKey, maxOrderingKey)),
		checkTimes(in.DueAt, in.Deadline),
		invalid("TraceContext", checkTrace(in.TraceContext)),
		invalid("RequestedBy", checkText("RequestedBy", in.RequestedBy, maxRequestedBy)),
		invalid("Subject", checkText("Subject", in.Subject, names.MaxSubject)),
	); err != nil {
		return keyed.Intent{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return keyed.Intent{}, fmt.Errorf("make an id: %w", err)
	}
	return keyed.Intent{
		ID: id, Action: in.Action, Part: in.Part, Payload: payload, ContentType: contentType, Headers: headers,
		OrderingKey: orNil(in.OrderingKey), DueAt: orNil(in.DueAt), Deadline: orNil(in.Deadline), TraceContext: orNil(in.TraceContext),
		RequestedBy: orNil(in.RequestedBy), Subject: orNil(in.Subject),
	}, nil
}

func checkAction(name string) error {
	if err := names.CheckAction(name); err != nil {
		return fmt.Errorf("Action %w", err)
	}
	return nil
}

func encodePayload(value any, contentType string) (payload []byte, _ string, err error) {
	if contentType == "" {
		contentType = "application/json"
	}
	if len(contentType) > maxContentType || !mediaType.MatchString(contentType) {
		return nil, "", invalid("ContentType", fmt.Errorf(`ContentType must be a media type of at most %d bytes, such as "application/json"`, maxContentType))
	}
	payload, err = payloadBytes(value, jsonType.MatchString(contentType))
	return payload, contentType, invalid("Payload", err)
}

// payloadBytes returns a copy: the caller may reuse its bytes before they are written, as database/sql does with those
// of a RawBytes.
func payloadBytes(value any, isJSON bool) (payload []byte, err error) {
	if value == nil {
		return nil, errors.New("Payload is nil: use struct{}{} for an effect without one")
	}
	if held, ok := jsonvalue.Bytes(value); ok {
		payload = append([]byte{}, held...) // never nil, which would be NULL
	} else {
		if !isJSON {
			return nil, fmt.Errorf("Payload is a %T, which is encoded as JSON, but ContentType is not JSON: give a []byte", value)
		}
		if payload, err = encodeValue(value); err != nil {
			return nil, err
		}
	}
	switch {
	case len(payload) > maxPayload:
		return nil, fmt.Errorf("Payload is %d bytes long, more than %d: store it elsewhere and send a reference", len(payload), maxPayload)
	case isJSON && !(utf8.Valid(payload) && json.Valid(payload)):
		return nil, errors.New("Payload is not valid JSON in UTF-8: set ContentType, such as application/octet-stream")
	}
	return payload, nil
}

// encodeHeaders returns a JSON object, its members sorted.
func encodeHeaders(headers map[string]string) ([]byte, error) {
	if len(headers) == 0 {
		return []byte("{}"), nil
	}
	seen := make(map[string]bool, len(headers))
	size := 0 // of the object as jsonb prints it
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value, lower := headers[name], strings.ToLower(name)
		switch {
		case !names.IsToken(name):
			return nil, errors.New("Headers has a name that is not an HTTP token: use letters, digits and -")
		case slices.Contains(names.ConnectionHeaders, lower) || slices.Contains(names.WorkerHeaders, lower):
			return nil, fmt.Errorf("Headers has %q, which the worker sets: leave it out", name)
		case slices.Contains(secretHeaders, lower):
			return nil, fmt.Errorf("Headers has %q, which carries a secret: set it in the worker's configuration", name)
		case !visible(value):
			return nil, fmt.Errorf("Headers: the value of %q must be visible ASCII, without spaces at its ends", name)
		case seen[lower]:
			return nil, fmt.Errorf("Headers has %q twice, in two spellings: keep one of them", name)
		}
		seen[lower] = true
		size += len(`"": "", `) + len(name) + len(value) + escapes(value)
	}
	if size > maxHeaders {
		return nil, fmt.Errorf("Headers are %d bytes long, more than %d: move large values to the payload", size, maxHeaders)
	}
	return jsonvalue.Encode(headers)
}

// escapes returns how many bytes of value take two bytes in JSON.
func escapes(value string) int {
	return strings.Count(value, `"`) + strings.Count(value, `\`) + strings.Count(value, "\t")
}

// visible reports whether value can be a header's value: visible ASCII, with spaces and tabs inside but not at the
// ends.
func visible(value string) bool {
	return strings.Trim(value, " \t") == value &&
		!strings.ContainsFunc(value, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') })
}

func checkText(field, text string, limit int) error {
	if err := names.CheckText(text, limit); err != nil {
		return fmt.Errorf("%s %w", field, err)
	}
	return nil
}

func checkTimes(due, deadline time.Time) error {
	for i, at := range []time.Time{due, deadline} {
		if year := at.UTC().Year(); !at.IsZero() && (year < 1970 || year > 9999) {
			field := []string{"DueAt", "Deadline"}[i]
			return invalid(field, fmt.Errorf("%s is in the year %d: give a time between 1970 and 9999", field, year))
		}
	}
	// The database keeps microseconds.
	if !deadline.IsZero() && !deadline.Truncate(time.Microsecond).After(due.Truncate(time.Microsecond)) {
		return invalid("Deadline", errors.New("Deadline is not after DueAt: the intent could never be sent"))
	}
	return nil
}

func checkTrace(trace string) error {
	if len(trace) > maxTrace || !visible(trace) {
		return fmt.Errorf("TraceContext must be at most %d bytes of visible ASCII, as in the header traceparent", maxTrace)
	}
	return nil
}

// orNil returns nil, which is NULL, for the zero value.
func orNil[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
