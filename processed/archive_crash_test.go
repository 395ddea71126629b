package processed_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// doomed makes a record with an intent, and an intent without a record, that are past their retention.
func (b *bundle) doomed(record, orphan string) {
	b.t.Helper()
	b.mustPlace(request(b.t, record, `1`), order{ID: record, Amount: 5})
	dbtest.Insert(b.t, b.db, outbox.Intent{Key: key(b.t, orphan), Action: "send_mail"})
	b.finish(record, "", "null")
	b.finish(orphan, "", "null")
	b.past()
}

// whereabouts reports where the intents of a key are: here, in the archive, or in both. copies are those in the archive.
func (b *bundle) whereabouts(k string) (here, copies int) {
	b.t.Helper()
	return b.count("samekey.outbox where idem_key = $1", k), b.count("shop.archive, jsonb_array_elements(got -> 'intents') i where i ->> 'key' = $1", k)
}

// untilGone waits until the server has noticed the end of a process.
func (b *bundle) untilGone() {
	b.t.Helper()
	dbtest.Until(b.t, "the server has ended the session", func() bool {
		return b.count("pg_stat_activity where datname = current_database() and application_name = $1", crashEnv) == 0
	})
}

// Whatever the statement before or after which the process is killed, a row is here or in the archive, and in the end it
// was handed over once and is deleted.
func TestArchiveSurvivesSIGKILLAtEachBoundary(t *testing.T) {
	b := setupArchive(t)
	for at := 1; ; at += dbtest.Size(1, 3) {
		record, orphan := fmt.Sprint("record-", at), fmt.Sprint("orphan-", at)
		b.doomed(record, orphan)
		cmd, output := crash{DSN: b.db.DSN, At: at, Archive: archiving.ArchiveFunction}.start(t)
		err := cmd.Wait()
		killed := cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() //nolint:errcheck,forcetypeassert // on Unix
		if err != nil && !killed {
			t.Fatalf("boundary %d: %v\n%s", at, err, output)
		}
		b.untilGone()
		for _, k := range []string{record, orphan} {
			if here, copies := b.whereabouts(k); here+copies != 1 {
				t.Fatalf("killed at boundary %d: %d of %s here, %d in the archive", at, here, k, copies)
			}
		}
		b.prune(archiving)
		for _, k := range []string{record, orphan} {
			if here, copies := b.whereabouts(k); here != 0 || copies != 1 {
				t.Fatalf("after boundary %d: %d of %s here, %d in the archive", at, here, k, copies)
			}
		}
		if records, intents := b.left(); records+intents != "" {
			t.Fatalf("after boundary %d: left: records %q, intents %q", at, records, intents)
		}
		if !killed {
			if at < 30 {
				t.Errorf("only %d boundaries", at)
			}
			return
		}
	}
}

// holdArchive has the archive wait for the test: in the function (immediate), or at the COMMIT (deferred).
func (b *bundle) holdArchive(when string) (release func()) {
	b.t.Helper()
	b.exec(`create function shop.hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(4711); return null; end $$`)
	b.exec(`create constraint trigger hold after insert on shop.archive deferrable initially ` + when + ` for each row execute function shop.hold()`)
	tx, err := b.db.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	dbtest.Exec(b.t, tx, `select pg_advisory_xact_lock(4711)`)
	return func() { _ = tx.Rollback(context.WithoutCancel(b.t.Context())) }
}

// The process is killed while the server runs the function, or the COMMIT.
func TestArchiveSurvivesSIGKILLWhileItRuns(t *testing.T) {
	for _, when := range []string{"immediate", "deferred"} {
		t.Run(when, func(t *testing.T) {
			b := setupArchive(t)
			b.mustPlace(request(t, "k", `1`), order{ID: "k", Amount: 5})
			b.finish("k", "", "null")
			b.past()
			release := b.holdArchive(when)
			cmd, _ := crash{DSN: b.db.DSN, Archive: archiving.ArchiveFunction}.start(t)
			b.waiting("advisory")
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if here, copies := b.whereabouts("k"); here != 1 || copies != 0 {
				t.Errorf("while it runs, %d here, %d in the archive", here, copies)
			}
			release()
			b.untilGone()
			if here, copies := b.whereabouts("k"); here+copies != 1 {
				t.Errorf("%d here, %d in the archive", here, copies)
			}
			b.prune(archiving)
			if here, copies := b.whereabouts("k"); here != 0 || copies != 1 {
				t.Errorf("in the end %d here, %d in the archive", here, copies)
			}
		})
	}
}

// An erasure that reports no error leaves nothing that an archive gets later, or in a transaction that no one can see yet.
func TestErasureAndArchiveMeet(t *testing.T) {
	by := outbox.By{Actor: "dpo", Reason: "request 7"}
	scope := outbox.Content{Scope: key(t, "k").Scope}
	for _, k := range []string{"record", "orphan"} {
		t.Run(k+" first in the archive", func(t *testing.T) {
			b := setupArchive(t)
			b.doomed("record", "orphan")
			b.exec(`delete from samekey.outbox where idem_key <> $1`, k)
			b.exec(`delete from samekey.processed_events where idem_key <> $1`, k)
			release := b.holdArchive("immediate")
			pruned := make(chan error, 1)
			go func() {
				_, err := processed.Prune(t.Context(), b.db.Pool, archiving)
				pruned <- err
			}()
			b.waiting("advisory")
			if done, err := outbox.Erase(t.Context(), b.db.Pool, scope, by); err == nil || !strings.Contains(err.Error(), "erase again") || done != (outbox.Erased{}) {
				t.Errorf("while the archive has the rows: %+v, %v", done, err)
			}
			release()
			if err := <-pruned; err != nil {
				t.Fatal(err)
			}
			if here, copies := b.whereabouts(k); here != 0 || copies != 1 {
				t.Errorf("%d here, %d in the archive", here, copies)
			}
			if done, err := outbox.Erase(t.Context(), b.db.Pool, scope, by); err != nil || done != (outbox.Erased{}) {
				t.Errorf("afterwards: %+v, %v", done, err)
			}
		})
		t.Run(k+" first erased", func(t *testing.T) {
			b := setupArchive(t)
			b.doomed("record", "orphan")
			b.exec(`delete from samekey.outbox where idem_key <> $1`, k)
			b.exec(`delete from samekey.processed_events where idem_key <> $1`, k)
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			dbtest.Exec(t, tx, `select samekey.erase_scope($1, 'dpo', 'request 7')`, scope.Scope) // its first batch: intents
			pruned := make(chan error, 1)
			go func() {
				_, err := processed.Prune(t.Context(), b.db.Pool, archiving)
				pruned <- err
			}()
			b.waiting("transactionid")
			if err := errors.Join(tx.Commit(t.Context()), <-pruned); err != nil {
				t.Fatal(err)
			}
			calls := b.archived()
			if len(calls) != 1 || len(calls[0].Intents) != 1 || calls[0].Intents[0]["erased_at"] == nil || calls[0].Intents[0]["payload"] != nil {
				t.Errorf("the archive got %+v", calls)
			}
		})
	}
}
