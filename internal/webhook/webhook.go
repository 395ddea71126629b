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

// SecretPrefix begins a secret of Standard Webhooks.
const SecretPrefix = "whsec_"

// The specification's limits of a secret, in bytes.
const (
	minSecret = 24
	maxSecret = 64
)

// unsignable are the beginnings of secrets that come from other libraries and cannot sign as they are, with what to do.
var unsignable = []struct{ prefix, text string }{
	{"v1,", "begins with v1, which names the kind of signature: leave v1, out"},
	{"v1a,", "begins with v1a, the mark of an ed25519 signature, which samekey does not make: make a secret that begins with whsec_"},
	{"whsk_", "begins with whsk_, the private key of an ed25519 signature, which samekey does not make: make a secret that begins with whsec_"},
	{"whpk_", "begins with whpk_, a public key, which signs nothing: make a secret that begins with whsec_"},
}

// SecretKey returns the key that a secret of Standard Webhooks holds: base64 of 24 to 64 bytes, with or without the prefix
// whsec_. The error is for a secret that cannot sign.
func SecretKey(secret string) ([]byte, error) {
	for _, form := range unsignable {
		if strings.HasPrefix(secret, form.prefix) {
			return nil, errors.New(form.text)
		}
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, SecretPrefix))
	if err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil, errors.New("is not whsec_ and the base64 of 24 to 64 bytes")
	}
	return key, nil
}
