package processed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/hook"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/processed"
)

// wired is a bundle whose pool of the given size goes through a proxy.
func wired(t *testing.T, size int32) (*bundle, *wiretest.Proxy) {
	t.Helper()
	b := setup(t)
	proxy := wiretest.Start(t, b.db.DSN)
	b.db.Pool = b.pool(proxy.DSN(), size, nil)
	return b, proxy
}

// pool is another pool of the bundle's database, closed at the end.
func (b *bundle) pool(dsn string, size int32, change func(*pgxpool.Config)) *pgxpool.Pool {
	b.t.Helper()
	return dbtest.Pool(b.t, dsn, func(config *pgxpool.Config) {
		config.MaxConns = size
		if change != nil {
			change(config)
		}
	})
}

// trips are those of the work, without the notifications that follow it.
func trips(proxy *wiretest.Proxy) (n int, said string) {
	var all []string
	for _, trip := range proxy.Take() {
		if text := strings.Join(trip.Statements, "; "); !strings.Contains(text, "pg_notify") {
			all = append(all, text)
		}
	}
	return len(all), strings.Join(all, "\n---\n")
}

func TestRunCostsThreeRoundTripsAndAReplayTwo(t *testing.T) {
	b, proxy := wired(t, 1)
	for _, warm := range []string{"w1", "w2"} {
		b.mustPlace(request(t, warm, `1`), order{warm, 7})
		b.mustPlace(request(t, warm, `1`), order{warm, 7})
	}
	trips(proxy)
	const runs = 5
	for _, k := range []string{"a", "b", "c", "d", "e"}[:runs] {
		b.mustPlace(request(t, k, `1`), order{k, 7}) // one statement of its own, and an intent
	}
	if n, said := trips(proxy); n != 3*runs {
		t.Errorf("%d runs cost %d round trips, want 3 each:\n%s", runs, n, said)
	}
	b.mustPlace(request(t, "a", `1`), order{"a", 7})
	if n, said := trips(proxy); n != 2 {
		t.Errorf("a replay cost %d round trips, want 2:\n%s", n, said)
	}
	err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "insert into orders (id, amount) values ($1, $2)", "bare", 7)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, said := trips(proxy); n != 3 {
		t.Errorf("bare begin, insert, commit: counted %d round trips, want 3:\n%s", n, said)
	}
}

func TestRunFindsItsAnswerAfterLostCommitResponse(t *testing.T) {
	b, proxy := wired(t, 2)
	hit := proxy.Arm(wiretest.LoseAnswer, "insert into samekey.processed_events")
	res, err := b.place(request(t, "k", `1`), order{"o1", 7})
	<-hit
	if err != nil || !res.Deduplicated || res.Value != (order{"o1", 7}) {
		t.Fatalf("%+v, %v", res, err)
	}
	b.stored(1, 1, 1)
	b.mustPlace(request(t, "k", `1`), order{"o1", 7})
	b.stored(1, 1, 1)
}

// The client's connection to the pooler lives, and so tells nothing.
func TestRunFindsItsAnswerAfterPoolerLostTheServer(t *testing.T) {
	b, proxy := wired(t, 2)
	hit := proxy.Arm(wiretest.LoseServer, "insert into samekey.processed_events")
	res, err := b.place(request(t, "k", `1`), order{"o1", 7})
	<-hit
	if err != nil || !res.Deduplicated || res.Value != (order{"o1", 7}) {
		t.Fatalf("safe to retry: %t, %+v, %v", processed.SafeToRetry(err), res, err)
	}
	b.stored(1, 1, 1)
}

func TestCommitThatNeverArrivedStoresNothing(t *testing.T) {
	b, proxy := wired(t, 2)
	hit := proxy.Arm(wiretest.CutBefore, "insert into samekey.processed_events")
	_, err := b.place(request(t, "k", `1`), order{"o1", 7})
	<-hit
	if err == nil || !processed.SafeToRetry(err) || errors.Is(err, processed.ErrAmbiguous) {
		t.Fatalf("want an error that is safe to retry: %v", err)
	}
	b.stored(0, 0, 0)
	if res := b.mustPlace(request(t, "k", `1`), order{"o1", 7}); res.Deduplicated {
		t.Fatal("a replay of what was not stored")
	}
	b.stored(1, 1, 1)
}

