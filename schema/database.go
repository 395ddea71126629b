package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrEncoding means that the encoding of the database is not UTF8: keys derived from text would differ between Go and
// SQL, and some payloads could not be stored. Nothing was changed. Create a database with `encoding 'UTF8'` and
// `template template0`, and move the data with pg_dump.
var ErrEncoding = errors.New("schema: the database's encoding is not UTF8")

// ErrSequences means that a sequence starts at 1 although its table has rows. Logical replication copies rows but no
// sequences, so after a switchover numbers would be used twice and workers could not write to the history. Run
// `worker migrate` or call [Migrate], which repairs the sequences. [Check] returns it.
var ErrSequences = errors.New("schema: a sequence starts at 1 although its table has rows, as after a switchover by logical replication")

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

// checkSequences checks whether the sequence of the history was never used although the history has rows. It needs two
// statements: Postgres refuses a statement that names a table to a role that may not read it, whatever the conditions
// are. The application's role may not read the history, and never writes it.
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
	if err == nil && reset { // again: another worker may have written the first row in between
		err = db.QueryRow(ctx, fresh).Scan(&reset)
	}
	if err != nil {
		return fmt.Errorf("schema: read the sequences: %w", err)
	}
	if reset {
		return fmt.Errorf("%w: samekey.outbox_history: run `worker migrate`", ErrSequences)
	}
	return nil
}

// restartSequences sets each sequence that was never used to the highest number in its table. It reads the tables of
// those sequences only.
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
		return fmt.Errorf("schema: repair the sequences: %w", explain(err, conn))
	}
	return nil
}
