package samekeytest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestEachCallGetsAMigratedDatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	one, two := NewDB(t), NewDB(t)
	if _, err := one.Exec(ctx, "create table samekey.only_here ()"); err != nil {
		t.Fatal(err)
	}
	var migrated, leaked bool
	err := two.QueryRow(ctx, `select to_regclass('samekey.outbox') is not null, to_regclass('samekey.only_here') is not null`).Scan(&migrated, &leaked)
	if err != nil {
		t.Fatal(err)
	}
	if !migrated || leaked {
		t.Errorf("migrated %t, sees the other test's table %t; want true, false", migrated, leaked)
	}
	conn, err := pgx.Connect(ctx, two.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if got, want := conn.Config().Database, two.Config().ConnConfig.Database; got != want {
		t.Errorf("DSN leads to %q, the pool to %q", got, want)
	}
}

func TestAnEmptyDatabaseHasNoSchema(t *testing.T) {
	t.Parallel()
	var empty bool
	if err := NewEmptyDB(t).QueryRow(t.Context(), "select to_regnamespace('samekey') is null").Scan(&empty); err != nil {
		t.Fatal(err)
	}
	if !empty {
		t.Error("schema samekey exists in an empty database")
	}
}

func TestDatabaseIsDroppedWithItsConnections(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var name string
	t.Run("a test that leaves a connection", func(t *testing.T) {
		db := NewEmptyDB(t)
		name = db.Config().ConnConfig.Database
		if _, err := pgx.Connect(ctx, db.DSN); err != nil { // never closed
			t.Fatal(err)
		}
	})
	if databaseExists(t, name) {
		t.Errorf("database %s is still there", name)
	}
}

func TestLeakedConnectionFailsTheTest(t *testing.T) {
	t.Parallel()
	pool := NewEmptyDB(t).Pool
	kept, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	failed := runWith(t, func(t testing.TB) { closePool(t, pool, 50*time.Millisecond) })
	kept.Release()
	if !strings.Contains(failed, "1 connections were not released") {
		t.Errorf("got %q", failed)
	}
}

func TestWithoutAServerTheTestFailsWithAdvice(t *testing.T) {
	t.Setenv(databaseVariable, "")
	for name, open := range map[string]func(testing.TB) *DB{"NewDB": NewDB, "NewEmptyDB": NewEmptyDB} {
		failed := runWith(t, func(t testing.TB) { open(t) })
		if !strings.Contains(failed, "make test") || !strings.Contains(failed, databaseVariable) {
			t.Errorf("%s: got %q", name, failed)
		}
	}
}

