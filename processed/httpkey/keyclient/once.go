package keyclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
)

var errRefused = errors.New("the server refused the request without a look at it (HTTP/2 REFUSED_STREAM or GOAWAY), or had closed its connection")

// once hands the request to base and does not let it send one without a body
// again: net/http takes another connection, or the same one again, to do so. One
// with a body cannot be sent again, for want of GetBody.
func once(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	if !bodyless(req.Body) {
		return base.RoundTrip(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	connections := 0 // net/http tells of them one by one
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if connections++; connections > 1 {
			cancel(errRefused) // before anything is written: net/http looks
		}
	}}
	resp, err := base.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	switch {
	case err != nil:
		if errors.Is(context.Cause(ctx), errRefused) {
			err = errRefused
		}
		cancel(nil)
	case resp.Body != nil: // it is read under the context
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
