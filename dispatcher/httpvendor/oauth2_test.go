package httpvendor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// tokens is an OAuth 2.0 server. It gives a token with a new number at each request.
type tokens struct {
	*httptest.Server
	requests atomic.Int64
	answer   atomic.Pointer[string] // instead of a token, with its status: "401 {..}"
	wait     atomic.Value           // string: Retry-After of such an answer
	seen     chan string            // Authorization and form
}

func startTokens(t *testing.T) *tokens {
	s := &tokens{seen: make(chan string, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.requests.Add(1)
		body, _ := io.ReadAll(r.Body)
		s.seen <- r.Method + " " + r.Header.Get("Authorization") + " " + string(body)
		if answer := s.answer.Load(); answer != nil {
			var status int
			_, _ = fmt.Sscan(*answer, &status)
			if wait, ok := s.wait.Load().(string); ok {
				w.Header().Set("Retry-After", wait)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, (*answer)[4:])
			return
		}
		_, _ = fmt.Fprintf(w, `{"access_token": "token-number-%d", "token_type": "bearer", "expires_in": 3600}`, n)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) auth() Auth {
	return Auth{OAuth2: &OAuth2{TokenURL: s.URL + "/token", ClientID: "shop:1", ClientSecret: "s3cret/+client", Scopes: []string{"pay", "read"}, Audience: "https://api.example"}}
}

func TestOAuth2TokenIsKeptAndRenewed(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	h, c := unpaused(t, Destination{URL: g.URL, Auth: s.auth()})
	g.accepts.Store("token-number-1")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	const form = "audience=https%3A%2F%2Fapi.example&grant_type=client_credentials&scope=pay+read"
	if seen, want := <-s.seen, "POST Basic c2hvcCUzQTE6czNjcmV0JTJGJTJCY2xpZW50 "+form; seen != want {
		t.Errorf("the request was %s, want %s", seen, want)
	}
	c.changing.mu.Lock()
	renew := time.Until(c.changing.renew)
	c.changing.held.renew, c.changing.renew = time.Now().Add(-time.Second), time.Now().Add(-time.Second)
	c.changing.mu.Unlock()
	if n := s.requests.Load(); n != 1 || renew < 58*time.Minute || renew > 60*time.Minute {
		t.Errorf("%d tokens were requested, and the one is renewed in %v", n, renew)
	}
	// While the server is down the token is used to its end.
	down := "503 "
	s.answer.Store(&down)
	for range 3 {
		if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
			t.Error(err)
		}
		await(t, c)
	}
	s.answer.Store(nil)
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Error(err)
	}
	await(t, c)
	g.accepts.Store(fmt.Sprintf("token-number-%d", s.requests.Load()))
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Error(err)
	}
}

func TestDeniedOAuth2TokenIsReplaced(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	h, _ := unpaused(t, Destination{URL: g.URL, Auth: s.auth()})
	g.accepts.Store("token-number-2")
	g.echo.Store("token-number-1 s3cret/+client s3cret%2F%2Bclient c2hvcCUzQTE6czNjcmV0JTJGJTJCY2xpZW50")
	for _, want := range []string{"denied", delivered} {
		answer, err := attempt(t, h, testCall("{}"), patience)
		if verdict(err) != want {
			t.Errorf("is %s, want %s", verdict(err), want)
		}
		if body := string(answer.Body) + string(answerBody(err)); strings.Contains(body, "token-") || strings.Contains(body, "s3cret") || strings.Contains(body, "c2hv") {
			t.Errorf("a secret is in %q", body)
		}
	}
}

func answerBody(err error) []byte {
	if err == nil {
		return nil
	}
	return answerOf(err).Body
}

