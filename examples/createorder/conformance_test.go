package createorder_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/samekeytest"
)

// The suite repeats, overlaps and loses requests, kills and suspends instances at each round trip to the database, and
// expects one order and one charge for each key.
func TestOneOrderForEachKey(t *testing.T) {
	samekeytest.Conform(t, samekeytest.Service{
		Prepare: migrate,
		Start:   startService, // an instance of the service on this database; returns its URL
		Request: func(url, key string, n int) *http.Request {
			body := strings.Replace(tea, `"quantity":2`, fmt.Sprintf(`"quantity":%d`, n), 1)
			req, _ := http.NewRequest(http.MethodPost, url+"/orders", strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Tenant", "acme")
			req.Header.Set("Idempotency-Key", key)
			return req
		},
		Effects: countOrders, // how many orders and intents exist
	})
}

func migrate(t testing.TB, db *samekeytest.DB) {
	if err := createorder.Migrate(t.Context(), db.Pool); err != nil {
		t.Fatal(err)
	}
}

func startService(t testing.TB, dsn string) string {
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	orders, err := createorder.NewService(pool, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(orders)
	t.Cleanup(server.Close)
	return server.URL
}

func countOrders(t testing.TB, db *samekeytest.DB) int {
	var orders, charges int
	err := db.QueryRow(t.Context(), `
		select (select count(*) from shop.orders), (select count(*) from samekey.outbox where action = 'charge_card')`).
		Scan(&orders, &charges)
	if err != nil {
		t.Fatal(err)
	}
	if orders != charges {
		t.Errorf("%d orders, and %d charges", orders, charges)
	}
	return orders
}
