package schema_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// The test binary also runs as the process that migrates, so that a test can kill it.
const (
	migrateEnv = "SAMEKEY_TEST_MIGRATE"   // the database
	killEnv    = "SAMEKEY_TEST_KILL_AT"   // SIGKILL at the n-th commit ..
	whenEnv    = "SAMEKEY_TEST_KILL_WHEN" // .. "before" or "after" it
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(migrateEnv); dsn != "" {
		if err := migrateProcess(dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func migrateProcess(dsn string) error {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return err
	}
	if at, err := strconv.Atoi(os.Getenv(killEnv)); err == nil {
		config.ConnConfig.Tracer = &killer{at: int64(at), when: os.Getenv(whenEnv)}
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return schema.Migrate(context.Background(), pool)
}

// killer kills its own process at a commit, where a migration ends.
type killer struct {
	at, seen int64
	when     string
}

type commitMark struct{}

func (k *killer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.EqualFold(data.SQL, "commit") {
		return ctx
	}
	mine := atomic.AddInt64(&k.seen, 1) == k.at
	if mine && k.when == "before" {
		kill()
	}
	return context.WithValue(ctx, commitMark{}, mine)
}

func (k *killer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if mine, _ := ctx.Value(commitMark{}).(bool); mine {
		kill()
	}
}

func kill() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func startMigrate(t *testing.T, dsn string, env ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), migrateEnv+"="+dsn), env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &output
}

func TestMigrateConcurrentlyAndAgain(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	atOnce := func() {
		t.Helper()
		var commands [3]*exec.Cmd
		var outputs [3]*bytes.Buffer
		for i := range commands {
			commands[i], outputs[i] = startMigrate(t, db.DSN)
		}
		for i := range commands {
			if err := commands[i].Wait(); err != nil {
				t.Fatalf("process %d: %v\n%s", i, err, outputs[i])
			}
		}
		if err := schema.Check(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	atOnce()
	want := dump(t, samekeytest.NewDB(t).Pool, schema.Name)
	if got := dump(t, db.Pool, schema.Name); got != want {
		t.Fatalf("three at once made another schema:\n%s", firstDifference(want, got))
	}

	execSQL(t, db, `select samekey.enqueue('s', 'key ' || n, 'charge_card', '{}') from generate_series(1, 100) n`)
	before := catalogVersion(t, db.Pool)
	atOnce()
	if after := catalogVersion(t, db.Pool); after != before {
		t.Errorf("the second time changed something:\n%s", firstDifference(before, after))
	}
	if n := one[int](t, db.Pool, `select count(*)::int from samekey.outbox join samekey.outbox_queue using (id)`); n != 100 {
		t.Errorf("%d intents are left of 100", n)
	}
}

func TestMigrateContinuesAfterKill(t *testing.T) {
	want := dump(t, samekeytest.NewDB(t).Pool, schema.Name)
	for _, at := range []int{1, 2, 5, 7} { // samekey's own; River's first, that with the enum's value, the one that uses it
		for _, when := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%s commit %d", when, at), func(t *testing.T) {
				db := samekeytest.NewEmptyDB(t)
				cmd, output := startMigrate(t, db.DSN, killEnv+"="+strconv.Itoa(at), whenEnv+"="+when)
				err := cmd.Wait()
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
					t.Fatalf("%v, want it killed\n%s", err, output)
				}
				if err := schema.Check(t.Context(), db); !errors.Is(err, schema.ErrTooOld) {
					t.Fatalf("after the kill: %v, want ErrTooOld", err)
				}
				if err := schema.Migrate(t.Context(), db.Pool); err != nil {
					t.Fatal(err)
				}
				if err := schema.Check(t.Context(), db); err != nil {
					t.Fatal(err)
				}
				if got := dump(t, db.Pool, schema.Name); got != want {
					t.Errorf("another schema:\n%s", firstDifference(want, got))
				}
			})
		}
	}
}

func TestRefuseNewerDatabase(t *testing.T) {
	db := samekeytest.NewDB(t)
	execSQL(t, db, `insert into samekey.migrations (version, name) values (999, '0999_of_a_later_release')`)
	execSQL(t, db, `delete from samekey.river_migration where version = 8`) // what Migrate would run
	before := catalogVersion(t, db.Pool)
	for name, err := range map[string]error{
		"Migrate": schema.Migrate(t.Context(), db.Pool),
		"Check":   schema.Check(t.Context(), db),
	} {
		if !errors.Is(err, schema.ErrTooNew) || !strings.Contains(err.Error(), "999") {
			t.Errorf("%s: %v, want ErrTooNew that names version 999", name, err)
		}
	}
	if after := catalogVersion(t, db.Pool); after != before {
		t.Errorf("something changed:\n%s", firstDifference(before, after))
	}
}

