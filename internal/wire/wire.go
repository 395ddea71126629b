// Package wire controls the connections over which the vendor packages send. It sends nothing after an attempt's
// deadline or end, knows whether the attempt has sent something, and drops the data that the attempt leaves in the
// kernel's queue. [Describe] describes errors.
//
// # Guarantees
//
// No write(2) of an attempt starts after its deadline or its end. A process that was suspended for longer than its
// lease must send nothing when it continues, since another worker may have sent the intent meanwhile. The timers of a
// context and of a socket do not guarantee that: they fire some time after the process continues, and a large write
// continues as soon as there is room. So the clock is read before each write(2). One Write may consist of many.
//
// The result of [Wire.End] is final. If nothing was sent by then, nothing ever is. If something was sent, the system no
// longer holds any of it: each connection whose answer was not read completely is closed by a reset, which drops what
// is queued. A normal close would let the kernel retransmit a request that timed out for minutes, even after a lookup
// has reported that the vendor has no such request. The reset is armed (SO_LINGER with a timeout of zero) before the
// first write(2) and disarmed by [Wire.Answered], so that it also happens when the process is killed. On Linux
// TCP_USER_TIMEOUT ends the retransmission at the attempt's deadline, so that it also ends while the process is
// stopped.
//
// A request goes out on one connection at most, even if net/http tries another.
//
// # Interleavings
//
//	the process is suspended past the deadline,
//	  or the attempt ends,                         what is sent            what End reports
//	during TLS or CONNECT                          the rest of that        not sent
//	with a connection, before the first write(2)   nothing                 not sent
//	in a Write, before its first write(2)          nothing                 sent, if End comes before Write returns
//	in a Write, waiting for room                   nothing more            sent
//	between two Writes                             nothing more            sent
//	between the check of the clock and write(2)    that write(2)           sent
//
//	when                                           data that is queued in the kernel
//	the attempt ends without an answer             is dropped by End
//	the attempt ends with its whole answer         may still be sent: the vendor has answered this request
//	the process is killed                          is dropped by the kernel
//	the process is suspended                       is dropped at the deadline (Linux)
//	the process continues after the deadline       is dropped by End
//
//	when                                           result
//	net/http takes a second connection             it sends the whole request if the first sent nothing, else nothing
//	net/http closes the connection before End      End or Answered closes it, by a reset or normally
//	net/http reuses it for another attempt         that attempt's Wire decides; net/http waits for the Write before
//	net/http reuses it before Answered             it stays armed until that attempt's Answered
//	bytes arrive after the end                     a read returns the connection's end
//
// # Shared connections
//
// Many attempts send on one connection of HTTP/2 at once, so it cannot be reset for each of them that times out. A
// [Shared] connection keeps both guarantees, at the price that it is sometimes reset for all:
//
//	an attempt on the connection ends without its whole answer
//
//	its request                                    the connection
//	is not begun                                   a later Write is refused and resets it
//	is not complete                                is reset: a part can be in any buffer
//	is complete, not acknowledged by the kernel    is reset: the kernel would retransmit it
//	  of the other side
//	is complete and acknowledged                   goes on: nothing of the request is left here
//
//	what happens                                   result
//	the deadline of an attempt passes while it     no write(2) begins, the connection is reset
//	  sends, also while the process is suspended
//	the process is killed                          the kernel resets the connection
//	the process is suspended                       the kernel drops it (Linux) if it retransmits data for longer than
//	                                               the shortest of the attempts had when they began
//	an answer arrives before its request is        the rest may still be sent: the other side has answered
//	  complete
//	the connection is reset                        other attempts on it end: sent, without an answer
//
// So only requests that may be repeated belong on such a connection. A byte that is written while an attempt sends
// counts as sent by it, also a byte of another attempt.
//
// # Limits
//
// The check of the clock and its write(2) are not atomic. Data that another program has accepted, such as a proxy or a
// sidecar, cannot be dropped. The deadline uses the process's clock, which stands still while the machine is suspended.
// On systems other than Unix, the clock is read for each 4 KiB.
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
	deadline time.Time // zero if there is none

	mu        sync.Mutex
	connected bool
	writing   int // the number of Writes that have not returned
	written   int // in bytes
	received  int // in bytes
	over      bool
	held      []carrier // connections whose answer is not complete
}

// carrier is a connection that an attempt uses: a conn of its own, or a [Shared].
type carrier interface {
	disarm(w *Wire) // the answer is complete
	abort(w *Wire)  // the attempt has ended without it
}

