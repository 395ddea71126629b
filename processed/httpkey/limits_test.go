package httpkey_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/processed/httpkey"
)

func TestABodyOverTheLimitIsRefusedBeforeTheHandler(t *testing.T) {
	b := setup(t, httpkey.Options{MaxBody: 100}, created)
	fits, over := `"`+strings.Repeat("a", 98)+`"`, `"`+strings.Repeat("a", 99)+`"`
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	b.want(b.post("k1", over), 413, "body-too-large")
	b.want(b.post("k1", over, chunked), 413, "body-too-large")
	b.holds(0, 0, 0)
	first := b.post("k1", fits)
	b.want(first, 201, "")
	b.sameAs(first, b.post("k1", fits, chunked))
	b.holds(1, 1, 1)
}

func TestIncompleteBodyIsRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /things HTTP/1.1\r\nHost: x\r\nX-Tenant: acme\r\nIdempotency-Key: k1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{}")
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(conn)
	if !bytes.Contains(answer, []byte("HTTP/1.1 408")) || !bytes.Contains(answer, []byte("body-incomplete")) {
		t.Errorf("answered %s", answer)
	}
	b.holds(0, 0, 0)
}

func TestBodyWithoutSingleMeaningIsRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	for body, say := range map[string]string{
		`{"a":1,"a":2}`:                "twice at offset 7",
		`{"a":1`:                       "is incomplete",
		`{"a":1} {"b":2}`:              "after the document",
		`1,"type":"x"`:                 "after the document",
		`1,"x":2`:                      "after the document",
		`"\ud800"`:                     "surrogate at offset 1",
		"\"\xff\"":                     "UTF-8 at offset 1",
		`[1e99999]`:                    "exponent",
		`tea`:                          "not valid JSON at offset",
		` `:                            "is empty",
		strings.Repeat("[", 101) + "1": "",
	} {
		got := b.post("k1", body)
		b.want(got, 400, "body-invalid")
		if !strings.Contains(got.body, say) {
			t.Errorf("%s: answered %s, want %q", body, got.body, say)
		}
	}
	b.want(b.post("k1", "tea", with("Content-Type", "multipart/form-data; boundary=x")), 400, "body-invalid")
	b.want(b.post("k1", "tea", with("Content-Type", "multipart/form-data")), 400, "body-invalid")
	b.holds(0, 0, 0)
	b.want(b.post("k1", "tea", with("Content-Type", "text/plain")), 201, "")
	b.want(b.post("k2", "tea", with("Content-Encoding", "gzip")), 201, "") // the handler's affair
	b.want(b.post("k3", "", nothing), 201, "")
	b.holds(3, 3, 3)
}

func nothing(*http.Request) {}

func TestAFormSentAgainWithAnotherBoundaryIsTheSame(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("a") != "1" {
			t.Errorf("a=%q", r.FormValue("a"))
		}
		created(w, r)
	})
	form := func(boundary, file string) (string, change) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		_ = w.SetBoundary(boundary)
		_ = w.WriteField("a", "1")
		part, _ := w.CreateFormFile("f", "\xff.txt")
		_, _ = io.WriteString(part, file)
		_ = w.Close()
		return body.String(), with("Content-Type", w.FormDataContentType())
	}
	body, kind := form("one", "text")
	first := b.post("k1", body, kind)
	b.want(first, 201, "")
	body, kind = form("two", "text")
	b.sameAs(first, b.post("k1", body, kind))
	body, kind = form("two", "other")
	b.want(b.post("k1", body, kind), 422, "key-reused")

	// By its bytes: who says form may mean JSON.
	urlencoded := with("Content-Type", "application/x-www-form-urlencoded")
	first = b.post("k2", "a=1&b=+2", urlencoded)
	b.want(first, 201, "")
	b.sameAs(first, b.post("k2", "a=1&b=+2", urlencoded))
	b.want(b.post("k2", "a=1&b=%202", urlencoded), 422, "key-reused")
	b.want(b.post("k2", "b=+2&a=1", urlencoded), 422, "key-reused")
}