func TestCheckRefusesOlderDatabase(t *testing.T) {
	for name, damage := range map[string]string{
		"nothing migrated":              `drop schema samekey cascade`,
		"none of samekey's":             `delete from samekey.migrations`,
		"River's last is missing":       `delete from samekey.river_migration where version = 8`,
		"none of River's":               `drop table samekey.river_migration`,
		"River's table of version 1..4": `alter table samekey.river_migration drop column line cascade`,
	} {
		t.Run(name, func(t *testing.T) {
			db := samekeytest.NewDB(t)
			execSQL(t, db, damage)
			err := schema.Check(t.Context(), db)
			if !errors.Is(err, schema.ErrTooOld) || !strings.Contains(err.Error(), "worker migrate") {
				t.Errorf("got %v, want ErrTooOld that says what to run", err)
			}
		})
	}
}

func TestVersionBeforeAndAfterMigrate(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	for _, want := range []int{0, schema.Latest()} {
		if got, err := schema.Version(t.Context(), db); err != nil || got != want {
			t.Errorf("version %d (%v), want %d", got, err, want)
		}
		if err := schema.Migrate(t.Context(), db.Pool); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMigrateLeavesOtherRiverAlone(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	theirs, err := rivermigrate.New(riverpgxv5.New(db.Pool), nil) // in schema public, as by default
	if err != nil {
		t.Fatal(err)
	}
	// The application's River is older than samekey's.
	if _, err := theirs.Migrate(t.Context(), rivermigrate.DirectionUp, &rivermigrate.MigrateOpts{TargetVersion: 6}); err != nil {
		t.Fatal(err)
	}
	execSQL(t, db, `insert into public.river_job (kind, args, max_attempts) values ('theirs', '{}', 1)`)
	before := riverDumpIn(t, db.Pool, "public") + one[string](t, db.Pool, `select string_agg(m::text, ' ' order by version) from public.river_migration m`)

	for range 2 {
		if err := schema.Migrate(t.Context(), db.Pool); err != nil {
			t.Fatal(err)
		}
	}
	after := riverDumpIn(t, db.Pool, "public") + one[string](t, db.Pool, `select string_agg(m::text, ' ' order by version) from public.river_migration m`)
	if after != before {
		t.Errorf("the application's River changed:\n%s", firstDifference(before, after))
	}
	if err := schema.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
	if n := one[int](t, db.Pool, `select (select count(*) from samekey.river_job)::int`); n != 0 {
		t.Errorf("%d jobs in samekey's River", n)
	}

	// Both work independently.
	if _, err := theirs.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"public", schema.Name} {
		runJob(t, db.Pool, name)
	}
	if n := one[int](t, db.Pool, `select count(*)::int from public.river_job where kind = 'theirs'`); n != 1 {
		t.Errorf("%d of the application's jobs are left, want 1", n)
	}
}

func TestMigrateWithPoolOfOne(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	config := db.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := schema.Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
}

func TestMigrateNamesMissingRights(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	role, pool := newLogin(t, db)
	err := schema.Migrate(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "grant create on database") || !strings.Contains(err.Error(), role) {
		t.Fatalf("got %v, want the grant that is missing", err)
	}
	if there := one[bool](t, db.Pool, `select to_regnamespace('samekey') is not null`); there {
		t.Error("a schema was made")
	}

	// With this right alone, it owns what it creates.
	execSQL(t, db, `grant create on database `+pgx.Identifier{db.Config().ConnConfig.Database}.Sanitize()+` to `+role)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := schema.Grant(t.Context(), pool, schema.Roles{Worker: role}); err == nil || !strings.Contains(err.Error(), "owns tables") {
		t.Errorf("a grant to the owner would take away its rights: got %v", err)
	}
	if err := schema.Check(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

func TestMigrateRunsConnectionHooks(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	owner, _ := newLogin(t, db)
	execSQL(t, db, `grant create on database `+pgx.Identifier{db.Config().ConnConfig.Database}.Sanitize()+` to `+owner)
	config := db.Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set role `+owner)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	owners := one[string](t, db.Pool, `select string_agg(distinct tableowner, ',') from pg_tables where schemaname = 'samekey'`)
	if owners != owner {
		t.Errorf("the tables belong to %s, want %s", owners, owner)
	}
}
