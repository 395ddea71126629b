package httpvendor

import (
	"bytes"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/webhook"
)

// Rule gives the answers that match it an outcome.
type Rule struct {
	Match

	// Outcome is a constructor of package dispatcher: Delivered, Refused, Accepted, Retry, Denied, Dead, Gone, Unknown
	// or Stuck; in a [Lookup] Absent as well, and not Gone. Required.
	//
	// Retry is for answers by which the vendor reports that it did not act. If the class does not allow a call to be
	// repeated, an action's own rule may use it for 429 only, and a destination's rule means Unknown instead.
	Outcome func(dispatcher.Response) dispatcher.Outcome

	// Reason is added to the outcome for a person: what happened, and what to do.
	Reason string

	// Reference is the JSON Pointer of the vendor's id in these answers (dispatcher.Outcome.Reference), whatever the
	// outcome. Default: the Reference of the action or the lookup, if the outcome is one that it is for.
	Reference string
}

// Match says which answers are meant. All that is set must match; at least one of Status, Header, Field, Contains and
// Equals must be set.
type Match struct {
	// Status lists the statuses. Empty: any.
	Status Statuses

	// Header is the name of a header that must be present, with one of Values if there are any (not case-sensitive).
	Header string

	// Field is a JSON Pointer (RFC 6901) into the body, such as "/error/code" or "/errors/0/code". A * stands for any
	// element of an array or member of an object. The field must be present and not null, and have one of Values if
	// there are any: a string's text, a number's digits as they are written, true or false. An empty body, or one that
	// is not JSON, has no fields. But a success is unknown if a rule for its status looks into a body that is not JSON.
	Field string

	// Values are what the field or the header may be; in a [Lookup] they may be templates, such as {{.Key}}. Empty:
	// anything.
	Values []string

	// Contains are texts of which the body must contain one. Equals are texts of which the body must be one, without
	// the white space around it. Set one of the two, for a vendor that answers in plain text or XML: a success that
	// must contain "ok" is a rule for the status that contains it, and a rule after it for the same status without it. Such
	// a rule needs Status. A part of a word counts: "ok" is in "broken" and in "invalid token".
	//
	// The bytes of the body are compared, after decompression, whether it is JSON or not: "ok" is not "OK". Only the
	// first Policy.ResponseCap bytes are looked at. If the body is longer or broke off, and the rest would decide, the
	// answer is unknown. In a [Lookup] the texts may be templates, of which an empty one matches nothing.
	Contains, Equals []string
}

// use is where a rule is used, which decides what it may mean.
type use int

const (
	ofSends    use = iota // a destination's, for actions of any class
	ofOneClass            // an action's, whose class allows repeats
	ofOnce                // an action's, whose class forbids repeats
	ofLookups
)

// outcomes are the constructors that a rule may use.
func (u use) outcomes() []func(dispatcher.Response) dispatcher.Outcome {
	if u == ofLookups {
		return append(slices.Clone(common), dispatcher.Absent)
	}
	return append(slices.Clone(common), dispatcher.Gone)
}

var common = []func(dispatcher.Response) dispatcher.Outcome{
	dispatcher.Delivered, dispatcher.Refused, dispatcher.Accepted, dispatcher.Retry, dispatcher.Denied, dispatcher.Dead,
	dispatcher.Unknown, dispatcher.Stuck,
}

var constructors = append(slices.Clone(common), dispatcher.Absent, dispatcher.Gone)

// kind is the name of a constructor's outcomes. Another function has none: what it returns could depend on the answer,
// and is never checked.
func kind(outcome func(dispatcher.Response) dispatcher.Outcome) string {
	for _, constructor := range constructors {
		if outcome != nil && reflect.ValueOf(outcome).Pointer() == reflect.ValueOf(constructor).Pointer() {
			return constructor(dispatcher.Response{}).Kind()
		}
	}
	return ""
}

var (
	delivered = kind(dispatcher.Delivered)
	refused   = kind(dispatcher.Refused)
	retry     = kind(dispatcher.Retry)
)

