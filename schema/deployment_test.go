package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// found is what a worker of the deployment finds: the name in the row, and the problem.
func found(t *testing.T, db *samekeytest.DB, deployment string) string {
	t.Helper()
	return one[string](t, db.Pool, `select concat_ws(' ', belongs_to, problem) from samekey.check_deployment($1)`, deployment)
}

func TestMigrateWritesWhichDatabaseItIs(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	if err := schema.Migrate(t.Context(), db.Pool); err != nil {
		t.Fatal(err)
	}
	if !one[bool](t, db.Pool, `select name is null and not test and database_oid = (select oid from pg_database where datname = current_database())
			and system_identifier = (select system_identifier from pg_control_system()) from samekey.deployment`) {
		t.Error("the row is not of this database, or has a name")
	}
	if got := found(t, db, ""); got != "unnamed" {
		t.Errorf("a worker without a deployment finds %q", got)
	}
	for deployment, want := range map[string]string{"production": "production", "staging": "production name"} {
		if got := found(t, db, "production"); got != "production" {
			t.Errorf("the first worker finds %q", got)
		}
		if got := found(t, db, deployment); got != want {
			t.Errorf("a worker of %s finds %q, want %q", deployment, got, want)
		}
	}
}

// The system identifier does not count where the server does not tell it to the owner of the functions.
func TestIdentityWithoutSystemIdentifier(t *testing.T) {
	db := samekeytest.NewDB(t)
	owner, _ := newLogin(t, db)
	role := pgx.Identifier{owner}.Sanitize()
	execSQL(t, db, `grant usage on schema samekey to `+role)
	execSQL(t, db, `grant all on samekey.deployment, samekey.workers, samekey.outbox_queue to `+role)
	execSQL(t, db, `grant execute on function samekey.worker_class to `+role)
	for _, function := range []string{"this_database()", "check_deployment(text)", "adopt(text)"} {
		execSQL(t, db, `alter function samekey.`+function+` owner to `+role)
	}
	execSQL(t, db, `revoke execute on function pg_control_system() from public`)
	if _, err := schema.Adopt(t.Context(), db, "production"); err != nil {
		t.Fatal(err)
	}
	if !one[bool](t, db.Pool, `select system_identifier is null and database_oid > 0 from samekey.deployment`) {
		t.Error("the row has a system identifier: the test is void")
	}
	if got := found(t, db, "production"); got != "production" {
		t.Errorf("found %q", got)
	}
	execSQL(t, db, `update samekey.deployment set database_oid = 1`)
	if got := found(t, db, "production"); got != "production copy" {
		t.Errorf("in another database: found %q", got)
	}
}

func TestAdoptNeedsTheOwner(t *testing.T) {
	b := setupGrants(t)
	for _, pool := range []schema.DB{b.app, b.worker} {
		_, err := schema.Adopt(t.Context(), pool, "production")
		if sqlstate.Of(err) != "42501" || !strings.Contains(err.Error(), "as the owner of the tables") {
			t.Errorf("Adopt returned %v", err)
		}
	}
	execSQL(t, b.owner, `grant execute on function samekey.adopt to `+pgx.Identifier{b.roles.Worker}.Sanitize())
	if _, err := schema.Adopt(t.Context(), b.worker, "production"); err != nil {
		t.Errorf("with a grant: %v", err)
	}
	if by := one[string](t, b.owner.Pool, `select adopted_by from samekey.deployment`); by != b.roles.Worker {
		t.Errorf("adopted by %q", by)
	}
	if _, err := schema.Adopt(t.Context(), b.owner, "Production"); err == nil || !strings.Contains(err.Error(), "1 to 56 of") {
		t.Errorf("a bad name: %v", err)
	}
	if _, err := schema.Adopt(t.Context(), samekeytest.NewEmptyDB(t), "production"); !errors.Is(err, schema.ErrTooOld) {
		t.Errorf("without tables: %v", err)
	}
}
