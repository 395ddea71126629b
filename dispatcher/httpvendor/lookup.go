package httpvendor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/retryafter"
)

// Lookup asks a vendor whether it acted under a delivery key. It is one request, which changes nothing there, with the
// destination's headers and credentials and without the key's header.
type Lookup struct {
	// Request is a GET with its path and query, a template as an action's: "GET /v1/payments?reference={{.Key}}". Beside
	// what an action's template may use, {{.Rendered}} is the body that was rendered: of JSON the object, of a form its
	// fields by name; and {{.Answer}} is the body of what the vendor last answered to an attempt, decoded from JSON, such as
	// the id of an operation that it finishes later. That is nothing where no answer came, where it was no JSON, and where
	// it was longer than Policy.ResponseCap, so say how to go on without it:
	//
	//	GET /ops{{with .Answer}}/{{.id}}{{else}}?reference={{$.Key}}{{end}}
	//
	// An answer without the member is an error, and the intent is parked in the end. Where not every answer has it, such
	// as that of a 500, write {{with and .Answer (index .Answer "id")}}/{{.}}{{else}}...{{end}}. A POST is allowed where a vendor searches that way; it is sent without a body unless Body has one.
	Request string

	// Body is the template of a POST's body, in JSON, as [Body.Template]. Default: none.
	Body string

	// Rules say what an answer means: the first that fits counts. Where none does, 401, 403, 407, 429, 413 with Retry-After and
	// what says nothing (408, 423-425, 500-599 and what no standard defines) mean that the vendor could not be asked, and it is
	// asked again with the policy's backoff, or when it said (Retry-After): 401, 407, 429, and the others with Retry-After,
	// spend no attempt. Anything else is inconclusive, and so is a body of more than 1 MiB where a rule looks into it. With
	// [Destination.JSONAnswers] none fits a body that is not JSON. Required, with a rule for found.
	//
	// A rule for absent should look for something that only an answer to this question has, such as the list in which
	// nothing was found: a proxy's own page is a 200 too.
	Rules []LookupRule
}

// LookupRule gives an answer to a look-up its meaning. Its Values may be templates, such as {{.Key}}.
type LookupRule struct {
	Match
	Means Finding
}

// lookup is a Lookup, ready to be asked.
type lookup struct {
	target target
	body   *template.Template // nil: none
	rules  []lookupRule
}

type lookupRule struct {
	LookupRule
	values []*template.Template
}

func (o *operation) setLookup(fail func(field, format string, args ...any)) {
	switch {
	case o.action.Lookup != nil:
		var err error
		if o.lookup, err = newLookup(*o.action.Lookup); err != nil {
			fail("Lookup", "%v", err)
		}
	case o.action.Policy.Class != dispatcher.Read:
		o.lookup = o.client.lookup
	}
}

func newLookup(from Lookup) (*lookup, error) {
	l := &lookup{}
	var errs []error
	var err error
	if l.target, err = parseTarget(from.Request); err != nil {
		errs = append(errs, fmt.Errorf("has a Request that %w", err))
	} else if l.target.method != http.MethodGet && l.target.method != http.MethodPost {
		errs = append(errs, errors.New("has a Request that is neither GET nor POST"))
	}
	if from.Body != "" {
		if l.body, err = parseTemplate(from.Body, asJSON); err != nil {
			errs = append(errs, fmt.Errorf("has a Body that %w", err))
		}
		if l.target.method == http.MethodGet {
			errs = append(errs, errors.New("has a Body, and its Request is a GET"))
		}
	}
	for i, rule := range from.Rules {
		at := lookupRule{LookupRule: rule}
		err := rule.check()
		if err == nil && !slices.Contains(findings, rule.Means) {
			err = fmt.Errorf("Means %q is none of %v", rule.Means, findings)
		}
		for _, value := range rule.Values {
			t, wrong := parseTemplate(value, asText)
			err = errors.Join(err, wrong)
			at.values = append(at.values, t)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("has rule number %d: %w", i+1, err))
		}
		l.rules = append(l.rules, at)
	}
	if !slices.ContainsFunc(from.Rules, func(r LookupRule) bool { return r.Means == Found }) {
		errs = append(errs, errors.New("has no rule that means found"))
	}
	if len(errs) > 0 {
		return nil, oneLine(errs)
	}
	return l, nil
}

