package processed_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// driverError is an error as another driver than pgx makes it.
type driverError string

func (e driverError) Error() string    { return "driver: " + string(e) }
func (e driverError) SQLState() string { return string(e) }

// Nothing was stored, and the request itself was valid.
func TestSessionEndedByTheServerIsSafeToRetry(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(ctx context.Context, tx samekey.Tx) error
		safe bool
	}{
		"the backend was killed": {func(ctx context.Context, tx samekey.Tx) error {
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return err
		}, true},
		"a lock timeout": {func(ctx context.Context, tx samekey.Tx) error {
			_, err := tx.Exec(ctx, "do $$ begin raise sqlstate '55P03'; end $$")
			return err
		}, true},
		"a statement timeout": {func(ctx context.Context, tx samekey.Tx) error {
			_, err := tx.Exec(ctx, "select set_config('statement_timeout', '10', true); select pg_sleep(60)")
			return err
		}, true},
		"no prepared statement": {func(ctx context.Context, tx samekey.Tx) error {
			_, err := tx.Exec(ctx, "execute gone")
			return err
		}, true},
		"another driver's":        {func(context.Context, samekey.Tx) error { return fmt.Errorf("mine: %w", driverError("55P03")) }, true},
		"an error of its own":     {func(context.Context, samekey.Tx) error { return errors.New("own") }, false},
		"a constraint":            {func(context.Context, samekey.Tx) error { return driverError("23505") }, false},
		"an error without a code": {func(context.Context, samekey.Tx) error { return driverError("") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (int, error) {
				return 0, c.do(ctx, tx)
			})
			if err == nil || processed.SafeToRetry(err) != c.safe {
				t.Errorf("Run: SafeToRetry is not %v: %v", c.safe, err)
			}
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = processed.Do(t.Context(), tx, request(t, "k", `1`), func(ctx context.Context, tx samekey.Tx) (int, error) {
				return 0, c.do(ctx, tx)
			})
			if err == nil || processed.SafeToRetry(err) != c.safe {
				t.Errorf("Do: SafeToRetry is not %v: %v", c.safe, err)
			}
			_ = tx.Rollback(t.Context())
			b.mustPlace(request(t, "k", `2`), order{"o1", 7}) // the key is unused
		})
	}
}

// Whichever driver reports it, a serialization failure runs Run's function again.
func TestASerializationFailureOfAnyDriverIsRunAgain(t *testing.T) {
	b := setup(t)
	calls := 0
	err := b.run("k", func(context.Context, pgx.Tx) error {
		if calls++; calls == 1 {
			return fmt.Errorf("mine: %w", driverError("40001"))
		}
		return nil
	})
	if err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = processed.Do(t.Context(), tx, request(t, "k2", `1`), func(context.Context, samekey.Tx) (int, error) { return 0, driverError("40001") })
	if !processed.SafeToRetry(err) {
		t.Errorf("Do: %v", err)
	}
}

func TestAConnectionLostInTheFunctionIsSafeToRetry(t *testing.T) {
	b, proxy := wired(t, 2)
	_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
		proxy.Cut()
		_, err := tx.Exec(ctx, "select 1")
		return order{}, err
	})
	if err == nil || !processed.SafeToRetry(err) {
		t.Errorf("want an error that is safe to retry: %v", err)
	}
	b.stored(0, 0, 0)
}

// holdOrder holds an ordering key until the returned function is called.
func (b *bundle) holdOrder(orderingKey string) (release func()) {
	b.t.Helper()
	tx, err := b.db.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	_, err = outbox.Insert(b.t.Context(), tx, outbox.Intent{Key: key(b.t, "holder"), Action: "send_mail", Payload: 1, OrderingKey: orderingKey})
	if err != nil {
		b.t.Fatal(err)
	}
	release = func() { _ = tx.Rollback(context.Background()) }
	b.t.Cleanup(release)
	return release
}

