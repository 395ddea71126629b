package processed_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/hook"
	"github.com/samekey/samekey/processed"
)

func TestFirstRollsBackAndOneOfFiveWaitersRuns(t *testing.T) {
	b := setup(t)
	own := errors.New("own")
	running, fail := make(chan struct{}), make(chan struct{})
	var ran, replayed atomic.Int32
	var all sync.WaitGroup
	all.Go(func() {
		err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
			close(running)
			<-fail
			return errors.Join(place(ctx, tx, order{"first", 1}), own)
		})
		if !errors.Is(err, own) {
			t.Error(err)
		}
	})
	<-running
	refused := make(chan struct{}, 5)
	for range 5 {
		all.Go(func() {
			waited := false
			for {
				res, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
					ran.Add(1)
					return order{"o1", 7}, place(ctx, tx, order{"o1", 7})
				})
				switch {
				case err == nil:
					if res.Deduplicated {
						replayed.Add(1)
					}
					return
				case !errors.Is(err, processed.ErrInFlight):
					t.Error(err)
					return
				case !waited:
					waited = true
					refused <- struct{}{}
				}
			}
		})
	}
	for range 5 {
		<-refused
	}
	close(fail)
	all.Wait()
	if ran.Load() != 1 || replayed.Load() != 4 {
		t.Errorf("%d ran, %d replayed, want 1 and 4", ran.Load(), replayed.Load())
	}
	b.stored(1, 1, 1)
}

func TestTwentyCallsOnOneKeyLeaveThePoolToOthers(t *testing.T) {
	b := setup(t)
	pool := b.pool(b.db.DSN, 4, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	running, finish := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := processed.Run(ctx, pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
			close(running)
			<-finish
			return order{}, place(ctx, tx, order{"o1", 7})
		})
		first <- err
	}()
	<-running
	var others sync.WaitGroup
	for range 19 {
		others.Go(func() {
			if _, err := processed.Run(ctx, pool, request(t, "k", `1`), never); !errors.Is(err, processed.ErrInFlight) {
				t.Error(err)
			}
		})
	}
	others.Wait() // none of them waited for the first, which still runs
	if _, err := pool.Exec(ctx, "select 1"); err != nil {
		t.Errorf("an unrelated query: %v", err)
	}
	close(finish)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	b.stored(1, 1, 1)
}

// With the lock turned off, two first attempts run side by side. The winner is stopped in the middle of its COMMIT, its
// record written and not yet visible; the loser has to wait for it.
func TestPrimaryKeyAloneLetsOneAttemptWin(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			b := setup(t)
			b.exec(`create function stop() returns trigger language plpgsql as
				$$ begin perform pg_advisory_xact_lock(42); return null; end $$`)
			b.exec(`create constraint trigger stop after insert on orders deferrable initially deferred
				for each row when (new.id = 'winner') execute function stop()`)
			ctx, cancel := context.WithTimeout(hook.WithoutLock(t.Context()), 60*time.Second)
			defer cancel()
			gate, err := b.db.Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer gate.Release()
			if _, err := gate.Exec(ctx, "select pg_advisory_lock(42)"); err != nil {
				t.Fatal(err)
			}
			req := request(t, "k", `1`)
			req.Isolation = level
			begin := func(name string, inside chan<- struct{}, commit <-chan struct{}) <-chan processed.Result[order] {
				done := make(chan processed.Result[order], 1)
				go func() {
					res, err := processed.Run(ctx, b.db.Pool, req, func(ctx context.Context, tx pgx.Tx) (order, error) {
						err := place(ctx, tx, order{name, 7})
						inside <- struct{}{}
						<-commit
						return order{name, 7}, err
					})
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					done <- res
				}()
				return done
			}
			inside := make(chan struct{}, 2)
			goWinner, goLoser := make(chan struct{}), make(chan struct{})
			winner := begin("winner", inside, goWinner)
			loser := begin("loser", inside, goLoser)
			<-inside
			<-inside
			close(goWinner)
			b.waiting("advisory")
			close(goLoser)
			b.waiting("transactionid")
			if _, err := gate.Exec(ctx, "select pg_advisory_unlock(42)"); err != nil {
				t.Fatal(err)
			}
			first, again := <-winner, <-loser
			if first.Deduplicated || !again.Deduplicated || again.Value.ID != "winner" {
				t.Fatalf("winner %+v, loser %+v", first, again)
			}
			b.stored(1, 1, 1)
			if b.count("orders where id = 'loser'") != 0 {
				t.Error("the loser's rows were committed")
			}
		})
	}
}

// waiting returns once a backend of this database waits for such a lock.
func (b *bundle) waiting(event string) {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for b.count("pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and wait_event = $1", event) == 0 {
		if time.Now().After(deadline) {
			b.t.Fatalf("no session waits for a lock of type %s", event)
		}
	}
}

