package httpkey_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// What stands around the middleware, and what handlers do to what they get.

func TestOneMiddlewareUnderTwoPrefixesSeesTwoRequests(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, created, func(next http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/live/", http.StripPrefix("/live", next))
		mux.Handle("/test/", http.StripPrefix("/test", next))
		return mux
	})
	b.want(b.send("POST", "/live/orders", "k1", "{}"), 201, "")
	b.want(b.send("POST", "/test/orders", "k1", "{}"), 422, "key-reused")
	b.holds(1, 1, 1)
}

func TestJSONSentAsAFormIsComparedByBytes(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	form := with("Content-Type", "application/x-www-form-urlencoded") // as curl -d has it
	for i, pair := range [][2]string{
		{`{"note":"+491234"}`, `{"note":" 491234"}`}, {`{"note":"a&b&c"}`, `{"note":"a&c&b"}`}, {`{"note":"%41"}`, `{"note":"A"}`},
	} {
		key := fmt.Sprint("k", i)
		b.want(b.post(key, pair[0], form), 201, "")
		b.want(b.post(key, pair[1], form), 422, "key-reused")
	}
}

func TestNextCallGetsTheRequestUnchanged(t *testing.T) {
	var b *bundle
	b = setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = "/v1" + r.URL.Path
		r.Header.Add("X-Seen", "once")
		if b.ran.Load() == 1 {
			_, err := httpkey.Tx(r.Context()).Exec(r.Context(), "do $$ begin raise exception 'collided' using errcode = '40001'; end $$")
			httpkey.Abort(r.Context(), err)
			return
		}
		if r.URL.Path != "/v1/things" || len(r.Header["X-Seen"]) != 1 || r.ContentLength != 2 {
			t.Errorf("the second run got %s %v %d", r.URL.Path, r.Header, r.ContentLength)
		}
		created(w, r)
	})
	b.want(b.post("k1", "{}"), 201, "")
	b.holds(1, 1, 2)
}

func TestNilDoesNotUndoAbort(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		httpkey.Abort(r.Context(), errMine)
		created(w, r)
		httpkey.Abort(r.Context(), nil)
	})
	b.want(b.post("k1", "{}"), 500, "internal")
	b.holds(0, 0, 1)
}

func TestHeadersReplayUnchangedOrAreRefusedAtOnce(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, r.URL.Path); err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/spelling":
			w.Header()["ETag"] = []string{`"v1"`}
		case "/untyped":
			w.Header()["Content-Type"] = nil
		case "/control":
			w.Header().Set("Location", "/a\x01b")
		}
		_, _ = io.WriteString(w, "<html>")
	})
	for _, path := range []string{"/spelling", "/untyped"} {
		first := b.send("POST", path, "k"+path, "")
		b.sameAs(first, b.send("POST", path, "k"+path, ""))
		if typed := first.header.Get("Content-Type") != ""; typed != (path == "/spelling") {
			t.Errorf("%s: %v", path, first.header)
		}
	}
	b.holds(2, 2, 2)
	b.want(b.send("POST", "/control", "k1", ""), 500, "internal")
	b.holds(2, 2, 3)
}

func TestOuterHeadersAreNotSentTwice(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("X-Frame-Options")
		created(w, r)
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Frame-Options", "DENY")
			w.Header().Add("Vary", "Origin")
			next.ServeHTTP(w, r)
		})
	})
	first := b.post("k1", "{}")
	if first.header.Get("X-Frame-Options") != "" || len(first.header["Vary"]) != 1 {
		t.Errorf("%v", first.header)
	}
	if again := b.post("k1", "{}"); again.header.Get("X-Frame-Options") != "DENY" || len(again.header["Vary"]) != 1 {
		t.Errorf("%v", again.header) // what stands around a replay is not the handler's
	}
}

func TestBodyDecompressedByOuterHandlerIsAccepted(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, created, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			plain, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(plain)
			next.ServeHTTP(w, r)
		})
	})
	var body bytes.Buffer
	compressed := gzip.NewWriter(&body)
	_, _ = compressed.Write([]byte("{}"))
	_ = compressed.Close()
	b.want(b.post("k1", body.String(), with("Content-Encoding", "gzip")), 201, "")
}

func TestChunkedBodyThatWasReadBeforeIsAnError(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, created, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var value any
			_ = json.NewDecoder(r.Body).Decode(&value)
			next.ServeHTTP(w, r)
		})
	})
	b.want(b.post("k1", `{"n":1}`, func(r *http.Request) { r.ContentLength = -1 }), 400, "body-invalid")
	b.holds(0, 0, 0)
	if !strings.Contains(b.log.String(), "has read it") {
		t.Errorf("logged %s", b.log)
	}
}

func TestOuterBodyLimitIsNamed(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, created, func(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 10) })
	got := b.post("k1", `{"note":"0123456789"}`)
	b.want(got, 413, "body-too-large")
	if !strings.Contains(got.body, "10 bytes") {
		t.Errorf("%s", got.body)
	}
}

func TestTrailersThatWereNotAnnouncedAreRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-Tenant: acme\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"+
		"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\nX-Amount: 5\r\n\r\n")
	if answer, _ := io.ReadAll(conn); !bytes.Contains(answer, []byte("body-invalid")) {
		t.Errorf("%s", answer)
	}
	b.holds(0, 0, 0)
}

func TestHandlerThatTimesOutCommitsNothing(t *testing.T) {
	released := make(chan struct{})
	late := make(chan error, 1)
	b := setup(t, httpkey.Options{}, http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithoutCancel(r.Context())
		tx := httpkey.Tx(ctx)
		_, _ = tx.Exec(ctx, "insert into effects (note) values ('in time')")
		<-released
		_, err := tx.Exec(ctx, "insert into effects (note) values ('late')")
		late <- err
		w.WriteHeader(http.StatusCreated)
	}), 50*time.Millisecond, "given up").ServeHTTP)
	if got := b.post("k1", "{}"); got.status != 503 || got.body != "given up" {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	close(released)
	if err := <-late; err == nil {
		t.Error("the late statement found its transaction")
	}
	b.holds(0, 0, 1)
}

func TestReplaysOverHTTP2(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	b.close()
	keyed, err := httpkey.New(b.db.Pool, httpkey.Options{
		Scope: func(*http.Request) []string { return []string{"acme", "things.create"} }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(keyed.Handler(http.HandlerFunc(created)))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var answers []string
	for range 2 {
		req, err := http.NewRequest("POST", server.URL+"/things", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", `"k1"`)
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		answers = append(answers, fmt.Sprintln(res.Proto, res.StatusCode, string(body)))
	}
	if answers[0] != answers[1] || !strings.HasPrefix(answers[0], "HTTP/2.0 201") {
		t.Errorf("%q", answers)
	}
	b.holds(1, 1, 0)
}

func TestRetryableErrorBecomes503(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		httpkey.Abort(r.Context(), fmt.Errorf("ask: %w", processed.ErrInFlight)) // of another request
	})
	b.want(b.post("k1", "{}"), 503, "unavailable")
}
