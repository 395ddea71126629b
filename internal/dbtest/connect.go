package dbtest

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// Pool opens another pool, and closes it when the test ends. The changes are applied to its configuration.
func Pool(t testing.TB, dsn string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Login creates a role without rights and returns its name and its DSN. Roles belong to the server and not to a
// database, so the name is unique, and the role is dropped when the test ends.
func Login(t testing.TB, db *samekeytest.DB) (role, dsn string) {
	t.Helper()
	role = "samekey_test_" + strings.ToLower(rand.Text())
	CreateRole(t, db, role)
	return role, As(t, db.DSN, role)
}

// As returns the DSN with which a role of [CreateRole] connects.
func As(t testing.TB, dsn, role string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		t.Fatal("the DSN of the tests' server must be a URL")
	}
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

// CreateRole creates a role with this name and the password secret, and drops it when the test ends.
func CreateRole(t testing.TB, db *samekeytest.DB, role string) {
	t.Helper()
	name := pgx.Identifier{role}.Sanitize()
	Exec(t, db, `create role `+name+` login password 'secret'`)
	t.Cleanup(func() {
		Exec(t, db, `drop owned by `+name+` cascade`)
		Exec(t, db, `drop role `+name)
	})
}

// Logins creates the roles of the application and of the worker, with the rights that schema.Grant gives.
func Logins(t testing.TB, db *samekeytest.DB) (roles schema.Roles, appDSN, workerDSN string) {
	t.Helper()
	roles.App, appDSN = Login(t, db)
	roles.Worker, workerDSN = Login(t, db)
	if err := schema.Grant(t.Context(), db.Pool, roles); err != nil {
		t.Fatal(err)
	}
	return roles, appDSN, workerDSN
}

// Approver returns a pool of a login with the approver's rights. The test's own login wrote the intents, so it cannot
// approve them.
func Approver(t testing.TB, db *samekeytest.DB) *pgxpool.Pool {
	t.Helper()
	role, dsn := Login(t, db)
	if err := schema.Grant(t.Context(), db.Pool, schema.Roles{Approver: role}); err != nil {
		t.Fatal(err)
	}
	return Pool(t, dsn)
}

// LiveWorker holds a worker's session lock until the test ends. Without that lock, the worker's claims find nothing.
func LiveWorker(t testing.TB, db *samekeytest.DB, worker int32) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	Exec(t, conn, `select pg_advisory_lock(samekey.worker_class(), $1)`, worker)
}

// Statements counts the statements of a pool whose text contains Like. It is the Tracer of the pool's ConnConfig.
type Statements struct {
	Like string
	n    atomic.Int64
}

// Count returns the number of statements so far.
func (s *Statements) Count() int64 { return s.n.Load() }

// TraceQueryStart implements pgx.QueryTracer.
func (s *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, s.Like) {
		s.n.Add(1)
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
