package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// many inserts intents of the action charge that are dead after a refusal, and returns their ids in order.
func many(t *testing.T, on *samekeytest.DB, n int) []uuid.UUID {
	t.Helper()
	dbtest.Exec(t, on, `select count(samekey.enqueue('s', 'k' || n, 'charge', '{"amount":5}')) from generate_series(1, $1) n`, n)
	dbtest.Exec(t, on, `insert into samekey.outbox_history (intent_id, event, outcome) select id, 'attempt', 'dead' from samekey.outbox_queue`)
	dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'dead', first_sent_at = now() - interval '1 hour', last_code = '400'`)
	return dbtest.Value[[]uuid.UUID](t, on, `select array_agg(id order by id) from samekey.outbox_queue`)
}

// successors is how many intents have a successor, and how many there are of these.
func successors(t *testing.T, on *samekeytest.DB) string {
	t.Helper()
	return dbtest.Value[string](t, on, `select count(distinct replaces) || ' ' || count(replaces) from samekey.outbox`)
}

// rowsOf returns the rows of the successors of one side and of the intents that they replace, but for what differs
// between two acts: ids, keys and times.
func rowsOf(t *testing.T, on *samekeytest.DB, side string) string {
	t.Helper()
	text := dbtest.Value[string](t, on, `
		select string_agg(jsonb_pretty(jsonb_build_object(
		    'intent', to_jsonb(s) - '{id,replaces,delivery_key,due_at,created_at}'::text[],
		    'key', s.delivery_key = samekey.replacement_key(o.delivery_key), 'time', s.due_at > o.due_at and s.id > o.id,
		    'queue', to_jsonb(q) - '{id,due_at,seq}'::text[], 'due', q.due_at - s.due_at < interval '1 second', 'seq', q.seq > 0,
		    'first one', (select count(*) from samekey.outbox_queue x where x.id = o.id),
		    'history', (select jsonb_agg(to_jsonb(h) - '{intent_id,id,at,started_at,key_window_until}'::text[] order by h.id) from samekey.outbox_history h where h.intent_id = o.id),
		    'window', (select jsonb_agg(h.key_window_until is null order by h.id) from samekey.outbox_history h where h.intent_id = o.id),
		    'attention', (select jsonb_agg(to_jsonb(a) - '{intent_id,first_id,id,due_at,at}'::text[] order by a.id) from samekey.outbox_attention a where a.intent_id = o.id))), e'\n' order by s.part)
		from samekey.outbox s
		join samekey.outbox o on o.id = s.replaces
		left join samekey.outbox_queue q on q.id = s.id
		where s.scope = $1 and not exists (select from samekey.outbox n where n.replaces = s.id)`, side+"/x")
	return strings.ReplaceAll(text, `"`+side+`/`, `"SIDE/`)
}

// Row by row, the act on many leaves what the act on one leaves.
func TestReplaceAllDoesWhatReplaceDoes(t *testing.T) {
	for name, c := range map[string]struct {
		one outbox.Replacement
		all outbox.Replacements
	}{
		"the same payload":   {outbox.Replacement{}, outbox.Replacements{}},
		"another deadline":   {outbox.Replacement{Deadline: time.Unix(4e9, 0)}, outbox.Replacements{Deadline: time.Unix(4e9, 0)}},
		"a member":           {outbox.Replacement{Payload: []byte(`{"amount":5,"currency":"EUR"}`), ContentType: "application/vnd.x+json; v=1"}, outbox.Replacements{Patch: json.RawMessage(`{"currency":"EUR","note":null}`)}},
		"a value as a patch": {outbox.Replacement{Payload: []byte(`{"amount":6,"currency":"USD","note":"x"}`), ContentType: "application/vnd.x+json; v=1"}, outbox.Replacements{Patch: map[string]any{"amount": 6}}},
	} {
		t.Run(name, func(t *testing.T) {
			on := newGuardedDB(t)
			w := newWorker(t, on, 7)
			dbtest.Exec(t, on, `insert into samekey.actions (action, attention, fair_by) values ('charge', true, 'part')`)
			both := map[string][]uuid.UUID{}
			for _, side := range []string{"one", "all"} {
				in := outbox.Intent{Action: "charge", Payload: []byte(`{"amount":5,"currency":"USD","note":"x"}`), ContentType: "application/vnd.x+json; v=1"}
				put := func(part string, change func(*outbox.Intent)) uuid.UUID {
					in := in
					in.Key, in.Part = newKey(t, "k", side, "x"), part
					if change != nil {
						change(&in)
					}
					id := died(t, on, w, "dead", in)
					dbtest.Exec(t, on, `update samekey.outbox_queue set key_window_until = now() + interval '1 day' where id = $1`, id)
					return id
				}
				ids := []uuid.UUID{
					put("plain", nil),
					put("everything", func(in *outbox.Intent) {
						in.Headers, in.RequestedBy, in.Subject = map[string]string{"X-Tenant": "acme"}, "bob", "booking/42"
						in.TraceContext, in.Deadline = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", time.Unix(5e9, 0)
					}),
					put("ordered", func(in *outbox.Intent) { in.OrderingKey = side + "/order" }),
					put("left its order", func(in *outbox.Intent) { in.OrderingKey = side + "/left" }),
					put("again", nil),
				}
				dbtest.Exec(t, on, `update samekey.outbox_queue set ordering_key = null where id = $1`, ids[3])
				dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'parked' where id = $1`, ids[1])
				insert(t, on, outbox.Intent{Key: newKey(t, "k", side, "x"), Action: "charge", Part: "behind", OrderingKey: side + "/order"})
				ids[4] = replace0(t, on, w, ids[4])
				both[side] = ids
			}
			for _, id := range both["one"] {
				replace(t, on, id, c.one)
			}
			all := outbox.ReplaceAll(outbox.Filter{Scope: "all/x"}, c.all, ada)
			if plan, err := all.Plan(t.Context(), on); err != nil || plan.Intents != 5 || len(plan.Sample) != 5 || plan.MayHaveBeenSent+plan.PastDeadline+plan.NotPatchable != 0 {
				t.Errorf("plan: %+v, %v", plan, err)
			}
			run(t, on, all, 5)
			one, many := rowsOf(t, on, "one"), rowsOf(t, on, "all")
			if one != many {
				t.Errorf("one by one:\n%s\nall at once:\n%s", one, many)
			}
			for text, n := range map[string]int{`"key": true`: 5, `"time": true`: 5, `"due": true`: 5, `"seq": true`: 2, `"revision": 1`: 4, `"revision": 2`: 1,
				`"share": "plain"`: 1, `"status": "cancelled"`: 5} {
				if got := strings.Count(one, text); got != n {
					t.Errorf("%s is there %d times, want %d:\n%s", text, got, n, one)
				}
			}
			run(t, on, all, 0)
		})
	}
}