// The file of the client's secret is read every few seconds; the token stays while the secret does.
func TestOAuth2TokenOutlivesItsFunctionsCall(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	var secret atomic.Value
	secret.Store("first-secret")
	h, c := unpaused(t, Destination{URL: g.URL, Credentials: func(context.Context) (Credentials, error) {
		auth := s.auth()
		auth.OAuth2.ClientSecret, auth.OAuth2.AuthStyle = secret.Load().(string), "body"
		return Credentials{Auth: auth, Until: time.Now().Add(time.Hour)}, nil
	}})
	g.echo.Store("second-secret")
	down := "503 "
	for n, want := range []int64{1, 1, 2, 2, 3} {
		switch n {
		case 2:
			secret.Store("second-secret")
		case 4: // it is due to be renewed, and the server is down
			s.answer.Store(&down)
			c.changing.held.renew = time.Now().Add(-time.Second)
		}
		answer, err := attempt(t, h, testCall("{}"), patience)
		if err != nil {
			t.Fatal(err)
		}
		if n >= 2 && strings.Contains(string(answer.Body), "second-secret") {
			t.Errorf("a secret is in %q", answer.Body)
		}
		if got := s.requests.Load(); got != want {
			t.Errorf("%d tokens were requested, want %d", got, want)
		}
		c.changing.mu.Lock()
		c.changing.until = time.Now().Add(-time.Second)
		c.changing.mu.Unlock()
	}
	for _, want := range []string{"first-secret", "second-secret"} {
		if seen := <-s.seen; !strings.Contains(seen, "POST  ") || !strings.Contains(seen, "client_id=shop%3A1&client_secret="+want) {
			t.Errorf("the request was %s", seen)
		}
	}
}

func TestWithoutAnOAuth2TokenIntentsAreUnsent(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	for answer, want := range map[string]string{
		`401 {"error": "invalid_client", "error_description": "s3cret"}`: "the server answered 401 invalid_client: correct the client's id",
		`400 {"error": "s3cret"}`:                          "the server answered 400",
		`200 {"access_token": "", "token_type": "bearer"}`: "is not JSON with an access_token",
		`200 s3cret`: "is not JSON with an access_token",
		`200 {"access_token": "s3cret", "token_type": "mac"}`:              "its type is not Bearer",
		`302 {"access_token": "s3cret"}`:                                   "the server answered 302",
		`200 {"access_token": "s3cret\n", "token_type": "bearer"}`:         "has a control character",
		`200 {"access_token": "` + strings.Repeat("s3cret", 20<<10) + `"}`: "is not JSON with an access_token",
	} {
		s.answer.Store(&answer)
		h, _ := unpaused(t, Destination{URL: g.URL, Auth: s.auth()})
		got, err := attempt(t, h, testCall("{}"), patience)
		if verdict(err) != "unsent" || got.Code != "credentials" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.60s: is %s, %q: %v", answer, verdict(err), got.Code, err)
		}
	}
	auth := s.auth()
	s.Close()
	h, _ := unpaused(t, Destination{URL: g.URL, Auth: auth})
	if _, err := attempt(t, h, testCall("{}"), patience); verdict(err) != "unsent" || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a server that is down: %v", err)
	}
	if n := g.got.Load(); n != 0 {
		t.Errorf("the vendor got %d calls", n)
	}
}

// A name that leads to a private address is refused, as for the destination itself.
func TestOAuth2TokenURLIsGuarded(t *testing.T) {
	dest := Destination{Name: "stripe", URL: "https://vendor.example", Auth: Auth{OAuth2: &OAuth2{TokenURL: "http://localhost:1/", ClientID: "a", ClientSecret: "s3cret"}}}
	c, err := New(dest)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.current(t.Context()); err == nil || !strings.Contains(err.Error(), "not public") {
		t.Errorf("is %v", err)
	}
	dest.Auth.OAuth2.TokenURL = "http://127.0.0.1:1/"
	if _, err := New(dest); err == nil || !strings.Contains(err.Error(), "Auth.OAuth2.TokenURL: leads to an address that is not public") {
		t.Errorf("is %v", err)
	}
	dest.Auth.OAuth2 = &OAuth2{TokenURL: "https://u:s3cret@a.example", Scopes: []string{"a b"}, AuthStyle: "digest"}
	_, err = New(dest)
	for _, want := range []string{"TokenURL: has a user", "ClientID: missing", "ClientSecret: missing", "Scopes[1]: must be one scope", `AuthStyle: "digest"`} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	dest.Headers = map[string]string{"Authorization": "x"}
	if _, err := New(dest); err == nil || !strings.Contains(err.Error(), "Auth: sets a header") {
		t.Errorf("is %v", err)
	}
}

// What a function sends with package httpclient would count as sent by the attempt, which may be a write that goes out
// once.
func TestFetchIsNoPartOfItsAttempt(t *testing.T) {
	type key struct{}
	g := startGuard(t)
	h, _ := unpaused(t, Destination{URL: g.URL, Credentials: func(ctx context.Context) (Credentials, error) {
		if _, limited := ctx.Deadline(); ctx.Value(key{}) != nil || !limited {
			t.Error("the function has its attempt's context, or no deadline")
		}
		return Credentials{}, nil
	}})
	if _, err := attempt(t, func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		return h(context.WithValue(ctx, key{}, true), call)
	}, testCall("{}"), patience); err != nil {
		t.Error(err)
	}
}

