// Command demo runs the createorder example for half a minute on its own Postgres. It kills processes, loses and
// repeats calls, and then balances the books: each order is charged once or declined, and each paid order has one
// receipt.
//
//	make demo             ends with 0 doubles, 0 lost, exit code 0
//	make demo BREAK=key   each attempt carries a new key: doubles, exit code 1
//
// The programs are ../service, ../worker and ../vendors, each in its own process; `make demo` builds them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/internal/localpg"
	"github.com/samekey/samekey/schema"
)

func main() {
	localpg.Main()
	d := &demo{out: os.Stdout, sabotage: os.Getenv("BREAK")}
	self, _ := os.Executable()
	flag.StringVar(&d.bin, "bin", filepath.Dir(self), "folder of the programs service, worker and vendor")
	flag.IntVar(&d.orders, "orders", 400, "the minimum number of clients")
	flag.IntVar(&d.perSecond, "rate", 40, "orders per second")
	flag.Uint64Var(&d.seed, "seed", 1, "determines the orders, and which call gets which fault")
	flag.DurationVar(&d.timeout, "timeout", 3*time.Second, "timeout of one call to a vendor")
	flag.BoolVar(&d.keep, "keep", false, "keep the folder with the logs and the ledgers")
	flag.Parse()

	signal.Ignore(syscall.SIGPIPE) // `make demo | head` must still clean up
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		stop()
		os.Exit(1)
	}
}

// demo is the state of one run.
type demo struct {
	bin       string
	orders    int
	perSecond int
	seed      uint64
	timeout   time.Duration
	keep      bool
	sabotage  string // "key": each attempt gets a new key
	out       io.Writer

	dir          string
	dsn          string
	pool         *pgxpool.Pool
	payments     *vendor
	mail         *vendor
	service      *process
	workers      []*process
	traffic      *traffic
	kills        []kill
	serviceKills int
	started      time.Time
	giveUp       context.CancelCauseFunc
}

func (d *demo) run(ctx context.Context) (err error) {
	ctx, d.giveUp = context.WithCancelCause(ctx)
	defer d.giveUp(nil)
	d.started = time.Now()
	if d.dir, err = os.MkdirTemp("", "samekey-demo-"); err != nil {
		return err
	}
	defer d.removeDir()

	postgres, err := localpg.Start(ctx, localpg.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	d.dsn = postgres.DSN
	if d.pool, err = pgxpool.New(ctx, d.dsn); err != nil {
		return err
	}
	defer d.pool.Close()
	if err := errors.Join(schema.Migrate(ctx, d.pool), createorder.Migrate(ctx, d.pool)); err != nil {
		return err
	}

	defer d.killAll()
	if err := d.startAll(ctx); err != nil {
		return err
	}
	d.say("Postgres, 2 vendors, the service and 2 workers are up; clients start to order")
	if err := d.play(ctx); err != nil {
		return err
	}
	if err := d.stopAll(); err != nil {
		return err
	}
	evidence, err := d.collect(ctx)
	if err != nil {
		return err
	}
	b := balance(evidence)
	d.checkShow(&b)
	return d.report(b)
}

func (d *demo) removeDir() {
	if d.keep {
		fmt.Fprintln(d.out, "logs and ledgers:", d.dir)
		return
	}
	_ = os.RemoveAll(d.dir)
}