// What one Replace refuses is left alone, and the plan says so before.
func TestReplaceAllLeavesWhatReplaceRefuses(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	intents := map[string]uuid.UUID{}
	action := func(name string) outbox.Intent {
		return outbox.Intent{Action: "a." + strings.ReplaceAll(name, " ", "_"), Payload: []byte(`{}`)}
	}
	for _, outcome := range []string{"dead", "retry", "unsent", "awaiting_approval", "unknown", "accepted", "absent", "parked"} {
		intents[outcome] = died(t, on, w, outcome, action(outcome))
	}
	intents["resolved as not sent"] = died(t, on, w, "unknown", action("resolved"))
	if err := outbox.Resolve(t.Context(), on, intents["resolved as not sent"], outbox.Resolution{Outcome: outbox.NotSent}, ada); err != nil {
		t.Fatal(err)
	}
	for _, status := range outbox.Statuses() {
		in := action("status " + string(status))
		if status == outbox.StatusBlocked {
			in.OrderingKey = "order"
			insert(t, on, outbox.Intent{Action: "head", OrderingKey: "order"})
		}
		intents["status "+string(status)] = insert(t, on, in)
		force(t, on, intents["status "+string(status)], status, false, false)
	}
	orphan := insert(t, on, action("orphan"))
	w.claimOne("a.orphan", true)
	dbtest.Exec(t, on, `update samekey.outbox_queue set lease_until = now() - interval '1 s' where id = $1`, orphan)
	if _, err := w.q.OutboxQueueRelease(t.Context(), db.OutboxQueueReleaseParams{Holder: w.id, MaxCount: 10}); err != nil {
		t.Fatal(err)
	}
	w.settle(w.claimOne("a.orphan", true), outbox.StatusDead, "dead", "400")
	intents["orphaned, then refused"] = orphan
	intents["restored"] = died(t, on, w, "dead", action("restored"))
	dbtest.Exec(t, on, `insert into samekey.outbox_history (intent_id, event) values ($1, 'restored')`, intents["restored"])
	intents["replaced already"] = died(t, on, w, "dead", action("replaced"))
	replace(t, on, intents["replaced already"], outbox.Replacement{})
	for name, at := range map[string]string{"deadline passed": "-1 s", "deadline": "1 hour"} {
		intents[name] = died(t, on, w, "dead", action(name))
		dbtest.Exec(t, on, `update samekey.outbox set deadline = now() + $2::interval where id = $1`, intents[name], at)
	}

	possible := map[string]bool{}
	for name, id := range intents {
		tx := begin(t, on)
		_, err := outbox.Replace(t.Context(), tx, id, outbox.Replacement{}, ada)
		possible[name] = err == nil
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada)
	plan, err := all.Plan(t.Context(), on)
	if err != nil || plan.Intents != 8 || len(plan.Sample) != 8 || plan.MayHaveBeenSent != 6 || plan.PastDeadline != 1 || plan.NotPatchable != 0 {
		t.Errorf("plan: %+v, %v", plan, err)
	}
	before := count(t, on, `select count(*) from samekey.outbox_history`)
	run(t, on, all, 8)
	for name, id := range intents {
		if name == "replaced already" {
			continue
		}
		if replaced := get(t, on, id).ReplacedBy != uuid.Nil; replaced != possible[name] {
			t.Errorf("%s: replaced %v, and one by one %v", name, replaced, possible[name])
		}
	}
	if n := count(t, on, `select count(*) from samekey.outbox_history`) - before; n != 8 {
		t.Errorf("%d lines of history, want one for each", n)
	}
	later := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Deadline: time.Now().Add(time.Hour)}, ada)
	if plan, err := later.Plan(t.Context(), on); err != nil || plan.Intents != 1 || plan.PastDeadline != 0 {
		t.Errorf("plan with another deadline: %+v, %v", plan, err)
	}
	run(t, on, later, 1)
}