func ordered(orderingKeys ...string) func(context.Context, pgx.Tx) (order, error) {
	return func(ctx context.Context, tx pgx.Tx) (order, error) {
		for _, k := range orderingKeys {
			if _, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Part: k, Payload: 1, OrderingKey: k}); err != nil {
				return order{}, err
			}
		}
		return order{"o1", 7}, nil
	}
}

func TestATimeoutBehindAnOrderingKeyIsSafeToRetry(t *testing.T) {
	for setting, state := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} {
		for _, keys := range [][]string{{"held"}, {"free", "held"}} {
			t.Run(fmt.Sprint(setting, len(keys)), func(t *testing.T) {
				b := setup(t)
				release := b.holdOrder("held")
				pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams[setting] = "200ms" })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // longer than the session allows
				defer cancel()
				for _, ctx := range []context.Context{t.Context(), ctx} {
					_, err := processed.Run(ctx, pool, request(t, "k", `1`), ordered(keys...))
					var said interface{ SQLState() string }
					if !processed.SafeToRetry(err) || !errors.As(err, &said) || said.SQLState() != state {
						t.Errorf("want %s, safe to retry: %v", state, err)
					}
				}
				b.stored(0, 0, 0)
				release()
				if _, err := processed.Run(t.Context(), pool, request(t, "k", `1`), ordered(keys...)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// The batch that commits waits no longer than the caller, and it is certain that nothing was stored.
func TestADeadlineBehindAnOrderingKeyIsADeadline(t *testing.T) {
	for name, keys := range map[string][]string{"one": {"held"}, "several": {"free", "held"}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			release := b.holdOrder("held")
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := processed.Run(ctx, b.db.Pool, request(t, "k", `1`), ordered(keys...))
			took := time.Since(began)
			if !errors.Is(err, context.DeadlineExceeded) || processed.SafeToRetry(err) || errors.Is(err, processed.ErrAmbiguous) {
				t.Errorf("want the deadline: %v", err)
			}
			if took > 5*time.Second { // the commit's grace is 10
				t.Errorf("after %s", took)
			}
			b.stored(0, 0, 0)
			release()
			if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), ordered(keys...)); err != nil {
				t.Error(err)
			}
		})
	}
}

// Cancelled without a deadline, the commit goes on for its grace; then it is found out that nothing was stored, and the
// caller's cancellation is the reason.
func TestACancellationBehindAnOrderingKeyIsACancellation(t *testing.T) {
	b := setup(t)
	b.holdOrder("held")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		b.waiting("advisory")
		cancel()
	}()
	_, err := processed.Run(ctx, b.db.Pool, request(t, "k", `1`), ordered("held"))
	if !errors.Is(err, context.Canceled) || processed.SafeToRetry(err) || errors.Is(err, processed.ErrAmbiguous) {
		t.Errorf("want the cancellation: %v", err)
	}
	b.stored(0, 0, 0)
}

// A connection that lost its prepared statements, as behind a pooler, is not used again.
func TestAConnectionWithoutItsStatementsIsReplaced(t *testing.T) {
	b := setup(t)
	pool := b.pool(b.db.DSN, 1, nil)
	rob := func() {
		if err := pool.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error {
			_, err := conn.Exec(t.Context(), "deallocate all")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	place := func(k string) error {
		_, err := processed.Run(t.Context(), pool, request(t, k, `1`), func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, nil })
		return err
	}
	if err := errors.Join(place("warm1"), place("warm2")); err != nil {
		t.Fatal(err)
	}
	rob()
	if err := place("k"); err == nil || !processed.SafeToRetry(err) {
		t.Errorf("before the function: want an error that is safe to retry: %v", err)
	}
	if err := place("k"); err != nil {
		t.Errorf("the next: %v", err)
	}
	_, err := processed.Run(t.Context(), pool, request(t, "k2", `1`), func(ctx context.Context, tx pgx.Tx) (int, error) {
		_, err := tx.Exec(ctx, "deallocate all")
		return 1, err
	})
	if err == nil || !processed.SafeToRetry(err) {
		t.Errorf("in the commit: %v", err)
	}
	if err := place("k2"); err != nil {
		t.Errorf("after the commit's: %v", err)
	}
}
