package wiretest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/samekeytest"
)

// setup is a proxy in front of a database with the table n.
func setup(t *testing.T) (context.Context, *samekeytest.DB, *wiretest.Proxy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	db := samekeytest.NewDB(t)
	if _, err := db.Exec(ctx, "create table n (n int primary key)"); err != nil {
		t.Fatal(err)
	}
	return ctx, db, wiretest.Start(t, db.DSN)
}

func connect(ctx context.Context, t *testing.T, proxy *wiretest.Proxy) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, proxy.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func insert(ctx context.Context, conn *pgx.Conn, n int) error {
	_, err := conn.Exec(ctx, "insert into n values ($1)", n)
	return err
}

func wantRows(ctx context.Context, t *testing.T, db *samekeytest.DB, want int) {
	t.Helper()
	var n int
	if err := db.QueryRow(ctx, "select count(*) from n").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Errorf("%d rows, want %d", n, want)
	}
}

func TestArmNthCountsOnlyBurstsThatExecute(t *testing.T) {
	ctx, db, proxy := setup(t)
	for fault, rows := range map[wiretest.Fault]int{wiretest.CutBefore: 2, wiretest.LoseAnswer: 3} {
		if _, err := db.Exec(ctx, "truncate n"); err != nil {
			t.Fatal(err)
		}
		conn := connect(ctx, t, proxy)
		hit := proxy.ArmNth(fault, 3)
		for n := 1; n <= 2; n++ { // the first prepares too, in a round trip of its own
			if err := insert(ctx, conn, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := insert(ctx, conn, 3); err == nil {
			t.Error("the third burst got its answer")
		}
		if said := strings.Join(<-hit, ";"); !strings.Contains(said, "insert into n") {
			t.Errorf("struck %q", said)
		}
		if proxy.Disarm() {
			t.Error("still armed after it struck")
		}
		wantRows(ctx, t, db, rows)
	}
}

func TestDisarmedFaultDoesNotHappen(t *testing.T) {
	ctx, _, proxy := setup(t)
	conn := connect(ctx, t, proxy)
	proxy.ArmNth(wiretest.CutBefore, 1)
	if !proxy.Disarm() {
		t.Error("was not armed")
	}
	if err := insert(ctx, conn, 1); err != nil {
		t.Error(err)
	}
}

func TestCrashedClientHasNoConnectionUntilRevive(t *testing.T) {
	ctx, db, proxy := setup(t)
	rows := 0
	for _, fault := range []wiretest.Fault{wiretest.CrashBefore, wiretest.CrashAfter} {
		conn, other := connect(ctx, t, proxy), connect(ctx, t, proxy)
		hit := proxy.ArmNth(fault, 1)
		if err := insert(ctx, conn, rows); err == nil {
			t.Error("the burst got its answer")
		}
		<-hit
		if fault == wiretest.CrashAfter {
			rows++
		}
		if err := insert(ctx, other, 100); err == nil {
			t.Error("another connection lives")
		}
		if _, err := pgx.Connect(ctx, proxy.DSN()); err == nil {
			t.Error("a new connection was made")
		}
		wantRows(ctx, t, db, rows)
		proxy.Revive()
		if err := connect(ctx, t, proxy).Ping(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestStepForwardsOneBurstOfEachConnection(t *testing.T) {
	ctx, db, proxy := setup(t)
	a, b := connect(ctx, t, proxy), connect(ctx, t, proxy)
	proxy.Pause()
	done := make(chan error, 2)
	for n, conn := range []*pgx.Conn{a, b} {
		go func() {
			err := insert(ctx, conn, 2*n)
			if err == nil {
				err = insert(ctx, conn, 2*n+1)
			}
			done <- err
		}()
	}
	held := func(want int) {
		t.Helper()
		for proxy.Held() != want {
			if ctx.Err() != nil {
				t.Fatalf("%d held, want %d", proxy.Held(), want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	held(2)
	wantRows(ctx, t, db, 0)
	proxy.Step()
	held(2)
	wantRows(ctx, t, db, 2)
	proxy.Resume()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	wantRows(ctx, t, db, 4)
}
