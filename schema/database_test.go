package schema_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

func TestRefuseEncodingOtherThanUTF8(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	for _, encoding := range []string{"SQL_ASCII", "LATIN1"} {
		name := pgx.Identifier{db.Config().ConnConfig.Database + "_" + strings.ToLower(encoding)}.Sanitize()
		execSQL(t, db, `create database `+name+` template template0 encoding '`+encoding+`' lc_collate 'C' lc_ctype 'C'`)
		config := db.Config()
		config.ConnConfig.Database = strings.Trim(name, `"`)
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			pool.Close()
			if _, err := db.Exec(context.Background(), `drop database `+name); err != nil {
				t.Error(err)
			}
		})
		for call, err := range map[string]error{"Migrate": schema.Migrate(t.Context(), pool), "Check": schema.Check(t.Context(), pool)} {
			if !errors.Is(err, schema.ErrEncoding) || !strings.Contains(err.Error(), encoding) {
				t.Errorf("%s of %s: %v, want ErrEncoding that names it", call, encoding, err)
			}
		}
		if there := one[bool](t, pool, `select to_regnamespace('samekey') is not null`); there {
			t.Errorf("%s: a schema was made", encoding)
		}
	}
}

// Logical replication copies rows but no sequences.
func TestRepairSequencesAfterLogicalReplication(t *testing.T) {
	b := setupGrants(t)
	execSQL(t, b.owner, `insert into samekey.outbox_history (intent_id, event) select gen_random_uuid(), 'restored' from generate_series(1, 50)`)
	execSQL(t, b.owner, `insert into samekey.river_job (kind, args, max_attempts) select 'old', '{}', 1 from generate_series(1, 5)`)
	execSQL(t, b.owner, `insert into samekey.workers (id, name, actions) values (1, 'old', '{}')`)
	if err := schema.Check(t.Context(), b.worker); err != nil {
		t.Fatal(err)
	}
	execSQL(t, b.owner, `do $$ declare s regclass; begin
		for s in select oid from pg_class where relkind = 'S' and relnamespace = 'samekey'::regnamespace loop perform setval(s, 1, false); end loop; end $$`)
	for name, pool := range map[string]*pgxpool.Pool{"owner": b.owner.Pool, "worker": b.worker} {
		if err := schema.Check(t.Context(), pool); !errors.Is(err, schema.ErrSequences) || !strings.Contains(err.Error(), "worker migrate") {
			t.Errorf("Check as %s: %v, want ErrSequences that says what to run", name, err)
		}
	}
	// The application's role cannot read the history, and its Check succeeds.
	if err := schema.Check(t.Context(), b.app); err != nil {
		t.Errorf("Check as the application: %v", err)
	}
	for range 2 {
		if err := schema.Migrate(t.Context(), b.owner.Pool); err != nil {
			t.Fatal(err)
		}
	}
	if err := schema.Check(t.Context(), b.worker); err != nil {
		t.Errorf("after Migrate: %v", err)
	}
	execSQL(t, b.worker, `insert into samekey.workers (id, name, actions) values (2, 'new', '{}')`)
	execSQL(t, b.worker, `insert into samekey.river_job (kind, args, max_attempts) values ('new', '{}', 1)`)
	execSQL(t, b.worker, `insert into samekey.outbox_history (intent_id, event) values (gen_random_uuid(), 'restored')`)
	if id := one[int](t, b.owner.Pool, `select max(id)::int from samekey.outbox_history`); id != 51 {
		t.Errorf("the next event has number %d, want 51", id)
	}
	// In a new database there is nothing to repair: the sequences start at 1.
	if called := one[int](t, samekeytest.NewDB(t).Pool, `select count(last_value)::int from pg_sequences where schemaname = 'samekey'`); called != 0 {
		t.Errorf("%d sequences of a fresh database were set", called)
	}
}

// samekey.outbox has no CHECKs, since samekey.enqueue validates every row. So no role may insert in another way.
func TestOnlyEnqueueInsertsIntents(t *testing.T) {
	b := setupGrants(t)
	granted := one[*string](t, b.owner.Pool, `
		select string_agg(distinct a.grantee::regrole || ' ' || a.privilege_type, ', ')
		from (select relacl as acl, relowner as owner from pg_class where oid = 'samekey.outbox'::regclass
		      union all select attacl, (select relowner from pg_class where oid = 'samekey.outbox'::regclass)
		      from pg_attribute where attrelid = 'samekey.outbox'::regclass) c, aclexplode(c.acl) a
		where a.grantee <> c.owner and a.privilege_type not in ('SELECT', 'DELETE')`)
	if granted != nil {
		t.Errorf("granted on samekey.outbox: %s", *granted)
	}
	if n := one[int](t, b.owner.Pool, `select count(*)::int from pg_proc p where pronamespace = 'samekey'::regnamespace
		and prosecdef and proname not in ('enqueue', 'enqueue_many') and prosrc ~ 'insert into samekey.outbox\M'`); n != 0 {
		t.Errorf("%d other functions write intents as their owner", n)
	}
	for _, sql := range []string{
		`insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at) values (gen_random_uuid(), '/', '', '', gen_random_uuid(), '', '', now())`,
		`select samekey.refuse_intent(null, null, null, null, null, null, null, null, null, null, null, null, null, null)`,
		`select samekey.headers_refusal('{}')`,
	} {
		for _, pool := range []*pgxpool.Pool{b.app, b.worker} {
			if err := dryRun(t, pool, sql); !isDenied(err) {
				t.Errorf("%s: as %s: %v, want it denied", sql, pool.Config().ConnConfig.User, err)
			}
		}
	}
	// Both roles may call the function for each type of payload.
	for _, pool := range []*pgxpool.Pool{b.app, b.worker} {
		for _, kind := range []string{"bytea", "text", "json", "jsonb"} {
			if err := dryRun(t, pool, `select samekey.enqueue('s', 'k', 'a', '{}'::`+kind+`)`); err != nil {
				t.Errorf("%s: as %s: %v", kind, pool.Config().ConnConfig.User, err)
			}
		}
	}
}
