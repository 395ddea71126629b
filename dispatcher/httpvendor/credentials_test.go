package httpvendor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// vault gives a token with a new number at each call.
type vault struct {
	calls atomic.Int64
	lasts time.Duration
	fail  atomic.Pointer[error]
}

func (v *vault) credentials(context.Context) (Credentials, error) {
	n := v.calls.Add(1)
	if err := v.fail.Load(); err != nil {
		return Credentials{}, *err
	}
	c := Credentials{Auth: Auth{Bearer: fmt.Sprintf("token-number-%d", n)}}
	if v.lasts > 0 {
		c.Until = time.Now().Add(v.lasts)
	}
	return c, nil
}

// guard is a vendor that accepts one token, and repeats what it gets.
type guard struct {
	*httptest.Server
	accepts atomic.Value // string; empty: all
	got     atomic.Int64
	echo    atomic.Value // string, in addition
}

func startGuard(t *testing.T) *guard {
	g := &guard{}
	g.accepts.Store("")
	g.echo.Store("")
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.got.Add(1)
		if accepts := g.accepts.Load().(string); accepts != "" && r.Header.Get("Authorization") != "Bearer "+accepts {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, r.Header.Get("Authorization")+" "+g.echo.Load().(string))
	}))
	t.Cleanup(g.Close)
	return g
}

// unpaused returns a handler whose credentials are fetched without a pause in between.
func unpaused(t *testing.T, dest Destination) (handler, *Client) {
	t.Helper()
	c := testClient(t, dest)
	c.changing.pause = 0
	h, _, err := c.handler(Action{Request: "POST /v1/charges", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		t.Fatal(err)
	}
	return h, c
}

func TestCredentialsAreFetchedOnceForAllAttempts(t *testing.T) {
	g, v := startGuard(t), &vault{}
	asked, release := make(chan struct{}, 100), make(chan struct{})
	h, _ := unpaused(t, Destination{URL: g.URL, Credentials: func(ctx context.Context) (Credentials, error) {
		asked <- struct{}{}
		<-release
		return v.credentials(ctx)
	}})
	g.accepts.Store("token-number-1")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
				t.Error(err)
			}
		})
	}
	<-asked
	close(release)
	all.Wait()
	if n := v.calls.Load(); n != 1 || g.got.Load() != 20 {
		t.Errorf("%d calls of the function for %d calls of the vendor", n, g.got.Load())
	}
}

// The vendor stops accepting the token. The attempts that it denies fetch one new token, and use no attempt.
func TestDeniedCredentialsAreFetchedAgain(t *testing.T) {
	g, v := startGuard(t), &vault{}
	h, c := unpaused(t, Destination{URL: g.URL, Credentials: v.credentials})
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	first, err := c.current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.accepts.Store("token-number-2")
	if _, err := attempt(t, h, testCall("{}"), patience); verdict(err) != "denied" {
		t.Fatalf("the revoked token is %s", verdict(err))
	}
	for range 3 {
		if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
			t.Fatal(err)
		}
		c.answered(first, dispatcher.Denied(dispatcher.Response{})) // of an attempt that was still running
	}
	if n := v.calls.Load(); n != 2 {
		t.Errorf("%d calls of the function, want 2", n)
	}
}

