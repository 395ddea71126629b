package samekey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpclient"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/keyclient"
	"github.com/samekey/samekey/samekeytest"
)

// The code of the README. TestReadme runs it.

// Charge is the payload of an intent to charge a card.
type Charge struct {
	OrderID int64 `json:"order_id"`
	Cents   int64 `json:"cents"`
}

// ChargeCard is declared once, for the writer and the worker.
var ChargeCard = outbox.NewAction[Charge]("charge_card")

// createOrder writes the order, the intent and the answer in one transaction.
// The same key again returns the first answer and runs nothing.
func createOrder(ctx context.Context, pool *pgxpool.Pool, tenant, value string, body []byte) (processed.Result[Order], error) {
	key, err := samekey.NewKey(value, tenant, "orders.create") // value: the caller's Idempotency-Key
	if err != nil {
		return processed.Result[Order]{}, err
	}
	return processed.Run(ctx, pool, processed.Request{Key: key, Payload: body},
		func(ctx context.Context, tx pgx.Tx) (Order, error) {
			order, err := insertOrder(ctx, tx, body)
			if err != nil {
				return Order{}, err
			}
			_, err = ChargeCard.Insert(ctx, tx, Charge{OrderID: order.ID, Cents: order.Cents})
			return order, err
		})
}

// newWorker delivers charge_card intents. Its Run works until ctx ends; any number of workers can run at once.
func newWorker(pool *pgxpool.Pool, url string) (*dispatcher.Dispatcher, error) {
	client, err := httpclient.New(nil) // one request per attempt, and none after its deadline
	if err != nil {
		return nil, err
	}
	d := dispatcher.New(pool, &dispatcher.Config{Deployment: os.Getenv("DEPLOYMENT")}) // such as production
	d.Destination("payments", dispatcher.Limits{Concurrency: 32})
	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "payments", KeyWindow: 24 * time.Hour},
		Send: func(ctx context.Context, call *dispatcher.Call, _ Charge) (dispatcher.Outcome, error) {
			return send(ctx, client, url, call)
		},
		Apply: func(ctx context.Context, tx pgx.Tx, c Charge, settled dispatcher.Settled) error {
			return finishOrder(ctx, tx, c.OrderID, settled.Status == outbox.StatusDelivered)
		},
	})
	return d, d.Check()
}

