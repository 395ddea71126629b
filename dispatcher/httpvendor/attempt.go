package httpvendor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/keyheader"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/wire"
	"github.com/samekey/samekey/internal/wirehttp"
)

// send is the action's Send: one attempt, which makes one request.
func (o *operation) send(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	s, failed := o.sending(call)
	if failed != nil {
		return *failed, nil
	}
	with, err := o.client.current(ctx)
	if err != nil {
		return o.noCredentials(err)
	}
	to, err := o.receiver(call, with)
	if err != nil {
		return dispatcher.Dead(dispatcher.Response{Code: "endpoint"}).Because(o.failed("%v", err)), nil
	}
	req, err := o.request(call, to, s)
	if err != nil {
		return dispatcher.Dead(dispatcher.Response{Code: "request"}).Because(o.failed("%v", err)), nil
	}
	resp, w, none := o.call(ctx, o.over, req)
	if none != nil {
		return o.noAnswer(none)
	}
	defer func() { _ = resp.Body.Close() }()
	a := o.read(resp, to.secrets, o.looksIn)
	w.End()
	outcome := o.judge(o.newReply(resp, a), to.secrets).outcome
	o.client.answered(with, outcome)
	return outcome, nil
}

// noAnswerError is the error of a call without an answer.
type noAnswerError struct {
	error
	connected, sent bool
}

// link is what a call is sent over.
type link struct {
	shared    *wirehttp.HTTP2 // nil: HTTP/1.1
	transport *http.Transport // HTTP/1.1, also for a host without HTTP/2
}

// repeated is for calls that may be repeated.
func (c *Client) repeated() link { return link{c.shared, c.reusing} }

func (l link) roundTrip(w *wire.Wire, req *http.Request) (*http.Response, error) {
	if l.shared != nil {
		if resp, err := l.shared.RoundTrip(w, req); !errors.Is(err, wirehttp.ErrNoHTTP2) {
			return resp, err
		}
	}
	return wirehttp.RoundTrip(w, l.transport, req)
}

// call puts one request on the wire.
func (o *operation) call(ctx context.Context, over link, req *http.Request) (*http.Response, *wire.Wire, *noAnswerError) {
	w := wire.New(ctx)
	resp, err := over.roundTrip(w, req.WithContext(ctx))
	if err != nil {
		connected, sent := w.End()
		return nil, w, &noAnswerError{err, connected, sent}
	}
	return resp, w, nil
}

// noAnswer is what a call without an answer means, in our own words. The error is dispatcher.ErrUnsent if nothing was
// sent, or if the vendor refused the call unprocessed, which is the same to the intent.
func (o *operation) noAnswer(err *noAnswerError) (dispatcher.Outcome, error) {
	code, text := describe(err.error)
	switch {
	case wirehttp.Refused(err.error):
		return dispatcher.Outcome{}, fmt.Errorf("httpvendor: %s: %s: as if %w", o.client.dest.Name, text, dispatcher.ErrUnsent)
	case err.sent:
		return dispatcher.Unknown(dispatcher.Response{Code: code}), o.failed("no answer: %s", text)
	case err.connected:
		return dispatcher.Outcome{}, fmt.Errorf("httpvendor: %s: %w: %s", o.client.dest.Name, dispatcher.ErrUnsent, text)
	}
	return dispatcher.Outcome{}, fmt.Errorf("httpvendor: %s: no connection, %w: %s", o.client.dest.Name, dispatcher.ErrUnsent, text)
}

