package httpvendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/samekey/samekey/dispatcher"
)

// Match says which answers are meant. All that is set must fit; at least one of Status, Header and Field is.
type Match struct {
	// Status lists the statuses. Empty: any.
	Status Statuses

	// Header is the name of a header that must be there, with one of Values where there are any (upper and lower case are
	// the same).
	Header string

	// Field is a JSON Pointer (RFC 6901) into the body, such as "/error/code" or "/errors/0/code", where * stands for any
	// element of an array or member of an object. It must be there and not be null, and be one of Values where there are
	// any: a string's text, a number's digits as they stand there, true or false. An empty body, or one that is not JSON, has
	// no fields; but what would be a success is unknown where a rule for its status looks into a body that is not JSON.
	Field string

	// Values are what the field or the header may say. Empty: anything.
	Values []string
}

// Meaning is what an answer means for its attempt.
type Meaning string

// The meanings. What follows of them is in the functions of the same names in the package dispatcher.
const (
	Delivered Meaning = "delivered" // the vendor acted
	Refused   Meaning = "refused"   // a business no: the intent is finished
	Retry     Meaning = "retry"     // the vendor did not act now, or is at work under this key: sent again, nothing is spent
	Unknown   Meaning = "unknown"   // the vendor may have acted
	Stuck     Meaning = "stuck"     // it may have acted, and the same key can never tell: looked up, else parked
	Accepted  Meaning = "accepted"  // the vendor will finish it later: never sent again
	Denied    Meaning = "denied"    // the credentials are refused: sent again, nothing is spent
	Dead      Meaning = "dead"      // the vendor did not act, and a person must mend something
	Gone      Meaning = "gone"      // the endpoint did not act and wants no more: it is stopped, where it is a stored one
)

var meanings = []Meaning{Delivered, Refused, Retry, Unknown, Stuck, Accepted, Denied, Dead, Gone}

// Rule gives answers their meaning.
type Rule struct {
	Match

	// Means is required. Retry is for answers by which the vendor says that it did not act now: where the class forbids
	// to repeat a call, an action's own rule may say so of 429 only, and a destination's rule means unknown instead.
	Means Meaning

	// Reason is put into the attempt's error, in words of yours: what happened, and what a person should do.
	Reason string
}

// Finding is what an answer to a look-up means.
type Finding string

// The findings, as in the package dispatcher.
const (
	Found        Finding = "found"         // the vendor acted: delivered, with this answer
	FoundRefused Finding = "found_refused" // the vendor recorded a business no
	Absent       Finding = "absent"        // the vendor knows nothing of it
	Inconclusive Finding = "inconclusive"  // a person must look
	Pending      Finding = "pending"       // the vendor is still at it
)

var findings = []Finding{Found, FoundRefused, Absent, Inconclusive, Pending}

func (m Match) check() error {
	switch {
	case len(m.Status) == 0 && m.Header == "" && m.Field == "":
		return errors.New("fits every answer: set Status, Header or Field")
	case m.Header != "" && m.Field != "":
		return errors.New("has a Header and a Field: Values are of one of them")
	case len(m.Values) > 0 && m.Header == "" && m.Field == "":
		return errors.New("has Values, and neither Header nor Field that they are of")
	case m.Field != "" && m.Field[0] != '/':
		return fmt.Errorf("Field %q is no JSON Pointer: it begins with /, such as /error/code", m.Field)
	case m.Header != "" && checkHeader(m.Header, "") != nil && !reserved[http.CanonicalHeaderKey(m.Header)]:
		return fmt.Errorf("Header %.40q is not the name of a header", m.Header)
	}
	return m.Status.check()
}

func (r Rule) check(repeatable bool) error {
	if err := r.Match.check(); err != nil {
		return err
	}
	switch {
	case !slices.Contains(meanings, r.Means):
		return fmt.Errorf("Means %q is none of %v", r.Means, meanings)
	case r.Means == Retry && !repeatable && !r.only(http.StatusTooManyRequests):
		return errors.New("Means retry, for a class that may not be repeated: no status but 429 says that the vendor did not act")
	}
	return nil
}

// only reports whether the match is for one status.
func (m Match) only(status int) bool {
	return len(m.Status) > 0 && !slices.ContainsFunc(m.Status, func(r [2]int) bool { return r != [2]int{status, status} })
}

