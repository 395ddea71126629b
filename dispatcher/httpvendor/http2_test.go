package httpvendor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/samekey/samekey/dispatcher"
)

// secureServer is a server with TLS, and the file with its certificate.
func secureServer(t *testing.T, withHTTP2 bool, handle http.HandlerFunc) (server *httptest.Server, ca string) {
	t.Helper()
	server = httptest.NewUnstartedServer(handle)
	server.EnableHTTP2 = withHTTP2
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, caFile(t, server)
}

func caFile(t *testing.T, server *httptest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// h2Server is a server that speaks HTTP/2 frame by frame. serve gets each connection; it may return at any time.
type h2Server struct {
	url, ca     string
	connections atomic.Int64
	requests    atomic.Int64 // HEADERS frames
}

type h2Conn struct {
	*http2.Framer
	net.Conn // the TLS connection
	server   *h2Server

	writing sync.Mutex // where next runs beside the test's own writes
}

// write writes frames while next writes none.
func (c *h2Conn) write(frames func()) {
	c.writing.Lock()
	defer c.writing.Unlock()
	frames()
}

func startHTTP2(t *testing.T, serve func(c *h2Conn)) *h2Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveHTTP2(t, listener, serve)
}

func serveHTTP2(t *testing.T, listener net.Listener, serve func(c *h2Conn)) *h2Server {
	t.Helper()
	certified := httptest.NewUnstartedServer(nil) // for its certificate
	certified.StartTLS()
	config := certified.TLS.Clone()
	config.NextProtos = []string{"h2"}
	s := &h2Server{url: "https://" + listener.Addr().String(), ca: caFile(t, certified)}
	certified.Close()
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, raw)
			mu.Unlock()
			s.connections.Add(1)
			running.Go(func() {
				c := tls.Server(raw, config)
				defer func() { _ = c.Close() }()
				if _, err := io.CopyN(io.Discard, c, int64(len(http2.ClientPreface))); err != nil {
					return
				}
				at := &h2Conn{Framer: http2.NewFramer(c, c), Conn: c, server: s}
				at.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
				serve(at)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return s
}

// next returns the next frame that is not about the connection, or nil at its end.
func (c *h2Conn) next() http2.Frame {
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.write(func() { _ = c.WriteSettingsAck() })
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				c.write(func() { _ = c.WritePing(true, f.Data) })
			}
		case *http2.WindowUpdateFrame:
		case *http2.MetaHeadersFrame:
			c.server.requests.Add(1)
			return frame
		default:
			return frame
		}
	}
}

// request reads a whole request and returns its stream, or 0 at the connection's end.
func (c *h2Conn) request() uint32 {
	for {
		switch f := c.next().(type) {
		case nil:
			return 0
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				return f.StreamID
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				return f.StreamID
			}
		}
	}
}

func (c *h2Conn) answer(stream uint32, body string) {
	var block bytes.Buffer
	_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = c.WriteData(stream, true, []byte(body))
}

func TestHTTP2IsForCallsThatMayBeRepeated(t *testing.T) {
	connections := make(chan string, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, `{"proto": %q, "key": %q, "body": %q}`, r.Proto, r.Header.Get("Idempotency-Key"), body)
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections <- "new"
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	dest := Destination{URL: server.URL, CAFile: caFile(t, server), HTTP2: true}
	for class, want := range map[dispatcher.Class]string{
		dispatcher.Read: "HTTP/2.0 1", dispatcher.IdempotentWrite: "HTTP/2.0 1",
		dispatcher.NonIdempotentWrite: "HTTP/1.1 3", dispatcher.IrreversibleWrite: "HTTP/1.1 3",
	} {
		t.Run(class.String(), func(t *testing.T) {
			handler := testHandler(t, dest, Action{Policy: dispatcher.Policy{Class: class}})
			proto, _, _ := strings.Cut(want, " ")
			for range 3 {
				answer, err := attempt(t, handler, testCall(`{"a":1}`), patience)
				if want := fmt.Sprintf(`{"proto": %q, "key": %q, "body": "{\"a\":1}"}`, proto, deliveryKey); err != nil || string(answer.Body) != want {
					t.Fatalf("%s, %v", answer.Body, err)
				}
			}
			if got := fmt.Sprintf("%s %d", proto, len(connections)); got != want {
				t.Errorf("%s connections, want %s", got, want)
			}
			for len(connections) > 0 {
				<-connections
			}
		})
	}

	// A lookup is a read, whatever its action is.
	action := Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IrreversibleWrite}, Lookup: &Lookup{Request: "GET /", Rules: []Rule{
		{Match: Match{Field: "/proto", Values: []string{"HTTP/2.0"}}, Outcome: dispatcher.Delivered},
	}}}
	_, delivery, err := testClient(t, dest).handler(action)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	call := testCall("{}")
	if outcome, err := delivery.Lookup(ctx, call, call.Payload); err != nil || outcome.Kind() != delivered {
		t.Errorf("the lookup is %v, %v", outcome, err)
	}
}

