package httpkey_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// A redirect that keeps the method sends the same request elsewhere: as an answer of its own it would make the request
// there a second one under a used key.
func TestAMuxRedirectDoesNotUseUpTheKey(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/", created)
	b := setup(t, httpkey.Options{}, mux.ServeHTTP)
	first := b.send("POST", "/orders", "k1", "{}")
	if first.status != 307 || first.header.Get("Location") != "/orders/" {
		t.Fatalf("the mux answered %d %v", first.status, first.header)
	}
	b.holds(0, 0, 1)
	done := b.send("POST", "/orders/", "k1", "{}")
	b.want(done, 201, "")
	b.sameAs(done, b.send("POST", "/orders/", "k1", "{}"))
	b.holds(1, 1, 2)
}

func TestARoutersOwnAnswerDoesNotUseUpTheKey(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", created)
	mux.HandleFunc("PUT /seats", created)
	mux.Handle("POST /moved", http.RedirectHandler("/orders", http.StatusMovedPermanently))
	b := setup(t, httpkey.Options{}, mux.ServeHTTP)
	for path, status := range map[string]int{"/ordres": 404, "/seats": 405, "/moved": 301} {
		if got := b.send("POST", path, "k"+path, "{}"); got.status != status {
			t.Errorf("%s: answered %d", path, got.status)
		}
		b.want(b.send("POST", "/orders", "k"+path, "{}"), 201, "")
	}
	b.holds(3, 3, 6)
}

func TestARedirectOfTheRequestCommitsNothing(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		httpkey.Keep(r.Context())
		if err := effect(r, "half"); err != nil {
			t.Error(err)
		}
		status, _ := strconv.Atoi(r.URL.Path[1:])
		http.Redirect(w, r, "/elsewhere", status)
	})
	for _, status := range []int{307, 308} {
		for range 2 {
			got := b.send("POST", fmt.Sprint("/", status), "k1", "")
			if got.status != status || got.header.Get("Location") != "/elsewhere" || got.replayed {
				t.Errorf("answered %d %v", got.status, got.header)
			}
		}
	}
	b.holds(0, 0, 4)
	if !strings.Contains(b.log.String(), "rolled back") {
		t.Errorf("the log does not say that it was rolled back: %s", b.log)
	}
}

// The second run sees what the first one's router left in the context.
func TestMisledSecondCallIsNotTheAnswer(t *testing.T) {
	var b *bundle
	b = setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch b.ran.Load() {
		case 1:
			_, err := httpkey.Tx(r.Context()).Exec(r.Context(), "do $$ begin raise exception 'collided' using errcode = '40001'; end $$")
			httpkey.Abort(r.Context(), err)
		case 2:
			w.WriteHeader(http.StatusGone)
		default:
			created(w, r)
		}
	})
	got := b.post("k1", "{}")
	b.want(got, 503, "unavailable")
	b.holds(0, 0, 2)
	if !strings.Contains(b.log.String(), "called again") {
		t.Errorf("the log does not say why: %s", b.log)
	}
	b.want(b.post("k1", "{}"), 201, "")
	b.holds(1, 1, 3)
}

func TestAFailureMustHaveTheStatusOfAnError(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Path[1:])
		httpkey.Abort(r.Context(), fmt.Errorf("insert: %w", processed.Fail(code, "no")))
	})
	for _, code := range []int{-1, 0, 1, 99, 100, 200, 303, 399, 600, 1000, 100000} {
		for range 2 {
			b.want(b.send("POST", fmt.Sprint("/", code), fmt.Sprint("k", code), ""), 500, "internal")
		}
		if want := fmt.Sprintf("code %d", code); !strings.Contains(b.log.String(), want) {
			t.Errorf("the log does not name the code %d: %s", code, b.log)
		}
	}
	b.holds(0, 0, 22)
	for _, code := range []int{400, 402, 599} {
		first := b.send("POST", fmt.Sprint("/", code), fmt.Sprint("k", code), "")
		b.want(first, code, "")
		b.sameAs(first, b.send("POST", fmt.Sprint("/", code), fmt.Sprint("k", code), ""))
	}
	b.holds(0, 3, 25)
}

// For the race detector: the handler of http.TimeoutHandler runs on.
func TestALateAbortDoesNotReachTheAnswer(t *testing.T) {
	late := make(chan struct{})
	released := make(chan struct{})
	b := setup(t, httpkey.Options{}, http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(late)
		ctx := context.WithoutCancel(r.Context())
		<-r.Context().Done()
		for range 100 {
			httpkey.Abort(ctx, errMine)
			httpkey.Keep(ctx)
			httpkey.Discard(ctx)
		}
		<-released
		httpkey.Keep(ctx)
		if _, err := httpkey.Tx(ctx).Exec(ctx, "insert into effects (note) values ('late')"); err == nil {
			t.Error("the late statement found its transaction")
		}
	}), 50*time.Millisecond, "given up").ServeHTTP)
	if got := b.post("k1", "{}"); got.status != 503 && got.status != 500 {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	close(released)
	<-late
	b.holds(0, 0, 1)
	if !strings.Contains(b.log.String(), "after the middleware") {
		t.Errorf("the log does not say that the handler came late: %s", b.log)
	}
}

