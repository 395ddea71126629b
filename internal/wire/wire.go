// Package wire is what the vendor packages send through: it knows until when an attempt may send, and whether it did. With
// [Describe] they say what went wrong.
//
// # What is promised
//
// No write(2) of an attempt begins past its deadline or after its end. A process that was stopped for longer than its lease
// and goes on must send nothing: somebody else may have sent it meanwhile. The timers of a context and of a socket do not
// see to that, since they fire some time after the process goes on, and a large write goes on as soon as there is room. So
// the clock is read before each write(2), of which one Write may be many.
//
// What [Wire.End] says is final: where nothing was sent by then, nothing ever is. A request goes out by one connection at
// most, also where net/http would try another.
//
// # Interleavings
//
//	the process is stopped past the deadline,
//	  or the attempt ends,                         then there goes out    and End says
//	while TLS or CONNECT is under way              the rest of that       not sent
//	with a connection, before the first write(2)   nothing                not sent
//	in a Write, before its first write(2)          nothing                sent, if it comes before Write has returned
//	in a Write, waiting for room                   nothing more           sent
//	between two Writes                             nothing more           sent
//	between a look at the clock and its write(2)   that write(2)          sent
//
//	net/http takes a second connection             the whole request, if nothing has gone out by the first; else nothing
//	the connection goes to another attempt         what that one's Wire allows; net/http waits for the Write before
//	bytes come in after the end                    they are read as the connection's end
//
// # What is not
//
// The last but one line of the first table: a look at the clock and its write(2) are not one step. What a system has
// taken in time it may deliver late. The clock is the process's: where that stands still, as on a machine that is suspended,
// the deadline does too. Where the system is no Unix, the clock is read for each 4 KiB.
package wire

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

// Wire is one attempt's hold on its connections. It is safe for concurrent use.
type Wire struct {
	deadline time.Time // zero: none

	mu        sync.Mutex
	connected bool
	writing   int // Writes that have not returned
	written   int // bytes
	over      bool
}

// Why nothing is sent.
var (
	ErrLate  = errors.New("the attempt's deadline is past: nothing more is sent")
	ErrEnded = errors.New("the attempt has ended: nothing more is sent")
)

// New makes the wire of an attempt with ctx's deadline, if that has one.
func New(ctx context.Context) *Wire {
	deadline, _ := ctx.Deadline()
	return &Wire{deadline: deadline}
}

// Trace is the context for one request by net/http with a transport that dials by [Dial]: the wire takes each connection
// that net/http picks for it. It picks another where the first had died: that is the one place where a request could go
// out twice.
func (w *Wire) Trace(ctx context.Context) context.Context {
	picked, before := false, 0
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			w.mu.Lock()
			w.connected = true
			if picked && (w.writing > 0 || w.written > before) {
				w.over = true
			}
			picked, before = true, w.written
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

// Hold returns a socket that the wire has from its first byte on, TLS included.
func (w *Wire) Hold(socket net.Conn) net.Conn {
	c := &conn{Conn: socket}
	c.wire.Store(w)
	return c
}

// Check says whether anything may go out now, by [ErrLate] or [ErrEnded] if not.
func (w *Wire) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkLocked()
}

func (w *Wire) checkLocked() error {
	switch {
	case w.over:
		return ErrEnded
	case !w.deadline.IsZero() && !time.Now().Before(w.deadline):
		return ErrLate
	}
	return nil
}

func (w *Wire) write(to net.Conn, p []byte) (int, error) {
	w.mu.Lock()
	if err := w.checkLocked(); err != nil {
		w.mu.Unlock()
		return 0, err
	}
	w.writing++
	w.mu.Unlock()

	n, err := writeChecked(to, p, w.Check)

	w.mu.Lock()
	w.writing--
	w.written += n
	w.mu.Unlock()
	return n, err
}

// Written is how many bytes have gone out by Writes that have returned.
func (w *Wire) Written() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// End lets nothing more out. It says whether a connection stood, and whether a byte of a request may have gone out:
// where it says no, none ever will.
func (w *Wire) End() (connected, sent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.connected, w.writing > 0 || w.written > 0
}

func (w *Wire) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// conn is a connection to a vendor. Until an attempt has it, it may write: TLS, a proxy's CONNECT. From then on the last
// attempt's wire decides.
type conn struct {
	net.Conn
	wire atomic.Pointer[Wire]
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

// Dial is for a transport's DialContext: its connections are those that [Wire.Trace] takes.
func Dial(dialer *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c}, nil
	}
}
