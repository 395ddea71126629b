// Package wirehttp sends one request of an attempt with net/http, on the connections of package wire, and explains its
// errors.
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

// HeaderLimit is how much of an answer's status line and headers is read, unless a transport says otherwise.
const HeaderLimit = 256 << 10

// Guard makes a transport one for [RoundTrip], before its first use: it dials by [wire.Dial], and speaks HTTP/1.1 only. With
// HTTP/2 the requests of many attempts share one connection, which cannot be reset for one of them.
func Guard(t *http.Transport) {
	dial := t.DialContext
	if dial == nil {
		dial = (&net.Dialer{Timeout: time.Minute, KeepAlive: 15 * time.Second}).DialContext
	}
	t.DialContext = wire.Dial(dial)
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

// RoundTrip sends a request by a transport that [Guard] has prepared: once, without a redirect. The answer's body must be read
// to its end or closed; [wire.Wire.Answered] is called at its end. The caller calls [wire.Wire.End].
func RoundTrip(w *wire.Wire, t *http.Transport, req *http.Request) (*http.Response, error) {
	out := req.WithContext(w.Trace(req.Context()))
	out.GetBody = nil // net/http has nothing to send again
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
		// net/http hands the connection over, and no deadline ends a read of it. The request did not ask for another protocol.
		_ = resp.Body.Close()
		resp.Body = http.NoBody // it has none
	case resp.Body == http.NoBody:
		w.Answered()
	default:
		resp.Body = &body{ReadCloser: resp.Body, wire: w, gzip: resp.Uncompressed, chunked: slices.Contains(resp.TransferEncoding, "chunked")}
	}
}

// body is an answer's. It notices its end, and names what is wrong with it.
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

// Errors that net/http reports only as text.
type (
	proxyError   struct{ status int } // a proxy does not connect
	headersError struct {             // the headers are over the limit
		limit int64
		error
	}
	silentError struct{ error } // the connection ended before the first byte of an answer
	bodyError   struct {
		error
		gzip, chunked bool
	}
)

func (e *proxyError) Error() string {
	return fmt.Sprintf("the proxy answered CONNECT with status %d", e.status)
}
func (e *headersError) Unwrap() error { return e.error }
func (e *silentError) Unwrap() error  { return e.error }
func (e *bodyError) Unwrap() error    { return e.error }

// Describe is [wire.Describe] for HTTP, and knows the errors of HTTP as well.
func Describe(err error) (code, text string) {
	code, text = wire.Describe(err, "HTTP/1.1")
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
	ended := errors.Is(e.error, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(e.error, gzip.ErrHeader), errors.Is(e.error, gzip.ErrChecksum), errors.As(e.error, &corrupt):
		return "protocol", "the answer's gzip encoding is damaged"
	case e.gzip && ended:
		return "protocol", "the answer ended before its gzip encoding did"
	case ended:
		return "connection", "the other side closed the connection before the answer's end"
	case e.chunked:
		return "protocol", "the answer's chunked encoding is malformed"
	}
	return "protocol", "the answer's body could not be read"
}
