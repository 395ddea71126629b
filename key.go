package samekey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// maxKeyBytes bounds a value and a scope, each: what the tables' CHECKs allow.
const maxKeyBytes = 255

// ErrInvalidKey is matched (errors.Is) by every error about a key that breaks
// the rules. Nothing was stored; the caller has to send another key. An HTTP
// edge answers 400. The details are in [*KeyError].
var ErrInvalidKey = errors.New("samekey: invalid key")

// ErrOtherService is matched (errors.Is) where a key's scope does not begin with
// the name in samekey.service, the setting of the connection that was to use
// it (SQLSTATE SK003). Nothing was stored, and no answer of the other service
// was shown. Make the service's name the first part of the scope, or correct
// the setting.
var ErrOtherService = errors.New("samekey: the scope belongs to another service")

// Key names one logical operation: everything done under an equal Key is done
// once. Scope says whose key it is (tenant or principal, and operation), Value
// is what the caller sent. The same Value in two scopes is two keys,
// everywhere. Make one with [NewKey], which escapes the scope's parts; one read
// from elsewhere passes [Key.Validate] before it is used. Keys are comparable.
//
// No personal data in keys: they are stored, and sent to vendors in derived
// form only. Printing a Key (fmt, slog) shows its [Key.Hash], never the value;
// a Key in an unexported field of a struct that is printed whole is beyond
// fmt's reach, and encoding one (JSON) writes it in full.
type Key struct {
	Scope string // escaped parts joined with "/", 1 to 255 bytes
	Value string // 1 to 255 bytes of printable ASCII, no space at the ends
}

// NewKey returns the key of value in the scope made of the given parts, or a
// [*KeyError] that names what is wrong. Nothing is trimmed or folded: what is
// not valid as it came is refused.
//
// The value holds 1 to 255 bytes of printable ASCII; spaces are allowed inside
// it, not at its ends. The scope has at least two parts: the tenant or principal
// first, and the operation last. Where several services share a
// database, the service's name is the first part: set samekey.service on its
// connections, and every other scope is refused ([ErrOtherService]). A part is non-empty text without
// control characters or spaces at its ends; "/", "%" and everything outside
// printable ASCII are escaped as %XX, so that parts never run together: "a/b",
// "c" and "a", "b/c" are two scopes. Joined, the scope holds at most 255 bytes.
func NewKey(value string, scope ...string) (Key, error) {
	if err := checkText("value", value, adviceValue); err != nil {
		return Key{}, err
	}
	if len(scope) == 0 {
		return Key{}, &KeyError{Field: "scope", Reason: "has no part", Do: adviceScope}
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
		return Key{}, &KeyError{Field: "scope", Reason: "has one part, and needs two", Do: adviceScope}
	}
	return k, nil
}

// Mint returns a new key value for a client that is about to begin an
// operation: mint once, keep it with the operation, send it with every attempt.
//
// It is a UUID of version 8, 36 characters: 8 random bits, a time in milliseconds,
// and 74 more random bits, 82 together. It is not guessable, and not personal:
// neither host nor user is in it.
//
// The time keeps the keys of one moment together in the index that remembers them,
// and the random bits before it put them on 256 pages of that index instead of one.
// That is for services whose transactions are SERIALIZABLE, where two keys that
// meet on a page make their transactions collide. Measured on Postgres 15, beside
// UUIDs of version 7 (time first) and 4 (random):
//
//	                                                     Mint    v7    v4
//	calls of the function per SERIALIZABLE request       1.03   1.8  1.01
//	the same, with an empty table                         1.2   2.1   2.1
//	WAL per record, right after a checkpoint, bytes       970   440  3700
//	index per record, bytes                               127    73    93
//
// The first two with 16 clients and 100,000 records before, the last two with
// 300,000. Without SERIALIZABLE no request runs its function twice with any of them.
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

// Validate returns nil if k obeys the rules that [NewKey] states, else a
// [*KeyError]. It is for keys that were not made by NewKey, and takes a scope of
// one part too.
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

// IsZero reports whether k is the zero Key, which names nothing and is not
// valid.
func (k Key) IsZero() bool { return k == Key{} }

// Hash returns 8 hex digits that stand for the key in logs, errors and metrics'
// exemplars: equal for equal keys, on every machine and in every release. It is
// for people who correlate lines, no identity: two keys of 100,000 share one.
func (k Key) Hash() string {
	sum := sha256.Sum256(appendFramed([]byte("samekey/log/v1"), k.Scope, k.Value))
	return hex.EncodeToString(sum[:4])
}

// String returns "key:" and the hash; never the value or the scope.
func (k Key) String() string { return "key:" + k.Hash() }

// GoString returns what String does, for %#v and tools like it.
func (k Key) GoString() string { return k.String() }

// Format prints what String returns, under every verb and flag.
func (k Key) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, k.String()) }

// LogValue logs the hash alone.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// KeyError says which part of a key is refused, why, and what to do. It holds
// nothing of the key itself, so it may be logged and sent to the caller. It
// matches [ErrInvalidKey].
type KeyError struct {
	Field  string // "value", "scope", "scope part 2" (the first is 1), or what ToolCallKey and StepKey name
	Reason string // "is empty"
	Do     string // what the caller should do
}

func (e *KeyError) Error() string {
	return "samekey: key: " + e.Field + " " + e.Reason + ": " + e.Do
}

// Is makes every KeyError match ErrInvalidKey.
func (e *KeyError) Is(target error) bool { return target == ErrInvalidKey }

const (
	adviceValue = "send 1 to 255 bytes of printable ASCII without spaces at the ends, such as a UUID, and the same with every attempt"
	adviceScope = "name the tenant or principal and the operation, in at most 255 bytes once escaped"
)

// checkText holds a value or a whole scope to the rules of both.
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

// checkPart holds a scope's part, before it is escaped, to what escaping cannot
// mend: a part that is missing or mangled is a mistake of the caller's, and
// would put its keys under another scope.
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

// escapePart writes part with "/", "%" and every byte outside printable ASCII
// as %XX, upper case.
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
