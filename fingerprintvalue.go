package samekey

import (
	"encoding/json"
	"errors"
	"fmt"
)

// FingerprintValue returns the fingerprint of a Go value's JSON: v is encoded
// once, by the rules of encoding/json, then as [FingerprintJSON] says. A value that
// cannot be encoded (a channel, NaN, a cycle) gives a [*FingerprintError].
//
// A struct with a new field is a new request: a caller who repeats a request
// across the deploy that added the field gets a conflict instead of the first
// answer, unless the field is omitted when empty. The same goes for a renamed
// field, and for a value that a new release defaults differently. The bytes of
// the request as they arrived do not change with your code: prefer
// FingerprintJSON or [FingerprintBytes] of those.
func FingerprintValue(v any) (Fingerprint, error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return Fingerprint{}, valueError(v, err)
	}
	return FingerprintJSON(doc)
}

func valueError(v any, err error) error {
	reason := fmt.Sprintf("a %T cannot be encoded as JSON", v)
	if kind, ok := errors.AsType[*json.UnsupportedTypeError](err); ok {
		reason += fmt.Sprintf(", since it holds a %s", kind.Type)
	}
	return &FingerprintError{Offset: -1, Reason: reason, cause: err,
		Do: "give a value that encoding/json can encode, or fingerprint the request's bytes"}
}