func TestReplaceAllLeavesWhatThePatchCannotChange(t *testing.T) {
	on := newGuardedDB(t)
	for name, c := range map[string]struct {
		payload, contentType, want string // want is empty: it is left alone
	}{
		"an object":          {`{"a":1}`, "", `{"a":1,"currency":"EUR"}`},
		"+json":              {`{}`, "application/vnd.api+json", `{"currency":"EUR"}`},
		"with a parameter":   {`{}`, "Application/JSON; charset=utf-8", `{"currency":"EUR"}`},
		"an array":           {`[{}]`, "", ""},
		"a number":           {`5`, "", ""},
		"no JSON":            {`{}`, "text/plain", ""},
		"bytes":              {"\xff\x00", "application/octet-stream", ""},
		"NUL":                {`{"a":"\u0000"}`, "", ""},
		"NUL below":          {`{"a":[{"b":"\u0000"}]}`, "", ""},
		"half a pair":        {`{"a":"\ud800"}`, "", ""},
		"as long as allowed": {`{"a":"` + strings.Repeat("x", 1<<20-8-len(`{"currency": "EUR"}`)) + `"}`, "", "long"},
		"too long together":  {`{"a":"` + strings.Repeat("x", 1<<20-7-len(`{"currency": "EUR"}`)) + `"}`, "", ""},
	} {
		id := insert(t, on, outbox.Intent{Action: "charge", Payload: []byte(c.payload), ContentType: c.contentType})
		force(t, on, id, outbox.StatusDead, false, false)
		n := 0
		if c.want != "" {
			n = 1
		}
		b := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Patch: map[string]any{"currency": "EUR"}}, ada)
		if plan, err := b.Plan(t.Context(), on); err != nil || plan.Intents != n || len(plan.Sample) != n || plan.NotPatchable != 1-n {
			t.Errorf("%s: plan %+v, %v", name, plan, err)
		}
		run(t, on, b, n)
		if c.want == "" {
			run(t, on, outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada), 1) // its own bytes are no obstacle
		} else if e := get(t, on, get(t, on, id).ReplacedBy); string(e.Payload) != c.want && !(c.want == "long" && len(e.Payload) < 1<<20) || !json.Valid(e.Payload) {
			t.Errorf("%s: the successor's payload is %.60s", name, e.Payload)
		}
		dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'pending'`)
	}
}

// The examples of RFC 7396, and what this patch keeps besides.
func TestMergePatchFollowsItsRFC(t *testing.T) {
	on := samekeytest.NewDB(t)
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`{"a":"foo"}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		// Order and text of the members that are not named, at each level.
		{`{"z":1.10,"y":1e3,"b":-0,"a":{"n":12345678901234567890,"m":"\u00e9"}}`, `{"b":2,"a":{"m":"x","k":null}}`, `{"z":1.10,"y":1e3,"b":2,"a":{"n":12345678901234567890,"m":"x"}}`},
		{`{"a\"\\b": [1,  2]}`, `{"c":{"d": 1}}`, `{"a\"\\b":[1,  2],"c":{"d":1}}`},
		{`{"a":1,"b":2,"a":3}`, `{"a":4}`, `{"a":4,"b":2,"a":4}`},
	} {
		if got := dbtest.Value[string](t, on, `select samekey.merge_patch($1::text::json, $2::text::jsonb)::text`, c[0], c[1]); got != c[2] {
			t.Errorf("%s with %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

// A patch is another effect, also in bulk: it needs the approver, and its author approves no successor.
func TestReplaceAllNeedsTheRightsOfReplace(t *testing.T) {
	on := samekeytest.NewDB(t)
	l := newLogins(t, on)
	w := newWorker(t, on, 7)
	same, patched := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada),
		outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Patch: map[string]any{"amount": 5}}, ada)
	id := died(t, on, w, "dead", outbox.Intent{Action: "pay_out"})
	denied := func(who string, err error) {
		t.Helper()
		if pgError(t, err).Code != "42501" || !strings.Contains(err.Error(), "schema.Roles") {
			t.Errorf("the %s: %v", who, err)
		}
	}
	_, err := patched.Run(t.Context(), l.operator)
	denied("operator, with a patch", err)
	for who, pool := range map[string]outbox.DB{"application": l.app, "worker": l.worker} {
		_, err := same.Run(t.Context(), pool)
		denied(who, err)
		_, err = patched.Run(t.Context(), pool)
		denied(who+", with a patch", err)
	}
	if s := get(t, on, id).Status; s != outbox.StatusDead {
		t.Fatalf("it is %s", s)
	}
	for who, pool := range map[string]interface {
		outbox.DB
		db.DBTX
	}{"operator": l.operator, "approver": l.approver} {
		if plan, err := patched.Plan(t.Context(), pool); err != nil || plan.Intents != 1 {
			t.Errorf("the %s plans %+v, %v", who, plan, err)
		}
	}
	run(t, l.operator, same, 1)
	second := get(t, on, id).ReplacedBy
	force(t, on, second, outbox.StatusDead, false, false)
	run(t, l.approver, patched, 1)
	third := get(t, on, second).ReplacedBy
	force(t, on, third, outbox.StatusAwaitingApproval, false, false)
	refusedAs(t, "by the login that patched it", outbox.Approve(t.Context(), l.approver, third, ada), outbox.StatusAwaitingApproval)

	force(t, on, third, outbox.StatusDead, false, false)
	run(t, l.operator, same, 1) // the patch stays its author's
	fourth := get(t, on, third).ReplacedBy
	force(t, on, fourth, outbox.StatusAwaitingApproval, false, false)
	refusedAs(t, "by the author of its patch", outbox.Approve(t.Context(), l.approver, fourth, ada), outbox.StatusAwaitingApproval)
	if e := get(t, on, fourth); string(e.Payload) != `{"amount":5}` {
		t.Errorf("its payload is %s", e.Payload)
	}
}

