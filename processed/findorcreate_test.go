package processed_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

var monday = time.Date(2026, time.March, 2, 0, 0, 0, 0, time.UTC)

func setupTickets(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	b.exec(ticketTables)
	return b
}

type found struct {
	processed.Result[int64]
	err error
}

// ticket calls in the background, for what has to wait for others.
func (b *bundle) ticket(tx samekey.Tx, subject string) <-chan found {
	done := make(chan found, 1)
	go func() {
		res, err := findOrCreateTicket(b.t.Context(), tx, "acme", subject, monday)
		done <- found{res, err}
	}()
	return done
}

// want fails unless the call gave the row, new or not; it returns its id.
func (f found) want(t *testing.T, deduplicated bool) int64 {
	t.Helper()
	if f.err != nil || f.Deduplicated != deduplicated || f.Value == 0 {
		t.Fatalf("%+v, %v, want deduplicated %v", f.Result, f.err, deduplicated)
	}
	return f.Value
}

func (f found) wantAgain(t *testing.T, state string) {
	t.Helper()
	refused := (*pgconn.PgError)(nil)
	if !processed.SafeToRetry(f.err) || !errors.As(f.err, &refused) || refused.Code != state || !strings.Contains(f.err.Error(), "whole transaction again") {
		t.Fatalf("%+v, %v, want %s and the whole transaction again", f.Result, f.err, state)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tickets fails unless that many are committed.
func (b *bundle) tickets(n int) {
	b.t.Helper()
	if got := b.count("tickets"); got != n {
		b.t.Fatalf("%d tickets, want %d", got, n)
	}
}

func TestTwentyCallsAtOnceCreateOneRow(t *testing.T) {
	for name, call := range map[string]func(b *bundle, pool *pgxpool.Pool, db *sql.DB, i int) (int64, bool, error){
		"each in a transaction of pgx": func(b *bundle, pool *pgxpool.Pool, _ *sql.DB, i int) (id int64, again bool, err error) {
			err = pgx.BeginFunc(b.t.Context(), pool, func(tx pgx.Tx) error {
				res, err := findOrCreateTicket(b.t.Context(), tx, "acme", spelling(i), monday)
				id, again = res.Value, res.Deduplicated
				return err
			})
			return id, again, err
		},
		"each in a transaction of database/sql": func(b *bundle, _ *pgxpool.Pool, db *sql.DB, i int) (int64, bool, error) {
			tx, err := db.BeginTx(b.t.Context(), nil)
			if err != nil {
				return 0, false, err
			}
			defer func() { _ = tx.Rollback() }()
			res, err := findOrCreateTicket(b.t.Context(), samekey.SQL(tx), "acme", spelling(i), monday)
			return res.Value, res.Deduplicated, errors.Join(err, tx.Commit())
		},
		"each in Run under a key of its own": func(b *bundle, pool *pgxpool.Pool, _ *sql.DB, i int) (int64, bool, error) {
			res, err := openTicket(b.t.Context(), pool, request(b.t, fmt.Sprint("k", i), `1`), "acme", spelling(i), monday)
			return res.Value.ID, !res.Value.New, err
		},
		"each in Do under a key of its own": func(b *bundle, pool *pgxpool.Pool, _ *sql.DB, i int) (id int64, again bool, err error) {
			err = pgx.BeginFunc(b.t.Context(), pool, func(tx pgx.Tx) error {
				res, err := processed.Do(b.t.Context(), tx, request(b.t, fmt.Sprint("k", i), `1`), func(ctx context.Context, tx samekey.Tx) (Ticket, error) {
					res, err := findOrCreateTicket(ctx, tx, "acme", spelling(i), monday)
					return Ticket{res.Value, !res.Deduplicated}, err
				})
				id, again = res.Value.ID, !res.Value.New
				return err
			})
			return id, again, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			pool := b.pool(b.db.DSN, 20, nil)
			db, err := sql.Open("pgx", b.db.DSN)
			ok(t, err)
			t.Cleanup(func() { _ = db.Close() })
			var (
				mu           sync.Mutex
				ids          = map[int64]int{}
				deduplicated int
				start        = make(chan struct{})
				all          sync.WaitGroup
			)
			for i := range 20 {
				all.Go(func() {
					<-start
					id, again, err := call(b, pool, db, i)
					mu.Lock()
					defer mu.Unlock()
					if ids[id]++; again {
						deduplicated++
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			close(start)
			all.Wait()
			if len(ids) != 1 || deduplicated != 19 {
				t.Errorf("ids %v, %d deduplicated, want one id and 19", ids, deduplicated)
			}
			b.tickets(1)
			if strings.Contains(name, "Run") {
				if mails := b.count("samekey.outbox where action = 'confirm_ticket'"); mails != 1 {
					t.Errorf("%d intents, want that of the one who made the row", mails)
				}
			}
		})
	}
}

// spelling is one subject, written in many ways.
func spelling(i int) string {
	return []string{"Printer on fire", " printer on fire", "PRINTER  ON\tFIRE\n", "printer on Fire "}[i%4]
}

func TestConstraintDefinesTheSameRow(t *testing.T) {
	b := setupTickets(t)
	ids := map[int64]string{}
	for _, c := range []struct {
		customer, subject string
		day               time.Time
		again             bool
	}{
		{"acme", "Printer on fire", monday, false},
		{"acme", "\n printer   ON fire ", monday, true},
		{"acme", "Printer on fire", monday.AddDate(0, 0, 1), false},
		{"zenith", "Printer on fire", monday, false},
		{"acme", "Printer onfire", monday, false},
		{"zenith", "printer on fire", monday, true},
	} {
		err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
			res, err := findOrCreateTicket(t.Context(), tx, c.customer, c.subject, c.day)
			found{res, err}.want(t, c.again)
			if _, known := ids[res.Value]; known != c.again {
				t.Errorf("%+v has id %d, that of %q", c, res.Value, ids[res.Value])
			}
			ids[res.Value] = c.subject
			return err
		})
		ok(t, err)
	}
	b.tickets(4)
}

func ticketInsert(action string) processed.Statement {
	return processed.Statement{
		SQL:  "insert into tickets (customer, subject, day) values ('acme', 'Printer on fire', $1) on conflict (customer, subject_norm, day) " + action,
		Args: []any{monday},
	}
}

func ticketSelect(columns, lock string) processed.Statement {
	return processed.Statement{
		SQL:  "select " + columns + " from tickets where customer = 'acme' and subject_norm = 'printer on fire' and day = $1" + lock,
		Args: []any{monday},
	}
}

func TestUnsuitableStatementsAreRefusedBeforeSending(t *testing.T) {
	b := setupTickets(t)
	tx, err := b.db.Begin(t.Context())
	ok(t, err)
	good, look := ticketInsert("do nothing returning id"), ticketSelect("id", "")
	bare := good
	bare.SQL, _, _ = strings.Cut(good.SQL, "on conflict")
	conn, err := b.db.Acquire(t.Context())
	ok(t, err)
	defer conn.Release()
	for name, c := range map[string]struct {
		tx           samekey.Tx
		create, find processed.Statement
		row          pgx.RowToFunc[int64]
		says         string
	}{
		"no transaction":       {nil, good, look, pgx.RowTo[int64], "tx is nil"},
		"a pool":               {b.db.Pool, good, look, pgx.RowTo[int64], "*pgxpool.Pool"},
		"a pool's connection":  {conn, good, look, pgx.RowTo[int64], "*pgxpool.Conn"},
		"a connection":         {conn.Conn(), good, look, pgx.RowTo[int64], "*pgx.Conn"},
		"no create":            {tx, processed.Statement{SQL: " \n"}, look, pgx.RowTo[int64], "create has no SQL"},
		"no find":              {tx, good, processed.Statement{}, pgx.RowTo[int64], "find has no SQL"},
		"no row":               {tx, good, look, nil, "row is nil"},
		"no ON CONFLICT":       {tx, bare, look, pgx.RowTo[int64], "without ON CONFLICT"},
		"DO UPDATE":            {tx, ticketInsert("do\n  UPDATE set subject = excluded.subject returning id"), look, pgx.RowTo[int64], "DO UPDATE"},
		"DO/**/UPDATE":         {tx, ticketInsert("do/* nothing */update set subject = 'do nothing' returning id"), look, pgx.RowTo[int64], "DO UPDATE"},
		"DO NOTHING in a text": {tx, processed.Statement{SQL: strings.Replace(bare.SQL, "Printer on fire", "on conflict do nothing", 1), Args: bare.Args}, look, pgx.RowTo[int64], "without ON CONFLICT"},
		"in a comment":         {tx, processed.Statement{SQL: bare.SQL + "-- on conflict do nothing", Args: bare.Args}, look, pgx.RowTo[int64], "without ON CONFLICT"},
		"a CTE":                {tx, processed.Statement{SQL: "/* insert */ with n as (" + good.SQL + ") select id from n union all " + look.SQL, Args: good.Args}, look, pgx.RowTo[int64], "begin with INSERT"},
		"a SELECT":             {tx, look, look, pgx.RowTo[int64], "begin with INSERT"},
		"a MERGE":              {tx, processed.Statement{SQL: "merge into tickets using tickets t on false when not matched then do nothing"}, look, pgx.RowTo[int64], "begin with INSERT"},
		"a find that inserts":  {tx, good, processed.Statement{SQL: "with n as (" + good.SQL + ") select id from n", Args: good.Args}, pgx.RowTo[int64], "find inserts"},
	} {
		res, err := processed.FindOrCreate(t.Context(), c.tx, c.create, c.find, c.row)
		if err == nil || !strings.Contains(err.Error(), c.says) || res.Value != 0 || processed.SafeToRetry(err) {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	b.tickets(0)
	(<-b.ticket(tx, "Printer on fire")).want(t, false) // still usable
	ok(t, tx.Commit(t.Context()))
}

func TestFindOrCreateErrorsSayWhatToDo(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			b.exec("alter table tickets add external text constraint tickets_external unique")
			b.exec("insert into tickets (customer, subject, day, external) values ('acme', 'Door', $1, 'x-1'), ('acme', 'Door', $1 + 1, 'x-2')", monday)
			good, look := ticketInsert("do nothing returning id"), ticketSelect("id", "")
			door := processed.Statement{SQL: "select id from tickets where subject_norm = 'door'"}
			for _, c := range []struct {
				name         string
				create, find processed.Statement
				says, state  string
			}{
				{"no RETURNING", ticketInsert("do nothing"), look, "create: the statement returns no columns", ""},
				{"another constraint", processed.Statement{SQL: "insert into tickets (customer, subject, day, external) values ('acme', 'New', $1, 'x-1') on conflict (customer, subject_norm, day) do nothing returning id", Args: []any{monday}}, look, "that ON CONFLICT does not name", "23505"},
				{"another constraint, swallowed", processed.Statement{SQL: "insert into tickets (customer, subject, day, external) values ('acme', 'New', $1, 'x-1') on conflict do nothing returning id", Args: []any{monday}}, look, "select by the constraint", ""},
				{"several rows created", processed.Statement{SQL: "insert into tickets (customer, subject, day) values ('acme', 'A', $1), ('acme', 'B', $1) on conflict do nothing returning id", Args: []any{monday}}, look, "create returned more than one row", ""},
				{"several rows found", processed.Statement{SQL: "insert into tickets (customer, subject, day) values ('acme', 'Door', $1) on conflict do nothing returning id", Args: []any{monday}}, door, "find returned more than one row", ""},
				{"no such column", good, processed.Statement{SQL: "select id from tickets where subjct = 1"}, "find: ", "42703"},
				{"wrong columns", ticketInsert("do nothing returning id, subject"), look, "create: ", ""},
			} {
				tx, _, rollback := owner.begin(t, b, "")
				res, err := processed.FindOrCreate(t.Context(), tx, c.create, c.find, pgx.RowTo[int64])
				refused := (*pgconn.PgError)(nil)
				if err == nil || !strings.Contains(err.Error(), c.says) || res != (processed.Result[int64]{}) || processed.SafeToRetry(err) {
					t.Errorf("%s: %+v, %v", c.name, res, err)
				}
				if c.state != "" && (!errors.As(err, &refused) || refused.Code != c.state) {
					t.Errorf("%s: %v, want %s", c.name, err, c.state)
				}
				if err != nil && strings.Contains(err.Error(), "x-1") {
					t.Errorf("%s: the error quotes the row: %v", c.name, err)
				}
				ok(t, rollback())
				b.tickets(2)
			}
		})
	}
}

func TestErrorInsideDoLeavesTheTransactionUsable(t *testing.T) {
	b := setupTickets(t)
	peer, err := b.db.Begin(t.Context())
	ok(t, err)
	first := (<-b.ticket(peer, "Printer on fire")).want(t, false)
	tx, err := b.db.Begin(t.Context())
	ok(t, err)
	do := func() (processed.Result[int64], error) {
		return processed.Do(t.Context(), tx, request(t, "k", `1`), func(ctx context.Context, tx samekey.Tx) (int64, error) {
			if _, err := tx.Exec(ctx, "set local lock_timeout = '50ms'"); err != nil {
				return 0, err
			}
			res, err := findOrCreateTicket(ctx, tx, "acme", "printer on fire", monday)
			return res.Value, err
		})
	}
	if _, err := do(); !processed.SafeToRetry(err) {
		t.Fatal(err)
	}
	ok(t, peer.Commit(t.Context()))
	if res, err := do(); err != nil || res.Value != first {
		t.Fatalf("%+v, %v", res, err)
	}
	ok(t, tx.Commit(t.Context()))
	b.tickets(1)
	b.stored(0, 0, 1)
}

// The intent goes with the row: a function that fails after it takes both back, and the next one makes both.
func TestIntentExistsIfAndOnlyIfItsRowDoes(t *testing.T) {
	b := setupTickets(t)
	own := errors.New("own")
	err := b.run("failing", func(ctx context.Context, tx pgx.Tx) error {
		res, err := findOrCreateTicket(ctx, tx, "acme", "Printer on fire", monday)
		found{res, err}.want(t, false)
		_, err = outbox.Insert(ctx, tx, outbox.Intent{Action: "confirm_ticket", Payload: res.Value})
		return errors.Join(err, own)
	})
	if !errors.Is(err, own) {
		t.Fatal(err)
	}
	b.tickets(0)
	b.stored(0, 0, 0)
	for i, isNew := range []bool{true, false, false} {
		res, err := openTicket(t.Context(), b.db.Pool, request(t, fmt.Sprint("k", i), `1`), "acme", spelling(i), monday)
		if err != nil || res.Deduplicated || res.Value.New != isNew {
			t.Fatalf("%+v, %v", res, err)
		}
		b.tickets(1)
		b.stored(0, 1, i+1)
	}
	// The same request again is Run's replay: New as it was the first time.
	res, err := openTicket(t.Context(), b.db.Pool, request(t, "k0", `1`), "acme", spelling(0), monday)
	if err != nil || !res.Deduplicated || !res.Value.New {
		t.Fatalf("%+v, %v", res, err)
	}
	b.stored(0, 1, 3)
}

func TestFindOrCreateWorksInEveryExecModeOfPgx(t *testing.T) {
	b := setupTickets(t)
	type ticket struct {
		Customer, Subject string
		Id                int64
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		b.exec("truncate tickets")
		pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode })
		named := pgx.NamedArgs{"customer": "acme", "subject": "Printer on fire", "day": monday}
		for i, row := range []pgx.RowToFunc[ticket]{pgx.RowToStructByName[ticket], pgx.RowToStructByPos[ticket]} {
			for _, again := range []bool{i > 0, true} {
				res, err := processed.Run(t.Context(), pool, request(t, fmt.Sprint(mode, i, again), `1`), func(ctx context.Context, tx pgx.Tx) (processed.Result[ticket], error) {
					return processed.FindOrCreate(ctx, tx,
						processed.Statement{SQL: "insert into tickets (customer, subject, day) values (@customer, @subject, @day::date) on conflict on constraint tickets_once_a_day do nothing returning customer, subject, id", Args: []any{named}},
						processed.Statement{SQL: "select customer, subject, id from tickets where customer = @customer and subject_norm = normal_subject(@subject) and day = @day::date", Args: []any{named}},
						row)
				})
				if err != nil || res.Value.Deduplicated != again || res.Value.Value.Subject != "Printer on fire" || res.Value.Value.Id == 0 {
					t.Errorf("%s: %+v, %v, want deduplicated %v", mode, res, err, again)
				}
				if _, err := processed.Run(t.Context(), pool, request(t, fmt.Sprint(mode, i, again, "bad"), `1`), func(ctx context.Context, tx pgx.Tx) (int64, error) {
					res, err := processed.FindOrCreate(ctx, tx, ticketInsert("do nothing"), ticketSelect("id", ""), pgx.RowTo[int64])
					return res.Value, err
				}); err == nil || !strings.Contains(err.Error(), "returns no columns") {
					t.Errorf("%s: without RETURNING: %v", mode, err)
				}
			}
		}
	}
}