func TestADeniedLookupFetchesCredentials(t *testing.T) {
	g, v := startGuard(t), &vault{}
	_, c := unpaused(t, Destination{URL: g.URL, Credentials: v.credentials})
	lookup := &Lookup{Request: "GET /ask", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	_, delivery, err := c.handler(Action{Request: "POST /x", Lookup: lookup, Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		t.Fatal(err)
	}
	g.accepts.Store("token-number-2")
	for _, want := range []string{"denied", delivered} {
		outcome, err := delivery.Lookup(t.Context(), testCall("{}"), nil)
		if err != nil || outcome.Kind() != want {
			t.Errorf("is %v, %v, want %s", outcome, err, want)
		}
	}
}

// A vendor that denies everything does not make the function run in a loop.
func TestDenialsFetchOnceInAPause(t *testing.T) {
	g, v := startGuard(t), &vault{}
	h, c := unpaused(t, Destination{URL: g.URL, Credentials: v.credentials})
	c.changing.pause = time.Hour
	g.accepts.Store("none")
	for range 5 {
		if _, err := attempt(t, h, testCall("{}"), patience); verdict(err) != "denied" {
			t.Fatalf("is %s", verdict(err))
		}
	}
	if n := v.calls.Load(); n != 1 {
		t.Errorf("%d calls of the function, want 1", n)
	}
}

func TestCredentialsThatAreOverAreFetchedAgain(t *testing.T) {
	g, v := startGuard(t), &vault{lasts: time.Hour}
	h, c := unpaused(t, Destination{URL: g.URL, Credentials: v.credentials})
	want := func(token string) {
		t.Helper()
		g.accepts.Store(token)
		if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
			t.Fatal(err)
		}
	}
	want("token-number-1")
	want("token-number-1")
	set := func(until, renew time.Duration) {
		c.changing.mu.Lock()
		defer c.changing.mu.Unlock()
		c.changing.until, c.changing.renew = time.Now().Add(until), time.Now().Add(renew)
	}
	set(-time.Second, -time.Minute)
	want("token-number-2")
	// Shortly before the end, attempts go on with what they have, also if there is nothing new.
	failure := errors.New("sealed")
	v.fail.Store(&failure)
	set(time.Hour, -time.Second)
	want("token-number-2")
	await(t, c)
	if n := v.calls.Load(); n != 3 {
		t.Errorf("%d calls of the function, want 3", n)
	}
	want("token-number-2")
	v.fail.Store(nil)
	await(t, c)
	n := v.calls.Load() + 1
	g.accepts.Store("")
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	await(t, c)
	want(fmt.Sprintf("token-number-%d", n))
	c.changing.mu.Lock()
	defer c.changing.mu.Unlock()
	if left := time.Until(c.changing.renew); left < 58*time.Minute || left > 60*time.Minute {
		t.Errorf("is renewed in %v", left)
	}
}

// await waits for a fetch that runs.
func await(t *testing.T, c *Client) {
	t.Helper()
	c.changing.mu.Lock()
	running := c.changing.fetch
	c.changing.mu.Unlock()
	if running != nil {
		<-running.done
	}
}

func TestWithoutCredentialsIntentsAreUnsent(t *testing.T) {
	g := startGuard(t)
	hang := make(chan struct{})
	defer close(hang)
	for name, tc := range map[string]struct {
		fn   func(context.Context) (Credentials, error)
		want string
	}{
		"error": {func(context.Context) (Credentials, error) {
			return Credentials{}, fmt.Errorf("sealed: %w, not s3cret-of-old", &url.Error{Op: "Get", URL: "https://vault.example/?t=s3cret-x", Err: io.EOF})
		}, "sealed: Get [URL]: EOF, not [redacted]"},
		"panic":   {func(context.Context) (Credentials, error) { panic("s3cret-of-panic") }, "panicked with a value of type string"},
		"goexit":  {func(context.Context) (Credentials, error) { runtime.Goexit(); return Credentials{}, nil }, "ended its goroutine"},
		"hangs":   {func(context.Context) (Credentials, error) { <-hang; return Credentials{}, nil }, "within the attempt's time"},
		"mistake": {func(context.Context) (Credentials, error) { return Credentials{Auth: Auth{Bearer: "s3cret\n"}}, nil }, "Auth: the value of"},
		"host":    {func(context.Context) (Credentials, error) { return Credentials{URL: "https://s3cret.example"}, nil }, "another scheme or host"},
		"url":     {func(context.Context) (Credentials, error) { return Credentials{URL: "s3cret"}, nil }, "the URL of the credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := unpaused(t, Destination{URL: g.URL, Secrets: []string{"s3cret-of-old"}, Credentials: tc.fn})
			timeout := patience
			if name == "hangs" {
				timeout = 50 * time.Millisecond
			}
			answer, err := attempt(t, h, testCall("{}"), timeout)
			if verdict(err) != "unsent" || answer.Code != "credentials" || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("is %s, %q: %v", verdict(err), answer.Code, err)
			}
		})
	}
	if n := g.got.Load(); n != 0 {
		t.Errorf("the vendor got %d calls", n)
	}
}

func TestEarlierCredentialsStayRedacted(t *testing.T) {
	g, v := startGuard(t), &vault{}
	h, c := unpaused(t, Destination{URL: g.URL, Auth: Auth{Bearer: "token-of-the-file"}, Credentials: v.credentials})
	g.echo.Store("token-of-the-file token-number-1 token-number-2 token-number-3")
	for n := range 4 {
		answer, err := attempt(t, h, testCall("{}"), patience)
		if want := max(0, 2-n); err != nil || strings.Count(string(answer.Body), "token-") != want || strings.Contains(string(answer.Body), "file") {
			t.Errorf("after %d tokens the answer is %q, %v", n+1, answer.Body, err)
		}
		c.changing.mu.Lock()
		c.changing.denied = true
		c.changing.mu.Unlock()
	}
}

