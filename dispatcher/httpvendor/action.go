package httpvendor

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
)

// Action is one request of a destination. Name, Request and Policy.Class are required.
type Action struct {
	// Name is the intents' action.
	Name string

	// Request is the method and the path, with a query if there is one: "POST /v1/charges?expand=card". The path is
	// added to that of the URL; a method alone is for the URL as it stands. GET and HEAD are sent without a body, DELETE, PATCH, POST and PUT with Body.
	// A dispatcher.Read is a GET, a HEAD, or a POST that searches.
	// Path and query may be a template: "POST /v1/orders/{{.Payload.order_id}}/capture". A value is escaped by itself, so
	// that none makes another path; a part of the path that comes out empty, "." or "..", also for who unescapes it first,
	// makes the intent dead.
	Request string

	// Body says what is sent. Default: the payload's bytes, as they are.
	Body Body

	// Headers are sent with each call, and win over those of the destination and of the intent.
	Headers map[string]string

	// Rules give answers their meaning, before all else: the first that fits counts.
	Rules []Rule

	// Success, Refused and Wait list the statuses, 200 to 599, that mean delivered, a business no, and ask again later.
	// A status is in one list at most. Defaults: 200-299 without 206 and 207, which may hold failures; none; none, beside 429,
	// which always means later unless another list has it. Wait is for a vendor that says, such as by 409, that it did not act now, or is still at work under
	// this key: no attempt is spent, so bound it by Policy.Deadline. It is refused for a class that may not be repeated,
	// since a vendor that does not know keys cannot say that by a 409: it may be about what the first call did.
	Success, Refused, Wait Statuses

	// Accepted lists the statuses, such as 202, by which the vendor says that it will finish the call later: it is never
	// sent again, and Lookup asks for it, or an event completes it with outbox.Resolve. Default: none, and a 202 is a
	// success.
	Accepted Statuses

	// Lookup asks the vendor whether it acted. Default: the destination's, but for a read; where that has none either, what
	// is unknown is parked for a person.
	Lookup *Lookup

	// Policy is the action's. Its Destination is set by [Client.Register], its KeyWindow defaults to the window of the
	// destination's Vendor for an idempotent write.
	Policy dispatcher.Policy

	// Options are more of the action, such as dispatcher.WithApply.
	Options []dispatcher.Option
}

// Statuses is a list of ranges of HTTP statuses, both ends included.
type Statuses [][2]int

// ParseStatuses reads a list such as "200-299, 404".
func ParseStatuses(text string) (Statuses, error) {
	var out Statuses
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		from, err := strconv.Atoi(strings.TrimSpace(low))
		to, err2 := strconv.Atoi(strings.TrimSpace(high))
		if err != nil || err2 != nil {
			return nil, errors.New("want statuses and ranges of them, such as 200-299, 404")
		}
		out = append(out, [2]int{from, to})
	}
	return out, out.check()
}

func (s Statuses) check() error {
	for _, r := range s {
		if r[0] < 200 || r[1] > 599 || r[1] < r[0] {
			return fmt.Errorf("%d-%d is no range within 200-599", r[0], r[1])
		}
	}
	return nil
}

func (s Statuses) has(status int) bool {
	return slices.ContainsFunc(s, func(r [2]int) bool { return r[0] <= status && status <= r[1] })
}

func (s Statuses) overlaps(other Statuses) bool {
	for _, r := range s {
		for _, o := range other {
			if r[0] <= o[1] && o[0] <= r[1] {
				return true
			}
		}
	}
	return false
}

// Register declares the destination with its limits and its vendor, and the actions with their handlers, look-ups and
// options. The error holds every mistake in the actions themselves; what is wrong with their policies, and with the
// vendor's description, [dispatcher.Dispatcher.Check] says.
func (c *Client) Register(d *dispatcher.Dispatcher, actions ...Action) error {
	d.Destination(c.dest.Name, c.dest.Limits)
	d.Vendor(c.dest.Name, c.dest.Vendor)
	var errs []error
	for _, action := range actions {
		action.Policy.Destination = c.dest.Name
		handler, options, err := c.Handler(action)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d.Handle(action.Name, action.Policy, handler, options...)
	}
	return errors.Join(errs...)
}

// Handler makes the action's handler, and the options that it is registered with: where it goes, what it renders, its
// look-up, and its own Options. The error holds every mistake at once.
func (c *Client) Handler(action Action) (dispatcher.Handler, []dispatcher.Option, error) {
	o, err := c.operation(action)
	if err != nil {
		return nil, nil, err
	}
	var options []dispatcher.Option
	if option := c.withEndpoint(); option != nil {
		options = append(options, option)
	}
	if o.renders() {
		options = append(options, dispatcher.WithRender(o.render))
	}
	if o.lookup != nil {
		options = append(options, dispatcher.WithLookup(o.ask))
	}
	if action.Policy.Class == dispatcher.IdempotentWrite {
		options = append(options, dispatcher.WithForm(o.form()))
	}
	return o.attempt, append(options, action.Options...), nil
}

