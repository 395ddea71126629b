package httpkey_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/processed/httpkey"
)

func TestOtherMethodsTakeAKeyWhereTheyAreNamed(t *testing.T) {
	b := setup(t, httpkey.Options{Methods: []string{"PUT", "DELETE"}}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		created(w, r)
	})
	for _, method := range []string{"PUT", "DELETE"} {
		first := b.send(method, "/things/"+method, "k-"+method, "{}")
		b.want(first, 201, "")
		b.sameAs(first, b.send(method, "/things/"+method, "k-"+method, "{}"))
		b.want(b.send(method, "/things/1", "", "{}"), 400, "key-missing")
	}
	if got := b.post("k1", "{}"); got.status != http.StatusAccepted {
		t.Errorf("POST: answered %d %s", got.status, got.body)
	}
	b.holds(2, 2, 3)
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "", "P UT"} {
		_, err := httpkey.New(b.db.Pool, httpkey.Options{Methods: []string{method}, Scope: func(*http.Request) []string { return nil }})
		if err == nil || !strings.Contains(err.Error(), "Methods") {
			t.Errorf("%q is taken: %v", method, err)
		}
	}
}

func TestARequestWaitsForTheFirstOne(t *testing.T) {
	open, release := gate(t)
	b := setup(t, httpkey.Options{Wait: 20 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
		<-open
		created(w, r)
	})
	defer release()
	replies := make(chan reply, 3)
	for range 3 {
		go func() { replies <- b.post("k1", "{}") }()
	}
	b.until("the first is running", func() bool { return b.ran.Load() == 1 })
	// Those that wait hold no connection.
	b.until("the others wait", func() bool { return b.db.Stat().AcquireCount() > 4 && b.db.Stat().AcquiredConns() == 1 })
	release()
	got := []reply{<-replies, <-replies, <-replies}
	slices.SortFunc(got, func(a, b reply) int {
		return strings.Compare(a.header.Get("Idempotent-Replayed"), b.header.Get("Idempotent-Replayed"))
	})
	b.sameAs(got[0], got[1])
	b.sameAs(got[0], got[2])
	b.holds(1, 1, 1)
}

func TestAWaitEndsWithItsTimeAndWithItsClient(t *testing.T) {
	open, release := gate(t)
	b := setup(t, httpkey.Options{Wait: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		<-open
		created(w, r)
	})
	defer func() { release() }() // the one of then
	first := make(chan reply, 1)
	go func() { first <- b.post("k1", "{}") }()
	b.until("the first is running", func() bool { return b.ran.Load() == 1 })
	b.want(b.post("k1", "{}"), 409, "in-flight")
	release()
	b.want(<-first, 201, "")

	var waiting atomic.Int64
	open, release = gate(t)
	b.close()
	b.serve(httpkey.Options{Wait: time.Hour}, b.db.Pool, func(w http.ResponseWriter, r *http.Request) {
		<-open
		created(w, r)
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			waiting.Add(1)
			defer waiting.Add(-1)
			next.ServeHTTP(w, r)
		})
	})
	go func() { first <- b.post("k2", "{}") }()
	b.until("the first is running", func() bool { return b.ran.Load() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := b.try(ctx, "POST", "/things", "k2", "{}"); gone <- err }()
	b.until("the second waits", func() bool { return waiting.Load() == 2 })
	cancel()
	<-gone
	b.until("the second has ended", func() bool { return waiting.Load() == 1 })
	release()
	b.want(<-first, 201, "")
	b.holds(2, 2, 2)
}

// Who waits for a first attempt that fails does the work itself.
func TestWaiterReplacesAFirstRequestThatFails(t *testing.T) {
	open, release := gate(t)
	var b *bundle
	b = setup(t, httpkey.Options{Wait: 20 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
		if b.ran.Load() == 1 {
			<-open
			httpkey.Abort(r.Context(), errMine)
			return
		}
		created(w, r)
	})
	defer release()
	first, second := make(chan reply, 1), make(chan reply, 1)
	go func() { first <- b.post("k1", "{}") }()
	b.until("the first is running", func() bool { return b.ran.Load() == 1 })
	before := b.db.Stat().AcquireCount()
	go func() { second <- b.post("k1", "{}") }()
	b.until("the second has looked twice", func() bool { return b.db.Stat().AcquireCount() >= before+2 })
	release()
	b.want(<-first, 500, "internal")
	b.want(<-second, 201, "")
	b.holds(1, 1, 2)
}

func TestReplayNamesTheFirstRequest(t *testing.T) {
	b := setup(t, httpkey.Options{RequestID: func(r *http.Request) string { return r.Header.Get("X-Request-Id") }, MaxAnswer: 200},
		func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/large" {
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write(make([]byte, 201))
				return
			}
			created(w, r)
		})
	for _, path := range []string{"/things", "/large"} {
		first := b.send("POST", path, "k"+path, "{}", with("X-Request-Id", "req_1"))
		b.want(first, 201, "")
		if got := first.header.Get("Original-Request"); got != "" {
			t.Errorf("the first has Original-Request %q", got)
		}
		again := b.send("POST", path, "k"+path, "{}", with("X-Request-Id", "req_2"))
		if got := again.header.Get("Original-Request"); !again.replayed || got != "req_1" {
			t.Errorf("%s: the replay has Original-Request %q", path, got)
		}
	}
	for name, id := range map[string]string{"none": "", "too-long": strings.Repeat("r", 256), "not-ascii": "r\xe9q"} {
		first := b.post(name, "{}", with("X-Request-Id", id))
		again := b.post(name, "{}", with("X-Request-Id", "req_2"))
		b.sameAs(first, again)
		if got := again.header.Get("Original-Request"); got != "" {
			t.Errorf("%s: the replay has Original-Request %q", name, got)
		}
	}
}

func TestProblemTypesAreConfigurable(t *testing.T) {
	const mine = "https://docs.example.com/errors#"
	seen := make(chan string, 1)
	b := setup(t, httpkey.Options{ProblemTypes: mine}, created)
	got := b.post("", "{}")
	b.want(got, 400, "key-missing")
	if !strings.Contains(got.body, `"`+mine+`key-missing"`) {
		t.Errorf("%s", got.body)
	}
	b.close()
	b.serve(httpkey.Options{ProblemTypes: mine, Problem: func(w http.ResponseWriter, _ *http.Request, p httpkey.Problem) {
		seen <- p.Type
		w.WriteHeader(p.Status)
	}}, b.db.Pool, created, nil)
	b.post("", "{}")
	if p := <-seen; p != mine+"key-missing" {
		t.Errorf("a service's own form gets %s", p)
	}
}

// gate returns a channel that release closes, or the end of the test.
func gate(t *testing.T) (open chan struct{}, release func()) {
	t.Helper()
	open = make(chan struct{})
	return open, sync.OnceFunc(func() { close(open) })
}
