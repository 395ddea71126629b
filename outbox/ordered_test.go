package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func ordered(t testing.TB, orderingKey string, n int) outbox.Intent {
	return outbox.Intent{Key: newKey(t, fmt.Sprintf("%s-%d", orderingKey, n)), Action: "notify", Payload: n, OrderingKey: orderingKey}
}

func TestSecondWriterOfAnOrderingKeyWaits(t *testing.T) {
	on := newGuardedDB(t)
	for _, rolledBack := range []bool{false, true} {
		orderingKey := fmt.Sprint("order-", rolledBack)
		tx := begin(t, on)
		if _, err := outbox.Insert(t.Context(), tx, ordered(t, orderingKey, 1)); err != nil {
			t.Fatal(err)
		}
		done := make(chan outbox.Entry, 1)
		go func() { done <- get(t, on, insert(t, on, ordered(t, orderingKey, 2))) }()
		eventually(t, "the second writer waits", func() bool { return waiting(t, on) == 1 })
		want := outbox.StatusBlocked
		if rolledBack {
			want = outbox.StatusPending
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else {
			commit(t, tx)
		}
		if e := <-done; e.Status != want {
			t.Errorf("first rolled back %v: the second is %s, want %s", rolledBack, e.Status, want)
		}
	}
}

func TestRepeatableReadNeverMakesASecondHead(t *testing.T) {
	on := newGuardedDB(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		orderingKey := string(level)
		tx, err := on.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "select count(*) from samekey.outbox_queue"); err != nil {
			t.Fatal(err)
		}
		insert(t, on, ordered(t, orderingKey, 1))
		_, err = outbox.Insert(t.Context(), tx, ordered(t, orderingKey, 2))
		_ = tx.Rollback(t.Context())
		isRetryable(t, err)
	}
}

func TestManyOrderingKeysDoNotDeadlock(t *testing.T) {
	on := newGuardedDB(t)
	const writers, rounds, orders = 6, 15, 4
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for round := range rounds {
				var intents []outbox.Intent
				for _, k := range rand.Perm(orders) {
					intents = append(intents, ordered(t, fmt.Sprint("order-", k), w*rounds+round))
				}
				// And two that all writers share, in either order: the unique index is locked too.
				for _, k := range rand.Perm(2) {
					intents = append(intents, outbox.Intent{Key: newKey(t, fmt.Sprint("shared-", round, k)), Action: "notify", Payload: k})
				}
				err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
					_, err := outbox.InsertMany(t.Context(), tx, intents)
					return err
				})
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
				}
			}
		})
	}
	all.Wait()
	if n := count(t, on, "select count(*) from samekey.outbox"); n != writers*rounds*orders+rounds*2 {
		t.Errorf("%d intents, want %d", n, writers*rounds*orders+rounds*2)
	}
	if n := count(t, on, "select count(*) from samekey.outbox_queue where ordering_key is not null and status = 'pending'"); n != orders {
		t.Errorf("%d heads of %d ordering keys", n, orders)
	}
	if n := count(t, on, `select count(*) from samekey.outbox_queue h join samekey.outbox_queue b using (ordering_key)
		where h.status = 'pending' and b.status = 'blocked' and b.seq < h.seq`); n != 0 {
		t.Errorf("%d stand before their head", n)
	}
}

func TestInsertManyWithTwoOrderingKeysWaitsBeforeItHoldsOne(t *testing.T) {
	on := newGuardedDB(t)
	// Whichever of the two is locked first by InsertMany, one of these two rounds would deadlock if each were locked as
	// it is written.
	for i, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
		tx := begin(t, on)
		if _, err := outbox.Insert(t.Context(), tx, ordered(t, pair[0], 10*i+1)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- pgx.BeginFunc(t.Context(), on, func(inner pgx.Tx) error {
				_, err := outbox.InsertMany(t.Context(), inner, []outbox.Intent{ordered(t, pair[1], 10*i+2), ordered(t, pair[0], 10*i+3)})
				return err
			})
		}()
		eventually(t, "InsertMany waits", func() bool { return waiting(t, on) == 1 })
		commit(t, tx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestInsertManyKeepsTheOrderGivenWithinAnOrderingKey(t *testing.T) {
	on := newGuardedDB(t)
	var intents []outbox.Intent
	for i := range 20 {
		intents = append(intents, ordered(t, fmt.Sprint("order-", i%2), 20-i))
	}
	err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
		ids, err := outbox.InsertMany(t.Context(), tx, intents)
		if err != nil {
			return err
		}
		last := map[string]int64{}
		for i, id := range ids {
			var seq int64
			if err := tx.QueryRow(t.Context(), "select seq from samekey.outbox_queue where id = $1", id).Scan(&seq); err != nil {
				return err
			}
			if k := intents[i].OrderingKey; seq <= last[k] {
				t.Errorf("intent %d of %s has number %d, after %d", i, k, seq, last[k])
			} else {
				last[k] = seq
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// seqs returns the numbers of the key values, in the order given.
func seqs(t testing.TB, on *samekeytest.DB, keys ...string) (numbers []int64) {
	t.Helper()
	for _, key := range keys {
		var n int64
		if err := on.QueryRow(t.Context(), "select q.seq from samekey.outbox o join samekey.outbox_queue q using (id) where o.idem_key = $1", key).Scan(&n); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// After a failover the clock may be behind that of the former server, and after
// a switchover by logical replication every sequence starts at 1.
func TestOrderHoldsWhenClocksAndSequencesAreSetBack(t *testing.T) {
	on := newGuardedDB(t)
	for n := range 3 {
		insert(t, on, ordered(t, "order", n))
	}
	mustExec(t, on, `update samekey.outbox_queue set seq = seq + 3600000000`) // as if written by a clock an hour ahead
	mustExec(t, on, `do $$ declare s regclass; begin
		for s in select oid from pg_class where relkind = 'S' and relnamespace = 'samekey'::regnamespace loop perform setval(s, 1, false); end loop; end $$`)
	for n := 3; n < 6; n++ {
		insert(t, on, ordered(t, "order", n))
	}
	if numbers := seqs(t, on, "order-0", "order-1", "order-2", "order-3", "order-4", "order-5"); !slices.IsSorted(numbers) || len(slices.Compact(numbers)) != 6 {
		t.Errorf("numbers %v do not rise", numbers)
	}
}

// A transaction with an old snapshot does not see who came before it, and
// stands behind them all the same.
func TestAnOldSnapshotDoesNotJumpTheOrder(t *testing.T) {
	on := newGuardedDB(t)
	insert(t, on, ordered(t, "order", 0))
	tx, err := on.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select count(*) from samekey.outbox_queue"); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 4; n++ {
		insert(t, on, ordered(t, "order", n))
	}
	if _, err := outbox.Insert(t.Context(), tx, ordered(t, "order", 4)); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
	if numbers := seqs(t, on, "order-1", "order-2", "order-3", "order-4"); !slices.IsSorted(numbers) || len(slices.Compact(numbers)) != 4 {
		t.Errorf("numbers %v: the last to commit is not last", numbers)
	}
}
