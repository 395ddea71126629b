package samekeytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/samekey/samekey"
)

// Proxy stands between a client and a backend, as a load balancer does, and
// lets go wrong what goes wrong there: the backend acts and the client hears
// 503, or nothing, or half of the answer, or its request arrives twice. It
// keeps every request, what the backend answered and what the client was sent.
// Faults are injected on demand: [Proxy.Next], [Proxy.SetScript], [Proxy.Hold].
//
// Nothing happens that it was not told: each request is sent to the backend
// once, on a connection of its own, no redirect is followed, and headers (Host
// among them) and bodies pass as they are. Requests and answers are read whole
// before they are passed on, so there are no streams, trailers or upgrades. A
// backend that cannot be reached, or breaks off, is answered for with 502.
//
// Where a client goes, its request to the backend is cancelled, unless it met a
// fault: then the backend goes on.
//
// It is safe for concurrent use.
type Proxy struct {
	URL string // http://127.0.0.1:port, without a slash at its end

	backend   *url.URL
	transport *http.Transport
	server    *httptest.Server

	mu       sync.Mutex
	calls    []ProxyCall // calls[i].Call == i+1
	nth      map[string]int
	open     int
	answered int // answers of the backend
	next     []Fault
	script   func(ProxyCall) Fault
	hold     holdPoint
	release  chan struct{} // closed and replaced by Release
	changed  chan struct{} // closed and replaced whenever a count changes
	closing  chan struct{}
	closed   bool
}

// ProxyCall is one request that came to a [Proxy]. Printed, it shows a hash of
// the key, and neither headers nor bodies.
type ProxyCall struct {
	Call       int64 // 1, 2, ... in order of arrival
	Method     string
	Path       string // with the query
	Key        string // Idempotency-Key as it came, quotes included
	Header     http.Header
	Body       []byte
	Nth        int // the how-manieth request of its key
	Fault      Fault
	Backend    []ProxyAnswer // in order of arrival: none if it was not sent, two if it was sent twice
	Status     int           // as sent to the client; 0 if nothing was
	ClientGone bool
	Ended      bool
}

// ProxyAnswer is what the backend answered to one sending of a request.
type ProxyAnswer struct {
	Status int // 0 if Err is set
	Header http.Header
	Body   []byte
	Err    error // the backend could not be reached, or its answer broke off
}

// StartProxy starts a proxy in front of the backend at that URL (scheme, host
// and, if any, the path that all paths begin with) and ends it with the test,
// when no connection and no goroutine of it is left. Start it after the backend,
// so that it ends before.
func StartProxy(t testing.TB, backendURL string) *Proxy {
	t.Helper()
	backend, err := url.Parse(strings.TrimSuffix(backendURL, "/"))
	if err != nil || backend.Scheme == "" || backend.Host == "" {
		t.Fatalf("samekeytest: StartProxy: the backend's URL is not one such as http://127.0.0.1:8080")
	}
	p := &Proxy{
		backend: backend,
		// A connection of its own for each sending: on one that was used before and
		// is dead by now, net/http sends a request with this header once more by
		// itself.
		transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		nth:       map[string]int{},
		release:   make(chan struct{}),
		changed:   make(chan struct{}),
		closing:   make(chan struct{}),
	}
	p.server = httptest.NewServer(http.HandlerFunc(p.serve))
	p.URL = p.server.URL
	t.Cleanup(p.close)
	return p
}

func (p *Proxy) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
	}
	p.mu.Unlock()
	p.server.CloseClientConnections()
	p.server.Close()
}

// Calls returns a copy of what came, in order of arrival. A request is in it
// from its arrival, an answer of the backend before the client hears of it, and
// the end before the client can have read the whole answer.
func (p *Proxy) Calls() []ProxyCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := slices.Clone(p.calls)
	for i := range calls {
		calls[i].Backend = slices.Clone(calls[i].Backend)
	}
	return calls
}

// WaitOpen waits until n requests or more are open at once. If ctx ends first,
// the error says how many there were.
func (p *Proxy) WaitOpen(ctx context.Context, n int) error {
	return p.waitFor(ctx, n, "requests open", func() int { return p.open })
}

