package httpvendor

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
)

// captureLog returns what is logged from now on, by log and by slog.
func captureLog(t *testing.T) *dbtest.Log {
	t.Helper()
	out := &dbtest.Log{}
	before, flags := slog.Default(), log.Flags()
	slog.SetDefault(slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.SetOutput(out)
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
	})
	return out
}

func keyIn(header string) dispatcher.Vendor {
	return dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: header}}
}

type seen struct {
	*http.Request
	body string
}

func recorder(t *testing.T) (*httptest.Server, <-chan seen) {
	t.Helper()
	requests := make(chan seen, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r, string(body)}
	}))
	t.Cleanup(server.Close)
	return server, requests
}

func TestRequestHasPayloadAndKey(t *testing.T) {
	server, requests := recorder(t)
	handler := testHandler(t, Destination{
		URL: server.URL + "/base/?account=7", Vendor: keyIn("x-request-key"),
		Headers: map[string]string{"Authorization": "Bearer tok", "X-From": "destination", "X-Both": "destination"},
	}, Action{Request: "PUT /v1/charges%2Fa?expand=card", Headers: map[string]string{"x-both": "action"}})

	payload := "{\"amount\": 9007199254740993,\n\t\"n\": 1e400}\x00\xff"
	call := testCall(payload)
	call.ContentType = "application/vnd.charge+json"
	call.TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	call.Headers = map[string]string{
		"x-REQUEST-key": "mine", "Authorization": "Bearer other", "X-From": "intent", "X-Both": "intent", "X-Mine": "intent",
		"Content-Type": "text/x", "Samekey-Attempt": "99",
	}
	if _, err := attempt(t, handler, call, patience); err != nil {
		t.Fatal(err)
	}
	r := <-requests
	if r.body != payload {
		t.Errorf("body %q", r.body)
	}
	if line := r.Method + " " + r.RequestURI + " " + r.Proto; line != "PUT /base/v1/charges%2Fa?account=7&expand=card HTTP/1.1" {
		t.Error(line)
	}
	if r.ContentLength != int64(len(payload)) || r.TransferEncoding != nil {
		t.Errorf("Content-Length %d, %v", r.ContentLength, r.TransferEncoding)
	}
	for name, want := range map[string]string{
		"X-Request-Key": deliveryKey.String(), "Authorization": "Bearer tok", "X-From": "destination", "X-Both": "action",
		"X-Mine": "intent", "Content-Type": "application/vnd.charge+json", "Samekey-Attempt": "3", "User-Agent": "samekey/devel",
		"Traceparent": call.TraceContext, "Idempotency-Key": "",
	} {
		if got := strings.Join(r.Header.Values(name), "|"); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestEmptyPayloadHasContentLengthZero(t *testing.T) {
	server, requests := recorder(t)
	for _, request := range []string{"POST /", "GET /", "HEAD /", "DELETE /"} {
		handler := testHandler(t, Destination{URL: server.URL}, Action{Request: request})
		if _, err := attempt(t, handler, testCall(""), patience); err != nil {
			t.Fatal(err)
		}
		r := <-requests
		if r.body != "" || r.TransferEncoding != nil || strings.HasPrefix(request, "POST") && r.Header.Get("Content-Length") != "0" {
			t.Errorf("%s: %q %v %v", request, r.body, r.TransferEncoding, r.Header)
		}
		if r.Header.Get("Idempotency-Key") != deliveryKey.String() {
			t.Errorf("%s: no key", request)
		}
	}
	handler := testHandler(t, Destination{URL: server.URL}, Action{Request: "GET /"})
	if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	if r := <-requests; r.body != "" || r.Header.Get("Content-Type") != "" {
		t.Errorf("GET was sent with %q, %v", r.body, r.Header)
	}
}

func TestInvalidHeaderOfAnIntentIsDead(t *testing.T) {
	server := startRaw(t, func(*rawServer, net.Conn) {})
	handler := testHandler(t, Destination{URL: server.url}, Action{})
	for name, value := range map[string]string{
		"Host": "elsewhere", "content-length": "3", "Transfer-Encoding": "chunked", "Connection": "close", "Expect": "100-continue",
		"": "a", "X Y": "a", "X:Y": "a", "X-Y": "a\r\nX-Z: b", "X-W": "nul\x00", "Ü": "a",
	} {
		call := testCall("{}")
		call.Headers[name] = value
		_, err := attempt(t, handler, call, patience)
		if verdict(err) != "dead" || strings.Contains(err.Error(), "X-Z") {
			t.Errorf("%q: is %s (%v), want dead", name, verdict(err), err)
		}
	}
	call := testCall("{}")
	call.ContentType = "a\nb"
	if _, err := attempt(t, handler, call, patience); verdict(err) != "dead" {
		t.Errorf("content type: is %s (%v), want dead", verdict(err), err)
	}
	if n := server.connections.Load(); n != 0 {
		t.Errorf("there were %d connections", n)
	}
}

// Cases 21 and 19: an attempt that ends before the request's first byte is unsent.
func TestAttemptWithoutAConnectionIsUnsent(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	cut := startRaw(t, func(s *rawServer, c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 5)) })
	silent := startRaw(t, func(s *rawServer, c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	called := false
	handle := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true })
	quiet := func(s *httptest.Server) *httptest.Server {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		return s
	}
	plain, stranger := httptest.NewServer(handle), quiet(httptest.NewUnstartedServer(handle))
	stranger.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(stranger.Close)
	https := func(url string) string { return "https" + strings.TrimPrefix(url, "http") }

	for _, tc := range []struct{ name, url, says string }{
		{"the name does not exist", "http://nothing.invalid", "name"},
		{"refused", "http://" + closed.Addr().String(), "connection refused"},
		{"TLS is cut", https(cut.url), "connection"},
		{"TLS never answers", https(silent.url), "time"},
		{"the host speaks no TLS", https(plain.URL), "TLS"},
		{"an unknown authority", stranger.URL, "unknown authority"},
		{"another name", strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1), "certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			handler := testHandler(t, Destination{URL: tc.url}, Action{Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}})
			timeout := patience
			if tc.says == "time" {
				timeout = 500 * time.Millisecond
			}
			_, err := attempt(t, handler, testCall("{}"), timeout)
			if verdict(err) != "unsent" || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "httpvendor: stripe: ") {
				t.Errorf("is %s (%v), want unsent", verdict(err), err)
			}
		})
	}
	if called {
		t.Error("a request was sent without verification")
	}
}

