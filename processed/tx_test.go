package processed_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// run runs fn once more than nothing: its error is the test's business.
func (b *bundle) run(k string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	_, err := processed.Run(b.t.Context(), b.db.Pool, request(b.t, k, `1`), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, fn(ctx, tx)
	})
	return err
}

func TestSwallowedSQLErrorStoresNothing(t *testing.T) {
	b := setup(t)
	b.exec("insert into orders values ('taken', 1)")
	calls := 0
	duplicate := func(ctx context.Context, tx pgx.Tx) error {
		calls++
		_, err := tx.Exec(ctx, "insert into orders values ('taken', 1)")
		return err
	}
	for name, fn := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"duplicate": func(ctx context.Context, tx pgx.Tx) error {
			_ = place(ctx, tx, order{"o1", 7})
			_ = duplicate(ctx, tx)
			return nil
		},
		"broken batch": func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("select 1/0")
			_ = tx.SendBatch(ctx, batch).Close()
			return nil
		},
		"in a nested transaction that is kept": func(ctx context.Context, tx pgx.Tx) error {
			nested, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_ = duplicate(ctx, nested)
			_ = nested.Commit(ctx)
			return nil
		},
		"ended by a statement": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select 1", rewriter("rollback"))
			return err
		},
	} {
		if err := b.run("k", fn); !errors.Is(err, processed.ErrAborted) || processed.SafeToRetry(err) {
			t.Errorf("%s: %v", name, err)
		}
		b.stored(1, 0, 0)
	}
	// The application's own unique violation is its own error, not a replay.
	calls = 0
	if err := b.run("k", duplicate); err == nil || !strings.Contains(err.Error(), "orders_pkey") || processed.SafeToRetry(err) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	b.stored(1, 0, 0)
	// So is that of a table with the name of samekey's own.
	b.exec("create table processed_events (id int primary key)")
	b.exec("insert into processed_events values (1)")
	calls = 0
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		calls++
		_, err := tx.Exec(ctx, "insert into processed_events values (1)")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "processed_events_pkey") || processed.SafeToRetry(err) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	// A failed statement that is rolled back by itself does no harm.
	err = b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_ = duplicate(ctx, nested)
		if err := nested.Rollback(ctx); err != nil {
			return err
		}
		return place(ctx, tx, order{"o1", 7})
	})
	if err != nil {
		t.Fatal(err)
	}
	b.stored(2, 1, 1)
}

func TestErrorsPanicsAndCancelledContextsStoreNothing(t *testing.T) {
	b := setup(t)
	own := errors.New("own")
	if err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(place(ctx, tx, order{"o1", 7}), own)
	}); !errors.Is(err, own) {
		t.Errorf("error: %v", err)
	}
	b.stored(0, 0, 0)

	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not come through")
			}
		}()
		_ = b.run("k", func(ctx context.Context, tx pgx.Tx) error {
			_ = place(ctx, tx, order{"o1", 7})
			panic("boom")
		})
	}()
	b.stored(0, 0, 0)

	for name, result := range map[string]error{"answer": nil, "failure": processed.Fail(402, nil)} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := processed.Run(ctx, b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
			_ = place(ctx, tx, order{"o1", 7})
			cancel()
			return struct{}{}, result
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled, %s: %v", name, err)
		}
		b.stored(0, 0, 0)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := processed.Run(ended, b.db.Pool, request(t, "k", `1`), never); !errors.Is(err, context.Canceled) || processed.SafeToRetry(err) {
		t.Errorf("cancelled before it began: %v", err)
	}
	// The key is unused.
	b.mustPlace(request(t, "k", `2`), order{"o1", 7})
	b.stored(1, 1, 1)
}

