package schema_test

import (
	"context"
	"crypto/rand"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// grantBundle is a migrated database with four roles that log in, each with a pool.
type grantBundle struct {
	owner                           *samekeytest.DB
	roles                           schema.Roles
	app, worker, operator, approver *pgxpool.Pool
}

func setupGrants(t *testing.T) grantBundle {
	t.Helper()
	b := grantBundle{owner: samekeytest.NewDB(t)}
	suffix := strings.ToLower(rand.Text())
	b.roles = schema.Roles{ // names that need their quotes
		App: `app "one" ` + suffix, Worker: `Worker; ` + suffix, Operator: `operator's ` + suffix, Approver: `Approver ` + suffix,
	}
	for _, role := range []string{b.roles.App, b.roles.Worker, b.roles.Operator, b.roles.Approver} {
		createRole(t, b.owner, role)
	}
	if err := schema.Grant(t.Context(), b.owner.Pool, b.roles); err != nil {
		t.Fatal(err)
	}
	b.app, b.worker = login(t, b.owner.DSN, b.roles.App), login(t, b.owner.DSN, b.roles.Worker)
	b.operator, b.approver = login(t, b.owner.DSN, b.roles.Operator), login(t, b.owner.DSN, b.roles.Approver)
	return b
}

const enqueueByHand = `select samekey.enqueue('tenant', 'k', 'charge_card', '{}')`

const enqueueSQL = `select samekey.enqueue('tenant', $1, 'charge_card', '{}', ordering_key => 'order-1')`

func TestEachRoleCanDoWhatItNeeds(t *testing.T) {
	b := setupGrants(t)
	const insertProcessed = `
		insert into samekey.processed_events (idem_key, scope, expires_at, hash_version, payload_hash, completed_at)
		values ($1, 's', now(), 1, sha256(''), now()) on conflict do nothing returning idem_key`
	allowed := []struct {
		pool *pgxpool.Pool
		sql  string
		args []any
	}{
		{b.app, enqueueSQL, []any{"by app"}},
		{b.app, enqueueSQL, []any{"by app"}}, // a no-op reads the first one's payload, as the owner
		{b.app, insertProcessed, []any{"by app"}},
		{b.app, `select * from samekey.processed_events`, nil},
		{b.app, `select pg_advisory_xact_lock(samekey.key_lock('s', 'k'))`, nil},
		{b.app, `select samekey.delivery_key('s', 'k', 'a', ''), samekey.uuidv7()`, nil},
		{b.worker, enqueueSQL, []any{"by worker"}}, // an Apply's further intent
		{b.worker, insertProcessed, []any{"by worker"}},
		{b.worker, `select samekey.check_deployment('production')`, nil},
		{b.worker, `insert into samekey.workers (id, name, actions) values (1, 'w', '{charge_card}')`, nil},
		{b.worker, `insert into samekey.outbox_stats (action, status, intents, handled) values ('charge_card', 'pending', 1, true)`, nil},
		{b.worker, `delete from samekey.processed_events where (idem_key, scope) in
			(select idem_key, scope from samekey.processed_events limit 1 for update skip locked)`, nil},
		{b.worker, `delete from samekey.outbox where idem_key = 'by worker'`, nil},
	}
	for _, a := range allowed {
		execSQL(t, a.pool, a.sql, a.args...)
	}
	for _, pool := range []*pgxpool.Pool{b.app, b.worker, b.operator, b.approver} {
		if err := schema.Check(t.Context(), pool); err != nil {
			t.Error(err)
		}
		if err := schema.Migrate(t.Context(), pool); err != nil {
			t.Errorf("Migrate of a database that is up to date: %v", err)
		}
	}
}

func TestEachRoleIsDeniedEverythingElse(t *testing.T) {
	b := setupGrants(t)
	execSQL(t, b.app, enqueueSQL, "key")
	denied := map[*pgxpool.Pool][]string{
		b.app: {
			`select payload from samekey.outbox`,
			`select id from samekey.outbox`,
			`insert into samekey.outbox default values`,
			`update samekey.outbox set payload = ''`,
			`delete from samekey.outbox`,
			`select * from samekey.outbox_queue`,
			`insert into samekey.outbox_queue default values`,
			`update samekey.outbox_queue set status = 'dead'`,
			`delete from samekey.outbox_queue`,
			`select response from samekey.outbox_history`,
			`select request from samekey.outbox_sends`,
			`select secrets from samekey.endpoints`,
			`select headers from samekey.endpoints`,
			`update samekey.endpoints set url = 'https://h'`,
			`insert into samekey.endpoints (destination, name, url) values ('d', 'n', 'https://h')`,
			`select samekey.redrive(gen_random_uuid(), 'a', 'r')`,
			`update samekey.processed_events set response_body = ''`,
			`select * from samekey.processed_events for update`,
			`delete from samekey.processed_events`,
			`truncate samekey.processed_events`,
			`select * from samekey.workers`,
			`select * from samekey.deployment`,
			`select samekey.check_deployment('production')`,
			`select samekey.adopt('production')`,
			`select * from samekey.outbox_stats`,
			`select nextval('samekey.outbox_history_id_seq')`,
			`select samekey.is_json('{}'::bytea)`,
			`select samekey.enqueue_duplicate('s', 'k', 'a', '', '{}', false)`,
			`select * from samekey.river_job`,
			`insert into samekey.river_job (kind, args, max_attempts) values ('samekey.drain', '{}', 1)`,
			`update samekey.river_queue set paused_at = now()`,
			`delete from samekey.river_migration`,
			`insert into samekey.migrations (version, name) values (999, 'x')`,
			`create table samekey.mine (id int)`,
			`drop table samekey.outbox`,
			`alter table samekey.outbox add column x int`,
		},
		b.worker: {
			`update samekey.deployment set name = 'production'`,
			`select samekey.adopt('production')`,
			`update samekey.outbox set payload = ''`,
			`update samekey.outbox set delivery_key = gen_random_uuid()`,
			`insert into samekey.outbox default values`,
			`truncate samekey.outbox`,
			`update samekey.outbox_history set response = ''`,
			`truncate samekey.outbox_history`,
			`insert into samekey.outbox_history (intent_id, event, actor, reason, db_user) values (gen_random_uuid(), 'approved', 'a', 'r', 'd')`,
			`insert into samekey.outbox_history (intent_id, event, actor) values (gen_random_uuid(), 'attempt', 'a')`,
			`select samekey.approve(gen_random_uuid(), 'a', 'r')`,
			`insert into samekey.outbox_queue (id, action, status, due_at, approved_at) values (gen_random_uuid(), 'a', 'pending', now(), now())`,
			`update samekey.endpoints set url = 'https://h'`,
			`delete from samekey.endpoints`,
			`update samekey.outbox_sends set request = ''`,
			`update samekey.processed_events set response_body = ''`,
			`update samekey.processed_events set payload_hash = ''`,
			`truncate samekey.processed_events`,
			`select setval('samekey.outbox_history_id_seq', 1)`,
			`insert into samekey.migrations (version, name) values (999, 'x')`,
			`delete from samekey.river_migration`,
			`create table samekey.mine (id int)`,
			`create function samekey.mine() returns int language sql as 'select 1'`,
			`drop table samekey.outbox_queue`,
			`alter table samekey.outbox_queue add column x int`,
			`reindex table samekey.river_job`,
		},
	}
	for _, pool := range []*pgxpool.Pool{b.operator, b.approver} {
		denied[pool] = []string{
			`insert into samekey.outbox default values`,
			enqueueByHand,
			`update samekey.outbox set payload = ''`,
			`delete from samekey.outbox`,
			`update samekey.outbox_queue set status = 'pending', approved_at = now()`,
			`select * from samekey.outbox_queue for update`,
			`delete from samekey.outbox_queue`,
			`insert into samekey.outbox_history (intent_id, event) values (gen_random_uuid(), 'restored')`,
			`delete from samekey.outbox_history`,
			`select secrets from samekey.endpoints`,
			`select headers from samekey.endpoints`,
			`select * from samekey.endpoints`,
			`update samekey.endpoints set url = 'https://h'`,
			`update samekey.pauses set ended_at = now()`,
			`update samekey.river_queue set paused_at = now()`,
			`insert into samekey.processed_events (idem_key, scope, expires_at, hash_version, payload_hash) values ('k', 's', now(), 1, sha256(''))`,
			`select samekey.act_cancel('cancel', 'cancelled', gen_random_uuid(), 'a', 'r', '{dead}')`,
			`create table samekey.mine (id int)`,
		}
	}
	denied[b.operator] = append(denied[b.operator], `select samekey.approve(gen_random_uuid(), 'a', 'r')`,
		`select samekey.replace_payload_all('{}', '{"a": 1}', 'a', 'r')`, `select samekey.bulk_replace('replace_payload_all', '{}', '{"a": 1}', null, 'a', 'r', 1, null)`)
	denied[b.approver] = append(denied[b.approver], `select samekey.redrive(gen_random_uuid(), 'a', 'r')`,
		`select samekey.endpoint_delete('d', 'n', 'a', 'r')`, `select samekey.resume('d', 'a', 'r')`)
	for pool, statements := range denied {
		for _, sql := range statements {
			if err := dryRun(t, pool, sql); !isDenied(err) {
				t.Errorf("%s: as %s: %v, want it denied", sql, pool.Config().ConnConfig.User, err)
			}
		}
	}
}

// PUBLIC is every role of the server. None may read or run anything without a grant.
func TestNothingIsGrantedToPublic(t *testing.T) {
	b := setupGrants(t)
	granted := one[*string](t, b.owner.Pool, `
		select string_agg(what, ', ') from (
		    select nspname::text as what, coalesce(nspacl, acldefault('n', nspowner)) as acl from pg_namespace where nspname = 'samekey'
		    union all
		    select relname, coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::"char", relowner))
		    from pg_class where relnamespace = 'samekey'::regnamespace and relkind in ('r', 'S', 'v')
		    union all
		    select proname, coalesce(proacl, acldefault('f', proowner))
		    from pg_proc where pronamespace = 'samekey'::regnamespace and proname !~ '^river_') o
		where exists (select from aclexplode(o.acl) where grantee = 0)`)
	if granted != nil {
		t.Errorf("granted to public: %s", *granted)
	}
}

// This test checks the grants for every query, new ones included.
func TestGrantsCoverEveryQuery(t *testing.T) {
	b := setupGrants(t)
	queries := readQueries(t)
	if len(queries) < 10 {
		t.Fatalf("found %d queries, want those of internal/db", len(queries))
	}
	for name, sql := range queries {
		if err := explainQuery(t, b.worker, sql); isWorker(name) != (err == nil) {
			t.Errorf("the worker: %s: %v, want allowed = %v", name, err, isWorker(name))
		}
		if err := explainQuery(t, b.app, sql); isApp(name) != (err == nil) {
			t.Errorf("the application: %s: %v, want allowed = %v", name, err, isApp(name))
		}
		for pool, allowed := range map[*pgxpool.Pool]bool{b.operator: isOperator(name), b.approver: isApprover(name)} {
			if err := explainQuery(t, pool, sql); allowed && err != nil {
				t.Errorf("%s: %s: %v", pool.Config().ConnConfig.User, name, err)
			}
		}
	}
}

// isWorker reports whether the worker's role runs a query: it makes no person's decision, and waits for no intent.
func isWorker(name string) bool {
	return !strings.HasPrefix(name, "Act") && name != "OutboxStates" && name != "CauseGroups" && name != "EndpointHistoryList" && name != "EndpointsDeliveries" && !callsSteps(name)
}

// isOperator reports whether a person's functions in outbox run a query, and isApprover those of an approver. Both may
// explain further queries that only read.
func isOperator(name string) bool {
	return strings.HasPrefix(name, "Act") && name != "ActApprove" && name != "ActEndpointTest" && !strings.HasPrefix(name, "ActReplacePayload") || isReader(name)
}

func isApprover(name string) bool {
	return name == "ActApprove" || strings.HasPrefix(name, "ActReplace") || name == "ActBulkPlan" || isReader(name)
}

func isReader(name string) bool {
	return strings.HasPrefix(name, "OutboxList") || name == "OutboxEntries" || name == "OutboxHistory" || name == "OutboxSendsGet" ||
		name == "PausesList" || name == "CauseGroups" || name == "EndpointsGet" || name == "EndpointsList" || name == "EndpointHistoryList" || name == "EndpointsDeliveries"
}

// isApp reports whether the application's role runs a query, or could: a query that only takes locks reads no table.
func isApp(name string) bool {
	return name == "OutboxEnqueue" || name == "OutboxEnqueueMany" || name == "OutboxStates" || strings.HasPrefix(name, "Processed") && !strings.Contains(name, "Prune") ||
		callsSteps(name) || name == "OperationStepsList" || name == "OperationStepsFind" ||
		strings.HasPrefix(name, "ActEndpoint") || name == "EndpointsGet" || name == "EndpointsList" || name == "EndpointHistoryList" || name == "EndpointsDeliveries" ||
		name == "OutboxQueueApplyEnded" || name == "WorkersSession" || // which read no table
		name == "OutboxQueueLockOrder" || name == "OutboxQueueTryLockOrder"
}

// callsSteps reports whether a query is one of processed.Steps that changes an operation. A worker makes none.
func callsSteps(name string) bool {
	switch name {
	case "OperationStepsList", "OperationStepsFind", "OperationsAbandoned":
		return false
	}
	return strings.HasPrefix(name, "Operation")
}

// explainQuery makes the server check the permissions of a query without running it.
func explainQuery(t *testing.T, pool *pgxpool.Pool, sql string) error {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	prepared, err := tx.Conn().Prepare(t.Context(), "q", sql)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Conn().Deallocate(context.WithoutCancel(t.Context()), "q") }()
	arguments := ""
	if n := len(prepared.ParamOIDs); n > 0 {
		arguments = "(" + strings.Repeat("null, ", n-1) + "null)"
	}
	_, err = tx.Exec(t.Context(), "explain execute q"+arguments)
	return err
}

