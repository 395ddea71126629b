package wake_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/samekeytest"
)

// listen returns a connection that hears the channel.
func listen(t *testing.T, on *samekeytest.DB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "listen "+wake.Channel); err != nil {
		t.Fatal(err)
	}
	return conn
}

// hear returns the next notification, and the session that sent it.
func hear(t *testing.T, conn *pgx.Conn) (action string, pid uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatalf("no notification: %v", err)
	}
	return n.Payload, n.PID
}

// idle waits until no pool has a notification in flight.
func idle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		n := wake.Waiting()
		if n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d pools are kept although no notification is in flight", n)
		}
	}
}

func TestFlushNotifiesEachActionOnce(t *testing.T) {
	on := samekeytest.NewDB(t)
	conn := listen(t, on)
	wake.Flush(on.Pool, "charge_card", "send_mail", "charge_card")
	first, _ := hear(t, conn)
	second, _ := hear(t, conn)
	if heard := []string{first, second}; !slices.Equal(heard, []string{"charge_card", "send_mail"}) {
		t.Errorf("heard %v", heard)
	}
	wake.Flush(on.Pool, "end")
	if next, _ := hear(t, conn); next != "end" {
		t.Errorf("heard %q as well", next)
	}
	idle(t)
}

func TestFlushesDuringANotificationShareTheNext(t *testing.T) {
	on := samekeytest.NewDB(t)
	conn := listen(t, on)
	config := on.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	only, err := pool.Acquire(t.Context()) // so the first notification waits
	if err != nil {
		t.Fatal(err)
	}
	before := pool.Stat().EmptyAcquireCount()
	wake.Flush(pool, "first")
	for range 1000 {
		wake.Flush(pool, "a", "b")
	}
	only.Release()
	// The first notification may begin anywhere among the flushes, and takes what is there by then; all else goes out with
	// the second.
	heard := map[string]int{}
	hearOne := func() (action string) {
		action, _ = hear(t, conn)
		heard[action]++
		return action
	}
	for heard["first"] == 0 || heard["a"] == 0 || heard["b"] == 0 {
		hearOne()
	}
	wake.Flush(pool, "end")
	for hearOne() != "end" {
	}
	if heard["first"] != 1 || heard["a"] > 2 || heard["b"] > 2 || len(heard) != 4 {
		t.Errorf("heard %v: more than was asked for", heard)
	}
	if waited := pool.Stat().EmptyAcquireCount() - before; waited > 2 {
		t.Errorf("%d notifications waited for a connection, want one at a time", waited)
	}
	idle(t)
}

func TestFailedNotificationIsDropped(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	config, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	wake.Flush(pool, "charge_card")
	idle(t)
	pool.Close()
	wake.Flush(pool, "charge_card")
	idle(t)
	wake.Flush(nil, "charge_card")
	wake.Flush(pool)
	goleak.VerifyNone(t, ignore)
}

func TestFlushGivesUpOnAnExhaustedPool(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	on := samekeytest.NewDB(t)
	config := on.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	only, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	wake.Flush(pool, "charge_card")
	if took := time.Since(began); took > time.Second {
		t.Errorf("Flush blocked for %s", took)
	}
	idle(t)
	if took := time.Since(began); took < wake.Patience || took > wake.Patience+10*time.Second {
		t.Errorf("gave up after %s, want %s", took, wake.Patience)
	}
	only.Release()
	pool.Close()
	on.Pool.Close()
	goleak.VerifyNone(t, ignore)
}
