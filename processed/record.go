package processed

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/reply"
)

// maxAnswer is what the table's CHECK allows.
const maxAnswer = 1 << 20

// Result is the answer to a request: the first time what the function returned,
// later what was stored then.
type Result[T any] struct {
	// Value is the answer, the same the first time and at each replay: what JSON
	// keeps of what the function returned. Unexported fields are gone, a time has
	// lost its monotonic clock, and a number in an interface is a json.Number, with
	// all its digits. It is zero where the answer is a failure.
	Value T

	// Deduplicated says that this is what was stored under the key, the first
	// answer: the request was done before. It is also set where this call's own
	// commit was found to have happened after its connection was lost, so false
	// means that the work is this call's, and true does not quite mean that it is
	// another's. It is also told beside a *Failure.
	Deduplicated bool
}

// Failure is a business error that is kept under the key and replays like any
// answer: the card was declined, the seat is taken. [Run] and [Do] return it as
// their error, the first time and at each replay. Find it with errors.As.
//
// After [Do] commit all the same: the failure is stored by the caller's commit,
// and everything else that the function wrote is taken back already. A caller who
// rolls back has stored nothing, and the request is done again when it is made
// again. A function that returns a Failure of another request, done with Do inside
// it, ends with that failure itself: all that it wrote is rolled back, the other
// request included, and the failure is stored under its own key.
type Failure struct {
	Code int             // as given to Fail
	Body json.RawMessage // as given to Fail, in JSON
}

// Error names the code, not the body.
func (f *Failure) Error() string {
	return fmt.Sprintf("processed: the request was answered with failure %d", f.Code)
}

// Decode reads the body into v, as json.Unmarshal does.
func (f *Failure) Decode(v any) error { return json.Unmarshal(f.Body, v) }

// Fail returns the error with which a function says that the request has an
// answer, and that it is a no: everything that the function wrote is rolled
// back, queued intents too, and the failure is stored under the key. [Run] and
// [Do] then return it, a [*Failure], as their error, the first time and at each
// replay: who does not look for it treats the no as an error, and never as a
// success.
//
// Code is yours, an HTTP status for example; body is encoded as JSON, at most 1
// MiB. A []byte or json.RawMessage is the text of a JSON document, and kept as it
// is. Keep what would be the same if the request were made again. What is not
// about the request (a failed validation or authentication, a timeout, a rate
// limit, a bug) is an ordinary error: it stores nothing, so that the key can be
// used again.
//
// It may be wrapped. Where body cannot be encoded, or is bytes that are no JSON
// in valid UTF-8, the error is an ordinary one.
func Fail(code int, body any) error {
	if code < math.MinInt32 || code > math.MaxInt32 {
		return fmt.Errorf("processed: Fail: code %d does not fit 32 bits", code)
	}
	text, err := failureBody(body)
	if err != nil {
		return fmt.Errorf("processed: Fail: %w", err)
	}
	return &Failure{Code: code, Body: text}
}

func failureBody(body any) (text []byte, err error) {
	text, ok := jsonvalue.Bytes(body)
	if !ok {
		if text, err = json.Marshal(body); err != nil {
			return nil, unencodable("body", body, err)
		}
		if jsonvalue.Replaced(body, text) != nil {
			return nil, fmt.Errorf("the body, a %T, has a string that is not valid UTF-8", body)
		}
		return text, nil
	}
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, fmt.Errorf("the body is a %T that is not JSON in valid UTF-8: give a value to be encoded, or JSON text", body)
	}
	return text, nil
}

// unencodable names types only: an encoder's error may quote the value.
func unencodable(what string, value any, err error) error {
	return fmt.Errorf("the %s, a %T, cannot be encoded as JSON (%T)", what, value, err)
}

// answer is a Result before its type is known: what the record keeps.
type answer struct {
	code   *int32
	header []byte
	body   []byte
	failed bool // nothing else of the request was kept
	replay bool
}

// outcome turns what was stored, or what has just been, into a Result.
func outcome[T any](ans answer, value T) (Result[T], error) {
	res := Result[T]{Deduplicated: ans.replay}
	if into, ok := any(&res.Value).(*reply.Reply); ok {
		*into = reply.Reply{Code: ans.statusCode(), Header: ans.header, Body: ans.body, RolledBack: ans.failed}
		return res, nil
	}
	switch {
	case ans.failed:
		return res, &Failure{Code: ans.statusCode(), Body: ans.body}
	case !ans.replay:
		res.Value = value
		return res, nil
	}
	return res, decode(ans.body, &res.Value)
}

func (a *answer) statusCode() int {
	if a.code == nil {
		return 0
	}
	return int(*a.code)
}

// keepable returns what is stored of an answer, and the answer as it is when it
// comes back: the first caller gets what every replay will. An answer that comes
// back as another one is refused.
func keepable[T any](value T) (ans answer, kept T, err error) {
	plain, err := encode(&value, &ans)
	if err = cmp.Or(err, ans.checkSize()); err != nil || plain {
		return ans, value, err
	}
	if jsonvalue.Replaced(value, ans.body) != nil {
		return answer{}, kept, fmt.Errorf("%w: a %T with a string that is not valid UTF-8", ErrAnswerInexact, value)
	}
	if decode(ans.body, &kept) != nil {
		return answer{}, kept, fmt.Errorf("%w: a %T cannot be decoded from its JSON", ErrAnswerInexact, value)
	}
	again, err := json.Marshal(kept)
	if err != nil || !bytes.Equal(again, ans.body) && !sameMeaning(again, ans.body) {
		return answer{}, kept, fmt.Errorf("%w: a %T decodes to another value than was encoded", ErrAnswerInexact, value)
	}
	return ans, kept, nil
}