func TestHostWithoutHTTP2IsCalledOverHTTP1(t *testing.T) {
	connections := new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	handler := testHandler(t, Destination{URL: server.URL, CAFile: caFile(t, server), HTTP2: true}, Action{})
	for range 3 {
		if answer, err := attempt(t, handler, testCall("{}"), patience); err != nil || string(answer.Body) != "HTTP/1.1" {
			t.Fatalf("%q, %v", answer.Body, err)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want one that asks for HTTP/2 and one of HTTP/1.1", n)
	}
}

func TestHTTP2ThroughAProxy(t *testing.T) {
	server, ca := secureServer(t, true, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	tunnels := new(atomic.Int64)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tunnels.Add(1)
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}))
	t.Cleanup(proxy.Close)
	handler := testHandler(t, Destination{URL: server.URL, CAFile: ca, HTTP2: true, Proxy: proxy.URL}, Action{})
	answer, err := attempt(t, handler, testCall("{}"), patience)
	if err != nil || string(answer.Body) != "HTTP/2.0" || tunnels.Load() != 1 {
		t.Errorf("%q through %d tunnels, %v", answer.Body, tunnels.Load(), err)
	}
}

func TestHTTP2NeedsTLSAndOneHost(t *testing.T) {
	for name, tc := range map[string]struct {
		dest Destination
		want string
	}{
		"http":             {Destination{URL: "http://api.example", HTTP2: true}, `HTTP2: needs a URL with https://`},
		"stored endpoints": {Destination{Endpoint: "{{.Part}}", HTTP2: true}, `HTTP2: not allowed without URL: each stored endpoint is a host of its own, and is called over HTTP/1.1`},
		"https":            {Destination{URL: "https://api.example", HTTP2: true}, ""},
		"one host":         {Destination{URL: "https://api.example", Endpoint: "{{.Part}}", HTTP2: true}, ""},
	} {
		tc.dest.Name = "stripe"
		_, err := New(tc.dest)
		if got := fmt.Sprint(err); tc.want == "" && err != nil || tc.want != "" && !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// What the vendor states that it did not process counts as unsent. What it may have processed does not.
func TestOnlyRefusedStreamsAreUnsent(t *testing.T) {
	reset := func(code http2.ErrCode) func(c *h2Conn) {
		return func(c *h2Conn) {
			for stream := c.request(); stream != 0; stream = c.request() {
				_ = c.WriteRSTStream(stream, code)
			}
		}
	}
	goAway := func(last uint32, code http2.ErrCode) func(c *h2Conn) {
		return func(c *h2Conn) {
			if stream := c.request(); stream != 0 {
				_ = c.WriteGoAway(last, code, []byte("secret"))
				_ = c.next()
			}
		}
	}
	// A connection answers the first request, and then does something to the second.
	second := func(do func(c *h2Conn, stream uint32)) func(c *h2Conn) {
		return func(c *h2Conn) {
			c.answer(c.request(), "ok")
			if stream := c.request(); stream != 0 {
				do(c, stream)
			}
		}
	}
	for name, tc := range map[string]struct {
		serve      func(c *h2Conn)
		first      string // of two attempts; empty: there is one
		want, says string
	}{
		"REFUSED_STREAM":                 {reset(http2.ErrCodeRefusedStream), "", "unsent", "REFUSED_STREAM"},
		"INTERNAL_ERROR":                 {reset(http2.ErrCodeInternal), "", "unknown", "the HTTP/2 stream was reset: INTERNAL_ERROR"},
		"CANCEL":                         {reset(http2.ErrCodeCancel), "", "unknown", "CANCEL"},
		"PROTOCOL_ERROR":                 {reset(http2.ErrCodeProtocol), "", "unknown", "PROTOCOL_ERROR"},
		"a code that no standard has":    {reset(77), "", "unknown", "error 77"},
		"GOAWAY below the first":         {goAway(0, http2.ErrCodeNo), "", "unsent", "GOAWAY"},
		"GOAWAY below, with an error":    {goAway(0, http2.ErrCodeEnhanceYourCalm), "", "unsent", "GOAWAY"},
		"GOAWAY with the first":          {func(c *h2Conn) { _ = c.WriteGoAway(c.request(), http2.ErrCodeNo, nil) }, "", "unknown", "connection"},
		"GOAWAY with it, with an error":  {func(c *h2Conn) { _ = c.WriteGoAway(c.request(), http2.ErrCodeInternal, nil) }, "", "unknown", "connection"},
		"closed":                         {func(c *h2Conn) { c.request() }, "", "unknown", "connection"},
		"GOAWAY below the second":        {second(func(c *h2Conn, _ uint32) { _ = c.WriteGoAway(1, http2.ErrCodeNo, nil); _ = c.next() }), delivered, "unsent", "GOAWAY"},
		"GOAWAY below it, with an error": {second(func(c *h2Conn, _ uint32) { _ = c.WriteGoAway(1, http2.ErrCodeInternal, nil); _ = c.next() }), delivered, "unsent", "GOAWAY"},
		"GOAWAY with the second":         {second(func(c *h2Conn, at uint32) { _ = c.WriteGoAway(at, http2.ErrCodeNo, nil) }), delivered, "unknown", "connection"},
		"a violation": {second(func(c *h2Conn, _ uint32) {
			_ = c.WriteRawFrame(http2.FramePing, 0, 5, []byte("12345678"))
			_ = c.next()
		}), delivered, "unknown", "violated HTTP/2"},
	} {
		for _, request := range []string{"POST /v1/charges", "GET /v1/charges"} { // with a body, and without one
			t.Run(name+", "+request[:4], func(t *testing.T) {
				server := startHTTP2(t, func(c *h2Conn) {
					_ = c.WriteSettings()
					tc.serve(c)
				})
				handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{Request: request})
				want := int64(1)
				if tc.first != "" {
					want++
					if _, err := attempt(t, handler, testCall("{}"), patience); verdict(err) != tc.first {
						t.Fatalf("the first is %v", err)
					}
				}
				_, err := attempt(t, handler, testCall("{}"), patience)
				if verdict(err) != tc.want || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
					t.Errorf("is %s (%v), want %s: %s", verdict(err), err, tc.want, tc.says)
				}
				if n := server.requests.Load(); n != want {
					t.Errorf("%d requests were sent, want %d", n, want)
				}
			})
		}
	}
}

