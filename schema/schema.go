// Package schema creates samekey's tables and River's in the Postgres schema "samekey".
//
// Call [Migrate] once before anything else, from a deployment step (`worker migrate`) or when a service starts:
//
//	if err := schema.Migrate(ctx, pool); err != nil { ... }
//
// Migrate may run in several processes at once and any number of times. A program calls [Check] at its start to learn
// whether the database fits it. A team with its own migration tool gets the statements from [All]. [Grants] gives the
// application's role and the worker's role what they need, and no more.
//
// Migrate needs River's migrations, so a program that imports this package depends on River. The packages processed and
// outbox do not. To keep River out of a service, run Migrate in the deployment step.
//
// A migration does not change after its release. A change is a new file with the next number.
package schema

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/samekey/samekey/internal/direct"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Name is the Postgres schema of samekey's tables and River's. It is fixed, so SQL written by hand, in a trigger or in
// another language can rely on it.
const Name = "samekey"

// ErrTooNew means that a newer release migrated the database. Nothing was changed. Deploy the newer release, or wait
// until its rollout reaches this process.
var ErrTooNew = errors.New("schema: the database is newer than this release of samekey")

// ErrTooOld means that migrations are missing. Run `worker migrate` or call [Migrate]. [Check] returns it.
var ErrTooOld = errors.New("schema: the database lacks migrations of this release of samekey")

//go:embed migrations/*.sql
var files embed.FS

// own holds samekey's migrations in order: own[i] has version i+1.
var own = load()

type migration struct {
	name string
	sql  string
}

func load() []migration {
	entries, err := fs.ReadDir(files, "migrations")
	if err != nil {
		panic(err)
	}
	var out []migration
	for i, entry := range entries {
		number, _, _ := strings.Cut(entry.Name(), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			panic(fmt.Sprintf("schema: migration %q: want number %04d", entry.Name(), i+1))
		}
		text, err := files.ReadFile(path.Join("migrations", entry.Name()))
		if err != nil {
			panic(err)
		}
		out = append(out, migration{name: strings.TrimSuffix(entry.Name(), ".sql"), sql: string(text)})
	}
	return out
}

// Latest returns the schema version that this release needs.
func Latest() int { return len(own) }

// Digest returns a hash of this release's migrations, samekey's and River's. samekeytest names its template databases
// by it.
func Digest() string {
	digest := sha256.New()
	for _, m := range own {
		_, _ = fmt.Fprintf(digest, "%s\x00%s\x00", m.name, m.sql)
	}
	if migrator, err := riverMigrator(nil); err == nil {
		for _, m := range migrator.AllVersions() {
			_, _ = fmt.Fprintf(digest, "river %d\x00%s\x00", m.Version, m.SQLUp)
		}
	}
	return hex.EncodeToString(digest.Sum(nil))[:16]
}

// DB is a pool, a connection or a transaction.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Version returns the schema version of the database, or 0 if it has no samekey schema.
func Version(ctx context.Context, db DB) (int, error) {
	var version int
	err := db.QueryRow(ctx, `select coalesce(max(version), 0)::int from samekey.migrations`).Scan(&version)
	if missing(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("schema: read version: %w", err)
	}
	return version, nil
}

// Check reports whether the database fits this release. It returns nil, or an error that is [ErrTooOld] or [ErrTooNew]
// and names both versions, [ErrEncoding] or [ErrSequences]. A worker calls it at its start. River's tables may be newer
// than this release: River works with the tables of later versions.
func Check(ctx context.Context, db DB) error {
	if err := checkEncoding(ctx, db); err != nil {
		return err
	}
	version, err := Version(ctx, db)
	switch {
	case err != nil:
		return err
	case version < Latest():
		return fmt.Errorf("%w: it has version %d, this release needs %d: run `worker migrate`", ErrTooOld, version, Latest())
	case version > Latest():
		return fmt.Errorf("%w: it has version %d, this release knows %d", ErrTooNew, version, Latest())
	}
	if err := checkRiver(ctx, db); err != nil {
		return err
	}
	return checkSequences(ctx, db)
}

