package db_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// Two million calls to endpoints: every other one is to hooks/big, the rest to a thousand others. An intent has five
// calls. One in ten is dead, the rest is delivered.
const endpointsSQL = `
create function pg_temp.id(n bigint) returns uuid language sql as $$ select lpad(to_hex(n), 32, '0')::uuid $$;
insert into samekey.outbox (id, scope, idem_key, action, part, delivery_key, payload, content_type, due_at)
select pg_temp.id(n), 's', 'k' || n, 'notify', case n %% 2 when 0 then 'big' else 'shop-' || n / 2 %% 1000 end, pg_temp.id(n), '{}', 'application/json', now()
from generate_series(1, %[1]d) n;
insert into samekey.outbox_queue (id, action, status, due_at, last_code, cause, attempt, attempts_used, safe_to_resend, first_sent_at)
select pg_temp.id(n), 'notify', 'dead', now(), '503', 'it was down', 5, 5, true, now() from generate_series(1, %[1]d) n where n %% 20 in (1, 2);
insert into samekey.outbox_history (intent_id, event, outcome, code, attempt, worker, started_at, endpoint, final_status)
select pg_temp.id(n), 'attempt', 'unknown', '503', a, 1, now() - interval '1 s', 'hooks/' || case n %% 2 when 0 then 'big' else 'shop-' || n / 2 %% 1000 end,
       case when a = 5 and n %% 20 not in (1, 2) then 'delivered' end
from generate_series(1, 5) a, generate_series(1, %[1]d) n;
`

// The log of an endpoint, and the replay of what it missed, read their page or batch, whatever other endpoints have.
func TestEndpointLogAtAMillionRows(t *testing.T) {
	database := samekeytest.NewDB(t)
	intents := dbtest.Size(400_000, 40_000)
	if _, err := database.Exec(t.Context(), unlogged()+fmt.Sprintf(endpointsSQL, intents)); err != nil {
		t.Fatal(err)
	}
	dead := dbtest.Value[int](t, database, `select count(*)::int from samekey.outbox_queue`)
	t.Logf("%d intents, %d of them dead, and %d calls", intents, dead, 5*intents)
	eachPlan(t, database, []statistics{kinds[0], kinds[1], fresh}, func(p planner) { p.checkEndpoint(dead) })
}

// checkEndpoint allows a row of the history, and three rows by primary key, for each call on a page.
func (p planner) checkEndpoint(dead int) {
	page := func(name, endpoint string, before int64, most int) {
		p.t.Helper()
		p.check(name, db.EndpointsDeliveries, most, db.EndpointsDeliveriesParams{Destination: "hooks", Name: endpoint, BeforeID: before, MaxCount: 100})
	}
	page("the first page", "big", math.MaxInt64, 400)
	page("a page in the middle", "big", dbtest.Value[int64](p.t, p.tx, `select max(id) / 2 from samekey.outbox_history`), 400)
	page("the last page", "big", 150, 400)
	page("a small endpoint", "shop-3", math.MaxInt64, 400)
	page("an endpoint that was not called", "none", math.MaxInt64, 5)

	// A batch reads the dead intents up to its last one, each with its row of outbox: here every other one is of the
	// endpoint. It changes 500. With -short the queue is so small that the update reads it from end to end.
	batch := 5*500 + 10 + min(dead, 4000)
	p.checkReads("a batch of a replay", `select * from samekey.redrive_all('{"status": "dead", "action": "notify", "part": "big", "from": "2020-01-01"}', 'ann', 'r', 500)`, batch)
	// This also reads the dead intents before it, to find its first id, and the old versions of what was redriven.
	p.checkReads("a later batch", fmt.Sprintf(`select * from samekey.redrive_all('{"status": "dead", "action": "notify", "part": "big", "from": "2020-01-01"}', 'ann', 'r', 500,
		(select id from samekey.outbox_queue where status = 'dead' order by id offset %d limit 1))`, dead/2), batch+dead)
	// A whole replay of a small endpoint reads each dead intent once.
	p.checkReads("a replay of a small endpoint", `select * from samekey.redrive_all('{"action": "notify", "part": "shop-5", "from": "2020-01-01"}', 'ann', 'r', 500)`, 2*dead+batch)
	p.checkReads("its plan", `select * from samekey.bulk_plan('redrive_all', '{"action": "notify", "part": "shop-10", "from": "2020-01-01"}')`, 3*dead)
}