// reply is an answer as rules look at it.
type reply struct {
	status int
	header http.Header
	body   any  // decoded JSON, numbers as json.Number; nil where it is none
	broken bool // the body broke off, or is longer than what was read of it: it says nothing about what it lacks
	opaque bool // there is a body, and it is not JSON
}

func newReply(resp *http.Response, body []byte, broken bool) reply {
	r := reply{status: resp.StatusCode, header: resp.Header, broken: broken}
	if !broken {
		var err error
		r.body, err = decodeJSON(body)
		r.opaque = err != nil && len(body) > 0
	}
	return r
}

// byteOrderMark is what some servers begin a text with.
var byteOrderMark = []byte("\xef\xbb\xbf")

// decodeJSON reads one JSON value, its numbers' digits as they are.
func decodeJSON(text []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(text, byteOrderMark)))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, errors.New("is not JSON")
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("has data after its JSON")
	}
	return value, nil
}

// fits reports whether the reply is meant. Where undecided, it would take the part of the body that is missing to tell.
func (m Match) fits(r reply, values []string) (fits, undecided bool) {
	if len(m.Status) > 0 && !m.Status.has(r.status) {
		return false, false
	}
	switch {
	case m.Header != "":
		at := r.header.Values(m.Header)
		return len(at) > 0 && (len(values) == 0 || slices.ContainsFunc(at, func(got string) bool {
			return slices.ContainsFunc(values, func(want string) bool { return strings.EqualFold(got, want) })
		})), false
	case m.Field != "" && r.broken:
		return false, true
	case m.Field != "":
		return has(r.body, strings.Split(m.Field[1:], "/"), values), false
	}
	return true, false
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// has reports whether there is a value at the end of path that is one of values.
func has(at any, path []string, values []string) bool {
	if len(path) == 0 {
		text, ok := textOf(at)
		return at != nil && (len(values) == 0 || ok && slices.Contains(values, text))
	}
	name, rest := unescape.Replace(path[0]), path[1:]
	switch at := at.(type) {
	case map[string]any:
		if name != "*" {
			return has(at[name], rest, values)
		}
		for _, member := range at {
			if has(member, rest, values) {
				return true
			}
		}
	case []any:
		if name != "*" {
			i, err := strconv.Atoi(name)
			return err == nil && i >= 0 && i < len(at) && strconv.Itoa(i) == name && has(at[i], rest, values)
		}
		return slices.ContainsFunc(at, func(element any) bool { return has(element, rest, values) })
	}
	return false
}

// textOf is a scalar's text.
func textOf(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// later is for what the vendor did not do now: a 429, and a 403 with Retry-After, is about all calls of the account,
// anything else about this one.
func later(r reply, err error) error {
	if r.status == http.StatusTooManyRequests || r.status == http.StatusForbidden {
		return dispatcher.Throttled(waitOf(r.header), err)
	}
	return dispatcher.RetryAfter(waitOf(r.header), err)
}

// verdict turns a meaning into what the dispatcher is told.
func (o *operation) verdict(m Meaning, reason string, r reply, answer dispatcher.Answer) (dispatcher.Answer, error) {
	say := func(words string) error {
		if reason != "" {
			words = reason
		}
		return o.failed("answered %d: %s", r.status, words)
	}
	switch m {
	case Delivered:
		return answer, nil
	case Refused:
		return answer, dispatcher.Refused(answer)
	case Retry:
		return answer, later(r, say("ask again later"))
	case Accepted:
		return answer, dispatcher.Accepted(answer, waitOf(r.header))
	case Denied:
		return answer, dispatcher.NotBefore(waitOf(r.header), dispatcher.Denied(answer, say("correct the destination's credentials")))
	case Dead:
		return answer, dispatcher.Dead(answer, say("correct the action or the payload, then redrive"))
	case Gone:
		return answer, dispatcher.Gone(answer, say("the receiver wants no more calls"))
	case Stuck:
		return answer, dispatcher.NotBefore(waitOf(r.header), dispatcher.Stuck(answer, say("the same key gets the same failure for ever")))
	default:
		return answer, dispatcher.NotBefore(waitOf(r.header), dispatcher.Unknown(answer, say("the vendor may have acted")))
	}
}