func TestSlowUploadIs408(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, created, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Slow") != "" { // what Server.ReadTimeout sets
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			}
			next.ServeHTTP(w, r)
		})
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /things HTTP/1.1\r\nHost: x\r\nX-Tenant: acme\r\nX-Slow: 1\r\nIdempotency-Key: k1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{}")
	answer, _ := io.ReadAll(conn)
	if !bytes.Contains(answer, []byte("HTTP/1.1 408")) || !bytes.Contains(answer, []byte("body-incomplete")) {
		t.Errorf("answered %s", answer)
	}
	b.holds(0, 0, 0)
}

func TestAnEmptyChunkedDocumentIsTheCallersFault(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	got := b.post("k1", "", func(r *http.Request) { r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader("")) })
	b.want(got, 400, "body-invalid")
	if !strings.Contains(got.body, "empty") {
		t.Errorf("%s", got.body)
	}
	b.holds(0, 0, 0)
}

// compressed is a middleware of the usual kind.
func compressed(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		zipped := gzip.NewWriter(w)
		defer zipped.Close()
		next(zippedAnswer{w, zipped}, r)
	}
}

type zippedAnswer struct {
	http.ResponseWriter
	zipped io.Writer
}

func (a zippedAnswer) Write(p []byte) (int, error) { return a.zipped.Write(p) }

func TestAnAnswerIsStoredUncompressed(t *testing.T) {
	b := setup(t, httpkey.Options{}, compressed(created))
	first := b.post("k1", "{}", with("Accept-Encoding", "gzip"))
	b.want(first, 201, "")
	b.sameAs(first, b.post("k1", "{}", with("Accept-Encoding", "identity")))
	if first.header.Get("Content-Encoding") != "" {
		t.Errorf("first %v", first.header)
	}
	b.holds(1, 1, 1)
}

func TestContentEncodingIsRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "one"); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Encoding", r.URL.Path[1:])
		w.WriteHeader(http.StatusCreated)
	})
	for _, encoding := range []string{"gzip", "br"} {
		b.want(b.send("POST", "/"+encoding, "k1", ""), 500, "internal")
	}
	if !strings.Contains(b.log.String(), "Content-Encoding") {
		t.Errorf("the log does not say why: %s", b.log)
	}
	b.holds(0, 0, 2)
	first := b.send("POST", "/identity", "k1", "")
	b.want(first, 201, "")
	b.sameAs(first, b.send("POST", "/identity", "k1", ""))
}

func TestAReplayHasTheHeadersThatDescribeItsBody(t *testing.T) {
	b := setupOn(t, httpkey.Options{}, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Disposition", `attachment; filename="a.pdf"`)
		w.Header().Set("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
		w.Header().Add("Vary", "accept-language, Origin")
		w.Header().Set("Access-Control-Expose-Headers", "Location")
		w.WriteHeader(http.StatusCreated)
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as a CORS middleware does
			w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
			w.Header().Add("Vary", "Origin")
			next.ServeHTTP(w, r)
		})
	})
	b.want(b.post("k1", "{}", with("Origin", "https://a.test")), 201, "")
	again := b.post("k1", "{}", with("Origin", "https://b.test"))
	if !again.replayed || again.header.Get("Content-Disposition") == "" || again.header.Get("Last-Modified") == "" {
		t.Errorf("again %v", again.header)
	}
	if got := again.header.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != "https://b.test" {
		t.Errorf("the replay is for the origin %q", got)
	}
	if again.header.Get("Access-Control-Expose-Headers") != "" {
		t.Errorf("again %v", again.header)
	}
	if vary := strings.ToLower(strings.Join(again.header.Values("Vary"), ",")); strings.Count(vary, "origin") != 1 || !strings.Contains(vary, "accept-language") {
		t.Errorf("Vary: %q", vary)
	}
	if _, err := httpkey.New(b.db.Pool, httpkey.Options{
		Scope: func(*http.Request) []string { return nil }, ReplayHeaders: []string{"access-control-allow-origin"},
	}); err == nil || !strings.Contains(err.Error(), "Access-Control-Allow-Origin") {
		t.Errorf("ReplayHeaders: %v", err)
	}
}