func TestIntentWithoutATokenUsesNoAttempt(t *testing.T) {
	s := startTokens(t)
	db := database(t)
	down := "503 "
	s.answer.Store(&down)
	dest := Destination{Name: "webhooks", URL: "https://vendor.example", Auth: s.auth()}
	dest.AllowPrivate = loopback
	w := &hookWorld{T: t, db: db, dest: dest, action: Action{Request: "POST", Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Backoff: 50 * time.Second, MaxBackoff: 50 * time.Second}}}
	id := w.insert("", "{}")
	w.drain()
	if e := w.get(id); string(e.Status)+" "+e.Code != "pending credentials" || e.AttemptsUsed != 0 {
		t.Errorf("is %s %s, %d attempts used", e.Status, e.Code, e.AttemptsUsed)
	}
}

// Nothing is asked before the time that the server named, up to a bound. Another client is tried at once.
func TestRetryAfterOfTheTokenServer(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	var secret atomic.Value
	secret.Store("first-secret")
	h, c := unpaused(t, Destination{URL: g.URL, Credentials: func(context.Context) (Credentials, error) {
		auth := s.auth()
		auth.OAuth2.ClientSecret = secret.Load().(string)
		return Credentials{Auth: auth}, nil
	}})
	busy := "429 "
	s.answer.Store(&busy)
	s.wait.Store("86400")
	for range 3 {
		if _, err := attempt(t, h, testCall("{}"), patience); verdict(err) != "unsent" || !strings.Contains(err.Error(), "the server answered 429") {
			t.Errorf("is %s: %v", verdict(err), err)
		}
	}
	if n, left := s.requests.Load(), time.Until(c.changing.wait.until); n != 1 || left < 4*time.Minute || left > 5*time.Minute {
		t.Errorf("%d requests, and the next one in %v", n, left)
	}
	secret.Store("second-secret")
	if _, err := attempt(t, h, testCall("{}"), patience); verdict(err) != "unsent" {
		t.Errorf("is %s", verdict(err))
	}
	if n := s.requests.Load(); n != 2 {
		t.Errorf("%d requests, want another one with the new secret", n)
	}
	c.changing.wait.until = time.Now() // the time has passed
	s.answer.Store(nil)
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Error(err)
	}
	// A token that is good is used to its end, and the server is left alone.
	s.answer.Store(&busy)
	for range 3 {
		c.changing.mu.Lock()
		c.changing.held.renew, c.changing.renew = time.Now().Add(-time.Second), time.Now().Add(-time.Second)
		c.changing.mu.Unlock()
		if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
			t.Error(err)
		}
		await(t, c)
	}
	if n := s.requests.Load(); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}

// Whatever a server says about the end of a token, one token is enough for calls that are not denied.
func TestOddEndsOfATokenRequestNoSecondOne(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	for expires, ends := range map[string]bool{
		`0`: false, `-5`: false, `1e300`: false, `1e9`: false, `"soon"`: false, `null`: false, `[1]`: false, `"NaN"`: false,
		`"3600"`: true, `3600.5`: true,
	} {
		answer := `200 {"access_token": "token-text", "expires_in": ` + expires + `}`
		s.answer.Store(&answer)
		before := s.requests.Load()
		h, c := unpaused(t, Destination{URL: g.URL, Auth: s.auth()})
		for range 3 {
			if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
				t.Errorf("%s: %v", expires, err)
			}
		}
		if n := s.requests.Load() - before; n != 1 || c.changing.until.IsZero() == ends {
			t.Errorf("%s: %d tokens, good until %v", expires, n, c.changing.until)
		}
	}
}

// A server that once gives a token that cannot be sent is asked again.
func TestTokenThatCannotBeSentIsNotKept(t *testing.T) {
	g, s := startGuard(t), startTokens(t)
	h, _ := unpaused(t, Destination{URL: g.URL, Auth: s.auth()})
	bad := `200 {"access_token": "two\nlines", "expires_in": 3600}`
	s.answer.Store(&bad)
	if _, err := attempt(t, h, testCall("{}"), patience); verdict(err) != "unsent" {
		t.Errorf("is %s", verdict(err))
	}
	s.answer.Store(nil)
	if _, err := attempt(t, h, testCall("{}"), patience); err != nil {
		t.Error(err)
	}
}
