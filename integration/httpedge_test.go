package integration

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/keyclient"
	"github.com/samekey/samekey/samekeytest"
)

// keyed returns a middleware with a pool of its own.
func (b *bundle) keyed(dsn string, o httpkey.Options) *httpkey.Middleware {
	b.t.Helper()
	pool := dbtest.Pool(b.t, dsn)
	if o.Scope == nil {
		o.Scope = func(r *http.Request) []string { return []string{r.Header.Get("Tenant"), "orders.create"} }
	}
	o.Logger = slog.New(slog.DiscardHandler)
	keyed, err := httpkey.New(pool, o)
	if err != nil {
		b.t.Fatal(err)
	}
	return keyed
}

// of returns b for a subtest.
func (b *bundle) of(t testing.TB) *bundle { return &bundle{DB: b.DB, t: t, appDSN: b.appDSN} }

// serve starts a server that runs until the test ends, and returns its URL.
func serve(t testing.TB, handler http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // some tests panic on purpose
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// shop returns a handler that creates orders. Each order has a row, an intent and a unique answer.
func (b *bundle) shop(dsn string) http.Handler {
	b.t.Helper()
	mux := http.NewServeMux()
	mux.Handle("POST /orders", b.keyed(dsn, httpkey.Options{}).Handler(http.HandlerFunc(createOrder)))
	return mux
}

func createOrder(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	var placed order
	if err := json.NewDecoder(r.Body).Decode(&placed); err != nil {
		http.Error(w, "invalid order", http.StatusBadRequest)
		return
	}
	err := httpkey.Tx(ctx).QueryRow(ctx, `insert into orders (operation, tenant, item, amount) values ('create', $1, $2, $3) returning id`,
		r.Header.Get("Tenant"), placed.Item, placed.Amount).Scan(&placed.ID)
	if err == nil {
		_, err = outbox.Insert(ctx, httpkey.Tx(ctx), outbox.Intent{Action: "charge_card", Payload: placed})
	}
	if err != nil {
		httpkey.Abort(ctx, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprint("/orders/", placed.ID))
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"id": placed.ID, "receipt": rand.Text()})
}

// newClient returns a client that makes up to this many attempts, each on a connection of its own.
func newClient(t testing.TB, attempts int) *http.Client {
	base := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: &keyclient.Transport{Base: base, Attempts: attempts, Backoff: 5 * time.Millisecond, MaxBackoff: 20 * time.Millisecond}}
}

// received is the answer that a client got.
type received struct {
	status   int
	header   http.Header
	body     string
	replayed bool
	key      string // the request's
}

// same reports whether r is a replay of the first answer.
func (r received) same(first received) bool {
	return r.replayed && r.status == first.status && r.body == first.body &&
		r.header.Get("Location") == first.header.Get("Location") && r.header.Get("Content-Type") == first.header.Get("Content-Type")
}

// problem returns the type of a problem without its common prefix, or "" if the answer is no problem.
func (r received) problem() string {
	var p httpkey.Problem
	if r.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(r.body), &p) != nil {
		return ""
	}
	_, name, _ := strings.Cut(p.Type, "#")
	return name
}