func TestAnswerOverTheLimitIsSentOnce(t *testing.T) {
	const limit = 1000
	b := setup(t, httpkey.Options{MaxAnswer: limit}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "large"); err != nil {
			t.Error(err)
		}
		size := limit
		if r.URL.Path != "/fits" {
			size++
		}
		w.Header().Set("Location", "/things/1")
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("ETag", `"1"`)
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusGone)
		} else {
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", size))
	})
	fits := b.send("POST", "/fits", "k0", "")
	b.sameAs(fits, b.send("POST", "/fits", "k0", ""))
	b.holds(1, 1, 1)

	first := b.send("POST", "/over", "k1", "")
	if first.status != 201 || len(first.body) != limit+1 || first.replayed {
		t.Errorf("the first: %d, %d bytes", first.status, len(first.body))
	}
	for range 2 {
		again := b.send("POST", "/over", "k1", "")
		b.want(again, 201, "answer-not-kept")
		if !again.replayed || again.header.Get("Location") != "/things/1" || again.header.Get("Etag") != "" ||
			strings.Contains(strings.Join(keys(again.header), " "), "Samekey") {
			t.Errorf("again: %v", again.header)
		}
	}
	b.holds(2, 2, 2)
	b.want(b.send("POST", "/over", "k1", "", with("Content-Type", "text/plain")), 422, "key-reused")

	b.want(b.send("POST", "/gone", "k2", ""), 410, "")
	b.want(b.send("POST", "/gone", "k2", ""), 410, "answer-not-kept")
	b.holds(2, 3, 3)
}

func keys(header http.Header) (names []string) {
	for name := range header {
		names = append(names, name)
	}
	return names
}

func TestHeadersOverTheLimitAreNotStored(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "large"); err != nil {
			t.Error(err)
		}
		w.Header().Set("Link", strings.Repeat("l", 70<<10))
		if r.URL.Path == "/location" {
			w.Header().Set("Location", strings.Repeat("l", 70<<10))
		}
		w.WriteHeader(http.StatusCreated)
	})
	for _, path := range []string{"/link", "/location"} {
		b.want(b.send("POST", path, "k"+path, ""), 201, "")
		b.want(b.send("POST", path, "k"+path, ""), 201, "answer-not-kept")
	}
	b.holds(2, 2, 2)
}

func TestTheLargestAnswerIsKept(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte{0xff, 0}, 1<<19))
	})
	first := b.post("k1", "{}")
	b.sameAs(first, b.post("k1", "{}"))
	if len(first.body) != 1<<20 {
		t.Errorf("%d bytes", len(first.body))
	}
}

func TestDisconnectDoesNotStopTheRecording(t *testing.T) {
	gone := make(chan struct{})
	b := setupOn(t, httpkey.Options{}, nil, func(w http.ResponseWriter, r *http.Request) {
		<-gone
		created(w, r)
		if r.Context().Err() != nil {
			t.Errorf("the handler's context ended: %v", r.Context().Err())
		}
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stop := context.AfterFunc(r.Context(), func() { close(gone) })
			defer stop()
			next.ServeHTTP(w, r)
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := b.try(ctx, "POST", "/things", "k1", "{}")
		failed <- err
	}()
	for b.ran.Load() == 0 {
		time.Sleep(time.Millisecond) // the handler signals nothing before it waits
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("the client: %v", err)
	}
	var again reply
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if again = b.post("k1", "{}"); again.status != http.StatusConflict {
			break
		}
	}
	if again.status != 201 || !again.replayed {
		t.Errorf("again: %d %s, replayed %t", again.status, again.body, again.replayed)
	}
	b.holds(1, 1, 1)
}

// until waits for the end of the handler's context.
func until(t *testing.T, w http.ResponseWriter, r *http.Request) {
	if err := effect(r, "half"); err != nil {
		t.Error(err)
	}
	select {
	case <-r.Context().Done():
	case <-time.After(20 * time.Second):
		t.Error("the context did not end")
	}
	w.WriteHeader(http.StatusCreated) // as a handler does that does not look
}

