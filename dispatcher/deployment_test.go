package dispatcher_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// deployed is a dispatcher of a deployment that delivers charge_card from a database.
func (b *bundle) deployed(pool *pgxpool.Pool, deployment string) *dispatcher.Dispatcher {
	d := b.dispatcherOn(pool, dispatcher.Config{Deployment: deployment})
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), b.post)
	return d
}

func (b *bundle) adopt(db schema.DB, deployment string) {
	b.Helper()
	b.until("it is adopted", func() bool { // the server needs a moment to end a session
		_, err := schema.Adopt(b.ctx, db, deployment)
		if err != nil && sqlstate.Of(err) != "55006" {
			b.Fatal(err)
		}
		return err == nil
	})
}

// migrated makes the test's database as it is after a migration: a real one, and without a name.
func (b *bundle) migrated() {
	b.Helper()
	b.adopt(b.db, "nobody")
	b.exec(`update samekey.deployment set name = null`)
}

func (b *bundle) wantRefused(d *dispatcher.Dispatcher, says ...string) {
	b.Helper()
	sum, err := d.Drain(b.ctx)
	if sum != (dispatcher.Summary{}) || !errors.Is(err, dispatcher.ErrDeployment) {
		b.Fatalf("the drain returned %+v, %v", sum, err)
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			b.Errorf("%q is not in the error %q", part, err)
		}
	}
}

func (b *bundle) untilRefused(d *dispatcher.Dispatcher) {
	b.Helper()
	b.until("the worker is refused", func() bool { return errors.Is(d.Ready(), dispatcher.ErrDeployment) })
}

func (b *bundle) errorLines() int { return strings.Count(b.logs.String(), "level=ERROR") }

// copyOf copies the test's database to another one on the same server.
func (b *bundle) copyOf() *samekeytest.DB {
	b.Helper()
	server, err := pgx.Connect(b.ctx, os.Getenv("SAMEKEY_TEST_DATABASE_URL"))
	if err != nil {
		b.Fatal(err)
	}
	original := value[string](b, `select current_database()`)
	name, copied := pgx.Identifier{original + "_copy"}.Sanitize(), original+"_copy"
	b.until("the database is copied", func() bool { // its sessions need a moment to end
		b.db.Reset()
		_, err := server.Exec(b.ctx, `create database `+name+` template `+pgx.Identifier{original}.Sanitize())
		if err != nil && sqlstate.Of(err) != "55006" {
			b.Fatal(err)
		}
		return err == nil
	})
	b.Cleanup(func() {
		dbtest.Exec(b, server, `drop database `+name+` with (force)`)
		_ = server.Close(b.ctx)
	})
	dsn, err := url.Parse(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	dsn.Path = "/" + copied
	return &samekeytest.DB{Pool: dbtest.Pool(b, dsn.String()), DSN: dsn.String()}
}

func TestFirstWorkerNamesTheDatabase(t *testing.T) {
	b := setup(t)
	b.migrated()
	b.insert("charge_card")
	b.expect(b.deployed(b.db.Pool, "production"), dispatcher.Summary{Delivered: 1})
	if name := value[string](b, `select name from samekey.deployment`); name != "production" {
		b.Errorf("the database belongs to %q", name)
	}
	id := b.insert("charge_card")
	b.wantRefused(b.deployed(b.db.Pool, "staging"), `belongs to "production"`, `delivers for "staging"`, "worker adopt -deployment staging")
	b.wantStatus(id, "pending")
	b.expect(b.deployed(b.db.Pool, "production"), dispatcher.Summary{Delivered: 1})
	b.wantCalls(2)
}

func TestWorkerWithoutDeploymentDoesNotStart(t *testing.T) {
	b := setup(t)
	b.migrated()
	b.insert("charge_card")
	d := b.deployed(b.db.Pool, "")
	var mistakes dispatcher.ConfigErrors
	if err := d.Run(b.ctx); !errors.As(err, &mistakes) || len(mistakes) != 1 || mistakes[0].Field != "Deployment" {
		b.Errorf("Run returned %v", err)
	}
	if _, err := d.Drain(b.ctx); !errors.As(err, &mistakes) {
		b.Errorf("Drain returned %v", err)
	}
	b.wantCalls(0)
}

func TestDatabaseOfATestTakesEveryWorker(t *testing.T) {
	b := setup(t)
	for _, deployment := range []string{"", "production", "staging"} {
		b.insert("charge_card")
		b.expect(b.deployed(b.db.Pool, deployment), dispatcher.Summary{Delivered: 1})
	}
}

// A worker of production that is pointed at a copy waits, says so once, and goes on when a person has adopted the copy.
func TestCopyIsNotDeliveredUntilItIsAdopted(t *testing.T) {
	b := setup(t)
	b.adopt(b.db, "production")
	id := b.insert("charge_card")
	copied := b.copyOf()
	d := b.deployed(copied.Pool, "production")
	b.startRefused(d)
	if err := d.Ready(); !strings.Contains(err.Error(), `a copy of the database of "production"`) || !strings.Contains(err.Error(), "worker adopt -deployment production") {
		b.Errorf("Ready returns %v", err)
	}
	b.wantRefused(b.deployed(copied.Pool, "staging"), `a copy of the database of "production"`)
	if lines := b.errorLines(); lines != 2 {
		b.Errorf("%d ERROR lines, want one for each worker", lines)
	}
	if n := dbtest.Value[int](b, copied, `select count(*) from samekey.workers`); n != 0 {
		b.Errorf("%d workers registered", n)
	}
	b.adopt(copied, "production")
	b.until("the copy is delivered", func() bool {
		return dbtest.Value[int](b, copied, `select count(*) from samekey.outbox_queue`) == 0
	})
	if err := d.Ready(); err != nil {
		b.Errorf("Ready returns %v", err)
	}
	b.wantStatus(id, "pending")
	b.wantCalls(1)
}

// startRefused runs d until the test ends, and returns once it is refused.
func (b *bundle) startRefused(d *dispatcher.Dispatcher) {
	b.Helper()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.ctx))
	go func() { done <- d.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := wait(b, "Run returns", done); err != nil {
			b.Errorf("Run returned %v", err)
		}
		if err := d.Ready(); errors.Is(err, dispatcher.ErrDeployment) {
			b.Errorf("after Run, Ready returns %v", err)
		}
	})
	b.untilRefused(d)
}

