package schema_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tableRights lists the rights of each role on each table and sequence, as "app; worker; operator; approver". A table
// without a row here fails TestRightsOfEachRole. A right that holds for some columns only names them.
var tableRights = map[string]string{
	"actions":    "; INSERT, SELECT, UPDATE; SELECT; SELECT",
	"deployment": "; SELECT; SELECT; SELECT",
	"endpoints": "SELECT(" + endpointColumns + ")" +
		"; SELECT, UPDATE(changed_at changed_by failing_since stop_reason stopped_at)" +
		"; SELECT(" + endpointColumns + "); SELECT(" + endpointColumns + ")",
	"endpoint_history": "SELECT" +
		"; DELETE, INSERT(destination event name reason), SELECT(at); SELECT; SELECT",
	"endpoint_history_id_seq": "; ; ; ",
	"intents":                 "; ; SELECT; SELECT",
	"migrations":              "SELECT; SELECT; SELECT; SELECT",
	"needs_attention":         "; ; SELECT; SELECT",
	"outbox":                  "; DELETE, SELECT; SELECT; SELECT",
	"outbox_attention":        "; DELETE, INSERT, SELECT, UPDATE; SELECT; SELECT",
	"outbox_attention_id_seq": "; ; ; ",
	"operation_steps":         "SELECT; DELETE, SELECT; SELECT; SELECT",
	// Not the fence.
	"operations": "; SELECT(idem_key lease_until scope)" +
		"; SELECT(attempts idem_key lease_until scope started_at); SELECT(attempts idem_key lease_until scope started_at)",
	"outbox_history": "; DELETE, INSERT(attempt code endpoint error event final_status intent_id key_window_until outcome reference response response_type" +
		" started_at worker), SELECT; SELECT; SELECT",
	"outbox_history_id_seq": "; SELECT; ; ",
	"outbox_queue":          "; DELETE, INSERT(action attempt due_at first_sent_at id last_code status), SELECT, UPDATE; SELECT; SELECT",
	"outbox_sends":          "; DELETE, INSERT, SELECT; SELECT; SELECT",
	"outbox_stats":          "; DELETE, INSERT, SELECT, UPDATE; SELECT; SELECT",
	// Not a person's login.
	"pauses": "; DELETE, INSERT(destination paused_at paused_by reason river_queue_created_at), SELECT," +
		" UPDATE(end_reason ended_at ended_by river_queue_created_at); SELECT; SELECT",
	"pauses_id_seq":             "; ; ; ",
	"processed_events":          "INSERT, SELECT; DELETE, INSERT, SELECT, UPDATE(expires_at); SELECT; SELECT",
	"rate_limits":               "; INSERT, SELECT, UPDATE; SELECT; SELECT",
	"river_job":                 "; DELETE, INSERT, SELECT, UPDATE; SELECT; SELECT",
	"river_job_id_seq":          "; USAGE; ; ",
	"river_leader":              "; DELETE, INSERT, SELECT, UPDATE; SELECT; SELECT",
	"river_migration":           "SELECT; SELECT; SELECT; SELECT",
	"river_notification":        "; DELETE, INSERT, SELECT, UPDATE; ; ",
	"river_notification_id_seq": "; USAGE; ; ",
	"river_queue":               "; DELETE, INSERT, SELECT, UPDATE; SELECT; SELECT",
	"timeline":                  "; ; SELECT; SELECT",
	"workers":                   "; DELETE, INSERT, SELECT, UPDATE; SELECT; SELECT",
}

const endpointColumns = "changed_at changed_by created_at destination failing_since name stop_reason stopped_at stopped_by url version"

// functionRights lists the roles that may call each function. A function without a row here fails TestRightsOfEachRole.
var functionRights = map[string]string{
	"act_cancel": "", "act_cancelled": "", "act_check": "", "act_evidence": "", "act_lock": "", "act_not_held": "", "act_redriven": "", "act_refuse": "",
	"act_replace": "", "act_replaced": "", "act_resolved": "", "act_target": "", "act_text": "", "act_unsent": "",
	"abandon_operation": "operator",
	"adopt":             "",
	"archive_batch":     "worker", "archive_bytes": "worker", "archive_json": "worker",
	"approve":      "approver",
	"bulk_change":  "",
	"bulk_filter":  "",
	"bulk_order":   "",
	"bulk_pick":    "",
	"bulk_plan":    "operator approver",
	"bulk_replace": "",
	"can_sign":     "worker",
	"call_end":     "app", "call_mark": "app", "call_put": "app", "operation_complete": "app", "operation_release": "app",
	"operation_start": "app", "step_lock": "app", "step_put": "app", "operation_hold": "", "operation_lock_idle": "",
	"cancel":              "operator",
	"cancel_all":          "operator",
	"cause_groups":        "operator approver",
	"check_deployment":    "worker",
	"delivery_key":        "app worker operator approver",
	"endpoint_delete":     "app operator",
	"endpoint_deliveries": "app operator approver",

	"endpoint_headers_wrong": "",

	"erase_plan": "operator", "erase_scope": "operator", "erase_subject": "operator",
	"erasable": "", "erase_batch": "", "erase_intents": "", "erase_look": "", "erase_records": "", "erase_refuse": "", "erase_unfinished": "",
	"erased_hash": "", "erased_hint": "", "keeps_content": "worker",
	"endpoint_put":      "app operator",
	"endpoint_start":    "app operator",
	"endpoint_stop":     "app operator",
	"endpoint_test":     "app", // it writes an intent of any action, which an operator may not
	"enqueue":           "app worker",
	"enqueue_duplicate": "",
	"enqueue_many":      "app worker",
	"fair_pick":         "worker",
	"fair_walk":         "worker",
	"header_owner":      "",
	"headers_refusal":   "",
	"hold_successor":    "worker",
	"intent_refusal":    "",
	"intent_states":     "app",
	"is_intent":         "",
	"is_json":           "",
	"key_hash":          "app worker operator approver",
	"text_hash":         "app worker operator approver",
	"key_lock":          "app worker",
	"may_have_acted":    "",
	"merge_patch":       "",
	"note_attention":    "worker",
	"ordering_lock":     "app worker",
	"own_scope":         "app worker",
	"patchable":         "",
	"pause":             "operator",
	"redrive":           "operator",
	"redrive_all":       "operator",
	"refuse_intent":     "",
	"refuse_scope":      "app worker",
	"reject":            "operator",
	"replace":           "operator approver",
	"replace_all":       "operator approver",
	"replace_payload":   "approver",
	"replacement_key":   "",
	"resolve":           "operator",
	"resolve_step":      "operator",
	"resolve_all":       "operator",
	"resume":            "operator",
	"share_of":          "",
	"this_database":     "",

	"replace_payload_all":        "approver",
	"river_job_state_in_bitmask": "public",
	"uuidv7":                     "app worker",
	"worker_class":               "worker",
}

