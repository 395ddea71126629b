package httpvendor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/retryafter"
)

// attempt is the action's dispatcher.Handler.
func (e *endpoint) attempt(ctx context.Context, call *dispatcher.Call) (dispatcher.Answer, error) {
	req, err := e.request(call)
	if err != nil {
		return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "request"}, e.failed("%v", err))
	}
	w := newWire(ctx)
	resp, err := e.transport.RoundTrip(req.WithContext(w.trace(ctx)))
	if err != nil {
		connected, sent := w.end()
		code, text := describe(err)
		switch {
		case sent:
			return dispatcher.Answer{}, dispatcher.Unknown(dispatcher.Answer{Code: code}, e.failed("no answer: %s", text))
		case connected:
			return dispatcher.Answer{}, dispatcher.Unsent(e.failed("nothing was sent: %s", text))
		}
		return dispatcher.Answer{}, dispatcher.Unsent(e.failed("no connection: %s", text))
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := e.read(resp)
	w.end()
	return e.judge(resp, answer, err)
}

// failed makes an error of our own words: see the package's promise on secrets.
func (e *endpoint) failed(format string, args ...any) error {
	return fmt.Errorf("httpvendor: %s at %s: %s", e.action.Name, e.client.dest.Name, fmt.Sprintf(format, args...))
}

// request builds the one request of an attempt. Of a header that several set, the last in this order counts: the
// intent, the destination, the action, samekey.
func (e *endpoint) request(call *dispatcher.Call) (*http.Request, error) {
	header := http.Header{"User-Agent": {userAgent}}
	for name, value := range call.Headers {
		if err := checkHeader(name, value); err != nil {
			return nil, fmt.Errorf("the intent's header %w", err)
		}
		header.Set(name, value)
	}
	maps.Copy(header, e.header)
	req := &http.Request{
		Method: e.method, URL: e.url, Host: e.url.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if e.body {
		if call.ContentType != "" && e.header["Content-Type"] == nil {
			if err := checkHeader("Content-Type", call.ContentType); err != nil {
				return nil, fmt.Errorf("the intent's content type: %w", err)
			}
			header.Set("Content-Type", call.ContentType)
		}
		req.ContentLength = int64(len(call.Payload))
		if len(call.Payload) > 0 {
			// No GetBody: net/http shall have nothing to send again. (The wire would not let it out either.)
			req.Body = io.NopCloser(bytes.NewReader(call.Payload))
		}
	}
	if call.TraceContext != "" && checkHeader("Traceparent", call.TraceContext) == nil {
		header.Set("Traceparent", call.TraceContext)
	}
	header.Set(attemptHeader, strconv.Itoa(call.Attempt))
	header.Set(e.client.dest.KeyHeader, call.DeliveryKey.String())
	return req, nil
}

// attemptHeader carries the attempt's number, so that a vendor's log can be held against the intent's history.
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

// What is left of an answer beyond what is kept is read, so far and so long, to keep the connection.
const (
	drainLimit = 256 << 10
	drainTime  = 250 * time.Millisecond
)

// read takes an answer up to its cap, counted after decompression. The error says that it broke off before.
func (e *endpoint) read(resp *http.Response) (dispatcher.Answer, error) {
	contentType := []byte(resp.Header.Get("Content-Type"))
	answer := dispatcher.Answer{Code: strconv.Itoa(resp.StatusCode), ContentType: string(e.secrets.strike(contentType, len(contentType)))}
	if len(answer.ContentType) > 255 {
		answer.ContentType = ""
	}
	// As much more as a secret is long, so that one that the cap cuts in two is known for what it is.
	window := e.limit + e.secrets.longest
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(window)))
	answer.Body = e.secrets.strike(body, e.limit)
	if len(body) >= window {
		stop := time.AfterFunc(drainTime, func() { _ = resp.Body.Close() })
		_, _ = io.CopyN(io.Discard, resp.Body, drainLimit)
		stop.Stop()
	}
	answer.Body = answer.Body[:min(len(answer.Body), e.limit)]
	if err != nil && len(body) >= e.limit {
		err = nil // all that is kept is there
	}
	return answer, err
}

// judge says what an answer means: the table of the package comment.
func (e *endpoint) judge(resp *http.Response, answer dispatcher.Answer, broken error) (dispatcher.Answer, error) {
	status := resp.StatusCode
	wait, waits := retryafter.Read(resp.Header, time.Now())
	wait = min(wait, maxWait)
	switch {
	case broken != nil && (e.success.has(status) || e.action.Refused.has(status)):
		_, text := describe(broken)
		return answer, dispatcher.Unknown(answer, e.failed("the answer, %d, broke off: %s", status, text))
	case e.success.has(status):
		return answer, nil
	case e.action.Refused.has(status):
		return answer, dispatcher.Refused(answer)
	case e.action.Wait.has(status) || status == http.StatusTooManyRequests:
		return answer, dispatcher.RetryAfter(wait, e.failed("answered %d: ask again later", status))
	case mayHaveActed(status) && waits && e.repeatable:
		return answer, dispatcher.RetryAfter(wait, e.failed("answered %d with Retry-After", status))
	case mayHaveActed(status):
		return answer, dispatcher.Unknown(answer, e.failed("answered %d", status))
	case !e.repeatable && (status < 400 || status == http.StatusConflict):
		// Created, then "see other"; or accepted, in words that the action does not list; or there already: a redrive must
		// not send again.
		return answer, dispatcher.Unknown(answer, e.failed("answered %d, which is not in Success: the vendor may have acted", status))
	case status >= 300 && status < 400:
		return answer, dispatcher.Dead(answer, e.failed("answered %d: redirects are not followed, correct the destination's URL or the action's request", status))
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return answer, dispatcher.Dead(answer, e.failed("answered %d: correct the destination's credentials, then redrive", status))
	}
	return answer, dispatcher.Dead(answer, e.failed("answered %d", status))
}

// mayHaveActed: a server error, a timeout, "too early", or something that is no final status.
func mayHaveActed(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooEarly || status >= 500 || status < 200
}

// maxWait is what a Retry-After is cut to; the dispatcher waits less.
const maxWait = 24 * time.Hour
