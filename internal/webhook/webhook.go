// Package webhook checks a receiver's URL, secrets and headers, for outbox/endpoints, which stores them, and
// dispatcher/httpvendor, which uses them. Its errors go after the name of a field, and quote nothing.
package webhook

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
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

// The prefixes of secrets of Standard Webhooks.
const (
	SecretPrefix  = "whsec_" // a secret that both sides know
	PrivatePrefix = "whsk_"  // an ed25519 private key: the receiver knows its public key
)

// The specification's limits of a secret that both sides know, in bytes.
const (
	minSecret = 24
	maxSecret = 64
)

// unsignable lists prefixes of secrets from other libraries that cannot sign here, and what to do about them.
var unsignable = []struct{ prefix, text string }{
	{"v1,", `starts with "v1,", which is the kind of signature: remove it`},
	{"v1a,", `starts with "v1a,", which is the kind of signature: remove it`},
	{"whpk_", "starts with whpk_, which is a public key and cannot sign: use the private key, which starts with whsk_, or a secret that starts with whsec_"},
}

// CheckText returns an error for a secret that signs in no form: what begins with a known prefix must be what the
// prefix says.
func CheckText(secret string) error {
	for _, form := range unsignable {
		if strings.HasPrefix(secret, form.prefix) {
			return errors.New(form.text)
		}
	}
	if strings.HasPrefix(secret, PrivatePrefix) {
		_, err := privateKey(secret)
		return err
	}
	return nil
}

// Key signs in the form of Standard Webhooks.
type Key struct {
	shared  []byte
	private ed25519.PrivateKey // nil: shared signs
}

// StandardKey returns the key in a secret of Standard Webhooks. That is the base64 of 24 to 64 bytes, with or without
// whsec_ before it; or whsk_ and the base64 of an ed25519 private key, as its seed of 32 bytes or whole. It returns an
// error for a secret that cannot sign.
func StandardKey(secret string) (Key, error) {
	if strings.HasPrefix(secret, PrivatePrefix) { // CheckText would derive the key once more
		private, err := privateKey(secret)
		return Key{private: private}, err
	}
	if err := CheckText(secret); err != nil {
		return Key{}, err
	}
	shared, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, SecretPrefix))
	if err != nil || len(shared) < minSecret || len(shared) > maxSecret {
		return Key{}, errors.New("is not whsec_ and the base64 of 24 to 64 bytes")
	}
	return Key{shared: shared}, nil
}

// privateKey reads what Ed25519 libraries call a seed, or a seed with its public key behind it.
func privateKey(secret string) (ed25519.PrivateKey, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, PrivatePrefix))
	if err != nil || len(key) != ed25519.SeedSize && len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("is not whsk_ and the base64 of 32 or 64 bytes, an ed25519 private key")
	}
	private := ed25519.NewKeyFromSeed(key[:ed25519.SeedSize])
	if !bytes.Equal(private[:len(key)], key) {
		return nil, errors.New("starts with whsk_, and its public key, the last 32 of 64 bytes, is not the one of its private key")
	}
	return private, nil
}

// Sign returns the signature of a message, with its kind: v1 for a shared secret, v1a for ed25519.
func (k Key) Sign(message []byte) string {
	if k.private != nil {
		return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(k.private, message))
	}
	return "v1," + base64.StdEncoding.EncodeToString(MAC(k.shared, message))
}

// MAC returns the HMAC-SHA256 of a message.
func MAC(key, message []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(message)
	return mac.Sum(nil)
}
