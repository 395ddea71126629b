package keyclient

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// newTransport has a transport of its own beneath, and waits a millisecond at most after an attempt.
func newTransport(t *testing.T) *Transport {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &Transport{Base: base, Backoff: time.Millisecond, MaxBackoff: time.Millisecond}
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	return &http.Client{Transport: newTransport(t)}
}

// post returns the answer, its body read and closed.
func post(t *testing.T, client *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := client.Post(url, "application/json", strings.NewReader(order))
	if err != nil {
		t.Fatal(err)
	}
	return resp, readAll(t, resp)
}

func readAll(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func newRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func errorOf(t *testing.T, err error) *Error {
	t.Helper()
	failed := (*Error)(nil)
	if !errors.As(err, &failed) {
		t.Fatalf("is no *Error: %v", err)
	}
	return failed
}

const order = `{"amount":100}`

// seen is a request as a server saw it.
type seen struct {
	method, path, key, body string
	keys                    int
	length                  int64
	connection              int64
}

// rawServer speaks HTTP by hand, so that each request on the wire is counted, also those that get no answer. serve
// answers the nth request (from 1), and says whether the connection stays.
type rawServer struct {
	url         string
	connections atomic.Int64
	mu          sync.Mutex
	requests    []seen
}

func startRaw(t *testing.T, serve func(n int, c net.Conn) (keep bool)) *rawServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{url: "http://" + listener.Addr().String()}
	var (
		running sync.WaitGroup
		open    sync.Map
	)
	running.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			number := s.connections.Add(1)
			open.Store(c, nil)
			running.Go(func() {
				defer func() { _ = c.Close() }()
				for r := bufio.NewReader(c); ; {
					n, err := s.read(r, number)
					if err != nil || !serve(n, c) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		running.Wait()
	})
	return s
}

func (s *rawServer) read(r *bufio.Reader, connection int64) (n int, err error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return 0, err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return 0, err
	}
	keys := req.Header.Values("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, seen{req.Method, req.URL.Path, strings.Join(keys, " "), string(body), len(keys), req.ContentLength, connection})
	return len(s.requests), nil
}

func (s *rawServer) seen() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]seen(nil), s.requests...)
}

func answer(w io.Writer, status int, headers ...string) {
	lines := ""
	for _, h := range headers {
		lines += h + "\r\n"
	}
	_, _ = fmt.Fprintf(w, "HTTP/1.1 %d Whatever\r\n%sContent-Length: 4\r\n\r\nbody", status, lines)
}

// baseFunc is a Base in memory.
type baseFunc func(*http.Request) (*http.Response, error)

func (f baseFunc) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	return f(req)
}

func response(status int, headers ...string) *http.Response {
	header := http.Header{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		header.Add(name, value)
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("body"))}
}

func TestExampleClientNeedsNoServer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.Lines(string(out)) {
		dep = strings.TrimSpace(dep)
		if own, ok := strings.CutPrefix(dep, "github.com/samekey/samekey/"); ok && own != "processed/httpkey/keyclient" && !strings.HasPrefix(own, "internal/") {
			t.Errorf("reaches %s", dep)
		}
	}
}
