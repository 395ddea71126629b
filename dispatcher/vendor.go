package dispatcher

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Vendor describes a vendor account: what may be repeated there. [Dispatcher.Check] compares the policies of the
// destination's actions with it. A Vendor with a zero Key describes nothing, and Check compares nothing.
type Vendor struct {
	// Key is where the delivery key goes, and its form.
	Key KeyRules

	// Window is how long the vendor remembers a key, counted from the first attempt that may have reached it. [Forever]
	// is a value. Zero: not known. It is the default for the KeyWindow of idempotent writes, which may be shorter but
	// not longer.
	Window time.Duration

	// Replay is what the vendor answers to a key that it knows. Required if the vendor takes a key.
	Replay Replay

	// Mismatch is what the vendor answers to a key that it knows with another body. Zero: not known.
	//
	// An intent sends the same bytes at every attempt. So Mismatch matters only for a Send that makes its body itself,
	// without [Delivery].Render, and was changed between two attempts. If the vendor refuses the call, the intent is
	// dead or parked and a person sees why. If the vendor ignores the body, the intent is delivered with the answer to
	// the first body, and there is no warning.
	Mismatch Mismatch
}

// KeyPlace is where a vendor takes the key.
type KeyPlace int

// The places of a key.
const (
	KeyInHeader    KeyPlace = iota + 1 // a header of the request
	KeyInBody                          // a field of the body
	KeyInMessageID                     // the Message-ID of a mail, which alone makes nothing idempotent
	KeyNowhere                         // the vendor takes no key
)

// Replay is what a vendor answers to a key that it knows.
type Replay int

// The kinds of replay.
const (
	ReplayAnswer  Replay = iota + 1 // the first answer, errors included: a stored 500 never becomes a success
	ReplaySuccess                   // the first success; a failed call is executed again
	ReplayState                     // the current state of what the first call made
	ReplayNothing                   // nothing: the vendor executes the call again
)

// Mismatch is what a vendor answers to a key that it knows with another body.
type Mismatch int

// The kinds of mismatch.
const (
	MismatchRefused Mismatch = iota + 1 // an error; the vendor does not act
	MismatchIgnored                     // the body is not compared: the [Replay] of the first call
)

// KeyRules is how a vendor takes the key. A delivery key is a UUID of 36 characters. It is sent unchanged if it fits,
// else converted by [KeyRules.Project].
type KeyRules struct {
	Place KeyPlace

	// Name is the name of the header or of the body's field.
	Name string

	// MaxLength is how many characters the vendor takes. Default 255.
	MaxLength int

	// Alphabet lists the characters that the vendor takes, each once. Their order must never change. Default: visible
	// ASCII.
	Alphabet string

	// Quoted makes the header a string of RFC 9651, in double quotes, as in the IETF's draft.
	Quoted bool
}

// base36 is the alphabet of converted keys, unless the vendor does not take it.
const base36 = "0123456789abcdefghijklmnopqrstuvwxyz"

// Project returns the delivery key in the form that the vendor takes: unchanged, else its 32 hex digits, else its 128
// bits as a number in base 36 (25 characters), or in the vendor's own alphabet if that lacks base 36 or must be
// shorter. All keys of a vendor have the same length, and two keys never become one. It returns an error if 128 bits do
// not fit.
func (k KeyRules) Project(key uuid.UUID) (string, error) {
	limit := k.limit()
	if k.fits() {
		return key.String(), nil
	}
	hex := strings.ReplaceAll(key.String(), "-", "")
	if limit >= len(hex) && k.takes("0123456789abcdef") {
		return hex, nil
	}
	alphabet := k.Alphabet
	if k.takes(base36) && digitsOf(base36) <= limit {
		alphabet = base36
	}
	if alphabet == "" {
		for c := byte('!'); c <= '~'; c++ {
			alphabet += string(c)
		}
	}
	if need := digitsOf(alphabet); need > limit {
		return "", fmt.Errorf("%d is too short: the 128 bits of a key need %d characters of this alphabet", limit, need)
	}
	return inBase(key, alphabet), nil
}

// maxKeyLength is the longest key that a vendor is known to take.
const maxKeyLength = 255

func (k KeyRules) limit() int { return or(k.MaxLength, maxKeyLength) }

// fits reports whether delivery keys are sent unchanged.
func (k KeyRules) fits() bool { return k.limit() >= 36 && k.takes("0123456789abcdef-") }

// takes reports whether the vendor takes all characters of the text.
func (k KeyRules) takes(text string) bool {
	return k.Alphabet == "" || strings.Trim(text, k.Alphabet) == ""
}

// digitsOf is how many characters of the alphabet 128 bits need.
func digitsOf(alphabet string) (n int) {
	all, reach := new(big.Int).Lsh(big.NewInt(1), 128), big.NewInt(1)
	for ; reach.Cmp(all) < 0; n++ {
		reach.Mul(reach, big.NewInt(int64(len(alphabet))))
	}
	return n
}

// inBase writes the key's 128 bits as a number whose digits are the alphabet's characters, padded to one length.
func inBase(key uuid.UUID, alphabet string) string {
	rest, base, digit := new(big.Int).SetBytes(key[:]), big.NewInt(int64(len(alphabet))), new(big.Int)
	out := make([]byte, digitsOf(alphabet))
	for i := len(out) - 1; i >= 0; i-- {
		rest.DivMod(rest, base, digit)
		out[i] = alphabet[digit.Int64()]
	}
	return string(out)
}

// remembers reports whether the same key with the same request has one effect at this vendor, inside its window.
func (v Vendor) remembers() bool {
	return (v.Key.Place == KeyInHeader || v.Key.Place == KeyInBody) && v.Replay != ReplayNothing
}
