package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// rest writes intents that rest in a state, and returns their ids in order.
func rest(t *testing.T, on *samekeytest.DB, n int, status outbox.Status, sent, repeatable bool) []uuid.UUID {
	t.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = insert(t, on, outbox.Intent{Action: "charge_card", Payload: i})
		force(t, on, ids[i], status, sent, repeatable)
	}
	return ids
}

func run(t *testing.T, on outbox.DB, b outbox.Bulk, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), dbtest.Patience)
	defer cancel()
	if n, err := b.Run(ctx, on); n != want || err != nil {
		t.Errorf("it changed %d, %v; want %d", n, err, want)
	}
}

// Each condition of a filter leaves out an intent that only this condition leaves out, in List, Plan and Run alike.
func TestBulkSelectsWhatTheFilterSays(t *testing.T) {
	for name, c := range map[string]struct {
		filter outbox.Filter
		other  string // makes an intent another one
	}{
		"status":        {outbox.Filter{Status: outbox.StatusDead}, `update samekey.outbox_queue set status = 'parked' where id = $1`},
		"action":        {outbox.Filter{Action: "charge_card"}, `update samekey.outbox_queue set action = 'other' where id = $1`},
		"actions":       {outbox.Filter{Actions: []string{"refund", "charge_card"}}, `update samekey.outbox_queue set action = 'other' where id = $1`},
		"part":          {outbox.Filter{Part: "p"}, `update samekey.outbox set part = 'q' where id = $1`},
		"code":          {outbox.Filter{Code: "timeout"}, `update samekey.outbox_queue set last_code = '503' where id = $1`},
		"no code":       {outbox.Filter{Code: "timeout"}, `update samekey.outbox_queue set last_code = null where id = $1`},
		"cause":         {outbox.Filter{Cause: "no route"}, `update samekey.outbox_queue set cause = 'no message' where id = $1`},
		"no cause":      {outbox.Filter{Cause: "no route"}, `update samekey.outbox_queue set cause = null where id = $1`},
		"scope":         {outbox.Filter{Scope: "acme/x"}, `update samekey.outbox set scope = 'acme/y' where id = $1`},
		"key":           {outbox.Filter{Key: "one"}, `update samekey.outbox set idem_key = 'two' where id = $1`},
		"subject":       {outbox.Filter{Subject: "booking/1"}, `update samekey.outbox set subject = 'booking/2' where id = $1`},
		"no subject":    {outbox.Filter{Subject: "booking/1"}, `update samekey.outbox set subject = null where id = $1`},
		"reference":     {outbox.Filter{Reference: "ch_1"}, `update samekey.outbox_history set reference = 'ch_2' where intent_id = $1`},
		"from":          {outbox.Filter{From: time.Now().Add(-time.Hour)}, `update samekey.outbox set created_at = now() - interval '2 hours' where id = $1`},
		"to":            {outbox.Filter{To: time.Now().Add(time.Hour)}, `update samekey.outbox set created_at = now() + interval '2 hours' where id = $1`},
		"older than":    {outbox.Filter{OlderThan: time.Hour}, `update samekey.outbox set created_at = now() where id = $1`},
		"a whole group": {outbox.Group{Status: outbox.StatusDead, Action: "charge_card", Code: "timeout", Cause: "no route"}.Filter(), `update samekey.outbox_queue set last_code = null where id = $1`},
		"without code":  {outbox.Group{Status: outbox.StatusDead, Action: "charge_card", Cause: "no route"}.Filter(), `update samekey.outbox_queue set last_code = 'x' where id = $1`},
		"without cause": {outbox.Group{Status: outbox.StatusDead, Action: "charge_card", Code: "timeout"}.Filter(), `update samekey.outbox_queue set cause = 'x' where id = $1`},
	} {
		t.Run(name, func(t *testing.T) {
			on := samekeytest.NewDB(t)
			pair := make([]uuid.UUID, 2) // the other one, and the one that the filter selects
			for i := range pair {
				pair[i] = insert(t, on, outbox.Intent{Action: "charge_card"})
				force(t, on, pair[i], outbox.StatusDead, true, true)
				// The queue's action counts. The other column keeps the two rows apart.
				dbtest.Exec(t, on, `update samekey.outbox set scope = 'acme/x', idem_key = 'one', part = 'p', subject = 'booking/1', action = 'a' || $2::int,
					created_at = created_at - case when $3 then interval '2 hours' else '0' end where id = $1`, pair[i], i, name == "older than")
				dbtest.Exec(t, on, `update samekey.outbox_queue set cause = case when $2 then null else 'no route' end,
					last_code = case when $3 then null else last_code end where id = $1`, pair[i], name == "without cause", name == "without code")
			}
			dbtest.Exec(t, on, `insert into samekey.outbox_history (intent_id, event, reference) select unnest($1::uuid[]), 'attempt', 'ch_1'`, pair)
			dbtest.Exec(t, on, c.other, pair[0])
			listed := c.filter
			if listed.Status == "" {
				listed.Status = outbox.StatusDead
			}
			page, err := outbox.List(t.Context(), on, listed)
			if err != nil || len(page.Entries) != 1 || page.Entries[0].ID != pair[1] {
				t.Errorf("listed: %d, %v", len(page.Entries), err)
			}
			b := outbox.RedriveAll(c.filter, ada)
			if plan, err := b.Plan(t.Context(), on); err != nil || plan.Intents != 1 || !slices.Equal(plan.Sample, pair[1:]) || plan.MayHaveBeenSent != 0 {
				t.Errorf("plan: %+v, %v", plan, err)
			}
			run(t, on, b, 1)
			if a, b := get(t, on, pair[0]).Status, get(t, on, pair[1]).Status; a == outbox.StatusPending || b != outbox.StatusPending {
				t.Errorf("the other is %s, the one is %s", a, b)
			}
		})
	}
}

