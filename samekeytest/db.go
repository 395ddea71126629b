package samekeytest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/schema"
)

// databaseVariable is the environment variable that names the server on which
// [NewDB] creates its databases.
const databaseVariable = "SAMEKEY_TEST_DATABASE_URL"

const advice = databaseVariable + ` is not set: these tests need a Postgres server.

Set it to the URL of any Postgres 14 or later, and of a role that may create databases, such as
  docker run --rm -e POSTGRES_PASSWORD=postgres -p 127.0.0.1:54329:5432 postgres:17
  export ` + databaseVariable + `=postgres://postgres:postgres@127.0.0.1:54329/postgres

In samekey's own repository, "make test" starts a server for the whole run, and stops it at the end.`

// patience limits each step on the server. A database takes about 50 ms; only an overloaded or lost server takes
// longer.
const patience = 60 * time.Second

// DB is the database of one test. Query it directly, and pass db.Pool to the code under test.
type DB struct {
	*pgxpool.Pool

	// DSN is the URL or connection string of this database, for code that opens its own connections: a second pool, a
	// worker process, database/sql.
	DSN string
}

// NewDB returns a migrated database that no other test uses, on the server in the environment variable
// SAMEKEY_TEST_DATABASE_URL. It is dropped at the end of the test, together with its connections.
//
// The first call on a server migrates a template. Each database is a copy of it, made in tens of milliseconds. The
// template's name contains [schema.Digest], so another version of the migrations gets its own template, and test
// binaries that run at the same time share one.
//
// Every worker delivers in it: tests need no dispatcher.Config.Deployment.
//
// The test fails at once if the variable is not set or the server cannot be reached: no test is skipped silently. It
// also fails if a connection of the pool is not released within ten seconds of the test's end.
//
// The pool has 16 connections, unless the DSN has pool_max_conns.
func NewDB(t testing.TB) *DB {
	t.Helper()
	server := serverDSN(t)
	return newDB(t, server, func(ctx context.Context, conn *pgx.Conn) (string, error) {
		return ensureTemplate(ctx, conn, server, schema.Digest(), migrate)
	})
}

// migrate makes a database in which every worker delivers, with dispatcher.Config.Deployment or without: the copies of a
// template are no copies of production. Claims of tests that know of no deployment compare the nil UUID.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := schema.Migrate(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `update samekey.deployment set test = true, id = '00000000-0000-0000-0000-000000000000'`)
	return err
}

// NewEmptyDB is [NewDB] without the migration, for tests of migrations.
func NewEmptyDB(t testing.TB) *DB {
	t.Helper()
	return newDB(t, serverDSN(t), func(context.Context, *pgx.Conn) (string, error) {
		return "template0", nil
	})
}

func serverDSN(t testing.TB) string {
	t.Helper()
	server := os.Getenv(databaseVariable)
	if server == "" {
		t.Fatal(advice)
	}
	return server
}

func newDB(t testing.TB, server string, template func(context.Context, *pgx.Conn) (string, error)) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	name := databaseName(t.Name())
	dsn, err := withDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("samekeytest: %s: %v", databaseVariable, err)
	}
	if !strings.Contains(server, "pool_max_conns") {
		config.MaxConns = 16
	}
	err = onServer(ctx, server, func(ctx context.Context, conn *pgx.Conn) error {
		source, err := template(ctx, conn)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "create database "+quote(name)+" template "+quote(source))
		return err
	})
	if err != nil {
		t.Fatalf("samekeytest: create a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := onServer(ctx, server, execute("drop database if exists "+quote(name)+" with (force)")); err != nil {
			t.Errorf("samekeytest: drop the database: %v", err)
		}
	})
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatalf("samekeytest: open the pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, 10*time.Second) })
	return &DB{Pool: pool, DSN: dsn}
}

// closePool reports a connection that is never released, instead of waiting for it until the test binary times out.
func closePool(t testing.TB, pool *pgxpool.Pool, within time.Duration) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(within):
		t.Errorf("samekeytest: %d connections were not released to the pool: close rows, end transactions, stop workers before the test ends",
			pool.Stat().AcquiredConns())
	}
}

// ensureTemplate returns the name of a migrated database that accepts no connections. Of several processes at once, one
// builds it.
func ensureTemplate(ctx context.Context, conn *pgx.Conn, server, fingerprint string, migrate func(context.Context, *pgxpool.Pool) error) (string, error) {
	template := "samekey_template_" + fingerprint[:min(16, len(fingerprint))]
	ready := func() (ready bool, err error) {
		err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", template).Scan(&ready)
		return ready, err
	}
	if ok, err := ready(); err != nil || ok {
		return template, err
	}
	lock := func(function string) error {
		_, err := conn.Exec(ctx, "select "+function+"(hashtextextended($1, 0))", template)
		return err
	}
	// The lock also ends with the connection, if this process is killed.
	if err := lock("pg_advisory_lock"); err != nil {
		return "", err
	}
	defer func() { _ = lock("pg_advisory_unlock") }()
	if ok, err := ready(); err != nil || ok {
		return template, err
	}
	if err := buildTemplate(ctx, conn, server, template, migrate); err != nil {
		return "", fmt.Errorf("make its template: %w", err)
	}
	return template, nil
}

// buildTemplate works under another name, so that an existing template is complete. It drops what a killed process
// left.
func buildTemplate(ctx context.Context, conn *pgx.Conn, server, template string, migrate func(context.Context, *pgxpool.Pool) error) error {
	draft := template + "_draft"
	for _, statement := range []string{
		"drop database if exists " + quote(draft) + " with (force)",
		"create database " + quote(draft) + " template template0",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	dsn, err := withDatabase(server, draft)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	err = migrate(ctx, pool)
	pool.Close()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	// A database can be copied only if it has no connections.
	for _, statement := range []string{
		"alter database " + quote(draft) + " allow_connections false",
		"alter database " + quote(draft) + " rename to " + quote(template),
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// onServer runs do on its own connection: a pool that outlives the test would look like a leak to the test's leak
// detector.
func onServer(ctx context.Context, server string, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("cannot reach the server that %s names: %w", databaseVariable, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = do(ctx, conn)
	if sqlstate.Of(err) == sqlstate.Denied {
		return fmt.Errorf("the role of %s must be allowed to create databases (alter role .. createdb): %w", databaseVariable, err)
	}
	return err
}

func execute(statement string) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	}
}

// withDatabase returns dsn, a URL or a list of keywords, for another database.
func withDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + name, nil // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("samekeytest: %s is not a valid URL", databaseVariable) // its error would print the password
	}
	u.Path, u.RawPath = "/"+name, ""
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// databaseName starts with the test's name, for people who look at the server.
func databaseName(test string) string {
	test = strings.Trim(notInName.ReplaceAllString(strings.ToLower(test), "_"), "_")
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	return "samekey_" + test[:min(36, len(test))] + "_" + hex.EncodeToString(random[:])
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
