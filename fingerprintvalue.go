package samekey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// FingerprintValue returns the fingerprint of a Go value: of what
// encoding/json makes of it, as [FingerprintJSON] reads that. A value that
// cannot be encoded (a channel, NaN, a cycle), or that holds a string of
// invalid UTF-8, gives a [*FingerprintError].
//
// A struct with a new field is a new request: a caller who repeats a request
// across the deploy that added the field gets a conflict instead of the first
// answer, unless the field is omitted when empty. The same goes for a renamed
// field and for a new default. The bytes of the request as they arrived do not
// change with your code: prefer FingerprintJSON or [FingerprintBytes] of those.
func FingerprintValue(v any) (Fingerprint, error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return Fingerprint{}, refuseValue(v, err)
	}
	if err := checkReplaced(v, doc); err != nil {
		return Fingerprint{}, refuseValue(v, err)
	}
	return FingerprintJSON(doc)
}

// checkReplaced returns an error if U+FFFD in doc stands for bytes of v that
// are not UTF-8: encoding/json puts it in their place, which would make two
// different values one request. Where doc has none, as nearly always, it costs
// a search.
func checkReplaced(v any, doc []byte) error {
	if !bytes.Contains(doc, []byte("\ufffd")) && !bytes.Contains(doc, []byte(`\ufffd`)) {
		return nil
	}
	return jsonv2.MarshalWrite(io.Discard, v, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))
}

func refuseValue(v any, cause error) error {
	return &FingerprintError{
		Offset: -1,
		Reason: fmt.Sprintf("a %T cannot be encoded as JSON", v),
		Do:     "give a value that encoding/json can encode, with strings of valid UTF-8, or fingerprint the request's bytes",
		cause:  cause,
	}
}
