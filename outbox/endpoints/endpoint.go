package endpoints

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/internal/webhook"
)

// Endpoint is a receiver behind a destination. Destination, Name and URL are
// required.
type Endpoint struct {
	// Destination is the worker's, such as "webhooks": 1 to 56 lowercase letters,
	// digits, _ and -.
	Destination string

	// Name is what intents call it, in text of 1 to 255 bytes. By
	// httpvendor.StandardWebhooks it is the intent's part.
	Name string

	// URL is where it is: http or https, a host, at most 2048 bytes, the query
	// escaped. A path or a query in it may be a secret of the receiver's, so it
	// appears in no log, and is struck out of the answers that are kept, if it has
	// 6 bytes or more. Whether its address may be called, the worker says at each
	// call.
	URL string

	// Secrets sign each call, at most 8 of together 4096 bytes. Each is a secret of
	// Standard Webhooks: "whsec_" and the base64 of 24 to 64 bytes, as [NewSecret]
	// makes them. They are only written: [Get] and [List] leave them out.
	Secrets []string

	// OtherSecrets lets Secrets be any text. Set it where a handler of your own
	// signs in another way than Standard Webhooks; httpvendor cannot sign with
	// such a secret, and its intents would be dead. It is not stored.
	OtherSecrets bool

	// What follows is only read.

	StoppedAt  time.Time // zero: it is called
	StoppedBy  string    // who stopped it; empty: the receiver itself, by its answer
	StopReason string
	CreatedAt  time.Time
	ChangedAt  time.Time
}

// Stopped reports whether nothing is sent to it.
func (e Endpoint) Stopped() bool { return !e.StoppedAt.IsZero() }

// String names the endpoint, and shows neither its URL nor its secrets.
func (e Endpoint) String() string { return e.Destination + "/" + e.Name }

// Format writes what String returns, whatever the verb.
func (e Endpoint) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(e.String())) }

// NewSecret makes a secret of 32 random bytes, in the form of Standard Webhooks:
// "whsec_" and base64. Give it to the receiver once, over a safe way.
func NewSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return webhook.SecretPrefix + base64.StdEncoding.EncodeToString(key)
}

const (
	maxName    = 255
	maxURL     = 2048
	maxSecrets = 8
	maxSecret  = 4096 // all together
)

// check returns every mistake at once. It quotes neither URL nor secrets.
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
		errs = append(errs, fmt.Errorf("Secrets are %d of together %d bytes: give at most %d of %d", len(e.Secrets), length, maxSecrets, maxSecret))
	}
	return errors.Join(errs...)
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
		return errors.New("URL is not a valid one")
	case err != nil:
		return fmt.Errorf("URL %w", err)
	case !strings.HasPrefix(text, u.Scheme+":"): // in small letters, as the table has it
		return errors.New("URL must begin with https:// or http://")
	}
	return nil
}

// checkSecret refuses what the worker could not sign with: its intents would be dead, one after the other. The error says no
// part of the secret.
func checkSecret(secret string, other bool) error {
	if secret == "" || !utf8.ValidString(secret) || strings.ContainsRune(secret, 0) {
		return errors.New("is empty, or is not text in valid UTF-8 without NUL")
	}
	if other && !strings.HasPrefix(secret, webhook.SecretPrefix) {
		return nil
	}
	_, err := webhook.SecretKey(secret)
	if err != nil && !other {
		return fmt.Errorf("%w (OtherSecrets allows any text, for a handler of your own)", err)
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