// The reasons why nothing is sent.
var (
	ErrLate  = fmt.Errorf("the attempt's deadline has passed, nothing more is sent: %w", context.DeadlineExceeded)
	ErrEnded = errors.New("the attempt has ended, nothing more is sent")
)

// New returns the wire of an attempt. Its deadline is that of ctx, if there is one.
func New(ctx context.Context) *Wire {
	deadline, _ := ctx.Deadline()
	return &Wire{deadline: deadline}
}

// Trace returns a context for one request of net/http, with a transport that uses [Own]. The wire takes control of
// each connection that net/http picks for the request. If the first connection is dead, net/http picks another, and
// could send the request twice: Trace ends the wire if the first connection has sent something.
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
	if err := w.begin(); err != nil {
		return 0, err
	}
	n, err := 0, to.arm(w.deadline)
	if err == nil {
		n, err = writeChecked(to.Conn, p, w.Check)
	}
	if err != nil { // End may have closed the socket during the Write
		if why := w.Check(); why != nil {
			err = why
		}
	}
	w.wrote(n)
	return n, err
}

// begin starts a Write, unless nothing more may be sent. Call wrote when the Write has ended.
func (w *Wire) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkLocked(); err != nil {
		return err
	}
	w.writing++
	return nil
}

func (w *Wire) wrote(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing--
	w.written += n
}

// touched reports whether a byte may have been sent.
func (w *Wire) touched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writing > 0 || w.written > 0
}

// Written returns the number of bytes sent, without those of Writes that have not returned.
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

// Received returns the number of bytes received, including TLS.
func (w *Wire) Received() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.received
}

// Answered records that the answer has been read completely. The connections used so far may be closed normally or
// reused.
func (w *Wire) Answered() {
	for _, c := range w.release() {
		c.disarm(w)
	}
}

// End stops all sending, and closes each connection whose answer is not complete by a reset. It reports whether there
// was a connection, and whether a byte of a request may have been sent. If sent is false, nothing is sent later either.
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

func (w *Wire) release() (held []carrier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held, w.held = w.held, nil
	return held
}

// arrived counts received bytes, and reports whether the attempt still wants them.
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

// conn is a connection to a vendor. Before an attempt takes it, it may write freely: TLS, or a proxy's CONNECT. After
// that, the wire of the last attempt decides.
type conn struct {
	net.Conn // the socket

	mu      sync.Mutex // locked before a wire's mutex, never while holding one
	wire    *Wire      // nil if no attempt has taken the connection
	armed   bool       // a close is a reset
	done    bool       // the answer is complete: a later write, such as TLS's close_notify, does not arm it again
	closing bool       // to be closed when its attempt ends
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

// Read returns the connection's end if data arrives on an idle connection. net/http would print the data to the log.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if w := c.holder(); n > 0 && w != nil && !w.arrived(n) {
		return 0, io.EOF
	}
	return n, err
}

// Close does not close an armed connection of a running attempt. It ends reads and writes at once, and the wire closes
// the connection later. The caller, such as net/http after it has read an answer, does not know whether the answer was
// complete.
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

// arm makes each close of the socket a reset, also one by the kernel, and limits retransmission to the deadline.
func (c *conn) arm(deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	if _, ok := c.Conn.(lingerer); ok && !c.armed {
		if err := linger(c.Conn, 0); err != nil {
			return err
		}
		c.armed = true
	}
	if !deadline.IsZero() {
		retransmitFor(c.Conn, max(time.Until(deadline), time.Millisecond))
	}
	return nil
}

// disarm makes a close normal again, unless the next attempt has already taken the connection. net/http reuses a
// connection before the reader of the answer has seen its end.
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
	_ = linger(c.Conn, -1)
	retransmitFor(c.Conn, 0)
	if c.closing {
		_ = c.Conn.Close()
	}
}

// abort closes the connection by a reset if w has sent something on it.
func (c *conn) abort(w *Wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed && c.wire == w {
		_ = c.Conn.Close()
	}
}

type lingerer interface{ SetLinger(seconds int) error }

// linger makes a close of the socket a reset (0) or normal (-1), if it is a TCP socket.
func linger(socket net.Conn, seconds int) error {
	if at, ok := socket.(lingerer); ok {
		return at.SetLinger(seconds)
	}
	return nil
}

// Own makes the connection of a transport, which [Wire.Trace] can take, over a socket.
func Own(socket net.Conn) net.Conn { return &conn{Conn: socket} }