func TestBulkLeavesWhatTheSingleActRefuses(t *testing.T) {
	on := newGuardedDB(t)
	sentOnce := rest(t, on, 2, outbox.StatusDead, true, false)
	repeatable := rest(t, on, 3, outbox.StatusParked, true, true)
	unsent := rest(t, on, 4, outbox.StatusDead, false, false)
	plan, err := outbox.RedriveAll(outbox.Filter{}, ada).Plan(t.Context(), on)
	if err != nil || plan.Intents != 7 || plan.MayHaveBeenSent != 2 || !slices.Equal(plan.Sample, append(slices.Clone(unsent), repeatable...)) {
		t.Errorf("redrive: %+v, %v", plan, err)
	}
	plan, err = outbox.CancelAll(outbox.Filter{Status: outbox.StatusDead}, ada).Plan(t.Context(), on)
	if err != nil || plan.Intents != 4 || plan.MayHaveBeenSent != 2 {
		t.Errorf("cancel: %+v, %v", plan, err)
	}
	if n := count(t, on, `select count(*) from samekey.outbox_history`); n != 0 {
		t.Errorf("a plan wrote %d events", n)
	}
	run(t, on, outbox.CancelAll(outbox.Filter{Status: outbox.StatusDead}, ada), 4)
	run(t, on, outbox.RedriveAll(outbox.Filter{}, ada), 3)
	notSent := outbox.ResolveAll(outbox.Filter{}, outbox.Resolution{Outcome: outbox.NotSent}, ada)
	run(t, on, notSent, 2)
	run(t, on, notSent, 0) // what is resolved as not sent is left out the next time
	run(t, on, outbox.RedriveAll(outbox.Filter{}, ada), 2)
	for _, id := range slices.Concat(sentOnce, repeatable, unsent) {
		e := get(t, on, id)
		last := e.History[len(e.History)-1]
		if last.Actor != ada.Actor || last.Reason != ada.Reason || last.DBUser == "" || e.Status != outbox.StatusPending && e.Status != outbox.StatusCancelled {
			t.Errorf("%s: %+v", e.Status, last)
		}
	}
}

func TestBulkRunsInBatchesAndCanBeInterrupted(t *testing.T) {
	on := samekeytest.NewDB(t)
	const all = 2*outbox.BulkSize + 7
	dbtest.Exec(t, on, `select count(samekey.enqueue('s', 'k' || n, 'charge_card', '{}')) from generate_series(1, $1) n`, all)
	dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'dead'`)
	b := outbox.RedriveAll(outbox.Filter{}, ada)
	for batch, err := range b.Batches(t.Context(), on.Pool) {
		if err != nil || batch.Changed != outbox.BulkSize || batch.Total != outbox.BulkSize {
			t.Fatalf("%+v, %v", batch, err)
		}
		// It is committed, and another batch is not begun.
		if n := count(t, on, `select count(*) from samekey.outbox_history`); n != outbox.BulkSize {
			t.Errorf("%d events after the first batch", n)
		}
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var totals []int
	for batch, err := range b.Batches(ctx, on.Pool) {
		totals = append(totals, batch.Total)
		if errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	if !slices.Equal(totals, []int{outbox.BulkSize, outbox.BulkSize}) {
		t.Errorf("cancelled after the first batch: %v", totals)
	}
	run(t, on, b, 7)
	if n := count(t, on, `select count(*) from samekey.outbox_history where event = 'redriven'`); n != all {
		t.Errorf("%d redriven, want %d: each once", n, all)
	}
	dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'dead'`)
	run(t, on, outbox.RedriveAll(outbox.Filter{Limit: outbox.BulkSize + 1}, ada), outbox.BulkSize+1)
}