// oneLine joins errors into one of one line, so that it stays with its field.
func oneLine(errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// ask is the action's dispatcher.WithLookup.
func (o *operation) ask(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Finding, error) {
	data := valuesOf(call)
	data.Rendered, data.Answer = renderedBody(call), lastAnswer(call)
	to, err := o.receiver(call)
	if err != nil {
		return dispatcher.Finding{}, o.failed("the look-up: %v", err)
	}
	req, err := o.lookupRequest(to, data)
	if err != nil {
		return dispatcher.Inconclusive(dispatcher.Answer{Code: "lookup"}), o.failed("the look-up's request: %v", err)
	}
	resp, w, err := o.call(ctx, o.client.reusing, req)
	if err != nil {
		return dispatcher.Finding{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, body, err := o.read(resp, to.secrets, true)
	w.End()
	return o.find(newReply(resp, body, err != nil), answer, err, data)
}

func (o *operation) lookupRequest(to receiver, data values) (*http.Request, error) {
	path, err := o.lookup.target.fill(data)
	if err != nil {
		return nil, err
	}
	at, err := to.url(path)
	if err != nil {
		return nil, err
	}
	header := to.header.Clone()
	header.Set("User-Agent", userAgent)
	header.Del("Content-Type")
	req := newRequest(o.lookup.target.method, at, header)
	if o.lookup.body != nil {
		text, err := execute(o.lookup.body, data)
		if err == nil {
			err = strictJSON([]byte(text))
		}
		if err != nil {
			return nil, err
		}
		setBody(req, []byte(text))
		header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// find says what an answer to a look-up means.
func (o *operation) find(r reply, answer dispatcher.Answer, broken error, data values) (dispatcher.Finding, error) {
	rules := o.lookup.rules
	if r.opaque && o.client.dest.JSONAnswers {
		rules = nil // it may be a proxy's page, which says nothing of the vendor
	}
	for _, rule := range rules {
		values := make([]string, len(rule.values))
		for i, t := range rule.values {
			text, err := execute(t, data)
			if err != nil {
				return dispatcher.Inconclusive(answer), o.failed("the look-up's rules: %v", err)
			}
			values[i] = text
		}
		fits, undecided := rule.fits(r, values)
		switch {
		case undecided && errors.Is(broken, errLong):
			return dispatcher.Inconclusive(answer), nil
		case undecided:
			return dispatcher.Finding{}, o.failed("the look-up's answer, %d, %s", r.status, brokeOff(broken))
		case !fits:
			continue
		}
		switch rule.Means {
		case Found:
			return dispatcher.Found(answer), nil
		case FoundRefused:
			return dispatcher.FoundRefused(answer), nil
		case Absent:
			return dispatcher.Absent(answer), nil
		case Pending:
			return dispatcher.Pending(answer, waitOf(r.header)), nil
		}
		return dispatcher.Inconclusive(answer), nil
	}
	failed := o.failed("the look-up was answered %d", r.status)
	_, waits := retryafter.Read(r.header, time.Now())
	switch effect := httpstatus.Of(r.status, waits); {
	case effect == httpstatus.Denied:
		failed = dispatcher.NotBefore(waitOf(r.header), dispatcher.Denied(answer, failed))
	case effect == httpstatus.Later || effect == httpstatus.Silent && waits || httpstatus.PutOff(r.status, waits):
		failed = later(r, failed)
	case r.status == http.StatusForbidden || effect == httpstatus.Silent:
		failed = dispatcher.NotBefore(waitOf(r.header), failed)
	default:
		failed = nil
	}
	return dispatcher.Inconclusive(answer), failed
}

// lastAnswer is the body of what the vendor last answered, for a look-up's templates; nil where it is no JSON. A number by
// itself counts for none: cut, it would be another one.
func lastAnswer(call *dispatcher.Call) any {
	if call.LastAnswer == nil || strictJSON(call.LastAnswer.Body) != nil {
		return nil
	}
	value, err := decodeJSON(call.LastAnswer.Body)
	if _, isNumber := value.(json.Number); err != nil || isNumber {
		return nil
	}
	return value
}

// renderedBody is the body that was rendered, for a look-up's templates; nil where there was none, or not of these forms.
func renderedBody(call *dispatcher.Call) any {
	if call.Rendered == nil || call.Rendered.Type != renderedType {
		return nil
	}
	s, err := parseSending(call.Rendered.Request)
	if err != nil {
		return nil
	}
	if value, err := decodeJSON(s.body); err == nil {
		return value
	}
	fields, err := url.ParseQuery(string(s.body))
	if err != nil {
		return nil
	}
	out := map[string]any{}
	for name, values := range fields {
		out[name] = values[0]
	}
	return out
}
