package integration

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"testing"
	"time"

	_ "github.com/lib/pq"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// pqPool opens a pool with the driver lib/pq.
func pqPool(t *testing.T, on *samekeytest.DB) *sql.DB {
	t.Helper()
	dsn, err := url.Parse(on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	query := dsn.Query()
	query.Set("sslmode", "disable") // lib/pq requires TLS by default; pgx only prefers it
	dsn.RawQuery = query.Encode()
	db, err := sql.Open("postgres", dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// pqTx begins a transaction with lib/pq.
func pqTx(t *testing.T, on *samekeytest.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := pqPool(t, on).BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func pqRequest(t *testing.T, value string) processed.Request {
	t.Helper()
	return processed.Request{Key: dbtest.Key(t, value, "acme", "pq"), Payload: []byte("1")}
}

// Database errors are classified in the same way as with pgx.
func TestLibPQErrorsAreClassified(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	say := func(state string) error {
		_, err := processed.Do(t.Context(), samekey.SQL(pqTx(t, on, sql.LevelDefault)), pqRequest(t, state),
			func(ctx context.Context, tx samekey.Tx) (int, error) {
				_, err := tx.Exec(ctx, "do $$ begin raise sqlstate '"+state+"'; end $$")
				if pgx := (*pgconn.PgError)(nil); errors.As(err, &pgx) {
					t.Error("the driver is pgx, want lib/pq")
				}
				return 0, err
			})
		return err
	}
	for _, state := range []string{"40001", "40P01", "55P03", "57014", "57P01", "26000"} {
		if err := say(state); !processed.SafeToRetry(err) || errors.Is(err, processed.ErrInFlight) {
			t.Errorf("%s: not safe to retry: %v", state, err)
		}
	}
	if err := say("23514"); err == nil || processed.SafeToRetry(err) {
		t.Errorf("a constraint: %v", err)
	}
	_, err := processed.Do(t.Context(), samekey.SQL(pqTx(t, on, sql.LevelDefault)), pqRequest(t, "swallowed"),
		func(ctx context.Context, tx samekey.Tx) (int, error) {
			_, _ = tx.Exec(ctx, "select 1/0")
			return 1, nil
		})
	if !errors.Is(err, processed.ErrAborted) {
		t.Errorf("a swallowed error: %v", err)
	}
}

func TestRecordInvisibleToLibPQIsSafeToRetry(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	tx := pqTx(t, on, sql.LevelRepeatableRead)
	if err := tx.QueryRow("select 1").Scan(new(int)); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	work := func(context.Context, samekey.Tx) (int, error) { return 7, nil }
	_, err := processed.Run(t.Context(), on.Pool, pqRequest(t, "k"), func(ctx context.Context, tx pgx.Tx) (int, error) { return 7, nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err = processed.Do(t.Context(), samekey.SQL(tx), pqRequest(t, "k"), work); !processed.SafeToRetry(err) {
		t.Fatalf("not safe to retry: %v", err)
	}
	res, err := processed.Do(t.Context(), samekey.SQL(pqTx(t, on, sql.LevelDefault)), pqRequest(t, "k"), work)
	if err != nil || !res.Deduplicated || res.Value != 7 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestLibPQIntentsConflictAndWake(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	listener, err := pgx.Connect(t.Context(), on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close(context.Background()) }()
	if _, err := listener.Exec(t.Context(), "listen samekey_outbox"); err != nil {
		t.Fatal(err)
	}
	tx := pqTx(t, on, sql.LevelDefault)
	in := outbox.Intent{Key: pqRequest(t, "k").Key, Action: "charge_card", Payload: 1}
	if _, err := outbox.Insert(t.Context(), samekey.SQL(tx), in); err != nil {
		t.Fatal(err)
	}
	in.Payload = 2
	conflict := (*outbox.ConflictError)(nil)
	if _, err := outbox.Insert(t.Context(), samekey.SQL(tx), in); !errors.As(err, &conflict) || conflict.Action != "charge_card" {
		t.Errorf("another payload: %v", err)
	}
	outbox.FlushSQL(pqPool(t, on), "charge_card")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if n, err := listener.WaitForNotification(ctx); err != nil || n.Payload != "charge_card" {
		t.Errorf("the notification is %+v, %v", n, err)
	}
}