// request builds the one request of an attempt. If several set the same header, the last one in this order counts: the
// intent, the destination, the action, the endpoint, the rendered request, samekey.
func (o *operation) request(call *dispatcher.Call, to receiver, s sending) (*http.Request, error) {
	header := http.Header{"User-Agent": {userAgent}}
	for name, value := range call.Headers {
		if err := checkHeader(name, value); err != nil {
			return nil, fmt.Errorf("the intent's headers: %w", err)
		}
		header.Set(name, value)
	}
	maps.Copy(header, to.header)
	at, err := to.url(s.path)
	if err != nil {
		return nil, err
	}
	req := newRequest(s.method, at, header)
	if hasBody(s.method) {
		if s.contentType != "" {
			if err := checkHeader("Content-Type", s.contentType); err != nil {
				return nil, fmt.Errorf("the intent's content type: %w", err)
			}
			header.Set("Content-Type", s.contentType)
		}
		setBody(req, s.body)
	}
	if call.TraceContext != "" && checkHeader("Traceparent", call.TraceContext) == nil {
		header.Set("Traceparent", call.TraceContext)
	}
	header.Set(attemptHeader, strconv.Itoa(call.Attempt))
	if name := o.client.keyHeader; name != "" {
		key := call.CarriedKey
		if o.client.dest.Vendor.Key.Quoted {
			if key, err = keyheader.Quoted(key); err != nil {
				return nil, errors.New("the key cannot be quoted")
			}
		}
		header.Set(name, key)
	}
	if to.signer != nil {
		to.signer.sign(header, header.Get(o.client.keyHeader), time.Now(), s.body)
	}
	return req, nil
}

func setBody(req *http.Request, body []byte) {
	req.ContentLength = int64(len(body))
	if len(body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
}

func newRequest(method string, at *url.URL, header http.Header) *http.Request {
	return &http.Request{
		Method: method, URL: at, Host: at.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// attemptHeader carries the attempt's number, so that a vendor's log can be compared with the intent's history.
const attemptHeader = "Samekey-Attempt"

var userAgent = "samekey/" + version()

func version() string {
	const module = "github.com/samekey/samekey"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	at := &info.Main
	for _, dep := range info.Deps {
		if dep.Path == module {
			at = dep
		}
	}
	if at.Path != module || at.Version == "" || at.Version == "(devel)" {
		return "devel"
	}
	return at.Version
}

// The rest of an answer that is not kept is read up to drainLimit and drainTime, to keep the connection.
const (
	drainLimit = 256 << 10
	drainTime  = 250 * time.Millisecond
)

// rulesLimit is how much of a body is read if rules look into it.
const rulesLimit = 1 << 20

var errLong = errors.New("httpvendor: the body is longer than 1 MiB, which is what rules look into")

// answer is what was read of an answer.
type answer struct {
	response dispatcher.Response // as it is stored
	body     []byte
	broken   error // it broke off, or it is longer than what rules look into
	cut      bool  // it is longer than the cap, or it broke off
}

// read reads an answer up to its cap, which counts decompressed bytes, and up to rulesLimit if rules look into it or a
// value is taken from it. A value is no reason to call an answer broken.
func (o *operation) read(resp *http.Response, secrets redact.Secrets, looksIn bool) answer {
	contentType := []byte(resp.Header.Get("Content-Type"))
	a := answer{response: dispatcher.Response{Code: strconv.Itoa(resp.StatusCode), ContentType: string(secrets.Strike(contentType, len(contentType)))}}
	if len(a.response.ContentType) > 255 {
		a.response.ContentType = ""
	}
	// More by the length of a secret, so that a secret that the cap cuts in two is recognized.
	window := o.limit + secrets.Longest()
	if o.texts {
		window = max(window, o.limit+1) // to see whether there is more
	}
	if looksIn || o.reads {
		window = max(window, rulesLimit)
	}
	a.body, a.broken = io.ReadAll(io.LimitReader(resp.Body, int64(window)))
	a.cut = a.broken != nil || len(a.body) > o.limit
	a.response.Body = secrets.Strike(a.body, o.limit)
	long := len(a.body) >= window
	if long {
		stop := time.AfterFunc(drainTime, func() { _ = resp.Body.Close() })
		_, _ = io.CopyN(io.Discard, resp.Body, drainLimit)
		stop.Stop()
	}
	a.response.Body = a.response.Body[:min(len(a.response.Body), o.limit)]
	switch {
	case looksIn && long:
		a.broken = errLong
	case !looksIn && a.broken != nil && len(a.body) >= o.limit:
		a.broken = nil // all that is kept was read
	}
	return a
}
