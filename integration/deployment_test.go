package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/localpg"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/schema"
)

// copies makes copies of a database with Postgres's own tools.
type copies struct {
	*testing.T
	ctx   context.Context //nolint:containedctx // of the test
	dsn   string          // of the server
	calls atomic.Int32
}

// server starts a server, as a physical copy of another one if that is given.
func (c *copies) server(copyOf string) (dsn string) {
	c.Helper()
	server, err := localpg.Start(c.ctx, localpg.Config{Parameters: map[string]string{"fsync": "off"}, CopyOf: copyOf})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if err := server.Stop(); err != nil {
			c.Error(err)
		}
	})
	return server.DSN
}

func inDatabase(t *testing.T, dsn, name string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// tool runs one of Postgres's programs.
func (c *copies) tool(name string, args ...string) error {
	out, err := exec.CommandContext(c.ctx, filepath.Join(localpg.BinDir(c.ctx), name), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// drain delivers once as a worker of the deployment, and returns how many intents it delivered.
func (c *copies) drain(dsn, deployment string) (delivered int, err error) {
	c.Helper()
	pool, err := pgxpool.New(c.ctx, dsn)
	if err != nil {
		c.Fatal(err)
	}
	defer pool.Close()
	d := dispatcher.New(pool, &dispatcher.Config{Deployment: deployment, Logger: slog.New(slog.DiscardHandler)})
	d.Destination("bank", dispatcher.Limits{})
	dispatcher.Handle(d, outbox.NewAction[[]byte]("pay_out"), dispatcher.Delivery[[]byte]{
		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "bank", KeyWindow: time.Hour},
		Send: func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
			c.calls.Add(1)
			return dispatcher.Delivered(dispatcher.Response{}), nil
		},
	})
	sum, err := d.Drain(c.ctx)
	return sum.Delivered, err
}

// wantRefused checks that a worker of the deployment delivers nothing, and says why.
func (c *copies) wantRefused(dsn, deployment, says string) {
	c.Helper()
	before := c.calls.Load()
	delivered, err := c.drain(dsn, deployment)
	if delivered != 0 || c.calls.Load() != before || !errors.Is(err, dispatcher.ErrDeployment) || !strings.Contains(err.Error(), says) {
		c.Errorf("%d were delivered: %v, want %q", delivered, err, says)
	}
}

func (c *copies) wantDelivered(dsn, deployment string, want int) {
	c.Helper()
	if delivered, err := c.drain(dsn, deployment); delivered != want || err != nil {
		c.Errorf("%d were delivered, want %d: %v", delivered, want, err)
	}
}

// database returns a migrated database that belongs to the deployment, with one due intent.
func (c *copies) database(name, deployment string) (dsn string) {
	c.Helper()
	server := dbtest.Pool(c, c.dsn)
	dbtest.Exec(c, server, `create database `+name)
	dsn = inDatabase(c.T, c.dsn, name)
	if err := schema.Migrate(c.ctx, dbtest.Pool(c, dsn)); err != nil {
		c.Fatal(err)
	}
	c.wantDelivered(dsn, deployment, 0) // names it
	payOut(c.ctx, c.T, dbtest.Pool(c, dsn), "payout-of-"+name)
	return dsn
}

func TestCopiesMadeByPostgresToolsAreNotDelivered(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := &copies{T: t, ctx: ctx}
	c.dsn = c.server("")
	production := c.database("production", "production")
	dump := filepath.Join(t.TempDir(), "dump")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.tool("pg_dump", "-Fc", "-f", dump, production))

	t.Run("restored elsewhere", func(t *testing.T) {
		dbtest.Exec(t, dbtest.Pool(t, c.dsn), `create database restored`)
		restored := inDatabase(t, c.dsn, "restored")
		must(c.tool("pg_restore", "-d", restored, dump))
		c.wantRefused(restored, "production", `a copy of the database of "production"`)
		c.wantRefused(restored, "staging", `a copy of the database of "production"`)
		unfinished, err := schema.Adopt(ctx, dbtest.Pool(t, restored), "staging")
		if unfinished != 1 || err != nil {
			t.Errorf("Adopt returned %d, %v", unfinished, err)
		}
		c.wantRefused(restored, "production", `belongs to "staging"`)
		c.wantDelivered(restored, "staging", 1)
	})
	t.Run("restored over another", func(t *testing.T) {
		staging := c.database("staging", "staging")
		must(c.tool("pg_restore", "--clean", "-d", staging, dump))
		c.wantRefused(staging, "staging", `a copy of the database of "production"`)
	})
	t.Run("data restored into the tables of another", func(t *testing.T) {
		preview := c.database("preview", "preview")
		err := c.tool("pg_restore", "--data-only", "--schema", "samekey", "--disable-triggers", "-d", preview, dump)
		if err == nil {
			t.Error("pg_restore did not report the tables that it could not load")
		}
		if n := dbtest.Value[int](t, dbtest.Pool(t, preview), `select count(*) from samekey.outbox_queue`); n != 2 {
			t.Errorf("%d intents: the test is void", n)
		}
		c.wantRefused(preview, "preview", "(preview, production)")
	})
	t.Run("physical copy", func(t *testing.T) {
		replica := inDatabase(t, c.server(c.dsn), "production")
		c.wantRefused(replica, "staging", `belongs to "production"`)
		c.wantDelivered(replica, "production", 1) // as after a failover to it
	})
	c.wantDelivered(production, "production", 1)
}
