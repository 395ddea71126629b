package processed

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/names"
)

// defaultRetain is 72 hours: a bug that is shipped on Friday and left a request half done is repeated on Monday, and
// must still find its record.
const defaultRetain = 72 * time.Hour

const (
	// minRetain is longer than any client's quick retries.
	minRetain = time.Minute
	// maxRetain: a key that lives longer is a business rule. That belongs in a unique constraint of the application's
	// tables.
	maxRetain = 10 * 365 * 24 * time.Hour
)

// Request is what a key stands for.
type Request struct {
	// Key names the operation; see samekey.NewKey. Required.
	Key samekey.Key

	// Payload is the request. Only its fingerprint is stored: the same key with another payload is ErrConflict.
	// Required, except in Once.
	//
	//   - []byte, json.RawMessage and other types of bytes are the text of a JSON document, compared by its meaning
	//     (samekey.FingerprintJSON). This is the best form: the body as it arrived.
	//   - A samekey.Fingerprint is taken as it is: use samekey.FingerprintBytes(body) for a body that is not JSON.
	//   - Any other value is encoded as JSON (samekey.FingerprintValue). A struct with a new field is another request:
	//     a client that repeats a request across that deploy gets ErrConflict. A value that JSON does not show is
	//     refused: read an io.Reader, such as a request's Body, first. A string is a JSON string, compared character by
	//     character: pass a document as []byte.
	//
	// Whatever else distinguishes two requests (method, path, query) belongs in the payload too, or in the key's scope.
	Payload any

	// Subject is the application's own name of what the request is about, such as "booking/42". It is stored with the
	// record, and intents that the request inserts have it unless they set their own: outbox.List finds them by it. It is
	// not compared when the request is repeated. In Do inside another request, or inside an Apply, an empty Subject takes
	// the outer one. At most 255 bytes of printable text; use an id, and no personal data.
	Subject string

	// Retain is how long the record is kept at least, counted from its commit by the database's clock: 1 minute to 10
	// years, 0 for 72 hours. Keep it longer than anyone repeats the request: after Prune has deleted the record the key
	// is new, and the request is done again.
	Retain time.Duration

	// Isolation is the isolation level of Run's and Once's transaction; zero for the database's default. Under
	// RepeatableRead and Serializable a transaction that fails with SQLSTATE 40001 is run again, up to ten times. In Do
	// it must be zero, because the transaction is the caller's.
	Isolation pgx.TxIsoLevel
}

// memory is a checked Request: what is remembered under which key.
type memory struct {
	key         samekey.Key
	subject     string // empty: none
	fingerprint samekey.Fingerprint
	text        []byte // the JSON text behind the fingerprint; nil if the caller gave the fingerprint
	retain      time.Duration
	isolation   pgx.TxIsoLevel
	answers     bool  // false in Once: neither answers nor failures are stored
	step        *step // nil: the request's record; else one step of an operation
}

// Validate returns the error with which Run would refuse r before it asks the database, or nil. Use it at start for the
// fields that do not change between requests.
func (r Request) Validate() error {
	_, err := r.checked(true)
	return err
}

func (r Request) checked(answers bool) (*memory, error) {
	m := &memory{key: r.Key, subject: r.Subject, retain: r.Retain, isolation: r.Isolation, answers: answers}
	if err := r.Key.Validate(); err != nil {
		return nil, &RequestError{"Key", err}
	}
	if err := names.CheckText(r.Subject, names.MaxSubject); err != nil {
		return nil, &RequestError{"Subject", err}
	}
	if m.retain == 0 {
		m.retain = defaultRetain
	}
	if m.retain < minRetain || m.retain > maxRetain {
		return nil, &RequestError{"Retain", fmt.Errorf("is %s: give %s to %s, or zero for %s", r.Retain, minRetain, maxRetain, defaultRetain)}
	}
	levels := []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	if !slices.Contains(levels, r.Isolation) {
		return nil, &RequestError{"Isolation", errors.New("is not one of pgx's levels: use a constant such as pgx.Serializable")}
	}
	if r.Payload == nil && answers {
		return nil, &RequestError{"Payload", errors.New("is nil: give the request's body, so that another request with the same key is noticed")}
	}
	if err := m.takePayload(r.Payload); err != nil {
		return nil, &RequestError{"Payload", err}
	}
	return m, nil
}

func (m *memory) takePayload(payload any) (err error) {
	if p, ok := payload.(samekey.Fingerprint); ok {
		if p == (samekey.Fingerprint{}) {
			return errors.New("is the zero Fingerprint: make one with samekey.FingerprintBytes or FingerprintJSON")
		}
		m.fingerprint = p
		return nil
	}
	if text, ok := jsonvalue.Bytes(payload); ok {
		m.text = text
		m.fingerprint, err = samekey.FingerprintJSON(text)
		return err
	}
	// FingerprintValue refuses what Marshal would repair: broken UTF-8, and a reader, which it encodes as {}.
	if m.fingerprint, err = samekey.FingerprintValue(payload); err != nil {
		return err
	}
	m.text, err = json.Marshal(payload)
	return err
}
