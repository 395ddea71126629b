package integration

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/localpg"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/schema"
)

// With synchronous_commit off, a crash of the server undoes the last commits. If it undid a claim whose call was made,
// the intent would be claimed and sent again, and a vendor that ignores keys would act twice. So the worker's commits
// wait for the disk, even if its role has synchronous_commit off.
func TestServerCrashUndoesNoClaim(t *testing.T) {
	const crashes = 3
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	server, err := localpg.Start(ctx, localpg.Config{Parameters: map[string]string{"wal_writer_delay": "10s"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	pool, err := pgxpool.New(ctx, server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `alter role postgres set synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	pool.Reset()

	v := &crashing{dsn: server.DSN, calls: map[uuid.UUID]int{}}
	d := dispatcher.New(pool, &dispatcher.Config{Deployment: "test", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), SweepInterval: 50 * time.Millisecond})
	d.Destination("vendor", dispatcher.Limits{})
	dispatcher.Handle(d, outbox.NewAction[[]byte]("pay_out"), dispatcher.Delivery[[]byte]{
		Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Destination: "vendor", Timeout: time.Minute},
		Send:   v.send,
	})
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(running) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	for i := range crashes {
		id := payOut(ctx, t, pool, fmt.Sprintf("payout-%d", i))
		var last outbox.Entry
		for pause := time.NewTicker(5 * time.Millisecond); !last.Status.Finished(); <-pause.C {
			if ctx.Err() != nil {
				t.Fatalf("the intent is not finished: %+v", last)
			}
			if entry, err := outbox.Get(ctx, pool, id); err == nil { // fails while the server recovers
				last = entry
			}
		}
		if got := v.made(id); got != 1 {
			t.Errorf("crash %d: the vendor was called %d times, want once", i+1, got)
		}
	}
}

// payOut commits an intent durably. It retries while the server recovers.
func payOut(ctx context.Context, t *testing.T, pool *pgxpool.Pool, key string) (id uuid.UUID) {
	t.Helper()
	for {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `set local synchronous_commit = on`); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `select samekey.enqueue('acme/payouts', $1, 'pay_out', '{}')`, key).Scan(&id)
		})
		if err == nil {
			return id
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// crashing is a vendor. Its first call for each intent crashes the database server.
type crashing struct {
	dsn   string
	mu    sync.Mutex
	calls map[uuid.UUID]int
}

func (v *crashing) made(id uuid.UUID) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls[id]
}

func (v *crashing) send(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
	v.mu.Lock()
	v.calls[call.ID]++
	first := v.calls[call.ID] == 1
	v.mu.Unlock()
	if first {
		v.crash(ctx)
	}
	return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
}

// crash kills a backend. The server then discards its memory, including log records that are not on disk, and recovers.
func (v *crashing) crash(ctx context.Context) {
	conn, err := pgx.Connect(ctx, v.dsn)
	if err != nil {
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, _ = conn.Exec(ctx, `copy (select 1) to program 'kill -9 $PPID'`)
}
