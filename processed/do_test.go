package processed_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

// owner is how a caller owns a transaction.
type owner struct {
	begin func(t *testing.T, b *bundle, level pgx.TxIsoLevel) (tx samekey.Tx, commit, rollback func() error)
}

func owners() map[string]owner {
	return map[string]owner{
		"pgx": {func(t *testing.T, b *bundle, level pgx.TxIsoLevel) (samekey.Tx, func() error, func() error) {
			tx, err := b.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			return tx, func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(t.Context()) }
		}},
		"database/sql": {func(t *testing.T, b *bundle, level pgx.TxIsoLevel) (samekey.Tx, func() error, func() error) {
			db, err := sql.Open("pgx", b.db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			iso := map[pgx.TxIsoLevel]sql.IsolationLevel{pgx.RepeatableRead: sql.LevelRepeatableRead, pgx.Serializable: sql.LevelSerializable}
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: iso[level]})
			if err != nil {
				t.Fatal(err)
			}
			return samekey.SQL(tx), tx.Commit, tx.Rollback
		}},
	}
}

func placing(o order) func(context.Context, samekey.Tx) (order, error) {
	return func(ctx context.Context, tx samekey.Tx) (order, error) { return o, place(ctx, tx, o) }
}

var neverDo = func(context.Context, samekey.Tx) (order, error) { panic("the function was called again") }

func TestDoKeepsItsPromisesInATransactionOfTheCallers(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ctx := t.Context()

			tx, _, rollback := owner.begin(t, b, "")
			if _, err := processed.Do(ctx, tx, request(t, "k", `1`), placing(order{"o1", 7})); err != nil {
				t.Fatal(err)
			}
			if _, err := processed.Run(ctx, b.db.Pool, request(t, "k", `1`), never); !errors.Is(err, processed.ErrInFlight) {
				t.Fatalf("before the commit: %v", err)
			}
			// In the same transaction it is known already.
			if res, err := processed.Do(ctx, tx, request(t, "k", `1`), neverDo); err != nil || !res.Deduplicated {
				t.Fatalf("%+v, %v", res, err)
			}
			if err := rollback(); err != nil {
				t.Fatal(err)
			}
			b.stored(0, 0, 0)

			tx, commit, _ := owner.begin(t, b, "")
			if _, err := processed.Do(ctx, tx, request(t, "k", `1`), placing(order{"o1", 7})); err != nil {
				t.Fatal(err)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
			b.stored(1, 1, 1)

			tx, commit, _ = owner.begin(t, b, "")
			res, err := processed.Do(ctx, tx, request(t, "k", `1`), neverDo)
			if err != nil || !res.Deduplicated || res.Value != (order{"o1", 7}) {
				t.Fatalf("%+v, %v", res, err)
			}
			if _, err := processed.Do(ctx, tx, request(t, "k", `2`), neverDo); !errors.Is(err, processed.ErrConflict) {
				t.Fatalf("another payload: %v", err)
			}
			// A conflict leaves the transaction usable, and so does a second key.
			if _, err := processed.Do(ctx, tx, request(t, "k2", `2`), placing(order{"o2", 7})); err != nil {
				t.Fatal(err)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
			b.stored(2, 2, 2)
		})
	}
}

func TestDoUndoesTheFunctionButKeepsTheCallersRows(t *testing.T) {
	own := errors.New("own")
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ctx := t.Context()
			tx, commit, _ := owner.begin(t, b, "")
			if _, err := tx.Exec(ctx, "insert into orders values ('callers', 1)"); err != nil {
				t.Fatal(err)
			}
			do := func(k string, after func(ctx context.Context, tx samekey.Tx) error) (processed.Result[order], error) {
				return processed.Do(ctx, tx, request(t, k, `1`), func(ctx context.Context, tx samekey.Tx) (order, error) {
					if err := place(ctx, tx, order{k, 7}); err != nil {
						return order{}, err
					}
					return order{}, after(ctx, tx)
				})
			}
			if _, err := do("own", func(context.Context, samekey.Tx) error { return own }); !errors.Is(err, own) {
				t.Errorf("own error: %v", err)
			}
			if _, err := do("sql", func(ctx context.Context, tx samekey.Tx) error { _, err := tx.Exec(ctx, "select 1/0"); return err }); err == nil {
				t.Error("a failed statement gave no error")
			}
			if _, err := do("swallowed", func(ctx context.Context, tx samekey.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil }); !errors.Is(err, processed.ErrAborted) {
				t.Errorf("swallowed error: %v", err)
			}
			func() {
				defer func() { _ = recover() }()
				_, _ = do("panic", func(context.Context, samekey.Tx) error { panic("boom") })
			}()
			res, err := do("failure", func(context.Context, samekey.Tx) error { return processed.Fail(402, "declined") })
			if failureOf(err).Code != 402 {
				t.Errorf("failure: %+v, %v", res, err)
			}
			res, err = do("failed-after-error", func(ctx context.Context, tx samekey.Tx) error {
				_, _ = tx.Exec(ctx, "select 1/0")
				return processed.Fail(409, nil)
			})
			if failureOf(err).Code != 409 {
				t.Errorf("failure after a failed statement: %+v, %v", res, err)
			}
			if err := commit(); err != nil {
				t.Fatal(err)
			}
			b.stored(1, 0, 2)
			again, err := processed.Run(ctx, b.db.Pool, request(t, "failure", `1`), never)
			if string(failureOf(err).Body) != `"declined"` || !again.Deduplicated {
				t.Errorf("replay: %+v, %v", again, err)
			}
		})
	}
}