func readQueries(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../internal/db/*.sql.go")
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if text, ok := spec.Values[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
				if queries[spec.Names[0].Name], err = strconv.Unquote(text.Value); err != nil {
					t.Fatal(err)
				}
			}
			return true
		})
	}
	return queries
}

func TestGrantIsIdempotentAndRevokesTheRest(t *testing.T) {
	b := setupGrants(t)
	acls := func() string {
		return one[string](t, b.owner.Pool, `
			select string_agg(line, E'\n' order by line collate "C") from (
			    select format('%s %s', relname, (select string_agg(a::text, ',' order by a::text collate "C") from unnest(relacl) a)) as line
			    from pg_class where relnamespace = 'samekey'::regnamespace and relkind in ('r', 'S')
			    union all
			    select format('%s %s', proname, (select string_agg(a::text, ',' order by a::text collate "C") from unnest(proacl) a))
			    from pg_proc where pronamespace = 'samekey'::regnamespace) s`)
	}
	want := acls()
	execSQL(t, b.owner, `grant all on all tables in schema samekey to `+pgx.Identifier{b.roles.App}.Sanitize())
	if err := dryRun(t, b.app, `update samekey.outbox set payload = ''`); err != nil {
		t.Fatalf("the test's own grant: %v", err)
	}
	failed := make(chan error, 3)
	for range cap(failed) { // three processes may do it at once
		go func() { failed <- schema.Grant(t.Context(), b.owner.Pool, b.roles) }()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if got := acls(); got != want {
		t.Errorf("granted again:\n%s", firstDifference(want, got))
	}
}

func TestGrantSkipsEmptyRoleAndRefusesNone(t *testing.T) {
	if text := schema.Grants(schema.Roles{App: "app"}); strings.Contains(text, "river_job") || !strings.Contains(text, `"app"`) {
		t.Errorf("for the application alone:\n%s", text)
	}
	if err := schema.Grant(t.Context(), nil, schema.Roles{}); err == nil {
		t.Error("all roles are empty: want an error")
	}
}

func TestRiverWorksAsWorkerRole(t *testing.T) {
	b := setupGrants(t)
	runJob(t, b.worker, schema.Name)
}

// dryRun runs a statement and rolls it back.
func dryRun(t *testing.T, pool *pgxpool.Pool, sql string) error {
	t.Helper()
	undo := errors.New("undo")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			return err
		}
		return undo
	})
	if errors.Is(err, undo) {
		return nil
	}
	return err
}

// isDenied also covers drop, alter and reindex, whose error "must be owner" has the same code.
func isDenied(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42501"
}

func TestGrantNamesMissingRole(t *testing.T) {
	db := samekeytest.NewDB(t)
	err := schema.Grant(t.Context(), db.Pool, schema.Roles{App: "samekey_no_such_role"})
	if err == nil || !strings.Contains(err.Error(), "samekey_no_such_role") {
		t.Errorf("got %v", err)
	}
}

// Not even an UPDATE of the queue, which it needs for its settles, lets the worker's role approve.
func TestTheWorkersRoleCannotApprove(t *testing.T) {
	b := setupGrants(t)
	execSQL(t, b.app, `select samekey.enqueue('tenant/orders', 'order-1', 'charge_card', '{}')`)
	const approve = `update samekey.outbox_queue set status = 'pending', approved_at = now()`
	for range 2 {
		if _, err := b.worker.Exec(t.Context(), approve); !isDenied(err) {
			t.Errorf("the worker approves: %v", err)
		}
		execSQL(t, b.worker, `update samekey.outbox_queue set approved_at = approved_at`)
		execSQL(t, b.worker, `update samekey.outbox_queue set approved_at = null`)
		execSQL(t, b.owner, `update samekey.outbox_queue set approved_at = now()`)
	}
	execSQL(t, b.worker, `update samekey.outbox_queue set approved_at = approved_at, status = 'leased', leased_by = 1, lease_until = now()`)
}
