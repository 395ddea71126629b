package samekey

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/framed"
)

// maxKeyBytes bounds a value, and a scope: the limit of the tables' CHECKs.
const maxKeyBytes = 255

// ErrOtherService means that a key's scope does not begin with the service's name, which the connection has in its
// setting samekey.service (SQLSTATE SK003). Find it with errors.Is. Nothing was stored, and no answer of the other
// service was read. Make the service's name the first part of the scope, or correct the setting.
var ErrOtherService = errors.New("samekey: the scope belongs to another service")

// Key names one logical operation: everything done under equal Keys is done once. Scope says whose key it is (the
// tenant or principal, and the operation). Value is what the caller sent. The same Value in two scopes is two keys,
// everywhere. Keys are comparable.
//
// Make a Key with [NewKey], which escapes the parts of the scope. Call [Key.Validate] on a Key from elsewhere before
// you use it.
//
// Put no personal data in keys: they are stored. Vendors receive them in derived form only ([DeliveryKey]). Printing a
// Key with fmt or slog shows its [Key.Hash], never the value. Two ways around that remain: encoding a Key as JSON
// writes it in full, and so does printing a struct that holds the Key in an unexported field.
type Key struct {
	Scope string // escaped parts joined with "/", 1 to 255 bytes
	Value string // 1 to 255 bytes of printable ASCII, no space at the ends
}

// NewKey returns the key of value in the scope made of the given parts, or a [*KeyError]. Nothing is trimmed or folded:
// an invalid value is refused as it came.
//
//   - value holds 1 to 255 bytes of printable ASCII. Spaces are allowed inside it, not at its ends.
//   - scope has at least two parts: the tenant or principal first, and the operation last. A part is non-empty text
//     without control characters and without spaces at its ends. "/", "%" and everything outside printable ASCII are
//     escaped as %XX, so "a/b", "c" and "a", "b/c" are two scopes. Joined, the scope holds at most 255 bytes.
//
// If several services share a database, put the service's name first, and set samekey.service on the service's
// connections: every other scope is then refused ([ErrOtherService]).
func NewKey(value string, scope ...string) (Key, error) {
	if err := checkText("value", value, adviceValue); err != nil {
		return Key{}, err
	}
	if len(scope) == 0 {
		return Key{}, &KeyError{Field: "scope", Reason: "has no parts", Do: adviceScope}
	}
	var joined strings.Builder
	for i, part := range scope {
		if err := checkPart(i, part); err != nil {
			return Key{}, err
		}
		if i > 0 {
			joined.WriteByte('/')
		}
		escapePart(&joined, part)
	}
	k := Key{Scope: joined.String(), Value: value}
	if err := k.Validate(); err != nil {
		return Key{}, err
	}
	if len(scope) < 2 {
		return Key{}, &KeyError{Field: "scope", Reason: "has one part, but needs two", Do: adviceScope}
	}
	return k, nil
}