func TestFindOrCreateCostsOneRoundTrip(t *testing.T) {
	b, proxy := wired(t, 1)
	b.exec(ticketTables)
	call := func(k string) {
		t.Helper()
		_, err := processed.Run(t.Context(), b.db.Pool, request(t, k, `1`), func(ctx context.Context, tx pgx.Tx) (int64, error) {
			res, err := findOrCreateTicket(ctx, tx, "acme", "Printer on fire", monday)
			return res.Value, err
		})
		ok(t, err)
	}
	call("warm")
	call("warm, found")
	b.exec("truncate tickets")
	for _, c := range []struct {
		what string
		want int
	}{{"new", 3}, {"found", 3}} { // Run's own two among them
		trips(proxy)
		call(c.what)
		if n, said := trips(proxy); n != c.want {
			t.Errorf("%s: %d round trips, want %d:\n%s", c.what, n, c.want, said)
		}
	}
}

func TestAbsoluteStateNeedsNoKey(t *testing.T) {
	b := setup(t)
	b.exec(lineTables)
	b.exec("insert into lines values ('line-1', 1)")
	set := func(quantity, version int) error {
		return pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error { return setQuantity(t.Context(), tx, "line-1", quantity, version) })
	}
	for range 3 {
		ok(t, set(3, 1))
	}
	if b.count("lines where quantity = 3 and version = 2") != 1 {
		t.Error("three times 3 is not 3")
	}
	ok(t, set(5, 2)) // another customer's setting
	if err := set(3, 1); !errors.Is(err, errChanged) {
		t.Errorf("a late repetition: %v", err)
	}
	if b.count("lines where quantity = 5 and version = 3") != 1 {
		t.Error("a late repetition undid another's change")
	}
}
