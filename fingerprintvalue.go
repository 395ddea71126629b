package samekey

import (
	"encoding/json"
	"fmt"

	"github.com/samekey/samekey/internal/jsonvalue"
)

// FingerprintValue returns the fingerprint of a Go value: of what
// encoding/json makes of it, as [FingerprintJSON] reads that. A value that
// cannot be encoded (a channel, NaN, a cycle), that holds a string of invalid
// UTF-8, or whose content JSON does not show (an io.Reader such as a request's
// Body, a struct without exported fields) gives a [*FingerprintError].
//
// A struct with a new field is a new request: a caller who repeats a request
// across the deploy that added the field gets a conflict instead of the first
// answer, unless the field is omitted when empty. The same goes for a renamed
// field and for a new default. The bytes of the request as they arrived do not
// change with your code: prefer FingerprintJSON or [FingerprintBytes] of those.
func FingerprintValue(v any) (Fingerprint, error) {
	if jsonvalue.Opaque(v) {
		return Fingerprint{}, &FingerprintError{Offset: -1, Reason: fmt.Sprintf("Payload is a %T", v), Do: "read it and give its bytes"}
	}
	doc, err := json.Marshal(v)
	if err != nil {
		return Fingerprint{}, refuseValue(v, err)
	}
	if err := jsonvalue.Replaced(v, doc); err != nil {
		return Fingerprint{}, refuseValue(v, err)
	}
	return FingerprintJSON(doc)
}

func refuseValue(v any, cause error) error {
	return &FingerprintError{
		Offset: -1,
		Reason: fmt.Sprintf("a %T cannot be encoded as JSON", v),
		Do:     "give a value that encoding/json can encode, with strings of valid UTF-8, or fingerprint the request's bytes",
		cause:  cause,
	}
}
