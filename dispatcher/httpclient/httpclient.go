// Package httpclient is the HTTP client for handlers and lookups in Go. It sends nothing that an attempt may not send
// any more.
//
//	client, err := httpclient.New(nil) // once
//	..
//	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
//		Policy: policy,
//		Send: func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
//			request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(call.Payload))
//			if err != nil {
//				return dispatcher.Unsent(err), nil
//			}
//			request.Header.Set("Idempotency-Key", call.CarriedKey)
//			response, err := client.Do(request)
//			if err != nil {
//				return dispatcher.Outcome{}, err // it says whether something was sent
//			}
//			defer response.Body.Close()
//			..
//		},
//	})
//
// # What it guarantees
//
//   - Nothing is sent after the attempt's deadline, or after Send has returned. The clock is read before each
//     write(2), so a process that was stopped past its lease sends nothing when it continues. A plain http.Client
//     has only the context's timer, which fires some time after the process continues.
//   - An attempt that ends without the whole response leaves nothing behind. Its connection is reset, and what the
//     kernel had queued is dropped, also when the process is killed. With a plain http.Client the kernel goes on
//     retransmitting a request that timed out. It can arrive after a lookup has found nothing and the intent was
//     sent again.
//   - An attempt of a write is one request on the wire. net/http does not repeat it. A redirect is the response, and
//     is not followed. A second request of the attempt is refused once the first may have been sent. A Lookup, and
//     the Send of a [dispatcher.Read], may make several.
//   - The error states whether something was sent. If provably nothing was, by any request of the attempt, it is a
//     [dispatcher.ErrUnsent]: return it unchanged, or wrapped. After any other error the vendor may have acted.
//
// # Limits
//
// A request needs the context of the Send or Lookup, or one derived from it. Without it the request is refused, since
// nothing would guard it. Read the response's body to its end, or close it.
//
// The guarantees are about what this client sends. A Send that also sends in other ways must guard them itself, and
// must not return this client's error as its own. A clock that stands still, as on a suspended machine, extends the
// deadline.
//
// What another program has taken cannot be taken back: a proxy, or a sidecar such as Envoy, can send it late. So a
// request through a proxy is refused for an action with Policy.ResendAbsent, and its intent is dead, unsent. A sidecar
// cannot be seen: call the vendor around it, or leave ResendAbsent out (docs/vendors.md).
package httpclient

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wire"
	"github.com/samekey/samekey/internal/wirehttp"
)

// New returns a client. Make one for each vendor when the program starts: it keeps connections.
//
// Transport holds settings such as TLSClientConfig and Proxy. It is copied. Nil means: no proxy, TLS 1.2 or later, 32
// idle connections for each host, which are closed after 30 seconds. Requests are HTTP/1.1 in any case, since a
// connection that several attempts share cannot be reset for one of them. Dial, DialTLS and DialTLSContext hide the
// socket and are refused; DialContext must return a socket. The client's Timeout and Jar may be set; its CheckRedirect
// must stay.
func New(transport *http.Transport) (*http.Client, error) {
	if transport == nil {
		transport = &http.Transport{
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 32,
			IdleConnTimeout:     30 * time.Second, // shorter than a server's own, as in package httpvendor
		}
	}
	//nolint:staticcheck // they are refused
	if transport.Dial != nil || transport.DialTLS != nil || transport.DialTLSContext != nil {
		return nil, errors.New("httpclient: the transport has Dial, DialTLS or DialTLSContext, which hide the socket: use DialContext and TLSClientConfig")
	}
	base := transport.Clone()
	wirehttp.Guard(base)
	return &http.Client{
		Transport:     &guarded{base},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// guarded sends what the attempts in the requests' contexts allow.
type guarded struct{ base *http.Transport }

// CloseIdleConnections is called by that of http.Client.
func (g *guarded) CloseIdleConnections() { g.base.CloseIdleConnections() }

var (
	errNoAttempt = errors.New("httpclient: the request has no attempt: make it with the context that the handler was given")
	errRedirect  = errors.New("httpclient: a redirect is not followed: it would carry the key and the payload to another place")
	errProxied   = fmt.Errorf("httpclient: %w, and the policy sets ResendAbsent: call the vendor directly, or leave ResendAbsent out", wire.ErrProxied)
)

// RoundTrip implements http.RoundTripper.
func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	attempt := wire.AttemptOf(r.Context())
	w, err := g.open(attempt, r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	response, err := wirehttp.RoundTrip(w, g.base, r)
	if err != nil {
		attempt.Failed(w)
		return nil, unsent(attempt, err)
	}
	attempt.Answered()
	response.Body = &body{response.Body, w}
	return response, nil
}

// open begins a request that may be sent.
func (g *guarded) open(attempt *wire.Attempt, r *http.Request) (*wire.Wire, error) {
	switch {
	case attempt == nil:
		return nil, errNoAttempt
	case r.Response != nil: // which led to this request
		return nil, errRedirect
	}
	w, err := attempt.Open(r.Context())
	switch {
	case errors.Is(err, wire.ErrSecond):
		return nil, fmt.Errorf("httpclient: %w", err)
	case err != nil:
		return nil, unsent(attempt, err)
	case !attempt.Direct || g.base.Proxy == nil:
		return w, nil
	}
	if proxy, err := g.base.Proxy(r); proxy != nil || err != nil { // the attempt has sent nothing: Direct comes with Once
		attempt.Failed(w)
		return nil, errProxied
	}
	return w, nil
}

// unsent marks the error of a request of which nothing was sent, unless another request of the attempt may have been
// sent.
func unsent(attempt *wire.Attempt, err error) error {
	if attempt.Sent() {
		return err
	}
	return fmt.Errorf("httpclient: %w: %w", dispatcher.ErrUnsent, err)
}

// body ends its request when it is closed.
type body struct {
	io.ReadCloser
	wire *wire.Wire
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.wire.End()
	return err
}
