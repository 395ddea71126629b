package schema_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// shareOf returns the shares of two intents of each action, by the function that enqueue calls.
func shareOf(t *testing.T, db *samekeytest.DB) string {
	t.Helper()
	return one[string](t, db.Pool, `select string_agg(concat(a, ':', coalesce(samekey.share_of(a, 'acme/orders', 'shop'), '-')), ' ' order by a)
		from unnest(array['charge', 'hook', 'mail']) a`)
}

// The function follows the table, in every way in which the table changes.
func TestShareOfFollowsTheActions(t *testing.T) {
	db := samekeytest.NewDB(t)
	for _, step := range []struct{ sql, want string }{
		{`select`, "charge:- hook:- mail:-"},
		{`insert into samekey.actions (action, fair_by) values ('charge', 'scope'), ('hook', 'part'), ('mail', null)`, "charge:acme/orders hook:shop mail:-"},
		{`update samekey.actions set fair_by = 'part' where action = 'charge'`, "charge:shop hook:shop mail:-"},
		{`update samekey.actions set fair_by = null where action = 'hook'`, "charge:shop hook:- mail:-"},
		{`delete from samekey.actions`, "charge:- hook:- mail:-"},
		{`insert into samekey.actions (action, fair_by) values ('mail', 'scope')`, "charge:- hook:- mail:acme/orders"},
		// A restored or a replicated database has the row and not the function.
		{`create or replace function samekey.share_of(action text, scope text, part text) returns text language sql immutable parallel safe as 'select null::text'`, "charge:- hook:- mail:-"},
		{`insert into samekey.actions (action, fair_by) values ('mail', 'scope') on conflict do nothing`, "charge:- hook:- mail:acme/orders"},
	} {
		execSQL(t, db, step.sql)
		if got := shareOf(t, db); got != step.want {
			t.Errorf("after %s: %s, want %s", step.sql, got, step.want)
		}
	}
	if _, err := db.Exec(t.Context(), `insert into samekey.actions (action, fair_by) values ('x', 'endpoint')`); err == nil {
		t.Error("an unknown fair_by is taken")
	}
}

// The worker's role registers actions, and with it replaces the function that its owner has.
func TestWorkersRoleSetsShares(t *testing.T) {
	b := setupGrants(t)
	execSQL(t, b.worker, `insert into samekey.actions (action, fair_by) values ('charge_card', 'scope')`)
	execSQL(t, b.app, enqueueSQL, "key")
	if got := one[string](t, b.owner.Pool, `select share from samekey.outbox_queue`); got != "tenant" {
		t.Errorf("the share is %q", got)
	}
	if one[bool](t, b.owner.Pool, `select proacl::text ~ '(^|[{,])=X' from pg_proc where oid = 'samekey.share_of(text, text, text)'::regprocedure`) {
		t.Error("the replaced function is executable by PUBLIC")
	}
}

// Two workers register different actions at once. The second waits, and its function has the shares of both.
func TestTwoWorkersRegisterActions(t *testing.T) {
	db := samekeytest.NewDB(t)
	ctx := t.Context()
	first, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(ctx) }()
	execSQL(t, first, `insert into samekey.actions (action, fair_by) values ('charge', 'scope')`)
	done := make(chan error, 1)
	go func() {
		_, err := db.Exec(ctx, `insert into samekey.actions (action, fair_by) values ('hook', 'part')`)
		done <- err
	}()
	dbtest.Until(t, "the second waits for the first", func() bool {
		return one[int](t, db.Pool, `select count(*)::int from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`) == 1
	})
	if err := first.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := dbtest.Receive(t, "the second registers", done); err != nil {
		t.Fatal(err)
	}
	if got := shareOf(t, db); got != "charge:acme/orders hook:shop mail:-" {
		t.Errorf("the shares are %s", got)
	}
}

// The plan of enqueue contains the function's expression and not its call, so actions without shares cost nothing.
func TestShareOfIsPartOfThePlan(t *testing.T) {
	db := samekeytest.NewDB(t)
	execSQL(t, db, `insert into samekey.actions (action, fair_by) values ('charge', 'scope')`)
	rows, err := db.Query(t.Context(), `explain (verbose, costs off) select samekey.share_of(o.action, o.scope, o.part) from samekey.outbox o`)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || strings.Contains(strings.Join(plan, " "), "share_of") || !strings.Contains(strings.Join(plan, " "), "CASE") {
		t.Errorf("%v: %v", plan, err)
	}
}