// send sends a request. If the key is empty, the client makes one. If the answer breaks off, send repeats the request
// once with the same key, as keyclient's documentation advises.
func send(ctx context.Context, client *http.Client, method, url, key, body string) (received, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for again := false; ; again = true {
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			return received{}, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Tenant", "acme")
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := client.Do(req)
		if err != nil {
			return received{}, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		key = resp.Request.Header.Get("Idempotency-Key")
		if err == nil || again || key == "" {
			return received{resp.StatusCode, resp.Header, string(text), resp.Header.Get("Idempotent-Replayed") == "true", key}, err
		}
	}
}

// order sends an order. The test fails if there is no answer.
func (b *bundle) order(client *http.Client, url, key, item string) received {
	b.t.Helper()
	got, err := send(b.t.Context(), client, "POST", url+"/orders", key, fmt.Sprintf(`{"item":%q,"amount":7}`, item))
	if err != nil {
		b.t.Error(err)
	}
	return got
}

// once checks that the item has one order and one intent, and that the stored answer is the one that the client got.
func (b *bundle) once(url, item string, got received) {
	b.t.Helper()
	b.count(1, "orders where item = $1", item)
	b.count(1, "samekey.outbox where convert_from(payload, 'UTF8')::json ->> 'item' = $1", item)
	if got.status != http.StatusCreated || got.header.Get("Location") == "" {
		b.t.Errorf("the client got %d %s", got.status, got.body)
	}
	if again := b.order(newClient(b.t, 1), url, got.key, item); !again.same(got) {
		b.t.Errorf("the client got %+v, and the stored answer is %+v", got, again)
	}
}

// wire returns the requests that the proxy received, and checks that they had the same key and body.
func (b *bundle) wire(proxy *samekeytest.Proxy, key string) []samekeytest.ProxyCall {
	b.t.Helper()
	calls := proxy.Calls()
	for _, c := range calls {
		if c.Key != key || key == "" || string(c.Body) != string(calls[0].Body) {
			b.t.Errorf("a request has another key or body: %v", c)
		}
	}
	return calls
}

func TestFaultsBetweenClientAndServiceLeaveOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := serve(t, b.shop(b.appDSN))
	for _, c := range []struct {
		faults   string
		requests int  // on the wire
		replayed bool // the client's final answer
	}{
		{"none", 1, false},
		{"500", 2, false},
		{"503", 2, false},
		{"429(0)", 2, false},
		{"503(0)", 2, false},
		{"408", 2, false},
		{"reset_before", 2, false},
		{"500_after", 2, true},
		{"502_after", 2, true},
		{"503_after", 2, true},
		{"504_after", 2, true},
		{"lose_answer", 2, true},
		{"reset_after", 2, true},
		{"truncate", 2, true},
		{"slow(30ms)", 1, false},
		{"503,503_after,lose_answer,reset_before", 5, true},
		{"reset_before,500,truncate", 4, true},
		{"503_after,truncate", 3, true},
	} {
		t.Run(c.faults, func(t *testing.T) {
			b := b.of(t)
			proxy := samekeytest.StartProxy(t, url)
			faults, err := samekeytest.ParseFaults(c.faults)
			if err != nil {
				t.Fatal(err)
			}
			proxy.Next(faults...)
			got := b.order(newClient(t, 5), proxy.URL, "", c.faults)
			if calls := b.wire(proxy, got.key); len(calls) != c.requests || got.replayed != c.replayed {
				t.Errorf("%d requests, want %d; replayed %t: %v", len(calls), c.requests, got.replayed, calls)
			}
			b.once(url, c.faults, got)
		})
	}
}

func TestRequestDuplicatedOnItsWayHasOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := serve(t, b.shop(b.appDSN))
	for _, fault := range []samekeytest.Fault{samekeytest.FaultDuplicate, samekeytest.FaultResend} {
		t.Run(string(fault), func(t *testing.T) {
			b := b.of(t)
			proxy := samekeytest.StartProxy(t, url)
			proxy.Next(fault)
			got := b.order(newClient(t, 5), proxy.URL, "", string(fault))
			b.once(url, string(fault), got)
			calls := b.wire(proxy, got.key)
			if len(calls[0].Backend) != 2 {
				t.Fatalf("the service got the request %d times, want 2", len(calls[0].Backend))
			}
			// If both arrive at the same time, one may get the 409 that reports the other.
			for _, a := range calls[0].Backend {
				if a.Status == http.StatusConflict && fault == samekeytest.FaultDuplicate {
					continue
				}
				if a.Status != http.StatusCreated || string(a.Body) != got.body {
					t.Errorf("the service answered %d %s, and the client got %s", a.Status, a.Body, got.body)
				}
			}
		})
	}
}

func TestDelayedAnswerDoesNotBlockASecondCall(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := serve(t, b.shop(b.appDSN))
	proxy := samekeytest.StartProxy(t, url)
	proxy.Next(samekeytest.FaultHangAfter)
	first := make(chan received, 1)
	go func() { first <- b.order(newClient(t, 1), proxy.URL, "k1", "book") }()
	b.answers(proxy, 1)
	second := b.order(newClient(t, 1), proxy.URL, "k1", "book")
	proxy.Release()
	delayed := <-first
	if !second.same(delayed) || delayed.replayed {
		t.Errorf("the first got %+v, the second %+v", delayed, second)
	}
	b.once(url, "book", delayed)
}

// The client gives up and retries with the key from the error. Its first request arrives meanwhile.
func TestRequestThatArrivesLateAnswersItsRetry(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := serve(t, b.shop(b.appDSN))
	proxy := samekeytest.StartProxy(t, url)
	proxy.Next(samekeytest.FaultLate)
	open := b.barred()
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	go func() {
		b.requests(proxy, 1)
		giveUp()
	}()
	_, err := send(ctx, newClient(t, 3), "POST", proxy.URL+"/orders", "", `{"item":"book","amount":7}`)
	failed, ok := errors.AsType[*keyclient.Error](err)
	if !ok || failed.Attempts != 1 || failed.Key == "" || !errors.Is(err, context.Canceled) {
		t.Fatalf("the call ended with %v", err)
	}
	b.eventually(waitingForALock) // the late request
	second := make(chan received, 1)
	go func() { second <- b.order(newClient(t, 5), proxy.URL, failed.Key, "book") }()
	b.answers(proxy, 1) // the 409 that reports the first request
	open()
	got := <-second
	calls := b.wire(proxy, failed.Key)
	if late := calls[0].Backend; len(late) != 1 || late[0].Status != http.StatusCreated || string(late[0].Body) != got.body || !got.replayed {
		t.Errorf("the late request got %+v, and the retry %+v", late, got)
	}
	b.once(url, "book", got)
}

