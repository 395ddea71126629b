package httpkey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/keyclient"
	"github.com/samekey/samekey/samekeytest"
)

// An order and the intent to charge for it are written in the request's
// transaction. The client posts its order twice, to be sure. Then it uses the key
// for another order, by mistake.
func Example() {
	pool, done := shopDatabase()
	defer done()

	keyed, err := httpkey.New(pool, httpkey.Options{
		Scope: func(r *http.Request) []string { return []string{tenantOf(r), "orders.create"} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	createOrder := func(w http.ResponseWriter, r *http.Request) {
		ctx, tx := r.Context(), httpkey.Tx(r.Context())
		var order struct{ ID, Amount int64 }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Amount < 1 {
			http.Error(w, "Amount must be 1 or more", http.StatusUnprocessableEntity)
			return
		}
		err := tx.QueryRow(ctx, "insert into orders (tenant, amount) values ($1, $2) returning id", tenantOf(r), order.Amount).Scan(&order.ID)
		if err == nil {
			_, err = outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: order})
		}
		if err != nil {
			httpkey.Abort(ctx, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", fmt.Sprintf("/orders/%d", order.ID))
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(order)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", authenticated(keyed.Handler(http.HandlerFunc(createOrder))))
	server := httptest.NewServer(mux)
	defer server.Close()

	key := samekey.Mint()
	send(server.URL+"/orders", key, `{"Amount":250}`)
	send(server.URL+"/orders", key, `{ "Amount": 250.0 }`) // the same order
	send(server.URL+"/orders", key, `{"Amount":900}`)      // another one
	send(server.URL+"/orders", samekey.Mint(), `{"Amount":900}`)
	// Output:
	// 201 {"ID":1,"Amount":250}
	// 201 {"ID":1,"Amount":250} (replayed)
	// 422 The key was used with another request
	// 201 {"ID":2,"Amount":900}
}

// exceptSentAt ignores sent_at, which this service's clients change with each
// attempt.
func exceptSentAt(r *http.Request, body []byte) (samekey.Fingerprint, error) {
	whole, err := httpkey.Fingerprint(r, body)
	if err != nil {
		return whole, err // says what is wrong with the body
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return whole, nil // not an object
	}
	delete(members, "sent_at")
	rest, err := json.Marshal(members)
	if err != nil {
		return samekey.Fingerprint{}, err
	}
	return httpkey.Fingerprint(r, rest)
}

// A part that changes with each attempt is left out of the comparison.
func ExampleOptions_fingerprint() {
	url, done := shop(createAny, httpkey.Options{Fingerprint: exceptSentAt})
	defer done()

	key := samekey.Mint()
	send(url, key, `{"amount":250,"sent_at":"10:00:00"}`)
	send(url, key, `{"amount":250,"sent_at":"10:00:07"}`)
	send(url, key, `{"amount":900,"sent_at":"10:00:09"}`)
	send(url, samekey.Mint(), `{"amount":250,"amount":900}`)
	// Output:
	// 201 {"order":1}
	// 201 {"order":1} (replayed)
	// 422 The key was used with another request
	// 400 The body has no single meaning
}

// pay is a handler with a final refusal and a dry run.
func pay(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	var order struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		http.Error(w, "the body is not an order", http.StatusBadRequest)
		return
	}
	if order.Amount > 1000 {
		httpkey.Keep(ctx) // otherwise a 403 is forgotten, and a retry is handled again
		http.Error(w, "refused", http.StatusForbidden)
		return
	}
	if r.URL.Query().Has("dry_run") {
		httpkey.Discard(ctx) // otherwise a 201 is stored, with its order
	}
	createAny(w, r)
}

// A final refusal is stored.
func ExampleKeep() {
	url, done := shop(pay, httpkey.Options{})
	defer done()

	key := samekey.Mint()
	send(url, key, `{"Amount":5000}`)
	send(url, key, `{"Amount":5000}`)
	// Output:
	// 403 refused
	// 403 refused (replayed)
}

// A dry run leaves nothing behind, and the key can still be used.
func ExampleDiscard() {
	url, done := shop(pay, httpkey.Options{})
	defer done()

	key := samekey.Mint()
	send(url+"?dry_run", key, `{"Amount":500}`)
	send(url, key, `{"Amount":500}`)
	send(url, key, `{"Amount":500}`)
	// Output:
	// 201 {"order":1}
	// 201 {"order":2}
	// 201 {"order":2} (replayed)
}

// call is a row of the caller's database. It is written in the transaction that
// decides on the call, before the first attempt.
type call struct {
	Key   string    // samekey.Mint()
	Body  []byte    // identical in each attempt
	Since time.Time // of the first attempt
}

var (
	errAgain   = errors.New("the outcome is unknown: make the call again later, with the same key")
	errTooLate = errors.New("the key may be new again: look up the outcome of the call in another way")
)

// retention is documented by the service; 72 hours is the default.
const retention = 72 * time.Hour

// make makes the call, with a few attempts. errAgain leaves the row for the next
// run of this job, such as an hour or a restart later.
func (c call) make(ctx context.Context, client *http.Client, url string) (status int, answer []byte, err error) {
	if time.Since(c.Since) > retention-time.Hour {
		return 0, nil, errTooLate
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(c.Body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", c.Key)
	resp, err := client.Do(req) // through a keyclient.Transport, which retries
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errAgain, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(resp.Body)
	if err != nil { // it broke off
		return 0, nil, fmt.Errorf("%w: %w", errAgain, err)
	}
	if resp.Header.Get("Idempotent-Replayed") == "true" {
		return resp.StatusCode, answer, nil // final, whatever the status
	}
	switch status := resp.StatusCode; {
	case status >= 500, status == 401, status == 408, status == 425, status == 429,
		status == 409 && resp.Header.Get("Retry-After") != "":
		return 0, nil, fmt.Errorf("%w: %d", errAgain, status)
	}
	return resp.StatusCode, answer, nil
}

// A caller whose job outlives the process. A load balancer answers 503 to the
// first attempt, although the service has committed.
func Example_caller() {
	url, done := shop(createAny, httpkey.Options{})
	defer done()

	client := &http.Client{Transport: &keyclient.Transport{Backoff: time.Millisecond}}
	defer client.CloseIdleConnections()
	stored := call{Key: samekey.Mint(), Body: []byte(`{"amount":250}`), Since: time.Now()}

	for range 2 { // before a restart, and after it
		status, answer, err := stored.make(context.Background(), client, url+"?answer=lost-once")
		fmt.Println(status, strings.TrimSpace(string(answer)), err)
	}
	stored.Since = stored.Since.Add(-retention)
	_, _, err := stored.make(context.Background(), client, url)
	fmt.Println(errors.Is(err, errTooLate))
	// Output:
	// 201 {"order":1} <nil>
	// 201 {"order":1} <nil>
	// true
}

// shop serves a handler behind the middleware, with its own database. With
// answer=lost-once in the query, the first answer is lost.
func shop(handler http.HandlerFunc, o httpkey.Options) (url string, done func()) {
	pool, drop := shopDatabase()
	o.Scope = func(r *http.Request) []string { return []string{tenantOf(r), "orders.create"} }
	keyed, err := httpkey.New(pool, o)
	if err != nil {
		panic(err)
	}
	next := authenticated(keyed.Handler(handler))
	var lost atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("answer") == "lost-once" && lost.CompareAndSwap(false, true) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	}))
	return server.URL, func() { server.Close(); drop() }
}

// createAny creates an order from any body.
func createAny(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	var id int64
	err := httpkey.Tx(ctx).QueryRow(ctx, "insert into orders (tenant, amount) values ($1, 1) returning id", tenantOf(r)).Scan(&id)
	if err != nil {
		httpkey.Abort(ctx, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "{\"order\":%d}\n", id)
}

// send posts once and prints the answer.
func send(url, key, body string) {
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		panic(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	text := strings.TrimSpace(string(answer))
	var problem httpkey.Problem
	if resp.Header.Get("Content-Type") == "application/problem+json" && json.Unmarshal(answer, &problem) == nil {
		text = problem.Title
	}
	if resp.Header.Get("Idempotent-Replayed") == "true" {
		text += " (replayed)"
	}
	fmt.Println(resp.StatusCode, text)
}

type tenantKey struct{}

// authenticated stands for the service's authentication.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, "acme")))
	})
}

func tenantOf(r *http.Request) string {
	tenant, _ := r.Context().Value(tenantKey{}).(string)
	return tenant
}

// shopDatabase returns a database with samekey's tables and the shop's.
func shopDatabase() (pool *pgxpool.Pool, drop func()) {
	e, done := exampletb.New()
	db := samekeytest.NewDB(e)
	if _, err := db.Exec(context.Background(), "create table orders (id bigint generated always as identity, tenant text, amount bigint)"); err != nil {
		panic(err)
	}
	return db.Pool, done
}
