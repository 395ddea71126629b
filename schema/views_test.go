package schema_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/samekeytest"
)

// secretColumns are what the views leave out: the contents of requests and answers, and secrets.
var secretColumns = []string{"payload", "headers", "request", "response", "response_headers", "response_body", "secrets", "result", "fence", "payload_hash"}

// A view runs as its owner. So the views read nothing that a role with a right on them could not read in the tables.
func TestViewsShowNoMoreThanTheTables(t *testing.T) {
	b := setupGrants(t)
	rows, err := b.owner.Query(t.Context(), `
		select distinct v.relname, t.relname, coalesce(a.attname, '*')
		from pg_class v
		join pg_rewrite r on r.ev_class = v.oid
		join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid and d.refclassid = 'pg_class'::regclass and d.refobjid <> v.oid
		join pg_class t on t.oid = d.refobjid
		left join pg_attribute a on a.attrelid = t.oid and a.attnum = d.refobjsubid
		where v.relnamespace = 'samekey'::regnamespace and v.relkind = 'v'`)
	if err != nil {
		t.Fatal(err)
	}
	type read struct{ view, table, column string }
	reads, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r read, err error) {
		return r, row.Scan(&r.view, &r.table, &r.column)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reads {
		if slices.Contains(secretColumns, r.column) || r.column == "*" || r.table == "endpoints" || r.table == "outbox_sends" {
			t.Errorf("the view %s reads %s.%s", r.view, r.table, r.column)
		}
		for name, role := range map[string]string{"app": b.roles.App, "worker": b.roles.Worker, "operator": b.roles.Operator, "approver": b.roles.Approver} {
			const sql = `select has_table_privilege($1, 'samekey.' || $2, 'select') and not has_column_privilege($1, 'samekey.' || $3, $4, 'select')`
			if r.column != "*" && one[bool](t, b.owner.Pool, sql, role, r.view, r.table, r.column) {
				t.Errorf("the %s sees %s.%s through %s, and may not read it", name, r.table, r.column, r.view)
			}
		}
	}
	if len(reads) < 60 {
		t.Errorf("the views read %d columns, want those of intents and of their history", len(reads))
	}
}

