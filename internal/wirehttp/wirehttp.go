// Package wirehttp sends one request of an attempt with net/http, over the connections of package wire, and describes
// its errors.
package wirehttp

import (
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"time"

	"github.com/samekey/samekey/internal/wire"
)

// HeaderLimit is the default size limit of an answer's status line and headers.
const HeaderLimit = 256 << 10

// Guard prepares a transport for [RoundTrip]. Call it before the transport's first use. The transport then makes its
// connections with [wire.Own] and uses only HTTP/1.1. With HTTP/2 many attempts share a connection, which cannot be
// reset for each of them: see [HTTP2].
func Guard(t *http.Transport) { guard(t, wire.Own) }

// guard sets what transports for both protocols need. Connections are made by socket.
func guard(t *http.Transport, socket func(net.Conn) net.Conn) {
	dial := t.DialContext
	if dial == nil {
		dial = (&net.Dialer{Timeout: time.Minute, KeepAlive: 15 * time.Second}).DialContext
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return socket(c), nil
	}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.ForceAttemptHTTP2 = false
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = nil
	}
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.MaxResponseHeaderBytes == 0 {
		t.MaxResponseHeaderBytes = HeaderLimit
	}
	next := t.OnProxyConnectResponse
	t.OnProxyConnectResponse = func(ctx context.Context, at *url.URL, request *http.Request, answer *http.Response) error {
		if answer.StatusCode != http.StatusOK {
			return &proxyError{answer.StatusCode}
		}
		if next != nil {
			return next(ctx, at, request, answer)
		}
		return nil
	}
}

// RoundTrip sends a request once, without redirects. [Guard] must have prepared the transport. The caller must read the
// answer's body to its end or close it, and must call [wire.Wire.End]. The body's end calls [wire.Wire.Answered].
func RoundTrip(w *wire.Wire, t *http.Transport, req *http.Request) (*http.Response, error) {
	out := req.WithContext(w.Trace(req.Context()))
	out.GetBody = nil // without it, net/http cannot send the body again
	before := w.Received()
	resp, err := t.RoundTrip(out)
	switch received := w.Received() - before; {
	case err == nil:
		watch(w, resp)
		return resp, nil
	case int64(received) >= t.MaxResponseHeaderBytes:
		return nil, &headersError{t.MaxResponseHeaderBytes, err}
	case received == 0 && w.Connected():
		return nil, &silentError{err}
	}
	return nil, err
}

func watch(w *wire.Wire, resp *http.Response) {
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		// The body is then the connection itself, and no deadline ends a read of it. The request asked for no other
		// protocol.
		_ = resp.Body.Close()
		resp.Body = http.NoBody // an answer without a body
	case resp.Body == http.NoBody:
		w.Answered()
	default:
		resp.Body = &body{ReadCloser: resp.Body, wire: w, gzip: resp.Uncompressed, chunked: slices.Contains(resp.TransferEncoding, "chunked")}
	}
}

// body is an answer's body. It reports its end to the wire, and adds to errors what is needed to describe them.
type body struct {
	io.ReadCloser
	wire          *wire.Wire
	gzip, chunked bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.wire.Answered()
	case err != nil:
		err = &bodyError{err, b.gzip, b.chunked}
	}
	return n, err
}

// The errors that net/http distinguishes only by their text.
type (
	proxyError   struct{ status int } // a proxy did not connect
	headersError struct {             // the headers exceed the limit
		limit int64
		error
	}
	silentError struct{ error } // the connection ended before the first byte of an answer
	bodyError   struct {
		error
		gzip, chunked bool
	}
)

// ErrBrokenOff is the error of a body whose connection ended before it did.
var ErrBrokenOff error = &bodyError{error: io.ErrUnexpectedEOF}

func (e *proxyError) Error() string {
	return fmt.Sprintf("the proxy answered CONNECT with status %d", e.status)
}
func (e *headersError) Unwrap() error { return e.error }
func (e *silentError) Unwrap() error  { return e.error }
func (e *bodyError) Unwrap() error    { return e.error }

// Describe is [wire.Describe] with the errors that are specific to HTTP.
func Describe(err error) (code, text string) {
	code, text = wire.Describe(err, "HTTP/1.1")
	var http2 *http2Error
	if code == "protocol" && errors.As(err, &http2) {
		return http2.describe()
	}
	if code != "protocol" && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return code, text
	}
	var (
		proxy   *proxyError
		headers *headersError
		silent  *silentError
		broken  *bodyError
		mime    textproto.ProtocolError
	)
	switch {
	case errors.As(err, &proxy):
		return "proxy", proxy.Error()
	case errors.As(err, &headers):
		return "protocol", fmt.Sprintf("the answer's headers are longer than %d KiB", headers.limit>>10)
	case errors.As(err, &silent):
		return "connection", "the other side closed the connection before it answered"
	case errors.As(err, &broken):
		return broken.describe()
	case errors.As(err, &mime):
		return "protocol", "the answer's headers are malformed"
	}
	return code, text
}

func (e *bodyError) describe() (code, text string) {
	var corrupt flate.CorruptInputError
	var stream streamError
	ended := errors.Is(e.error, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(e.error, gzip.ErrHeader), errors.Is(e.error, gzip.ErrChecksum), errors.As(e.error, &corrupt):
		return "protocol", "the answer's gzip encoding is damaged"
	case e.gzip && ended:
		return "protocol", "the answer ended before its gzip encoding did"
	case ended:
		return "connection", "the other side closed the connection before the answer's end"
	case errors.As(e.error, &stream):
		return "stream", "the HTTP/2 stream was reset before the answer's end: " + stream.name()
	case e.chunked:
		return "protocol", "the answer's chunked encoding is malformed"
	}
	return "protocol", "the answer's body could not be read"
}