func TestCancelledRequestIsRolledBackAndForgotten(t *testing.T) {
	for name, outer := range map[string]func(http.Handler) http.Handler{
		"by the timeout": nil,
		"by a deadline further out": func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
				defer cancel()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		},
		"with a cause": func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithCancelCause(r.Context())
				timer := time.AfterFunc(100*time.Millisecond, func() { cancel(errMine) })
				defer timer.Stop()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := httpkey.Options{}
			if outer == nil {
				o.Timeout = 100 * time.Millisecond
			}
			b := setupOn(t, o, nil, func(w http.ResponseWriter, r *http.Request) { until(t, w, r) }, outer)
			b.want(b.post("k1", "{}"), 503, "unavailable")
			b.holds(0, 0, int(b.ran.Load())) // on a slow machine the time may be up before the handler is called
		})
	}
}

func TestStreamingIsRefused(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "one"); err != nil {
			t.Error(err)
		}
		if _, ok := w.(http.Flusher); ok {
			t.Error("the answer offers to flush")
		}
		control := http.NewResponseController(w)
		if err := control.Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush: %v", err)
		}
		if _, _, err := control.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack: %v", err)
		}
		switch r.URL.Path {
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
		case "/late":
			defer w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
		case "/switch":
			w.WriteHeader(http.StatusSwitchingProtocols)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "whole")
	})
	for _, path := range []string{"/trailer", "/late", "/switch"} {
		b.want(b.send("POST", path, "k"+path, ""), 500, "internal")
	}
	b.holds(0, 0, 3)
	for _, path := range []string{"/flush", "/hints"} {
		first := b.send("POST", path, "k"+path, "")
		b.want(first, 201, "")
		b.sameAs(first, b.send("POST", path, "k"+path, ""))
	}
	b.want(b.post("k1", "{}", func(r *http.Request) { r.ContentLength, r.Trailer = -1, http.Header{"X-Sum": {"1"}} }), 400, "body-invalid")
	b.holds(2, 2, 5)
}

func TestBodyThatWasReadBeforeIsAnError(t *testing.T) {
	reader := func(read func(*http.Request)) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(r)
				next.ServeHTTP(w, r)
			})
		}
	}
	form := with("Content-Type", "application/x-www-form-urlencoded")
	for name, c := range map[string]struct {
		read    func(*http.Request)
		changes []change
	}{
		"a form":          {func(r *http.Request) { _ = r.ParseForm() }, []change{form}},
		"a chunked form":  {func(r *http.Request) { _ = r.ParseForm() }, []change{form, func(r *http.Request) { r.ContentLength = -1 }}},
		"the whole of it": {func(r *http.Request) { _, _ = io.ReadAll(r.Body) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupOn(t, httpkey.Options{}, nil, created, reader(c.read))
			b.want(b.post("k1", "a=1", c.changes...), 500, "internal")
			b.holds(0, 0, 0)
			if !strings.Contains(b.log.String(), "has read the request's body") {
				t.Errorf("logged %s", b.log)
			}
		})
	}
	b := setupOn(t, httpkey.Options{}, nil, created, reader(func(r *http.Request) { _ = r.FormValue("a") }))
	b.want(b.send("POST", "/things?a=1", "k1", "{}"), 201, "") // of the query
}

func TestProblemFormIsConfigurable(t *testing.T) {
	b := setup(t, httpkey.Options{Problem: func(w http.ResponseWriter, r *http.Request, p httpkey.Problem) {
		w.WriteHeader(p.Status)
		fmt.Fprintf(w, "mine: %s, %s", p.Code, p.Type)
	}}, created)
	got := b.post("", "{}")
	if got.status != 400 || got.body != "mine: key-missing, https://github.com/samekey/samekey/blob/main/docs/callers.md#key-missing" {
		t.Errorf("answered %d %s", got.status, got.body)
	}
}
