package wirehttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samekey/samekey/internal/wire"
)

// HTTP2 sends requests to one host over HTTP/2. Attempts share its connections, so they must be attempts that may be
// repeated: see [wire.Shared]. A new connection is made when the others are at the host's limit of streams. Make one
// with [NewHTTP2]. It is safe for concurrent use.
//
// net/http's own pool is not used, since it sends a request again that the host has refused.
type HTTP2 struct {
	transport *http.Transport
	address   string

	mu      sync.Mutex
	conns   []*http2Conn
	dialing *dialing  // nil: no connection is being made
	without time.Time // until then the host is taken to have no HTTP/2
}

type http2Conn struct {
	client *http.ClientConn
	socket *wire.Shared
}

// dialing is the making of a connection, for which several attempts can wait.
type dialing struct {
	cancel  context.CancelFunc
	done    chan struct{}
	waiting int   // at zero it is cancelled
	err     error // to be read after done
}

// ErrNoHTTP2 means that the host speaks no HTTP/2. Nothing was sent: send the request over HTTP/1.1.
var ErrNoHTTP2 = errors.New("the host does not speak HTTP/2")

const (
	// noHTTP2For is how long a host without HTTP/2 is not asked for it again.
	noHTTP2For = 10 * time.Minute

	// A connection on which nothing arrives for pingAfter is asked for a sign of life, and closed after pingTimeout
	// without one: a host that is gone would otherwise hold up every attempt until its own timeout.
	pingAfter   = 15 * time.Second
	pingTimeout = 15 * time.Second
)

// NewHTTP2 returns a client for the host at address, "host:port", with TLS. It takes over the transport, whose settings
// for dialing, TLS, proxies and idle connections apply.
func NewHTTP2(t *http.Transport, address string) *HTTP2 {
	guard(t, func(socket net.Conn) net.Conn { return wire.NewShared(socket) })
	t.Protocols.SetHTTP2(true)
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if socket, ok := c.(*wire.Shared); ok && err == nil {
			ctx.Value(socketKey{}).(*dialed).socket = socket
		}
		return c, err
	}
	return &HTTP2{transport: t, address: address}
}

// dialed is what is learned while net/http makes a connection.
type dialed struct {
	socket   *wire.Shared
	protocol string
}

type socketKey struct{}

// RoundTrip sends a request once, without redirects. The caller must read the answer's body to its end or close it, and
// must call [wire.Wire.End]. [Refused] tells errors that prove that the host did not process the request.
func (h *HTTP2) RoundTrip(w *wire.Wire, req *http.Request) (*http.Response, error) {
	c, err := h.join(req.Context(), w)
	if err != nil {
		return nil, err
	}
	out := req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { c.socket.Complete(w) },
	}))
	out.GetBody = nil
	resp, err := c.client.RoundTrip(out)
	if err == nil {
		watch(w, resp)
		return resp, nil
	}
	if req.Context().Err() == nil { // else net/http returns before it has stopped writing
		c.socket.Complete(w)
	}
	var stream streamError
	if errors.As(err, &stream) || Refused(err) {
		w.Answered() // the stream has ended on both sides: what is left of it has no effect
	}
	return nil, &http2Error{err}
}

// join returns a connection that the attempt has joined.
func (h *HTTP2) join(ctx context.Context, w *wire.Wire) (*http2Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c := h.reserve()
		switch {
		case c == nil:
			if err := h.dial(ctx); err != nil {
				return nil, err
			}
		case w.Share(c.socket):
			return c, nil
		default: // another attempt has reset it, and net/http does not know yet
			c.client.Release()
			h.remove(c)
		}
	}
}

// reserve returns a connection with a free stream, or nil.
func (h *HTTP2) reserve() *http2Conn {
	h.mu.Lock()
	conns := slices.Clone(h.conns)
	h.mu.Unlock()
	for _, c := range conns { // without the mutex: Reserve can call the hook, which takes it
		if c.client.Reserve() == nil {
			return c
		}
	}
	return nil
}

func (h *HTTP2) remove(c *http2Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = slices.DeleteFunc(h.conns, func(other *http2Conn) bool { return other == c })
}

