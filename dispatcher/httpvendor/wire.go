package httpvendor

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// wire is one attempt's hold on its connection. It lets out one request at most, nothing past the attempt's deadline and
// nothing after the attempt has ended, and knows whether anything went out.
type wire struct {
	deadline time.Time // zero: none

	mu        sync.Mutex
	connected bool
	writing   bool
	sent      bool
	over      bool
}

var (
	errLate  = errors.New("httpvendor: the attempt's deadline is past: nothing more is sent")
	errEnded = errors.New("httpvendor: the attempt has ended: nothing more is sent")
)

func newWire(ctx context.Context) *wire {
	deadline, _ := ctx.Deadline()
	return &wire{deadline: deadline}
}

// trace hands each connection that net/http picks for this attempt to the wire. It picks another where the first had
// died: that is the one place where a request could go out twice.
func (w *wire) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			w.mu.Lock()
			w.connected = true
			if w.sent || w.writing {
				w.over = true
			}
			w.mu.Unlock()
			if c := unwrap(info.Conn); c != nil {
				c.wire.Store(w)
			}
		},
	})
}

func unwrap(c net.Conn) *conn {
	for {
		switch at := c.(type) {
		case *conn:
			return at
		case *tls.Conn:
			c = at.NetConn()
		default:
			return nil
		}
	}
}

// check says whether a write may go out now.
func (w *wire) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkLocked()
}

func (w *wire) checkLocked() error {
	switch {
	case w.over:
		return errEnded
	case !w.deadline.IsZero() && !time.Now().Before(w.deadline):
		return errLate
	}
	return nil
}

func (w *wire) write(to net.Conn, p []byte) (int, error) {
	w.mu.Lock()
	if err := w.checkLocked(); err != nil {
		w.mu.Unlock()
		return 0, err
	}
	w.writing = true
	w.mu.Unlock()

	n, err := writeChecked(to, p, w.check)

	w.mu.Lock()
	w.writing = false
	w.sent = w.sent || n > 0
	w.mu.Unlock()
	return n, err
}

// end lets nothing more out. It says whether a connection stood, and whether a byte of the request may have gone out:
// where it says no, none ever will.
func (w *wire) end() (connected, sent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.connected, w.sent || w.writing
}

func (w *wire) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// conn is a connection to a vendor. Until an attempt has it, it may write: TLS, a proxy's CONNECT. From then on the last
// attempt's wire decides.
type conn struct {
	net.Conn
	wire atomic.Pointer[wire]
}

func (c *conn) Write(p []byte) (int, error) {
	if w := c.wire.Load(); w != nil {
		return w.write(c.Conn, p)
	}
	return c.Conn.Write(p)
}

// Read takes what comes unasked on an idle connection for its end: net/http would print it to the log.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if w := c.wire.Load(); n > 0 && w != nil && w.ended() {
		return 0, io.EOF
	}
	return n, err
}

// dialTimeout is for connections that net/http goes on dialling after their request has gone.
const (
	dialTimeout = time.Minute
	keepAlive   = 15 * time.Second
)

func dial(dialer *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c}, nil
	}
}
