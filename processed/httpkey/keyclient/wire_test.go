package keyclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestEachLogicalRequestHasOneKeyInAllItsAttempts(t *testing.T) {
	for _, method := range []string{"POST", "PATCH"} {
		server := startRaw(t, func(n int, c net.Conn) bool {
			answer(c, map[bool]int{true: 201, false: 503}[n%3 == 0])
			return true
		})
		transport := newTransport(t)
		for range 2 {
			req := newRequest(t, method, server.url+"/orders", order)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = readAll(t, resp)
			requests := server.seen()
			if last := requests[len(requests)-1]; resp.StatusCode != 201 || resp.Request.Header.Get("Idempotency-Key") != last.key {
				t.Errorf("%d, and shows the key %q, not %q", resp.StatusCode, resp.Request.Header.Get("Idempotency-Key"), last.key)
			}
		}
		requests := server.seen()
		if len(requests) != 6 || requests[0].key == requests[3].key {
			t.Fatalf("the server saw %+v", requests)
		}
		for i, r := range requests {
			first := requests[i/3*3]
			if r.keys != 1 || len(r.key) != 36 || r.key != first.key || r.body != order || r.method != method || r.path != "/orders" || r.length != int64(len(order)) {
				t.Errorf("request %d is %+v, the first %+v", i+1, r, first)
			}
		}
		if n := server.connections.Load(); n != 1 {
			t.Errorf("took %d connections: answers that are retried are to be drained", n)
		}
	}
}

func TestRequestsOwnKeyIsSent(t *testing.T) {
	for _, tc := range []struct{ header, spelled, key string }{
		{"", "Idempotency-Key", "order-1"},
		{"", "Idempotency-Key", `"order-1"`},
		{"", "Idempotency-Key", `"a \"b\" \\ c"`},
		{"", "Idempotency-Key", `a b "c"`},
		{"", "idempotency-key", "order-1"},
		{"X-Idem", "X-Idem", strings.Repeat("k", 255)},
	} {
		var mu sync.Mutex
		var keys []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, strings.Join(r.Header.Values(tc.spelled), "|"))
			w.WriteHeader(map[bool]int{true: 503, false: 200}[len(keys) == 1])
		}))
		t.Cleanup(server.Close)
		transport := newTransport(t)
		transport.Header, transport.Quoted = tc.header, true
		req := newRequest(t, "POST", server.URL, order)
		req.Header[tc.spelled] = []string{tc.key}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Errorf("%q: %v", tc.key, err)
			continue
		}
		_ = readAll(t, resp)
		if len(keys) != 2 || keys[0] != tc.key || keys[1] != tc.key || resp.Request.Header.Get(tc.spelled) != tc.key {
			t.Errorf("%q was sent as %q", tc.key, keys)
		}
	}
}

func TestQuotedMintsAStructuredFieldsString(t *testing.T) {
	server := startRaw(t, func(_ int, c net.Conn) bool { answer(c, 200); return true })
	transport := newTransport(t)
	transport.Quoted = true
	post(t, &http.Client{Transport: transport}, server.url)
	if key := server.seen()[0].key; len(key) != 38 || key[0] != '"' || key[37] != '"' {
		t.Errorf("the key is %q", key)
	}
}

// Case 19: net/http by itself sends a request with an Idempotency-Key again where a kept connection dies under it.
func TestEachAttemptIsOneRequestOnTheWire(t *testing.T) {
	for _, body := range []string{order, ""} {
		for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			t.Run(header+body, func(t *testing.T) {
				cut := func(n int, c net.Conn) bool {
					if n == 1 {
						answer(c, 200)
					}
					return n == 1
				}
				prepare := func(transport *Transport) (*rawServer, *http.Request) {
					server := startRaw(t, cut)
					resp, err := transport.Base.RoundTrip(newRequest(t, "GET", server.url, ""))
					if err != nil {
						t.Fatal(err)
					}
					_ = readAll(t, resp) // the connection is kept, and will die under the next request
					return server, newRequest(t, "POST", server.url, body)
				}

				transport := newTransport(t)
				server, req := prepare(transport)
				req.Header.Set(header, "order-1")
				if _, err := transport.Base.RoundTrip(req); err == nil || len(server.seen()) != 3 {
					t.Fatalf("the test is void: net/http alone made %d requests, want 3 (%v)", len(server.seen()), err)
				}

				transport = newTransport(t)
				transport.Header, transport.Attempts = header, 1
				server, req = prepare(transport)
				_, err := transport.RoundTrip(req)
				if failed := errorOf(t, err); failed.Attempts != 1 || len(server.seen()) != 2 {
					t.Errorf("one attempt put %d requests on the wire: %v", len(server.seen())-1, err)
				}

				transport = newTransport(t)
				transport.Header, transport.Attempts = header, 4
				server, req = prepare(transport)
				_, err = transport.RoundTrip(req)
				requests := server.seen()[1:]
				if failed := errorOf(t, err); failed.Attempts != 4 || len(requests) != 4 {
					t.Errorf("%d attempts put %d requests on the wire: %v", failed.Attempts, len(requests), err)
				}
				for _, r := range requests {
					if r.body != body || r.length != int64(len(body)) {
						t.Errorf("the body is %q, its length %d", r.body, r.length)
					}
				}
			})
		}
	}
}