// A graceful end: what the vendor has taken is answered, and what it has not is sent again on another connection.
func TestGoAwayKeepsWhatTheVendorHasTaken(t *testing.T) {
	both := make(chan struct{})
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings()
		first := c.request()
		if c.server.connections.Load() > 1 {
			c.answer(first, "again")
			c.request()
			return
		}
		both <- struct{}{}
		c.request()
		_ = c.WriteGoAway(first, http2.ErrCodeNo, nil)
		<-both
		c.answer(first, "taken")
		c.request()
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	taken := make(chan error, 1)
	go func() {
		answer, err := attempt(t, handler, testCall("{}"), patience)
		if string(answer.Body) != "taken" {
			err = fmt.Errorf("%q: %w", answer.Body, err)
		}
		taken <- err
	}()
	<-both
	if _, err := attempt(t, handler, testCall("{}"), patience); verdict(err) != "unsent" {
		t.Errorf("the second is %v, want unsent", err)
	}
	if answer, err := attempt(t, handler, testCall("{}"), patience); err != nil || string(answer.Body) != "again" {
		t.Errorf("it is sent again: %q, %v", answer.Body, err)
	}
	close(both)
	if err := <-taken; err != nil {
		t.Error(err)
	}
}

func TestTimeoutInFlightLeavesItsNeighborsAlone(t *testing.T) {
	hangs, both, cancelled := make(chan uint32, 1), make(chan struct{}), make(chan uint32, 10)
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings()
		hangs <- c.request()
		neighbor := c.request()
		close(both)
		for {
			switch f := c.next().(type) {
			case nil:
				return
			case *http2.RSTStreamFrame:
				if cancelled <- f.StreamID; f.StreamID < neighbor {
					c.answer(neighbor, "ok")
				}
			}
		}
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	ended, answered := make(chan error, 1), make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		go func() { <-both; cancel() }()
		_, err := result(handler(ctx, testCall("{}")))
		ended <- err
	}()
	hanging := <-hangs
	go func() {
		_, err := attempt(t, handler, testCall("{}"), patience)
		answered <- err
	}()
	if err := <-ended; verdict(err) != "unknown" || !strings.Contains(err.Error(), "was stopped") {
		t.Errorf("the attempt that is stopped in flight is %v, want unknown", err)
	}
	if got := <-cancelled; got != hanging {
		t.Errorf("stream %d was cancelled, want %d", got, hanging)
	}
	if err := <-answered; err != nil {
		t.Errorf("the neighbor on the connection: %v", err)
	}
	if _, err := attempt(t, handler, testCall("{}"), 200*time.Millisecond); verdict(err) != "unknown" || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("the attempt that times out in flight is %v, want unknown", err)
	}
	if n := server.connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// The vendor grants no room for the rest of a body until the attempt has ended.