// A function that hands on the failure of a request inside it has it as its own.
func TestAFailureInsideIsTheOuterFailureIfReturned(t *testing.T) {
	b := setup(t)
	for _, handOn := range []bool{true, false} {
		k := fmt.Sprint("outer", handOn)
		_, err := processed.Run(t.Context(), b.db.Pool, request(t, k, `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
			res, err := processed.Do(ctx, tx, request(t, "inner", `1`), func(context.Context, samekey.Tx) (order, error) {
				return order{}, processed.Fail(402, "declined")
			})
			if failureOf(err).Code != 402 || res.Deduplicated {
				t.Errorf("inside: %+v, %v", res, err)
			}
			if handOn {
				return res.Value, err
			}
			return order{}, nil
		})
		again, replayed := processed.Run(t.Context(), b.db.Pool, request(t, k, `1`), never)
		if handOn != (failureOf(err).Code == 402) || handOn != (failureOf(replayed).Code == 402) || !again.Deduplicated {
			t.Errorf("handed on %v: %v, then %+v, %v", handOn, err, again, replayed)
		}
	}
	b.stored(0, 0, 3) // the outer failure; then the outer answer and the inner failure
}

func TestDoWithOldSnapshotAsksToRetryTheTransaction(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ctx := t.Context()
			for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
				k := string(level)[:6]
				tx, _, rollback := owner.begin(t, b, level)
				if _, err := tx.Exec(ctx, "select count(*) from orders"); err != nil {
					t.Fatal(err)
				}
				b.mustPlace(request(t, k, `1`), order{k, 7})
				_, err := processed.Do(ctx, tx, request(t, k, `1`), func(ctx context.Context, tx samekey.Tx) (order, error) {
					_, err := tx.Exec(ctx, "insert into orders values ('loser', 1)")
					return order{}, err
				})
				if !processed.SafeToRetry(err) || errors.Is(err, processed.ErrConflict) || errors.Is(err, processed.ErrInFlight) {
					t.Errorf("%s: %v", level, err)
				}
				if err := rollback(); err != nil {
					t.Fatal(err)
				}
				tx, commit, _ := owner.begin(t, b, level)
				res, err := processed.Do(ctx, tx, request(t, k, `1`), neverDo)
				if err != nil || !res.Deduplicated || res.Value.ID != k {
					t.Errorf("%s, again: %+v, %v", level, res, err)
				}
				if err := commit(); err != nil {
					t.Fatal(err)
				}
			}
			b.stored(2, 2, 2)
		})
	}
}

func TestDoInAnAbortedTransactionSaysSo(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			tx, _, rollback := owner.begin(t, b, "")
			_, _ = tx.Exec(t.Context(), "select 1/0")
			if _, err := processed.Do(t.Context(), tx, request(t, "k", `1`), neverDo); err == nil || processed.SafeToRetry(err) {
				t.Errorf("%v", err)
			}
			_ = rollback()
		})
	}
}

func TestDoInsideRunBelongsToRunsTransaction(t *testing.T) {
	b := setup(t)
	both := func(result error) error {
		return b.run("outer", func(ctx context.Context, tx pgx.Tx) error {
			if _, err := insert(ctx, tx, "outer", 1); err != nil {
				return err
			}
			if _, err := processed.Do(ctx, tx, request(t, "inner", `1`), placing(order{"o1", 7})); err != nil {
				return err
			}
			return result
		})
	}
	own := errors.New("own")
	if err := both(own); !errors.Is(err, own) {
		t.Fatal(err)
	}
	b.stored(0, 0, 0)
	if err := both(nil); err != nil {
		t.Fatal(err)
	}
	b.stored(1, 2, 2)
}

func TestDoUnderTheKeyOfItsOwnTransactionIsRefused(t *testing.T) {
	b := setup(t)
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		for _, within := range []samekey.Tx{tx, nested} {
			if _, err := processed.Do(ctx, within, request(t, "k", `1`), neverDo); err == nil || !strings.Contains(err.Error(), "use another key, or leave out this Do") {
				t.Errorf("in Run: %v", err)
			}
		}
		_, err = processed.Do(ctx, tx, request(t, "inner", `1`), func(ctx context.Context, tx samekey.Tx) (order, error) {
			if _, err := processed.Do(ctx, tx, request(t, "inner", `1`), neverDo); err == nil {
				t.Error("in Do it was taken")
			}
			return order{"o1", 7}, place(ctx, tx, order{"o1", 7})
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.stored(1, 1, 2)
}

func TestDoRefusesPoolsAndConnections(t *testing.T) {
	b := setup(t)
	for _, tx := range []samekey.Tx{nil, b.db.Pool} {
		if _, err := processed.Do(t.Context(), tx, request(t, "k", `1`), neverDo); err == nil {
			t.Errorf("%T was taken", tx)
		}
	}
}
