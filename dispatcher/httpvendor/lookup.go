package httpvendor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"text/template"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/redact"
)

// Lookup asks a vendor whether it acted under a delivery key (reconciliation). It is one request that changes nothing
// there, with the destination's headers and credentials and without the key's header.
type Lookup struct {
	// Request is a GET with its path and query, a template as in an action: "GET /v1/payments?reference={{.Key}}". A
	// POST is allowed for a vendor that searches that way; it has no body unless Body is set.
	//
	// In addition to what an action's template can use, {{.Rendered}} is the rendered body: the object of JSON, or the
	// fields of a form by name. {{.Response}} is the body of the vendor's last response to an attempt, decoded from
	// JSON, such as the id of an operation that the vendor finishes later. It is nothing if no answer came, if it was
	// not JSON, and if it was longer than Policy.ResponseCap, so say what to do without it:
	//
	//	GET /ops{{with .Response}}/{{.id}}{{else}}?reference={{$.Key}}{{end}}
	//
	// {{.Reference}} is the vendor's id in its last answer that had one ([Action].Reference), or empty. It also survives
	// an answer that is longer than Policy.ResponseCap, and a later answer without an id:
	//
	//	GET /ops{{with .Reference}}/{{.}}{{else}}?reference={{$.Key}}{{end}}
	//
	// An answer without the member is an error, and the intent is parked in the end. If not every answer has it, such
	// as that of a 500, write {{with and .Response (index .Response "id")}}/{{.}}{{else}}...{{end}}.
	Request string

	// Body is the template of a POST's body, in JSON, as [Body].Template. Default: none.
	Body string

	// Rules say what an answer means: the first that matches counts. Required, with a rule for dispatcher.Delivered.
	//
	// If no rule matches, these answers mean that the vendor could not be asked: 401, 403, 407, 429, 413 with
	// Retry-After, and statuses that prove nothing (408, 423-425, 500-599 and what no standard defines). The lookup is
	// repeated with the policy's backoff, not before Retry-After; 401, 407, 429, and the others with Retry-After, use
	// no attempt. Any other answer is unknown, and so is a body of more than 1 MiB if a rule looks into it: the intent
	// is parked. With [Destination].JSONAnswers no rule matches a body that is not JSON.
	//
	// A rule for dispatcher.Absent should look for something that only an answer to this question has, such as the list
	// in which nothing was found: a proxy's own page is a 200 too.
	Rules []Rule

	// Reference is the JSON Pointer of the vendor's own id in an answer that means delivered, refused or accepted, as
	// [Action].Reference. Where the rule's Field and Reference begin alike, a * in both is the same element: for a list
	// "/data" with the key in "/data/*/metadata/key" it is "/data/*/id". Default: none. The intent keeps the reference
	// of an earlier answer.
	Reference string
}

// lookup is a Lookup, ready to be used.
type lookup struct {
	target    target
	body      *template.Template // nil: none
	rules     []lookupRule
	reference string // a JSON Pointer; empty: none
}

type lookupRule struct {
	Rule
	values, contains, equals []*template.Template
}

func newLookup(from Lookup, m mistakes) *lookup {
	l := &lookup{reference: from.Reference}
	checkPointer(m, "Reference", from.Reference, "/id")
	var err error
	if l.target, err = parseTarget(from.Request); err != nil {
		m.add("Request", "%v", err)
	} else if l.target.method != http.MethodGet && l.target.method != http.MethodPost {
		m.add("Request", "must be a GET or a POST")
	}
	if from.Body != "" {
		if l.body, err = parseTemplate(from.Body, asJSON); err != nil {
			m.add("Body", "%v", err)
		}
		if l.target.method == http.MethodGet {
			m.add("Body", "not allowed for a GET")
		}
	}
	for i, rule := range from.Rules {
		at := lookupRule{Rule: rule}
		in := m.at("Rules", i)
		rule.check(in, ofLookups)
		parse := func(field string, texts []string) (parsed []*template.Template) {
			for _, text := range texts {
				t, err := parseTemplate(text, asText)
				if err != nil {
					in.add(field, "%v", err)
				}
				parsed = append(parsed, t)
			}
			return parsed
		}
		at.values, at.contains, at.equals = parse("Values", rule.Values), parse("Contains", rule.Contains), parse("Equals", rule.Equals)
		l.rules = append(l.rules, at)
	}
	if !slices.ContainsFunc(from.Rules, func(r Rule) bool { return kind(r.Outcome) == delivered }) {
		m.add("Rules", "no rule has the outcome %s", delivered)
	}
	return l
}

