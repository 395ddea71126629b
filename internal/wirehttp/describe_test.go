package wirehttp

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Each error contains a secret, as errors of net/http may.
func TestHTTPErrorsAreDescribedInFixedWords(t *testing.T) {
	for _, tc := range []struct {
		err        error
		code, text string
	}{
		{&silentError{errors.New("secret")}, "connection", "closed the connection before it answered"},
		{&proxyError{407}, "proxy", "the proxy answered CONNECT with status 407"},
		{&headersError{256 << 10, errors.New("secret")}, "protocol", "headers are longer than 256 KiB"},
		{textproto.ProtocolError("secret"), "protocol", "headers are malformed"},
		{&bodyError{error: gzip.ErrHeader, gzip: true}, "protocol", "gzip encoding is damaged"},
		{&bodyError{error: gzip.ErrChecksum, gzip: true}, "protocol", "gzip encoding is damaged"},
		{&bodyError{error: flate.CorruptInputError(7), gzip: true}, "protocol", "gzip encoding is damaged"},
		{&bodyError{error: io.ErrUnexpectedEOF, gzip: true}, "protocol", "ended before its gzip encoding did"},
		{&bodyError{error: io.ErrUnexpectedEOF, chunked: true}, "connection", "closed the connection before the answer's end"},
		{&bodyError{error: errors.New("secret"), chunked: true}, "protocol", "chunked encoding is malformed"},
		{&bodyError{error: os.ErrDeadlineExceeded}, "timeout", "the attempt timed out"},
		{&silentError{syscall.ECONNRESET}, "connection", "connection reset by peer"},
		{io.ErrUnexpectedEOF, "connection", "the other side closed the connection"},
		{errors.New("malformed"), "protocol", "violated HTTP/1.1"},
		{&http2Error{streamError{1, 7, errors.New("secret")}}, "refused_stream", "HTTP/2 REFUSED_STREAM"},
		{&http2Error{streamError{1, 2, errors.New("secret")}}, "stream", "reset: INTERNAL_ERROR"},
		{&http2Error{streamError{1, 99, errors.New("secret")}}, "stream", "reset: error 99"},
		{&bodyError{error: streamError{1, 8, errors.New("secret")}}, "stream", "before the answer's end: CANCEL"},
		{&http2Error{errors.New("http2: Transport received GOAWAY from server ErrCode:secret")}, "refused_stream", "HTTP/2 GOAWAY"},
		{&http2Error{errors.New("connection error: secret")}, "protocol", "violated HTTP/2"},
		{&http2Error{errors.New("http2: secret")}, "connection", "ended before the answer"},
		{&http2Error{io.ErrUnexpectedEOF}, "connection", "closed the connection"},
		{&http2Error{os.ErrDeadlineExceeded}, "timeout", "the attempt timed out"},
	} {
		code, text := Describe(fmt.Errorf("POST https://secret: %w: secret", tc.err))
		if code != tc.code || !strings.Contains(text, tc.text) || strings.Contains(text, "secret") {
			t.Errorf("%v is described as %s: %s", tc.err, code, text)
		}
	}
}