func TestLostAnswerIsRetried(t *testing.T) {
	for name, lose := range map[string]func(c net.Conn){
		"connection cut": func(c net.Conn) {},
		"reset":          func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
		"header cut off": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Ty") },
		"no HTTP":        func(c net.Conn) { _, _ = io.WriteString(c, "what?\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			server := startRaw(t, func(n int, c net.Conn) bool {
				if n < 3 {
					lose(c)
					return false
				}
				answer(c, 201)
				return true
			})
			resp, body := post(t, newClient(t), server.url)
			requests := server.seen()
			if resp.StatusCode != 201 || body != "body" || len(requests) != 3 {
				t.Fatalf("%d %q after %d requests", resp.StatusCode, body, len(requests))
			}
			for _, r := range requests {
				if r.key != requests[0].key || r.body != order {
					t.Errorf("the server saw %+v", requests)
				}
			}
		})
	}
}

func TestNoServerEndsInAnErrorWithTheKey(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	client := newClient(t)
	_, err = client.Post("http://"+listener.Addr().String(), "text/plain", strings.NewReader(order))
	if failed := errorOf(t, err); failed.Attempts != 5 || len(failed.Key) != 36 || !strings.Contains(failed.Error(), "connection refused") {
		t.Errorf("%+v: %v", *failed, err)
	}
}

func TestStatusDecidesWhetherAnAnswerIsFinal(t *testing.T) {
	const again, final = 3, 1
	for _, tc := range []struct {
		status  int
		headers []string
		want    int
	}{
		{200, nil, final}, {201, nil, final}, {202, nil, final}, {204, nil, final}, {304, nil, final},
		{400, nil, final}, {401, nil, final}, {402, nil, final}, {403, nil, final}, {404, nil, final}, {410, nil, final},
		{422, nil, final}, {422, []string{"Retry-After: 0"}, final},
		{499, nil, final},
		{501, nil, again}, {505, nil, again}, {507, nil, again}, {520, nil, again}, {524, nil, again}, {529, nil, again}, {599, nil, again},
		{501, []string{"Idempotent-Replayed: true"}, final},
		{408, nil, again}, {425, nil, again}, {429, nil, again}, {500, nil, again}, {502, nil, again}, {503, nil, again}, {504, nil, again},
		{503, []string{"Retry-After: 0"}, again},
		{409, nil, final},
		{409, []string{"Retry-After: 0"}, again},
		{409, []string{"Retry-After: -5"}, again}, // told to wait, if not how long
		{409, []string{"Retry-After: soon"}, again},
		{409, []string{"Retry-After: 0", "Retry-After: 0"}, again},
		{409, []string{"Retry-After: 0", "Idempotent-Replayed: true"}, final},
		{500, []string{"Idempotent-Replayed: true"}, final},
		{503, []string{"idempotent-replayed: True", "Retry-After: 0"}, final},
		{500, []string{"Idempotent-Replayed: false"}, again},
	} {
		t.Run(fmt.Sprint(tc.status, tc.headers), func(t *testing.T) {
			server := startRaw(t, func(_ int, c net.Conn) bool {
				if tc.status == 204 || tc.status == 304 {
					_, _ = fmt.Fprintf(c, "HTTP/1.1 %d Whatever\r\n\r\n", tc.status)
				} else {
					answer(c, tc.status, tc.headers...)
				}
				return true
			})
			transport := newTransport(t)
			transport.Attempts, transport.InFlight = again, 20*time.Millisecond
			resp, body := post(t, &http.Client{Transport: transport}, server.url)
			n := len(server.seen())
			if tc.status == http.StatusConflict && tc.want == again && n > 1 { // waited out, for as long as InFlight
				n = again
			}
			if n != tc.want || resp.StatusCode != tc.status || body != "body" && tc.status != 204 && tc.status != 304 {
				t.Errorf("%d requests, want %d; the answer is %d %q", n, tc.want, resp.StatusCode, body)
			}
		})
	}
}

