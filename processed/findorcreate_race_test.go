package processed_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

// What can happen between FindOrCreate's statements, and to them, as the comment in findorcreate.go lists it.

func TestFindOrCreateWaitsForRunningInsert(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			for _, end := range []string{"commits", "rolls back", "rolls back to a savepoint"} {
				b.exec("truncate tickets")
				peer, err := b.db.Begin(t.Context())
				ok(t, err)
				inner := peer
				if end == "rolls back to a savepoint" {
					inner, err = peer.Begin(t.Context())
					ok(t, err)
				}
				first := (<-b.ticket(inner, "Printer on fire")).want(t, false)

				tx, commit, _ := owner.begin(t, b, "")
				second := b.ticket(tx, "printer on fire")
				b.waiting("transactionid")
				if end == "commits" {
					ok(t, peer.Commit(t.Context()))
				} else {
					ok(t, inner.Rollback(t.Context()))
				}
				id := (<-second).want(t, end == "commits")
				if (id == first) != (end == "commits") {
					t.Errorf("%s: first %d, second %d", end, first, id)
				}
				ok(t, commit())
				if end == "rolls back to a savepoint" {
					// The peer lost its row and has not noticed: it finds the other.
					if again := (<-b.ticket(peer, "Printer on fire")).want(t, true); again != id {
						t.Errorf("the peer has %d, want %d", again, id)
					}
					ok(t, peer.Commit(t.Context()))
				}
				if n := b.count("tickets where id = $1", id); n != 1 {
					t.Errorf("%s: the row of the answer is there %d times", end, n)
				}
				b.tickets(1)
			}
		})
	}
}

func TestFindOrCreateWaitsForRunningDelete(t *testing.T) {
	b := setupTickets(t)
	for _, how := range []string{"delete from tickets", "update tickets set subject = 'Something else'"} {
		for _, commits := range []bool{true, false} {
			b.exec("truncate tickets")
			b.exec("insert into tickets (customer, subject, day) values ('acme', 'Printer on fire', $1)", monday)
			peer, err := b.db.Begin(t.Context())
			ok(t, err)
			_, err = peer.Exec(t.Context(), how)
			ok(t, err)
			tx, err := b.db.Begin(t.Context())
			ok(t, err)
			call := b.ticket(tx, "printer on fire")
			b.waiting("transactionid")
			if commits {
				ok(t, peer.Commit(t.Context()))
			} else {
				ok(t, peer.Rollback(t.Context()))
			}
			id := (<-call).want(t, !commits)
			ok(t, tx.Commit(t.Context()))
			if n := b.count("tickets where id = $1 and subject_norm = 'printer on fire'", id); n != 1 {
				t.Errorf("%s, committed %v: the row of the answer is there %d times", how, commits, n)
			}
		}
	}
}

func TestFindOrCreateFindsTheCallersOwnRow(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			for _, level := range []pgx.TxIsoLevel{"", pgx.RepeatableRead, pgx.Serializable} {
				b.exec("truncate tickets")
				tx, _, rollback := owner.begin(t, b, level)
				first := (<-b.ticket(tx, "Printer on fire")).want(t, false)
				if again := (<-b.ticket(tx, "printer on fire")).want(t, true); again != first {
					t.Errorf("%q: own row %d, found %d", level, first, again)
				}
				ok(t, rollback())
				b.tickets(0)

				tx, commit, _ := owner.begin(t, b, level)
				first = (<-b.ticket(tx, "Printer on fire")).want(t, false)
				ok(t, commit())
				tx, _, rollback = owner.begin(t, b, level)
				if again := (<-b.ticket(tx, "printer on fire")).want(t, true); again != first {
					t.Errorf("%q: row %d, found %d", level, first, again)
				}
				ok(t, rollback()) // of one who only found it
				b.tickets(1)
			}
		})
	}
}

// between calls before at each of its statements; its number is 1 for the first.
type between struct {
	samekey.Tx
	n      int
	before func(statement int)
}

func (b *between) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b.n++
	b.before(b.n)
	return b.Tx.Query(ctx, sql, args...)
}

func TestRowDeletedBeforeItIsFoundIsCreatedAgain(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			insert := func() {
				b.exec("insert into tickets (customer, subject, day) values ('acme', 'Printer on fire', $1)", monday)
			}
			insert()
			tx, commit, _ := owner.begin(t, b, "")
			gap := &between{Tx: tx, before: func(statement int) {
				if statement == 2 { // create met the row, find is about to look
					b.exec("delete from tickets")
				}
			}}
			(<-b.ticket(gap, "printer on fire")).want(t, false)
			if gap.n != 4 {
				t.Errorf("%d statements, want create, find, create, find", gap.n)
			}
			ok(t, commit())
			b.tickets(1)

			// There for each create, gone for each find.
			tx, commit, _ = owner.begin(t, b, "")
			gap = &between{Tx: tx, before: func(statement int) {
				if b.exec("delete from tickets"); statement%2 == 1 {
					insert()
				}
			}}
			f := <-b.ticket(gap, "printer on fire")
			if f.err == nil || processed.SafeToRetry(f.err) || !strings.Contains(f.err.Error(), "5 times") || gap.n != 10 {
				t.Errorf("%d statements, %+v, %v", gap.n, f.Result, f.err)
			}
			// Nothing failed in the database, and the transaction goes on.
			insert()
			(<-b.ticket(tx, "printer on fire")).want(t, true)
			ok(t, commit())
		})
	}
}

