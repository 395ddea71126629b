package samekeytest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey"
)

// Proxy stands between a client and a backend, as a load balancer does, and fails as one does: the backend acts and the
// client gets 503, or nothing, or half of the answer, or its request arrives twice. The proxy keeps every request, what
// the backend answered and what the client was sent. Faults are injected on demand, with Next, [Proxy.SetScript] and
// Hold.
//
// Without a fault the proxy changes nothing: it sends each request to the backend once, on a connection of its own,
// follows no redirect, and passes headers (including Host) and bodies unchanged. It reads requests and answers whole
// before it passes them on, so there are no streams, trailers or upgrades. If the backend cannot be reached, or breaks
// off, the proxy answers 502.
//
// If a client goes away, its request to the backend is cancelled, unless the request met a fault: then the backend
// continues.
//
// A Proxy is safe for concurrent use.
type Proxy struct {
	URL string // http://127.0.0.1:port, without a slash at its end

	engine
	backend   *url.URL
	transport *http.Transport
	server    *httptest.Server

	// engine.mu guards the rest.
	calls    []ProxyCall // calls[i].Call == i+1
	nth      map[string]int
	answered int // answers of the backend
	script   func(ProxyCall) Fault
}

// ProxyCall is one request that reached a [Proxy]. Printed, it shows a hash of the key, and neither headers nor bodies.
type ProxyCall struct {
	Call       int64 // 1, 2, ... in order of arrival
	Method     string
	Path       string // with the query
	Key        string // Idempotency-Key as it arrived, quotes included
	Header     http.Header
	Body       []byte
	Nth        int // position among the requests with this key, starting at 1
	Fault      Fault
	Backend    []ProxyAnswer // in order of arrival: none if it was not sent, two if it was sent twice
	Status     int           // as sent to the client; 0 if nothing was
	ClientGone bool
	Ended      bool
}

// ProxyAnswer is the backend's answer to one sending of a request.
type ProxyAnswer struct {
	Status int // 0 if Err is set
	Header http.Header
	Body   []byte
	Err    error // the backend could not be reached, or its answer broke off
}

// StartProxy starts a proxy in front of the backend at this URL: scheme, host and, if all paths share one, a path. The
// proxy ends with the test, after which no connection and no goroutine of it is left. Start it after the backend, so
// that it ends before.
func StartProxy(t testing.TB, backendURL string) *Proxy {
	t.Helper()
	backend, err := url.Parse(strings.TrimSuffix(backendURL, "/"))
	if err != nil || backend.Scheme == "" || backend.Host == "" {
		t.Fatalf("samekeytest: StartProxy: the backend needs a URL such as http://127.0.0.1:8080")
	}
	p := &Proxy{
		engine:  newEngine(checkProxyFault),
		backend: backend,
		// One connection per sending: on a reused connection that is dead, net/http sends a request with an
		// Idempotency-Key a second time by itself.
		transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		nth:       map[string]int{},
	}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, p.admit) }))
	p.URL = p.server.URL
	t.Cleanup(p.close)
	return p
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.server.CloseClientConnections()
	p.server.Close()
}

// SetScript sets a function that decides the fault of each request for which Next has queued none, by method, path, key
// and Nth. It returns "" for no fault. A nil script is none. The proxy is locked during the call: the script must not
// use it.
//
//	proxy.SetScript(func(c samekeytest.ProxyCall) samekeytest.Fault {
//		if c.Method == "POST" && c.Nth == 1 {
//			return "503_after" // the first answer to each key is lost
//		}
//		return ""
//	})
func (p *Proxy) SetScript(script func(ProxyCall) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// Calls returns a copy of the requests so far, in order of arrival. A request is in it from its arrival, an answer of
// the backend before the client gets it, and the end before the client can have read the whole answer.
func (p *Proxy) Calls() []ProxyCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := slices.Clone(p.calls)
	for i := range calls {
		calls[i].Backend = slices.Clone(calls[i].Backend)
	}
	return calls
}

// WaitAnswered waits until the backend has given at least n answers, whether or not the client got them.
func (p *Proxy) WaitAnswered(ctx context.Context, n int) error {
	return p.waitFor(ctx, n, "answers of the backend", func() int { return p.answered })
}

// answers returns how many answers the backend has given.
func (p *Proxy) answers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answered
}

// admit records the request and picks its fault. p.mu is held.
func (p *Proxy) admit(visit *visit, body []byte) {
	r := visit.r
	key := strings.Join(r.Header.Values("Idempotency-Key"), ", ")
	p.nth[key]++
	entry := ProxyCall{
		Call: int64(len(p.calls)) + 1, Method: r.Method, Path: r.URL.RequestURI(), Key: key,
		Header: r.Header.Clone(), Body: body, Nth: p.nth[key],
	}
	entry.Fault = p.pick(func() Fault {
		if p.script == nil {
			return ""
		}
		return p.script(entry)
	})
	p.calls = append(p.calls, entry)
	visit.behavior = &proxyCall{p: p, ProxyCall: entry, request: r}
	visit.fault = entry.Fault
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
