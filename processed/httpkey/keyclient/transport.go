package keyclient

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	defaultHeader     = "Idempotency-Key"
	defaultAttempts   = 5
	defaultBackoff    = 200 * time.Millisecond
	defaultMaxBackoff = 10 * time.Second
	defaultMaxWait    = 30 * time.Second
	defaultInFlight   = time.Minute
)

// Transport is an http.RoundTripper that makes a POST or PATCH one operation,
// however often it is sent: one key for all its attempts, the one that the
// request carries or a new one. The package comment says what is sent again.
//
// The zero value is ready for use. Many goroutines may use one Transport; its
// fields must not change meanwhile. Settings that contradict themselves make each
// request that takes a key fail with an [*Error] that names the field.
type Transport struct {
	// Base makes the attempts. Default: http.DefaultTransport, which waits
	// forever for an answer. One that sends again by itself multiplies the
	// attempts.
	//
	// Base gets a request whose body cannot be sent again (GetBody is nil). Where
	// there is no body, the key's header has its name in lower case, which
	// http.Header's Get does not find, as net/http would send such a request
	// again; on the wire the case means nothing.
	Base http.RoundTripper

	// Header is the name of the key's header. Default: Idempotency-Key.
	Header string

	// Methods get a key, and are sent again. Default: POST and PATCH. Name others,
	// such as PUT and DELETE, only where the server takes keys with them. GET, HEAD,
	// OPTIONS, TRACE and CONNECT are not taken.
	Methods []string

	// Quoted sends the keys that are minted here as a structured field's string,
	// "0190...", quotes included, as the IETF's draft has it. Default: bare, which
	// is what most servers know; samekey's take both for the same key. A key that
	// the request carries is sent as it is.
	Quoted bool

	// Attempts is how many times a request is sent in all, those not counted that
	// were told to wait (InFlight). Default: 5. 1 sends it once.
	Attempts int

	// Backoff is the most that is waited after the first attempt; it doubles with
	// each, up to MaxBackoff, and the wait is drawn between zero and that (full
	// jitter). Defaults: 200 ms, and 10 s or Backoff where that is more.
	Backoff, MaxBackoff time.Duration

	// InFlight is how long, in all, a request waits for another attempt of the
	// same that the server is still working on: for answers of 409 with
	// Retry-After. Then the next such answer is returned. Longer than the server
	// works on a request, or its answer is missed. Default: 1 minute; negative:
	// none is waited for.
	InFlight time.Duration

	// MaxWait is the longest Retry-After that is waited for; an answer that asks
	// for more is returned at once. Default: 30 s; negative: none is waited for.
	// The caller is held for up to MaxWait between any two attempts.
	MaxWait time.Duration
}

// RoundTrip sends a POST or PATCH (or one of Methods) until there is an answer that is final, the
// attempts are used up or the context ends; see the package comment. The answer
// is the last one, as it came, and its Request is what was sent, key included.
// An error is an [*Error]; it wraps the context's where that ended.
//
// Other methods go to Base once.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !t.keyed(req.Method) {
		return t.base().RoundTrip(t.withoutStrayKey(req))
	}
	if req.Body != nil {
		defer func() { _ = req.Body.Close() }() // attempts read those of GetBody
	}
	c, err := t.newCall(req)
	if err != nil {
		return nil, c.failed(err)
	}
	return c.run(req.Context())
}

// keyed reports whether requests with this method get a key. What cannot have one
// is reported by resolved.
func (t *Transport) keyed(method string) bool {
	if t.Methods == nil {
		return method == http.MethodPost || method == http.MethodPatch
	}
	return slices.Contains(t.Methods, method)
}

// CloseIdleConnections does so in Base, where that can.
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
			return r, fmt.Errorf("Methods has %q, which takes no key: name methods that change something, such as PUT and DELETE", method)
		}
	}
	switch {
	case strings.ContainsFunc(r.Header, notToken):
		return r, fmt.Errorf("Header %q is no header's name: use letters, digits, - and _", t.Header)
	case r.Attempts < 0:
		return r, fmt.Errorf("Attempts is %d: it counts all that are made, so 1 or more, or 0 for %d", t.Attempts, defaultAttempts)
	case r.Backoff < 0:
		return r, fmt.Errorf("Backoff is %v: a wait cannot be negative", t.Backoff)
	case r.MaxBackoff < r.Backoff:
		return r, fmt.Errorf("MaxBackoff %v is shorter than Backoff %v", r.MaxBackoff, r.Backoff)
	}
	return r, nil
}

// notToken is stricter than the protocol: no header for a key has other signs.
func notToken(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
}