func TestCAFileIsTrustedWithoutHTTP2(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	answer, err := attempt(t, testHandler(t, Destination{URL: server.URL, CAFile: file}, Action{}), testCall("{}"), patience)
	if err != nil || string(answer.Body) != "HTTP/1.1" {
		t.Errorf("%q, %v", answer.Body, err)
	}
}

func TestOnlyTheConfiguredProxyIsUsed(t *testing.T) {
	target, _ := recorder(t)
	proxied := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { proxied <- r.URL.Host }))
	t.Cleanup(proxy.Close)
	t.Setenv("HTTP_PROXY", proxy.URL) // net/http would not use it for an address on this machine
	if c := testClient(t, Destination{URL: target.URL}); c.reusing.Proxy != nil || c.single.Proxy != nil {
		t.Error("a proxy is used without Destination.Proxy")
	}
	if _, err := attempt(t, testHandler(t, Destination{URL: target.URL}, Action{}), testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	if len(proxied) != 0 {
		t.Error("the environment's proxy was used")
	}
	if _, err := attempt(t, testHandler(t, Destination{URL: "http://vendor.invalid", Proxy: proxy.URL}, Action{}), testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	if host := <-proxied; host != "vendor.invalid" {
		t.Errorf("the proxy was asked for %q", host)
	}
}

// Case 22.
func TestSecretsAreInNoErrorAnswerOrLog(t *testing.T) {
	const password, token, query = "pa/ss&w0rd", "sk_live_51Hx", "q-secret"
	logged := captureLog(t)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = fmt.Fprintf(w, "%s %s %s %v %s", user, pass, r.RequestURI, r.Header, strings.Repeat("pad", 10))
	}))
	t.Cleanup(echo.Close)
	garbage := startRaw(t, func(s *rawServer, c net.Conn) {
		_, _ = c.Read(make([]byte, 1000))
		_, _ = io.WriteString(c, "HTTP/1.1 "+token+" "+query+"\r\n\r\n")
	})
	closed := startRaw(t, func(s *rawServer, c net.Conn) { _, _ = c.Read(make([]byte, 1000)) })

	for name, url := range map[string]string{
		"echo": echo.URL, "garbage": garbage.url, "closed": closed.url, "refused": "http://127.0.0.1:1", "no name": "http://nothing.invalid",
	} {
		dest := Destination{
			URL:     strings.Replace(url, "http://", "http://user:pa%2Fss&w0rd@", 1) + "/?token=" + query,
			Headers: map[string]string{"X-Api-Key": token}, Secrets: []string{token, query},
		}
		handler := testHandler(t, dest, Action{Refused: Statuses{{402, 402}}, Request: "POST /x"})
		call := testCall("{}")
		answer, err := attempt(t, handler, call, patience)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		text := fmt.Sprintf("%v %+v %#v %s %s", err, err, err, answer.Body, answerOf(err).Body)
		for e := err; e != nil; e = errors.Unwrap(e) {
			text += fmt.Sprintf(" %v", e)
		}
		for _, secret := range []string{password, "pa%2Fss", token, query, "dXNlcjpwYS9zcyZ3MHJk"} {
			if strings.Contains(text+logged.String(), secret) {
				t.Errorf("%s: %q is in %s", name, secret, text+logged.String())
			}
		}
		if name == "echo" && (verdict(err) != "refused" || !bytes.Contains(answer.Body, []byte("user [redacted]"))) {
			t.Errorf("the test is void: %v %s", err, answer.Body)
		}
	}
}

