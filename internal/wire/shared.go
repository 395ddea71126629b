package wire

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Shared is a connection that several attempts use at once, as with HTTP/2. Attempts join it by [Wire.Share].
//
// A Write can carry bytes of any request that is not complete. So it starts only if none of the attempts that still
// send is past its deadline or its end; otherwise the connection is reset. An attempt that ends without its whole
// answer is checked: if its request is complete, and the other side's kernel has acknowledged every byte of it, then
// nothing of it is left here, and the connection goes on. Otherwise the connection is reset, and the other attempts on
// it end without an answer. Only requests that may be repeated belong on such a connection.
//
// The acknowledgements are known on Linux. On other systems each attempt that ends without its whole answer resets the
// connection.
type Shared struct {
	net.Conn // the socket

	mu      sync.Mutex // locked before a wire's mutex, never while holding one
	parts   map[*Wire]*part
	written int           // bytes that write(2) took
	armed   bool          // a close is a reset
	limit   time.Duration // of the kernel's retransmission; zero: the system's
	closing bool          // to be closed when the last attempt has left
	broken  bool          // reset: no attempt can join
}

// part is what the connection knows about an attempt without its whole answer.
type part struct {
	sending bool          // a Write can carry bytes of the request
	end     int           // written, when the request was complete
	limit   time.Duration // from joining to the deadline; zero: there is none
}

// NewShared returns a connection over a socket. Until an attempt joins, it can be written to freely: TLS, a proxy's
// CONNECT, or the start of HTTP/2.
func NewShared(socket net.Conn) *Shared {
	return &Shared{Conn: socket, parts: map[*Wire]*part{}}
}

// Share lets the attempt use the connection. It reports whether that is possible: a connection that is closed, or that
// another attempt has reset, can carry nothing more. Call [Shared.Complete] when the request has been written.
func (w *Wire) Share(s *Shared) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken || s.closing {
		return false
	}
	p := &part{sending: true}
	if !w.deadline.IsZero() {
		p.limit = max(time.Until(w.deadline), time.Millisecond)
	}
	s.parts[w] = p
	w.mu.Lock()
	w.connected = true
	w.held = append(w.held, s)
	w.mu.Unlock()
	return true
}

// Complete records that the last byte of the attempt's request has been written, or that no more of it will be.
func (s *Shared) Complete(w *Wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.parts[w]; p != nil && p.sending {
		p.sending, p.end = false, s.written
	}
}

// Idle reports whether every attempt that joined has its answer or has ended.
func (s *Shared) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.parts) == 0
}

func (s *Shared) Write(p []byte) (n int, err error) {
	sending, err := s.begin()
	if err == nil {
		n, err = writeChecked(s.Conn, p, func() error { return checkAll(sending) })
	}
	for _, w := range sending {
		w.wrote(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written += n
	if errors.Is(err, ErrLate) || errors.Is(err, ErrEnded) {
		s.breakLocked()
		err = errBroken // which others see too
	}
	return n, err
}

var errBroken = errors.New("the shared connection is reset: an attempt is over before its request was complete")

// begin starts a Write. It returns the attempts whose bytes the Write can carry, and for which wrote must be called.
func (s *Shared) begin() (sending []*Wire, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parts) == 0 {
		return nil, nil
	}
	if err := s.arm(); err != nil {
		return nil, err
	}
	for w, p := range s.parts {
		if !p.sending {
			continue
		}
		if err := w.begin(); err != nil {
			return sending, err
		}
		sending = append(sending, w)
	}
	return sending, nil
}

func checkAll(wires []*Wire) error {
	for _, w := range wires {
		if err := w.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Close does not close the connection of a running attempt. It ends reads and writes at once, and the last attempt that
// leaves closes the connection: only then is it known whether the answers were complete.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.parts {
		if w.running() {
			s.closing = true
			return s.Conn.SetDeadline(time.Now().Add(-time.Hour))
		}
	}
	s.closing = true
	return s.Conn.Close()
}

// arm makes each close of the socket a reset, also one by the kernel, and limits retransmission to the shortest time
// that an attempt has.
func (s *Shared) arm() error {
	if !s.armed {
		if err := linger(s.Conn, 0); err != nil {
			return err
		}
		s.armed = true
	}
	s.limitRetransmission()
	return nil
}

func (s *Shared) limitRetransmission() {
	limit := time.Duration(0)
	for _, p := range s.parts {
		if p.limit > 0 && (limit == 0 || p.limit < limit) {
			limit = p.limit
		}
	}
	if limit != s.limit {
		s.limit = limit
		retransmitFor(s.Conn, limit)
	}
}

// disarm lets an attempt leave that has its whole answer.
func (s *Shared) disarm(w *Wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(w)
}

// abort lets an attempt leave without its whole answer, and resets the connection if something of its request may
// still be here. What has sent nothing stays: a Write that could send it is then refused.
func (s *Shared) abort(w *Wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, touched := s.parts[w], w.touched()
	switch {
	case p == nil || p.sending && !touched:
		return
	case p.sending || touched && !s.acknowledged(p):
		s.breakLocked()
	}
	s.leave(w)
}

// acknowledged reports whether the other side's kernel has all of a complete request. What has been written since it
// was complete is read first, so that a Write at the same moment can only make the answer no.
func (s *Shared) acknowledged(p *part) bool {
	since := s.written - p.end
	queued, ok := unacknowledged(s.Conn)
	return ok && queued <= since
}

func (s *Shared) leave(w *Wire) {
	if s.parts[w] == nil {
		return
	}
	delete(s.parts, w)
	if s.broken {
		return
	}
	s.limitRetransmission()
	if len(s.parts) > 0 {
		return
	}
	if s.armed {
		s.armed = false
		_ = linger(s.Conn, -1)
	}
	if s.closing {
		_ = s.Conn.Close()
	}
}

// breakLocked resets the connection, which begin has armed.
func (s *Shared) breakLocked() {
	if !s.broken {
		s.broken = true
		_ = s.Conn.Close()
	}
}
