package dispatcher

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Vendor is what is known of a vendor account: what may be repeated there follows from it, and [Dispatcher.Check] holds
// the policies of the destination's actions to it. Where Key is zero nothing is known, and nothing is held to it.
type Vendor struct {
	// Key says where the delivery key goes and what it may look like.
	Key KeyRules

	// Window is how long the vendor remembers a key, counted from the first attempt that may have reached it; [Forever]
	// is a value, zero means that it is not known. It is the default of the KeyWindow of idempotent writes, which may be
	// shorter and not longer.
	Window time.Duration

	// Replay is what the same key gets again. Required where the vendor takes a key.
	Replay Replay

	// Mismatch is what the same key gets with another body. Zero: not known. An intent sends the same bytes at every
	// attempt, so it matters for a handler in Go that makes its body itself, without [Delivery].Render, and was changed between
	// two attempts: where the vendor refuses, the intent comes to rest and a person sees why; where it ignores the body,
	// the intent is delivered with the answer to what was asked first, which is not what the new handler asked for, and
	// nobody is told.
	Mismatch Mismatch
}

// KeyPlace is where a vendor takes the key.
type KeyPlace int

// The places of a key.
const (
	KeyInHeader    KeyPlace = iota + 1 // a header of the request
	KeyInBody                          // a field of the body
	KeyInMessageID                     // the Message-ID of a mail, which makes nothing idempotent by itself
	KeyNowhere                         // the vendor knows no keys
)

// Replay is what a vendor answers when a key comes again.
type Replay int

// The kinds of replay.
const (
	ReplayAnswer  Replay = iota + 1 // the first answer, errors too: a stored 500 can never become a success
	ReplaySuccess                   // the first success; what failed is done again
	ReplayState                     // what the first call made, as it is now
	ReplayNothing                   // it does it again
)

// Mismatch is what a vendor does with a key that comes again with another body.
type Mismatch int

// The kinds of mismatch.
const (
	MismatchRefused Mismatch = iota + 1 // an error that says so; nothing is done
	MismatchIgnored                     // the body is not compared: what [Replay] says, for the first one
)

// KeyRules is how a vendor wants the key. A delivery key, which is a UUID of 36 characters, goes as it is wherever it
// fits; where it does not it is projected, by [KeyRules.Project].
type KeyRules struct {
	Place KeyPlace

	// Name is that of the header or of the body's field.
	Name string

	// MaxLength is how many characters the vendor takes; zero for 255.
	MaxLength int

	// Alphabet lists the characters that the vendor takes, in an order that must never change, each once. Empty: all
	// of ASCII that can be seen.
	Alphabet string

	// Quoted has the header carry a string of RFC 9651, in double quotes, as the IETF's draft has it.
	Quoted bool
}

// base36 is what a key is projected on where the vendor takes more than a few characters.
const base36 = "0123456789abcdefghijklmnopqrstuvwxyz"

// Project returns the delivery key in the form that the vendor takes: as it is, else its 32 hex digits, else its 128 bits
// as a number in base 36 (25 characters), or in the vendor's own alphabet where that is another or has to be shorter. Each
// is as long for every key, and two keys never become one. An error says that 128 bits do not fit.
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

// maxKeyLength is the longest key that any vendor takes, as far as is known.
const maxKeyLength = 255

func (k KeyRules) limit() int { return or(k.MaxLength, maxKeyLength) }

// fits reports whether delivery keys go as they are.
func (k KeyRules) fits() bool { return k.limit() >= 36 && k.takes("0123456789abcdef-") }

// takes reports whether all of text's characters are ones that the vendor takes.
func (k KeyRules) takes(text string) bool {
	return k.Alphabet == "" || strings.Trim(text, k.Alphabet) == ""
}

// digitsOf is how many characters of the alphabet hold 128 bits.
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