// dial waits for a connection that is being made. Only one is made at a time: the attempts that begin together usually
// fit on it.
func (h *HTTP2) dial(ctx context.Context) error {
	h.mu.Lock()
	if time.Now().Before(h.without) {
		h.mu.Unlock()
		return ErrNoHTTP2
	}
	d := h.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		var dialCtx context.Context
		dialCtx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
		h.dialing = d
		go h.connect(dialCtx, d)
	}
	d.waiting++
	h.mu.Unlock()

	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.waiting--; d.waiting == 0 {
		d.cancel()
		if h.dialing == d {
			h.dialing = nil
		}
	}
	return ctx.Err()
}

// connect makes a connection.
func (h *HTTP2) connect(ctx context.Context, d *dialing) {
	defer d.cancel()
	learned := &dialed{}
	ctx = context.WithValue(ctx, socketKey{}, learned)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: func(state tls.ConnectionState, _ error) { learned.protocol = state.NegotiatedProtocol },
	})
	client, err := h.transport.NewClientConn(ctx, "https", h.address)
	var c *http2Conn
	if err == nil && learned.protocol == "h2" {
		c = &http2Conn{client, learned.socket}
	}
	h.mu.Lock()
	switch {
	case c != nil:
		h.conns = append(h.conns, c)
	case err == nil:
		err, h.without = ErrNoHTTP2, time.Now().Add(noHTTP2For)
	}
	d.err = err
	if h.dialing == d {
		h.dialing = nil
	}
	h.mu.Unlock()
	switch {
	case c != nil:
		client.SetStateHook(func(client *http.ClientConn) {
			if client.Err() != nil {
				h.remove(c)
			}
		})
	case client != nil:
		_ = client.Close()
	}
	close(d.done)
}

// CloseIdleConnections closes the connections on which no attempt waits for an answer.
func (h *HTTP2) CloseIdleConnections() {
	h.mu.Lock()
	conns := slices.Clone(h.conns)
	h.mu.Unlock()
	for _, c := range conns {
		if c.socket.Idle() {
			_ = c.client.Close()
		}
	}
}

// Refused reports whether an error of [HTTP2.RoundTrip] proves that the host did not process the request: it reset the
// stream with REFUSED_STREAM, or it sent a GOAWAY whose last stream is before this one (RFC 9113, section 8.7). It is
// also true if the connection went away before the request had a stream.
//
// net/http tells the last two only by their texts. If it changes them, a refusal counts as an answer that did not
// arrive.
func Refused(err error) bool {
	var stream streamError
	if errors.As(err, &stream) {
		return stream.Code == refusedStream
	}
	var of *http2Error
	if !errors.As(err, &of) {
		of = &http2Error{err}
	}
	text := of.error.Error()
	return text == "http2: Transport received Server's graceful shutdown GOAWAY" ||
		strings.HasPrefix(text, "http2: Transport received GOAWAY from server ErrCode:") || // the first stream of a connection
		text == "http2: client conn not usable" || text == "http2: client conn could not be established"
}

// http2Error is an error of a request over HTTP/2.
type http2Error struct{ error }

func (e *http2Error) Unwrap() error { return e.error }

// streamError is net/http's own error of a stream, which [errors.As] copies into a struct with the same fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "the HTTP/2 stream was reset: " + e.name() }

const refusedStream = 7

// streamErrors are the names of RFC 9113, section 7.
var streamErrors = []string{
	"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
	"FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
	"INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
}

func (e streamError) name() string {
	if int(e.Code) < len(streamErrors) {
		return streamErrors[e.Code]
	}
	return fmt.Sprintf("error %d", e.Code)
}

// describe names the errors that are specific to HTTP/2.
func (e *http2Error) describe() (code, text string) {
	var stream streamError
	switch {
	case errors.As(e.error, &stream) && stream.Code == refusedStream:
		return "refused_stream", "the other side refused the request unprocessed (HTTP/2 REFUSED_STREAM)"
	case errors.As(e.error, &stream):
		return "stream", "the HTTP/2 stream was reset: " + stream.name()
	case Refused(e.error):
		return "refused_stream", "the other side closes its connection, and did not process the request (HTTP/2 GOAWAY)"
	case strings.HasPrefix(e.Error(), "connection error: "):
		return "protocol", "the other side violated HTTP/2"
	}
	return "connection", "the HTTP/2 connection ended before the answer"
}