// An intent that becomes dead again during the run is not redriven twice by it.
func TestBulkRedrivesAnIntentOnceARun(t *testing.T) {
	on := samekeytest.NewDB(t)
	dbtest.Exec(t, on, `select count(samekey.enqueue('s', 'k' || n, 'charge_card', '{}')) from generate_series(1, $1) n`, outbox.BulkSize+1)
	dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'dead'`)
	for batch, err := range outbox.RedriveAll(outbox.Filter{}, ada).Batches(t.Context(), on.Pool) {
		if err != nil || batch.Total > outbox.BulkSize+1 {
			t.Fatalf("%+v, %v", batch, err)
		}
		dbtest.Exec(t, on, `update samekey.outbox_queue set status = 'dead' where status = 'pending'`)
	}
	if n := count(t, on, `select count(*) from samekey.outbox_history`); n != outbox.BulkSize+1 {
		t.Errorf("%d events, want %d", n, outbox.BulkSize+1)
	}
}

func TestBulkSkipsWhatAnotherTransactionHolds(t *testing.T) {
	on := newGuardedDB(t)
	ids := rest(t, on, 3, outbox.StatusDead, false, false)
	tx := begin(t, on)
	if err := outbox.Cancel(t.Context(), tx, ids[1], ada); err != nil {
		t.Fatal(err)
	}
	run(t, on, outbox.RedriveAll(outbox.Filter{}, ada), 2)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, on, outbox.RedriveAll(outbox.Filter{}, ada), 1)
}

func TestCancelAllPromotesAndSkipsABusyOrderingKey(t *testing.T) {
	on := newGuardedDB(t)
	var heads, next []uuid.UUID
	for i := range 3 {
		key := fmt.Sprint("order-", i)
		heads = append(heads, insert(t, on, outbox.Intent{Action: "a", OrderingKey: key}))
		next = append(next, insert(t, on, outbox.Intent{Action: "b", OrderingKey: key}))
		force(t, on, heads[i], outbox.StatusDead, false, false)
	}
	// A settle of another intent of order-1 holds the key, and would wait for a row.
	tx := begin(t, on)
	if err := db.New(tx).OutboxQueueLockOrder(t.Context(), []string{"order-1"}); err != nil {
		t.Fatal(err)
	}
	dead := outbox.CancelAll(outbox.Filter{Status: outbox.StatusDead}, ada)
	run(t, on, dead, 2)
	for i, id := range next {
		if s := get(t, on, id).Status; (s == outbox.StatusPending) != (i != 1) {
			t.Errorf("the next of order-%d is %s", i, s)
		}
	}
	commit(t, tx)
	run(t, on, dead, 1)
	run(t, on, outbox.CancelAll(outbox.Filter{Status: outbox.StatusPending, Action: "b"}, ada), 3)
	if n := count(t, on, `select count(*) from samekey.outbox_queue`); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestResolveAllTakesUnknownIntentsFromALookup(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	w.settle(w.claimOne("charge_card", false), outbox.StatusUnknown, "unknown", "timeout")
	lookup := w.claimOne("charge_card", false)
	run(t, on, outbox.ResolveAll(outbox.Filter{Status: outbox.StatusUnknown}, outbox.Resolution{Outcome: outbox.Delivered, Code: "200", Reference: "ch_1"}, ada), 1)
	if n := w.settle(lookup, outbox.StatusParked, "unknown", ""); n != 0 {
		t.Error("the lookup changed what the person decided")
	}
	if e := get(t, on, id); e.Status != outbox.StatusAnswered || e.LeasedBy != 0 {
		t.Errorf("%+v", e)
	}
	if r := dbtest.Value[string](t, on, `select reference from samekey.outbox_history where event = 'resolved'`); r != "ch_1" {
		t.Errorf("the reference is %q", r)
	}
}

// The application learns of each intent that a person cancels or parks, as it does of one.
func TestBulkActsWriteAttentionEvents(t *testing.T) {
	on := newGuardedDB(t)
	dbtest.Exec(t, on, `insert into samekey.actions (action, attention) values ('charge_card', true)`)
	rest(t, on, 2, outbox.StatusDead, false, false)
	rest(t, on, 3, outbox.StatusUnknown, true, false)
	rest(t, on, 1, outbox.StatusDead, true, false)
	other := insert(t, on, outbox.Intent{Action: "no_attention"})
	force(t, on, other, outbox.StatusDead, false, false)
	run(t, on, outbox.CancelAll(outbox.Filter{Status: outbox.StatusDead}, ada), 3)
	notSent := outbox.Resolution{Outcome: outbox.NotSent, Code: "log"}
	run(t, on, outbox.ResolveAll(outbox.Filter{Status: outbox.StatusUnknown}, notSent, ada), 3)
	run(t, on, outbox.ResolveAll(outbox.Filter{Status: outbox.StatusDead}, notSent, ada), 1) // it was at rest before
	got := dbtest.Value[string](t, on, `select string_agg(format('%s %s %s %s %s', n, status, event, code, actor), ', ' order by status)
		from (select status, event, code, actor, count(*) as n from samekey.outbox_attention group by 1, 2, 3, 4) a`)
	if got != "2 cancelled cancelled  ada, 3 parked resolved log ada" {
		t.Errorf("the events are %s", got)
	}
}

func TestBulkRefusesInvalidArguments(t *testing.T) {
	on := samekeytest.NewDB(t)
	ok := outbox.Resolution{Outcome: outbox.NotSent}
	for says, b := range map[string]outbox.Bulk{
		"Bulk is empty":              {},
		"Limit is -1":                outbox.RedriveAll(outbox.Filter{Limit: -1}, ada),
		"After is set":               outbox.RedriveAll(outbox.Filter{After: uuid.Max}, ada),
		"Action and Actions":         outbox.RedriveAll(outbox.Filter{Action: "a", Actions: []string{"b"}}, ada),
		"Actions[1] must be text":    outbox.RedriveAll(outbox.Filter{Actions: []string{"a", "b\x00"}}, ada),
		"Cause must be text":         outbox.RedriveAll(outbox.Filter{Cause: "\xff"}, ada),
		"Reason is empty":            outbox.RedriveAll(outbox.Filter{}, outbox.By{Actor: "ada"}),
		"Status is empty":            outbox.CancelAll(outbox.Filter{}, ada),
		"must be one of dead":        outbox.RedriveAll(outbox.Filter{Status: outbox.StatusPending}, ada),
		"Outcome must be Delivered":  outbox.ResolveAll(outbox.Filter{}, outbox.Resolution{}, ada),
		"OlderThan is negative":      outbox.ResolveAll(outbox.Filter{OlderThan: -1}, ok, ada),
		"Patch must be a JSON objec": outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Patch: []int{1}}, ada),
		"object with a member, such": outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Patch: []byte(" { } ")}, ada),
		"Patch: Payload is a string": outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Patch: "{}"}, ada),
		"deadline has passed":        outbox.ReplaceAll(outbox.Filter{}, outbox.Replacements{Deadline: time.Unix(1, 0)}, ada),
		`"status" must be one of d`:  outbox.ReplaceAll(outbox.Filter{Status: outbox.StatusUnknown}, outbox.Replacements{}, ada),
		"one of dead, parked, unkno": outbox.ResolveAll(outbox.Filter{Status: outbox.StatusAnswered}, ok, ada),
	} {
		if _, err := b.Plan(t.Context(), on); says != "Outcome must be Delivered" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("plan: %v, want %q", err, says)
		}
		if n, err := b.Run(t.Context(), on); n != 0 || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("run: %d, %v, want %q", n, err, says)
		}
	}
}

func TestBulkFunctionsRefuseInvalidFilters(t *testing.T) {
	on := samekeytest.NewDB(t)
	for _, c := range []struct{ sql, column string }{
		{`select samekey.redrive_all(null, 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('[]', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"acton": "x"}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"action": 5}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"action": ["a", 5]}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"part": null}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"status": "pending"}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"from": "soon"}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{"older_than": "much"}', 'a', 'r')`, "filter"},
		{`select samekey.redrive_all('{}', 'a', 'r', max_count => 0)`, "max_count"},
		{`select samekey.redrive_all('{}', 'a', 'r', max_count => 10001)`, "max_count"},
		{`select samekey.redrive_all('{}', 'a', 'r', max_count => null)`, "max_count"},
		{`select samekey.redrive_all('{}', 'a', 'r', after_id => gen_random_uuid())`, "after_id"},
		{`select samekey.redrive_all('{}', 'a', '')`, "reason"},
		{`select samekey.cancel_all('{}', 'a', 'r')`, "filter"},
		{`select samekey.cancel_all('{"status": "leased"}', 'a', 'r')`, "filter"},
		{`select samekey.resolve_all('{}', 'gone', 'a', 'r')`, "outcome"},
		{`select samekey.resolve_all('{"status": "pending"}', 'not_sent', 'a', 'r')`, "filter"},
		{`select samekey.bulk_plan('redrive', '{}')`, "act"},
		{`select samekey.bulk_plan(null, '{}')`, "act"},
		{`select samekey.bulk_plan('redrive_all', '{}', patch => '{"a": 1}')`, "patch"},
		{`select samekey.bulk_plan('replace_all', '{}', patch => '{"a": 1}')`, "patch"},
		{`select samekey.bulk_plan('replace_payload_all', '{}')`, "patch"},
		{`select samekey.bulk_plan('cancel_all', '{"status": "dead"}', deadline => 'infinity')`, "deadline"},
		{`select samekey.replace_all('{"status": "pending"}', 'a', 'r')`, "filter"},
		{`select samekey.replace_all('{}', 'a', '')`, "reason"},
		{`select samekey.replace_all('{}', 'a', 'r', '2020-01-01')`, "deadline"},
		{`select samekey.replace_all('{}', 'a', 'r', '10000-01-01')`, "deadline"},
		{`select samekey.replace_all('{}', 'a', 'r', max_count => 0)`, "max_count"},
		{`select samekey.replace_all('{}', 'a', 'r', after_id => gen_random_uuid())`, "after_id"},
		{`select samekey.replace_payload_all('{}', null, 'a', 'r')`, "patch"},
		{`select samekey.replace_payload_all('{}', '{}', 'a', 'r')`, "patch"},
		{`select samekey.replace_payload_all('{}', '[1]', 'a', 'r')`, "patch"},
	} {
		_, err := on.Exec(t.Context(), c.sql)
		pg := (*pgconn.PgError)(nil)
		if !errors.As(err, &pg) || pg.Code != "22023" || pg.ColumnName != c.column {
			t.Errorf("%s: %v", c.sql, err)
		}
	}
	for _, sql := range []string{
		`select samekey.redrive_all('{"status": "dead", "action": ["a"], "code": null, "cause": null, "from": "2026-01-01", "older_than": "2 hours"}', 'a', 'r', 1, gen_random_uuid())`,
		`select samekey.cancel_all('{"status": "blocked"}', 'a', 'r')`,
		`select samekey.resolve_all('{"status": "unknown"}', 'not_sent', 'a', 'r')`,
		`select samekey.replace_all('{"status": "parked"}', 'a', 'r', 'infinity', 1, gen_random_uuid())`,
		`select samekey.replace_payload_all('{}', '{"a": null}', 'a', 'r', '9999-12-31')`,
	} {
		dbtest.Exec(t, on, sql)
	}
}