// A dump of production is restored over the database of a running worker of staging. Its claims take nothing from then
// on, before any check of the session.
func TestRestoreOverARunningWorkerStopsItsClaims(t *testing.T) {
	b := setup(t)
	b.adopt(b.db, "production")
	row := value[string](b, `select format('insert into samekey.deployment select (json_populate_record(null::samekey.deployment, %L)).*', row_to_json(d)) from samekey.deployment d`)
	b.adopt(b.db, "staging")
	d := b.deployed(b.db.Pool, "staging")
	b.start(d)
	b.exec(`delete from samekey.deployment; ` + row)
	id := b.insert("charge_card")
	b.untilSwept(d, 3)
	b.wantCalls(0)
	b.untilRefused(d) // the next heartbeat
	if lines := b.errorLines(); lines != 1 {
		b.Errorf("%d ERROR lines, want 1", lines)
	}
	b.wantStatus(id, "pending")

	b.exec(`delete from samekey.deployment where name = 'production'`)
	b.adopt(b.db, "staging")
	b.untilStatus(id, "delivered")
}

func TestRowsOfTwoDeploymentsStopClaims(t *testing.T) {
	b := setup(t)
	b.adopt(b.db, "staging")
	d := b.deployed(b.db.Pool, "staging")
	b.start(d)
	b.exec(`insert into samekey.deployment (name, database_oid) values ('production', 1)`)
	id := b.insert("charge_card")
	b.untilSwept(d, 3)
	b.wantCalls(0)
	b.wantStatus(id, "pending")
	b.wantRefused(b.deployed(b.db.Pool, "staging"), "(production, staging)")
}

// The check is made again when a session comes back: the address may lead to another server by then.
func TestDeploymentIsCheckedWhenTheSessionComesBack(t *testing.T) {
	b := setup(t)
	b.adopt(b.db, "production")
	d := b.deployed(b.db.Pool, "production")
	b.start(d)
	b.exec(`update samekey.deployment set system_identifier = system_identifier + 1`) // as on another server; the id stays
	b.exec(`select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid::bigint = samekey.worker_class() and objid::bigint = $1`, d.WorkerID())
	b.untilRefused(d)
	id := b.insert("charge_card")
	b.untilSwept(d, 3)
	b.wantStatus(id, "pending")
	b.adopt(b.db, "production")
	b.untilStatus(id, "delivered")
	b.wantCalls(1)
}

func TestAdoptIsRefusedWhileAWorkerIsAtWork(t *testing.T) {
	b := setup(t)
	b.adopt(b.db, "production")
	r := b.start(b.deployed(b.db.Pool, "production"))
	if _, err := schema.Adopt(b.ctx, b.db, "staging"); sqlstate.Of(err) != "55006" || !strings.Contains(err.Error(), "top its workers first") {
		b.Errorf("Adopt returned %v", err)
	}
	b.adopt(b.db, "production") // what it is already
	b.insert("charge_card")
	b.untilFinished()
	if err := r.stop(); err != nil {
		b.Fatal(err)
	}
	b.adopt(b.db, "staging")
	b.wantRefused(b.deployed(b.db.Pool, "production"))
}

// untilSwept waits until the dispatcher has swept n times more.
func (b *bundle) untilSwept(d *dispatcher.Dispatcher, n int) {
	b.Helper()
	for range n {
		last := d.Swept()
		b.until("it sweeps", func() bool { return d.Swept().After(last) })
	}
}