// send makes one attempt. An error means that the outcome is unknown: the policy's class decides what happens next.
func send(ctx context.Context, client *http.Client, url string, call *dispatcher.Call) (dispatcher.Outcome, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(call.Payload))
	if err != nil {
		return dispatcher.Outcome{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", call.CarriedKey) // the same at every attempt
	resp, err := client.Do(req)
	if err != nil {
		return dispatcher.Outcome{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	answer := dispatcher.Response{Code: strconv.Itoa(resp.StatusCode), Body: body}
	switch {
	case err != nil:
		return dispatcher.Unknown(answer), err
	case resp.StatusCode == http.StatusCreated:
		return dispatcher.Delivered(answer), nil
	case resp.StatusCode == http.StatusPaymentRequired:
		return dispatcher.Refused(answer), nil // the card was declined
	case resp.StatusCode == http.StatusConflict:
		return dispatcher.Stuck(answer), nil // the same key cannot find out: look it up, or park it
	case resp.StatusCode == http.StatusTooManyRequests:
		return dispatcher.Retry(answer).ForAccount(), nil
	}
	return dispatcher.Unknown(answer), nil
}

// Order is what the client gets.
type Order struct {
	ID    int64 `json:"id"`
	Cents int64 `json:"cents"`
}

// outcome waits for up to two seconds for the end of a charge. If it is "paid", the rows of Apply are there.
func outcome(ctx context.Context, pool *pgxpool.Pool, key samekey.Key, charge uuid.UUID) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	end, err := outbox.Await(ctx, pool, key, charge)
	switch {
	case end.Status == outbox.StatusDelivered:
		return "paid", nil
	case end.Status == outbox.StatusRefused:
		return "declined", nil
	case err == nil, errors.Is(err, context.DeadlineExceeded): // a person decides, or it takes longer
		return "pending", nil
	}
	return "", err
}

func insertOrder(ctx context.Context, tx pgx.Tx, body []byte) (order Order, err error) {
	if err := json.Unmarshal(body, &order); err != nil {
		return Order{}, err
	}
	err = tx.QueryRow(ctx, "insert into orders (cents) values ($1) returning id", order.Cents).Scan(&order.ID)
	return order, err
}

func finishOrder(ctx context.Context, tx pgx.Tx, id int64, paid bool) error {
	_, err := tx.Exec(ctx, "update orders set paid = $2 where id = $1", id, paid)
	return err
}

// Two requests with one key, and a vendor whose first answer is lost: one order, one charge, and the order is paid.
func TestReadme(t *testing.T) {
	db := samekeytest.NewDB(t)
	ctx := deadline(t)
	_, err := db.Exec(ctx, "create table orders (id bigint generated always as identity, cents bigint not null, paid boolean)")
	must(t, err)
	vendor, err := samekeytest.NewVendor(nil)
	must(t, err)
	vendor.Next(samekeytest.FaultLoseAnswer)
	server := httptest.NewServer(vendor)
	t.Cleanup(server.Close)

	for i := range 2 {
		res, err := createOrder(ctx, db.Pool, "acme", "order-1", []byte(`{"cents":1900}`))
		must(t, err)
		if res.Value.Cents != 1900 || res.Deduplicated != (i == 1) {
			t.Errorf("request %d: %+v", i, res)
		}
	}
	_, err = createOrder(ctx, db.Pool, "acme", "order-1", []byte(`{"cents":2000}`))
	if !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another request under the same key: %v", err)
	}
	d, err := newWorker(db.Pool, server.URL)
	must(t, err)
	var paid bool
	for !paid { // the second attempt comes within the backoff of a second
		_, err = d.Drain(ctx)
		must(t, err)
		must(t, db.QueryRow(ctx, "select coalesce(bool_and(paid), false) from orders").Scan(&paid))
	}
	var charge uuid.UUID
	must(t, db.QueryRow(ctx, "select id from samekey.outbox").Scan(&charge))
	key := samekey.Key{Scope: "acme/orders.create", Value: "order-1"}
	if got, err := outcome(ctx, db.Pool, key, charge); err != nil || got != "paid" {
		t.Errorf("the outcome is %q, %v", got, err)
	}
	samekeytest.AssertEffects(t, vendor, 1)
	if calls := len(vendor.Ledger().Calls); calls != 2 {
		t.Errorf("%d calls, want the one whose answer was lost and another", calls)
	}
}

// routes serves POST /orders. The middleware begins the transaction, and commits it together with the answer.
func routes(pool *pgxpool.Pool) (http.Handler, error) {
	keyed, err := httpkey.New(pool, httpkey.Options{
		Scope: func(r *http.Request) []string { return []string{tenantOf(r), "orders.create"} },
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", authenticated(keyed.Handler(http.HandlerFunc(create))))
	return mux, nil
}

func tenantOf(*http.Request) string                   { return "acme" }
func authenticated(handler http.Handler) http.Handler { return handler }

// The same over HTTP, with the middleware and the client of the README.
func TestReadmeOverHTTP(t *testing.T) {
	db := samekeytest.NewDB(t)
	_, err := db.Exec(t.Context(), "create table orders (id bigint generated always as identity, cents bigint not null)")
	must(t, err)
	handler, err := routes(db.Pool)
	must(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client := http.Client{Transport: &keyclient.Transport{}}
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders", strings.NewReader(`{"cents":1900}`))
		must(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "order-1")
		resp, err := client.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	var orders int
	must(t, db.QueryRow(t.Context(), "select count(*) from orders").Scan(&orders))
	if orders != 1 {
		t.Errorf("%d orders", orders)
	}
}

// create is an ordinary handler. It takes the request's transaction from the context and does not commit it.
func create(w http.ResponseWriter, r *http.Request) {
	ctx, tx := r.Context(), httpkey.Tx(r.Context())
	body, err := io.ReadAll(r.Body)
	if err != nil {
		httpkey.Abort(ctx, err)
		return
	}
	order, err := insertOrder(ctx, tx, body)
	if err == nil {
		_, err = ChargeCard.Insert(ctx, tx, Charge{OrderID: order.ID, Cents: order.Cents})
	}
	if err != nil {
		httpkey.Abort(ctx, err) // rolls back; the client sends the request again
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(order)
}