// The oldest is due first, in a batch and across batches.
func TestReplaceAllKeepsTheOrderOfAge(t *testing.T) {
	on := samekeytest.NewDB(t)
	ids := many(t, on, outbox.BulkSize+3)
	run(t, on, outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada), len(ids))
	due := dbtest.Value[[]uuid.UUID](t, on, `select array_agg(o.replaces order by q.due_at) from samekey.outbox o join samekey.outbox_queue q on q.id = o.id`)
	if !slices.Equal(due, ids) {
		t.Error("the successors are due in another order")
	}
}

// Two people run it at once: each intent has one successor, and neither waits for the other.
func TestTwoReplaceAllsShareTheIntents(t *testing.T) {
	on := samekeytest.NewDB(t)
	ids := many(t, on, 5)
	all := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada)
	tx := begin(t, on)
	run(t, tx, outbox.ReplaceAll(outbox.Filter{Limit: 2}, outbox.Replacements{}, ada), 2)
	run(t, on, all, 3)
	for i, id := range ids {
		if replaced := get(t, on, id).ReplacedBy != uuid.Nil; replaced != (i >= 2) {
			t.Errorf("intent %d: replaced %v", i, replaced)
		}
	}
	commit(t, tx)
	run(t, on, all, 0)
	if got := successors(t, on); got != "5 5" {
		t.Errorf("with a successor, and successors: %s", got)
	}

	dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'pending'`)
	dbtest.Exec(t, on, `select count(samekey.enqueue('s', 'n' || n, 'charge', '{}')) from generate_series(1, $1) n`, 3*outbox.BulkSize)
	dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'dead' where id in (select id from samekey.outbox where idem_key like 'n%')`)
	var group sync.WaitGroup
	totals, errs := make([]int, 2), make([]error, 2)
	for i := range totals {
		group.Go(func() { totals[i], errs[i] = all.Run(t.Context(), on) })
	}
	group.Wait()
	rest, err := all.Run(t.Context(), on)
	if sum := totals[0] + totals[1] + rest; errors.Join(append(errs, err)...) != nil || sum != 3*outbox.BulkSize {
		t.Errorf("replaced %v and then %d; %v, %v", totals, rest, errs, err)
	}
	if got := successors(t, on); got != fmt.Sprintf("%d %[1]d", 5+3*outbox.BulkSize) {
		t.Errorf("with a successor, and successors: %s", got)
	}
}

