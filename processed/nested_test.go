package processed_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/samekeytest"
)

// refusedNested fails unless err reports a nested call and names both keys.
func refusedNested(t *testing.T, err error, keys ...samekey.Key) {
	t.Helper()
	if !errors.Is(err, processed.ErrNested) || processed.SafeToRetry(err) {
		t.Errorf("want ErrNested: %v", err)
		return
	}
	for _, k := range keys {
		if !strings.Contains(err.Error(), k.Hash()) {
			t.Errorf("%v does not name %s", err, k)
		}
	}
}

// A second connection may be one that never comes: refused before it is asked for.
func TestRunInRunOnOnePoolIsRefused(t *testing.T) {
	b := setup(t)
	for _, size := range []int32{1, 4} {
		pool := b.pool(b.db.DSN, size, nil)
		_, err := processed.Run(t.Context(), pool, request(t, "outer", `1`), func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := processed.Run(ctx, pool, request(t, "inner", `1`), never)
			refusedNested(t, err, key(t, "outer"), key(t, "inner"))
			_, err = processed.Once(ctx, pool, request(t, "inner", `1`), func(context.Context, pgx.Tx) error { panic("called") })
			refusedNested(t, err, key(t, "outer"), key(t, "inner"))
			// What the error advises works.
			_, err = processed.Do(ctx, tx, request(t, "inner", `1`), func(ctx context.Context, tx samekey.Tx) (int, error) {
				_, err := processed.Run(ctx, pool, request(t, "innermost", `1`), never)
				refusedNested(t, err, key(t, "outer"), key(t, "innermost"))
				return 1, place(ctx, tx, order{"o1", 7})
			})
			return 1, errors.Join(err, errors.New("roll back"))
		})
		if err == nil || errors.Is(err, processed.ErrNested) {
			t.Errorf("the outer one: %v", err)
		}
	}
	b.stored(0, 0, 0)
}

// The same key is held by the outer call for as long as the inner one would ask.
func TestTheSameKeyNestedIsRefused(t *testing.T) {
	b := setup(t)
	other := b.pool(b.db.DSN, 2, nil)
	inner := func(ctx context.Context, outer samekey.Tx) {
		_, err := processed.Run(ctx, other, request(t, "k", `1`), never)
		refusedNested(t, err, key(t, "k"))
		_, err = processed.Do(ctx, outer, request(t, "k", `1`), neverDo)
		refusedNested(t, err, key(t, "k"))
		tx, err := other.Begin(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = processed.Do(ctx, tx, request(t, "k", `1`), neverDo)
		refusedNested(t, err, key(t, "k"))
	}
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error { inner(ctx, tx); return nil })
	if err != nil {
		t.Error(err)
	}
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = processed.Do(t.Context(), tx, request(t, "k", `2`), func(context.Context, samekey.Tx) (int, error) { panic("called") })
	if !errors.Is(err, processed.ErrConflict) {
		t.Error(err)
	}
	_, err = processed.Do(t.Context(), tx, request(t, "free", `1`), func(ctx context.Context, inside samekey.Tx) (int, error) {
		for _, outer := range []samekey.Tx{inside, tx} { // its own transaction, and the caller's variable
			_, err := processed.Do(ctx, outer, request(t, "free", `1`), neverDo)
			refusedNested(t, err, key(t, "free"))
		}
		return 1, nil
	})
	if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
		t.Error(err)
	}
	b.stored(0, 0, 2)
}

// Two databases have two memories: the same key in both is not nested.
func TestTheSameKeyInAnotherDatabaseIsAnotherKey(t *testing.T) {
	a, b := setup(t), samekeytest.NewDB(t)
	_, err := processed.Run(t.Context(), a.db.Pool, request(t, "k", `1`), func(ctx context.Context, _ pgx.Tx) (int, error) {
		return processedValue(processed.Run(ctx, b.Pool, request(t, "k", `1`), func(context.Context, pgx.Tx) (int, error) { return 1, nil }))
	})
	if err != nil {
		t.Error("Run in Run:", err)
	}
	_, err = processed.Run(t.Context(), a.db.Pool, request(t, "k2", `1`), func(ctx context.Context, _ pgx.Tx) (n int, err error) {
		err = pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			_, err := processed.Do(ctx, tx, request(t, "k2", `1`), func(context.Context, samekey.Tx) (int, error) { return 1, nil })
			return err
		})
		return 1, err
	})
	if err != nil {
		t.Error("Do in Run:", err)
	}
	a.stored(0, 0, 2)
}

func processedValue[T any](res processed.Result[T], err error) (T, error) { return res.Value, err }

// Do does not know which pool its transaction is from.
func TestRunInDoThatGetsNoConnectionSaysWhy(t *testing.T) {
	b := setup(t)
	pool := b.pool(b.db.DSN, 1, nil)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = processed.Do(t.Context(), tx, request(t, "outer", `1`), func(ctx context.Context, tx samekey.Tx) (int, error) {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := processed.Run(short, pool, request(t, "inner", `1`), never)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("want the deadline too: %v", err)
		}
		refusedNested(t, err, key(t, "outer"), key(t, "inner"))
		began := time.Now()
		_, err = processed.Run(ctx, pool, request(t, "inner", `1`), never) // without a deadline of its own
		refusedNested(t, err, key(t, "outer"), key(t, "inner"))
		if took := time.Since(began); took > time.Minute {
			t.Errorf("after %s", took)
		}
		_, err = processed.Run(ctx, b.db.Pool, request(t, "elsewhere", `1`), func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		return 1, err
	})
	if err != nil {
		t.Error(err)
	}
}

// A goroutine that was started inside may go on with the context: nothing is held any more.
func TestContextOutlivesItsCall(t *testing.T) {
	b := setup(t)
	pool := b.pool(b.db.DSN, 1, nil)
	var kept context.Context
	for _, k := range []string{"k", "other", "k"} {
		ctx := t.Context()
		if kept != nil {
			ctx = kept
		}
		_, err := processed.Run(ctx, pool, request(t, k, `1`), func(ctx context.Context, tx pgx.Tx) (int, error) {
			kept = ctx
			return 1, nil
		})
		if err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

func TestRunInAKeyedHandlerIsRefused(t *testing.T) {
	b := setup(t)
	pool := b.pool(b.db.DSN, 1, nil)
	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(*http.Request) []string { return []string{"acme", "orders.create"} }})
	if err != nil {
		t.Fatal(err)
	}
	handler := keyed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := processed.Run(r.Context(), pool, request(t, "inner", `1`), never)
		refusedNested(t, err, key(t, "inner"))
		_, err = processed.Do(r.Context(), httpkey.Tx(r.Context()), request(t, "inner", `1`), func(ctx context.Context, tx samekey.Tx) (int, error) {
			return 1, place(ctx, tx, order{"o1", 7})
		})
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusCreated {
		t.Errorf("answered %d: %s", w.Code, w.Body)
	}
	b.stored(1, 1, 2)
}