// encode encodes the answer that value points to: bytes as they are, nothing of an
// empty struct, JSON of the rest. What is not JSON comes back as it is.
func encode(value any, ans *answer) (plain bool, err error) {
	switch v := value.(type) {
	case *reply.Reply:
		*ans = replied(v)
	case *[]byte:
		ans.body = *v
	case *json.RawMessage:
		ans.body = *v
	case *struct{}:
	default:
		if ans.body, err = json.Marshal(v); err != nil {
			return false, fmt.Errorf("processed: %w", unencodable("answer", reflect.ValueOf(v).Elem().Interface(), err))
		}
		return false, nil
	}
	return true, nil
}

// sameMeaning compares two documents without regard to the order of members: a
// struct in an interface comes back as a map.
func sameMeaning(a, b []byte) bool {
	x, err := samekey.FingerprintJSON(a)
	y, err2 := samekey.FingerprintJSON(b)
	return err == nil && err2 == nil && x == y
}

func replied(r *reply.Reply) answer {
	code := int32(r.Code)
	return answer{code: &code, header: r.Header, body: r.Body}
}

func (a *answer) checkSize() error {
	if size := len(a.body); size > maxAnswer {
		return fmt.Errorf("%w (it has %d bytes)", ErrAnswerTooLarge, size)
	}
	if size := len(a.header); size > reply.MaxHeader {
		return fmt.Errorf("%w (its headers have %d bytes, of which %d fit)", ErrAnswerTooLarge, size, reply.MaxHeader)
	}
	return nil
}

func decode(body []byte, into any) error {
	switch v := into.(type) {
	case *[]byte:
		*v = body
		return nil
	case *json.RawMessage:
		*v = body
		return nil
	case *struct{}:
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // an integer in an interface keeps its digits
	if err := decoder.Decode(into); err != nil {
		// The decoder's error may quote the answer.
		return fmt.Errorf("%w (%T)", ErrAnswerUnreadable, into)
	}
	return nil
}

// find scans what ProcessedEventsFind found; nil if nothing.
func find(row pgx.Row) (*db.ProcessedEventsFindRow, error) {
	var r db.ProcessedEventsFindRow
	err := row.Scan(&r.PayloadHash, &r.HashVersion, &r.InProgress, &r.Failed, &r.ResponseCode, &r.ResponseHeaders, &r.ResponseBody)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// replay answers from the record. Every replay comes through here, and here the
// request is held against the one that the key was first used with.
func (m *memory) replay(record *db.ProcessedEventsFindRow) (answer, error) {
	if err := m.compare(record); err != nil {
		return answer{}, err
	}
	if record.InProgress {
		return answer{}, m.named(ErrInFlight)
	}
	return answer{
		code: record.ResponseCode, header: record.ResponseHeaders, body: record.ResponseBody, failed: record.Failed, replay: true,
	}, nil
}

// compare returns ErrConflict where the record is another request's. A record
// of another fingerprint version is compared under that version.
func (m *memory) compare(record *db.ProcessedEventsFindRow) error {
	mine := m.fingerprint
	if mine.Version != record.HashVersion {
		if m.text == nil {
			return fmt.Errorf("processed: key:%s was stored with fingerprint version %d, and Request.Payload is a fingerprint of version %d: give the request's bytes, so that they can be compared",
				m.key.Hash(), record.HashVersion, mine.Version)
		}
		var err error
		if mine, err = samekey.FingerprintAs(record.HashVersion, m.text); err != nil {
			return fmt.Errorf("processed: compare with the first request of key:%s: %w", m.key.Hash(), err)
		}
	}
	if string(mine.Hash[:]) != string(record.PayloadHash) {
		return m.named(ErrConflict)
	}
	return nil
}

// named adds the key, as far as it may be printed.
func (m *memory) named(err error) error { return fmt.Errorf("%w (key:%s)", err, m.key.Hash()) }

// recordArgs are the arguments of ProcessedEventsInsert.
func (m *memory) recordArgs(began time.Time, ans answer) []any {
	return []any{m.key.Value, m.key.Scope, m.fingerprint.Hash[:], m.fingerprint.Version, began, m.retain.Microseconds(),
		ans.failed, ans.code, ans.header, ans.body}
}

// failureArgs are those of ProcessedEventsInsertFailure.
func (m *memory) failureArgs(ans answer) []any {
	return []any{m.key.Value, m.key.Scope, m.fingerprint.Hash[:], m.fingerprint.Version, m.retain.Microseconds(),
		ans.failed, ans.code, ans.header, ans.body}
}

// failureOf returns the answer in err, if it is a failure and this call keeps
// failures.
func (m *memory) failureOf(err error) *answer {
	failure, rolledBack := (*Failure)(nil), (*reply.Reply)(nil)
	switch {
	case !m.answers:
		return nil
	case errors.As(err, &failure):
		code := int32(failure.Code)
		return &answer{code: &code, body: failure.Body, failed: true}
	case errors.As(err, &rolledBack):
		ans := replied(rolledBack)
		ans.failed = true
		return &ans
	}
	return nil
}
