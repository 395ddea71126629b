package httpvendor

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wiretest"
)

// The network drops a request on a connection that others use. When the attempt times out, the connection is reset:
// the kernel must not deliver the request later. A neighbor that waits for its answer ends unknown.
func TestTimedOutRequestOfAStreamNeverArrives(t *testing.T) {
	wiretest.NeedDropData(t)
	dropping, ended, arrived := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	server := serveHTTP2(t, wiretest.Listen(t), func(c *h2Conn) {
		_ = c.WriteSettings()
		if c.server.connections.Load() > 1 {
			for stream := c.request(); stream != 0; stream = c.request() {
				c.answer(stream, "ok")
			}
			return
		}
		c.answer(c.request(), "ok") // so nothing about the connection itself is under way
		if c.request() == 0 {       // the neighbor's
			return
		}
		raw := c.Conn.(*tls.Conn).NetConn().(*net.TCPConn)
		if err := wiretest.DropData(raw); err != nil {
			t.Error(err)
		}
		close(dropping)
		<-ended
		if err := wiretest.PassData(raw); err != nil {
			t.Error(err)
		}
		late, err := io.ReadAll(raw)
		if len(late) > 0 {
			err = errors.New("bytes arrived late")
		}
		arrived <- err
	})
	handler := testHandler(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true}, Action{})
	if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	neighbor := make(chan error, 1)
	go func() {
		_, err := attempt(t, handler, testCall("{}"), patience)
		neighbor <- err
	}()
	<-dropping
	if _, err := attempt(t, handler, testCall("{}"), 300*time.Millisecond); verdict(err) != "unknown" || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("the attempt is %v, want unknown", err)
	}
	close(ended)
	if err := <-arrived; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
	if err := <-neighbor; verdict(err) != "unknown" {
		t.Errorf("the neighbor is %v, want unknown", err)
	}
	if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
		t.Errorf("the next attempt, on a new connection: %v", err)
	}
}

// The vendor refuses a stream while its body is still on the way. It ignores the rest, so the connection goes on.
func TestRefusedUploadLeavesTheConnectionAlone(t *testing.T) {
	wiretest.NeedDropData(t)
	passed := make(chan struct{})
	server := serveHTTP2(t, wiretest.Listen(t), func(c *h2Conn) {
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.answer(c.request(), "ok") // the settings are known now
		headers, ok := c.next().(*http2.MetaHeadersFrame)
		if !ok {
			return
		}
		raw := c.Conn.(*tls.Conn).NetConn().(*net.TCPConn)
		_ = wiretest.DropData(raw)
		_ = c.WriteWindowUpdate(headers.StreamID, 1000)
		for queued(t, raw.RemoteAddr()) == 0 {
			time.Sleep(time.Millisecond)
		}
		_ = c.WriteRSTStream(headers.StreamID, http2.ErrCodeRefusedStream)
		<-passed
		_ = wiretest.PassData(raw)
		for f := c.next(); f != nil; f = c.next() {
			if f, ok := f.(*http2.MetaHeadersFrame); ok {
				c.answer(f.StreamID, "ok")
			}
		}
	})
	client := testClient(t, Destination{URL: server.url, CAFile: server.ca, HTTP2: true})
	read, _, err := client.handler(Action{Request: "GET /", Policy: dispatcher.Policy{Class: dispatcher.Read}})
	if err != nil {
		t.Fatal(err)
	}
	write, _, err := client.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(t, read, testCall(""), patience); err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(t, write, testCall(strings.Repeat("x", 5000)), patience); verdict(err) != "unsent" {
		t.Errorf("the refused upload is %v, want unsent", err)
	}
	close(passed)
	if _, err := attempt(t, read, testCall(""), patience); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if n := server.connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// queued returns the number of bytes that the kernel still has to deliver for a local address.
func queued(t *testing.T, local net.Addr) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", local.(*net.TCPAddr).Port)) {
			var size int
			_, _ = fmt.Sscanf(fields[4], "%x:", &size)
			n += size
		}
	}
	return n
}
