package processed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

// bundle is a database with one table of the application's.
type bundle struct {
	t  *testing.T
	db *samekeytest.DB
}

// setup also has its test run beside others: they wait more than they work.
func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{t: t, db: samekeytest.NewDB(t)}
	b.exec("create table orders (id text primary key, amount bigint not null)")
	return b
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	dbtest.Exec(b.t, b.db, sql, args...)
}

func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	return dbtest.Value[int](b.t, b.db, "select count(*) from "+sql, args...)
}

// stored fails unless that many orders, intents and records are there.
func (b *bundle) stored(orders, intents, records int) {
	b.t.Helper()
	got := [3]int{b.count("orders"), b.count("samekey.outbox"), b.count("samekey.processed_events")}
	if want := [3]int{orders, intents, records}; got != want {
		b.t.Fatalf("orders, intents, records: %v, want %v", got, want)
	}
	if queue := b.count("samekey.outbox_queue"); queue != got[1] {
		b.t.Fatalf("%d intents, %d queue rows", got[1], queue)
	}
}

func key(t testing.TB, value string) samekey.Key {
	t.Helper()
	return dbtest.Key(t, value)
}

func request(t testing.TB, value, body string) processed.Request {
	t.Helper()
	return processed.Request{Key: key(t, value), Payload: []byte(body)}
}

// place inserts an order and an intent to charge for it.
func place(ctx context.Context, tx samekey.Tx, o order) error {
	if _, err := tx.Exec(ctx, "insert into orders (id, amount) values ($1, $2)", o.ID, o.Amount); err != nil {
		return err
	}
	_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: o})
	return err
}

func (b *bundle) place(req processed.Request, o order) (processed.Result[order], error) {
	return processed.Run(b.t.Context(), b.db.Pool, req, func(ctx context.Context, tx pgx.Tx) (order, error) {
		return o, place(ctx, tx, o)
	})
}

func (b *bundle) mustPlace(req processed.Request, o order) processed.Result[order] {
	b.t.Helper()
	res, err := b.place(req, o)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

var never = func(context.Context, pgx.Tx) (order, error) { panic("the function was called again") }

func TestTheSameRequestAgainReturnsTheFirstAnswer(t *testing.T) {
	b := setup(t)
	first := b.mustPlace(request(t, "k", `{"a":1,"b":2}`), order{"o1", 7})
	if first.Deduplicated || first.Value != (order{"o1", 7}) {
		t.Fatalf("first: %+v", first)
	}
	for _, body := range []string{`{"a":1,"b":2}`, `{"b":2.0, "a":1}`, " {\"\\u0061\":1,\"b\":2}\n"} {
		again, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", body), never)
		if err != nil || !again.Deduplicated || again.Value != first.Value {
			t.Fatalf("%s: %+v, %v", body, again, err)
		}
	}
	b.stored(1, 1, 1)
}

func TestTheSameKeyWithAnotherPayloadIsRefused(t *testing.T) {
	b := setup(t)
	b.mustPlace(request(t, "k", `{"amount":9007199254740993}`), order{"o1", 7})
	for _, body := range []string{`{"amount":9007199254740992}`, `{"amount":"9007199254740993"}`, `{"amount":9007199254740993,"x":null}`} {
		_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", body), never)
		if !errors.Is(err, processed.ErrConflict) || processed.SafeToRetry(err) {
			t.Fatalf("%s: %v", body, err)
		}
	}
	b.stored(1, 1, 1)
	b.mustPlace(request(t, "k2", `{"amount":9007199254740992}`), order{"o2", 7})
	b.stored(2, 2, 2)
}

func TestOthersGetErrInFlightWhileTheFirstRuns(t *testing.T) {
	b := setup(t)
	running, finish := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
			close(running)
			<-finish
			return order{"o1", 7}, place(ctx, tx, order{"o1", 7})
		})
		done <- err
	}()
	<-running
	for _, body := range []string{`1`, `2`} { // another payload is found out once the first is done
		_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", body), never)
		if !errors.Is(err, processed.ErrInFlight) || !processed.SafeToRetry(err) {
			t.Fatalf("in flight: %v", err)
		}
	}
	close(finish)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `2`), never); !errors.Is(err, processed.ErrConflict) {
		t.Fatalf("another payload after the first: %v", err)
	}
	res, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), never)
	if err != nil || !res.Deduplicated || res.Value.ID != "o1" {
		t.Fatalf("%+v, %v", res, err)
	}
	b.stored(1, 1, 1)
}

// failureOf is the failure that err is, or one with a code that no test gives.
func failureOf(err error) *processed.Failure {
	if failure, ok := errors.AsType[*processed.Failure](err); ok {
		return failure
	}
	return &processed.Failure{Code: -1}
}

func TestAFailureReplaysAndNothingElseIsStored(t *testing.T) {
	b := setup(t)
	declined := func(ctx context.Context, tx pgx.Tx) (order, error) {
		if err := place(ctx, tx, order{"o1", 7}); err != nil {
			return order{}, err
		}
		return order{}, processed.Fail(402, map[string]string{"reason": "declined"})
	}
	first, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), declined)
	if failureOf(err).Code != 402 || first.Deduplicated || first.Value != (order{}) {
		t.Fatalf("%+v, %v", first, err)
	}
	b.stored(0, 0, 1)
	again, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), never)
	if failure := failureOf(err); !again.Deduplicated || failure.Code != 402 || string(failure.Body) != `{"reason":"declined"}` {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `2`), never); !errors.Is(err, processed.ErrConflict) {
		t.Fatalf("another payload: %v", err)
	}
}

func TestDoCommitsWithTheCallersTransactionAndNotBefore(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tx, err := b.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	res, err := processed.Do(ctx, tx, request(t, "k", `1`), func(ctx context.Context, tx samekey.Tx) (order, error) {
		return order{"o1", 7}, place(ctx, tx, order{"o1", 7})
	})
	if err != nil || res.Deduplicated {
		t.Fatalf("%+v, %v", res, err)
	}
	b.stored(0, 0, 0)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	b.stored(1, 1, 1)
}
