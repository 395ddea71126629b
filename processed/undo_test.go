package processed_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// act is one thing that a function does in its transaction.
type act func(context.Context, pgx.Tx) error

func acts(all ...act) act {
	return func(ctx context.Context, tx pgx.Tx) error {
		for _, do := range all {
			if err := do(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	}
}

func exec(text string, args ...any) act {
	return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, text, args...); return err }
}

func add(part string) act {
	return func(ctx context.Context, tx pgx.Tx) error { _, err := insert(ctx, tx, part, 1); return err }
}

// orderRow writes an order, so that a test sees whether its rows were kept.
func orderRow(id string) act { return exec("insert into orders (id, amount) values ($1, 7)", id) }

// nested does the steps in a nested transaction and ends it.
func nested(end func(pgx.Tx, context.Context) error, all ...act) act {
	return func(ctx context.Context, tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := acts(all...)(ctx, inner); err != nil {
			return err
		}
		return end(inner, ctx)
	}
}

// rewriter is an argument that puts another statement in the place of the text.
type rewriter string

func (r rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

// undoers is a pool on whose connections statements that deal with savepoints are prepared under names that say nothing
// of them.
func (b *bundle) undoers() *pgxpool.Pool {
	return b.pool(b.db.DSN, 2, func(config *pgxpool.Config) {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			for name, text := range map[string]string{"undo": "rollback to savepoint s", "mark": "savepoint s", "select_undo": "rollback to savepoint s"} {
				if _, err := conn.Prepare(ctx, name, text); err != nil {
					return err
				}
			}
			return nil
		}
	})
}

