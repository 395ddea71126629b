// Package webhook holds what is true of a receiver's URL and secrets wherever they come in: where an application keeps them
// (outbox/endpoints), and where a worker goes by them (dispatcher/httpvendor). Its errors are parts of a sentence behind the
// name of the field, and quote nothing.
package webhook

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"
	"strings"
)

// ErrSyntax says that a text is no URL at all.
var ErrSyntax = errors.New("is not a valid URL")

// ParseURL reads a URL that can be called over HTTP.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, errors.New("is missing")
	case err != nil:
		return nil, ErrSyntax
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.Fragment != "":
		return nil, errors.New("has a fragment (#...), which is never sent")
	case strings.ContainsFunc(u.RawQuery, mustEscape):
		return nil, errors.New("has a query with a space, or with what is not ASCII: escape it, such as by %20")
	case !isPort(u.Port()):
		return nil, errors.New("has a port outside of 1 to 65535")
	}
	return u, nil
}

// mustEscape: a query goes out as it stands, and servers answer 400 to a space in it.
func mustEscape(r rune) bool { return r <= ' ' || r > '~' }

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return text == "" || err == nil && port > 0
}

// SecretPrefix is what a secret of Standard Webhooks begins with.
const SecretPrefix = "whsec_"

// The specification's limits of a secret, in bytes.
const (
	minSecret = 24
	maxSecret = 64
)

// SecretKey returns the key that stands, in base64, for a secret of Standard Webhooks, given without its prefix. It says
// false where that is none.
func SecretKey(bare string) (key []byte, ok bool) {
	key, err := base64.StdEncoding.DecodeString(bare)
	return key, err == nil && len(key) >= minSecret && len(key) <= maxSecret
}
