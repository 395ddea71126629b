package httpkey_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/processed/httpkey"
)

func TestTheSameRequestAgainGetsTheSameAnswerByteForByte(t *testing.T) {
	b := setup(t, httpkey.Options{ReplayHeaders: []string{"x-account"}}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "one"); err != nil {
			t.Error(err)
		}
		for name, value := range map[string]string{
			"Content-Type": "text/plain; charset=iso-8859-1", "Location": "/things/1", "ETag": `W/"\xff\x80"`, "Link": "<a>; rel=b",
			"Content-Language": "de", "Cache-Control": "no-store", "X-Account": "7",
			"Set-Cookie": "session=secret", "WWW-Authenticate": "Basic", "Proxy-Authenticate": "Basic", "X-Other": "1", "Retry-After": "9",
			"Idempotent-Replayed": "true",
		} {
			w.Header().Set(name, value)
		}
		w.Header().Add("Link", "<c>; rel=d")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Location", "too late")
		_, _ = w.Write([]byte{0, 0xff, '\n'})
		_, _ = w.Write([]byte("end"))
	})
	for _, method := range []string{"POST", "PATCH"} {
		first := b.send(method, "/things/"+method, "k-"+method, `{"a":1}`)
		again := b.send(method, "/things/"+method, "k-"+method, ` {"a" : 1.0} `)
		b.sameAs(first, again)
		if first.status != 201 || first.body != "\x00\xff\nend" || first.header.Get("Set-Cookie") == "" || first.header.Get("X-Other") == "" ||
			first.header.Get("Location") != "/things/1" {
			t.Errorf("first %d %q %v", first.status, first.body, first.header)
		}
		if again.header.Get("Etag") != `W/"\xff\x80"` || again.header.Get("X-Account") != "7" || len(again.header["Link"]) != 2 {
			t.Errorf("again %v", again.header)
		}
		for _, name := range []string{"Set-Cookie", "Www-Authenticate", "Proxy-Authenticate", "X-Other", "Retry-After"} {
			if again.header.Get(name) != "" {
				t.Errorf("the replay has %s", name)
			}
		}
	}
	b.holds(2, 2, 2)
}

func TestAnAnswerWithoutATypeHasTheSameOneEachTime(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>") })
	first := b.post("k1", "{}")
	b.sameAs(first, b.post("k1", "{}"))
	if got := first.header.Get("Content-Type"); got != "text/html; charset=utf-8" {
		t.Errorf("Content-Type %q", got)
	}
}

func TestAnswersWithoutABodyReplay(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		if _, err := w.Write([]byte("no")); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("a body with 204: %v", err)
		}
	})
	first := b.post("k1", "")
	b.sameAs(first, b.post("k1", ""))
	b.want(first, 204, "")
}

func TestARedirectIsAnAnswerLikeAnyOther(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "one"); err != nil {
			t.Error(err)
		}
		http.Redirect(w, r, "/things/1", http.StatusSeeOther)
	})
	first := b.post("k1", "")
	b.sameAs(first, b.post("k1", ""))
	b.want(first, 303, "")
	b.holds(1, 1, 1)
}

func TestBareAndQuotedAreTheSameKey(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	first := b.post(`a b"c\d`, "{}")
	b.want(first, 201, "")
	b.sameAs(first, b.post(`"a b\"c\\d"`, "{}"))
	b.holds(1, 1, 1)
}

func TestInvalidKeyIsRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	for name, c := range map[string]struct {
		values  []string
		problem string
	}{
		"none":                  {nil, "key-missing"},
		"empty":                 {[]string{""}, "key-invalid"},
		"empty, quoted":         {[]string{`""`}, "key-invalid"},
		"blank, quoted":         {[]string{`" "`}, "key-invalid"},
		"twice":                 {[]string{"a", "b"}, "key-invalid"},
		"twice the same":        {[]string{"a", "a"}, "key-invalid"},
		"a list":                {[]string{"a, b"}, "key-invalid"},
		"a quoted list":         {[]string{`"a", "b"`}, "key-invalid"},
		"an open quote":         {[]string{`"a`}, "key-invalid"},
		"something behind":      {[]string{`"a" b`}, "key-invalid"},
		"parameters":            {[]string{`"a";v=1`}, "key-invalid"},
		"a bad escape":          {[]string{`"a\n"`}, "key-invalid"},
		"space at an end":       {[]string{`"a "`}, "key-invalid"},
		"256 bytes":             {[]string{strings.Repeat("k", 256)}, "key-invalid"},
		"256 bytes, quoted":     {[]string{`"` + strings.Repeat("k", 256) + `"`}, "key-invalid"},
		"8 KiB":                 {[]string{strings.Repeat("k", 8<<10)}, "key-invalid"},
		"not ASCII":             {[]string{"k\xff"}, "key-invalid"},
		"UTF-8":                 {[]string{"ké"}, "key-invalid"},
		"a tab":                 {[]string{"a\tb"}, "key-invalid"},
		"not ASCII, but quoted": {[]string{"\"k\xff\""}, "key-invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := &bundle{t: t, db: b.db, url: b.url}
			got := sub.post("", "{}", func(r *http.Request) { r.Header["Idempotency-Key"] = c.values })
			sub.want(got, 400, c.problem)
			if !strings.Contains(got.body, "Idempotency-Key") && !strings.Contains(got.body, "send 1 to 255 bytes") {
				t.Errorf("it does not say what to do: %s", got.body)
			}
			if strings.Contains(got.body, "kkk") {
				t.Errorf("it quotes the key: %s", got.body)
			}
		})
	}
	b.holds(0, 0, 0)
	b.want(b.post(strings.Repeat("k", 255), "{}"), 201, "")
	b.want(b.post(`"`+strings.Repeat("k", 255)+`"`, "{}"), 201, "")
	b.holds(1, 1, 1)
}