// What a rollback to a savepoint takes back is what came after the savepoint, rows and intents alike, however the two
// statements reach the database.
func TestEveryUndoRemovesItsIntents(t *testing.T) {
	commit, rollback := pgx.Tx.Commit, pgx.Tx.Rollback
	raw := func(text string) act {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, text); return err }
	}
	query := func(text string, args ...any) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, text, args...)
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		}
	}
	queryRow := func(text string) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, text).Scan(); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil
		}
	}
	batch := func(text string, args ...any) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("select 1")
			b.Queue(text, args...)
			return tx.SendBatch(ctx, &b).Close()
		}
	}
	rowsConn := func(text string) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select 1")
			if err != nil {
				return err
			}
			rows.Close()
			_, err = rows.Conn().Exec(ctx, text)
			return err
		}
	}
	prepared := func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Prepare(ctx, "later", "rollback to savepoint s"); err != nil {
			return err
		}
		return acts(exec("savepoint s"), add("b"), exec("later"))(ctx, tx)
	}
	swallow := func(s act) act {
		return func(ctx context.Context, tx pgx.Tx) error { _ = s(ctx, tx); return nil }
	}
	inDo := func(fail bool, all ...act) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			own := errors.New("own")
			_, err := processed.Do(ctx, tx, processed.Request{Key: key(t, "inner"), Payload: []byte("1")}, func(ctx context.Context, inner samekey.Tx) (int, error) {
				if _, err := insert(ctx, inner, "b", 1); err != nil {
					return 0, err
				}
				if fail {
					return 0, own
				}
				return 1, nil
			})
			if fail && errors.Is(err, own) {
				err = nil
			}
			return err
		}
	}
	b := setup(t)
	pool := b.undoers()
	for name, c := range map[string]struct {
		do   act
		want string
	}{
		"pgx's own savepoint by name":      {acts(add("a"), nested(commit, add("b"), exec("rollback to savepoint sp_1"), add("c"))), "a c"},
		"without the keyword":              {acts(add("a"), nested(commit, add("b"), exec("rollback to sp_1"), add("c"))), "a c"},
		"twice":                            {acts(add("a"), nested(commit, add("b"), exec("rollback to sp_1"), add("c"), exec("rollback to sp_1")), add("d")), "a d"},
		"from within a deeper one":         {acts(add("a"), nested(commit, add("b"), nested(commit, add("c")), exec("rollback to sp_1"))), "a"},
		"two levels at once":               {acts(add("a"), nested(commit, add("b"), nested(func(pgx.Tx, context.Context) error { return nil }, add("c"), exec("rollback to sp_1")))), "a"},
		"past the connection":              {acts(add("a"), nested(commit, add("b"), raw("rollback to sp_1"))), "a"},
		"past the rows' connection":        {acts(add("a"), nested(commit, add("b"), rowsConn("rollback to sp_1"), add("c"))), "a c"},
		"in a text of several statements":  {acts(add("a"), exec("select 1; savepoint s"), add("b"), exec("select 1; rollback to s"), add("c")), "a c"},
		"behind a literal and a semicolon": {acts(add("a"), exec("select ';'; savepoint s"), add("b"), exec("select $$;$$;rollback to s")), "a"},
		"with comments":                    {acts(add("a"), exec("/* s */ SAVEPOINT/**/s"), add("b"), exec("--\nROLLBACK/**/TO/**/s"), add("c")), "a c"},
		"rollback work to":                 {acts(add("a"), exec("savepoint s"), add("b"), exec("rollback work to s")), "a"},
		"rollback transaction to":          {acts(add("a"), exec("savepoint s"), add("b"), exec("rollback transaction to savepoint s")), "a"},
		"prepared under a name":            {acts(add("a"), exec("mark"), add("b"), exec("undo"), add("c")), "a c"},
		"prepared as if it were a select":  {acts(add("a"), exec("mark"), add("b"), exec("select_undo")), "a"},
		"prepared by the function":         {acts(add("a"), prepared), "a"},
		"from a rewriter":                  {acts(add("a"), exec("select 1", rewriter("savepoint s")), add("b"), exec("select 1", rewriter("rollback to s")), add("c")), "a c"},
		"with Query":                       {acts(add("a"), query("savepoint s"), add("b"), query("rollback to s")), "a"},
		"with Query and a rewriter":        {acts(add("a"), query("select 1", rewriter("savepoint s")), add("b"), query("select 1", rewriter("rollback to s"))), "a"},
		"with QueryRow":                    {acts(add("a"), queryRow("savepoint s"), add("b"), queryRow("rollback to s")), "a"},
		"in a batch":                       {acts(add("a"), batch("savepoint s"), add("b"), batch("rollback to s"), add("c")), "a c"},
		"in a batch with a rewriter":       {acts(add("a"), batch("select 1", rewriter("savepoint s")), add("b"), batch("select 1", rewriter("rollback to s"))), "a"},
		"released by name":                 {acts(add("a"), nested(func(pgx.Tx, context.Context) error { return nil }, add("b"), exec("release sp_1"), add("c"))), "a b c"},
		"after a failed statement":         {acts(add("a"), exec("savepoint s"), add("b"), swallow(exec("select 1/0")), exec("rollback to s"), add("c")), "a c"},
		"after a failed one, nested":       {acts(add("a"), nested(rollback, add("b"), swallow(exec("select 1/0"))), add("c")), "a c"},
		"the same again after it":          {acts(add("a"), nested(commit, add("b"), exec("rollback to sp_1"), add("b")), add("a")), "a b"},
		"an intent again in a nested one":  {acts(add("a"), nested(rollback, add("a"), add("b"))), "a"},
		"Do that fails":                    {acts(add("a"), inDo(true), add("c")), "a c"},
		"Do in a nested one":               {acts(add("a"), nested(rollback, add("x"), inDo(false)), add("c")), "a c"},
		"a function with an exception": {acts(add("a"), exec(`do $$ begin insert into orders values ('o1', 7); perform 1/0;
			exception when division_by_zero then null; end $$`), add("b")), "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			b.exec("truncate samekey.outbox, samekey.outbox_queue, samekey.processed_events")
			_, err := processed.Run(t.Context(), pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
				return struct{}{}, c.do(ctx, tx)
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

// The record and the intents are those of the transaction that Run began, and of no other that a statement put in its
// place.
func TestRunNoticesThatItsTransactionWasReplaced(t *testing.T) {
	b := setup(t)
	simple := b.pool(b.db.DSN, 2, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
	raw := func(text string) act {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, text); return err }
	}
	// A rewriter gets past the look at the text.
	past := func(text string) act { return exec("select 1", rewriter(text)) }
	query := func(text string) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select 1", rewriter(text))
			if err == nil {
				rows.Close()
				err = rows.Err()
			}
			return err
		}
	}
	batch := func(text string) act {
		return func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("select 1", rewriter(text))
			return tx.SendBatch(ctx, &b).Close()
		}
	}
	keep := func(pgx.Tx, context.Context) error { return nil }
	for name, c := range map[string]struct {
		do      act
		commits bool // what the function wrote before
	}{
		"rollback and begin":         {past("select 1; rollback; begin"), false},
		"rollback and chain":         {past("select 1; rollback and chain"), false},
		"abort and chain":            {past("select 1; abort and chain"), false},
		"commit and chain":           {past("select 1; commit and chain"), true},
		"commit and begin":           {past("select 1; commit; begin"), true},
		"end and start":              {past("select 1; end; start transaction"), true},
		"another isolation level":    {past("select 1; rollback; begin isolation level serializable"), false},
		"past the connection":        {raw("rollback; begin"), false},
		"in two statements":          {acts(past("select 1; rollback"), raw("begin")), false},
		"in a nested transaction":    {nested(keep, past("select 1; rollback; begin")), false},
		"with its savepoint":         {nested(pgx.Tx.Commit, past("select 1; rollback; begin; savepoint sp_1")), false},
		"with Query, simple":         {query("select 1; rollback; begin"), false},
		"with SendBatch, simple":     {batch("select 1; rollback; begin"), false},
		"and rows written after it":  {acts(past("select 1; rollback; begin"), orderRow("o2")), false},
		"from a rewriter":            {acts(past("rollback; begin")), false},
		"from a failed state":        {acts(func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil }, raw("rollback; begin")), false},
		"the intents written before": {acts(raw("select 1"), past("select 1; rollback; begin")), false},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, result := range map[string]error{"answer": nil, "failure": processed.Fail(402, nil)} {
				b.exec("truncate orders, samekey.outbox, samekey.outbox_queue, samekey.processed_events")
				_, err := processed.Run(t.Context(), simple, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
					return struct{}{}, errors.Join(acts(orderRow("o1"), add("a"), c.do)(ctx, tx), result)
				})
				if !errors.Is(err, processed.ErrAborted) || processed.SafeToRetry(err) || !strings.Contains(err.Error(), "began another") {
					t.Errorf("%s: want ErrAborted that says what happened: %v", kind, err)
				}
				orders := 0
				if c.commits {
					orders = 1
				}
				if kind == "failure" && strings.Contains(name, "failed state") {
					continue
				}
				if got := [3]int{b.count("orders"), b.count("samekey.outbox"), b.count("samekey.processed_events")}; got[0] != orders || got[2] != 0 || got[1] != 0 && !c.commits {
					t.Errorf("%s: orders, intents, records: %v", kind, got)
				}
			}
		})
	}
}

