package keyclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
)

var errRefused = errors.New("the server refused the request unprocessed (HTTP/2 REFUSED_STREAM or GOAWAY), or had closed its connection")

// once passes the request to base and keeps it from resending a request without a body, for which net/http takes
// another connection, or the same one again. A request with a body cannot be resent, because it has no GetBody.
func once(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	if !bodyless(req.Body) {
		return base.RoundTrip(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	connections := 0 // net/http reports them one by one
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if connections++; connections > 1 {
			cancel(errRefused) // before anything is written: net/http checks
		}
	}}
	resp, err := base.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	switch {
	case err != nil:
		if errors.Is(context.Cause(ctx), errRefused) {
			err = errRefused
		}
		cancel(nil)
	case resp.Body != nil: // reading it needs the context
		resp.Body = &body{resp.Body, cancel}
	default:
		cancel(nil)
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
