// Package webhook checks a receiver's URL and secrets, for outbox/endpoints, which stores them, and
// dispatcher/httpvendor, which uses them. Its errors go after the name of a field, and quote nothing.
package webhook

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"
	"strings"
)

// ErrSyntax means that a text is not a URL.
var ErrSyntax = errors.New("is not a valid URL")

// ParseURL parses a URL that can be called over HTTP.
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
		return nil, errors.New("has a fragment (#...), which HTTP does not send")
	case strings.ContainsFunc(u.RawQuery, mustEscape):
		return nil, errors.New("has a query with a space or a character that is not ASCII: escape it, as in %20")
	case !isPort(u.Port()):
		return nil, errors.New("has a port outside of 1 to 65535")
	}
	return u, nil
}

// mustEscape reports whether r must be escaped in a query. A query is sent unchanged, and servers answer 400 to a
// space.
func mustEscape(r rune) bool { return r <= ' ' || r > '~' }

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return text == "" || err == nil && port > 0
}

// SecretPrefix is the prefix of a secret of Standard Webhooks.
const SecretPrefix = "whsec_"

// The specification's limits of a secret, in bytes.
const (
	minSecret = 24
	maxSecret = 64
)

// unsignable lists prefixes of secrets from other libraries that cannot sign here, and what to do about them.
var unsignable = []struct{ prefix, text string }{
	{"v1,", `starts with "v1,", which is the kind of signature: remove it`},
	{"v1a,", "starts with v1a, which marks an ed25519 signature; samekey does not sign with ed25519: use a secret that starts with whsec_"},
	{"whsk_", "starts with whsk_, which is an ed25519 private key; samekey does not sign with ed25519: use a secret that starts with whsec_"},
	{"whpk_", "starts with whpk_, which is a public key and cannot sign: use a secret that starts with whsec_"},
}

// SecretKey returns the key in a secret of Standard Webhooks: the base64 of 24 to 64 bytes, with or without whsec_
// before it. It returns an error for a secret that cannot sign.
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
