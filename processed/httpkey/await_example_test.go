package httpkey_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed/httpkey"
)

// paymentAnswer is what a client gets. The stored one has no State.
type paymentAnswer struct {
	Charge uuid.UUID `json:"charge,omitzero"` // the id of the intent
	State  string    `json:"state,omitempty"`
}

// A client gets the outcome of its payment, if the vendor answers in time. Otherwise it gets a 202, and the outcome when
// it repeats its request. The stored answer stays as the handler wrote it.
func ExampleOptions_render() {
	pool, done := shopDatabase()
	defer done()
	vendor, stop := startWorker(pool)
	defer stop()

	var limit atomic.Int64 // how long a client waits; a service has a constant
	limit.Store(int64(30 * time.Second))
	keyed, err := httpkey.New(pool, httpkey.Options{
		Scope: func(r *http.Request) []string { return []string{tenantOf(r), "payments.create"} },
		Render: func(r *http.Request, a *httpkey.Answer) {
			var answer paymentAnswer
			if err := json.Unmarshal(a.Body, &answer); err != nil {
				return // send it as it is stored
			}
			ctx, cancel := context.WithTimeout(r.Context(), time.Duration(limit.Load()))
			defer cancel()
			end, _ := outbox.Await(ctx, pool, a.Key, answer.Charge) // after an error, the state is not a final one
			switch end.Status {
			case outbox.StatusDelivered:
				answer.State = "paid"
			case outbox.StatusRefused:
				a.Status, answer.State = http.StatusPaymentRequired, "declined"
			default: // in progress, or a person decides
				a.Status, answer.State = http.StatusAccepted, "pending"
			}
			answer.Charge = uuid.Nil // left out
			a.Body, _ = json.Marshal(answer)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(authenticated(keyed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := chargeCard.Insert(r.Context(), httpkey.Tx(r.Context()), []byte(`{"amount":250}`))
		if err != nil {
			httpkey.Abort(r.Context(), err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(paymentAnswer{Charge: id})
	}))))
	defer server.Close()

	vendor <- dispatcher.Delivered(dispatcher.Response{Code: "200"}) // the vendor's next answer
	key := samekey.Mint()
	send(server.URL, key, `{"amount":250}`)
	send(server.URL, key, `{"amount":250}`)

	limit.Store(int64(50 * time.Millisecond))
	key = samekey.Mint()
	send(server.URL, key, `{"amount":900}`) // the vendor takes longer
	vendor <- dispatcher.Refused(dispatcher.Response{Code: "402"})
	limit.Store(int64(30 * time.Second))
	send(server.URL, key, `{"amount":900}`)
	// Output:
	// 201 {"state":"paid"}
	// 201 {"state":"paid"} (replayed)
	// 202 {"state":"pending"}
	// 402 {"state":"declined"} (replayed)
}

// startWorker runs a worker. Its vendor gives the answers that the caller sends, each when it is called for it.
func startWorker(pool *pgxpool.Pool) (vendor chan<- dispatcher.Outcome, stop func()) {
	answers := make(chan dispatcher.Outcome, 1)
	d := dispatcher.New(pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	dispatcher.Handle(d, chargeCard, dispatcher.Delivery[[]byte]{
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour, Timeout: dbtest.Patience},
		Send: func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			select {
			case outcome := <-answers:
				return outcome, nil
			case <-ctx.Done():
				return dispatcher.Outcome{}, ctx.Err()
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return answers, func() {
		cancel()
		if err := <-ended; err != nil {
			panic(err)
		}
	}
}
