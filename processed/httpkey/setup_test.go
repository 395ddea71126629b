package httpkey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// bundle is a service on a database of its own, behind a real socket. Its table has one row for each effect.
type bundle struct {
	t     *testing.T
	db    *samekeytest.DB
	url   string
	ran   atomic.Int64 // how often the handler was called
	log   *dbtest.Log
	close func()
}

// setup serves what handler makes of a request that has written its row.
func setup(t *testing.T, o httpkey.Options, handler http.HandlerFunc) *bundle {
	t.Helper()
	return setupOn(t, o, nil, handler, nil)
}

// setupOn is setup with another pool and an outer handler.
func setupOn(t *testing.T, o httpkey.Options, pool *pgxpool.Pool, handler http.HandlerFunc, outer func(http.Handler) http.Handler) *bundle {
	t.Helper()
	b := &bundle{t: t, db: samekeytest.NewDB(t), log: &dbtest.Log{}}
	b.exec("create table effects (id bigint generated always as identity primary key, note text not null)")
	if pool == nil {
		pool = b.db.Pool
	}
	b.serve(o, pool, handler, outer)
	return b
}

func (b *bundle) serve(o httpkey.Options, pool *pgxpool.Pool, handler http.HandlerFunc, outer func(http.Handler) http.Handler) {
	b.t.Helper()
	if o.Scope == nil {
		o.Scope = func(r *http.Request) []string { return []string{r.Header.Get("X-Tenant"), "things.create"} }
	}
	o.Logger = slog.New(slog.NewTextHandler(b.log, nil))
	keyed, err := httpkey.New(pool, o)
	if err != nil {
		b.t.Fatal(err)
	}
	next := keyed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.ran.Add(1)
		handler(w, r)
	}))
	if outer != nil {
		next = outer(next)
	}
	server := httptest.NewUnstartedServer(next)
	server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError) // panics that a test wants
	server.Start()
	b.url = server.URL
	b.close = sync.OnceFunc(server.Close)
	b.t.Cleanup(b.close)
}

// effect writes the row that stands for the work.
func effect(r *http.Request, note string) error {
	_, err := httpkey.Tx(r.Context()).Exec(r.Context(), "insert into effects (note) values ($1)", note)
	return err
}

// created does the work and answers 201 with a body that no other answer has.
func created(w http.ResponseWriter, r *http.Request) {
	var id int64
	err := httpkey.Tx(r.Context()).QueryRow(r.Context(), "insert into effects (note) values ($1) returning id", r.URL.Path).Scan(&id)
	if err != nil {
		httpkey.Abort(r.Context(), err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "at": time.Now().UnixNano()})
}

type reply struct {
	status   int
	header   http.Header
	body     string
	replayed bool
}

// problem returns the type of a problem, without the part that all share.
func (r reply) problem() string {
	var p httpkey.Problem
	if json.Unmarshal([]byte(r.body), &p) != nil || p.Status != r.status || p.Detail == "" || p.Title == "" {
		return "no problem"
	}
	_, name, _ := strings.Cut(p.Type, "#")
	return name
}

type change func(*http.Request)

func with(name, value string) change { return func(r *http.Request) { r.Header.Set(name, value) } }

func also(name, value string) change { return func(r *http.Request) { r.Header.Add(name, value) } }

func (b *bundle) post(key, body string, changes ...change) reply {
	b.t.Helper()
	return b.send("POST", "/things", key, body, changes...)
}

func (b *bundle) send(method, path, key, body string, changes ...change) reply {
	b.t.Helper()
	r, err := b.try(b.t.Context(), method, path, key, body, changes...)
	if err != nil {
		b.t.Error(err)
	}
	return r
}

func (b *bundle) try(ctx context.Context, method, path, key, body string, changes ...change) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, bytes.NewBufferString(body))
	if err != nil {
		return reply{}, err
	}
	req.GetBody = nil // one call is one request
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Tenant", "acme")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for _, c := range changes {
		c(req)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(answer), res.Header.Get("Idempotent-Replayed") == "true"}, err
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	dbtest.Exec(b.t, b.db, sql, args...)
}

// want checks an answer of the middleware's own: "" for none.
func (b *bundle) want(got reply, status int, problem string) {
	b.t.Helper()
	switch {
	case got.status != status:
		b.t.Errorf("answered %d %s, want %d", got.status, got.body, status)
	case problem == "" && got.header.Get("Content-Type") == "application/problem+json":
		b.t.Errorf("answered %s, want no problem", got.body)
	case problem != "" && got.problem() != problem:
		b.t.Errorf("answered %s, want the problem %s", got.body, problem)
	}
}

// sameAs checks that again is the stored answer of first.
func (b *bundle) sameAs(first, again reply) {
	b.t.Helper()
	if again.status != first.status || again.body != first.body {
		b.t.Errorf("first %d %q, again %d %q", first.status, first.body, again.status, again.body)
	}
	if first.replayed || !again.replayed {
		b.t.Errorf("replayed: first %t, again %t", first.replayed, again.replayed)
	}
	for _, name := range []string{"Content-Type", "Location", "Etag", "Link", "Content-Language", "Cache-Control", "Content-Encoding"} {
		if f, a := first.header.Values(name), again.header.Values(name); strings.Join(f, "|") != strings.Join(a, "|") {
			b.t.Errorf("%s: first %q, again %q", name, f, a)
		}
	}
}

// holds checks how many effects and records there are, and how often the handler ran.
func (b *bundle) holds(effects, records, ran int) {
	b.t.Helper()
	var have [3]int
	err := b.db.QueryRow(context.Background(), `select (select count(*) from effects), (select count(*) from samekey.processed_events)`).Scan(&have[0], &have[1])
	if err != nil {
		b.t.Fatal(err)
	}
	have[2] = int(b.ran.Load())
	if want := [3]int{effects, records, ran}; have != want {
		b.t.Errorf("effects, records, runs of the handler: %v, want %v", have, want)
	}
}

// untilWaiting returns once n transactions of this database wait for a lock.
func (b *bundle) untilWaiting(n int) {
	b.t.Helper()
	b.until(fmt.Sprint(n, " transactions wait for a lock"), func() bool { return dbtest.LockWaits(b.t, b.db) >= n })
}

// barred locks the table of effects until open is called.
func (b *bundle) barred() (open func()) {
	b.t.Helper()
	tx, err := b.db.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(b.t.Context(), "lock table effects in share mode"); err != nil {
		b.t.Fatal(err)
	}
	open = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	b.t.Cleanup(open)
	return open
}

var errMine = errors.New("mine")

// until waits for a condition.
func (b *bundle) until(what string, ok func() bool) {
	b.t.Helper()
	dbtest.Until(b.t, what, ok)
}