// operation is an action, ready to be called.
type operation struct {
	client     *Client
	action     Action
	transport  *http.Transport
	target     target
	body       body
	lookup     *lookup // nil: none
	header     http.Header
	limit      int // of an answer's body, in bytes
	repeatable bool
	success    Statuses
	rules      []Rule
	looksIn    bool    // rules look into bodies
	secrets    secrets // the destination's, and those in the action's own headers
}

func (c *Client) operation(action Action) (*operation, error) {
	o := &operation{client: c, action: action, transport: c.reusing, secrets: c.secrets}
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("httpvendor: %s: %s %s", action.Name, field, fmt.Sprintf(format, args...)))
	}
	if action.Name == "" {
		fail("Name", "is missing")
	}
	class := action.Policy.Class
	o.repeatable = class == dispatcher.Read || class == dispatcher.IdempotentWrite
	if !o.repeatable {
		o.transport = c.single
	}
	var err error
	if o.target, err = parseTarget(action.Request); err != nil {
		fail("Request", "%v", err)
	} else if m := o.target.method; class == dispatcher.Read && hasBody(m) && m != http.MethodPost { // a search may be a POST
		fail("Request", "is a %s, which no %v is: give it the class of a write", m, class)
	}
	header, err := operatorHeader(action.Headers, c.keyHeader)
	if err != nil {
		fail("Headers", "%v", err)
	}
	if c.stored() && header.Get("Authorization") != "" {
		fail("Headers", "would send Authorization to every endpoint")
	}
	o.secrets = o.secrets.with(credentials(header))
	o.header = c.header.Clone()
	for name, values := range header {
		o.header[name] = values
	}
	o.setBody(fail)
	o.setMeaning(fail)
	o.setLookup(fail)
	switch limit := action.Policy.ResponseCap; {
	case limit == 0:
		o.limit = 64 << 10 // dispatcher.Policy's default
	case limit > 0:
		o.limit = limit
	}
	return o, errors.Join(errs...)
}

func (o *operation) setBody(fail func(field, format string, args ...any)) {
	keyField, key := "", o.client.dest.Vendor.Key
	if key.Place == dispatcher.KeyInBody && o.action.Policy.Class != dispatcher.Read {
		keyField = key.Name
	}
	if o.target.method != "" && !hasBody(o.target.method) {
		if b := o.action.Body; b.Format != AsIs || b.Template != "" || len(b.Fields) > 0 {
			fail("Body", "has no place in a %s", o.target.method)
		}
		if keyField != "" {
			fail("Request", "is a %s, which has no body for the vendor's key", o.target.method)
		}
		return
	}
	var err error
	if o.body, err = newBody(o.action.Body, keyField); err != nil {
		fail("Body", "%v", err)
	}
}

// setMeaning checks the rules and the lists of statuses.
func (o *operation) setMeaning(fail func(field, format string, args ...any)) {
	for i, rule := range o.action.Rules {
		if err := rule.check(o.repeatable); err != nil {
			fail("Rules", "number %d: %v", i+1, err)
		}
	}
	o.rules = slices.Concat(o.action.Rules, o.client.dest.Rules)
	o.looksIn = o.client.dest.JSONAnswers || slices.ContainsFunc(o.rules, func(r Rule) bool { return r.Field != "" })
	o.success = o.action.Success
	if len(o.success) == 0 {
		o.success = defaultSuccess(o.action.Accepted)
	}
	lists := []struct {
		field string
		list  Statuses
	}{{"Success", o.success}, {"Refused", o.action.Refused}, {"Wait", o.action.Wait}, {"Accepted", o.action.Accepted}}
	for i, at := range lists {
		if err := at.list.check(); err != nil {
			fail(at.field, "%v", err)
		}
		for _, before := range lists[:i] {
			if at.list.overlaps(before.list) {
				fail(at.field, "has a status that %s has too", before.field)
			}
		}
	}
	class := o.action.Policy.Class
	if len(o.action.Wait) > 0 && (class == dispatcher.NonIdempotentWrite || class == dispatcher.IrreversibleWrite) {
		fail("Wait", "must be empty for %v: no status but 429 says that the vendor did not act, and what waits is sent again", class)
	}
}

// defaultSuccess are the statuses by which a vendor says that it acted, without what is accepted.
func defaultSuccess(accepted Statuses) (out Statuses) {
	for status := 200; status <= 299; status++ {
		switch last := len(out) - 1; {
		case accepted.has(status) || httpstatus.Of(status, false) != httpstatus.Acted:
		case last >= 0 && out[last][1] == status-1:
			out[last][1] = status
		default:
			out = append(out, [2]int{status, status})
		}
	}
	return out
}