// A session that is killed in its second batch leaves the first one, and another run does the rest.
func TestReplaceAllGoesOnAfterAKill(t *testing.T) {
	on := samekeytest.NewDB(t)
	const n = 2*outbox.BulkSize + 7
	many(t, on, n)
	all := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada)
	for batch, err := range all.Batches(t.Context(), on) {
		if err != nil || batch.Changed != outbox.BulkSize {
			t.Fatalf("%+v, %v", batch, err)
		}
		break
	}
	conn, err := on.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	row, err := db.New(tx).ActReplaceAll(t.Context(), db.ActReplaceAllParams{Filter: "{}", Actor: "ada", Reason: "r", MaxCount: outbox.BulkSize})
	if err != nil || row.Changed != outbox.BulkSize {
		t.Fatalf("%+v, %v", row, err)
	}
	pid := conn.Conn().PgConn().PID()
	dbtest.Exec(t, on, `select pg_terminate_backend($1)`, pid)
	eventually(t, "the session is gone", func() bool {
		return count(t, on, `select count(*) from pg_stat_activity where pid = $1`, pid) == 0
	})
	if err := tx.Commit(t.Context()); err == nil {
		t.Fatal("the killed session committed")
	}
	if got := successors(t, on); got != fmt.Sprintf("%d %[1]d", outbox.BulkSize) {
		t.Errorf("after the kill, with a successor and successors: %s", got)
	}
	if plan, err := all.Plan(t.Context(), on); err != nil || plan.Intents != n-outbox.BulkSize {
		t.Errorf("plan: %+v, %v", plan, err)
	}
	run(t, on, all, n-outbox.BulkSize)
	if got := successors(t, on); got != fmt.Sprintf("%d %[1]d", n) {
		t.Errorf("with a successor, and successors: %s", got)
	}
	if lines := count(t, on, `select count(*) from samekey.outbox_history where event = 'replaced'`); lines != n {
		t.Errorf("%d lines of history, want %d", lines, n)
	}
}