func TestTheFunctionCannotEndTheTransactionOfRun(t *testing.T) {
	b := setup(t)
	var kept pgx.Tx
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		kept = tx
		defer func() { _ = tx.Rollback(ctx) }()
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("Commit or Rollback worked")
		}
		for _, sql := range []string{"commit", " COMMIT;", "end", "Rollback", "rollback work", "abort", "prepare transaction 'x'", "Begin", "start transaction",
			"/* trace */ commit", "-- trace\ncommit", ";/* a /* b */ **/;\n--\n commit", "rollback /* all */ work", "rollback -- to savepoint x\n"} {
			if _, err := tx.Exec(ctx, sql); err == nil {
				t.Errorf("%q worked", sql)
			}
		}
		return place(ctx, tx, order{"o1", 7})
	})
	if err != nil {
		t.Fatal(err)
	}
	b.stored(1, 1, 1)
	// Afterwards another caller may use the connection.
	if _, err := kept.Exec(t.Context(), "select 1"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a statement after Run: %v", err)
	}
	if _, err := outbox.Insert(t.Context(), kept, outbox.Intent{Action: "late", Payload: 1}); !errors.Is(err, pgx.ErrTxClosed) || !strings.Contains(err.Error(), `outbox: insert "late" intent`) {
		t.Errorf("an intent after Run: %v", err)
	}
	objects := kept.LargeObjects()
	if _, err := objects.Create(t.Context(), 0); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a large object after Run: %v", err)
	}
}

func TestStatementsAfterACommentPass(t *testing.T) {
	b := setup(t)
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{"/* commit */ select 1", "-- commit\nselect 1", "/* */", "--", "/* a */ savepoint x", "rollback /* */ to x", "/*/ commit */ select 1"} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				t.Errorf("%q: %v", sql, err)
			}
		}
		return place(ctx, tx, order{"o1", 7})
	})
	if err != nil {
		t.Fatal(err)
	}
	b.stored(1, 1, 1)
}

// Meant for the race detector too.
func TestInsertOfAnOutlivingGoroutineIsStoredOrRefused(t *testing.T) {
	b := setup(t)
	inserted := make(chan int)
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		begun := make(chan struct{})
		go func() {
			n := 0
			for {
				_, err := insert(ctx, tx, fmt.Sprint(n), 1)
				if n == 0 {
					close(begun)
				}
				if err != nil {
					if !errors.Is(err, pgx.ErrTxClosed) {
						t.Error(err)
					}
					break
				}
				n++
			}
			inserted <- n
		}()
		<-begun
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, stored := <-inserted, b.count("samekey.outbox"); n != stored {
		t.Errorf("%d inserts gave an id, %d intents are stored", n, stored)
	}
}

func insert(ctx context.Context, tx samekey.Tx, part string, payload int) (uuid.UUID, error) {
	return outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Part: part, Payload: payload})
}

// parts are the intents that are there.
func (b *bundle) parts() string {
	b.t.Helper()
	var parts string
	if err := b.db.QueryRow(b.t.Context(), "select coalesce(string_agg(part, ' ' order by part), '') from samekey.outbox").Scan(&parts); err != nil {
		b.t.Fatal(err)
	}
	return parts
}

