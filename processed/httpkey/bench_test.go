package httpkey_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/samekeytest"
)

const anOrder = `{"product":"tea","quantity":2,"email":"ada@example.com","card":{"token":"tok_1"}}`

// posts is the same handler with a key and without one: /keyed is behind the middleware, and /plain begins and commits
// its transaction by hand.
func posts(t testing.TB, pool *pgxpool.Pool) http.Handler {
	t.Helper()
	insert := func(r *http.Request, tx pgx.Tx) error {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = tx.Exec(r.Context(), "insert into effects (note) values ($1)", string(body))
		}
		return err
	}
	answer := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":1,"state":"pending"}`)
	}
	keyed, err := httpkey.New(pool, httpkey.Options{
		Scope:  func(*http.Request) []string { return []string{"acme", "orders.create"} },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /keyed", keyed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := insert(r, httpkey.Tx(r.Context())); err != nil {
			httpkey.Abort(r.Context(), err)
			return
		}
		answer(w)
	})))
	mux.HandleFunc("POST /plain", func(w http.ResponseWriter, r *http.Request) {
		if err := pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error { return insert(r, tx) }); err != nil {
			http.Error(w, "failed", http.StatusInternalServerError)
			return
		}
		answer(w)
	})
	return mux
}

func post(client *http.Client, url, key string) error {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(anOrder))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusCreated {
		err = fmt.Errorf("answered %d", res.StatusCode)
	}
	return err
}

func TestPostCostsThreeRoundTripsAndReplayTwo(t *testing.T) {
	db := samekeytest.NewDB(t)
	if _, err := db.Exec(t.Context(), "create table effects (note text not null)"); err != nil {
		t.Fatal(err)
	}
	proxy := wiretest.Start(t, db.DSN)
	config, err := pgxpool.ParseConfig(proxy.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	server := httptest.NewServer(posts(t, pool))
	defer server.Close()
	for _, c := range []struct {
		what, path string
		trips      int
	}{{"warm", "/plain", -1}, {"warm", "/keyed", -1}, {"warm", "/keyed", -1}, {"without a key", "/plain", 3}, {"first", "/keyed", 3}, {"first", "/keyed", 2}} {
		proxy.Take()
		if err := post(server.Client(), server.URL+c.path, c.what); err != nil {
			t.Fatal(err)
		}
		if got := proxy.Take(); c.trips >= 0 && len(got) != c.trips {
			t.Errorf("%s, %s: %d round trips, want %d: %v", c.path, c.what, len(got), c.trips, got)
		}
	}
}

// What a key costs a POST, from the client's side, on a socket:
//
//	go test -run '^$' -bench Post -benchtime 3000x ./processed/httpkey
//
// Each turn is one POST without a key, one with a new key and one repetition, so that the three meet the same machine.
// The metrics are microseconds and the ratio of the medians.
func BenchmarkPost(b *testing.B) {
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) { benchmarkPost(b, clients) })
	}
}

func benchmarkPost(b *testing.B, clients int) {
	db := samekeytest.NewDB(b)
	if _, err := db.Exec(b.Context(), "create table effects (note text not null)"); err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(posts(b, db.Pool))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()

	kinds := []string{"plain", "keyed", "replay"}
	took := make([]map[string][]time.Duration, clients)
	var turns atomic.Int64
	var running sync.WaitGroup
	b.ResetTimer()
	for c := range clients {
		took[c] = map[string][]time.Duration{}
		running.Go(func() {
			for turn := turns.Add(1); turn <= int64(b.N); turn = turns.Add(1) {
				for _, kind := range kinds {
					path := "/keyed"
					if kind == "plain" {
						path = "/plain"
					}
					start := time.Now()
					if err := post(client, server.URL+path, fmt.Sprintf("%d-%d", b.N, turn)); err != nil {
						b.Error(err)
						return
					}
					took[c][kind] = append(took[c][kind], time.Since(start))
				}
			}
		})
	}
	running.Wait()
	b.StopTimer()
	median := map[string]float64{}
	for _, kind := range kinds {
		var all []time.Duration
		for c := range clients {
			all = append(all, took[c][kind]...)
		}
		slices.Sort(all)
		at := func(share float64) float64 { return float64(all[int(share*float64(len(all)-1))].Microseconds()) }
		median[kind] = at(0.50)
		b.ReportMetric(at(0.50), kind+"-p50-µs")
		b.ReportMetric(at(0.99), kind+"-p99-µs")
	}
	b.ReportMetric(median["keyed"]/median["plain"], "keyed/plain")
	b.ReportMetric(median["replay"]/median["plain"], "replay/plain")
}