func TestGroupsCountIntentsByCause(t *testing.T) {
	on := samekeytest.NewDB(t)
	set := func(status outbox.Status, action, code, cause string, n int) {
		for range n {
			id := insert(t, on, outbox.Intent{Action: action})
			force(t, on, id, status, true, true)
			dbtest.Exec(t, on, `update samekey.outbox_queue set last_code = nullif($2, ''), cause = nullif($3, '') where id = $1`, id, code, cause)
		}
	}
	set(outbox.StatusDead, "charge_card", "503", "overloaded", 3)
	set(outbox.StatusDead, "charge_card", "503", "no such card", 1)
	set(outbox.StatusParked, "charge_card", "503", "overloaded", 2)
	set(outbox.StatusAwaitingApproval, "pay_out", "approval", "", 4)
	set(outbox.StatusPending, "pay_out", "503", "", 5)
	want := []outbox.Group{
		{outbox.StatusAwaitingApproval, "pay_out", "approval", "", 4},
		{outbox.StatusDead, "charge_card", "503", "overloaded", 3},
		{outbox.StatusParked, "charge_card", "503", "overloaded", 2},
		{outbox.StatusDead, "charge_card", "503", "no such card", 1},
	}
	if got, err := outbox.Groups(t.Context(), on); err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := outbox.Groups(t.Context(), on, "charge_card", "other"); err != nil || !slices.Equal(got, want[1:]) {
		t.Errorf("of one action: %+v, %v", got, err)
	}
	for _, g := range want[1:] {
		page, err := outbox.List(t.Context(), on, g.Filter())
		if err != nil || len(page.Entries) != g.Count || page.Entries[0].Cause != g.Cause {
			t.Errorf("list of %+v: %d, %v", g, len(page.Entries), err)
		}
		run(t, on, outbox.RedriveAll(g.Filter(), ada), g.Count)
	}
	if got, err := outbox.Groups(t.Context(), on); err != nil || len(got) != 1 {
		t.Errorf("after the redrives: %+v, %v", got, err)
	}
}
