// Package wire controls what an attempt sends. It enforces the attempt's deadline, knows whether something was sent, and drops
// what the attempt leaves behind. [Describe] explains errors in fixed words.
//
// # What is guaranteed
//
// No write(2) of an attempt begins after its deadline or its end. A process that was stopped for longer than its lease must
// send nothing when it continues, since another worker may have sent the intent meanwhile. The timers of a context and of a
// socket do not guarantee that: they fire some time after the process continues, and a large write continues as soon as there
// is room. So the clock is read before each write(2). One Write may be many of them.
//
// The result of [Wire.End] is final. If nothing was sent by then, nothing ever is. If something was sent, the system no longer
// holds any of it: each connection whose answer was not read completely is closed by a reset, which drops what is queued. A
// normal close would let the kernel retransmit a request that timed out, for minutes, after a lookup said that the vendor knows
// nothing of it. The reset is armed (SO_LINGER with a timeout of zero) before the first write(2) and disarmed by
// [Wire.Answered], so that it also happens when the process is killed. On Linux TCP_USER_TIMEOUT ends the retransmission at
// the attempt's deadline, so that it also ends while the process is stopped.
//
// A request goes out on one connection at most, even if net/http tries another.
//
// # Interleavings
//
//	the process is stopped past the deadline,
//	  or the attempt ends,                         what goes out           what End says
//	during TLS or CONNECT                          the rest of that        not sent
//	with a connection, before the first write(2)   nothing                 not sent
//	in a Write, before its first write(2)          nothing                 sent, if it comes before Write has returned
//	in a Write, waiting for room                   nothing more            sent
//	between two Writes                             nothing more            sent
//	between the check of the clock and write(2)    that write(2)           sent
//
//	what is queued in the kernel when
//	the attempt ends without an answer             is dropped by End
//	the attempt ends with its whole answer         may still go out: the vendor has answered this request
//	the process is killed                          is dropped by the kernel
//	the process is stopped                         is dropped at the deadline (Linux)
//	the process continues after the deadline       is dropped by End
//
//	net/http takes a second connection             the whole request, if the first sent nothing; else nothing
//	net/http closes the connection                 before End: it is closed by End or Answered, which know how
//	the connection goes to another attempt         what that attempt's Wire allows; net/http waits for the Write before
//	it does so before Answered                     it stays armed: that attempt's Answered disarms it
//	bytes arrive after the end                     they are read as the connection's end
//
// # Limits
//
// The check of the clock and its write(2) are not one step. What another program has taken, such as a proxy or a sidecar, cannot
// be taken back. The clock is the process's: where it stands still, as on a suspended machine, so does the deadline. If
// the system is not a Unix, the clock is read for each 4 KiB.
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"sync"
	"time"
)

// Wire is one attempt's control over its connections. It is safe for concurrent use.
type Wire struct {
	deadline time.Time // zero: none

	mu        sync.Mutex
	connected bool
	writing   int // Writes that have not returned
	written   int // bytes
	received  int // bytes
	over      bool
	held      []*conn // connections whose answer is not complete
}

// Why nothing is sent.
var (
	ErrLate  = fmt.Errorf("the attempt's deadline has passed, nothing more is sent: %w", context.DeadlineExceeded)
	ErrEnded = errors.New("the attempt has ended, nothing more is sent")
)

// New makes the wire of an attempt with ctx's deadline, if it has one.
func New(ctx context.Context) *Wire {
	deadline, _ := ctx.Deadline()
	return &Wire{deadline: deadline}
}

// Trace is the context for one request by net/http with a transport that dials by [Dial]: the wire takes each connection
// that net/http picks for it. It picks another if the first one was dead: that is the one place where a request could go
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
				w.take(c)
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

// Hold returns a connection that the wire controls from its first byte on, TLS included.
func (w *Wire) Hold(socket net.Conn) net.Conn {
	c := &conn{Conn: socket}
	w.take(c)
	return c
}

func (w *Wire) take(c *conn) {
	c.mu.Lock()
	c.wire, c.done = w, false
	c.mu.Unlock()
	w.mu.Lock()
	w.held = append(w.held, c)
	w.mu.Unlock()
}

// Check returns nil if something may be sent now, else [ErrLate] or [ErrEnded].
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

