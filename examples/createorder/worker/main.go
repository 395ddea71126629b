// Command worker delivers what the order service wrote: it charges cards and
// sends receipts.
//
//	DATABASE_URL=postgres://... PAYMENTS_URL=http://... MAIL_URL=http://... worker
//
// Run as many as you like; kill any of them whenever you like.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

func main() {
	s := settings{paymentsURL: os.Getenv("PAYMENTS_URL"), mailURL: os.Getenv("MAIL_URL")}
	flag.DurationVar(&s.timeout, "timeout", 10*time.Second, "of one call to a vendor")
	flag.IntVar(&s.concurrency, "concurrency", 32, "calls under way at each vendor")
	flag.Parse()
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		slog.Error("worker", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	dsn := os.Getenv("DATABASE_URL")
	if dsn == "" {
		return errors.New("DATABASE_URL is not set")
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	d := dispatcher.New(pool, nil)
	if err := register(d, s); err != nil {
		return err
	}
	return d.Run(ctx)
}