func TestLastAttemptsAnswerIsReturned(t *testing.T) {
	server := startRaw(t, func(n int, c net.Conn) bool {
		if n%2 == 1 {
			answer(c, 503, fmt.Sprintf("X-Number: %d", n))
		}
		return n%2 == 1
	})
	transport := newTransport(t)
	client := &http.Client{Transport: transport}
	transport.Attempts = 3
	if resp, body := post(t, client, server.url); resp.StatusCode != 503 || resp.Header.Get("X-Number") != "3" || body != "body" {
		t.Errorf("is %d %v %q, want the third", resp.StatusCode, resp.Header, body)
	}
	transport.Attempts = 1
	_, err := client.Post(server.url, "text/plain", strings.NewReader(order))
	if failed := errorOf(t, err); failed.Attempts != 1 || !errors.Is(failed, io.EOF) && !strings.Contains(failed.Error(), "EOF") && !strings.Contains(failed.Error(), "closed") {
		t.Errorf("%v", err)
	}
	if n := len(server.seen()); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}

func TestOverHTTP2TheKeyArrivesWithABodyAndWithout(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if r.ProtoMajor != 2 || len(keys)%2 == 1 {
			w.WriteHeader(503)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	for i, body := range []string{order, ""} {
		transport := &Transport{Base: server.Client().Transport, Backoff: time.Millisecond}
		resp, err := transport.RoundTrip(newRequest(t, "POST", server.URL, body))
		if err != nil {
			t.Fatal(err)
		}
		_ = readAll(t, resp)
		if resp.StatusCode != 200 || len(keys) != 2*i+2 || len(keys[2*i]) != 36 || keys[2*i] != keys[2*i+1] {
			t.Errorf("%d with the keys %q", resp.StatusCode, keys)
		}
	}
}

func TestOtherMethodsAreSentOnce(t *testing.T) {
	for _, method := range []string{"", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post"} {
		req := newRequest(t, "GET", "http://example.com", order)
		req.Method = method
		calls := 0
		transport := &Transport{Attempts: -1, Base: baseFunc(func(got *http.Request) (*http.Response, error) {
			calls++
			if got != req || len(got.Header) != 0 {
				t.Errorf("%q is changed: %v", method, got.Header)
			}
			return response(503), nil
		})}
		resp, err := transport.RoundTrip(req)
		if err != nil || resp.StatusCode != 503 || calls != 1 {
			t.Errorf("%q: %v, %v after %d calls", method, resp, err, calls)
		}
	}
}

func TestConcurrentRequestsHaveKeysOfTheirOwn(t *testing.T) {
	var mu sync.Mutex
	bodies := map[string]map[string]int{} // by key
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		if bodies[key] == nil {
			bodies[key] = map[string]int{}
		}
		bodies[key][string(body)]++
		n := bodies[key][string(body)]
		mu.Unlock()
		if n < 3 {
			w.WriteHeader(503)
		}
	}))
	t.Cleanup(server.Close)
	client := newClient(t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			resp, err := client.Post(server.URL, "text/plain", strings.NewReader(fmt.Sprint(i)))
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	all.Wait()
	if len(bodies) != 50 {
		t.Errorf("50 requests have %d keys", len(bodies))
	}
	for key, of := range bodies {
		if len(of) != 1 {
			t.Errorf("key %s was sent with %v", key, of)
		}
		for body, n := range of {
			if n != 3 {
				t.Errorf("%s was sent %d times", body, n)
			}
		}
	}
}

// The answer is longer than what is read for the connection's sake, or never ends: neither holds the request up.
func TestDiscardedAnswerIsReadWithinBounds(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter, r *http.Request){
		"infinite": func(w http.ResponseWriter, r *http.Request) {
			for chunk := make([]byte, 64<<10); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
		"stuck": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "a")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				mu.Lock()
				calls++
				first := calls == 1
				mu.Unlock()
				if first {
					w.WriteHeader(503)
					write(w, r)
				}
			}))
			t.Cleanup(server.Close)
			began := time.Now()
			if resp, _ := post(t, newClient(t), server.URL); resp.StatusCode != 200 || time.Since(began) > patience/2 {
				t.Errorf("%d after %v", resp.StatusCode, time.Since(began))
			}
		})
	}
}

// endless counts what is read of it.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.read += int64(len(p)); e.read > 10*drainLimit {
		return 0, io.EOF
	}
	return len(p), nil
}

