package httpvendor

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/samekey/samekey/dispatcher"
)

// Action is one request of a destination. Name, Request and Policy.Class are required.
type Action struct {
	// Name is the intents' action.
	Name string

	// Request is the method and the path, with a query if there is one: "POST /v1/charges?expand=card". The path is
	// added to that of the destination's URL. GET and HEAD are sent without a body, DELETE, PATCH, POST and PUT with the
	// payload's bytes, as they are.
	Request string

	// Headers are sent with each call, and win over those of the destination and of the intent.
	Headers map[string]string

	// Success, Refused and Wait list the statuses, 200 to 599, that mean delivered, a business no, and ask again later.
	// A status is in one list at most. Defaults: 200-299; none; none, beside 429, which always means later unless another
	// list has it. Wait is for a vendor that says, such as by 409, that it did not act now, or is still at work under
	// this key: no attempt is spent, so bound it by Policy.Deadline. It is refused for a class that may not be repeated,
	// since a vendor that does not know keys cannot say that by a 409: it may be about what the first call did.
	Success, Refused, Wait Statuses

	// Policy is the action's. Its Destination is set by [Client.Register], its KeyWindow defaults to the destination's
	// for an idempotent write.
	Policy dispatcher.Policy
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

// Register declares the destination with its limits, and the actions with their handlers. The error holds every mistake
// in the actions themselves; what is wrong with their policies, [dispatcher.Dispatcher.Check] says.
func (c *Client) Register(d *dispatcher.Dispatcher, actions ...Action) error {
	d.Destination(c.dest.Name, c.dest.Limits)
	var errs []error
	for _, action := range actions {
		action.Policy.Destination = c.dest.Name
		if action.Policy.Class == dispatcher.IdempotentWrite && action.Policy.KeyWindow == 0 {
			action.Policy.KeyWindow = c.dest.KeyWindow
		}
		handler, err := c.Handler(action)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d.Handle(action.Name, action.Policy, handler)
	}
	return errors.Join(errs...)
}

// Handler makes the action's handler. The error holds every mistake at once.
func (c *Client) Handler(action Action) (dispatcher.Handler, error) {
	e := &endpoint{client: c, action: action, transport: c.reusing, secrets: c.secrets}
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("httpvendor: %s: %s %s", action.Name, field, fmt.Sprintf(format, args...)))
	}
	if action.Name == "" {
		fail("Name", "is missing")
	}
	if err := e.setRequest(action.Request); err != nil {
		fail("Request", "%v", err)
	}
	header, err := operatorHeader(action.Headers, c.dest.KeyHeader)
	if err != nil {
		fail("Headers", "%v", err)
	}
	e.secrets = e.secrets.with(credentials(header))
	e.header = c.header.Clone()
	for name, values := range header {
		e.header[name] = values
	}
	e.setMeaning(fail)
	switch limit := action.Policy.ResponseCap; {
	case limit == 0:
		e.limit = 64 << 10 // dispatcher.Policy's default
	case limit > 0:
		e.limit = limit
	}
	e.repeatable = action.Policy.Class == dispatcher.Read || action.Policy.Class == dispatcher.IdempotentWrite
	if !e.repeatable {
		e.transport = c.single
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return e.attempt, nil
}

// endpoint is an action, ready to be called.
type endpoint struct {
	client     *Client
	action     Action
	transport  *http.Transport
	method     string
	body       bool // the payload is sent
	url        *url.URL
	header     http.Header
	limit      int // of an answer's body, in bytes
	repeatable bool
	success    Statuses
	secrets    secrets // the destination's, and those in the action's own headers
}

func (e *endpoint) setRequest(text string) error {
	method, path, ok := strings.Cut(text, " ")
	ref, err := url.Parse(path)
	switch {
	case text == "":
		return errors.New("is missing")
	case !ok || err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, " #"):
		return errors.New(`must be a method and a path, such as "POST /v1/charges"`)
	case !slices.Contains([]string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"}, method):
		return errors.New("must begin with one of DELETE, GET, HEAD, PATCH, POST, PUT")
	}
	base := e.client.base
	e.method, e.body = method, method != "GET" && method != "HEAD"
	e.url = &url.URL{
		Scheme: base.Scheme, Host: base.Host,
		Path:     strings.TrimRight(base.Path, "/") + ref.Path,
		RawPath:  strings.TrimRight(base.EscapedPath(), "/") + ref.EscapedPath(),
		RawQuery: strings.Trim(base.RawQuery+"&"+ref.RawQuery, "&"),
	}
	return nil
}

// setMeaning checks the lists of statuses.
func (e *endpoint) setMeaning(fail func(field, format string, args ...any)) {
	e.success = e.action.Success
	if len(e.success) == 0 {
		e.success = Statuses{{200, 299}}
	}
	lists := []struct {
		field string
		list  Statuses
	}{{"Success", e.success}, {"Refused", e.action.Refused}, {"Wait", e.action.Wait}}
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
	class := e.action.Policy.Class
	if len(e.action.Wait) > 0 && (class == dispatcher.NonIdempotentWrite || class == dispatcher.IrreversibleWrite) {
		fail("Wait", "must be empty for %v: no status but 429 says that the vendor did not act, and what waits is sent again", class)
	}
}