func TestUploadThatIsHeldBackIsNotContinued(t *testing.T) {
	ended, late := make(chan struct{}), make(chan int, 1)
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings()
		after, isOver := 0, false
		frames := make(chan http2.Frame)
		go func() {
			defer close(frames)
			for f := c.next(); f != nil; f = c.next() {
				frames <- f
			}
		}()
		for over := ended; ; {
			select {
			case <-over:
				over, isOver = nil, true
				c.write(func() {
					_ = c.WriteWindowUpdate(0, 1<<24)
					_ = c.WriteWindowUpdate(1, 1<<24)
					_ = c.WritePing(false, [8]byte{1})
				})
				go func() { _ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) }()
			case f, open := <-frames:
				if _, ok := f.(*http2.DataFrame); ok && isOver {
					after++
				}
				if !open {
					late <- after
					return
				}
			}
		}
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	if _, err := attempt(t, handler, testCall(strings.Repeat("x", 1<<20)), 300*time.Millisecond); verdict(err) != "unknown" {
		t.Errorf("the attempt is %v, want unknown", err)
	}
	close(ended)
	if n := <-late; n > 0 {
		t.Errorf("%d frames arrived late", n)
	}
}

// The vendor accepts two streams for each connection.
func TestMoreStreamsTakeMoreConnections(t *testing.T) {
	const calls = 5
	var mu sync.Mutex
	most := 0
	all := make(chan struct{})
	var arrived atomic.Int64
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
		var streams []uint32
		for {
			stream := c.request()
			if stream == 0 {
				return
			}
			streams = append(streams, stream)
			mu.Lock()
			most = max(most, len(streams))
			mu.Unlock()
			if arrived.Add(1) == calls {
				close(all)
			}
			if len(streams) == 2 || arrived.Load() == calls {
				<-all
				for _, stream := range streams {
					c.answer(stream, "ok")
				}
				streams = nil
			}
		}
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	var done sync.WaitGroup
	errs := make(chan error, calls)
	for i := range calls {
		done.Go(func() {
			_, err := attempt(t, handler, testCall("{}"), patience)
			errs <- err
		})
		for arrived.Load() <= int64(i) && len(errs) == 0 { // one after the other, so that the settings have arrived
			time.Sleep(time.Millisecond)
		}
	}
	done.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if n := server.connections.Load(); n != 3 || most != 2 {
		t.Errorf("%d connections with up to %d streams, want 3 with 2", n, most)
	}
}

