// Package names holds the rules for names and texts that several packages accept. The database checks the same rules.
package names

import (
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"
)

var (
	action      = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,62}$`)
	destination = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,55}$`)
	token       = regexp.MustCompile("^" + TokenPattern + "$")
)

// unprintable matches control characters, line separators, and invisible characters that change or hide other text.
// Unicode's own classes differ between releases of Go and Postgres.
var unprintable = regexp.MustCompile(`[\x00-\x1f\x7f-\x{9f}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{206f}\x{feff}]`)

// CheckText returns an error if the text is longer than limit bytes or not printable. The error goes after the name of a
// field, and does not quote the text.
func CheckText(text string, limit int) error {
	switch {
	case len(text) > limit:
		return fmt.Errorf("is %d bytes long, more than %d: shorten it, or use a digest", len(text), limit)
	case !utf8.ValidString(text) || unprintable.MatchString(text):
		return errors.New("must be printable text in valid UTF-8")
	}
	return nil
}

// Printable replaces each character that CheckText refuses.
func Printable(text string) string { return unprintable.ReplaceAllString(text, "\uFFFD") }

// MaxSubject is the limit of a subject in bytes.
const MaxSubject = 255

// TokenPattern matches a token of HTTP (RFC 9110, section 5.6.2), as part of a larger regular expression.
const TokenPattern = "[A-Za-z0-9!#$%&'*+.^_`|~-]+"

// CheckAction returns an error if this cannot be the name of an action. The error goes after the name of a field.
func CheckAction(name string) error {
	if !action.MatchString(name) {
		return errors.New(`must be 1 to 63 of a-z, 0-9, "_", "." and "-", and start with a letter, as in "charge_card"`)
	}
	return nil
}

// CheckDestination returns an error if this cannot be the name of a destination. The error goes after the name of a
// field.
func CheckDestination(name string) error {
	if !destination.MatchString(name) {
		return errors.New(`must be 1 to 56 of a-z, 0-9, "_" and "-", and start with a letter or a digit, as in "stripe"`)
	}
	return nil
}

// CheckDeployment returns an error if this cannot be the name of a deployment. The error goes after the name of a field.
func CheckDeployment(name string) error {
	if !destination.MatchString(name) {
		return errors.New(`must be 1 to 56 of a-z, 0-9, "_" and "-", and start with a letter or a digit, as in "production"`)
	}
	return nil
}

// IsToken reports whether this is a token of HTTP, such as the name of a header or a method.
func IsToken(text string) bool { return token.MatchString(text) }