func checkRiver(ctx context.Context, db DB) error {
	migrator, err := riverMigrator(nil)
	if err != nil {
		return err
	}
	all := migrator.AllVersions()
	need := all[len(all)-1].Version

	const sql = `select coalesce(max(version), 0)::int from samekey.river_migration where line = 'main'`
	var version int
	err = db.QueryRow(ctx, sql).Scan(&version)
	if missing(err, "42703") { // the first versions of the table have no column "line"
		err = nil
	}
	switch {
	case err != nil:
		return fmt.Errorf("schema: read River's version: %w", err)
	case version < need:
		return fmt.Errorf("%w: River's tables have version %d, this release needs %d: run `worker migrate`", ErrTooOld, version, need)
	}
	return nil
}

// missing reports whether err means that a table or its schema does not exist, or has one of the codes.
func missing(err error, codes ...string) bool {
	return slices.Contains(append(codes, "42P01", "3F000"), sqlstate.Of(err))
}

// Migrate brings the database to this release: it runs samekey's migrations and River's. Each one commits on its own,
// all under one session lock. If Migrate fails or is killed, the committed migrations stay and the next call continues.
// An up-to-date database is left untouched. Migrate also repairs sequences that logical replication left at their
// start.
//
// It needs a direct connection (no PgBouncer in transaction mode) and a role that owns the schema or may create it. It
// returns [ErrTooNew] or [ErrEncoding] before it changes anything. It does not touch a River of the application's own
// in another schema.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := direct.Connect(ctx, pool.Config(), nil) // not of the pool, which may have only one
	if err != nil {
		return fmt.Errorf("schema: connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // ends the session, and the lock with it

	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, int64(migrateLock)); err != nil {
		return fmt.Errorf("schema: lock: %w", err)
	}
	if err := checkEncoding(ctx, conn); err != nil {
		return err
	}
	version, err := Version(ctx, conn)
	if err != nil {
		return err
	}
	if version > Latest() {
		return fmt.Errorf("%w: it has version %d, this release knows %d", ErrTooNew, version, Latest())
	}
	if err := prepare(ctx, conn); err != nil {
		return err
	}
	for i := version; i < len(own); i++ {
		if err := apply(ctx, conn, i+1, own[i]); err != nil {
			return err
		}
	}
	if err := migrateRiver(ctx, pool, conn); err != nil {
		return err
	}
	return repairSequences(ctx, conn)
}

// prepareSQL creates the schema and the table of migrations. It checks first, since `if not exists` needs the right to
// create even if they exist.
const prepareSQL = `
do $$ begin
    if to_regnamespace('samekey') is null then create schema samekey; end if;
    if to_regclass('samekey.migrations') is null then
        create table samekey.migrations (
            version    integer     primary key check (version > 0),
            name       text        not null,
            applied_at timestamptz not null default clock_timestamp()
        );
    end if;
end $$`

func prepare(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, prepareSQL); err != nil {
		return fmt.Errorf("schema: create schema %q: %w", Name, explain(err, conn))
	}
	return nil
}

// explain adds what to do if the role lacks a right.
func explain(err error, conn *pgx.Conn) error {
	if sqlstate.Of(err) != "42501" {
		return err
	}
	config := conn.Config()
	return fmt.Errorf("%w: migrate as the owner of the schema %q, or, if it does not exist, as a role that may create it "+
		"(grant create on database %s to %s)", err, Name,
		pgx.Identifier{config.Database}.Sanitize(), pgx.Identifier{config.User}.Sanitize())
}

func apply(ctx context.Context, conn *pgx.Conn, version int, m migration) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into samekey.migrations (version, name) values ($1, $2)`, version, m.name)
		return err
	})
	if err != nil {
		return fmt.Errorf("schema: migration %s: %w", m.name, explain(err, conn))
	}
	return nil
}

func migrateRiver(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn) error {
	migrator, err := riverMigrator(pool)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("schema: River's migrations: %w", explain(err, conn))
	}
	return nil
}

func riverMigrator(pool *pgxpool.Pool) (*rivermigrate.Migrator[pgx.Tx], error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: Name})
	if err != nil {
		return nil, fmt.Errorf("schema: River's migrations: %w", err)
	}
	return migrator, nil
}
