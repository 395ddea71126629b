package stripevendor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/samekey/samekey/internal/wire"
)

// exchange is one run of a function that was registered: what it may ask of Stripe, and what came of it.
type exchange struct {
	purpose purpose
	key     string   // what is carried
	stored  *request // what is sent, whatever the SDK made now; nil: what it made
	wire    *wire.Wire

	mu      sync.Mutex
	over    bool
	asked   int      // requests that the function has made
	refused error    // why one of them was not let out
	made    *request // of a rendering

	confirms bool // the request sent confirms an intent, or captures it
	sent     bool // at the end: a byte of a request may have gone out
	status   int  // zero: there was no answer
	header   http.Header
	body     []byte
	failure  error // of the connection, or while the answer was read
}

type purpose int

const (
	rendering purpose = iota
	sending
	reading
)

type exchangeKey struct{}

func (x *exchange) in(ctx context.Context) context.Context {
	x.wire = wire.New(ctx)
	return context.WithValue(ctx, exchangeKey{}, x)
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

var (
	errOutside  = errors.New("stripevendor: this client serves calls that were given its context: pass the ctx of the function on")
	errRendered = errors.New("stripevendor: the request is stored, and sent at the attempt")
	errSecond   = errors.New("it made more than one request: an intent is one request, under one key")
	errMethod   = errors.New("its request is no POST: Stripe takes a key with nothing else. Read before the intent is written, or in the look-up")
	errAPI      = errors.New("its request is none of the API v1: keys of other APIs follow other rules")
	errWrites   = errors.New("the look-up made a request that writes: it may only read")
	errTooLong  = errors.New("the answer is too long")
)

// end lets nothing more out, also of what the function may have left behind. From here on nothing of x changes.
func (x *exchange) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	_, x.sent = x.wire.End()
}

// note changes x, unless its end has come.
func (x *exchange) note(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		change()
	}
}

// admit decides whether a request of the SDK's is one that its purpose allows.
func (x *exchange) admit(c *Client, r *http.Request) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.wire.Check(); err != nil {
		return err
	}
	x.asked++
	switch {
	case r.URL.Host != c.base.Host || !strings.HasPrefix(r.URL.Path, "/v1/"):
		x.refused = errAPI
	case x.purpose == reading && r.Method != http.MethodGet:
		x.refused = errWrites
	case x.purpose == reading:
		return nil
	case r.Method != http.MethodPost:
		x.refused = errMethod
	case x.asked > 1:
		x.refused = errSecond
	}
	return x.refused
}

// roundTrip is where each request of the SDK's ends up.
func (c *Client) roundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	}
	x := exchangeOf(r.Context())
	if x == nil {
		return nil, errOutside
	}
	if err := x.admit(c, r); err != nil {
		return nil, err
	}
	made, err := c.take(r)
	if err != nil {
		return nil, err
	}
	if x.purpose == rendering {
		x.note(func() { x.made = made })
		return nil, errRendered
	}
	if x.stored != nil {
		made = x.stored
	}
	out, err := made.build(c, r, x.key)
	if err != nil {
		return nil, err
	}
	x.note(func() { x.confirms = made.confirms() })
	return x.send(r.Context(), c, out)
}

func (x *exchange) send(ctx context.Context, c *Client, out *http.Request) (*http.Response, error) {
	response, err := c.transport.RoundTrip(out.WithContext(x.wire.Trace(ctx)))
	if err == nil {
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode == http.StatusSwitchingProtocols { // no deadline ends a read of it
			_ = response.Body.Close()
			response.Body = http.NoBody
		}
		var body []byte
		if body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1)); err == nil && len(body) > maxAnswer {
			err = errTooLong
		}
		response.Body = io.NopCloser(bytes.NewReader(body))
		x.note(func() { x.status, x.header, x.body = response.StatusCode, response.Header, body })
	}
	x.note(func() { x.failure = err })
	if err != nil {
		return nil, err
	}
	return response, nil
}

const maxAnswer = 8 << 20

// request is what is stored of a request: what decides its effect, and nothing that is a secret or of this machine.
type request struct {
	Path   string      `json:"path"` // with its query
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// requestType says what a stored request is. Another form gets another name.
const requestType = "stripevendor/1"

// current are the headers that are not stored: each attempt has those of its own release.
var current = []string{"Authorization", "User-Agent", "X-Stripe-Client-User-Agent", "X-Stripe-Client-Telemetry"}

func (c *Client) take(r *http.Request) (*request, error) {
	made := &request{Path: r.URL.RequestURI(), Header: r.Header.Clone()}
	for _, name := range append([]string{keyHeader}, current...) {
		made.Header.Del(name)
	}
	if r.Body == nil {
		return made, nil
	}
	var err error
	made.Body, err = io.ReadAll(r.Body)
	return made, err
}

// build makes the request that goes out. It has no GetBody, so that net/http has nothing to send again.
func (q *request) build(c *Client, of *http.Request, key string) (*http.Request, error) {
	at, err := url.Parse(q.Path)
	if err != nil {
		return nil, errors.New("stripevendor: the stored path is not valid")
	}
	out := &http.Request{
		Method: of.Method, URL: c.base.ResolveReference(at), Host: c.base.Host, Header: q.Header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	for _, name := range current {
		if value := of.Header.Get(name); value != "" {
			out.Header.Set(name, value)
		}
	}
	if of.Method != http.MethodPost {
		return out, nil
	}
	out.Header.Set(keyHeader, key)
	out.Body = http.NoBody
	if len(q.Body) > 0 {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(q.Body)), int64(len(q.Body))
	}
	return out, nil
}

// confirms reports whether the request confirms a payment intent or a setup intent, or captures one.
func (q *request) confirms() bool {
	path, _, _ := strings.Cut(q.Path, "?")
	form, err := url.ParseQuery(string(q.Body))
	return strings.HasSuffix(path, "/confirm") || strings.HasSuffix(path, "/capture") || err == nil && form.Get("confirm") == "true"
}

func parseRequest(text []byte, kind string) (*request, error) {
	if kind != requestType {
		return nil, fmt.Errorf("the stored request is a %.40q, and this release sends %q", kind, requestType)
	}
	q := new(request)
	if err := json.Unmarshal(text, q); err != nil || !strings.HasPrefix(q.Path, "/v1/") || q.Header == nil {
		return nil, errors.New("the stored request cannot be read")
	}
	return q, nil
}
