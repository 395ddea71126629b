package endpoints

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/internal/webhook"
)

// Endpoint is a receiver behind a destination. Destination, Name and URL are required.
type Endpoint struct {
	// Destination is the worker's destination, such as "webhooks": 1 to 56 lowercase letters, digits, "_" and "-".
	Destination string

	// Name identifies the endpoint in intents: with httpvendor.StandardWebhooks it is the intent's part. 1 to 255 bytes
	// of text.
	Name string

	// URL is the receiver's URL: http or https, with a host and an escaped query, at most 2048 bytes. Its path or query
	// may be a secret of the receiver, so it appears in no log, and is removed from stored answers if it has 6 bytes or
	// more. The worker checks at each call that the address is allowed.
	URL string

	// Secrets sign each call. Each is a secret of Standard Webhooks: "whsec_" and the base64 of 24 to 64 bytes, as
	// [NewSecret] returns; or "whsk_" and the base64 of an ed25519 private key (its seed of 32 bytes, or 64 bytes), whose
	// public key the receiver knows. At most 8, of 4096 bytes together. They are write-only: [Get] and [List] leave them
	// out.
	Secrets []string

	// OtherSecrets allows any text in Secrets that has none of the prefixes of Standard Webhooks. Set it if the
	// destination signs in another form (httpvendor.Destination.Signature), or if a handler of your own signs. If the
	// destination signs in the form of Standard Webhooks alone, the intents of such a secret become dead. It is not
	// stored.
	OtherSecrets bool

	// Headers are sent with each call and lookup, such as an Authorization that the receiver asks for, or the name of an
	// environment. They take precedence over the headers of the destination and of the action. Their values may be
	// credentials: they appear in no log, and are removed from stored answers if they have 6 bytes or more. The headers of
	// the connection (Host, Content-Length, ...) and those that the worker sets (Content-Type, Idempotency-Key,
	// Traceparent, those of signatures, ...) are refused. At most 8192 bytes of names and values together. They are
	// write-only, as Secrets are.
	Headers map[string]string

	// The following fields are read-only.

	StoppedAt  time.Time // zero: not stopped
	StoppedBy  string    // the person; empty if the receiver stopped it, by its answer or by failing
	StopReason string
	CreatedAt  time.Time
	ChangedAt  time.Time
}

// Stopped reports whether the endpoint is stopped: nothing is sent to it.
func (e Endpoint) Stopped() bool { return !e.StoppedAt.IsZero() }

// String returns the destination and the name, without URL and secrets.
func (e Endpoint) String() string { return e.Destination + "/" + e.Name }

// Format writes String for every verb, so that no verb prints secrets.
func (e Endpoint) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(e.String())) }

// NewSecret returns a new secret of Standard Webhooks: "whsec_" and the base64 of 32 random bytes. Show it to the
// receiver once, over a secure channel.
func NewSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return webhook.SecretPrefix + base64.StdEncoding.EncodeToString(key)
}

const (
	maxName    = 255
	maxURL     = 2048
	maxSecrets = 8
	maxSecret  = 4096 // of all together
	maxHeaders = 8192 // of all names and values together
)

// check returns all mistakes at once. It quotes neither URL nor secrets.
func (e Endpoint) check() error {
	errs := []error{checkName(e.Destination, e.Name), checkURL(e.URL)}
	length := 0
	for i, secret := range e.Secrets {
		length += len(secret)
		if err := checkSecret(secret, e.OtherSecrets); err != nil {
			errs = append(errs, fmt.Errorf("Secrets[%d] %w", i, err))
		}
	}
	if len(e.Secrets) > maxSecrets || length > maxSecret {
		errs = append(errs, fmt.Errorf("Secrets are %d, of %d bytes together: at most %d, of %d bytes, are allowed", len(e.Secrets), length, maxSecrets, maxSecret))
	}
	return errors.Join(append(errs, checkHeaders(e.Headers)...)...)
}

// checkHeaders returns errors that quote no value.
func checkHeaders(headers map[string]string) (errs []error) {
	length := 0
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value, lower := headers[name], strings.ToLower(name)
		length += len(name) + len(value)
		if err := webhook.CheckReceiverHeader(name, value); err != nil {
			errs = append(errs, fmt.Errorf("Headers: %w", err))
		} else if !utf8.ValidString(value) {
			errs = append(errs, fmt.Errorf("Headers: the value of %q is not valid UTF-8", name))
		} else if seen[lower] {
			errs = append(errs, fmt.Errorf("Headers: %q is set twice", name))
		}
		seen[lower] = true
	}
	if length > maxHeaders {
		errs = append(errs, fmt.Errorf("Headers have %d bytes, more than %d", length, maxHeaders))
	}
	return errs
}

func checkName(destination, name string) error {
	var errs []error
	if err := names.CheckDestination(destination); err != nil {
		errs = append(errs, fmt.Errorf("Destination %w", err))
	}
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		errs = append(errs, fmt.Errorf("Name must be text of 1 to %d bytes in valid UTF-8, without NUL", maxName))
	}
	return errors.Join(errs...)
}

func checkURL(text string) error {
	switch u, err := webhook.ParseURL(text); {
	case len(text) > maxURL:
		return fmt.Errorf("URL is %d bytes long, more than %d", len(text), maxURL)
	case errors.Is(err, webhook.ErrSyntax) || !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return errors.New("URL is not valid")
	case err != nil:
		return fmt.Errorf("URL %w", err)
	case !strings.HasPrefix(text, u.Scheme+":"): // the table takes lowercase schemes only
		return errors.New("URL must begin with https:// or http://")
	}
	return nil
}

// checkSecret refuses a secret that the worker cannot sign with, since all intents of the endpoint would become dead.
// The error quotes no part of the secret.
func checkSecret(secret string, other bool) error {
	if secret == "" || !utf8.ValidString(secret) || strings.ContainsRune(secret, 0) {
		return errors.New("must be text in valid UTF-8, not empty and without NUL")
	}
	_, err := webhook.StandardKey(secret)
	switch text := webhook.CheckText(secret); {
	case text != nil:
		return text
	case other && !strings.HasPrefix(secret, webhook.SecretPrefix):
		return nil
	case err != nil && !other:
		return fmt.Errorf("%w (OtherSecrets allows any text, for a destination with another form of signatures)", err)
	}
	return err
}

func endpoint(row db.EndpointsGetRow) Endpoint {
	e := Endpoint{Destination: row.Destination, Name: row.Name, URL: row.Url, CreatedAt: row.CreatedAt, ChangedAt: row.ChangedAt}
	if row.StoppedAt != nil {
		e.StoppedAt, e.StopReason = *row.StoppedAt, *row.StopReason
	}
	if row.StoppedBy != nil {
		e.StoppedBy = *row.StoppedBy
	}
	return e
}
