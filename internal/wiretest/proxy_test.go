package wiretest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/samekeytest"
)

// setup starts a proxy for a database with the table n.
func setup(t *testing.T) (context.Context, *samekeytest.DB, *wiretest.Proxy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	db := samekeytest.NewDB(t)
	dbtest.Exec(t, db, "create table n (n int primary key)")
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

func wantRows(t *testing.T, db *samekeytest.DB, want int) {
	t.Helper()
	if n := dbtest.Value[int](t, db, "select count(*) from n"); n != want {
		t.Errorf("%d rows, want %d", n, want)
	}
}

func TestArmNthCountsOnlyBurstsThatExecute(t *testing.T) {
	ctx, db, proxy := setup(t)
	for fault, rows := range map[wiretest.Fault]int{wiretest.CutBefore: 2, wiretest.LoseAnswer: 3} {
		dbtest.Exec(t, db, "truncate n")
		conn := connect(ctx, t, proxy)
		hit := proxy.ArmNth(fault, 3)
		for n := 1; n <= 2; n++ { // the first insert also prepares, in a round trip of its own
			if err := insert(ctx, conn, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := insert(ctx, conn, 3); err == nil {
			t.Error("the third burst got its answer")
		}
		if statements := strings.Join(<-hit, ";"); !strings.Contains(statements, "insert into n") {
			t.Errorf("the fault met %q", statements)
		}
		if proxy.Disarm() {
			t.Error("the fault is still armed")
		}
		wantRows(t, db, rows)
	}
}

func TestDisarmedFaultDoesNotHappen(t *testing.T) {
	ctx, _, proxy := setup(t)
	conn := connect(ctx, t, proxy)
	proxy.ArmNth(wiretest.CutBefore, 1)
	if !proxy.Disarm() {
		t.Error("the fault was not armed")
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
			t.Error("another connection still works")
		}
		if _, err := pgx.Connect(ctx, proxy.DSN()); err == nil {
			t.Error("a new connection was made")
		}
		wantRows(t, db, rows)
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
		dbtest.Until(t, "both bursts are held", func() bool { return proxy.Held() == want })
	}
	held(2)
	wantRows(t, db, 0)
	proxy.Step()
	held(2)
	wantRows(t, db, 2)
	proxy.Resume()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	wantRows(t, db, 4)
}