func TestHeaderNameIsConfigurable(t *testing.T) {
	b := setup(t, httpkey.Options{Header: "x-request-key"}, created)
	got := b.post("k1", "{}")
	b.want(got, 400, "key-missing")
	if !strings.Contains(got.body, "X-Request-Key") {
		t.Errorf("%s", got.body)
	}
	first := b.post("", "{}", with("X-Request-Key", "k1"))
	b.sameAs(first, b.post("", "{}", with("X-Request-Key", "k1")))
	b.holds(1, 1, 1)
}

func TestOptionalKeyMissingMeansDoneEachTime(t *testing.T) {
	b := setup(t, httpkey.Options{Optional: true}, created)
	b.want(b.post("", "{}"), 201, "")
	b.want(b.post("", "{}"), 201, "")
	b.want(b.post("", "not JSON, which is the handler's to say"), 201, "")
	b.want(b.post("", "{}", also("Idempotency-Key", "a"), also("Idempotency-Key", "b")), 400, "key-invalid")
	b.want(b.post(`"a`, "{}"), 400, "key-invalid")
	b.want(b.post("", "{}", with("X-Tenant", "")), 500, "internal")
	b.holds(3, 3, 3)
	first := b.post("k1", "{}")
	b.sameAs(first, b.post("k1", "{}"))
}

func TestOtherMethodsPassUnchanged(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() == nil {
				t.Errorf("%s is in a transaction", r.Method)
			}
		}()
		w.WriteHeader(http.StatusAccepted)
		httpkey.Tx(r.Context())
	})
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} {
		for range 2 {
			if got := b.send(method, "/things", "k1", ""); got.status != http.StatusAccepted || got.replayed {
				t.Errorf("%s: %d %q", method, got.status, got.body)
			}
		}
		b.want(b.send(method, "/things", "", "", with("X-Tenant", "")), http.StatusAccepted, "")
	}
	b.holds(0, 0, 15)
}

func TestSecondRequestGets409WhileTheFirstRuns(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	open := b.barred()
	first := make(chan reply, 1)
	go func() { first <- b.post("k1", "{}") }()
	b.untilWaiting(1)
	for range 3 {
		second := b.post("k1", "{}")
		b.want(second, 409, "in-flight")
		if second.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After %q", second.header.Get("Retry-After"))
		}
	}
	b.want(b.post("k1", `{"other":1}`), 409, "in-flight") // the conflict shows when the first is done
	open()
	done := <-first
	b.want(done, 201, "")
	b.sameAs(done, b.post("k1", "{}"))
	b.want(b.post("k1", `{"other":1}`), 422, "key-reused")
	b.holds(1, 1, 1)
}

func TestTwentyAtTheSameMomentAreOneEffect(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	var clients sync.WaitGroup
	replies := make(chan reply, 20)
	for range 20 {
		clients.Go(func() { replies <- b.post("k1", "{}") })
	}
	clients.Wait()
	close(replies)
	last := b.post("k1", "{}")
	for r := range replies {
		if r.status == 409 {
			b.want(r, 409, "in-flight")
		} else if r.status != 201 || r.body != last.body {
			t.Errorf("answered %d %s, want 201 %s", r.status, r.body, last.body)
		}
	}
	b.holds(1, 1, 1)
}