func TestFindOrCreateWithOldSnapshotAsksToRetry(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
				for _, meets := range []string{"committed", "uncommitted"} {
					b.exec("truncate tickets")
					tx, _, rollback := owner.begin(t, b, level)
					_, err := tx.Exec(t.Context(), "select count(*) from orders") // the snapshot
					ok(t, err)
					peer, err := b.db.Begin(t.Context())
					ok(t, err)
					first := (<-b.ticket(peer, "Printer on fire")).want(t, false)
					var call <-chan found
					if meets == "committed" {
						ok(t, peer.Commit(t.Context()))
						call = b.ticket(tx, "printer on fire")
					} else {
						call = b.ticket(tx, "printer on fire")
						b.waiting("transactionid")
						ok(t, peer.Commit(t.Context()))
					}
					(<-call).wantAgain(t, "40001")
					ok(t, rollback())
					tx, commit, _ := owner.begin(t, b, level)
					if id := (<-b.ticket(tx, "printer on fire")).want(t, true); id != first {
						t.Errorf("%s, %s: %d, want %d", level, meets, id, first)
					}
					ok(t, commit())
					b.tickets(1)
				}
			}
		})
	}
}

func TestDeletedRowIsFoundInOldSnapshotUnlessLocked(t *testing.T) {
	b := setupTickets(t)
	for _, lock := range []string{"", " for key share"} {
		b.exec("truncate tickets")
		b.exec("insert into tickets (customer, subject, day) values ('acme', 'Printer on fire', $1)", monday)
		tx, err := b.db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		ok(t, err)
		gap := &between{Tx: tx, before: func(statement int) {
			if statement == 2 {
				b.exec("delete from tickets")
			}
		}}
		res, err := processed.FindOrCreate(t.Context(), gap, ticketInsert("do nothing returning id"), ticketSelect("id", lock), pgx.RowTo[int64])
		if f := (found{res, err}); lock == "" {
			f.want(t, true)
		} else {
			f.wantAgain(t, "40001")
		}
		ok(t, tx.Rollback(t.Context()))
	}
}

func TestLockTimeoutAndDeadlockAskToRetryTheTransaction(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setupTickets(t)
			peer, err := b.db.Begin(t.Context())
			ok(t, err)
			first := (<-b.ticket(peer, "Printer on fire")).want(t, false)
			tx, _, rollback := owner.begin(t, b, "")
			_, err = tx.Exec(t.Context(), "set local lock_timeout = '50ms'")
			ok(t, err)
			(<-b.ticket(tx, "printer on fire")).wantAgain(t, "55P03")
			if f := <-b.ticket(tx, "printer on fire"); f.err == nil || processed.SafeToRetry(f.err) || !strings.Contains(f.err.Error(), "an earlier statement aborted") {
				t.Errorf("in an aborted transaction: %+v, %v", f.Result, f.err)
			}
			ok(t, rollback())

			// Each holds the row that the other wants next. Postgres aborts one of them.
			tx, _, rollback = owner.begin(t, b, "")
			_, err = tx.Exec(t.Context(), "set local deadlock_timeout = '10ms'")
			ok(t, err)
			_, err = peer.Exec(t.Context(), "set local deadlock_timeout = '60s'")
			ok(t, err)
			(<-b.ticket(tx, "Door")).want(t, false)
			blocked := b.ticket(peer, "door")
			b.waiting("transactionid")
			(<-b.ticket(tx, "printer on fire")).wantAgain(t, "40P01")
			ok(t, rollback())
			(<-blocked).want(t, false)
			ok(t, peer.Commit(t.Context()))
			tx, commit, _ := owner.begin(t, b, "")
			if id := (<-b.ticket(tx, "printer on fire")).want(t, true); id != first {
				t.Errorf("got %d, want %d", id, first)
			}
			ok(t, commit())
			b.tickets(2)
		})
	}
}

// Run calls its function again after 40P01 and 40001: the caller sees no collision.
func TestRunsThatCollideOverTwoRowsBothSucceed(t *testing.T) {
	b := setupTickets(t)
	for _, level := range []pgx.TxIsoLevel{"", pgx.Serializable} {
		b.exec("truncate tickets")
		pool := b.pool(b.db.DSN, 4, func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams["deadlock_timeout"] = "20ms" })
		both := make(chan struct{}, 2)
		meet := make(chan struct{})
		var all sync.WaitGroup
		var ids [2][2]int64
		for i := range 2 {
			all.Go(func() {
				calls := 0
				req := request(t, fmt.Sprint("k", i, level), `1`)
				req.Isolation = level
				_, err := processed.Run(t.Context(), pool, req, func(ctx context.Context, tx pgx.Tx) (int64, error) {
					calls++
					for j, subject := range [][]string{{"a", "b"}, {"b", "a"}}[i] {
						res, err := findOrCreateTicket(ctx, tx, "acme", subject, monday)
						if err != nil {
							return 0, err
						}
						ids[i][(i+j)%2] = res.Value
						if calls == 1 && j == 0 {
							both <- struct{}{}
							<-meet
						}
					}
					return 0, nil
				})
				if err != nil {
					t.Errorf("%q: %v", level, err)
				}
			})
		}
		<-both
		<-both
		close(meet)
		all.Wait()
		if ids[0] != ids[1] {
			t.Errorf("%q: %v", level, ids)
		}
		b.tickets(2)
	}
}