func TestIntentsShareTheFateOfTheirSavepoint(t *testing.T) {
	sql := func(text string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, text); return err }
	}
	add := func(part string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := insert(ctx, tx, part, 1); return err }
	}
	nested := func(keep bool, steps ...func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			for _, step := range steps {
				if err := step(ctx, inner); err != nil {
					return err
				}
			}
			if keep {
				return inner.Commit(ctx)
			}
			return inner.Rollback(ctx)
		}
	}
	conn := func(ctx context.Context, tx pgx.Tx) error { _ = tx.Conn(); return nil }
	b := setup(t)
	for name, c := range map[string]struct {
		steps []func(context.Context, pgx.Tx) error
		want  string
	}{
		"nested, kept":               {[]func(context.Context, pgx.Tx) error{add("a"), nested(true, add("b")), add("c")}, "a b c"},
		"nested, rolled back":        {[]func(context.Context, pgx.Tx) error{add("a"), nested(false, add("b")), add("c")}, "a c"},
		"nested twice":               {[]func(context.Context, pgx.Tx) error{nested(true, add("a"), nested(false, add("b")), add("c"))}, "a c"},
		"nested in what is undone":   {[]func(context.Context, pgx.Tx) error{add("z"), nested(false, add("a"), nested(true, add("b")))}, "z"},
		"undone and added again":     {[]func(context.Context, pgx.Tx) error{nested(false, add("a")), add("a")}, "a"},
		"raw savepoint":              {[]func(context.Context, pgx.Tx) error{add("a"), sql("SavePoint s"), add("b"), sql("rollback to s"), add("c")}, "a c"},
		"raw savepoint, released":    {[]func(context.Context, pgx.Tx) error{add("a"), sql("savepoint s"), add("b"), sql("release s")}, "a b"},
		"raw savepoint in a nested":  {[]func(context.Context, pgx.Tx) error{add("a"), nested(false, add("b"), sql("savepoint s"), add("c")), add("d")}, "a d"},
		"the connection taken":       {[]func(context.Context, pgx.Tx) error{add("a"), conn, add("b")}, "a b"},
		"the connection in a nested": {[]func(context.Context, pgx.Tx) error{add("a"), nested(false, add("b"), conn), add("d")}, "a d"},
		"a savepoint in a batch": {[]func(context.Context, pgx.Tx) error{add("a"), func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("savepoint s")
			return tx.SendBatch(ctx, batch).Close()
		}, add("b"), sql("rollback to savepoint s")}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			b.exec("truncate samekey.outbox, samekey.outbox_queue")
			err := b.run(strings.ReplaceAll(name, " ", "-"), func(ctx context.Context, tx pgx.Tx) error {
				for _, step := range c.steps {
					if err := step(ctx, tx); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := b.parts(); got != c.want {
				t.Errorf("intents %q, want %q", got, c.want)
			}
		})
	}
}

func TestIntentTwiceInOneRunIsOneUnlessItsPayloadDiffers(t *testing.T) {
	b := setup(t)
	var first, second uuid.UUID
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) (err error) {
		if first, err = insert(ctx, tx, "", 1); err != nil {
			return err
		}
		second, err = insert(ctx, tx, "", 1)
		return err
	})
	if err != nil || first != second || first == uuid.Nil {
		t.Fatalf("%v %v, %v", first, second, err)
	}
	for name, before := range map[string]func(context.Context, pgx.Tx) error{
		"queued":  func(context.Context, pgx.Tx) error { return nil },
		"written": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "savepoint s"); return err },
	} {
		conflict := (*outbox.ConflictError)(nil)
		err = b.run("k2", func(ctx context.Context, tx pgx.Tx) error {
			if err := before(ctx, tx); err != nil {
				return err
			}
			if _, err := insert(ctx, tx, "", 1); err != nil {
				return err
			}
			if _, err := insert(ctx, tx, "", 2); !errors.As(err, &conflict) {
				t.Errorf("%s: insert: %v", name, err)
			}
			return nil // swallowed
		})
		if err == nil || name == "queued" && !errors.As(err, &conflict) {
			t.Errorf("%s: run: %v", name, err)
		}
	}
	b.stored(0, 1, 1)
}

func TestIntentWrittenOutsideRunIsNotWrittenAgain(t *testing.T) {
	b := setup(t)
	var before uuid.UUID
	err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) (err error) {
		before, err = outbox.Insert(t.Context(), tx, outbox.Intent{Key: key(t, "k"), Action: "send_mail", Payload: 1})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	calls, got := 0, uuid.Nil
	err = b.run("k", func(ctx context.Context, tx pgx.Tx) (err error) {
		calls++
		got, err = insert(ctx, tx, "", 1)
		return err
	})
	if err != nil || got != before || calls != 2 {
		t.Fatalf("id %v, want %v; %d calls; %v", got, before, calls, err)
	}
	conflict := (*outbox.ConflictError)(nil)
	err = pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) (err error) {
		_, err = outbox.Insert(t.Context(), tx, outbox.Intent{Key: key(t, "k3"), Action: "send_mail", Payload: 1})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = b.run("k3", func(ctx context.Context, tx pgx.Tx) error { _, err := insert(ctx, tx, "", 2); return err })
	if !errors.As(err, &conflict) {
		t.Errorf("another payload: %v", err)
	}
	b.stored(0, 2, 1)
}
