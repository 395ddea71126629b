package httpvendor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/samekey/samekey/dispatcher"
)

// Action is one kind of request to a destination. Request and Policy.Class are required.
type Action struct {
	// Request is the method and the path, with a query if there is one: "POST /v1/charges?expand=card". The path is
	// added to that of the destination's URL; a method alone is for the URL as it is. GET and HEAD are sent without a
	// body, DELETE, PATCH, POST and PUT with Body. A dispatcher.Read is a GET, a HEAD, or a POST that searches.
	//
	// Path and query may be a template: "POST /v1/orders/{{.Payload.order_id}}/capture". Each value is escaped, so that
	// none makes another path. If a part of the path is empty, "." or "..", also after it is unescaped, the intent is
	// dead.
	Request string

	// Body says what is sent. Default: the payload's bytes, unchanged.
	Body Body

	// Headers are sent with each call. They win over the headers of the destination and of the intent. Those that change
	// are in Credentials.ActionHeaders.
	Headers map[string]string

	// Rules say what answers mean. They come first, and the first one that matches counts.
	Rules []Rule

	// Delivered, Refused, Retry and Accepted list the statuses, 200 to 599, with these outcomes (see the functions of
	// package dispatcher). A status is in at most one list.
	//
	// Delivered is 200-299 by default, without 206 and 207, which may contain failures. Refused, for a business
	// refusal, is empty by default. Retry is empty by default; 429 is always retried, unless another list has it. It is
	// for a vendor that says by a status, such as 409, that it did not act or still works on the call. A retry uses
	// no attempt, so set Policy.Deadline. Retry is not allowed for a class that forbids repeats: the 409 of a vendor
	// that does not know keys may be about the first call. Accepted, such as 202, means that the vendor finishes the
	// call later: the call is never sent again, and Lookup asks for the result, or an event completes it with
	// outbox.Resolve. It is empty by default, and a 202 is then Delivered.
	Delivered, Refused, Retry, Accepted Statuses

	// Reference is the JSON Pointer of the vendor's own id in an answer, such as "/id": the intent's reference
	// (dispatcher.Outcome.Reference), by which outbox.List finds it. It is taken from answers that mean delivered,
	// refused, accepted, unknown or stuck; an answer without it has none. A * stands for any element or member, as in
	// [Match].Field. It is not read from a body of more than 1 MiB. Default: the destination's.
	Reference string

	// RetryAfter is the JSON Pointer of a member of an answer's body that counts as the header Retry-After does, such as
	// "/error/retry_in": seconds, as a number or a text, or one of HTTP's dates, with the same limits. If both are there,
	// the longer wait counts. It is also read from answers to the lookup. Default: the destination's.
	RetryAfter string

	// Lookup asks the vendor whether it acted (reconciliation). Default: the destination's, except for a read. Without
	// one, an intent whose outcome stays unknown is parked for a person.
	Lookup *Lookup

	// Policy is the action's policy. [Delivery] sets its Destination. For an idempotent write, KeyWindow defaults to
	// the Window of the destination's Vendor.
	Policy dispatcher.Policy
}

// Delivery returns how the intents of an action are delivered. Register it with dispatcher.Handle; add an Apply first
// if the application needs one. Mistakes in the action are in the Delivery, and dispatcher.Dispatcher.Check returns
// them.
//
// The request is made of the stored payload. T is for Apply; a payload that does not decode into T makes its intent
// dead.
func Delivery[T any](c *Client, action Action) dispatcher.Delivery[T] {
	o := c.operation(action)
	out := dispatcher.Delivery[T]{
		Policy: action.Policy, Vendor: c.dest.Vendor, Mistakes: o.mistakes,
		Send: func(ctx context.Context, call *dispatcher.Call, _ T) (dispatcher.Outcome, error) {
			return o.send(ctx, call)
		},
		Proxied: c.reusing.Proxy != nil,
	}
	out.Policy.Destination = c.dest.Name
	if c.dest.Endpoint != "" {
		out.Endpoint, out.StoredEndpoint = c.nameEndpoint, c.stored()
	}
	if o.renders() {
		out.Render = func(_ context.Context, call *dispatcher.Call, _ T) (dispatcher.Rendered, error) {
			return o.render(call)
		}
	}
	if o.lookup != nil {
		out.Lookup = func(ctx context.Context, call *dispatcher.Call, _ T) (dispatcher.Outcome, error) {
			return o.ask(ctx, call)
		}
	}
	if action.Policy.Class == dispatcher.IdempotentWrite {
		out.KeyForm, out.RequestForm = o.form()
	}
	return out
}