// WaitAnswered waits until the backend has given n answers or more, whether the
// client heard of them or not.
func (p *Proxy) WaitAnswered(ctx context.Context, n int) error {
	return p.waitFor(ctx, n, "answers of the backend", func() int { return p.answered })
}

// answers is how many answers the backend has given.
func (p *Proxy) answers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answered
}

func (p *Proxy) waitFor(ctx context.Context, n int, what string, count func() int) error {
	for {
		p.mu.Lock()
		have, changed := count(), p.changed
		p.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("samekeytest: proxy: %d of %d %s: %w", have, n, what, ctx.Err())
		}
	}
}

func (p *Proxy) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}

const maxProxyBody = 16 << 20

// proxyCall is a request between its arrival and its end.
type proxyCall struct {
	ProxyCall
	request *http.Request
	release chan struct{}
	hold    holdPoint
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxProxyBody))
	if err != nil {
		// Not a whole request, so not a call: nothing to pass on or to count.
		write(w, refusal(http.StatusBadRequest, "body", "the body could not be read to its end"))
		return
	}
	c, ok := p.arrive(r, body)
	if !ok {
		drop(w, false)
		return
	}
	defer p.end(c, 0, false) // the first end counts
	if c.hold == holdCalls && !p.park(c) {
		p.abandon(w, c)
		return
	}
	p.play(w, c)
}

func (p *Proxy) arrive(r *http.Request, body []byte) (*proxyCall, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false
	}
	key := strings.Join(r.Header.Values("Idempotency-Key"), ", ")
	p.nth[key]++
	c := &proxyCall{
		ProxyCall: ProxyCall{
			Call: int64(len(p.calls)) + 1, Method: r.Method, Path: r.URL.RequestURI(), Key: key,
			Header: r.Header.Clone(), Body: body, Nth: p.nth[key],
		},
		request: r, release: p.release, hold: p.hold,
	}
	c.Fault = p.pickFault(c.ProxyCall)
	p.calls = append(p.calls, c.ProxyCall)
	p.open++
	p.broadcast()
	return c, true
}

// end closes the request's entry, before its answer is sent, so that whoever has
// the answer finds it complete.
func (p *Proxy) end(c *proxyCall, status int, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := &p.calls[c.Call-1]
	if entry.Ended {
		return
	}
	entry.Status, entry.ClientGone, entry.Ended = status, gone, true
	p.open--
	p.broadcast()
}

// answer ends the request and sends a, if anybody is still there.
func (p *Proxy) answer(w http.ResponseWriter, c *proxyCall, a VendorAnswer) {
	if c.request.Context().Err() != nil {
		p.abandon(w, c)
		return
	}
	p.end(c, a.Status, false)
	sendAsIs(w, a, len(a.Body))
}

// abandon ends the request without an answer: its client went, or the proxy is
// closing.
func (p *Proxy) abandon(w http.ResponseWriter, c *proxyCall) {
	p.end(c, 0, c.request.Context().Err() != nil)
	drop(w, false)
}

// park keeps the request open until Release; it says false if the client went or
// the proxy is closing.
func (p *Proxy) park(c *proxyCall) bool {
	select {
	case <-c.release:
		return true
	case <-c.request.Context().Done():
		return false
	case <-p.closing:
		return false
	}
}

// String shows the request and its fate, and of its key a hash.
func (c ProxyCall) String() string {
	key := "none"
	if c.Key != "" {
		key = samekey.Key{Value: c.Key}.Hash()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "call %d: %s %s key:%s nth=%d", c.Call, c.Method, c.Path, key, c.Nth)
	if c.Fault != "" {
		fmt.Fprintf(&b, " fault=%s", c.Fault)
	}
	for _, a := range c.Backend {
		if a.Err != nil {
			fmt.Fprintf(&b, " backend failed (%v)", a.Err)
		} else {
			fmt.Fprintf(&b, " backend=%d", a.Status)
		}
	}
	switch {
	case !c.Ended:
		b.WriteString(" open")
	case c.ClientGone:
		b.WriteString(" client gone")
	case c.Status == 0:
		b.WriteString(" no answer")
	default:
		fmt.Fprintf(&b, " answered %d", c.Status)
	}
	return b.String()
}

// GoString is String, so that %#v prints no key either.
func (c ProxyCall) GoString() string { return c.String() }