func TestDiscardedAnswerIsReadUpToTheLimit(t *testing.T) {
	body := &endless{}
	transport := &Transport{Backoff: 1, Base: baseFunc(func(*http.Request) (*http.Response, error) {
		if body.read == 0 {
			return &http.Response{StatusCode: 503, Body: io.NopCloser(body)}, nil
		}
		return response(200), nil
	})}
	resp, err := transport.RoundTrip(newRequest(t, "POST", "http://example.com", order))
	if err != nil || resp.StatusCode != 200 || body.read != drainLimit {
		t.Errorf("%v, after %d bytes, want %d", err, body.read, drainLimit)
	}
}

func TestACancelledContextEndsTheWaitAndTheAttempt(t *testing.T) {
	for _, tc := range []struct {
		name     string
		attempts int
		serve    func(cancel func(), c net.Conn) bool
	}{
		{"during the wait", 1, func(cancel func(), c net.Conn) bool {
			answer(c, 503, "Retry-After: 20")
			time.AfterFunc(20*time.Millisecond, cancel)
			return true
		}},
		{"during the attempt", 1, func(cancel func(), c net.Conn) bool {
			cancel()
			_, _ = c.Read(make([]byte, 1)) // until the client hangs up
			return false
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cause := errors.New("shutting down")
			ctx, cancel := context.WithCancelCause(t.Context())
			server := startRaw(t, func(_ int, c net.Conn) bool { return tc.serve(func() { cancel(cause) }, c) })
			req := newRequest(t, "POST", server.url, order).WithContext(ctx)
			began := time.Now()
			_, err := (&http.Client{Transport: newTransport(t)}).Do(req)
			failed := errorOf(t, err)
			if !errors.Is(err, context.Canceled) || failed.Attempts != tc.attempts || failed.Key != server.seen()[0].key {
				t.Errorf("%+v: %v", *failed, err)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	transport := &Transport{Base: baseFunc(func(*http.Request) (*http.Response, error) { t.Error("was called"); return nil, io.EOF })}
	_, err := transport.RoundTrip(newRequest(t, "POST", "http://example.com", order).WithContext(ctx))
	if failed := errorOf(t, err); !errors.Is(err, context.Canceled) || failed.Attempts != 0 {
		t.Errorf("%+v", failed)
	}
}

func TestADeadlinesErrorHoldsTheKeyAndIsATimeout(t *testing.T) {
	server := startRaw(t, func(_ int, c net.Conn) bool { answer(c, 503, "Retry-After: 20"); return true })
	client := newClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Do(newRequest(t, "POST", server.url, order).WithContext(ctx))
	if failed := errorOf(t, err); failed.Key == "" || !failed.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if timeout, ok := err.(interface{ Timeout() bool }); !ok || !timeout.Timeout() {
		t.Errorf("is no timeout: %v", err)
	}
}

func TestCloseIdleConnectionsReachesBase(t *testing.T) {
	server := startRaw(t, func(_ int, c net.Conn) bool { answer(c, 200); return true })
	client := newClient(t)
	for want := range int64(3) {
		post(t, client, server.url)
		if n := server.connections.Load(); n != want+1 {
			t.Errorf("%d connections, want %d", n, want+1)
		}
		client.CloseIdleConnections()
	}
	(&Transport{Base: baseFunc(nil)}).CloseIdleConnections() // has none
}

func TestTheZeroValueWorks(t *testing.T) {
	server := startRaw(t, func(_ int, c net.Conn) bool { answer(c, 200); return true })
	client := &http.Client{Transport: &Transport{}}
	post(t, client, server.url)
	client.CloseIdleConnections()
	if requests := server.seen(); len(requests) != 1 || len(requests[0].key) != 36 {
		t.Errorf("the server saw %+v", requests)
	}
}

func TestMethodsGetKeys(t *testing.T) {
	server := startRaw(t, func(n int, c net.Conn) bool {
		answer(c, map[bool]int{true: 503, false: 200}[n%2 == 1])
		return true
	})
	transport := newTransport(t)
	transport.Methods = []string{"PUT", "DELETE"}
	for i, tc := range []struct {
		method string
		sent   int
	}{{"PUT", 2}, {"DELETE", 2}, {"POST", 1}} {
		before := len(server.seen())
		resp, err := transport.RoundTrip(newRequest(t, tc.method, server.url, order))
		if err != nil {
			t.Fatal(err)
		}
		_ = readAll(t, resp)
		requests := server.seen()[before:]
		if len(requests) != tc.sent {
			t.Fatalf("%d: %s was sent %d times, want %d", i, tc.method, len(requests), tc.sent)
		}
		for _, r := range requests {
			if r.key != requests[0].key || (r.key != "") != (tc.sent == 2) {
				t.Errorf("%s went out with the keys %+v", tc.method, requests)
			}
		}
	}
}