func (r Rule) check(m mistakes, u use) {
	var known []string
	for _, outcome := range u.outcomes() {
		known = append(known, kind(outcome))
	}
	switch is := kind(r.Outcome); {
	case is == "" && r.Outcome != nil:
		m.add("Outcome", "not a constructor of package dispatcher: use one of %s", strings.Join(known, ", "))
	case is == "":
		m.add("Outcome", "missing: use one of %s", strings.Join(known, ", "))
	case !slices.Contains(known, is):
		m.add("Outcome", "%s is not allowed here: use one of %s", is, strings.Join(known, ", "))
	case is == retry && u == ofOnce && !r.only(http.StatusTooManyRequests):
		m.add("Outcome", "%s is not allowed for a class that forbids repeats: only a 429 proves that the vendor did not act", is)
	}
	checkPointer(m, "Reference", r.Reference, "/id")
	if u != ofLookups && kind(r.Outcome) == delivered && r.hasText() && len(r.Status) == 0 {
		m.add("Status", "missing: a text alone would deliver any answer that contains it, also an error")
	}
	r.Match.check(m)
}

func (a Match) check(m mistakes) {
	status, header, field, values := word("Status"), word("Header"), word("Field"), word("Values")
	contains, equals := word("Contains"), word("Equals")
	switch {
	case len(a.Status) == 0 && a.Header == "" && a.Field == "" && !a.hasText():
		m.add("", "matches every answer: set %s, %s, %s, %s or %s", status, header, field, contains, equals)
	case a.Header != "" && a.Field != "":
		m.add("Header", "not allowed with %s: %s belong to one of them", field, values)
	case len(a.Values) > 0 && a.Header == "" && a.Field == "":
		m.add("Values", "not allowed without %s or %s", header, field)
	case a.Field != "" && a.Field[0] != '/':
		m.add("Field", "%q is not a JSON Pointer: it must begin with /, such as /error/code", a.Field)
	case a.Header != "" && checkHeader(a.Header, "") != nil && !webhook.OfConnection(a.Header):
		m.add("Header", "%.40q is not a valid header name", a.Header)
	}
	switch {
	case len(a.Contains) > 0 && len(a.Equals) > 0:
		m.add("Contains", "not allowed with %s", equals)
	case slices.Contains(a.Contains, ""):
		m.add("Contains", "has an empty text, which every body contains")
	case slices.Contains(a.Equals, ""):
		m.add("Equals", "has an empty text: a rule without it matches every other body")
	case slices.ContainsFunc(a.Equals, func(text string) bool { return strings.TrimSpace(text) != text }):
		m.add("Equals", "has a text with white space around it, which is not compared: remove it")
	}
	if err := a.Status.check(); err != nil {
		m.add("Status", "%v", err)
	}
}

// only reports whether the match is for one status.
func (a Match) only(status int) bool {
	return len(a.Status) > 0 && !slices.ContainsFunc(a.Status, func(r [2]int) bool { return r != [2]int{status, status} })
}

// hasText reports whether the match looks at the body's text.
func (a Match) hasText() bool { return len(a.Contains) > 0 || len(a.Equals) > 0 }

// matches reports whether the rule is meant for an answer, and where in the body its Field matched. If undecided, the
// missing part of the body would decide.
func (a Match) matches(r reply) (matches, undecided bool, where []string) {
	if len(a.Status) > 0 && !a.Status.has(r.status) || a.Header != "" && !a.inHeader(r.header) {
		return false, false, nil
	}
	if a.Field != "" {
		if r.broken != nil {
			return false, true, nil
		}
		where, matches = find(r.json, strings.Split(a.Field[1:], "/"), func(at any) bool {
			text, ok := textOf(at)
			return len(a.Values) == 0 || ok && slices.Contains(a.Values, text)
		})
		if !matches {
			return false, false, nil
		}
	}
	if a.hasText() {
		matches, undecided = a.inText(r)
		return matches, undecided, where
	}
	return true, false, where
}

func (a Match) inHeader(header http.Header) bool {
	at := header.Values(a.Header)
	return len(at) > 0 && (len(a.Values) == 0 || slices.ContainsFunc(at, func(got string) bool {
		return slices.ContainsFunc(a.Values, func(want string) bool { return strings.EqualFold(got, want) })
	}))
}

func (a Match) inText(r reply) (matches, undecided bool) {
	for _, text := range a.Contains {
		if text != "" && bytes.Contains(r.text, []byte(text)) {
			return true, false
		}
	}
	body := string(bytes.TrimSpace(bytes.TrimPrefix(r.text, byteOrderMark)))
	for _, text := range a.Equals {
		switch {
		case text == "":
		case r.cut:
			undecided = undecided || strings.HasPrefix(text, body)
		case text == body:
			return true, false
		}
	}
	return false, undecided || r.cut && len(a.Contains) > 0
}