// An intent is redriven, sent with an unknown outcome and dead again while a batch reads the ones before it. Its columns
// are as they were; only the history, in a snapshot after the lock, has the attempt.
func TestReplaceAllReadsTheHistoryAfterItsLocks(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	before := died(t, on, w, "dead", outbox.Intent{Action: "first", Payload: []byte(`{"wait":true}`)})
	meanwhile := died(t, on, w, "dead", outbox.Intent{Action: "second", Payload: []byte(`{}`)})
	dbtest.Exec(t, on, `create or replace function samekey.patchable(payload bytea, content_type text, patch jsonb) returns boolean language plpgsql as $$
		begin
		    if payload = '{"wait":true}' then perform pg_advisory_xact_lock(42); end if;
		    return true;
		end $$`)
	gate := begin(t, on)
	dbtest.Exec(t, gate, `select pg_advisory_xact_lock(42)`)
	done := make(chan int, 1)
	go func() {
		n, err := outbox.ReplaceAll(outbox.Filter{Status: outbox.StatusDead}, outbox.Replacements{Patch: map[string]any{"a": 1}}, ada).Run(t.Context(), on)
		if err != nil {
			t.Error(err)
		}
		done <- n
	}()
	eventually(t, "the batch reads the first one", func() bool { return waiting(t, on) == 1 })
	if err := outbox.Redrive(t.Context(), on, meanwhile, ada); err != nil {
		t.Fatal(err)
	}
	w.settle(w.claimOne("second", true), outbox.StatusDead, "unknown", "timeout")
	commit(t, gate)
	if n := dbtest.Receive(t, "the run is over", done); n != 1 {
		t.Errorf("replaced %d", n)
	}
	if a, b := get(t, on, before), get(t, on, meanwhile); a.ReplacedBy == uuid.Nil || b.Status != outbox.StatusDead || b.ReplacedBy != uuid.Nil {
		t.Errorf("the first is %s, the second %s, replaced by %v", a.Status, b.Status, b.ReplacedBy)
	}
}

