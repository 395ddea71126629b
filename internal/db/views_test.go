package db_test

import (
	"fmt"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// Intents on a bad day: three of five are finished, and of the others a quarter is dead. A few are parked, and their ids
// are the smallest.
const viewsSQL = `
create function pg_temp.id(n bigint) returns uuid language sql as $$ select lpad(to_hex(n), 32, '0')::uuid $$;
insert into samekey.outbox_queue (id, action, status, due_at) select pg_temp.id(n), 'send_receipt', 'dead', now() from generate_series(1, 10000) n;
analyze samekey.outbox_queue;
delete from samekey.outbox_queue;
insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at, subject)
select pg_temp.id(n), 's', 'order-' || n, 'charge_card', pg_temp.id(n), 'payload', 'text/plain', now(), case when n %% 2 = 0 then 'booking/' || n %% (%[1]d / 40) end
from generate_series(1, %[1]d) n;
insert into samekey.outbox_queue (id, action, status, due_at, ordering_key)
select pg_temp.id(n), 'charge_card', case when n < 500 then 'parked' when n %% 4 = 0 then 'dead' when n %% 4 = 1 then 'blocked' else 'pending' end,
       now() + interval '1 day', case when n >= 500 and n %% 4 = 1 then 'order-1' end
from generate_series(1, %[1]d) n where n %% 5 in (0, 1);
insert into samekey.outbox_history (intent_id, event, outcome, attempt, worker, code)
select pg_temp.id(n), 'attempt', 'unknown', 1, 1, '503' from generate_series(1, %[1]d) n where n %% 5 < 3;
insert into samekey.outbox_history (intent_id, event, outcome, attempt, worker, code, final_status, reference)
select pg_temp.id(n), 'attempt', 'delivered', 1, 1, '200', case when n < 500 then 'refused' else 'delivered' end, 'ch_' || n
from generate_series(1, %[1]d) n where n %% 5 > 1;
analyze samekey.outbox, samekey.outbox_history; -- and not the queue: the statistics know nothing but dead intents
`

// A lookup through a view reads few rows of an index. The statements have no parameters, as those of psql and of BI
// tools. With wrong statistics of the queue, which last until the next analyze, it may read each table once. If they are
// of an empty queue, all scans of it look equally cheap: it may read the queue once for each of 40 intents of a subject.
func TestLookupsThroughViewsReadFewRows(t *testing.T) {
	database := samekeytest.NewDB(t)
	intents := dbtest.Size(1_000_000, 400_000)
	if _, err := database.Exec(t.Context(), unlogged()+fmt.Sprintf(viewsSQL, intents)); err != nil {
		t.Fatal(err)
	}
	eachPlan(t, database, []statistics{
		{name: "stale", once: 2 * intents},
		{name: "of an empty queue", once: 40*2*intents/5 + 2*intents, sql: `
			update pg_class set reltuples = 0, relpages = 1 where oid = 'samekey.outbox_queue'::regclass;
			delete from pg_statistic where starelid = 'samekey.outbox_queue'::regclass`},
		fresh,
	}, planner.checkViews)
}

// checkViews allows 10 rows for each intent of an answer: its rows of outbox, outbox_queue and outbox_history, read for
// its status, its reference and its attempts.
func (p planner) checkViews() {
	one, page := 20, 1000
	const id = "'000000000000000000000000000003e8'" // the 1000th
	for _, q := range []struct {
		name, sql string
		most      int
	}{
		{"an intent", `select * from samekey.intents where id = ` + id, one},
		{"intents of a key", `select * from samekey.intents where key = 'order-42'`, one},
		{"an intent by scope and key", `select * from samekey.intents where scope = 's' and key = 'order-42' and action = 'charge_card' and part = ''`, one},
		{"intents of a subject", `select * from samekey.intents where subject = 'booking/42' order by id desc`, page},
		{"dead intents of a subject", `select * from samekey.intents where subject = 'booking/42' and status = 'dead'`, page},
		{"newest intents", `select * from samekey.intents order by id desc limit 50`, page},
		{"a page of intents", `select * from samekey.intents where id < ` + id + ` order by id desc limit 50`, page},
		{"intents of a reference", `select * from samekey.intents where id in (select intent_id from samekey.timeline where reference = 'ch_42')`, 2 * one},
		{"newest dead ones", `select * from samekey.intents where status = 'dead' order by id desc limit 50`, page},
		{"newest parked ones", `select * from samekey.intents where status = 'parked' order by id desc limit 50`, page},
		{"none that await approval", `select * from samekey.intents where status = 'awaiting_approval' order by id desc limit 50`, one},
		{"newest delivered ones", `select * from samekey.intents where status = 'delivered' order by id desc limit 50`, page},
		{"newest refused ones", `select * from samekey.intents where status = 'refused' order by id desc limit 50`, page},
		{"no cancelled ones", `select * from samekey.intents where status = 'cancelled' order by id desc limit 50`, one},
		{"newest pending ones", `select * from samekey.intents where status = 'pending' order by id desc limit 50`, page},

		{"events of an intent", `select * from samekey.timeline where intent_id = ` + id + ` order by id`, one},
		{"events of a key", `select * from samekey.timeline where key = 'order-42' order by at`, one},
		{"events of a subject", `select * from samekey.timeline where subject = 'booking/42' order by at`, page},
		{"events of a reference", `select * from samekey.timeline where reference = 'ch_42'`, one},
		{"events of the newest intents", `select * from samekey.timeline order by intent_id desc, id desc limit 50`, page},

		{"attention, newest", `select * from samekey.needs_attention order by id desc limit 50`, page},
		{"attention, oldest", `select * from samekey.needs_attention order by id limit 50`, page},
		{"attention, a page", `select * from samekey.needs_attention where id < ` + id + ` order by id desc limit 50`, page},
		{"attention, parked ones", `select * from samekey.needs_attention where status = 'parked' order by id desc limit 50`, page},
		{"attention, an intent", `select * from samekey.needs_attention where id = ` + id, one},
		{"attention, a key", `select * from samekey.needs_attention where key = 'order-1000'`, one},
		{"attention, a subject", `select * from samekey.needs_attention where subject = 'booking/42' order by id desc`, page},
	} {
		p.check(q.name, q.sql, q.most, nil)
	}
}