// Readers copy the grants of a login for BI tools, and the queries, from the page. The login can read the views only,
// in each version of Postgres.
func TestViewsInDocsRun(t *testing.T) {
	text, err := os.ReadFile("../docs/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "## Views")
	section, _, closed := strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```")
	if !found || !closed || len(blocks) != 5 {
		t.Fatalf("the page has %d blocks of SQL about views, want the queries and the grants", len(blocks)/2)
	}
	queries, grants := strings.TrimPrefix(blocks[1], "sql\n"), strings.TrimPrefix(blocks[3], "sql\n")
	db := samekeytest.NewDB(t)
	role, pool := newLogin(t, db)
	if !strings.Contains(grants, "bi_tool") {
		t.Fatalf("the grants name no login: %s", grants)
	}
	execSQL(t, db, strings.ReplaceAll(grants, "bi_tool", role))
	execSQL(t, db, enqueueByHand)
	for query := range strings.SplitSeq(strings.TrimSpace(queries), ";\n") {
		execSQL(t, pool, query)
	}
	if n := one[int](t, pool, `select count(*)::int from samekey.intents where key = 'k' and status = 'pending'`); n != 1 {
		t.Errorf("the login sees %d intents, want 1", n)
	}
	for _, sql := range []string{`select id from samekey.outbox`, `select status from samekey.outbox_queue`, `select code from samekey.outbox_history`,
		`select samekey.redrive(gen_random_uuid(), 'a', 'r')`, `update samekey.needs_attention set status = 'pending'`} {
		if err := dryRun(t, pool, sql); err == nil {
			t.Errorf("a login with the views only may do: %s", sql)
		}
	}

	// The page has all columns.
	for _, view := range []string{"intents", "timeline", "needs_attention"} {
		_, table, _ := strings.Cut(section, "### `samekey."+view+"`")
		table, _, _ = strings.Cut(table, "\n### ")
		for column := range strings.FieldsSeq(one[string](t, db.Pool, `select string_agg(attname, ' ') from pg_attribute
			where attrelid = ('samekey.' || $1)::regclass and attnum > 0`, view)) {
			if !strings.Contains(table, "`"+column+"`") {
				t.Errorf("the page does not have the column %s of %s", column, view)
			}
		}
	}
}

// needs_attention names an act if and only if the act's function does not refuse the intent's state.
func TestActsOfTheViewArePossible(t *testing.T) {
	db := samekeytest.NewDB(t)
	dbtest.OtherWriter(t, db)
	execSQL(t, db, enqueueByHand)
	// try runs a statement, undoes it and returns its SQLSTATE.
	execSQL(t, db, `
		create function try(statement text) returns text language plpgsql as $$
		begin
			execute statement;
			raise exception using errcode = 'ZZZZZ';
		exception when others then
			return sqlstate;
		end $$`)
	acts := map[string]string{
		"approve": `samekey.approve(%s, 'ann', 'r')`, "reject": `samekey.reject(%s, 'ann', 'r')`, "cancel": `samekey.cancel(%s, 'ann', 'r')`,
		"redrive": `samekey.redrive(%s, 'ann', 'r')`, "resolve": `samekey.resolve(%s, 'not_sent', 'ann', 'r')`,
		"replace": `samekey.replace(%s, 'ann', 'r')`, "replace_payload": `samekey.replace_payload(%s, '1', 'ann', 'r')`,
	}
	id := "'" + one[string](t, db.Pool, `select id::text from samekey.outbox`) + "'"
	possible := map[string]int{}
	const held = "a held successor"
	for _, status := range intent.Resting {
		for _, sent := range []string{"null", "now()"} {
			for _, safe := range []bool{false, true} {
				for _, line := range []string{"", "'attempt', 'unknown'", "'attempt', 'retry'", "'attempt', 'dead'", "'lookup', 'absent'",
					"'late', 'delivered'", "'orphaned', null", "'restored', null"} {
					for _, at := range []string{"1 minute", "-1 minute", held} {
						cause := "null"
						if at == held {
							at, cause = "1 minute", "'the intent that it replaces was delivered'"
						}
						execSQL(t, db, `delete from samekey.outbox_history`)
						execSQL(t, db, fmt.Sprintf(`update samekey.outbox_queue set status = '%s', first_sent_at = %s, safe_to_resend = %t, cause = %s`, status, sent, safe, cause))
						if line != "" {
							execSQL(t, db, fmt.Sprintf(`insert into samekey.outbox_history (intent_id, at, event, outcome) values (%s, now() + interval '%s', %s)`, id, at, line))
						}
						shown := one[[]string](t, db.Pool, `select acts from samekey.needs_attention`)
						for act, call := range acts {
							state := one[string](t, db.Pool, `select try($1)`, "select "+fmt.Sprintf(call, id))
							if state != "ZZZZZ" && state != "SK011" {
								t.Fatalf("%s: SQLSTATE %s", act, state)
							}
							if (state == "ZZZZZ") != slices.Contains(shown, act) {
								t.Errorf("%s, first sent at %s, safe to resend %t, history %s at %s, cause %s: %s gives %s, and the view has %q",
									status, sent, safe, line, at, cause, act, state, shown)
							}
							if state == "ZZZZZ" {
								possible[act]++
							}
						}
						for _, act := range shown {
							if acts[act] == "" {
								t.Errorf("the view names %s, which is no act", act)
							}
						}
					}
				}
			}
		}
	}
	if len(possible) != len(acts) {
		t.Errorf("possible in some state are %v, want all of %d acts", possible, len(acts))
	}
}

func TestSinceIsTheEventOfStatusOrCause(t *testing.T) {
	db := samekeytest.NewDB(t)
	execSQL(t, db, enqueueByHand)
	execSQL(t, db, `update samekey.outbox_queue set status = 'dead', safe_to_resend = true, first_sent_at = now()`)
	since := func(want string) {
		t.Helper()
		if got := one[string](t, db.Pool, `select case since when (select created_at from samekey.outbox) then 'written'
			else (select h.event from samekey.outbox_history h where h.at = since) end from samekey.needs_attention`); got != want {
			t.Errorf("since the event %s, want %s", got, want)
		}
	}
	since("written")
	for _, line := range []string{"'attempt', 'retry'", "'orphaned', null", "'lookup', 'unknown'", "'late', 'unknown'"} {
		execSQL(t, db, `insert into samekey.outbox_history (intent_id, event, outcome) select id, `+line+` from samekey.outbox`)
	}
	since("lookup")
	execSQL(t, db, `select samekey.resolve(id, 'not_sent', 'ann', 'r') from samekey.outbox`)
	since("resolved")
}
