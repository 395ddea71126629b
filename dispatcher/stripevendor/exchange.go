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
	"github.com/samekey/samekey/internal/wirehttp"
)

// exchange is one run of the application's function: what it may request from Stripe, and the result.
type exchange struct {
	purpose purpose
	key     string   // the carried key
	stored  *request // is sent instead of the SDK's request; nil: the SDK's is sent
	wire    *wire.Wire

	mu      sync.Mutex
	over    bool
	asked   int      // requests that the function has made
	refused error    // why one of them was not sent
	made    *request // when rendering

	confirms bool // the request confirms an intent or captures it
	sent     bool // after the end: a byte of a request may have been sent
	status   int  // zero: no answer
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
	errOutside  = errors.New("stripevendor: a call was made without the function's context: pass its ctx to the SDK")
	errRendered = errors.New("stripevendor: the request is stored, and sent by the attempt")
	errSecond   = errors.New("the function made more than one request: an intent is one request under one key")
	errMethod   = errors.New("the function's request is not a POST, and Stripe takes a key only with a POST. Read before the intent is inserted, or in the lookup")
	errAPI      = errors.New("the function's request is not for the API v1: other APIs have other rules for keys")
	errWrites   = errors.New("the lookup made a request that writes, but it may only read")
	errTooLong  = errors.New("the answer is too long")
	errNone     = errors.New("stripevendor: the function made no request")
)

// end stops all sending, also by goroutines that the function left behind. After it nothing of x changes.
func (x *exchange) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	_, x.sent = x.wire.End()
}

// note changes x unless it has ended.
func (x *exchange) note(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		change()
	}
}

// admit decides whether the exchange's purpose allows a request of the SDK.
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

// roundTrip handles each request of the SDK.
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
	response, err := wirehttp.RoundTrip(x.wire, c.transport, out.WithContext(ctx))
	if err == nil {
		defer func() { _ = response.Body.Close() }()
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

// request is what is stored of a request: what decides its effect, without secrets and without data of this machine.
type request struct {
	Path   string      `json:"path"` // with its query
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// requestType names the form of a stored request. Another form gets another name.
const requestType = "stripevendor/1"

// current are the headers that are not stored: each attempt has those of its release.
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

// build makes the request that is sent.
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
	out.Body = http.NoBody // unless there is one
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
		return nil, fmt.Errorf("the stored request is a %.40q, but this release sends %q", kind, requestType)
	}
	q := new(request)
	if err := json.Unmarshal(text, q); err != nil || !strings.HasPrefix(q.Path, "/v1/") || q.Header == nil {
		return nil, errors.New("the stored request cannot be read")
	}
	return q, nil
}