// operation is an action, ready to be called.
type operation struct {
	client     *Client
	action     Action
	over       link
	target     target
	body       body
	lookup     *lookup     // nil: none
	own        http.Header // of the action
	header     http.Header // as configured: own, and the destination's
	limit      int         // of an answer's body, in bytes
	repeatable bool
	delivered  Statuses
	rules      []Rule
	looksIn    bool   // rules look into JSON bodies
	texts      bool   // rules look at the text of bodies
	reference  string // the JSON Pointer of the vendor's id; empty: none
	retryAfter string // the JSON Pointer of a wait; empty: none
	reads      bool   // a reference or a wait is read from bodies
	mistakes   dispatcher.ConfigErrors

	carried atomic.Pointer[carried] // what was made last
}

// defaultCap is the default of dispatcher.Policy.ResponseCap.
const defaultCap = 64 << 10

func (c *Client) operation(action Action) *operation {
	o := &operation{client: c, action: action, over: c.repeated(), limit: max(action.Policy.ResponseCap, 0)}
	o.mistakes = slices.Clone(c.mistakes)
	m := mistakes{all: &o.mistakes}
	class := action.Policy.Class
	o.repeatable = class == dispatcher.Read || class == dispatcher.IdempotentWrite
	if !o.repeatable {
		o.over = link{transport: c.single}
	}
	if action.Policy.ResponseCap == 0 {
		o.limit = defaultCap
	}
	var err error
	if o.target, err = parseTarget(action.Request); err != nil {
		m.add("Request", "%v", err)
	} else if method := o.target.method; class == dispatcher.Read && hasBody(method) && method != http.MethodPost { // a search may be a POST
		m.add("Request", "%s is not allowed for %v: use the class of a write", method, class)
	}
	o.own = c.actionHeaders(action.Headers, m)
	o.header = c.header.Clone()
	maps.Copy(o.header, o.own)
	o.setBody(m)
	o.setRules(m)
	o.setStatuses(m)
	switch {
	case action.Lookup != nil:
		o.lookup = newLookup(*action.Lookup, m.in("Lookup"))
	case class != dispatcher.Read:
		o.lookup = c.lookup
	}
	o.checkTexts(m)
	return o
}

// checkTexts refuses rules on the body's text that can never match, or that change nothing.
func (o *operation) checkTexts(m mistakes) {
	longest := 0
	measure := func(match Match, templates bool) {
		for _, text := range slices.Concat(match.Contains, match.Equals) {
			if templates && strings.Contains(text, "{{") {
				text = "?"
			}
			longest = max(longest, len(text))
		}
	}
	for i, rule := range o.rules {
		measure(rule.Match, false)
		if rule.hasText() && kind(rule.Outcome) == delivered && o.deliversAnyway(i) {
			const text = "changes nothing: an answer of its status without the text is delivered as well. Add a rule for those answers after it"
			if i < len(o.action.Rules) {
				m.at("Rules", i).add("", text)
			} else {
				m.add("", "rule %d of its destination "+text, i-len(o.action.Rules)+1)
			}
		}
	}
	if o.lookup != nil {
		for _, rule := range o.lookup.rules {
			measure(rule.Match, true)
		}
	}
	if longest > o.limit {
		m.add("ResponseCap", "%d is too short: a rule looks for a text of %d bytes in as much of the body", o.limit, longest)
	}
}

