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
	"strings"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/keyheader"
	"github.com/samekey/samekey/internal/retryafter"
	"github.com/samekey/samekey/internal/wire"
)

// attempt is the action's dispatcher.Handler.
func (o *operation) attempt(ctx context.Context, call *dispatcher.Call) (dispatcher.Answer, error) {
	s, err := o.sending(call)
	if err != nil {
		return dispatcher.Answer{}, err
	}
	to, err := o.receiver(call)
	if err != nil {
		return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "endpoint"}, o.failed("%v", err))
	}
	req, err := o.request(call, to, s)
	if err != nil {
		return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "request"}, o.failed("%v", err))
	}
	resp, w, err := o.call(ctx, o.transport, req)
	if err != nil {
		return dispatcher.Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, body, err := o.read(resp, to.secrets, o.looksIn)
	w.End()
	return o.judge(newReply(resp, body, err != nil), answer, err)
}

// call puts one request on the wire. Its errors are verdicts.
func (o *operation) call(ctx context.Context, transport *http.Transport, req *http.Request) (*http.Response, *wire.Wire, error) {
	w := wire.New(ctx)
	resp, err := transport.RoundTrip(req.WithContext(w.Trace(ctx)))
	if err == nil {
		if resp.StatusCode == http.StatusSwitchingProtocols {
			// net/http hands the connection over, and no deadline ends a read of it. Nobody asked for another protocol.
			_ = resp.Body.Close()
			resp.Body = http.NoBody
		}
		return resp, w, nil
	}
	connected, sent := w.End()
	code, text := describe(err)
	switch {
	case sent:
		err = dispatcher.Unknown(dispatcher.Answer{Code: code}, o.failed("no answer: %s", text))
	case connected:
		err = dispatcher.Unsent(o.failed("nothing was sent: %s", text))
	default:
		err = dispatcher.Unsent(o.failed("no connection: %s", text))
	}
	return nil, w, err
}

// failed makes an error of our own words: see the package's promise on secrets.
func (o *operation) failed(format string, args ...any) error {
	return fmt.Errorf("httpvendor: %s at %s: %s", o.action.Name, o.client.dest.Name, fmt.Sprintf(format, args...))
}

