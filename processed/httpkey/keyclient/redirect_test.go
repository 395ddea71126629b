package keyclient

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestARedirectToTheSameHostKeepsTheKey(t *testing.T) {
	for _, own := range []string{"", "order-1"} {
		for _, status := range []int{307, 308} {
			for _, body := range []string{order, ""} {
				server := startRaw(t, func(n int, c net.Conn) bool {
					switch n {
					case 1:
						answer(c, status, "Location: /second")
					case 2:
						answer(c, 503)
					case 3:
						answer(c, status, "Location: /third")
					default:
						answer(c, 201)
					}
					return true
				})
				req := newRequest(t, "POST", server.url+"/first", body)
				if own != "" {
					req.Header.Set("Idempotency-Key", own)
				}
				resp, err := newClient(t).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = readAll(t, resp)
				requests := server.seen()
				if resp.StatusCode != 201 || len(requests) != 4 {
					t.Fatalf("%d after %+v", resp.StatusCode, requests)
				}
				for i, r := range requests {
					path := []string{"/first", "/second", "/second", "/third"}[i]
					if r.keys != 1 || r.key != requests[0].key || own != "" && r.key != own || r.body != body || r.path != path || r.method != "POST" {
						t.Errorf("%d, own key %q: request %d is %+v", status, own, i+1, r)
					}
				}
				if shown := resp.Request; shown.Header.Get("Idempotency-Key") != requests[0].key || shown.URL.Path != "/third" {
					t.Errorf("the answer's request is %s %v", shown.URL, shown.Header)
				}
			}
		}
	}
}

// Case 19.
func TestRedirectToAnotherHostIsRefused(t *testing.T) {
	for _, own := range []string{"", "order-1"} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			t.Run(fmt.Sprint(status, own), func(t *testing.T) {
				second := startRaw(t, func(n int, c net.Conn) bool {
					if n == 1 {
						answer(c, 302, "Location: /again") // same host by then, still not the first
					} else {
						answer(c, 200)
					}
					return true
				})
				first := startRaw(t, func(_ int, c net.Conn) bool { answer(c, status, "Location: "+second.url); return true })
				req := newRequest(t, "POST", first.url, order)
				if own != "" {
					req.Header.Set("Idempotency-Key", own)
				}
				resp, err := newClient(t).Do(req)
				if resp != nil {
					_ = readAll(t, resp)
				}
				if n := len(first.seen()); n != 1 {
					t.Errorf("the first host saw %d requests", n)
				}
				if status >= 307 {
					if failed := errorOf(t, err); failed.Attempts != 0 || !strings.Contains(failed.Error(), "redirected to another scheme or host") {
						t.Errorf("%v", err)
					}
					if n := second.connections.Load(); n != 0 {
						t.Errorf("the second host saw %d connections", n)
					}
					return
				}
				if err != nil || len(second.seen()) != 2 {
					t.Fatalf("%v after %+v", err, second.seen())
				}
				for _, r := range second.seen() {
					if r.method != "GET" || r.keys != 0 || r.body != "" {
						t.Errorf("the second host saw %+v", r)
					}
				}
			})
		}
	}
}

func TestSeeOtherOnTheSameHostPasses(t *testing.T) {
	server := startRaw(t, func(n int, c net.Conn) bool {
		answer(c, map[bool]int{true: 303, false: 503}[n == 1], "Location: /order")
		return true
	})
	req := newRequest(t, "POST", server.url, order)
	req.Header.Set("Idempotency-Key", "order-1")
	resp, err := newClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = readAll(t, resp)
	if requests := server.seen(); len(requests) != 2 || requests[1].method != "GET" || requests[1].key != "order-1" {
		t.Errorf("the server saw %+v", requests)
	}
}

// A transport in between may have put another request into the answer. Then the key is unknown, and a new one would be
// a second operation.
func TestARedirectThatHidesItsRequestIsRefused(t *testing.T) {
	server := startRaw(t, func(_ int, c net.Conn) bool { answer(c, 307, "Location: /second"); return true })
	transport := newTransport(t)
	for name, hide := range map[string]func(req *http.Request, resp *http.Response){
		"none":        func(_ *http.Request, resp *http.Response) { resp.Request = nil },
		"without key": func(req *http.Request, resp *http.Response) { resp.Request = req },
	} {
		client := &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			resp, err := transport.RoundTrip(req)
			if resp != nil {
				hide(req, resp)
			}
			return resp, err
		})}
		_, err := client.Post(server.url, "text/plain", strings.NewReader(order))
		if failed := errorOf(t, err); failed.Attempts != 0 || !strings.Contains(failed.Error(), "Response.Request") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(server.seen()); n != 2 {
		t.Errorf("%d requests, want the first of each", n)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestSameHost(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"http://a.example/x", "http://a.example/y?z", true},
		{"http://a.example", "http://A.EXAMPLE:80/", true},
		{"https://a.example:443", "HTTPS://a.example", true},
		{"http://[::1]:8080/a", "http://[::1]:8080/b", true},
		{"http://a.example", "https://a.example", false},
		{"http://a.example:443", "https://a.example", false},
		{"http://a.example", "http://a.example:8080", false},
		{"http://a.example", "http://b.a.example", false},
		{"http://a.example", "http://a.example.", false},
		{"http://a.example", "http://a.example@b.example", false},
	} {
		a, errA := url.Parse(tc.a)
		b, errB := url.Parse(tc.b)
		if errA != nil || errB != nil || sameOrigin(a, b) != tc.same || sameOrigin(b, a) != tc.same {
			t.Errorf("%s and %s: want %v", tc.a, tc.b, tc.same)
		}
	}
}

func TestCallersContextReachesEachAttempt(t *testing.T) {
	type mark struct{}
	calls := 0
	transport := &Transport{Backoff: 1, Base: baseFunc(func(out *http.Request) (*http.Response, error) {
		if calls++; out.Context().Value(mark{}) != "caller's" {
			t.Errorf("attempt %d has another context", calls)
		}
		return response(503), nil
	})}
	req := newRequest(t, "POST", "http://example.com", order)
	if _, err := transport.RoundTrip(req.WithContext(context.WithValue(t.Context(), mark{}, "caller's"))); err != nil || calls != 5 {
		t.Errorf("%v after %d calls", err, calls)
	}
}