// The lists of tables and functions come from the catalog, so this test also notices new ones.
func TestRightsOfEachRole(t *testing.T) {
	b := setupGrants(t)
	roles := []string{b.roles.App, b.roles.Worker, b.roles.Operator, b.roles.Approver}

	tables := map[string]string{}
	rows, err := b.owner.Query(t.Context(), `
		with granted as (
		    select c.relname, a.grantee, a.privilege_type || '' as what
		    from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'samekey'::regnamespace
		    union all
		    select c.relname, a.grantee, a.privilege_type || '(' || string_agg(t.attname, ' ' order by t.attname collate "C") || ')'
		    from pg_class c join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a
		    where c.relnamespace = 'samekey'::regnamespace group by c.relname, a.grantee, a.privilege_type)
		select c.relname, string_agg(coalesce((select string_agg(g.what, ', ' order by g.what collate "C") from granted g
		        where g.relname = c.relname and g.grantee = (select oid from pg_roles where rolname = r.name)), ''), '; ' order by r.n)
		from pg_class c, unnest($1::text[]) with ordinality r (name, n)
		where c.relnamespace = 'samekey'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
		group by c.relname`, roles)
	if err != nil {
		t.Fatal(err)
	}
	var name, rights string
	if _, err := pgx.ForEachRow(rows, []any{&name, &rights}, func() error { tables[name] = rights; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if want, known := tableRights[name]; !known || tables[name] != want {
			t.Errorf("table %s: the roles have %q, this test has %q (known: %v)", name, tables[name], want, known)
		}
	}
	for name := range tableRights {
		if _, exists := tables[name]; !exists {
			t.Errorf("there is no table %s", name)
		}
	}

	// Each role calls each function: the server decides, not only the catalog. The texts are not null, since the planner
	// would leave out the call of a strict function.
	names := []string{"app", "worker", "operator", "approver"}
	seen := map[string]bool{}
	for _, f := range functions(t, b.owner.Pool) {
		seen[f.name] = true
		want, known := functionRights[f.name]
		if !known {
			t.Errorf("function %s is not in functionRights", f.name)
			continue
		}
		for i, pool := range []*pgxpool.Pool{b.app, b.worker, b.operator, b.approver} {
			err := dryRun(t, pool, f.call)
			if allowed := want == "public" || slices.Contains(strings.Fields(want), names[i]); isDenied(err) == allowed {
				t.Errorf("%s calls %s: %v, want it allowed: %v", names[i], f.call, err, allowed)
			}
		}
	}
	for name := range functionRights {
		if !seen[name] {
			t.Errorf("there is no function %s", name)
		}
	}
}

type function struct{ name, call, arguments string }

func functions(t *testing.T, on interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) []function {
	t.Helper()
	rows, err := on.Query(t.Context(), `
		select p.proname, format('select %s(%s)', p.oid::regproc,
		       (select string_agg(case a.type when 'text'::regtype then '''''::' else 'null::' end || format_type(a.type, null), ', ' order by a.n) from unnest(p.proargtypes) with ordinality a (type, n))),
		       coalesce(array_to_string(p.proargnames[:p.pronargs], ', '), '')
		from pg_proc p where p.pronamespace = 'samekey'::regnamespace and p.prorettype <> 'trigger'::regtype order by p.proname, p.oid`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f function, err error) {
		return f, row.Scan(&f.name, &f.call, &f.arguments)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A function that runs as its owner must not find a caller's functions, operators or tables.
func TestFunctionsOfTheOwnerPinTheirSearchPath(t *testing.T) {
	b := setupGrants(t)
	unpinned := one[*string](t, b.owner.Pool, `
		select string_agg(p.oid::regprocedure::text, ', ') from pg_proc p
		where p.pronamespace = 'samekey'::regnamespace and p.prosecdef
		  and coalesce(not 'search_path=pg_catalog, pg_temp' = any (p.proconfig), true)`)
	if unpinned != nil {
		t.Errorf("security definer without the search path: %s", *unpinned)
	}
	if n := one[int](t, b.owner.Pool, `select count(*)::int from pg_proc where pronamespace = 'samekey'::regnamespace and prosecdef`); n < 12 {
		t.Errorf("%d functions run as their owner, want the acts and enqueue", n)
	}
}