func TestSecondCallWaitsForTheFirstAndGetsItsAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := serve(t, b.shop(b.appDSN))
	proxy := samekeytest.StartProxy(t, url)
	open := b.barred()
	first := make(chan received, 1)
	go func() { first <- b.order(newClient(t, 1), url, "k1", "book") }()
	b.eventually(waitingForALock)

	// A client without retries gets the 409.
	told := b.order(newClient(t, 1), url, "k1", "book")
	if told.status != http.StatusConflict || told.problem() != "in-flight" || told.header.Get("Retry-After") != "1" {
		t.Errorf("while the first is running: %+v", told)
	}

	began := time.Now()
	second := make(chan received, 1)
	go func() { second <- b.order(newClient(t, 5), proxy.URL, "k1", "book") }()
	b.answers(proxy, 2)
	open()
	got, waited := <-first, <-second
	if !waited.same(got) || got.replayed {
		t.Errorf("the first got %+v, the second %+v", got, waited)
	}
	calls := b.wire(proxy, "k1")
	for _, c := range calls[:len(calls)-1] {
		if c.Status != http.StatusConflict {
			t.Errorf("before the answer: %v, want 409", c)
		}
	}
	if seconds := int(time.Since(began) / time.Second); len(calls) < 3 || len(calls) > seconds+1 {
		t.Errorf("%d requests in %d seconds, with Retry-After: 1", len(calls), seconds)
	}
	b.once(url, "book", got)
}

func TestKeyOfAnotherRequestIsRefusedWithoutRetries(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := serve(t, b.shop(b.appDSN))
	proxy := samekeytest.StartProxy(t, url)
	client := newClient(t, 5)
	first := b.order(client, proxy.URL, "k1", "book")
	other := b.order(client, proxy.URL, "k1", "pen")
	if other.status != http.StatusUnprocessableEntity || other.problem() != "key-reused" || other.replayed {
		t.Errorf("another body gets %+v", other)
	}
	if calls := proxy.Calls(); len(calls) != 2 {
		t.Errorf("%d requests for two calls: %v", len(calls), calls)
	}
	b.count(0, "orders where item = 'pen'")
	b.once(url, "book", first)
}

// Another process replays the answer that the first one stored.
func TestAnotherProcessReplaysAfterADeathBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var address atomic.Value
	inner := b.shop(b.appDSN)
	next := serve(t, b.shop(b.appDSN)) // with its own pool and middleware
	dying := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		address.Store(strings.TrimPrefix(next, "http://"))
		panic(http.ErrAbortHandler) // the answer is lost
	}))
	address.Store(strings.TrimPrefix(dying, "http://"))
	client := newClient(t, 5)
	client.Transport.(*keyclient.Transport).Base.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address.Load().(string))
	}
	got := b.order(client, "http://shop.test", "", "book")
	if !got.replayed {
		t.Errorf("%+v is not a replay", got)
	}
	b.once(next, "book", got)
}

// If the service loses its database during the commit, its answer makes the client retry.
func TestFailedOrUnconfirmedCommitEndsInOneEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault    wiretest.Fault
		requests int
		replayed bool
	}{
		"never arrived":   {wiretest.CutBefore, 2, false},
		"answer was lost": {wiretest.LoseAnswer, 1, true}, // looked up by the service
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nil)
			database := wiretest.Start(t, b.appDSN)
			url := serve(t, b.shop(database.DSN()))
			proxy := samekeytest.StartProxy(t, url)
			struck := database.Arm(c.fault, "commit")
			got := b.order(newClient(t, 5), proxy.URL, "", "book")
			<-struck
			if calls := b.wire(proxy, got.key); len(calls) != c.requests || got.replayed != c.replayed {
				t.Errorf("%d requests, replayed %t: %v", len(calls), got.replayed, calls)
			}
			b.once(url, "book", got)
		})
	}
}

const waitingForALock = `exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`

// barred locks the table of orders, so that no request can insert one. Call open to unlock it.
func (b *bundle) barred() (open func()) {
	b.t.Helper()
	tx, err := b.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(b.t.Context(), "lock table orders in share mode"); err != nil {
		b.t.Fatal(err)
	}
	open = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	b.t.Cleanup(open)
	return open
}

// requests waits until n requests are open at the proxy. It may run in a goroutine.
func (b *bundle) requests(proxy *samekeytest.Proxy, n int) {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := proxy.WaitOpen(ctx, n); err != nil {
		b.t.Error(err)
	}
}

// answers waits until the service has given n answers to the proxy.
func (b *bundle) answers(proxy *samekeytest.Proxy, n int) {
	b.t.Helper()
	b.await(proxy.WaitAnswered, n)
}