func TestAKeyUsedWithAnotherRequestIsRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	first := b.send("POST", "/things/1?a=1&b=2", "k1", `{"n":9007199254740993,"s":"x"}`)
	b.want(first, 201, "")
	type request struct{ method, path, body, mediaType string }
	for name, r := range map[string]request{
		"another method":     {"PATCH", "/things/1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"another path value": {"POST", "/things/2?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"another route":      {"POST", "/other/1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"a dry run":          {"POST", "/things/1?a=1&b=2&dry=1", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"another parameter":  {"POST", "/things/1?a=1&b=3", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"another media type": {"POST", "/things/1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/x+json"},
		"another number":     {"POST", "/things/1?a=1&b=2", `{"n":9007199254740992,"s":"x"}`, "application/json"},
		"null for a member":  {"POST", "/things/1?a=1&b=2", `{"n":9007199254740993,"s":"x","t":null}`, "application/json"},
		"no body":            {"POST", "/things/1?a=1&b=2", "", "application/json"},
		"another version":    {"POST", "/things/1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json; version=2"},
		"another order":      {"POST", "/things/1?b=2&a=1", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"an escaped slash":   {"POST", "/things%2F1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := &bundle{t: t, url: b.url}
			sub.want(sub.send(r.method, r.path, "k1", r.body, with("Content-Type", r.mediaType)), 422, "key-reused")
		})
	}
	for name, r := range map[string]request{
		"members in another order": {"POST", "/things/1?a=1&b=2", `{ "s":"\u0078", "n":9007199254740993.0}`, "application/json"},
		"escaped parameters":       {"POST", "/things/1?%61=%31&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"an escaped path":          {"POST", "/thing%73/1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "application/json"},
		"a charset":                {"POST", "/things/1?a=1&b=2", `{"n":9007199254740993,"s":"x"}`, "Application/JSON; charset=utf-8"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := &bundle{t: t, url: b.url}
			sub.sameAs(first, sub.send(r.method, r.path, "k1", r.body, with("Content-Type", r.mediaType)))
		})
	}
	b.holds(1, 1, 1)
}

func TestFingerprintFunctionIgnoresChangingParts(t *testing.T) {
	b := setup(t, httpkey.Options{Fingerprint: exceptSentAt}, created)
	first := b.post("k1", `{"n":1,"sent_at":"12:00"}`)
	b.sameAs(first, b.post("k1", `{"n":1,"sent_at":"12:01"}`))
	b.want(b.post("k1", `{"n":2,"sent_at":"12:00"}`), 422, "key-reused")
	b.want(b.send("POST", "/elsewhere", "k1", `{"n":1}`), 422, "key-reused")
	b.want(b.post("k2", "tea"), 400, "body-invalid")
	b.holds(1, 1, 1)
}

func TestTheSameKeyOfAnotherPrincipalIsAnother(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	b.want(b.post("k1", "{}"), 201, "")
	got := b.post("k1", `{"other":1}`, with("X-Tenant", "globex"))
	b.want(got, 201, "")
	b.holds(2, 2, 2)
}

func TestWithoutAPrincipalNothingIsDone(t *testing.T) {
	for name, scope := range map[string][]string{"no principal": {"", "op"}, "one part": {"op"}, "nothing": nil, "no operation": {"acme", ""}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, httpkey.Options{Scope: func(*http.Request) []string { return scope }}, created)
			b.want(b.post("k1", "{}"), 500, "internal")
			b.holds(0, 0, 0)
			if !strings.Contains(b.log.String(), "principal") {
				t.Errorf("the log does not say why: %s", b.log)
			}
		})
	}
}

func TestAReplayIsAuthorizedAgain(t *testing.T) {
	b := setup(t, httpkey.Options{Authorize: func(r *http.Request) bool { return r.Header.Get("X-Role") == "buyer" }}, created)
	first := b.post("k1", "{}") // the handler's own affair
	b.want(first, 201, "")
	refused := b.post("k1", "{}")
	b.want(refused, 403, "replay-forbidden")
	if refused.replayed || strings.Contains(refused.body, `"id"`) {
		t.Errorf("the answer got out: %v %s", refused.header, refused.body)
	}
	b.sameAs(first, b.post("k1", "{}", with("X-Role", "buyer")))
	b.holds(1, 1, 1)
}

func TestMiddlewareTwiceIsRefused(t *testing.T) {
	var inner func(http.Handler) http.Handler
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		inner(http.HandlerFunc(created)).ServeHTTP(w, r)
	})
	again, err := httpkey.New(b.db.Pool, httpkey.Options{
		Scope:  func(*http.Request) []string { return []string{"a", "b"} },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	inner = again.Handler
	b.want(b.post("k1", "{}"), 500, "internal")
	b.holds(0, 0, 1)
}

func TestNewNamesEverythingThatIsWrong(t *testing.T) {
	_, err := httpkey.New(nil, httpkey.Options{
		Header: "a b", Retain: 1, Timeout: -1, MaxBody: -1, MaxAnswer: 2 << 20, Isolation: "so so",
		ReplayHeaders: []string{"set-cookie", "WWW-Authenticate", "a:b"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"pool", "Scope", "Header", "Retain", "Isolation", "Timeout", "MaxBody", "MaxAnswer", "Set-Cookie", "Www-Authenticate", `"a:b"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not named in: %v", part, err)
		}
	}
	if _, err := httpkey.New(new(pgxpool.Pool), httpkey.Options{Scope: func(*http.Request) []string { return nil }}); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

func TestTxPanicsOutsideTheMiddleware(t *testing.T) {
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "Middleware.Handler") {
			t.Errorf("panic %q", text)
		}
	}()
	httpkey.Tx(httptest.NewRequest("POST", "/", nil).Context())
}