func TestConcurrentBinariesBuildTheTemplateOnce(t *testing.T) {
	t.Parallel()
	var built atomic.Int32
	fingerprint := someFingerprint(t)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if err := makeTemplate(t, fingerprint, countingMigration(&built)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := built.Load(); got != 1 {
		t.Errorf("the template was built %d times", got)
	}
}

func TestAnotherFingerprintGetsAnotherTemplate(t *testing.T) {
	t.Parallel()
	var built atomic.Int32
	for range 2 {
		if err := makeTemplate(t, someFingerprint(t), countingMigration(&built)); err != nil {
			t.Fatal(err)
		}
	}
	if got := built.Load(); got != 2 {
		t.Errorf("two fingerprints: the template was built %d times", got)
	}
}

func TestAHalfBuiltTemplateIsNeverUsed(t *testing.T) {
	t.Parallel()
	fingerprint := someFingerprint(t)
	broken := errors.New("half way")
	err := makeTemplate(t, fingerprint, func(ctx context.Context, pool *pgxpool.Pool) error {
		if _, err := pool.Exec(ctx, "create schema samekey"); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	var built atomic.Int32
	if err := makeTemplate(t, fingerprint, countingMigration(&built)); err != nil {
		t.Fatal(err)
	}
	if got := built.Load(); got != 1 {
		t.Errorf("after a failed migration the template was built %d times, want once more", got)
	}
}

func TestEveryFormOfDSNLeadsToTheNewDatabase(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:p%40@127.0.0.1:5433/postgres?sslmode=disable",
		"postgresql://u:p%40@127.0.0.1:5433",
		"postgres://u:p%40@127.0.0.1:5433/?dbname=postgres&sslmode=disable",
		"host=127.0.0.1 port=5433 user=u password=p@ dbname=postgres",
	} {
		got, err := withDatabase(dsn, "fresh")
		if err != nil {
			t.Fatal(err)
		}
		config, err := pgx.ParseConfig(got)
		if err != nil {
			t.Fatal(err)
		}
		if config.Database != "fresh" || config.User != "u" || config.Password != "p@" || config.Port != 5433 {
			t.Errorf("%s: became %s", dsn, got)
		}
	}
}

func TestElapseMovesEveryStoredTimeAndNothingElse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := NewEmptyDB(t)
	if _, err := db.Exec(ctx, `
		create schema samekey;
		create table samekey.probe (id int, "Due At" timestamptz, gone timestamptz, never timestamptz, local timestamp,
		                            day timestamptz generated always as ("Due At") stored);
		alter table samekey.probe drop column gone;
		insert into samekey.probe (id, "Due At", local) values (1, '2026-01-01 12:00+00', '2026-01-01 12:00'), (2, 'infinity', null);
		create table samekey.parts (at timestamptz) partition by range (at);
		create table samekey.parts_old partition of samekey.parts for values from (minvalue) to ('2026-01-01');
		create table samekey.parts_new partition of samekey.parts for values from ('2026-01-01') to (maxvalue);
		insert into samekey.parts values ('2026-01-01 00:30+00');
		create table samekey.river_job (at timestamptz);
		insert into samekey.river_job values ('2026-01-01 12:00+00');
		create table public.orders (at timestamptz);
		insert into public.orders values ('2026-01-01 12:00+00');`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(ctx, "alter table samekey.probe add column later timestamptz default '2026-01-01 12:00+00'"); err != nil {
		t.Fatal(err)
	}

	Elapse(t, db, time.Hour)

	for query, want := range map[string]string{
		`select "Due At" from samekey.probe where id = 1`: "2026-01-01 11:00:00+00",
		`select later from samekey.probe where id = 1`:    "2026-01-01 11:00:00+00",
		`select day from samekey.probe where id = 1`:      "2026-01-01 11:00:00+00",
		`select "Due At" from samekey.probe where id = 2`: "infinity",
		`select never from samekey.probe where id = 1`:    "null",
		`select local from samekey.probe where id = 1`:    "2026-01-01 12:00:00",
		`select at from samekey.parts_old`:                "2025-12-31 23:30:00+00",
		`select at from samekey.river_job`:                "2026-01-01 12:00:00+00",
		`select at from public.orders`:                    "2026-01-01 12:00:00+00",
	} {
		got := "no row"
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local timezone = 'UTC'"); err != nil {
				return err
			}
			return tx.QueryRow(ctx, fmt.Sprintf("select coalesce((%s)::text, 'null')", query)).Scan(&got)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

// TestElapseMovesTheWholeSchema holds for whatever the migrations come to hold.
func TestElapseMovesTheWholeSchema(t *testing.T) {
	t.Parallel()
	db := NewDB(t)
	Elapse(t, db, time.Hour) // no trigger, constraint or generated column is in its way
	var tables int
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		statements, err := elapseStatements(t.Context(), tx)
		tables = len(statements)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if tables < 4 {
		t.Errorf("only %d tables with times were found", tables)
	}
}

func makeTemplate(t *testing.T, fingerprint string, migrate func(context.Context, *pgxpool.Pool) error) error {
	server := serverDSN(t)
	return onServer(t.Context(), server, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := ensureTemplate(ctx, conn, server, fingerprint, migrate)
		return err
	})
}

func countingMigration(built *atomic.Int32) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, pool *pgxpool.Pool) error {
		built.Add(1)
		_, err := pool.Exec(ctx, "create schema samekey") // fails if it is there
		return err
	}
}

func someFingerprint(t *testing.T) string {
	t.Helper()
	fingerprint := "test" + strings.ToLower(rand.Text())[:12]
	server := serverDSN(t)
	t.Cleanup(func() {
		for _, suffix := range []string{"", "_draft"} {
			drop := "drop database if exists " + quote("samekey_template_"+fingerprint+suffix)
			if err := onServer(context.Background(), server, execute(drop)); err != nil {
				t.Error(err)
			}
		}
	})
	return fingerprint
}

func databaseExists(t *testing.T, name string) (exists bool) {
	t.Helper()
	err := onServer(t.Context(), serverDSN(t), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&exists)
	})
	if err != nil {
		t.Fatal(err)
	}
	return exists
}

// recorder is a test whose failure is looked at instead of reported.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.failed += fmt.Sprintf(format, args...) }

func (r *recorder) Fatal(args ...any) {
	r.failed += fmt.Sprint(args...)
	runtime.Goexit()
}

func runWith(t *testing.T, test func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r.failed
}