// All that can be replaced reaches attempts and lookups. An attempt that runs keeps what it began with.
func TestCredentialsReplaceTheConfiguration(t *testing.T) {
	type seen struct{ auth, a, b, signature, uri string }
	got := make(chan seen, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- seen{r.Header.Get("Authorization"), r.Header.Get("X-A"), r.Header.Get("X-B"), fmt.Sprint(r.Header.Get("Webhook-Signature") != ""), r.RequestURI}
	}))
	t.Cleanup(server.Close)
	dest := StandardWebhooks()
	dest.Name, dest.URL, dest.Endpoint = "hook", server.URL+"/old", ""
	dest.Headers = map[string]string{"x-a": "1", "X-B": "2"}
	dest.Credentials = func(context.Context) (Credentials, error) {
		return Credentials{
			Headers: map[string]string{"X-A": "new"}, WebhookSecrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
			URL: strings.Replace(server.URL, "http://", "http://user:password@", 1) + "/new?q=1",
		}, nil
	}
	c := testClient(t, dest)
	lookup := &Lookup{Request: "GET /ask", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	h, delivery, err := c.handler(Action{Request: "POST /x", Headers: map[string]string{"X-B": "own"}, Lookup: lookup,
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	basic := "Basic dXNlcjpwYXNzd29yZA=="
	if s := <-got; s != (seen{basic, "new", "own", "true", "/new/x?q=1"}) {
		t.Errorf("an attempt carries %+v", s)
	}
	if _, err := result(delivery.Lookup(t.Context(), testCall("{}"), nil)); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != (seen{basic, "new", "own", "false", "/new/ask?q=1"}) {
		t.Errorf("a lookup carries %+v", s)
	}
}

func TestCredentialsForEveryEndpointAreRefused(t *testing.T) {
	dest := StandardWebhooks()
	dest.Name = "hooks"
	dest.Credentials = func(context.Context) (Credentials, error) {
		return Credentials{Auth: Auth{Bearer: "s3cret-token"}}, nil
	}
	c := testClient(t, dest)
	if _, err := c.current(t.Context()); err == nil || !strings.Contains(err.Error(), "would be sent to every endpoint") {
		t.Errorf("is %v", err)
	}
}

// An action's own header rotates. An attempt that runs keeps what it began with, other actions have their own, and no
// answer repeats the old or the new one.
func TestActionHeadersChange(t *testing.T) {
	got := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization") + " " + r.Header.Get("X-Fixed")
		_, _ = io.WriteString(w, "Basic first-own, second-own, of the destination")
	}))
	t.Cleanup(server.Close)
	var now atomic.Value
	now.Store("first-own")
	c := testClient(t, Destination{URL: server.URL, Headers: map[string]string{"Authorization": "of the destination"}, Credentials: func(context.Context) (Credentials, error) {
		return Credentials{ActionHeaders: map[string]map[string]string{"charge_card": {"authorization": "Basic " + now.Load().(string)}}, Until: time.Now().Add(time.Hour)}, nil
	}})
	c.changing.pause = 0
	lookup := &Lookup{Request: "GET /ask", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	h, delivery, err := c.handler(Action{Request: "POST /x", Headers: map[string]string{"Authorization": "Basic at-start", "X-Fixed": "f"}, Lookup: lookup,
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		t.Fatal(err)
	}
	other := testCall("{}")
	other.Action = "other"
	for _, call := range []struct {
		action, want string
	}{{"charge_card", "Basic first-own f"}, {"other", "Basic at-start f"}, {"charge_card", "Basic second-own f"}} {
		if call.want == "Basic second-own f" {
			now.Store("second-own")
			c.changing.mu.Lock()
			c.changing.denied = true
			c.changing.mu.Unlock()
		}
		made := testCall("{}")
		made.Action = call.action
		answer, err := attempt(t, h, made, patience)
		if seen := <-got; err != nil || seen != call.want {
			t.Errorf("an attempt of %s carries %q, %v, want %q", call.action, seen, err, call.want)
		}
		if body := string(answer.Body); strings.Contains(body, strings.Fields(call.want)[1]) || call.want == "Basic second-own f" && strings.Contains(body, "first-own") {
			t.Errorf("a secret is in %q", body)
		}
		if _, err := delivery.Lookup(t.Context(), made, nil); err != nil {
			t.Error(err)
		}
		if seen := <-got; seen != call.want {
			t.Errorf("a lookup of %s carries %q, want %q", call.action, seen, call.want)
		}
	}
	if n := len(got); n != 0 {
		t.Errorf("%d calls more", n)
	}
}

func TestMistakesInActionHeadersAreNamed(t *testing.T) {
	dest := Destination{URL: "https://vendor.example"}
	for want, headers := range map[string]map[string]string{
		`ActionHeaders["pay"].Headers["X-A"]: the value of "X-A" has a control character`: {"X-A": "s3cret\n"},
		`carries the delivery key`: {"Idempotency-Key": "s3cret"},
	} {
		dest.Credentials = func(context.Context) (Credentials, error) {
			return Credentials{ActionHeaders: map[string]map[string]string{"pay": headers}}, nil
		}
		c := testClient(t, dest)
		if _, err := c.current(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("is %v, want %q", err, want)
		}
	}
}

// Many calls are denied at once, and the late ones of them after the new credentials have come.
func TestManyDenialsFetchOnce(t *testing.T) {
	v := &vault{}
	c := testClient(t, Destination{URL: "https://vendor.example", Credentials: v.credentials})
	c.changing.pause = 0
	first, err := c.current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			c.answered(first, dispatcher.Denied(dispatcher.Response{}))
			if got, err := c.current(t.Context()); err != nil || got == first {
				t.Errorf("%v, the denied ones: %v", err, got == first)
			}
		})
	}
	all.Wait()
	if n := v.calls.Load(); n != 2 {
		t.Errorf("%d calls of the function, want 2", n)
	}
}
