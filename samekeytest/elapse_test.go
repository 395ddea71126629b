package samekeytest_test

import (
	"testing"
	"time"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// A worker's transaction locks a row of the queue and then one of outbox, and Elapse does it in the other order.
func TestElapseOutlivesADeadlock(t *testing.T) {
	db := samekeytest.NewDB(t)
	id := dbtest.Insert(t, db.Pool, outbox.Intent{Key: dbtest.Key(t, "k", "acme", "charge"), Action: "charge", Payload: []byte("{}"), DueAt: time.Now().Add(time.Hour)})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`set local deadlock_timeout = '1h'`) // Elapse is the one that fails
	exec(`select from samekey.outbox_queue where id = $1 for update`, id)
	done := make(chan struct{})
	go func() { defer close(done); samekeytest.Elapse(t, db, 2*time.Hour) }()
	dbtest.Until(t, "Elapse waits for the row", func() bool {
		return dbtest.Value[bool](t, db.Pool, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	exec(`select from samekey.outbox where id = $1 for share`, id)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	dbtest.Receive(t, "Elapse ends", done)
	if !dbtest.Value[bool](t, db.Pool, `select due_at < now() from samekey.outbox_queue`) {
		t.Error("the intent is not due")
	}
}
