package schema_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

func execSQL(t testing.TB, db interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	dbtest.Exec(t, db, sql, args...)
}

func one[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	return dbtest.Value[T](t, pool, sql, args...)
}

// recorded returns the migrations that the database has recorded.
func recorded(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return one[string](t, pool, `
		select (select string_agg(version || ' ' || name, ', ' order by version) from samekey.migrations) || '; '
		    || (select string_agg(line || ' ' || version, ', ' order by line, version) from samekey.river_migration)`)
}

// riverDump describes River's columns and indexes. The dump names only River's tables.
func riverDump(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return riverDumpIn(t, pool, "samekey")
}

func riverDumpIn(t testing.TB, pool *pgxpool.Pool, name string) string {
	t.Helper()
	return one[string](t, pool, `
		select string_agg(line, E'\n' order by line collate "C") from (
		    select format('%s.%s %s %s %s', table_name, column_name, udt_name, column_default, is_nullable) as line
		    from information_schema.columns where table_schema = $1 and table_name ~ '^river_'
		    union all
		    select indexdef from pg_indexes where schemaname = $1 and tablename ~ '^river_') s`, name)
}

// catalogVersion returns a value that any change by a migration changes: the row versions of the catalogs and the
// records.
func catalogVersion(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return one[string](t, pool, `
		select string_agg(line, E'\n' order by line collate "C") from (
		    select format('%s %s %s', oid, relname, xmin) as line from pg_class
		    where relnamespace = to_regnamespace('samekey') and relkind <> 't'
		    union all
		    select format('%s %s %s', oid, proname, xmin) from pg_proc where pronamespace = to_regnamespace('samekey')
		    union all
		    select format('migration %s %s', version, xmin) from samekey.migrations
		    union all
		    select format('river migration %s %s', version, xmin) from samekey.river_migration) s`)
}

func createRole(t *testing.T, db *samekeytest.DB, role string) {
	t.Helper()
	dbtest.CreateRole(t, db, role)
}

func newLogin(t *testing.T, db *samekeytest.DB) (role string, pool *pgxpool.Pool) {
	t.Helper()
	role, dsn := dbtest.Login(t, db)
	return role, dbtest.Pool(t, dsn)
}

func login(t *testing.T, dsn, role string) *pgxpool.Pool {
	t.Helper()
	return dbtest.Pool(t, dbtest.As(t, dsn, role))
}

type noopArgs struct{}

func (noopArgs) Kind() string { return "noop" }

type noopWorker struct{ river.WorkerDefaults[noopArgs] }

func (*noopWorker) Work(context.Context, *river.Job[noopArgs]) error { return nil }

// runJob runs one River job in a schema, and pauses a queue.
func runJob(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Schema: name, Workers: workers, ReindexerIndexNames: []string{},
		Queues: map[string]river.QueueConfig{"noop": {MaxWorkers: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	completed, unsubscribe := client.Subscribe(river.EventKindJobCompleted)
	defer unsubscribe()
	if err := client.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	if _, err := client.Insert(ctx, noopArgs{}, &river.InsertOpts{Queue: "noop"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-completed:
	case <-ctx.Done():
		t.Fatalf("River in schema %s did not complete a job", name)
	}
	if err := client.QueuePause(ctx, "noop", nil); err != nil {
		t.Error(err)
	}
}