func TestRecordPrunedAfterLostInsertMeansOneMoreRun(t *testing.T) {
	b := setup(t)
	acquired := 0
	pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) {
		config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			if acquired++; acquired == 2 { // the loser comes back for its lookup
				_, err := b.db.Exec(ctx, "with r as (delete from samekey.processed_events), q as (delete from samekey.outbox_queue) delete from samekey.outbox")
				return err == nil, err
			}
			return true, nil
		}
	})
	calls := 0
	res, err := processed.Run(hook.WithoutLock(t.Context()), pool, request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
		if calls++; calls == 1 {
			b.mustPlace(request(t, "k", `1`), order{"winner", 7})
		}
		return order{"o1", 7}, place(ctx, tx, order{"o1", 7})
	})
	if err != nil || res.Deduplicated || res.Value.ID != "o1" || calls != 2 {
		t.Fatalf("%+v, %v, %d calls", res, err, calls)
	}
	b.stored(2, 1, 1)
}

func TestSerializableTransactionsThatCollideAreRunAgain(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var calls atomic.Int32
	var both, all sync.WaitGroup
	both.Add(2)
	for _, name := range []string{"a", "b"} {
		all.Go(func() {
			req := request(t, name, `1`)
			req.Isolation = pgx.Serializable
			first := true
			_, err := processed.Run(ctx, b.db.Pool, req, func(ctx context.Context, tx pgx.Tx) (order, error) {
				calls.Add(1)
				var n int64
				if err := tx.QueryRow(ctx, "select count(*) from orders").Scan(&n); err != nil {
					return order{}, err
				}
				if first { // both have read before either writes
					first = false
					both.Done()
					both.Wait()
				}
				return order{}, place(ctx, tx, order{name, n})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b.stored(2, 2, 2)
	if n := calls.Load(); n < 3 {
		t.Errorf("%d calls: they did not collide", n)
	}
	if b.count("orders where amount = 1") != 1 {
		t.Error("the second did not see the first")
	}
}

// Neighbors in the index would collide, though the requests have nothing in common.
func TestSerializableRequestsWithMintedKeysDoNotCollide(t *testing.T) {
	const clients = 8
	b := setup(t)
	b.exec("create table loose (n int)")
	keys := make([]string, 40_000) // enough pages for all places
	for i := range keys {
		keys[i] = samekey.Mint()
	}
	b.exec(`insert into samekey.processed_events (idem_key, scope, payload_hash, hash_version, completed_at, expires_at, failed)
		select k, 'acme/orders.create', sha256('x'), 1, now(), now() + interval '1 day', false from unnest($1::text[]) k`, keys)
	b.exec("analyze samekey.processed_events")
	pool := b.pool(b.db.DSN, clients, nil)
	var calls atomic.Int32
	var inside, all sync.WaitGroup
	inside.Add(clients)
	for range clients {
		all.Go(func() {
			req := request(t, samekey.Mint(), `1`)
			req.Isolation = pgx.Serializable
			first := true
			_, err := processed.Run(t.Context(), pool, req, func(ctx context.Context, tx pgx.Tx) (int, error) {
				calls.Add(1)
				if first { // all have looked for their keys before any writes its own
					first = false
					inside.Done()
					inside.Wait()
				}
				_, err := tx.Exec(ctx, "insert into loose values (1)")
				return 1, err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := calls.Load(); n > clients+clients/2 { // by chance two share a page, one time in 10
		t.Errorf("%d calls for %d requests", n, clients)
	}
}

func TestRunGivesUpAfterTenCollisions(t *testing.T) {
	b := setup(t)
	calls := 0
	err := b.run("k", func(ctx context.Context, tx pgx.Tx) error {
		calls++
		_, err := tx.Exec(ctx, "do $$ begin raise sqlstate '40001'; end $$")
		return err
	})
	if err == nil || !processed.SafeToRetry(err) || calls != 10 {
		t.Errorf("%d calls, %v", calls, err)
	}
	b.stored(0, 0, 0)
}

func TestAFailureThatComesSecondGivesTheFirstAnswer(t *testing.T) {
	b := setup(t)
	res, err := processed.Run(hook.WithoutLock(t.Context()), b.db.Pool, request(t, "k", `1`), func(context.Context, pgx.Tx) (order, error) {
		b.mustPlace(request(t, "k", `1`), order{"winner", 7})
		return order{}, processed.Fail(402, nil)
	})
	if err != nil || !res.Deduplicated || res.Value.ID != "winner" {
		t.Fatalf("%+v, %v", res, err)
	}
	_, err = processed.Run(hook.WithoutLock(t.Context()), b.db.Pool, request(t, "k2", `1`), func(context.Context, pgx.Tx) (order, error) {
		b.mustPlace(request(t, "k2", `2`), order{"other", 7})
		return order{}, processed.Fail(402, nil)
	})
	if !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another payload won: %v", err)
	}
	b.stored(2, 2, 2)
}

func TestAFailureAfterAFailedStatementIsStoredOnAColdConnection(t *testing.T) {
	b := setup(t)
	res, err := processed.Run(t.Context(), b.pool(b.db.DSN, 1, nil), request(t, "k", `1`), func(ctx context.Context, tx pgx.Tx) (order, error) {
		_, _ = tx.Exec(ctx, "select 1/0")
		return order{}, processed.Fail(409, "sold out")
	})
	if failureOf(err).Code != 409 {
		t.Fatalf("%+v, %v", res, err)
	}
	b.stored(0, 0, 1)
}
