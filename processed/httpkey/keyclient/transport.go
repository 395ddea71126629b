package keyclient

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/samekey/samekey/internal/names"
)

const (
	defaultHeader     = "Idempotency-Key"
	defaultAttempts   = 5
	defaultBackoff    = 200 * time.Millisecond
	defaultMaxBackoff = 10 * time.Second
	defaultMaxWait    = 30 * time.Second
	defaultInFlight   = time.Minute
)

// Transport is an http.RoundTripper that makes a POST or PATCH one operation, however often it is sent: all its
// attempts have one key, the request's own or a new one. The package comment says what is retried.
//
// The zero value is ready for use. Goroutines may share a Transport; do not change its fields meanwhile. With
// contradictory settings each request that takes a key fails with an [*Error] that names the field.
type Transport struct {
	// Base makes the attempts. Default: http.DefaultTransport, which waits for an answer without limit. A Base that
	// retries by itself multiplies the attempts.
	//
	// Base gets a request whose body cannot be resent (GetBody is nil). Without a body, the name of the key's header is
	// in lower case, which http.Header's Get does not find: net/http would resend such a request otherwise. On the wire
	// the case has no meaning.
	Base http.RoundTripper

	// Header is the name of the key's header. Default: Idempotency-Key.
	Header string

	// Methods get a key and are retried. Default: POST and PATCH. Name others, such as PUT and DELETE, only if the
	// server accepts keys with them. GET, HEAD, OPTIONS, TRACE and CONNECT are refused.
	Methods []string

	// Quoted sends minted keys as a structured field's string, "0190...", with the quotes, as in the IETF's draft.
	// Default: bare, which most servers expect; samekey's servers treat both as the same key. The request's own key is
	// sent unchanged.
	Quoted bool

	// Attempts is how often a request is sent at most, without the attempts that were told to wait (InFlight). Default:
	//  5. 1 sends it once.
	Attempts int

	// Backoff is the longest wait after the first attempt. It doubles with each attempt, up to MaxBackoff, and the wait
	// is drawn between 0 and that (full jitter). Defaults: 200 ms, and 10 s or Backoff if that is longer.
	Backoff, MaxBackoff time.Duration

	// InFlight is how long a request waits in all while the server is still working on another attempt of it (409 with
	// Retry-After). After that the next such answer is returned. Choose it longer than the server works on a request,
	// or its answer is missed. Default: 1 minute; negative: no wait.
	InFlight time.Duration

	// MaxWait is the longest Retry-After that is obeyed; an answer that asks for more is returned at once. The caller
	// may wait that long between any two attempts. Default: 30 s; negative: no wait.
	MaxWait time.Duration
}

// RoundTrip sends a POST or PATCH (or one of Methods) until an answer is final, the attempts are used up, or the
// context ends; see the package comment. The answer is the last one, as it came; its Request is what was sent, with the
// key. An error is an [*Error], and wraps the context's error if the context ended.
//
// Other methods go to Base once.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !t.keyed(req.Method) {
		return t.base().RoundTrip(t.withoutStrayKey(req))
	}
	if req.Body != nil {
		defer func() { _ = req.Body.Close() }() // attempts read the bodies of GetBody
	}
	c, err := t.newCall(req)
	if err != nil {
		return nil, c.failed(err)
	}
	return c.run(req.Context())
}

// keyed reports whether requests with this method get a key. resolved reports the methods that cannot have one.
func (t *Transport) keyed(method string) bool {
	if t.Methods == nil {
		return method == http.MethodPost || method == http.MethodPatch
	}
	return slices.Contains(t.Methods, method)
}

// CloseIdleConnections closes those of Base, if Base can.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// resolved returns t with its defaults, or an error that names the field.
func (t *Transport) resolved() (Transport, error) {
	r := Transport{
		Base:     t.base(),
		Header:   cmp.Or(t.Header, defaultHeader),
		Methods:  t.Methods,
		Quoted:   t.Quoted,
		Attempts: cmp.Or(t.Attempts, defaultAttempts),
		Backoff:  cmp.Or(t.Backoff, defaultBackoff),
		MaxWait:  cmp.Or(t.MaxWait, defaultMaxWait),
		InFlight: cmp.Or(t.InFlight, defaultInFlight),
	}
	r.MaxBackoff = cmp.Or(t.MaxBackoff, max(defaultMaxBackoff, r.Backoff))
	for _, method := range r.Methods {
		switch method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect, "":
			return r, fmt.Errorf("Methods has %q, which takes no key: give methods that change something, such as PUT and DELETE", method)
		}
	}
	switch {
	case !names.IsToken(r.Header):
		return r, fmt.Errorf("Header %q is not a valid header name", t.Header)
	case r.Attempts < 0:
		return r, fmt.Errorf("Attempts is %d: it counts every attempt, so give 1 or more, or 0 for %d", t.Attempts, defaultAttempts)
	case r.Backoff < 0:
		return r, fmt.Errorf("Backoff is %v: a wait cannot be negative", t.Backoff)
	case r.MaxBackoff < r.Backoff:
		return r, fmt.Errorf("MaxBackoff %v is shorter than Backoff %v", r.MaxBackoff, r.Backoff)
	}
	return r, nil
}
