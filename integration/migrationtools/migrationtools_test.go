// Package migrationtools runs the files that `worker migrate -for` writes, each with its tool. It is a module of its
// own because no other package needs those tools.
package migrationtools

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// buildWorker returns the path of the worker's program.
func buildWorker(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-buildvcs=false", "-o", path, "./cmd/worker").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func write(t *testing.T, worker, tool, dir string, more ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), worker, append([]string{"migrate", "-for", tool, "-dir", dir}, more...)...)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, problems.String())
	}
	return strings.Fields(string(out))
}

// up runs all files that the database lacks, closes db, and returns the number of new versions.
type up func(t *testing.T, db *sql.DB, dir string) int

func gooseUp(t *testing.T, db *sql.DB, dir string) int {
	t.Helper()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = provider.Close() }() // and db
	results, err := provider.Up(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(results)
}

func migrateUp(t *testing.T, db *sql.DB, dir string) int {
	t.Helper()
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithDatabaseInstance("file://"+dir, "pgx5", driver)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = m.Close() }() // and db
	before, _, err := m.Version()
	if err != nil && !errors.Is(err, migrate.ErrNilVersion) {
		t.Fatal(err)
	}
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		t.Fatal(err)
	}
	after, dirty, err := m.Version()
	if err != nil || dirty {
		t.Fatalf("version %d, dirty %v, %v", after, dirty, err)
	}
	return int(after - before)
}

func TestFilesRunWithTheirTool(t *testing.T) {
	worker := buildWorker(t)
	steps, err := schema.All()
	if err != nil {
		t.Fatal(err)
	}
	want := describe(t, samekeytest.NewDB(t))
	for tool, run := range map[string]up{"goose": gooseUp, "golang-migrate": migrateUp} {
		t.Run(tool, func(t *testing.T) {
			dir := t.TempDir()
			own := map[string]string{"goose": "00007_own.sql", "golang-migrate": "000007_own.up.sql"}[tool]
			text := map[string]string{"goose": "-- +goose Up\n"}[tool] + "create table own (id int);\n"
			if err := os.WriteFile(filepath.Join(dir, own), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			names := write(t, worker, tool, dir)
			if len(names) != len(steps) || !strings.HasPrefix(strings.TrimLeft(names[0], "0"), "8_samekey_0001") {
				t.Fatalf("wrote %v", names)
			}
			on := samekeytest.NewEmptyDB(t)
			if n := run(t, stdlib.OpenDBFromPool(on.Pool), dir); n == 0 {
				t.Error("the tool ran nothing")
			}
			if err := schema.Check(t.Context(), on); err != nil {
				t.Fatal(err)
			}
			if got := describe(t, on); got != want {
				t.Errorf("the tool and Migrate made different schemas:\n%s", difference(want, got))
			}
			if err := schema.Migrate(t.Context(), on.Pool); err != nil {
				t.Error(err)
			}
			// A second time there is nothing to write and nothing to run.
			if names := write(t, worker, tool, dir); len(names) != 0 {
				t.Errorf("wrote %v again", names)
			}
			if n := run(t, stdlib.OpenDBFromPool(on.Pool), dir); n != 0 {
				t.Errorf("ran %d again", n)
			}
			// The files of an upgrade come after the existing ones.
			if err := os.Remove(filepath.Join(dir, names[len(names)-1])); err != nil {
				t.Fatal(err)
			}
			if again := write(t, worker, tool, dir); len(again) != 1 || again[0] != names[len(names)-1] {
				t.Errorf("wrote %v, want %v", again, names[len(names)-1:])
			}
		})
	}
}

func TestFilesForRolesGrantThem(t *testing.T) {
	worker := buildWorker(t)
	for tool, run := range map[string]up{"goose": gooseUp, "golang-migrate": migrateUp} {
		t.Run(tool, func(t *testing.T) {
			on := samekeytest.NewEmptyDB(t)
			app := pgx.Identifier{fmt.Sprintf("App %s %d", tool, os.Getpid())}
			exec := func(text string) { t.Helper(); dbtest.Exec(t, on, text) }
			exec(`create role ` + app.Sanitize())
			defer func() { exec(`drop owned by ` + app.Sanitize() + `; drop role ` + app.Sanitize()) }()
			dir := t.TempDir()
			names := write(t, worker, tool, dir, "-app-role", app[0])
			if last := names[len(names)-1]; !strings.Contains(last, "_grants_of_samekey_0001_river_") {
				t.Errorf("the last file is %s", last)
			}
			run(t, stdlib.OpenDBFromPool(on.Pool), dir)
			exec(`begin; set local role ` + app.Sanitize() + `; select samekey.enqueue('s', 'k', 'a', '{}'); rollback`)
		})
	}
}

// describe lists the contents of the schema, including the text of functions.
func describe(t *testing.T, on *samekeytest.DB) string {
	t.Helper()
	return dbtest.Value[string](t, on, `
		select string_agg(line, E'\n' order by line collate "C") from (
		    select format('%s %s %s %s', table_name, column_name, udt_name, column_default) as line from information_schema.columns where table_schema = 'samekey'
		    union all select indexdef from pg_indexes where schemaname = 'samekey'
		    union all select format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) from pg_constraint where connamespace = 'samekey'::regnamespace
		    union all select pg_get_functiondef(oid) from pg_proc where pronamespace = 'samekey'::regnamespace
		    union all select format('%s %s', oid::regprocedure, proacl) from pg_proc where pronamespace = 'samekey'::regnamespace
		    union all select format('migration %s', name) from samekey.migrations
		    union all select format('river %s %s', line, version) from samekey.river_migration) s`)
}

func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return "want: " + w[i] + "\ngot:  " + g[i]
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}
