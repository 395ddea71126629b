package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpclient"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
)

// Charge is the payload that the order service inserts.
type Charge struct {
	OrderID string `json:"order_id"`
	Amount  int64  `json:"amount"`
}

// Actions are declared once, in a package that the writer and the worker import.
var (
	ChargeCard  = outbox.NewAction[Charge]("charge_card")
	BookCourier = outbox.NewAction[Charge]("book_courier")
	SendReceipt = outbox.NewAction[Charge]("send_receipt")
)

var (
	ctx    = context.Background()
	pool   *pgxpool.Pool
	stripe = dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", KeyWindow: 24 * time.Hour}
)

// sendCharge sends the charge once, and says what the vendor's response means.
func sendCharge(ctx context.Context, client *http.Client, c Charge, key string) (dispatcher.Outcome, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return dispatcher.Unsent(err), nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://vendor.example/v1/charges", bytes.NewReader(body))
	if err != nil {
		return dispatcher.Unsent(err), nil
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := client.Do(request)
	if err != nil {
		return dispatcher.Outcome{}, err // unsent if the client proves it, else unknown: sent again with the same key
	}
	defer response.Body.Close()
	r := dispatcher.Response{Code: response.Status}
	switch response.StatusCode {
	case http.StatusOK:
		return dispatcher.Delivered(r), nil
	case http.StatusPaymentRequired:
		return dispatcher.Refused(r), nil
	case http.StatusTooManyRequests:
		return dispatcher.Retry(r).After(2 * time.Second).ForAccount(), nil
	case http.StatusUnauthorized:
		return dispatcher.Denied(r).Because(errors.New("the API key is not valid")), nil
	case http.StatusBadRequest:
		return dispatcher.Dead(r), nil
	}
	return dispatcher.Unknown(r), nil
}

func Example() {
	client, err := httpclient.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(pool, nil)
	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", KeyWindow: 24 * time.Hour},
		Send: func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
			return sendCharge(ctx, client, c, call.CarriedKey)
		},
	})
	if err := d.Check(); err != nil {
		fmt.Println(err)
	}
	// In main: err := d.Run(ctx)

	// Output:
}

// Check returns every contradiction at once, before anything runs.
func ExampleDispatcher_Check() {
	send := func(context.Context, *dispatcher.Call, Charge) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}
	d := dispatcher.New(pool, nil)
	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}, Send: send,
	})
	dispatcher.Handle(d, BookCourier, dispatcher.Delivery[Charge]{
		Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Timeout: time.Minute, Lease: time.Minute}, Send: send,
	})
	dispatcher.Handle(d, SendReceipt, dispatcher.Delivery[Charge]{
		Policy: dispatcher.Policy{Destination: "mail"}, Send: send,
	})
	fmt.Println(d.Check())
	// Output:
	// samekey: action "charge_card": KeyWindow: missing: set how long the vendor remembers a key (Forever is a value), here or for its Destination
	// samekey: action "book_courier": Lease: 1m must be longer than Timeout (1m) by at least 100ms
	// samekey: action "send_receipt": Destination: "mail" is not declared: call Dispatcher.Destination, or correct the name
	// samekey: action "send_receipt": Class: missing: say whether the vendor may be called again: Read, IdempotentWrite, NonIdempotentWrite or IrreversibleWrite
}

// Apply marks the order and inserts the receipt's intent, in the transaction that finishes the charge.
func ExampleDelivery_apply() {
	d := dispatcher.New(pool, nil)
	d.Destination("stripe", dispatcher.Limits{})
	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
		Policy: stripe,
		Send: func(context.Context, *dispatcher.Call, Charge) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		},
		Apply: func(ctx context.Context, tx pgx.Tx, c Charge, settled dispatcher.Settled) error {
			state := "paid"
			if settled.Status == outbox.StatusRefused {
				state = "payment_failed"
			}
			if _, err := tx.Exec(ctx, `update orders set state = $2 where id = $1`, c.OrderID, state); err != nil {
				return err
			}
			if settled.Status == outbox.StatusRefused {
				return nil
			}
			_, err := SendReceipt.Insert(ctx, tx, c)
			return err
		},
	})
	fmt.Println(d.Check())
	// Output: <nil>
}

// A vendor without idempotency keys is asked, with the delivery key that was sent along as a reference.
func ExampleDelivery_lookup() {
	find := func(_ context.Context, reference string) (id string, found bool, err error) { return "", false, nil }

	d := dispatcher.New(pool, nil)
	dispatcher.Handle(d, BookCourier, dispatcher.Delivery[Charge]{
		Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite},
		Send: func(context.Context, *dispatcher.Call, Charge) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		},
		Lookup: func(ctx context.Context, call *dispatcher.Call, _ Charge) (dispatcher.Outcome, error) {
			id, found, err := find(ctx, call.CarriedKey)
			if err != nil {
				return dispatcher.Outcome{}, err // the vendor could not be asked: the lookup is repeated
			}
			if !found {
				return dispatcher.Absent(dispatcher.Response{Code: "none"}), nil
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "200", Body: []byte(id)}), nil
		},
	})
	fmt.Println(d.Check())
	// Output: <nil>
}

// In a test of your own, Drain delivers everything that is due, and counts.
func ExampleDispatcher_Drain() {
	db, done := exampletb.DB()
	defer done()
	d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	d.Destination("stripe", dispatcher.Limits{})
	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
		Policy: stripe,
		Send: func(context.Context, *dispatcher.Call, Charge) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{}), nil
		},
	})
	if _, err := db.Exec(ctx, `select samekey.enqueue('acme/orders.create', 'order-1', 'charge_card', '{}')`); err != nil {
		log.Fatal(err)
	}

	sum, err := d.Drain(ctx)
	fmt.Println(sum.Delivered, sum.Dead, err)
	// Output: 1 0 <nil>
}