func TestCommitStillRunningIsAmbiguous(t *testing.T) {
	b, proxy := wired(t, 2)
	hit := proxy.Arm(wiretest.Hold, "insert into samekey.processed_events")
	o := order{"o1", 7}
	_, err := processed.Run(hook.FindOutWithin(t.Context(), 300*time.Millisecond), b.db.Pool, request(t, "k", `1`),
		func(ctx context.Context, tx pgx.Tx) (order, error) { return o, place(ctx, tx, o) })
	<-hit
	if !errors.Is(err, processed.ErrAmbiguous) || processed.SafeToRetry(err) {
		t.Fatalf("want ErrAmbiguous: %v", err)
	}
	if _, err := b.place(request(t, "k", `1`), o); !errors.Is(err, processed.ErrInFlight) {
		t.Fatalf("while it runs: %v", err)
	}
	proxy.Release()
	res := b.untilDone(request(t, "k", `1`))
	if !res.Deduplicated || res.Value != o {
		t.Fatalf("%+v", res)
	}
	b.stored(1, 1, 1)
}

// untilDone calls again as long as the first attempt is in flight.
func (b *bundle) untilDone(req processed.Request) processed.Result[order] {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	for {
		res, err := processed.Run(ctx, b.db.Pool, req, never)
		if err == nil {
			return res
		}
		if !errors.Is(err, processed.ErrInFlight) {
			b.t.Fatal(err)
		}
	}
}

func TestDeadPooledConnectionIsReplaced(t *testing.T) {
	b, proxy := wired(t, 1)
	b.db.Pool = b.pool(proxy.DSN(), 1, func(config *pgxpool.Config) { // one that does not look before it hands out
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	// Without an intent, whose notification would be the one to meet it.
	if err := b.run("k", func(context.Context, pgx.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	b.mustPlace(request(t, "k2", `1`), order{"o2", 7})
	b.stored(1, 1, 2)
}

func TestAProcessThatDiesInsideTheFunctionLeavesTheKeyFree(t *testing.T) {
	b, proxy := wired(t, 2)
	_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
		if err := place(ctx, tx, order{"o1", 7}); err != nil {
			return order{}, err
		}
		proxy.Cut() // as the kernel does for a killed process
		return order{"o1", 7}, nil
	})
	if err == nil || !processed.SafeToRetry(err) {
		t.Fatalf("want an error that is safe to retry: %v", err)
	}
	b.whenFree(request(t, "k", `1`), order{"o1", 7})
	b.stored(1, 1, 1)
}

// whenFree places the order as soon as the server has noticed the end of who held the key.
func (b *bundle) whenFree(req processed.Request, o order) {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := b.place(req, o)
		if err == nil {
			return
		}
		if !errors.Is(err, processed.ErrInFlight) || time.Now().After(deadline) {
			b.t.Fatal(err)
		}
	}
}

func TestLostFailureIsSafeToRetry(t *testing.T) {
	b, proxy := wired(t, 2)
	calls := 0
	declined := func(context.Context, pgx.Tx) (order, error) { calls++; return order{}, processed.Fail(402, nil) }
	hit := proxy.Arm(wiretest.LoseAnswer, "on conflict (idem_key, scope) do nothing")
	_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), declined)
	<-hit
	if err == nil || !processed.SafeToRetry(err) {
		t.Fatalf("want an error that is safe to retry: %v", err)
	}
	res, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), declined)
	if failureOf(err).Code != 402 || !res.Deduplicated || calls != 1 {
		t.Fatalf("%+v, %v, %d calls", res, err, calls)
	}
}

var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func TestRunWorksInEveryExecModeOfPgx(t *testing.T) {
	b := setup(t)
	for _, mode := range modes {
		pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode })
		k := strings.ReplaceAll(mode.String(), " ", "-")
		run := func(k string, fn func(ctx context.Context, tx pgx.Tx) (order, error)) (processed.Result[order], error) {
			return processed.Run(t.Context(), pool, request(t, k, `1`), fn)
		}
		placed := func(ctx context.Context, tx pgx.Tx) (order, error) { return order{k, 7}, place(ctx, tx, order{k, 7}) }
		if _, err := run(k, placed); err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if res, err := run(k, never); err != nil || !res.Deduplicated || res.Value.ID != k {
			t.Errorf("%s: replay: %+v, %v", mode, res, err)
		}
		for _, when := range []string{"cold", "warm"} {
			res, err := run(k+when, func(ctx context.Context, tx pgx.Tx) (order, error) {
				_, _ = tx.Exec(ctx, "select 1/0")
				return order{}, processed.Fail(402, nil)
			})
			if failureOf(err).Code != 402 {
				t.Errorf("%s: failure, %s: %+v, %v", mode, when, res, err)
			}
		}
	}
}
