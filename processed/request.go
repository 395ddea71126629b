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
)

// DefaultRetain is how long a record is kept where Request.Retain is zero. 72
// hours: what a bug shipped on Friday left half done is repeated on Monday, and
// must still meet its record.
const DefaultRetain = 72 * time.Hour

const (
	// minRetain is longer than any client goes on with its quick retries.
	minRetain = time.Minute
	// maxRetain: who keeps a key for longer means a business rule, which belongs
	// in a unique constraint of his own tables.
	maxRetain = 10 * 365 * 24 * time.Hour
)

// Request is what a key stands for.
type Request struct {
	// Key names the operation; see samekey.NewKey. Required.
	Key samekey.Key

	// Payload is the request, of which only the fingerprint is stored: the same
	// key with another payload is ErrConflict. Required, except in Once.
	//
	//   - []byte, json.RawMessage and other types of bytes are the text of a JSON
	//     document, and compared by its meaning (samekey.FingerprintJSON). Best: the
	//     body as it arrived.
	//   - samekey.Fingerprint is taken as it is: samekey.FingerprintBytes(body)
	//     for what is not JSON.
	//   - Any other value is encoded as JSON (samekey.FingerprintValue). Mind that
	//     a struct with a new field is another request: a client that repeats a
	//     request across that deploy gets ErrConflict. What JSON shows nothing of
	//     is refused: an io.Reader, such as a request's Body, has to be read
	//     first; so is a struct without exported fields. A string is a JSON string,
	//     compared character by character: give a document as []byte.
	//
	// What else makes two requests different (method, path, query) belongs in it
	// too, or in the key's scope.
	Payload any

	// Retain is how long the record is kept at least, counted from its commit by
	// the database's clock: 1 minute to 10 years, zero for DefaultRetain. Keep it
	// longer than anybody repeats the request: once Prune has deleted the record,
	// the key is new, and its request is done again.
	Retain time.Duration

	// Isolation is that of Run's and Once's transaction; zero for the database's
	// default. Under RepeatableRead and Serializable a transaction that fails with
	// SQLSTATE 40001 is run again, a few times. In Do it must be zero, since the
	// transaction is the caller's.
	Isolation pgx.TxIsoLevel
}

// memory is a Request, checked: what is remembered under which key.
type memory struct {
	key         samekey.Key
	fingerprint samekey.Fingerprint
	text        []byte // the JSON text behind the fingerprint; nil where the caller gave the fingerprint
	retain      time.Duration
	isolation   pgx.TxIsoLevel
	answers     bool // false in Once: neither answers nor failures are kept
}

// Validate returns what Run would refuse r for before it asks the database, and
// nil for nothing: to check at start what does not change between requests.
func (r Request) Validate() error {
	_, err := r.checked(true)
	return err
}

func (r Request) checked(answers bool) (*memory, error) {
	m := &memory{key: r.Key, retain: r.Retain, isolation: r.Isolation, answers: answers}
	if err := r.Key.Validate(); err != nil {
		return nil, &RequestError{"Key", err}
	}
	if m.retain == 0 {
		m.retain = DefaultRetain
	}
	if m.retain < minRetain || m.retain > maxRetain {
		return nil, &RequestError{"Retain", fmt.Errorf("is %s: give %s to %s, or zero for %s", r.Retain, minRetain, maxRetain, DefaultRetain)}
	}
	levels := []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	if !slices.Contains(levels, r.Isolation) {
		return nil, &RequestError{"Isolation", errors.New("is not one of pgx's levels: use a constant such as pgx.Serializable")}
	}
	if r.Payload == nil && answers {
		return nil, &RequestError{"Payload", errors.New("is nil: give the request (its body), so that the same key with another request is found out")}
	}
	if err := m.takePayload(r.Payload); err != nil {
		return nil, &RequestError{"Payload", err}
	}
	return m, nil
}

func (m *memory) takePayload(payload any) (err error) {
	if p, ok := payload.(samekey.Fingerprint); ok {
		if p.IsZero() {
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
	// FingerprintValue looks closer than Marshal, which repairs broken UTF-8 and
	// takes a reader for {}.
	if m.fingerprint, err = samekey.FingerprintValue(payload); err != nil {
		return err
	}
	m.text, err = json.Marshal(payload)
	return err
}
