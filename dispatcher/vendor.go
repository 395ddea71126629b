package dispatcher

import (
	"errors"
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

// minAlphabet is the smallest that makes sense: digits.
const minAlphabet = 10

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
		return "", fmt.Errorf("the key's 128 bits need %d characters of this alphabet, and the vendor takes %d", need, limit)
	}
	return inBase(key, alphabet), nil
}

func (k KeyRules) limit() int { return or(k.MaxLength, 255) }

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

// check returns every mistake in the description itself.
func (v Vendor) check() (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	k := v.Key
	switch {
	case k.Place < KeyInHeader || k.Place > KeyNowhere:
		fail("Key.Place is missing: say where the vendor takes the key (in a header, in the body, in the Message-ID, nowhere)")
	case (k.Place == KeyInHeader || k.Place == KeyInBody) && k.Name == "":
		fail("Key.Name is missing: name the header or the field")
	}
	if k.Quoted && k.Place != KeyInHeader {
		fail("Key.Quoted has a meaning for a header only")
	}
	if v.Window < 0 {
		fail("Window %v is negative", v.Window)
	}
	takesKey := k.Place == KeyInHeader || k.Place == KeyInBody
	switch {
	case takesKey && (v.Replay < ReplayAnswer || v.Replay > ReplayNothing):
		fail("Replay is missing: say what the same key gets again (the answer, a success, the state, nothing)")
	case !takesKey && v.Replay != 0 && v.Replay != ReplayNothing:
		fail("Replay contradicts Key.Place: a vendor that takes no key replays nothing")
	}
	switch {
	case v.Mismatch < 0 || v.Mismatch > MismatchIgnored:
		fail("Mismatch %d is not known: say what the same key gets with another body (it is refused, or the body is ignored), or leave it out", v.Mismatch)
	case v.Mismatch != 0 && k.Place > 0 && !takesKey:
		fail("Mismatch contradicts Key.Place: a vendor that takes no key compares nothing with it")
	case v.Mismatch != 0 && v.Replay == ReplayNothing:
		fail("Mismatch contradicts Replay: a vendor that does it again compares nothing with what it did before")
	}
	if err := k.check(); err != nil {
		fail("Key%w", err)
	}
	return errs
}

func (k KeyRules) check() error {
	seen := map[rune]bool{}
	for _, c := range k.Alphabet {
		if c < '!' || c > '~' || seen[c] {
			return errors.New(".Alphabet must be of visible ASCII, each character once")
		}
		seen[c] = true
	}
	switch {
	case k.MaxLength < 0 || k.MaxLength > 255:
		return fmt.Errorf(".MaxLength %d is outside 1 to 255", k.MaxLength)
	case k.Alphabet != "" && len(k.Alphabet) < minAlphabet:
		return fmt.Errorf(".Alphabet has %d characters: give at least %d", len(k.Alphabet), minAlphabet)
	}
	if _, err := k.Project(uuid.Max); err != nil {
		return fmt.Errorf(".MaxLength: %w", err)
	}
	return nil
}

// remembers reports whether the same key with the same request has one effect at this vendor, inside its window.
func (v Vendor) remembers() bool {
	return (v.Key.Place == KeyInHeader || v.Key.Place == KeyInBody) && v.Replay != ReplayNothing
}

// contradicts returns what of a policy cannot be with this vendor.
func (v Vendor) contradicts(p Policy, action string) (errs []error) {
	if v.Key.Place == 0 {
		return nil
	}
	if p.Class == IdempotentWrite && !v.remembers() {
		errs = append(errs, fmt.Errorf("dispatcher: %s: Class %v contradicts the vendor, which does a repeated call again: it is a %v", action, p.Class, NonIdempotentWrite))
	}
	if v.Window > 0 && p.KeyWindow > v.Window {
		errs = append(errs, fmt.Errorf("dispatcher: %s: KeyWindow %v is longer than the vendor's Window %v", action, p.KeyWindow, v.Window))
	}
	return errs
}