func TestDoNoticesThatItsTransactionWasReplaced(t *testing.T) {
	for name, owner := range owners() {
		for _, text := range []string{"select 1; rollback; begin", "select 1; rollback and chain", "select 1; commit and chain",
			"select 1; rollback; begin; savepoint samekey_do"} {
			t.Run(name+", "+text, func(t *testing.T) {
				b := setup(t)
				tx, commit, _ := owner.begin(t, b, "")
				outer := tx // whose texts are not looked at
				_, err := processed.Do(t.Context(), tx, request(t, "k", `1`), func(ctx context.Context, tx samekey.Tx) (int, error) {
					_, err := outer.Exec(ctx, text)
					if err != nil {
						return 0, err
					}
					_, err = outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Payload: 1})
					return 1, err
				})
				if !errors.Is(err, processed.ErrAborted) || processed.SafeToRetry(err) {
					t.Errorf("want ErrAborted: %v", err)
				}
				_ = commit()
				b.stored(0, 0, 0)
			})
		}
	}
}

// The intents would be lost with what the connection is used for: better an error.
func TestTheConnectionIsNotTakenWhileRowsAreOpen(t *testing.T) {
	b := setup(t)
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		if err := add("a")(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "select 1")
		if err != nil {
			return err
		}
		defer rows.Close()
		_ = rows.Conn()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "while rows are open") {
		t.Errorf("want an error that says what to close: %v", err)
	}
	b.stored(0, 0, 0)
}
