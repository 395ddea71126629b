package samekey

import (
	"crypto/sha256"
	"errors"
	"fmt"
)

// The versions of a fingerprint. A version says how the bytes that were hashed
// came from the request; its number is stored beside the hash and is never
// given another meaning. A better form gets the next number, and the old one
// stays computable, see [FingerprintAs].
const (
	FingerprintJSON1 int16 = 1 // canonical JSON, exact numbers: FingerprintJSON, FingerprintValue
	FingerprintRaw1  int16 = 2 // the bytes as they came: FingerprintBytes
)

// ErrInvalidPayload is matched (errors.Is) by every error about a payload that
// has no fingerprint, since it has no single meaning (or none at all). Nothing
// was stored; the same payload will be refused again. An HTTP edge answers 400.
// The details are in [*FingerprintError].
var ErrInvalidPayload = errors.New("samekey: invalid payload")

// ErrUnknownVersion is returned by [FingerprintAs] for a version that this
// release does not know: the record was stored by a newer release. Deploy that
// release here too; until then the request can be neither replayed nor refused
// truthfully.
var ErrUnknownVersion = errors.New("samekey: fingerprint version is not known to this release, deploy the release that stored it")

// Fingerprint is the digest of the request that a key was first used with.
// Two fingerprints of one version are equal (==) exactly when the requests mean
// the same under that version, but for a collision in SHA-256. Fingerprints of
// different versions are never equal and say nothing about each other: a
// stored one is compared with the new request's under the version it was
// stored with, see [FingerprintAs].
type Fingerprint struct {
	Hash    [32]byte
	Version int16
}

// IsZero reports whether f is the zero Fingerprint, which is that of no request.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// FingerprintBytes returns the fingerprint of the bytes as they are, version
// [FingerprintRaw1]: for requests that are not JSON, and for callers who send
// every attempt byte by byte the same. One more space is another request.
// Empty input is allowed. Mind multipart bodies, whose boundary changes with
// each attempt.
func FingerprintBytes(raw []byte) Fingerprint {
	return digest(FingerprintRaw1, "samekey/fingerprint/raw/v1\n", raw)
}

// FingerprintJSON returns the fingerprint of what a JSON document means,
// version [FingerprintJSON1]: two documents have the same one exactly when they
// hold the same values.
//
// White space, the order of an object's members and the spelling of strings
// ("\u0041" is "A") and numbers do not matter. Numbers are compared by their
// exact decimal value: 1, 1.0, 1e0 and 10e-1 are one number, and so are 0, -0
// and 0e9; 9007199254740993 and 9007199254740992 are two, and so are 0.1 and
// 0.10000000000000000555. Everything else does matter: the order of an array,
// the type ("1" is not 1), the code points of a string (no Unicode
// normalisation), and null is not the same as a missing member.
//
// Refused with a [*FingerprintError]: a member name that an object has twice,
// however it is spelled; invalid UTF-8; a lone surrogate; anything after the
// document; empty input; more than 100 levels of arrays and objects; a number
// whose value, written as a whole number without trailing zeros times a power
// of ten, has an exponent beyond 10,000 either way. Size is not limited here,
// and no number is ever expanded: time grows with n log n, and memory is a
// small multiple of the input.
func FingerprintJSON(doc []byte) (Fingerprint, error) {
	canonical, err := canonicalJSON(doc)
	if err != nil {
		return Fingerprint{}, err
	}
	return digest(FingerprintJSON1, "samekey/fingerprint/json/v1\n", canonical), nil
}

// FingerprintAs returns the fingerprint of a payload under the given version:
// that of a stored record whose request came again. It is how releases with
// different current versions share a database:
//
//	again, err := samekey.FingerprintAs(stored.Version, payload)
//	if err != nil { .. }
//	conflict := again != stored
//
// A version that this release does not know gives [ErrUnknownVersion]; a
// payload that has no meaning under it, a [*FingerprintError].
func FingerprintAs(version int16, payload []byte) (Fingerprint, error) {
	switch version {
	case FingerprintJSON1:
		return FingerprintJSON(payload)
	case FingerprintRaw1:
		return FingerprintBytes(payload), nil
	}
	return Fingerprint{}, fmt.Errorf("%w: version %d", ErrUnknownVersion, version)
}

// FingerprintError says why a payload has no fingerprint and what to do. It
// holds nothing of the payload, so it may be logged and sent to the caller. It
// matches [ErrInvalidPayload].
type FingerprintError struct {
	Offset int64  // where in the document, in bytes from its start; -1 for a Go value
	Reason string // "an object has a member name twice"
	Do     string // what the caller should do
	cause  error  // of a value that cannot be encoded; may hold content, so it is not printed
}

func (e *FingerprintError) Error() string {
	at := ""
	if e.Offset >= 0 {
		at = fmt.Sprintf(" at offset %d", e.Offset)
	}
	return "samekey: fingerprint: " + e.Reason + at + ": " + e.Do
}

// Is makes every FingerprintError match ErrInvalidPayload.
func (e *FingerprintError) Is(target error) bool { return target == ErrInvalidPayload }

// Unwrap returns the encoder's error where a Go value could not be encoded,
// else nil. Unlike the FingerprintError itself, it may quote the payload.
func (e *FingerprintError) Unwrap() error { return e.cause }

// digest hashes the form's label, then the bytes: a label ends with a line
// feed and holds no other, so that no content can pass for another form's.
func digest(version int16, label string, content []byte) Fingerprint {
	h := sha256.New()
	h.Write([]byte(label))
	h.Write(content)
	f := Fingerprint{Version: version}
	h.Sum(f.Hash[:0])
	return f
}
