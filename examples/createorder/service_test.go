package createorder_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/samekeytest"
)

const tea = `{"product":"tea","quantity":2,"email":"ada@example.com","card":{"token":"tok_1"}}`

// shop is a service over real HTTP on its own database.
type shop struct {
	t   *testing.T
	db  *samekeytest.DB
	url string
}

func setup(t *testing.T) *shop {
	db := samekeytest.NewDB(t)
	if err := createorder.Migrate(t.Context(), db.Pool); err != nil {
		t.Fatal(err)
	}
	orders, err := createorder.NewService(db.Pool, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(orders)
	t.Cleanup(server.Close)
	return &shop{t: t, db: db, url: server.URL}
}

type reply struct {
	status     int
	body       string
	replayed   bool
	retryAfter string
}

func (s *shop) post(key, body string) reply { return s.send("POST", "/orders", "acme", key, body) }

func (s *shop) send(method, path, tenant, key, body string, moreKeys ...string) reply {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewBufferString(body))
	if err != nil {
		s.t.Error(err)
		return reply{}
	}
	req.Header.Set("Content-Type", "application/json")
	if tenant != "" {
		req.Header.Set("X-Tenant", tenant)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for _, another := range moreKeys {
		req.Header.Add("Idempotency-Key", another)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Error(err)
		return reply{}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Error(err)
	}
	return reply{res.StatusCode, string(answer), res.Header.Get("Idempotent-Replayed") == "true", res.Header.Get("Retry-After")}
}

func (s *shop) want(got reply, status int, contains string) {
	s.t.Helper()
	if got.status != status || !strings.Contains(got.body, contains) {
		s.t.Errorf("answered %d %s, want %d and %q", got.status, got.body, status, contains)
	}
}

// holds checks the numbers of orders, intents and processed records.
func (s *shop) holds(orders, intents, records int) {
	s.t.Helper()
	var have [3]int
	err := s.db.QueryRow(s.t.Context(), `
		select (select count(*) from shop.orders), (select count(*) from samekey.outbox), (select count(*) from samekey.processed_events)`).
		Scan(&have[0], &have[1], &have[2])
	if err != nil {
		s.t.Fatal(err)
	}
	if want := [3]int{orders, intents, records}; have != want {
		s.t.Errorf("orders, intents, records: %v, want %v", have, want)
	}
}

func TestRepeatedPostIsOneOrder(t *testing.T) {
	s := setup(t)
	first := s.post("k1", tea)
	again := s.post("k1", ` {"quantity":2, "product":"tea", "card":{"token":"tok_1"}, "email":"ada@example.com"}`)
	s.want(first, 201, `"amount":900,"state":"pending"`)
	if again.status != 201 || again.body != first.body {
		t.Errorf("first %s, again %d %s", first.body, again.status, again.body)
	}
	if first.replayed || !again.replayed {
		t.Errorf("replayed: first %t, again %t", first.replayed, again.replayed)
	}
	s.holds(1, 1, 1)

	s.want(s.post("k2", tea), 201, `"amount":900`)
	s.holds(2, 2, 2)
}

func TestConcurrentPostsAreOneOrder(t *testing.T) {
	s := setup(t)
	var posts sync.WaitGroup
	for range 20 {
		posts.Go(func() {
			if r := s.post("k1", tea); r.status != 201 && r.status != 409 {
				t.Errorf("answered %d %s", r.status, r.body)
			}
		})
	}
	posts.Wait()
	s.want(s.post("k1", tea), 201, `"amount":900`)
	s.holds(1, 1, 1)
}

func TestKeyWithAnotherOrderIsRefused(t *testing.T) {
	s := setup(t)
	first := s.post("k1", tea)
	s.want(s.post("k1", strings.Replace(tea, `"quantity":2`, `"quantity":3`, 1)), 422, "key-reused")
	if again := s.post("k1", tea); again.body != first.body {
		t.Errorf("first %s, after the conflict %s", first.body, again.body)
	}
	s.holds(1, 1, 1)
}

func TestPostDuringTheFirstIsInFlight(t *testing.T) {
	s := setup(t)
	// The order's reference to its product waits for this lock.
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `select from shop.products for update`); err != nil {
		t.Fatal(err)
	}
	first := make(chan reply, 1)
	go func() { first <- s.post("k1", tea) }()
	s.waitForLock()

	second := s.post("k1", tea)
	s.want(second, 409, "in-flight")
	if second.retryAfter != "1" {
		t.Errorf("Retry-After: %q", second.retryAfter)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := <-first
	s.want(done, 201, `"amount":900`)
	if third := s.post("k1", tea); third.body != done.body {
		t.Errorf("first %s, third %s", done.body, third.body)
	}
	s.holds(1, 1, 1)
}

// waitForLock asks until a transaction of this database waits for a lock.
func (s *shop) waitForLock() {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		var waits bool
		err := s.db.QueryRow(s.t.Context(), `
			select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waits)
		if err != nil {
			s.t.Fatal(err)
		}
		if waits {
			return
		}
	}
	s.t.Fatal("no transaction waits for a lock")
}

func TestBusinessErrorIsStoredAndReplays(t *testing.T) {
	s := setup(t)
	unicorn := strings.Replace(tea, "tea", "unicorn", 1)
	first := s.post("k1", unicorn)
	s.want(first, 404, "unknown_product")
	s.holds(0, 0, 1)

	// The answer to this key stays the same, even if the product appears later.
	if _, err := s.db.Exec(t.Context(), `insert into shop.products (name, price) values ('unicorn', 1)`); err != nil {
		t.Fatal(err)
	}
	again := s.post("k1", unicorn)
	if again.status != 404 || again.body != first.body || !again.replayed {
		t.Errorf("first %s, again %d %s, replayed %t", first.body, again.status, again.body, again.replayed)
	}
	s.want(s.post("k2", unicorn), 201, `"amount":2`)
}

func TestRefusedRequestStoresNothing(t *testing.T) {
	s := setup(t)
	for name, c := range map[string]struct {
		key, body string
		status    int
		contains  string
	}{
		"no key":            {"", tea, 400, "key-missing"},
		"long key":          {strings.Repeat("k", 256), tea, 400, "key-invalid"},
		"key not ASCII":     {"ké", tea, 400, "key-invalid"},
		"not JSON":          {"k1", "tea", 400, "body-invalid"},
		"no order":          {"k1", `"tea"`, 400, "invalid_order"},
		"quantity 0":        {"k1", strings.Replace(tea, `"quantity":2`, `"quantity":0`, 1), 400, "quantity"},
		"negative quantity": {"k1", strings.Replace(tea, `"quantity":2`, `"quantity":-1`, 1), 400, "quantity"},
		"no card":           {"k1", strings.Replace(tea, "tok_1", "", 1), 400, "card.token"},
		"member twice":      {"k1", strings.Replace(tea, `{"product":"tea"`, `{"product":"cake","product":"tea"`, 1), 400, "body-invalid"},
		"too long":          {"k1", strings.Replace(tea, "ada", strings.Repeat("a", 64<<10), 1), 413, "body-too-large"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := &shop{t: t, db: s.db, url: s.url}
			sub.want(sub.post(c.key, c.body), c.status, c.contains)
		})
	}
	s.want(s.send("POST", "/orders", "acme", "k1", tea, "k2"), 400, "key-invalid")
	s.want(s.send("POST", "/orders", "", "k1", tea), 401, "X-Tenant")
	s.holds(0, 0, 0)
	s.want(s.post("k1", tea), 201, `"amount":900`) // the key is still unused
}

func TestKeyOfAnotherTenantIsAnotherOrder(t *testing.T) {
	s := setup(t)
	var order createorder.Order
	if err := json.Unmarshal([]byte(s.send("POST", "/orders", "acme", "k1", tea).body), &order); err != nil {
		t.Fatal(err)
	}
	s.want(s.send("POST", "/orders", "globex", "k1", strings.Replace(tea, "tea", "cake", 1)), 201, `"cake"`)
	s.holds(2, 2, 2)
	s.want(s.send("GET", "/orders/"+order.ID.String(), "acme", "", ""), 200, `"state":"pending"`)
	s.want(s.send("GET", "/orders/"+order.ID.String(), "globex", "", ""), 404, "not_found")
}

func TestChargeIsInsertedUnderTheClientsKey(t *testing.T) {
	s := setup(t)
	s.post("k1", tea)
	key, err := samekey.NewKey("k1", "acme", "orders.create")
	if err != nil {
		t.Fatal(err)
	}
	var deliveryKey, payload string
	err = s.db.QueryRow(t.Context(), `select delivery_key::text, convert_from(payload, 'UTF8') from samekey.outbox where action = 'charge_card'`).
		Scan(&deliveryKey, &payload)
	if err != nil {
		t.Fatal(err)
	}
	if want := samekey.DeliveryKey(key, "charge_card", "").String(); deliveryKey != want {
		t.Errorf("delivery key %s, want %s", deliveryKey, want)
	}
	if !strings.Contains(payload, `"amount":900,"card":{"token":"tok_1"}`) {
		t.Errorf("payload %s", payload)
	}
}
