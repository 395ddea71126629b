package samekey

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/samekey/samekey/internal/jsonvalue"
)

// Fingerprint is the digest of the request that a key was first used with. Two fingerprints of one Version are equal
// (==) if and only if the requests mean the same under that version, apart from a collision in SHA-256.
//
// Fingerprints of different versions are never equal, and that says nothing about the requests. To compare a stored
// fingerprint with a new request, use [Fingerprint.Matches].
type Fingerprint struct {
	Hash    [32]byte
	Version int16 // how the hashed bytes are made from the request; stored beside the hash
}

// The versions. A number keeps its meaning forever. A better form gets the next number, and this release can still
// compute the old ones.
const (
	versionJSON int16 = 1 // canonical JSON with exact numbers: FingerprintJSON, FingerprintValue
	versionRaw  int16 = 2 // the bytes themselves: FingerprintBytes
)

// FingerprintJSON returns the fingerprint of a JSON document's meaning: two documents have the same fingerprint if and
// only if they hold the same values.
//
// White space, the order of an object's members, and the spelling of strings ("\u0041" is "A") and numbers do not
// matter. Numbers are compared by their exact decimal value: 1, 1.0, 1e0 and 10e-1 are equal, and so are 0, -0 and 0e9.
// 9007199254740993 and 9007199254740992 differ, and so do 0.1 and 0.10000000000000000555. Everything else matters: the
// order of an array, the type ("1" is not 1), the code points of a string (no Unicode normalization), and null is not
// the same as a missing member.
//
// A document without a single meaning is refused with a [*FingerprintError]:
//
//   - an object with the same member name twice, however it is spelled;
//   - invalid UTF-8, or a lone surrogate;
//   - empty input, or data after the document;
//   - more than 100 levels of arrays and objects;
//   - a number whose exponent is beyond 10,000 in either direction, once the number is written as a whole number
//     without trailing zeros times a power of ten.
//
// The size is not limited. Numbers are never expanded: the time grows with n log n, and the memory is a small multiple
// of the input.
func FingerprintJSON(doc []byte) (Fingerprint, error) {
	canonical, err := canonicalJSON(doc)
	if err != nil {
		return Fingerprint{}, err
	}
	return digest(versionJSON, "samekey/fingerprint/json/v1\n", canonical), nil
}

// FingerprintBytes returns the fingerprint of the bytes themselves. Use it for requests that are not JSON, and for
// callers that send identical bytes with every attempt: one additional space is another request. Empty input is
// allowed. A multipart body needs another solution, because its boundary changes with each attempt.
func FingerprintBytes(raw []byte) Fingerprint {
	return digest(versionRaw, "samekey/fingerprint/raw/v1\n", raw)
}

// FingerprintValue returns the fingerprint of the JSON that encoding/json makes of v. It refuses with a
// [*FingerprintError] a value that cannot be encoded (a channel, NaN, a cycle), a string that is not valid UTF-8, and a
// value that JSON does not show (an io.Reader such as a request's Body, a struct without exported fields).
//
// Prefer [FingerprintJSON] or [FingerprintBytes] of the request as it arrived: those bytes do not change with your
// code. A struct with a new field, a renamed field or a new default is a new request. A caller that repeats a request
// across that deploy gets a conflict instead of the first answer, unless the field is omitted when empty.
func FingerprintValue(v any) (Fingerprint, error) {
	if jsonvalue.Opaque(v) {
		return Fingerprint{}, &FingerprintError{Offset: -1, Reason: fmt.Sprintf("the value is a %T", v), Do: "read it and give its bytes"}
	}
	doc, err := json.Marshal(v)
	if err == nil {
		err = jsonvalue.Replaced(v, doc)
	}
	if err != nil {
		return Fingerprint{}, &FingerprintError{
			Offset: -1,
			Reason: fmt.Sprintf("a %T cannot be encoded as JSON", v),
			Do:     "give a value that encoding/json can encode, with strings of valid UTF-8, or fingerprint the request's bytes",
			cause:  err,
		}
	}
	return FingerprintJSON(doc)
}

// Matches reports whether payload has this fingerprint under the fingerprint's own version. Use it to compare a stored
// fingerprint with a new request, so that releases with different current versions can share a database.
//
// It fails if payload has no meaning under that version (a [*FingerprintError]), and if this release does not know the
// version because a newer release stored it. In that case deploy the newer release here too: until then the request can
// be neither replayed nor refused.
func (f Fingerprint) Matches(payload []byte) (bool, error) {
	switch f.Version {
	case versionJSON:
		again, err := FingerprintJSON(payload)
		return err == nil && f == again, err
	case versionRaw:
		return f == FingerprintBytes(payload), nil
	}
	return false, fmt.Errorf("samekey: fingerprint version %d is unknown to this release: deploy the release that stored it", f.Version)
}

// FingerprintError says why a payload has no fingerprint: it has no meaning, or more than one. Nothing was stored, and
// the same payload is refused again. An HTTP edge answers 400. The error holds nothing of the payload, so it can be
// logged and sent to the caller.
type FingerprintError struct {
	Offset int64  // bytes from the start of the document; -1 for a Go value
	Reason string // such as "an object has a member name twice"
	Do     string // what the caller should do
	cause  error  // of a value that cannot be encoded; not printed, because it may quote the payload
}

func (e *FingerprintError) Error() string {
	at := ""
	if e.Offset >= 0 {
		at = fmt.Sprintf(" at offset %d", e.Offset)
	}
	return "samekey: fingerprint: " + e.Reason + at + ": " + e.Do
}

// Unwrap returns the encoder's error if a Go value could not be encoded, else nil. Unlike the FingerprintError itself,
// it may quote the payload.
func (e *FingerprintError) Unwrap() error { return e.cause }

// digest hashes a label, then the content. A label ends with its only line feed, so no content of one form can equal
// that of another.
func digest(version int16, label string, content []byte) Fingerprint {
	h := sha256.New()
	h.Write([]byte(label))
	h.Write(content)
	f := Fingerprint{Version: version}
	h.Sum(f.Hash[:0])
	return f
}