// request builds the one request of an attempt. Of a header that several set, the last in this order counts: the
// intent, the destination, the action, what was rendered, samekey.
func (o *operation) request(call *dispatcher.Call, to receiver, s sending) (*http.Request, error) {
	header := http.Header{"User-Agent": {userAgent}}
	for name, value := range call.Headers {
		if err := checkHeader(name, value); err != nil {
			return nil, fmt.Errorf("the intent's header %w", err)
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
		// No GetBody: net/http shall have nothing to send again. (The wire would not let it out either.)
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
}

func newRequest(method string, at *url.URL, header http.Header) *http.Request {
	return &http.Request{
		Method: method, URL: at, Host: at.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
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

// rulesLimit is how much of a body is read where rules look into it.
const rulesLimit = 1 << 20

var errLong = errors.New("httpvendor: the body is longer than what rules look into")

// read takes an answer up to its cap, counted after decompression, and where rules look into it also what they look into.
// The error says that it broke off before.
func (o *operation) read(resp *http.Response, secrets secrets, looksIn bool) (answer dispatcher.Answer, body []byte, err error) {
	contentType := []byte(resp.Header.Get("Content-Type"))
	answer = dispatcher.Answer{Code: strconv.Itoa(resp.StatusCode), ContentType: string(secrets.strike(contentType, len(contentType)))}
	if len(answer.ContentType) > 255 {
		answer.ContentType = ""
	}
	// As much more as a secret is long, so that one that the cap cuts in two is known for what it is.
	window := o.limit + secrets.longest
	if looksIn {
		window = max(window, rulesLimit)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, int64(window)))
	answer.Body = secrets.strike(body, o.limit)
	long := len(body) >= window
	if long {
		stop := time.AfterFunc(drainTime, func() { _ = resp.Body.Close() })
		_, _ = io.CopyN(io.Discard, resp.Body, drainLimit)
		stop.Stop()
	}
	answer.Body = answer.Body[:min(len(answer.Body), o.limit)]
	switch {
	case looksIn && long:
		err = errLong
	case !looksIn && err != nil && len(body) >= o.limit:
		err = nil // all that is kept is there
	}
	return answer, body, err
}

// judge says what an answer means: the table of the package comment, line by line.
func (o *operation) judge(r reply, answer dispatcher.Answer, broken error) (dispatcher.Answer, error) {
	blind := r.opaque && o.client.dest.JSONAnswers
	for _, rule := range o.rules {
		blind = blind || r.opaque && rule.Field != "" && (len(rule.Status) == 0 || rule.Status.has(r.status))
		fits, undecided := rule.fits(r, rule.Values)
		switch {
		case undecided:
			return o.verdict(Unknown, "its body broke off or is too long, and a rule looks into it", r, answer)
		case fits && rule.Means == Retry && !o.repeatable && r.status != http.StatusTooManyRequests:
			return o.verdict(Unknown, rule.Reason, r, answer)
		case fits && broken != nil && (rule.Means == Delivered || rule.Means == Refused):
			return o.verdict(Unknown, brokeOff(broken), r, answer)
		case fits:
			return o.verdict(rule.Means, rule.Reason, r, answer)
		}
	}
	_, waits := retryafter.Read(r.header, time.Now())
	effect := httpstatus.Of(r.status, waits)
	switch status := r.status; {
	case broken != nil && (o.success.has(status) || o.action.Refused.has(status)):
		return o.verdict(Unknown, brokeOff(broken), r, answer)
	case blind && (o.success.has(status) || o.action.Refused.has(status)):
		return o.verdict(Unknown, "its body is not JSON, as it should be: it may be a proxy's page", r, answer)
	case o.success.has(status):
		return o.verdict(Delivered, "", r, answer)
	case o.action.Refused.has(status):
		return o.verdict(Refused, "", r, answer)
	case o.action.Accepted.has(status):
		return o.verdict(Accepted, "", r, answer)
	case o.action.Wait.has(status) || effect == httpstatus.Later || httpstatus.PutOff(status, waits):
		return o.verdict(Retry, "", r, answer)
	case effect == httpstatus.Silent && status >= 400 && status <= 599 && strings.EqualFold(r.header.Get("Idempotent-Replayed"), "true"):
		return o.verdict(Stuck, "this answer is stored under the key, which can never succeed", r, answer)
	case effect == httpstatus.Silent && waits && o.repeatable:
		return o.verdict(Retry, "", r, answer)
	case effect == httpstatus.Silent:
		return o.verdict(Unknown, "", r, answer)
	case (effect == httpstatus.Stuck || effect == httpstatus.Acted) && o.action.Policy.Class == dispatcher.Read:
		return o.verdict(Dead, "correct the destination's URL, the action's request or its rules, then redrive", r, answer)
	case status >= 300 && status < 400:
		return o.verdict(Stuck, "the vendor may have acted: it is looked up, else parked. Redirects are not followed, so correct the destination's URL or the action's request", r, answer)
	case effect == httpstatus.Stuck || effect == httpstatus.Acted:
		return o.verdict(Stuck, "the vendor may have acted, and the same call gets the same answer: it is looked up, else parked", r, answer)
	case effect == httpstatus.Denied:
		return o.verdict(Denied, "", r, answer)
	case status == http.StatusForbidden:
		return o.verdict(Dead, "correct the destination's credentials, then redrive", r, answer)
	}
	return o.verdict(Dead, "", r, answer)
}

func brokeOff(err error) string {
	_, text := describe(err)
	return "and the answer broke off: " + text
}

// waitOf is what an answer asks to wait, at most a day.
func waitOf(header http.Header) time.Duration {
	wait, _ := retryafter.Read(header, time.Now())
	return min(wait, maxWait)
}

// maxWait is what a Retry-After is cut to, as by the dispatcher.
const maxWait = 24 * time.Hour
