package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrEncoding is returned where the database's encoding is not UTF8. Keys that are derived from text would differ between
// Go and SQL, and payloads could not be kept. Nothing was changed. Create the database with `encoding 'UTF8'` (and
// `template template0`), and move the data there with pg_dump.
var ErrEncoding = errors.New("schema: the database's encoding is not UTF8")

// ErrSequences is returned by [Check] where a sequence starts at 1 although its table has rows: logical replication copies
// rows and no sequences, so that after a switchover numbers are given out twice, and workers cannot record what happened.
// Nothing was changed. Run `worker migrate` or call [Migrate], which sets the sequences behind the rows.
var ErrSequences = errors.New("schema: a sequence starts again although its table has rows, as after a switchover by logical replication")

func checkEncoding(ctx context.Context, db DB) error {
	var encoding string
	if err := db.QueryRow(ctx, `select current_setting('server_encoding')`).Scan(&encoding); err != nil {
		return fmt.Errorf("schema: read the database's encoding: %w", err)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%w: it is %s: create the database with encoding 'UTF8'", ErrEncoding, encoding)
	}
	return nil
}

// checkSequences asks whether the history's numbers were never drawn although it has rows. It needs two statements: one
// that names a table is refused to a role that may not read it, whatever its conditions are. The application's role may
// not, and writes no history.
func checkSequences(ctx context.Context, db DB) error {
	const (
		fresh = `select coalesce((select last_value is null from pg_catalog.pg_sequences
			where schemaname = 'samekey' and sequencename = 'outbox_history_id_seq'
			  and has_sequence_privilege('samekey.outbox_history_id_seq', 'select') and has_table_privilege('samekey.outbox_history', 'select')), false)`
		used = `select exists (select from samekey.outbox_history)`
	)
	var reset bool
	err := db.QueryRow(ctx, fresh).Scan(&reset)
	if err == nil && reset {
		err = db.QueryRow(ctx, used).Scan(&reset)
	}
	if err != nil {
		return fmt.Errorf("schema: read the sequences: %w", err)
	}
	if reset {
		return fmt.Errorf("%w: samekey.outbox_history: run `worker migrate`", ErrSequences)
	}
	return nil
}

// restartSequences sets each sequence of the schema that was never drawn from behind the rows of its table. It reads
// tables only where that is so.
const restartSequences = `
do $$
declare
    s record;
    v_last bigint;
begin
    for s in
        select format('samekey.%I', q.relname) as name, format('samekey.%I', t.relname) as table_name, a.attname as column_name
        from pg_catalog.pg_class q
        join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_class'::regclass and d.objid = q.oid and d.refclassid = d.classid and d.deptype in ('a', 'i')
        join pg_catalog.pg_class t on t.oid = d.refobjid
        join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum = d.refobjsubid
        where q.relnamespace = to_regnamespace('samekey') and q.relkind = 'S'
          and case when q.relkind = 'S' and pg_catalog.pg_has_role(q.relowner, 'usage') then pg_catalog.pg_sequence_last_value(q.oid) is null end
    loop
        execute format('select max(%I)::bigint from %s', s.column_name, s.table_name) into v_last;
        if v_last > 0 then
            perform pg_catalog.setval(s.name::regclass, v_last);
        end if;
    end loop;
end $$`

func repairSequences(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, restartSequences); err != nil {
		return fmt.Errorf("schema: set the sequences behind their rows: %w", explain(err, conn))
	}
	return nil
}
