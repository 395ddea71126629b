package schema_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// runPlain does what another migration tool does: it runs each text unchanged, in its own transaction.
func runPlain(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	all, err := schema.All()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range all {
		if names[m.Name] {
			t.Errorf("two migrations are named %s", m.Name)
		}
		names[m.Name] = true
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), m.SQL)
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
	}
}

func TestPlainSQLCreatesTheSameSchema(t *testing.T) {
	byMigrate, byHand := samekeytest.NewDB(t), samekeytest.NewEmptyDB(t)
	runPlain(t, byHand.Pool)
	if want, got := dump(t, byMigrate.Pool, schema.Name), dump(t, byHand.Pool, schema.Name); got != want {
		t.Fatalf("another schema:\n%s", firstDifference(want, got))
	}
	if want, got := riverDump(t, byMigrate.Pool), riverDump(t, byHand.Pool); got != want {
		t.Fatalf("other tables of River's:\n%s", firstDifference(want, got))
	}
	if err := schema.Check(t.Context(), byHand); err != nil {
		t.Fatal(err)
	}

	before := catalogVersion(t, byHand.Pool)
	if err := schema.Migrate(t.Context(), byHand.Pool); err != nil {
		t.Fatal(err)
	}
	if after := catalogVersion(t, byHand.Pool); after != before {
		t.Errorf("Migrate changed a schema made from plain SQL:\n%s", firstDifference(before, after))
	}
}

func TestPlainSQLRecordsTheSameVersions(t *testing.T) {
	byMigrate, byHand := samekeytest.NewDB(t), samekeytest.NewEmptyDB(t)
	runPlain(t, byHand.Pool)
	if want, got := recorded(t, byMigrate.Pool), recorded(t, byHand.Pool); got != want {
		t.Errorf("migrate recorded %s, the plain SQL %s", want, got)
	}
}
