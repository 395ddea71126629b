package processed_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

type Order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

func insertOrder(context.Context, samekey.Tx, Order) error { return nil }

// A request's rows, its intent to charge the card, and the record with its
// answer are committed together.
func ExampleRun() {
	createOrder := func(ctx context.Context, pool *pgxpool.Pool, w http.ResponseWriter, key samekey.Key, body []byte, order Order) {
		res, err := processed.Run(ctx, pool, processed.Request{Key: key, Payload: body, Retain: 7 * 24 * time.Hour},
			func(ctx context.Context, tx pgx.Tx) (Order, error) {
				if err := insertOrder(ctx, tx, order); err != nil {
					return Order{}, err
				}
				_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: order})
				return order, err
			})
		switch {
		case errors.Is(err, processed.ErrConflict):
			http.Error(w, "this key was used with another request", http.StatusUnprocessableEntity)
		case errors.Is(err, processed.ErrInFlight):
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the first request with this key is running", http.StatusConflict)
		case err != nil:
			http.Error(w, "try again with the same key", http.StatusInternalServerError)
		default:
			fmt.Fprintf(w, "order %s, replayed: %v\n", res.Value.ID, res.Deduplicated)
		}
	}

	db, done := exampletb.DB()
	defer done()
	key := samekey.Key{Scope: "acme/orders.create", Value: "order-1"}
	for _, body := range []string{`{"id":"o1"}`, `{"id":"o1"}`, `{"id":"o2"}`} {
		w := httptest.NewRecorder()
		createOrder(context.Background(), db.Pool, w, key, []byte(body), Order{ID: "o1"})
		fmt.Print(w.Body)
	}
	// Output:
	// order o1, replayed: false
	// order o1, replayed: true
	// this key was used with another request
}

// "The seat is taken" is an answer, and it replays when the request is repeated.
func ExampleFail() {
	_ = func(ctx context.Context, pool *pgxpool.Pool, req processed.Request) error {
		res, err := processed.Run(ctx, pool, req, func(ctx context.Context, tx pgx.Tx) (Order, error) {
			free, err := reserve(ctx, tx)
			if err != nil {
				return Order{}, err // nothing is stored, the key can be used again
			}
			if !free {
				return Order{}, processed.Fail(http.StatusConflict, map[string]string{"reason": "seat taken"})
			}
			return Order{ID: "o1"}, nil
		})
		if failure, ok := errors.AsType[*processed.Failure](err); ok {
			fmt.Println(failure.Code, string(failure.Body)) // the first time and at each replay
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println(res.Value.ID)
		return nil
	}

	failure := (*processed.Failure)(nil)
	err := processed.Fail(http.StatusConflict, map[string]string{"reason": "seat taken"})
	fmt.Println(errors.As(err, &failure), failure.Code, string(failure.Body))
	// Output:
	// true 409 {"reason":"seat taken"}
}

func reserve(context.Context, samekey.Tx) (bool, error) { return true, nil }

// With database/sql, and so with GORM, bun, ent or sqlx, the transaction stays
// yours.
func ExampleDo() {
	createOrder := func(ctx context.Context, db *sql.DB, req processed.Request, order Order) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		_, err = processed.Do(ctx, samekey.SQL(tx), req, func(ctx context.Context, tx samekey.Tx) (Order, error) {
			if err := insertOrder(ctx, tx, order); err != nil {
				return Order{}, err
			}
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: order})
			return order, err
		})
		if _, failed := errors.AsType[*processed.Failure](err); err != nil && !failed {
			return err
		}
		if err := tx.Commit(); err != nil { // the order, or the failure
			return err
		}
		outbox.FlushSQL(db, "charge_card")
		return err
	}

	database, done := exampletb.DB()
	defer done()
	db, err := sql.Open("pgx", database.DSN)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	key := samekey.Key{Scope: "acme/orders.create", Value: "order-1"}
	fmt.Println(createOrder(context.Background(), db, processed.Request{Key: key, Payload: []byte(`{}`)}, Order{ID: "o1"}))
	// Output: <nil>
}

// A broker may deliver an event twice; it is acknowledged after a nil error.
func ExampleOnce() {
	receive := func(ctx context.Context, pool *pgxpool.Pool, eventID string, order Order) error {
		key, err := samekey.NewKey(eventID, "orders-topic", "warehouse")
		if err != nil {
			return err
		}
		_, err = processed.Once(ctx, pool, processed.Request{Key: key}, func(ctx context.Context, tx pgx.Tx) error {
			fmt.Println("order", order.ID)
			return insertOrder(ctx, tx, order)
		})
		return err
	}

	db, done := exampletb.DB()
	defer done()
	for range 2 {
		fmt.Println(receive(context.Background(), db.Pool, "event-1", Order{ID: "o1"}))
	}
	// Output:
	// order o1
	// <nil>
	// <nil>
}

// A worker prunes by itself; without one, call it from time to time.
func ExamplePrune() {
	db, done := exampletb.DB()
	defer done()

	pruned, err := processed.Prune(context.Background(), db.Pool, processed.Pruning{})
	fmt.Println(pruned.Records, pruned.Intents, pruned.Kept, err)
	// Output: 0 0 0 <nil>
}
