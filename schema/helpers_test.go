package schema_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

func one[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// recorded is which migrations the database thinks it has.
func recorded(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return one[string](t, pool, `
		select (select string_agg(version || ' ' || name, ', ' order by version) from samekey.migrations) || '; '
		    || (select string_agg(line || ' ' || version, ', ' order by line, version) from samekey.river_migration)`)
}

// riverDump describes River's columns and indexes in the schema: the dump names only its tables.
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

// catalogVersion changes with everything that a migration may touch: the row versions of the catalogs, and the records.
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
