package httpkey_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed/httpkey"
)

// payment is a service whose answers show how the charge went.
type payment struct {
	*bundle
	limit  atomic.Int64              // of a client's wait, in nanoseconds
	vendor chan<- dispatcher.Outcome // answers of the vendor
}

var chargeCard = outbox.NewAction[[]byte]("charge_card")

func setupPayment(t *testing.T) *payment {
	t.Helper()
	p := &payment{}
	p.limit.Store(int64(dbtest.Patience))
	p.bundle = setup(t, httpkey.Options{Render: p.render}, func(w http.ResponseWriter, r *http.Request) {
		id, err := chargeCard.Insert(r.Context(), httpkey.Tx(r.Context()), []byte("42"))
		if err != nil {
			httpkey.Abort(r.Context(), err)
			return
		}
		w.Header().Set("Set-Cookie", "seen=1")
		w.Header().Set("Location", "/things/1")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"charge": id})
	})
	var stop func()
	p.vendor, stop = startWorker(p.db.Pool)
	t.Cleanup(stop)
	return p
}

// render waits for the charge.
func (p *payment) render(r *http.Request, a *httpkey.Answer) {
	var stored struct{ Charge uuid.UUID }
	if err := json.Unmarshal(a.Body, &stored); err != nil {
		p.t.Errorf("the stored answer is %q: %v", a.Body, err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(p.limit.Load()))
	defer cancel()
	end, err := outbox.Await(ctx, p.db.Pool, a.Key, stored.Charge)
	if err != nil && ctx.Err() == nil {
		p.t.Error(err)
	}
	switch end.Status {
	case outbox.StatusDelivered:
		a.Body = []byte("paid")
	case outbox.StatusRefused:
		a.Status, a.Body = http.StatusPaymentRequired, []byte("declined")
	default:
		a.Status, a.Body = http.StatusAccepted, []byte("pending")
		a.Header.Set("Retry-After", "1")
	}
}

func (p *payment) wantAnswer(got reply, status int, body string, replayed bool) {
	p.t.Helper()
	if got.status != status || got.body != body || got.replayed != replayed || got.header.Get("Location") != "/things/1" {
		p.t.Errorf("answered %d %q, replayed %t, Location %q; want %d %q, %t", got.status, got.body, got.replayed, got.header.Get("Location"), status, body, replayed)
	}
}

func TestAnswerShowsTheOutcomeOfItsIntent(t *testing.T) {
	p := setupPayment(t)
	for key, end := range map[string]struct {
		outcome dispatcher.Outcome
		status  int
		body    string
	}{
		"paid":     {dispatcher.Delivered(dispatcher.Response{Code: "200"}), http.StatusCreated, "paid"},
		"declined": {dispatcher.Refused(dispatcher.Response{Code: "402"}), http.StatusPaymentRequired, "declined"},
	} {
		first := make(chan reply, 1)
		go func() { first <- p.post(key, "{}") }()
		p.vendor <- end.outcome
		got := dbtest.Receive(t, "the answer", first)
		p.wantAnswer(got, end.status, end.body, false)
		if got.header.Get("Set-Cookie") == "" {
			t.Error("the first answer lost a header")
		}
		again := p.post(key, "{}")
		p.wantAnswer(again, end.status, end.body, true)
		if again.header.Get("Set-Cookie") != "" {
			t.Error("a replay has the cookie")
		}
	}
}

func TestPendingAnswerChangesWithTheOutcome(t *testing.T) {
	p := setupPayment(t)
	p.limit.Store(int64(100 * time.Millisecond))
	for i := range 2 {
		got := p.post("slow", "{}")
		p.wantAnswer(got, http.StatusAccepted, "pending", i > 0)
		if got.header.Get("Retry-After") != "1" {
			t.Error("a header of Render is missing")
		}
	}
	p.limit.Store(int64(dbtest.Patience))
	again := make(chan reply, 1)
	go func() { again <- p.post("slow", "{}") }()
	p.vendor <- dispatcher.Delivered(dispatcher.Response{Code: "200"})
	p.wantAnswer(dbtest.Receive(t, "the answer", again), http.StatusCreated, "paid", true)
	p.holds(0, 1, 1)
	if stored := dbtest.Value[string](t, p.db, `select response_code || ' ' || left(convert_from(response_body, 'UTF8'), 10) from samekey.processed_events`); stored != `201 {"charge":` {
		t.Errorf("stored: %s", stored)
	}
}

// A client that disconnects ends the wait, and nothing else.
func TestDisconnectedClientEndsTheWait(t *testing.T) {
	p := setupPayment(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := p.try(ctx, "POST", "/things", "gone", "{}")
		gone <- err
	}()
	p.until("the charge is committed", func() bool { return dbtest.Value[int](t, p.db, `select count(*) from samekey.outbox`) == 1 })
	cancel()
	if err := dbtest.Receive(t, "the client's error", gone); err == nil {
		t.Error("the client got an answer")
	}
	p.vendor <- dispatcher.Delivered(dispatcher.Response{Code: "200"})
	p.wantAnswer(p.post("gone", "{}"), http.StatusCreated, "paid", true)
}

func TestRenderIsLimitedToStoredSuccess(t *testing.T) {
	calls := 0
	o := httpkey.Options{MaxAnswer: 100, Render: func(r *http.Request, a *httpkey.Answer) {
		calls++
		switch r.URL.Query().Get("render") {
		case "panic":
			panic("of a test")
		case "invalid":
			a.Status = 99
		default:
			a.Header = http.Header{"X-Rendered": {"yes"}}
			a.Body = append([]byte("rendered "), a.Body...)
		}
	}}
	b := setupOn(t, o, nil, func(w http.ResponseWriter, r *http.Request) {
		_ = httpkey.Tx(r.Context())
		w.Header().Set("Etag", `"1"`)
		status, size := http.StatusOK, 2
		_, _ = fmt.Sscan(r.URL.Query().Get("status"), &status)
		_, _ = fmt.Sscan(r.URL.Query().Get("size"), &size)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.Repeat("a", size))
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { _ = recover() }() // and answers nothing
			next.ServeHTTP(w, r)
		})
	})
	for path, want := range map[string]struct {
		status   int
		body     string
		rendered int
	}{
		"/things":                {200, "rendered aa", 2},
		"/things?status=402":     {402, "aa", 0},
		"/things?status=500":     {500, "aa", 0},
		"/things?size=101":       {200, strings.Repeat("a", 101), 0},
		"/things?render=invalid": {500, "", 2},
		"/things?render=panic":   {500, "", 2},
	} {
		calls = 0
		first := b.send("POST", path, path, "{}")
		again := b.send("POST", path, path, "{}")
		if first.status != want.status || want.body != "" && first.body != want.body || calls != want.rendered {
			t.Errorf("%s: answered %d %q, rendered %d times", path, first.status, first.body, calls)
		}
		if rendered := want.rendered > 0 && want.status == 200; (first.header.Get("X-Rendered") == "yes") != rendered || rendered && first.header.Get("Etag") != "" {
			t.Errorf("%s: the header is %v", path, first.header)
		}
		if want.rendered > 0 && (again.status != want.status || want.body != "" && again.body != want.body) {
			t.Errorf("%s: again %d %q", path, again.status, again.body)
		}
		if want.status == 500 && want.rendered > 0 && first.problem() != "internal" {
			t.Errorf("%s: the problem is %s", path, first.body)
		}
	}
}