// A single act that waits for a batch finds its intent replaced.
func TestAnActWaitsForABatchOfReplaceAll(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	id := died(t, on, w, "dead", outbox.Intent{Action: "charge", OrderingKey: "order"})
	tx := begin(t, on)
	run(t, tx, outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada), 1)
	second := make(chan error, 1)
	go func() {
		_, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada)
		second <- err
	}()
	eventually(t, "the second one waits", func() bool { return waiting(t, on) == 1 })
	commit(t, tx)
	refusedAs(t, "the second one", dbtest.Receive(t, "the second one ends", second), outbox.StatusCancelled)
	if got := successors(t, on); got != "1 1" {
		t.Errorf("with a successor, and successors: %s", got)
	}

	// The vendor's event for the first one holds the successor.
	if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.Delivered, Reference: "ch_1"}, ada); err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, get(t, on, id).ReplacedBy); e.Status != outbox.StatusParked || e.Code != "predecessor_delivered" {
		t.Errorf("the successor is %s, %s", e.Status, e.Code)
	}
}

func TestReplaceAllSkipsABusyOrderingKey(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	var heads, next []uuid.UUID
	for i := range 3 {
		key, action := fmt.Sprint("order-", i), fmt.Sprint("a", i)
		heads = append(heads, died(t, on, w, "dead", outbox.Intent{Action: action, OrderingKey: key}))
		next = append(next, insert(t, on, outbox.Intent{Action: action, OrderingKey: key}))
	}
	tx := begin(t, on)
	if err := db.New(tx).OutboxQueueLockOrder(t.Context(), []string{"order-1"}); err != nil {
		t.Fatal(err)
	}
	all := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada)
	run(t, on, all, 2)
	commit(t, tx)
	run(t, on, all, 1)
	for i := range heads {
		successor := get(t, on, heads[i]).ReplacedBy
		if a, b := get(t, on, successor), get(t, on, next[i]); a.Status != outbox.StatusPending || b.Status != outbox.StatusBlocked {
			t.Errorf("order-%d: the successor is %s, the next one %s", i, a.Status, b.Status)
		}
		if c := w.claimOne(fmt.Sprint("a", i), true); c.ID != successor {
			t.Errorf("order-%d: %v is sent, want the successor", i, c.ID)
		}
	}
}

// An event for the first of a chain comes while its successor is replaced: it holds the new successor. If it comes first,
// the successor is held, and is left alone.
func TestReplaceAllMeetsALateDelivery(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	all := outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{}, ada)
	deliver := func(on outbox.DB, id uuid.UUID) error {
		return outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.Delivered}, ada)
	}
	first := died(t, on, w, "dead", outbox.Intent{Action: "charge"})
	second := replace0(t, on, w, first)
	tx := begin(t, on)
	run(t, tx, all, 1)
	done := make(chan error, 1)
	go func() { done <- deliver(on, first) }()
	eventually(t, "the event waits", func() bool { return waiting(t, on) == 1 })
	commit(t, tx)
	if err := dbtest.Receive(t, "the event is written", done); err != nil {
		t.Fatal(err)
	}
	third := get(t, on, get(t, on, second).ReplacedBy)
	if third.Status != outbox.StatusParked || third.Code != "predecessor_delivered" {
		t.Errorf("the last successor is %s, %s", third.Status, third.Code)
	}
	if plan, err := all.Plan(t.Context(), on); err != nil || plan.Intents != 0 {
		t.Errorf("plan: %+v, %v", plan, err)
	}
	run(t, on, all, 0)

	first = died(t, on, w, "dead", outbox.Intent{Action: "refund"})
	second = replace0(t, on, w, first)
	tx = begin(t, on)
	if err := deliver(tx, first); err != nil {
		t.Fatal(err)
	}
	run(t, on, all, 0)
	commit(t, tx)
	run(t, on, all, 0)
	if e := get(t, on, second); e.Status != outbox.StatusParked || e.ReplacedBy != uuid.Nil {
		t.Errorf("the held one is %s, replaced by %v", e.Status, e.ReplacedBy)
	}
}
