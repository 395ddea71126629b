package processed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

// What Do's function was given takes nothing more when the function has returned: the record is written, and what came
// later would be part of no request.
func TestDoClosesItsTransactionWhenTheFunctionReturns(t *testing.T) {
	ends := map[string]func() error{
		"answer":  func() error { return nil },
		"failure": func() error { return processed.Fail(402, nil) },
		"error":   func() error { return errors.New("own") },
		"panic":   func() error { panic("own") },
	}
	for name, owner := range owners() {
		for end, result := range ends {
			t.Run(name+", "+end, func(t *testing.T) {
				b := setup(t)
				ctx := t.Context()
				tx, commit, _ := owner.begin(t, b, "")
				var kept samekey.Tx
				func() {
					defer func() { _ = recover() }()
					_, _ = processed.Do(ctx, tx, request(t, "k", `1`), func(_ context.Context, tx samekey.Tx) (int, error) {
						kept = tx
						return 1, result()
					})
				}()
				if _, err := insert(ctx, kept, "late", 1); !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("Insert: %v", err)
				}
				if _, err := kept.Exec(ctx, "select 1"); !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("Exec: %v", err)
				}
				rows, err := kept.Query(ctx, "select 1")
				rows.Close()
				if !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("Query: %v", err)
				}
				if err := kept.QueryRow(ctx, "select 1").Scan(new(int)); !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("QueryRow: %v", err)
				}
				if sender, ok := kept.(interface {
					SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
				}); ok {
					var batch pgx.Batch
					batch.Queue("select 1")
					if err := sender.SendBatch(ctx, &batch).Close(); !errors.Is(err, pgx.ErrTxClosed) {
						t.Errorf("SendBatch: %v", err)
					}
				}
				if err := commit(); err != nil {
					t.Fatal(err)
				}
				if n := b.count("samekey.outbox"); n != 0 {
					t.Errorf("%d intents", n)
				}
			})
		}
	}
}

// A goroutine that Do's function has left in a statement cannot write to what the caller commits.
func TestStatementLeftBehindByDoIsNotCommitted(t *testing.T) {
	for name, end := range map[string]func() error{
		"it returned":       func() error { return nil },
		"it failed":         func() error { return errors.New("own") },
		"it kept a failure": func() error { return processed.Fail(409, nil) },
		"it panicked":       func() error { panic("own") },
	} {
		leaving := func(done chan<- error, arg late) func(context.Context, samekey.Tx) (int, error) {
			return func(ctx context.Context, tx samekey.Tx) (int, error) {
				go func() {
					_, err := tx.Exec(context.WithoutCancel(ctx), "insert into orders (id, amount) values ('late', 1)", arg)
					done <- err
				}()
				<-arg.begun
				return 1, end()
			}
		}
		t.Run("in a transaction, "+name, func(t *testing.T) {
			b := setup(t)
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			arg, done := late{make(chan struct{}), make(chan struct{})}, make(chan error, 1)
			func() {
				defer func() { _ = recover() }()
				_, err := processed.Do(t.Context(), tx, request(t, "k", "1"), leaving(done, arg))
				if err == nil || name == "it returned" && !errors.Is(err, processed.ErrAborted) {
					t.Errorf("Do: %v", err)
				}
			}()
			close(arg.goOn)
			if err := <-done; err == nil {
				t.Error("the late statement was executed")
			}
			if err := tx.Commit(t.Context()); err == nil {
				t.Error("the transaction was committed")
			}
			b.stored(0, 0, 0)
		})
		t.Run("in Run, "+name, func(t *testing.T) {
			b := setup(t)
			arg, done := late{make(chan struct{}), make(chan struct{})}, make(chan error, 1)
			err := b.run("outer", func(ctx context.Context, tx pgx.Tx) error {
				func() {
					defer func() { _ = recover() }()
					_, _ = processed.Do(ctx, tx, request(t, "k", "1"), leaving(done, arg))
				}()
				close(arg.goOn)
				<-done
				return nil // what Do said is ignored
			})
			if !errors.Is(err, processed.ErrAborted) {
				t.Errorf("Run: %v", err)
			}
			b.stored(0, 0, 0)
		})
	}
}

// The connection serves the next request by then, whose transaction a late write would join.
func TestLargeObjectsEndWithTheirTransaction(t *testing.T) {
	for name, end := range map[string]error{"committed": nil, "failed": errors.New("mine"), "a failure": processed.Fail(409, nil)} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pool := b.pool(b.db.DSN, 1, nil)
			var kept pgx.LargeObjects
			_, err := processed.Run(t.Context(), pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (int, error) {
				kept = tx.LargeObjects()
				_, err := kept.Create(ctx, 0)
				return 1, errors.Join(err, end)
			})
			if end == nil && err != nil {
				t.Error(err)
			}
			if oid, err := kept.Create(t.Context(), 0); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("made object %d after the end: %v", oid, err)
			}
			if err := pool.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