func (w *Wire) write(to *conn, p []byte) (int, error) {
	w.mu.Lock()
	if err := w.checkLocked(); err != nil {
		w.mu.Unlock()
		return 0, err
	}
	w.writing++
	w.mu.Unlock()

	n, err := 0, to.arm(w.deadline)
	if err == nil {
		n, err = writeChecked(to.Conn, p, w.Check)
	}
	if err != nil { // End closes the socket under a Write
		if why := w.Check(); why != nil {
			err = why
		}
	}

	w.mu.Lock()
	w.writing--
	w.written += n
	w.mu.Unlock()
	return n, err
}

// Written is the number of bytes that Writes which have returned have sent.
func (w *Wire) Written() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// Connected reports whether the attempt had a connection.
func (w *Wire) Connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.connected
}

// Received is the number of bytes that came in, TLS included.
func (w *Wire) Received() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.received
}

// Answered reports that the answer to what was sent so far was read completely. The connections that it used are closed
// normally, or used again.
func (w *Wire) Answered() {
	for _, c := range w.release() {
		c.disarm(w)
	}
}

// End lets nothing more out and closes each connection whose answer is not complete, by a reset. It reports whether there was
// a connection, and whether a byte of a request may have been sent. If not, none ever will be.
func (w *Wire) End() (connected, sent bool) {
	w.mu.Lock()
	w.over = true
	connected, sent = w.connected, w.writing > 0 || w.written > 0
	w.mu.Unlock()
	for _, c := range w.release() {
		c.abort(w)
	}
	return connected, sent
}

func (w *Wire) release() (held []*conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held, w.held = w.held, nil
	return held
}

// arrived counts received bytes, and reports whether the attempt is still running.
func (w *Wire) arrived(n int) (wanted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received += n
	return !w.over
}

func (w *Wire) running() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.over
}

// conn is a connection to a vendor. Until an attempt has it, it may write: TLS, a proxy's CONNECT. From then on the wire of the
// last attempt decides.
type conn struct {
	net.Conn // the socket

	mu      sync.Mutex // is never held while a wire's is waited for by End or Answered
	wire    *Wire      // nil: no attempt has had it
	armed   bool       // a close is a reset
	done    bool       // the answer is complete: what the attempt still writes, such as TLS's farewell, arms nothing
	closing bool       // it is closed when its attempt ends
}

func (c *conn) holder() *Wire {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wire
}

func (c *conn) Write(p []byte) (int, error) {
	if w := c.holder(); w != nil {
		return w.write(c, p)
	}
	return c.Conn.Write(p)
}

// Read takes what arrives unasked on an idle connection for its end: net/http would print it to the log.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if w := c.holder(); n > 0 && w != nil && !w.arrived(n) {
		return 0, io.EOF
	}
	return n, err
}

// Close leaves a connection of a running attempt to its wire: the closing code, such as net/http after it has read an answer,
// does not know whether that answer was complete. Reads and writes end at once.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.armed && c.wire.running() {
		c.closing = true
		c.mu.Unlock()
		return c.Conn.SetDeadline(time.Now().Add(-time.Hour))
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// arm has every close of the socket from now on be a reset, the kernel's too, and lets the kernel retransmit until the deadline.
func (c *conn) arm(deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	if socket, ok := c.Conn.(interface{ SetLinger(int) error }); ok && !c.armed {
		if err := socket.SetLinger(0); err != nil {
			return err
		}
		c.armed = true
	}
	if !deadline.IsZero() {
		retransmitFor(c.Conn, max(time.Until(deadline), time.Millisecond))
	}
	return nil
}

// disarm has a close be a normal one again, unless the next attempt has the connection by now: net/http hands it on before the
// reader of the answer has seen its end.
func (c *conn) disarm(w *Wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wire != w {
		return
	}
	c.done = true
	if !c.armed {
		return
	}
	c.armed = false
	_ = c.Conn.(interface{ SetLinger(int) error }).SetLinger(-1)
	retransmitFor(c.Conn, 0)
	if c.closing {
		_ = c.Conn.Close()
	}
}

// abort closes a connection on which w has sent something.
func (c *conn) abort(w *Wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed && c.wire == w {
		_ = c.Conn.Close()
	}
}

// Dial is for a transport's DialContext: its connections are those that [Wire.Trace] takes.
func Dial(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c}, nil
	}
}