// Mint returns a new key value for a client that is about to begin an operation. Mint once, store the value with the
// operation, and send it with every attempt.
//
// The value is a UUID of version 8, 36 characters: 8 random bits, a time in milliseconds, and 74 more random bits. It
// cannot be guessed, and it holds nothing personal: neither the host nor the user.
//
// The time keeps keys of the same moment close together in the index of processed records. The 8 random bits before it
// spread them over 256 pages. This helps SERIALIZABLE transactions, where two new keys on one index page make their
// transactions collide. Measured on Postgres 15, beside UUIDs of version 7 (time first) and 4 (random):
//
//	                                                     Mint    v7    v4
//	calls of the function per SERIALIZABLE request       1.03   1.8  1.01
//	the same, with an empty table                         1.2   2.1   2.1
//	WAL per record, right after a checkpoint, bytes       970   440  3700
//	index per record, bytes                               127    73    93
//
// The first two rows are with 16 clients and 100,000 existing records, the last two with 300,000. Without SERIALIZABLE,
// no request ran its function twice with any of them.
func Mint() string {
	var id uuid.UUID
	_, _ = rand.Read(id[:]) // never fails
	now := uint64(time.Now().UnixMilli())
	for i := 5; i > 0; i-- {
		id[i] = byte(now)
		now >>= 8
	}
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// Validate returns nil if k obeys the rules of [NewKey], else a [*KeyError]. It is for keys that NewKey did not make,
// and it accepts a scope of one part.
func (k Key) Validate() error {
	if err := checkText("value", k.Value, adviceValue); err != nil {
		return err
	}
	if err := checkText("scope", k.Scope, adviceScope); err != nil {
		return err
	}
	part := 0
	for text := range strings.SplitSeq(k.Scope, "/") {
		part++
		if text == "" {
			return &KeyError{Field: fmt.Sprintf("scope part %d", part), Reason: "is empty", Do: adviceScope}
		}
	}
	return nil
}

// IsZero reports whether k is the zero Key, which is not valid.
func (k Key) IsZero() bool { return k == Key{} }

// Hash returns 8 hex digits that stand for the key in logs and errors. They are equal for equal keys, on every machine
// and in every release. Use them to correlate log lines, not as an identity: among 100,000 keys, two share a hash.
func (k Key) Hash() string {
	return framed.LogHash(k.Scope, k.Value)
}

// String returns "key:" and the hash; never the value or the scope.
func (k Key) String() string { return "key:" + k.Hash() }

// Format prints the result of String under every verb and flag, including %#v.
func (k Key) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, k.String()) }

// LogValue logs the result of String.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// KeyError says which part of a key is invalid, why, and what to do. Nothing was stored, and the caller has to send
// another key. An HTTP edge answers 400. The error holds nothing of the key, so it can be logged and sent to the
// caller.
type KeyError struct {
	Field  string // "value", "scope", "scope part 2" (counted from 1), or an argument of ToolCallKey or StepKey
	Reason string // such as "is empty"
	Do     string // what the caller should do
}

func (e *KeyError) Error() string {
	return "samekey: key: " + e.Field + " " + e.Reason + ": " + e.Do
}

const (
	adviceValue = "send 1 to 255 bytes of printable ASCII without spaces at the ends, such as a UUID, and send the same with every attempt"
	adviceScope = "name the tenant or principal and the operation, in at most 255 bytes once escaped"
)

// checkText applies the rules that a value and a whole scope share.
func checkText(field, text, advice string) error {
	reason := ""
	switch {
	case text == "":
		reason = "is empty"
	case len(text) > maxKeyBytes:
		reason = fmt.Sprintf("is %d bytes long, more than %d", len(text), maxKeyBytes)
	case text[0] == ' ' || text[len(text)-1] == ' ':
		reason = "starts or ends with a space"
	default:
		at := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
		if at < 0 {
			return nil
		}
		reason = fmt.Sprintf("has a byte that is not printable ASCII at offset %d", at)
	}
	return &KeyError{Field: field, Reason: reason, Do: advice}
}

// checkPart refuses what escaping cannot repair. A missing or mangled part is the caller's mistake, and would put its
// keys into another scope.
func checkPart(index int, part string) error {
	reason := ""
	switch {
	case part == "":
		reason = "is empty"
	case part[0] == ' ' || part[len(part)-1] == ' ':
		reason = "starts or ends with a space"
	case !utf8.ValidString(part):
		reason = "is not valid UTF-8"
	case strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7f }):
		reason = "has a control character"
	default:
		return nil
	}
	return &KeyError{Field: fmt.Sprintf("scope part %d", index+1), Reason: reason, Do: adviceScope}
}

// escapePart writes part with "/", "%" and every byte outside printable ASCII as %XX, in upper case.
func escapePart(b *strings.Builder, part string) {
	const hexDigits = "0123456789ABCDEF"
	for i := range len(part) {
		switch c := part[i]; {
		case c == '/' || c == '%' || c < ' ' || c > '~':
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		default:
			b.WriteByte(c)
		}
	}
}
