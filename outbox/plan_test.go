package outbox_test

import (
	"testing"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// What a page of a rare state reads does not grow with the queue.
func TestListOfARareStateReadsFewRows(t *testing.T) {
	on := samekeytest.NewDB(t)
	for _, statement := range []string{
		`insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at)
		 select samekey.uuidv7(), 's', 'k' || i, 'charge_card', gen_random_uuid(), '1', 'application/json', now() from generate_series(1, 30000) i`,
		`insert into samekey.outbox_queue (id, due_at, action, status)
		 select id, due_at, action, case when row_number() over () % 4 = 0 then 'dead' else 'pending' end from samekey.outbox`,
		`analyze samekey.outbox, samekey.outbox_queue, samekey.outbox_history`,
	} {
		if _, err := on.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	// On one connection, often enough for Postgres to consider one plan for all arguments.
	tx := begin(t, on)
	page := func(f outbox.Filter) int {
		page, err := outbox.List(t.Context(), tx, f)
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Entries)
	}
	read := func() (n int) {
		err := tx.QueryRow(t.Context(), `select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'samekey.outbox_queue'::regclass`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 10 {
		if n := page(outbox.Filter{Status: outbox.StatusDead, Limit: 10}); n != 10 {
			t.Fatalf("a page of %d dead, want 10", n)
		}
	}
	before := read()
	if n := page(outbox.Filter{Status: outbox.StatusParked}); n != 0 {
		t.Fatalf("%d parked", n)
	}
	if n := read() - before; n > 100 {
		t.Errorf("an empty page read %d rows of the queue", n)
	}
}