// deliversAnyway reports whether answers with the statuses of a rule are delivered if the rule does not match.
func (o *operation) deliversAnyway(rule int) bool {
	statuses := o.rules[rule].Status
	isFor := func(other Rule) bool {
		_, both := statuses.common(other.Status)
		return both || len(other.Status) == 0
	}
	blind := o.client.dest.JSONAnswers || slices.ContainsFunc(o.rules, func(r Rule) bool { return r.Field != "" && isFor(r) })
	if blind || len(statuses) == 0 || slices.ContainsFunc(o.rules[rule+1:], isFor) {
		return false
	}
	for _, r := range statuses {
		for status := max(r[0], 200); status <= min(r[1], 599); status++ {
			if !o.delivered.has(status) {
				return false
			}
		}
	}
	return true
}

func (o *operation) setBody(m mistakes) {
	keyField, key := "", o.client.dest.Vendor.Key
	if key.Place == dispatcher.KeyInBody && o.action.Policy.Class != dispatcher.Read {
		keyField = key.Name
	}
	if o.target.method == "" || hasBody(o.target.method) {
		o.body = newBody(o.action.Body, keyField, m)
		return
	}
	if b := o.action.Body; b.Format != AsIs || b.Template != "" || len(b.Fields) > 0 {
		m.add("Body", "not allowed: a %s has no body", o.target.method)
	}
	if keyField != "" {
		m.add("Request", "a %s has no body for the vendor's key", o.target.method)
	}
}

func (o *operation) setRules(m mistakes) {
	u := ofOneClass
	if class := o.action.Policy.Class; class == dispatcher.NonIdempotentWrite || class == dispatcher.IrreversibleWrite {
		u = ofOnce
	}
	for i, rule := range o.action.Rules {
		rule.check(m.at("Rules", i), u)
	}
	o.rules = slices.Concat(o.action.Rules, o.client.dest.Rules)
	o.reference = cmp.Or(o.action.Reference, o.client.dest.Reference)
	checkPointer(m, "Reference", o.action.Reference, "/id")
	o.retryAfter = cmp.Or(o.action.RetryAfter, o.client.dest.RetryAfter)
	checkPointer(m, "RetryAfter", o.action.RetryAfter, "/error/retry_in")
	o.reads = o.reference != "" || o.retryAfter != "" || slices.ContainsFunc(o.rules, func(r Rule) bool { return r.Reference != "" })
	o.texts = slices.ContainsFunc(o.rules, func(r Rule) bool { return r.hasText() })
	o.looksIn = o.client.dest.JSONAnswers || slices.ContainsFunc(o.rules, func(r Rule) bool { return r.Field != "" })
}

func (o *operation) setStatuses(m mistakes) {
	o.delivered = o.action.Delivered
	if len(o.delivered) == 0 {
		o.delivered = defaultDelivered(o.action.Accepted)
	}
	lists := []struct {
		field string
		list  Statuses
	}{{"Delivered", o.delivered}, {"Refused", o.action.Refused}, {"Retry", o.action.Retry}, {"Accepted", o.action.Accepted}}
	for i, at := range lists {
		if err := at.list.check(); err != nil {
			m.add(at.field, "%v", err)
		}
		for _, before := range lists[:i] {
			status, both := at.list.common(before.list)
			switch {
			case both && before.field == "Delivered" && len(o.action.Delivered) == 0:
				m.add(at.field, "%d is also in %s by default: set %[2]s too", status, word(before.field))
			case both:
				m.add(at.field, "%d is also in %s", status, word(before.field))
			}
		}
	}
	class := o.action.Policy.Class
	if len(o.action.Retry) > 0 && (class == dispatcher.NonIdempotentWrite || class == dispatcher.IrreversibleWrite) {
		m.add("Retry", "not allowed for %v: only a 429 proves that the vendor did not act", class)
	}
}

// failed makes an error or a reason in our own words: see the package's promise on secrets.
func (o *operation) failed(format string, args ...any) error {
	return fmt.Errorf("httpvendor: %s: %s", o.client.dest.Name, fmt.Sprintf(format, args...))
}