func TestAConditionIsPartOfTheRequest(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	plain := b.send("PATCH", "/plain", "k0", "{}")
	b.want(plain, 201, "")
	for _, name := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		path, key := "/"+name, "k"+name
		first := b.send("PATCH", path, key, "{}", with(name, `"v1"`))
		b.want(first, 201, "")
		b.sameAs(first, b.send("PATCH", path, key, "{}", with(name, `"v1"`)))
		b.want(b.send("PATCH", path, key, "{}", with(name, `"v2"`)), 422, "key-reused")
		b.want(b.send("PATCH", path, key, "{}"), 422, "key-reused")
		b.want(b.send("PATCH", "/plain", "k0", "{}", with(name, `"v1"`)), 422, "key-reused")
	}
	b.holds(5, 5, 5)
}

func TestAHugeAnswerDoesNotFillTheMemory(t *testing.T) {
	const size = 256 << 20
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "huge"); err != nil {
			t.Error(err)
		}
		part := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
		for range size / len(part) {
			if _, err := w.Write(part); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	req, err := http.NewRequestWithContext(t.Context(), "POST", b.url+"/huge", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Tenant", "acme")
	req.Header.Set("Idempotency-Key", "k1")
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	runtime.ReadMemStats(&after)
	if err != nil || got != size || res.ContentLength != size {
		t.Errorf("%d of %d bytes came: %v", got, size, err)
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
		t.Errorf("it took %d MB of memory", took)
	}
	again := b.send("POST", "/huge", "k1", "", func(r *http.Request) { r.Header.Del("Content-Type") })
	b.want(again, 200, "answer-not-kept")
	b.holds(1, 1, 1)
}

// chiContext stands for the state that chi's routers keep in the context.
type chiContext struct {
	RoutePath     string
	RoutePatterns []string
}

func (c *chiContext) RoutePattern() string { return strings.Join(c.RoutePatterns, "") }
func (c *chiContext) Reset()               { *c = chiContext{} }

type chiKey struct{}

func TestEachRunStartsWithTheRoutersFirstState(t *testing.T) {
	var b *bundle
	pattern := make(chan string, 1)
	b = setupOn(t, httpkey.Options{}, nil, func(w http.ResponseWriter, r *http.Request) {
		state := r.Context().Value(chiKey{}).(*chiContext)
		if state.RoutePath != "/v1/things" || len(state.RoutePatterns) != 1 || r.Context().Value(chiKey{}) != state {
			t.Errorf("run %d found %+v", b.ran.Load(), *state)
		}
		state.RoutePath = "/things"
		state.RoutePatterns = append(state.RoutePatterns, fmt.Sprint("/", b.ran.Load()))
		if b.ran.Load() == 1 {
			_, err := httpkey.Tx(r.Context()).Exec(r.Context(), "do $$ begin raise exception 'collided' using errcode = '40001'; end $$")
			httpkey.Abort(r.Context(), err)
			return
		}
		created(w, r)
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			state := &chiContext{RoutePath: "/v1/things", RoutePatterns: append(make([]string, 0, 4), "/v1")}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chiKey{}, state)))
			pattern <- state.RoutePattern()
		})
	})
	b.want(b.post("k1", "{}"), 201, "")
	if got := <-pattern; got != "/v1/2" { // read by an outer log
		t.Errorf("the pattern is %s", got)
	}
	b.holds(1, 1, 2)
}

func TestFailedTemporaryFileCommitsNothing(t *testing.T) {
	b := setup(t, httpkey.Options{MaxAnswer: 100}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "large"); err != nil {
			t.Error(err)
		}
		for range 3 {
			_, _ = w.Write(make([]byte, 99))
		}
	})
	directory := t.TempDir()
	t.Setenv("TMPDIR", directory+"/missing")
	b.want(b.post("k1", "{}"), 500, "internal")
	b.holds(0, 0, 1)
	if !strings.Contains(b.log.String(), "temporary file") {
		t.Errorf("the log does not say why: %s", b.log)
	}
	t.Setenv("TMPDIR", directory)
	if got := b.post("k1", "{}"); got.status != 200 || len(got.body) != 297 {
		t.Errorf("answered %d with %d bytes", got.status, len(got.body))
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestFailureCodeThatIsNoStatusDoesNotReplay(t *testing.T) {
	raw := func(_ *http.Request, body []byte) (samekey.Fingerprint, error) {
		return samekey.FingerprintBytes(body), nil
	}
	b := setup(t, httpkey.Options{Fingerprint: raw}, created)
	for i, code := range []int{0, 7, 200, 302, 600} {
		key, err := samekey.NewKey(fmt.Sprint("k", i), "acme", "things.create")
		if err != nil {
			t.Fatal(err)
		}
		_, err = processed.Run(t.Context(), b.db.Pool, processed.Request{Key: key, Payload: samekey.FingerprintBytes([]byte("{}"))},
			func(context.Context, pgx.Tx) (int, error) { return 0, processed.Fail(code, "no") })
		if failed := (*processed.Failure)(nil); !errors.As(err, &failed) {
			t.Fatal(err)
		}
		b.want(b.post(fmt.Sprint("k", i), "{}"), 500, "internal")
	}
	b.holds(0, 5, 0)
}