// Calls that begin together wait for one connection, and each as long as it may.
func TestCallsThatBeginTogetherShareTheConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shake, waiting := make(chan struct{}), make(chan struct{}, 100)
	server := serveHTTP2(t, &slowListener{listener, shake, waiting}, func(c *h2Conn) {
		_ = c.WriteSettings()
		for stream := c.request(); stream != 0; stream = c.request() {
			c.answer(stream, "ok")
		}
	})
	client := testClient(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true})
	handler, _, err := client.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() {
			_, err := attempt(t, handler, testCall("{}"), patience)
			errs <- err
		}()
	}
	<-waiting // the connection is accepted, and its handshake waits
	if _, err := attempt(t, handler, testCall("{}"), 50*time.Millisecond); verdict(err) != "unsent" || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("a call that may not wait is %v, want unsent", err)
	}
	close(shake)
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := server.connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// No attempt waits for the connection any longer.
func TestAbandonedHandshakeIsEnded(t *testing.T) {
	ended := make(chan error, 1)
	server := startRaw(t, func(_ *rawServer, c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	handler := testHandler(t, Destination{URL: strings.Replace(server.url, "http:", "https:", 1), HTTP2: true}, Action{})
	for range 2 { // the second begins a new one
		if _, err := attempt(t, handler, testCall("{}"), 100*time.Millisecond); verdict(err) != "unsent" || !strings.Contains(err.Error(), "timed out") {
			t.Errorf("is %v, want unsent", err)
		}
		select {
		case <-ended:
		case <-time.After(patience / 2): // before TLS gives up
			t.Fatal("the handshake goes on")
		}
	}
}

// A request that the vendor's limits do not allow is not begun. It leaves no mark on the connection.
func TestRequestTooLargeForTheVendorIsUnsent(t *testing.T) {
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 2000})
		for stream := c.request(); stream != 0; stream = c.request() {
			c.answer(stream, "ok")
		}
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	large := testCall("{}")
	large.Headers["X-Large"] = strings.Repeat("x", 3000)
	for _, tc := range []struct {
		call *dispatcher.Call
		want string
	}{{testCall("{}"), delivered}, {large, "unsent"}, {testCall("{}"), delivered}} {
		if _, err := attempt(t, handler, tc.call, patience); verdict(err) != tc.want {
			t.Errorf("is %v, want %s", err, tc.want)
		}
	}
	if n := server.connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestCloseEndsIdleConnectionsOnly(t *testing.T) {
	arrived, finish, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	server := startHTTP2(t, func(c *h2Conn) {
		defer close(ended)
		_ = c.WriteSettings()
		stream := c.request()
		close(arrived)
		<-finish
		c.answer(stream, "ok")
		c.request()
	})
	client := testClient(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true})
	handler, _, err := client.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := attempt(t, handler, testCall("{}"), patience)
		answered <- err
	}()
	<-arrived
	client.Close()
	close(finish)
	if err := <-answered; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	client.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the idle connection is kept")
	}
}

// slowListener holds each accepted connection until shake is closed.
type slowListener struct {
	net.Listener
	shake   chan struct{}
	waiting chan struct{}
}

func (l *slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.waiting <- struct{}{}
		<-l.shake
	}
	return c, err
}

// The answer of a stream that is reset in its middle is as one that breaks off.
func TestStreamResetInTheAnswerIsUnknown(t *testing.T) {
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings()
		for stream := c.request(); stream != 0; stream = c.request() {
			var block bytes.Buffer
			_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
			_ = c.WriteData(stream, false, []byte("half"))
			_ = c.WriteRSTStream(stream, http2.ErrCodeRefusedStream) // too late to be true
		}
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	for range 2 {
		_, err := attempt(t, handler, testCall("{}"), patience)
		if verdict(err) != "unknown" || !strings.Contains(err.Error(), "broke off: the HTTP/2 stream was reset before the answer's end") || string(answerOf(err).Body) != "half" {
			t.Errorf("is %s (%v)", verdict(err), err)
		}
	}
	if n := server.connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestHTTP2HeadersAndGzip(t *testing.T) {
	var got http.Header
	server, ca := secureServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		if !slices.Contains(r.Header.Values("Accept-Encoding"), "gzip") {
			t.Error("gzip is not accepted")
		}
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	handler := testHandler(t, Destination{URL: server.URL, CAFile: ca, HTTP2: true, Headers: map[string]string{"X-Mixed-Case": "V"}}, Action{})
	_, err := attempt(t, handler, testCall("{}"), patience)
	if verdict(err) != retry || askedWait(err) != 7*time.Second {
		t.Errorf("is %v", err)
	}
	if got.Get("X-Mixed-Case") != "V" || got.Get("Samekey-Attempt") != "3" || !strings.HasPrefix(got.Get("User-Agent"), "samekey/") {
		t.Errorf("%v", got)
	}
}
