package keyclient

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey"
)

// unused is a Base that nothing may reach.
func unused(t *testing.T) http.RoundTripper {
	return baseFunc(func(*http.Request) (*http.Response, error) {
		t.Error("Base was called")
		return nil, io.EOF
	})
}

func TestAnInvalidKeyIsRefusedBeforeAnythingIsSent(t *testing.T) {
	for name, keys := range map[string][]string{
		"empty":               {""},
		"empty, quoted":       {`""`},
		"blank":               {" "},
		"space before":        {" secret"},
		"space after":         {"secret "},
		"space in quotes":     {`" secret"`},
		"control":             {"sec\x00ret"},
		"newline":             {"secret\n"},
		"not ASCII":           {"secret\xff"},
		"too long":            {strings.Repeat("s", 256)},
		"too long, quoted":    {`"` + strings.Repeat("s", 256) + `"`},
		"no end quote":        {`"secret`},
		"a quote":             {`"`},
		"more after it":       {`"secret";a=1`},
		"a list":              {`"secret", "secret"`},
		"an escape of others": {`"\secret"`},
		"an escape at the end": {
			`"secret\`,
		},
		"twice":       {"secret", "secret"},
		"twice empty": {"", ""},
	} {
		req := newRequest(t, "POST", "http://example.com", order)
		req.Header["Idempotency-Key"] = keys
		_, err := (&Transport{Base: unused(t)}).RoundTrip(req)
		failed := errorOf(t, err)
		if !isA[*samekey.KeyError](err) || failed.Attempts != 0 || failed.Key != "" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	req := newRequest(t, "POST", "http://example.com", order)
	req.Header["Idempotency-Key"], req.Header["idempotency-key"] = []string{"a"}, []string{"a"}
	if _, err := (&Transport{Base: unused(t)}).RoundTrip(req); !isA[*samekey.KeyError](err) {
		t.Errorf("in two spellings: %v", err)
	}
}

func TestBothSidesOfAKeysLength(t *testing.T) {
	for _, key := range []string{strings.Repeat("s", 255), `"` + strings.Repeat("s", 255) + `"`, `"` + strings.Repeat(`\"`, 255) + `"`} {
		req := newRequest(t, "POST", "http://example.com", order)
		req.Header.Set("Idempotency-Key", key)
		settings := Transport{Header: "Idempotency-Key"}
		if got, err := settings.keyOf(req); err != nil || got != key {
			t.Errorf("%d bytes: %v", len(key), err)
		}
	}
}

func TestUnrepeatableBodyIsRefusedBeforeSending(t *testing.T) {
	req := newRequest(t, "POST", "http://example.com", order)
	req.GetBody = nil
	trailing := newRequest(t, "PATCH", "http://example.com", order)
	trailing.Trailer = http.Header{"Digest": nil}
	for _, req := range []*http.Request{req, trailing} {
		_, err := (&Transport{Base: unused(t)}).RoundTrip(req)
		if failed := errorOf(t, err); !errors.Is(err, ErrNotReplayable) || failed.Attempts != 0 || !strings.Contains(err.Error(), "set Request.GetBody") {
			t.Errorf("%v", err)
		}
	}
}

func TestAGetBodyThatFailsEndsTheCall(t *testing.T) {
	broken := errors.New("the file is gone")
	bodies := 0
	req := newRequest(t, "POST", "http://example.com", order)
	req.GetBody = func() (io.ReadCloser, error) {
		if bodies++; bodies == 2 {
			return nil, broken
		}
		return io.NopCloser(strings.NewReader(order)), nil
	}
	transport := &Transport{Backoff: 1, Base: baseFunc(func(*http.Request) (*http.Response, error) { return response(503), nil })}
	_, err := transport.RoundTrip(req)
	if failed := errorOf(t, err); !errors.Is(err, broken) || failed.Attempts != 1 || len(failed.Key) != 36 {
		t.Errorf("%v", err)
	}
}

func TestInvalidSettingIsNamedBeforeSending(t *testing.T) {
	for field, transport := range map[string]*Transport{
		"Header":     {Header: "Idempotency Key"},
		"Attempts":   {Attempts: -1},
		"Methods":    {Methods: []string{"POST", "GET"}},
		"Backoff":    {Backoff: -1},
		"MaxBackoff": {Backoff: 2 * time.Second, MaxBackoff: time.Second},
	} {
		transport.Base = unused(t)
		_, err := transport.RoundTrip(newRequest(t, "POST", "http://example.com", order))
		if failed := errorOf(t, err); failed.Attempts != 0 || !strings.HasPrefix(err.Error(), "keyclient: nothing was sent: "+field+" ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// trackedBody counts what is open.
type trackedBody struct {
	io.Reader
	open *atomic.Int64
	once atomic.Bool
}

func (b *trackedBody) Close() error {
	if !b.once.Swap(true) {
		b.open.Add(-1)
	}
	return nil
}

func track(open *atomic.Int64) io.ReadCloser {
	open.Add(1)
	return &trackedBody{Reader: strings.NewReader(order), open: open}
}

func TestEveryBodyIsClosedWhateverHappens(t *testing.T) {
	answers := func(status int, headers ...string) baseFunc {
		return func(*http.Request) (*http.Response, error) { return response(status, headers...), nil }
	}
	for _, tc := range []struct {
		name   string
		base   baseFunc
		change func(req *http.Request, t *Transport)
		ok     bool
	}{
		{"answered", answers(200), nil, true},
		{"retried", answers(503), nil, true},
		{"told to wait too long", answers(503, "Retry-After: 99"), nil, true},
		{"no answer", func(*http.Request) (*http.Response, error) { return nil, io.EOF }, nil, false},
		{"wrong setting", nil, func(_ *http.Request, t *Transport) { t.Attempts = -1 }, false},
		{"invalid key", nil, func(req *http.Request, _ *Transport) { req.Header.Set("Idempotency-Key", "") }, false},
		{"not replayable", nil, func(req *http.Request, _ *Transport) { req.GetBody = nil }, false},
		{"GetBody fails", nil, func(req *http.Request, _ *Transport) {
			req.GetBody = func() (io.ReadCloser, error) { return nil, io.EOF }
		}, false},
		{"redirected", nil, func(req *http.Request, _ *Transport) { req.Response = &http.Response{} }, false},
		{"passed on", answers(200), func(req *http.Request, _ *Transport) { req.Method = "PUT" }, true},
	} {
		var sent, received atomic.Int64
		req := newRequest(t, "POST", "http://example.com", "")
		req.Body, req.ContentLength = track(&sent), int64(len(order))
		req.GetBody = func() (io.ReadCloser, error) { return track(&sent), nil }
		transport := &Transport{Backoff: 1, Base: baseFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := tc.base(req)
			if resp != nil {
				resp.Body = track(&received)
			}
			return resp, err
		})}
		if tc.change != nil {
			tc.change(req, transport)
		}
		resp, err := transport.RoundTrip(req)
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
		if n := sent.Load(); n != 0 {
			t.Errorf("%s: %d of the request's bodies are open", tc.name, n)
		}
		want := int64(0)
		if resp != nil {
			want = 1
			_ = resp.Body.Close()
			want--
		}
		if n := received.Load(); n != want {
			t.Errorf("%s: %d of the answers' bodies are open", tc.name, n)
		}
	}
}

func TestAnswerWithoutBodyIsAccepted(t *testing.T) {
	transport := &Transport{Backoff: 1, Base: baseFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503}, nil // Bases of tests do this
	})}
	if resp, err := transport.RoundTrip(newRequest(t, "POST", "http://example.com", order)); err != nil || resp.StatusCode != 503 {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestTheCallersRequestIsNotChanged(t *testing.T) {
	req := newRequest(t, "POST", "http://example.com/a?b=c", order)
	req.Header.Set("X-Own", "1")
	before := *req
	calls := 0
	transport := &Transport{Backoff: 1, Base: baseFunc(func(out *http.Request) (*http.Response, error) {
		calls++
		if out == req || out.GetBody != nil || out.Header.Get("X-Own") != "1" || out.URL.Path != "/a" || out.ContentLength != int64(len(order)) {
			t.Errorf("attempt %d is %+v", calls, out)
		}
		out.Header.Set("X-Own", fmt.Sprint(calls+1)) // a Base must not, and some do
		out.URL.Path += "x"
		return response(503), nil
	})}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if len(req.Header) != 1 || req.Body != before.Body || req.GetBody == nil || req.URL.Path != "/a" || req.Response != nil {
		t.Errorf("is changed: %+v", req)
	}
	if resp.Request == req || resp.Request.URL.Path != "/a" {
		t.Errorf("the answer's request is %+v", resp.Request)
	}
}

func TestRequestWithoutHeaderMapIsAccepted(t *testing.T) {
	req := newRequest(t, "POST", "http://example.com", order)
	req.Header = nil // as one may leave it who calls RoundTrip himself
	transport := &Transport{Base: baseFunc(func(out *http.Request) (*http.Response, error) {
		if len(out.Header.Get("Idempotency-Key")) != 36 {
			t.Errorf("is sent with %v", out.Header)
		}
		return response(200), nil
	})}
	if _, err := transport.RoundTrip(req); err != nil || req.Header != nil {
		t.Errorf("%v, %v", req.Header, err)
	}
}

func TestARequestWithoutAURLFails(t *testing.T) {
	transport := newTransport(t)
	_, err := transport.RoundTrip(&http.Request{Method: "POST", Header: http.Header{}})
	if failed := errorOf(t, err); !strings.Contains(failed.Error(), "nil Request.URL") {
		t.Errorf("%v", err)
	}
}

func TestAnErrorShowsNeitherTheKeyNorTheURLsSecrets(t *testing.T) {
	const target = "https://sk_live_user:pass%20word1@api.example.com/orders?token=s3cr3t%2Ftoken&v=1"
	for name, cause := range map[string]func(req *http.Request) error{
		"url.Error": func(req *http.Request) error {
			return &url.Error{Op: "Post", URL: req.URL.String(), Err: io.ErrUnexpectedEOF}
		},
		"two of them": func(req *http.Request) error {
			return fmt.Errorf("a: %w", &url.Error{Op: "Post", URL: req.URL.String(), Err: &url.Error{Op: "Post", URL: "http://other.example/?x=0th3r", Err: io.ErrUnexpectedEOF}})
		},
		"joined with another": func(req *http.Request) error {
			return errors.Join(&url.Error{Op: "Post", URL: req.URL.String(), Err: io.EOF}, &url.Error{Op: "Post", URL: "http://other.example/?x=0th3r", Err: io.ErrUnexpectedEOF})
		},
		"the URL": func(req *http.Request) error { return fmt.Errorf("calling %s: %w", req.URL, io.ErrUnexpectedEOF) },
		"the redacted URL": func(req *http.Request) error {
			return fmt.Errorf("calling %s: %w", req.URL.Redacted(), io.ErrUnexpectedEOF)
		},
		"a value": func(req *http.Request) error {
			return fmt.Errorf("bad token %s: %w", req.URL.Query().Get("token"), io.ErrUnexpectedEOF)
		},
		"the password": func(req *http.Request) error {
			p, _ := req.URL.User.Password()
			return fmt.Errorf("bad %s: %w", p, io.ErrUnexpectedEOF)
		},
		"the key": func(req *http.Request) error {
			return fmt.Errorf("key %s: %w", req.Header.Get("Idempotency-Key"), io.ErrUnexpectedEOF)
		},
		"the bare key": func(req *http.Request) error { return fmt.Errorf("key order-1: %w", io.ErrUnexpectedEOF) },
	} {
		req := newRequest(t, "POST", target, order)
		req.Header.Set("Idempotency-Key", `"order-1"`)
		transport := &Transport{Attempts: 1, Base: baseFunc(func(req *http.Request) (*http.Response, error) { return nil, cause(req) })}
		_, err := transport.RoundTrip(req)
		failed := errorOf(t, err)
		if !errors.Is(err, io.ErrUnexpectedEOF) || failed.Key != `"order-1"` {
			t.Errorf("%s: %#v holds %v", name, failed.Key, failed.Err)
		}
		for _, text := range []string{failed.Error(), fmt.Sprintf("%v %+v %s %q %#v", failed, failed, failed, failed, failed)} {
			for _, secret := range []string{"order-1", "sk_live", "word1", "s3cr3t", "token=", "0th3r"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s: %s shows %q", name, text, secret)
				}
			}
			if !strings.Contains(text, "unexpected EOF") || !strings.Contains(text, "attempt 1") {
				t.Errorf("%s: %s does not say what happened", name, text)
			}
		}
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
