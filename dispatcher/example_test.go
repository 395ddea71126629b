package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpclient"
	"github.com/samekey/samekey/outbox"
)

// Charge is what the order service wrote into the intent.
type Charge struct {
	OrderID string `json:"order_id"`
	Amount  int64  `json:"amount"`
}

var (
	ctx    = context.Background()
	pool   *pgxpool.Pool
	stripe = dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", KeyWindow: 24 * time.Hour}
)

// send makes one request with the attempt's context.
func send(ctx context.Context, client *http.Client, c Charge, key string) (*http.Response, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, dispatcher.Unsent(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://vendor.example/v1/charges", bytes.NewReader(body))
	if err != nil {
		return nil, dispatcher.Unsent(err)
	}
	request.Header.Set("Idempotency-Key", key)
	return client.Do(request)
}

func Example() {
	client, err := httpclient.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(pool, nil)
	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
	dispatcher.Handle(d, "charge_card",
		dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", KeyWindow: 24 * time.Hour},
		func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Answer, error) {
			response, err := send(ctx, client, c, call.CarriedKey)
			if err != nil {
				return dispatcher.Answer{}, err // unsent, or unknown: sent again, with the same key
			}
			defer response.Body.Close()
			answer := dispatcher.Answer{Code: response.Status}
			switch response.StatusCode {
			case http.StatusPaymentRequired:
				return answer, dispatcher.Refused(answer)
			case http.StatusTooManyRequests:
				return answer, dispatcher.RetryAfter(time.Second, nil)
			case http.StatusUnauthorized:
				return answer, dispatcher.Dead(answer, errors.New("the API key is not valid"))
			}
			return answer, nil
		})
	if err := d.Check(); err != nil {
		fmt.Println(err)
	}
	// In main: err := d.Run(ctx)

	// Output:
}

// All mistakes are returned at once, before anything runs.
func ExampleDispatcher_Check() {
	charge := func(context.Context, *dispatcher.Call, Charge) (dispatcher.Answer, error) {
		return dispatcher.Answer{}, nil
	}
	d := dispatcher.New(pool, nil)
	dispatcher.Handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.IdempotentWrite}, charge)
	dispatcher.Handle(d, "refund", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Timeout: time.Minute, Lease: time.Minute}, charge)
	dispatcher.Handle(d, "send_receipt", dispatcher.Policy{Destination: "mail"}, charge)
	fmt.Println(d.Check())
	// Output:
	// samekey: action "charge_card": KeyWindow: missing: say for how long the vendor remembers a key (Forever is a value); its Destination does not say it
	// samekey: action "refund": Lease: 1m must be longer than Timeout (1m) by at least 100ms
	// samekey: action "send_receipt": Destination: "mail" is not declared: call Dispatcher.Destination, or correct the name
	// samekey: action "send_receipt": Class: missing: say whether the vendor may be called again: Read, IdempotentWrite, NonIdempotentWrite or IrreversibleWrite
}

// The order is marked and its receipt's intent is written in the transaction that finishes the charge.
func ExampleWithApply() {
	d := dispatcher.New(pool, nil)
	d.Destination("stripe", dispatcher.Limits{})
	dispatcher.Handle(d, "charge_card", stripe,
		func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Answer, error) {
			return dispatcher.Answer{Code: "200"}, nil
		},
		dispatcher.WithApply(func(ctx context.Context, tx pgx.Tx, c Charge, outcome dispatcher.Outcome) error {
			state := "paid"
			if outcome.Refused {
				state = "payment_failed"
			}
			if _, err := tx.Exec(ctx, `update orders set state = $2 where id = $1`, c.OrderID, state); err != nil {
				return err
			}
			if outcome.Refused {
				return nil
			}
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_receipt", Payload: c})
			return err
		}))
	fmt.Println(d.Check())
	// Output: <nil>
}

// A vendor that does not deduplicate is asked before a person is.
func ExampleWithLookup() {
	find := func(context.Context, string) (id string, found bool, err error) { return "", false, nil }

	d := dispatcher.New(pool, nil)
	dispatcher.Handle(d, "book_courier", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite},
		func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Answer, error) {
			return dispatcher.Answer{Code: "200"}, nil
		},
		dispatcher.WithLookup(func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Finding, error) {
			id, found, err := find(ctx, call.DeliveryKey.String()) // sent along as the vendor's reference field
			if err != nil {
				return dispatcher.Finding{}, err // could not be asked: tried again
			}
			if !found {
				return dispatcher.Absent(dispatcher.Answer{Code: "none"}), nil
			}
			return dispatcher.Found(dispatcher.Answer{Code: "200", Body: []byte(id)}), nil
		}))
	fmt.Println(d.Check())
	// Output: <nil>
}

// In a test of your own: deliver all that is due, and count.
func ExampleDispatcher_Drain() {
	d := dispatcher.New(pool, nil)
	dispatcher.Handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.Read}, func(context.Context, *dispatcher.Call, Charge) (dispatcher.Answer, error) {
		return dispatcher.Answer{}, nil
	})
	drain := func() {
		sum, err := d.Drain(ctx)
		fmt.Println(sum.Delivered, sum.Dead, err)
	}
	_ = drain
}