func TestSecretCutByTheCapIsNotKept(t *testing.T) {
	const token = "sk_live_51Hx"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "0123456789"+token+" and more")
	}))
	t.Cleanup(server.Close)
	for limit := 10; limit < 24; limit++ {
		handler := testHandler(t, Destination{URL: server.URL, Secrets: []string{token}}, Action{Policy: dispatcher.Policy{ResponseCap: limit}})
		answer, err := attempt(t, handler, testCall("{}"), patience)
		if err != nil || len(answer.Body) > limit || strings.Contains(string(answer.Body), "sk_") {
			t.Errorf("cap %d: %q, %v", limit, answer.Body, err)
		}
	}
}

// A secret is longer than its redaction mark. The part of a secret behind the cap must not move inside the cap.
func TestSecretsAtTheCapAreRedacted(t *testing.T) {
	const first, second = "sk_live_51Hx_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "whsec_bbbbbbbbbbbbbbbb"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, first+" "+first+" "+second+" and more, much more, longer than any secret that is in it")
	}))
	t.Cleanup(server.Close)
	struck := 0
	for limit := 1; limit < 160; limit++ {
		handler := testHandler(t, Destination{URL: server.URL, Secrets: []string{first, second}}, Action{Policy: dispatcher.Policy{ResponseCap: limit}})
		answer, err := attempt(t, handler, testCall("{}"), patience)
		if err != nil || len(answer.Body) > limit || bytes.Contains(answer.Body, []byte("sk_")) || bytes.ContainsAny(answer.Body, "wb") {
			t.Errorf("cap %d: %q, %v", limit, answer.Body, err)
		}
		struck = max(struck, bytes.Count(answer.Body, []byte("[redacted]")))
	}
	if struck != 3 {
		t.Errorf("the test is void: %d secrets are redacted", struck)
	}
}

func TestSecretInAContentTypeIsRedacted(t *testing.T) {
	const token = "sk_live_51Hx"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; token="+r.Header.Get("X-Token"))
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	dest := Destination{URL: server.URL, Headers: map[string]string{"X-Token": token}, Secrets: []string{token}}
	answer, err := attempt(t, testHandler(t, dest, Action{}), testCall("{}"), patience)
	if verdict(err) != "denied" || answer.ContentType != "text/plain; token=[redacted]" {
		t.Errorf("%q, %v", answer.ContentType, err)
	}
}

func TestCredentialsOfAnActionAreRedacted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, "%v", r.Header)
	}))
	t.Cleanup(server.Close)
	client := testClient(t, Destination{URL: server.URL, Headers: map[string]string{"Authorization": "Bearer tok-of-destination"}})
	for name, headers := range map[string]map[string]string{"own": {"authorization": "Bearer tok-of-action"}, "not": nil} {
		handler, _, err := client.handler(Action{
			Request: "POST /", Headers: headers, Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite},
		})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := attempt(t, handler, testCall("{}"), patience)
		text := fmt.Sprintf("%s %s %v", answer.Body, answerOf(err).Body, err)
		if verdict(err) != "denied" || !strings.Contains(text, "Authorization:[[redacted]]") || strings.Contains(text, "tok-of") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// A read may be repeated at any time, so a method that changes something is not allowed.
func TestReadMethods(t *testing.T) {
	client := testClient(t, Destination{URL: "https://api.example.com"})
	for method, fine := range map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": false, "PATCH": false, "DELETE": false} {
		_, _, err := client.handler(Action{Request: method + " /x", Policy: dispatcher.Policy{Class: dispatcher.Read}})
		if fine != (err == nil) || !fine && !strings.Contains(err.Error(), "Request: "+method+" is not allowed for Read") {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestDeliverySetsTheDestination(t *testing.T) {
	d := dispatcher.New(nil, nil)
	client := testClient(t, Destination{URL: "https://api.example.com", Vendor: dispatcher.Vendor{Window: 24 * time.Hour}})
	client.Register(d)
	for name, action := range map[string]Action{
		"charge":  {Request: "POST /v1/charges", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}},
		"balance": {Request: "GET /v1/balance", Policy: dispatcher.Policy{Class: dispatcher.Read}},
	} {
		dispatcher.Handle(d, outbox.NewAction[[]byte](name), Delivery[[]byte](client, action))
	}
	if err := d.Check(); err != nil {
		t.Error(err)
	}
}

func TestParseStatuses(t *testing.T) {
	got, err := ParseStatuses("200-299, 404,409 - 410")
	if err != nil || fmt.Sprint(got) != "[[200 299] [404 404] [409 410]]" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "2xx", "199", "600", "300-200", "200-", "200,,201"} {
		if got, err := ParseStatuses(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}
