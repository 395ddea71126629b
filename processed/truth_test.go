package processed_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

// endings are texts in which a later statement ends the transaction.
var endings = []string{
	"insert into orders values ('own', 1); commit; begin",
	"insert into orders values ('own', 1); /* ; */ COMMIT -- ;\n ; begin",
	"insert into orders values ('own', 1); end; begin",
	"insert into orders values ('own', 1); commit and chain",
	"insert into orders values (';''', 1); commit; begin",
	"insert into orders values (E';\\'', 1); commit; begin",
	"insert into orders values ($a$;$b$'$a$, 1); commit; begin",
	`insert into orders (id, "amount") values ('"', 1);; ;commit; begin`,
	"do $$ begin perform 1; end $$; insert into orders values ('own', 1); commit; begin",
	"insert into orders values ('own', 1); abort; begin",
	"insert into orders values ('own', 1); prepare transaction 'x'",
	"insert into orders values ('own', 1); rollback work; start transaction",
}

// An error after which something stayed committed must not say that nothing did: the text is refused before any of it
// is executed.
func TestTextThatEndsTheTransactionIsRefused(t *testing.T) {
	for i, text := range endings {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			b, proxy := wired(t, 2)
			calls := 0
			_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
				calls++
				if err := add("a")(ctx, tx); err != nil {
					return order{}, err
				}
				if _, err := tx.Exec(ctx, text); err != nil {
					return order{}, err
				}
				proxy.Cut()
				_, err := tx.Exec(ctx, "select 1")
				return order{}, err
			})
			if err == nil || processed.SafeToRetry(err) || !strings.Contains(err.Error(), "Run owns") || calls != 1 {
				t.Errorf("after %d calls, want the refusal: %v", calls, err)
			}
			b.stored(0, 0, 0)
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = processed.Do(t.Context(), tx, request(t, "k", `1`), func(ctx context.Context, tx samekey.Tx) (int, error) {
				_, err := tx.Exec(ctx, text)
				return 1, err
			})
			if err == nil || processed.SafeToRetry(err) || !strings.Contains(err.Error(), "the caller of Do owns") {
				t.Errorf("Do: want the refusal: %v", err)
			}
			b.stored(0, 0, 0)
		})
	}
}

// What only looks like the end of a transaction passes.
func TestTextThatOnlyMentionsCommitPasses(t *testing.T) {
	b := setup(t)
	err := b.run("k", acts(
		exec("do $$ begin perform 1; end $$; select 1"),
		exec("select 'a'';commit'; select E'\\';commit', 1; select $x$;commit;$x$ /* ;commit; /* */ ; end */ -- ;rollback\n; select 1"),
		exec("savepoint s; rollback to s; rollback to savepoint s; release s"),
		exec("select 1 as \";commit\"; select 1;"),
		exec("create function pg_temp.one() returns int language sql begin atomic; select 1; end; select 1"),
		exec("prepare p as select 1; execute p; deallocate p"),
	))
	if err != nil {
		t.Error(err)
	}
}

// ended gets past the look at the text: by the connection itself, and by a rewriter.
func ended(text string) map[string]act {
	return map[string]act{
		"connection": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, text); return err },
		"rewriter":   exec("select 1", rewriter(text)),
	}
}

// A serialization failure that comes after it must not have the function run again: its rows would be there twice.
func TestFunctionThatEndedItsTransactionIsNotRunAgain(t *testing.T) {
	b := setup(t)
	simple := b.pool(b.db.DSN, 2, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
	for _, text := range []string{"insert into orders values ('own', 1); commit", "insert into orders values ('own', 1); commit; begin"} {
		for name, end := range ended(text) {
			for _, state := range []string{"40001", "55P03"} {
				t.Run(name+" "+state+" "+text, func(t *testing.T) {
					b.exec("truncate orders, samekey.outbox, samekey.outbox_queue, samekey.processed_events")
					calls := 0
					_, err := processed.Run(t.Context(), simple, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
						calls++
						return order{}, errors.Join(end(ctx, tx), driverError(state))
					})
					if !errors.Is(err, processed.ErrAborted) || processed.SafeToRetry(err) || !errors.Is(err, driverError(state)) || calls != 1 {
						t.Errorf("after %d calls: want ErrAborted with the cause: %v", calls, err)
					}
					b.stored(1, 0, 0)
				})
			}
		}
	}
}

func TestDoIsNotSafeToRetryAfterItsTransactionEnded(t *testing.T) {
	for name, owner := range owners() {
		for _, text := range []string{"insert into orders values ('own', 1); commit; begin", "insert into orders values ('own', 1); commit"} {
			t.Run(name+" "+text, func(t *testing.T) {
				b := setup(t)
				outer, commit, _ := owner.begin(t, b, "")
				_, err := processed.Do(t.Context(), outer, request(t, "k", `1`), func(ctx context.Context, _ samekey.Tx) (int, error) {
					_, err := outer.Exec(ctx, text)
					return 0, errors.Join(err, driverError("40001"))
				})
				if !errors.Is(err, processed.ErrAborted) || processed.SafeToRetry(err) {
					t.Errorf("want ErrAborted: %v", err)
				}
				_ = commit()
				b.stored(1, 0, 0)
			})
		}
	}
}