// ask is the action's Lookup.
func (o *operation) ask(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	data := lookupValues(call)
	with, err := o.client.current(ctx)
	if err != nil {
		return o.noCredentials(err)
	}
	to, err := o.receiver(call, with)
	if err != nil {
		return dispatcher.Outcome{}, o.failed("the lookup: %v", err)
	}
	req, err := o.lookupRequest(to, data)
	if err != nil {
		return dispatcher.Unknown(dispatcher.Response{Code: "lookup"}), o.failed("the lookup's request: %v", err)
	}
	resp, w, none := o.call(ctx, o.client.repeated(), req)
	if none != nil {
		return o.noAnswer(none)
	}
	defer func() { _ = resp.Body.Close() }()
	a := o.read(resp, to.secrets, true)
	w.End()
	v := o.find(o.newReply(resp, a), data, to.secrets)
	o.client.answered(with, v.outcome)
	return v.outcome, v.failed
}

func lookupValues(call *dispatcher.Call) values {
	data := valuesOf(call)
	data.Rendered, data.Response, data.Reference = renderedBody(call), lastResponse(call), call.Reference
	return data
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

// filled returns the rule's match with its templates filled in.
func (l lookupRule) filled(data values) (Match, error) {
	match := l.Match
	var err error
	fill := func(templates []*template.Template) (texts []string) {
		for _, t := range templates {
			text, failed := execute(t, data)
			err = cmp.Or(err, failed)
			texts = append(texts, text)
		}
		return texts
	}
	match.Values, match.Contains, match.Equals = fill(l.values), fill(l.contains), fill(l.equals)
	return match, err
}

// find returns what an answer to a lookup means.
func (o *operation) find(r reply, data values, secrets redact.Secrets) finding {
	rules := o.lookup.rules
	by := decision{why: httpstatus.Why(r.status)}
	if r.opaque && o.client.dest.JSONAnswers {
		rules = nil // it may be a proxy's page, which says nothing about the vendor
		by = decision{field: "JSONAnswers", why: "its body is not JSON, as it should be, so no rule counts"}
	}
	for i, rule := range rules {
		by := decision{rule: i + 1}
		match, err := rule.filled(data)
		if err != nil {
			return finding{outcome: dispatcher.Unknown(r.response), failed: o.failed("the lookup's rules: %v", err), unfilled: err, by: by}
		}
		matches, undecided, where := match.matches(r)
		switch {
		case undecided && (r.broken == nil || errors.Is(r.broken, errLong)):
			by.why = "its body is too long, and a rule looks into it"
			return finding{outcome: dispatcher.Unknown(r.response), by: by}
		case undecided:
			by.why = brokeOff(r.broken)
			return finding{failed: o.failed("the answer to the lookup, %d, %s", r.status, by.why), by: by}
		case matches:
			v := o.outcome(rule.Outcome, rule.Reason, r)
			v.by = by
			return r.referring(v, rule.Reference, o.lookup.reference, namedByLookup, where, secrets)
		}
	}
	reason := o.failed("the lookup was answered %d", r.status)
	switch effect := httpstatus.Of(r.status, r.waits); {
	case effect == httpstatus.Denied:
		return finding{outcome: dispatcher.Denied(r.response).After(r.wait).Because(reason), by: by}
	case effect == httpstatus.Later || effect == httpstatus.Silent && r.waits || httpstatus.PutOff(r.status, r.waits):
		out := dispatcher.Retry(r.response).After(r.wait).Because(reason)
		if aboutAccount(r) {
			return finding{outcome: out.ForAccount(), account: true, by: by}
		}
		return finding{outcome: out, by: by}
	case r.status == http.StatusForbidden || effect == httpstatus.Silent:
		return finding{outcome: dispatcher.Unknown(r.response).After(r.wait), failed: reason, by: by}
	}
	return finding{outcome: dispatcher.Unknown(r.response), by: by}
}

// lastResponse is the body of the vendor's last answer, for a lookup's templates. It is nil if the body is not JSON. A
// number by itself does not count: a number that was cut is another number.
func lastResponse(call *dispatcher.Call) any {
	if call.LastResponse == nil || strictJSON(call.LastResponse.Body) != nil {
		return nil
	}
	value, err := decodeJSON(call.LastResponse.Body)
	if _, isNumber := value.(json.Number); err != nil || isNumber {
		return nil
	}
	return value
}

// renderedBody is the rendered body, for a lookup's templates. It is nil without one, or if it has another form.
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
