package dispatcher_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// setForAll sets a parameter for every new session of the database.
func (b *bundle) setForAll(setting string) {
	b.Helper()
	b.exec(`do $$ begin execute format('alter database %I set ` + strings.ReplaceAll(setting, "'", "''") + `', current_database()); end $$`)
}

// Settings of the database neither slow a worker down nor make it fail.
func TestDatabaseSettingsDoNotReachTheWorker(t *testing.T) {
	b := setup(t)
	for _, setting := range []string{"default_transaction_isolation = serializable", "synchronous_commit = off", "statement_timeout = '1s'",
		"lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '1s'", "idle_session_timeout = '1s'"} {
		b.setForAll(setting)
	}
	pool, err := pgxpool.New(b.ctx, b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	b.applied()
	b.insertMany("charge_card", 250)
	d := b.dispatcherOn(pool, dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{Concurrency: 64})
	slow := true
	var mu sync.Mutex
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}, withApply(func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
		mu.Lock()
		first := slow
		slow = false
		mu.Unlock()
		if first { // longer than any limit of the database
			if _, err := tx.Exec(ctx, `select pg_sleep(1.2)`); err != nil {
				return err
			}
			if !sleepy(ctx, 1200*time.Millisecond) {
				return ctx.Err()
			}
		}
		return recordPayment(ctx, tx, c, o)
	}))
	r := b.start(d)
	b.untilFinished()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := b.count(`select count(*) from samekey.outbox_history`); n != 500 {
		t.Errorf("the history has %d lines, want an attempt and an Apply for each of 250", n)
	}
	logged := b.logs.String()
	for _, line := range strings.Split(logged, "\n") {
		if strings.Contains(line, withoutRiver) { // a busy machine
			continue
		}
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") && !strings.Contains(line, "a setting of the database") {
			t.Errorf("logged: %s", line)
		}
	}
	for _, setting := range []string{"synchronous_commit", "default_transaction_isolation"} {
		if !strings.Contains(logged, "setting="+setting+" ") {
			t.Errorf("the log has nothing about %s, which affects the application too", setting)
		}
	}
}

// sleepy idles in a transaction on purpose.
func sleepy(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// An operator freezes a database before a switch-over. Writes of a worker would be lost, and the next worker would send
// again.
func TestWorkerWritesNothingInAFrozenDatabase(t *testing.T) {
	b := setup(t)
	b.insert("charge_card")
	b.setForAll("default_transaction_read_only = on")
	pool, err := pgxpool.New(b.ctx, b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	d := b.dispatcherOn(pool, dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), b.post)
	if _, err := d.Drain(b.ctx); err == nil || !strings.Contains(err.Error(), "default_transaction_read_only = off") {
		t.Errorf("the drain returned %v", err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	defer func() { cancel(); <-done }()
	b.logs.Wait(t, "default_transaction_read_only")
	b.wantCalls(0)
	if d.Ready() == nil {
		t.Error("it is ready")
	}
	_, err = b.db.Exec(b.ctx, `do $$ begin execute format('alter database %I reset default_transaction_read_only', current_database()); end $$`)
	if err != nil {
		t.Fatal(err)
	}
	b.untilFinished()
	b.wantCalls(1)
}
