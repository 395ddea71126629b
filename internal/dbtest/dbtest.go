// Package dbtest has helpers for tests with a database of samekeytest.NewDB: statements and waits that fail the test,
// logins, pools, intents, and counts of statements. A wait ends after [Patience].
package dbtest

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
)

// Patience bounds each statement and each wait. They usually take milliseconds.
const Patience = 2 * time.Minute

// Parallel lets n tests of the package run at once, unless the -parallel flag is set. Call it in TestMain, if the tests
// wait more than they compute.
func Parallel(n string) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(n)
	}
}

// Size returns the size of a test that draws seeds or fills tables: short with go test -short, as in `make test`, and
// full without it, as in `make test-long`.
func Size(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// Exec runs a statement that must succeed.
func Exec(t testing.TB, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	ctx, cancel := patient(t)
	defer cancel()
	if _, err := db.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value returns the single value of a query.
func Value[T any](t testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (value T) {
	t.Helper()
	ctx, cancel := patient(t)
	defer cancel()
	if err := db.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Insert commits one intent. An intent without a key gets a new one, and an intent without a payload an empty object.
func Insert(t testing.TB, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, in outbox.Intent) (id uuid.UUID) {
	t.Helper()
	ctx, cancel := patient(t)
	defer cancel()
	if in.Key.IsZero() {
		in.Key = Key(t, samekey.Mint())
	}
	if in.Payload == nil {
		in.Payload = struct{}{}
	}
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		id, err = outbox.Insert(ctx, tx, in)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// OtherWriter makes later intents of this database count as written by another login, so that the test's login may
// approve them.
func OtherWriter(t testing.TB, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}) {
	t.Helper()
	Exec(t, db, `alter table samekey.outbox alter written_by set default 'the application'`)
}

// Key returns a valid key. Its default scope is "acme", "orders.create".
func Key(t testing.TB, value string, scope ...string) samekey.Key {
	t.Helper()
	if len(scope) == 0 {
		scope = []string{"acme", "orders.create"}
	}
	key, err := samekey.NewKey(value, scope...)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// History returns an intent's timeline as "event:outcome:code", one word for each event.
func History(t testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, id uuid.UUID) string {
	t.Helper()
	return Value[string](t, db, `select coalesce(string_agg(concat_ws(':', event, outcome, code), ' ' order by id), '')
		from samekey.outbox_history where intent_id = $1`, id)
}

// patient returns a context that ends after Patience. It also works in a cleanup.
func patient(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
}
