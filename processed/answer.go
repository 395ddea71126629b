package processed

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/reply"
)

// maxAnswer is the limit of the table's CHECK.
const maxAnswer = 1 << 20

// Result is the answer to a request: the function's answer the first time, and the stored answer later.
type Result[T any] struct {
	// Value is the answer, the same the first time and at each replay: what JSON preserves of the function's answer.
	// Unexported fields are lost, a time loses its monotonic clock, and a number in an interface is a json.Number with
	// all its digits. Value is zero if the answer is a failure.
	Value T

	// Deduplicated is true if the answer was already stored: the request was done before. It is also true if this
	// call's own commit is found after its connection was lost. So false means that this call did the work; true nearly
	// always means that another call did. It is set beside a *Failure too.
	Deduplicated bool
}

// answer is what the record stores of a Result, whatever its type.
type answer struct {
	code   *int32
	header []byte
	body   []byte
	failed bool // everything else of the request was rolled back
	replay bool
}

// outcome turns an answer, stored or new, into a Result.
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

// keepable returns what is stored of an answer, and the answer as a replay will return it: the first caller gets the
// same. An answer that comes back as another value is refused.
func keepable[T any](value T) (ans answer, kept T, err error) {
	plain, err := encode(&value, &ans)
	if err = cmp.Or(err, ans.checkSize()); err != nil || plain {
		return ans, value, err
	}
	if jsonvalue.Replaced(value, ans.body) != nil {
		return answer{}, kept, fmt.Errorf("%w: a %T with a string that is not valid UTF-8", ErrAnswerUnstorable, value)
	}
	if decode(ans.body, &kept) != nil {
		return answer{}, kept, fmt.Errorf("%w: a %T cannot be decoded from its JSON", ErrAnswerUnstorable, value)
	}
	again, err := json.Marshal(kept)
	if err != nil || !bytes.Equal(again, ans.body) && !sameMeaning(again, ans.body) {
		return answer{}, kept, fmt.Errorf("%w: a %T decodes to another value than was encoded", ErrAnswerUnstorable, value)
	}
	return ans, kept, nil
}

// encode encodes the answer that value points to: bytes unchanged, an empty struct as nothing, and anything else as
// JSON. plain is true if the answer comes back unchanged by its form.
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

// sameMeaning compares two documents without regard to the order of members: a struct in an interface comes back as a
// map.
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
		return fmt.Errorf("%w: it has %d bytes, and at most %d fit: store a reference to the large part", ErrAnswerUnstorable, size, maxAnswer)
	}
	if size := len(a.header); size > reply.MaxHeader {
		return fmt.Errorf("%w: its headers have %d bytes, and at most %d fit", ErrAnswerUnstorable, size, reply.MaxHeader)
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

// unencodable names types only: an encoder's error may quote the value.
func unencodable(what string, value any, err error) error {
	return fmt.Errorf("the %s, a %T, cannot be encoded as JSON (%T)", what, value, err)
}
