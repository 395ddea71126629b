package schema

import (
	"context"
	"fmt"
)

// Finding is a setting of the server, the database or the role under which samekey promises less than it says. See
// [CheckSettings].
type Finding struct {
	Setting string // as Postgres names it, such as "synchronous_commit"
	Value   string // what the session has
	Problem string // what goes wrong with it, and what to do

	// ReadOnly: this session takes no writes at all.
	ReadOnly bool
}

// String is the finding in one line.
func (f Finding) String() string { return fmt.Sprintf("%s is %q: %s", f.Setting, f.Value, f.Problem) }

// settingsSQL reads what the role has, in columns of text: those of every mode of pgx.
const settingsSQL = `select
	pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('synchronous_standby_names'),
	pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
	pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('default_transaction_read_only'),
	pg_catalog.pg_is_in_recovery()::text, pg_catalog.current_setting('client_encoding'), pg_catalog.current_setting('search_path'),
	coalesce((select s from pg_catalog.unnest(pg_catalog.current_schemas(true)) as s where s !~ '^pg_temp' limit 1), '')::text`

// CheckSettings reports the settings of this session under which samekey promises less than it says: none is the good
// case. Call it at the start of a program that writes (processed.Run, outbox.Insert), on its own pool, since settings
// differ by role and database, and log or refuse what it finds. It changes nothing.
//
// A worker needs no such call: it logs the findings at its start, makes the settings of its own connections itself
// (docs/worker.md), and waits for a database that takes no writes.
func CheckSettings(ctx context.Context, db DB) ([]Finding, error) {
	var commit, standbys, fsync, pages, isolation, readOnly, recovering, encoding, path, first string
	err := db.QueryRow(ctx, settingsSQL).Scan(&commit, &standbys, &fsync, &pages, &isolation, &readOnly, &recovering, &encoding, &path, &first)
	if err != nil {
		return nil, fmt.Errorf("schema: read settings: %w", err)
	}
	var found []Finding
	add := func(bad bool, f Finding) {
		if bad {
			found = append(found, f)
		}
	}
	add(recovering == "true", Finding{"in_recovery", recovering,
		"the server is a standby and takes no writes; connect to the primary (target_session_attrs=read-write in the connection string)", true})
	add(readOnly == "on", Finding{"default_transaction_read_only", readOnly,
		"every write fails; an operator or the provider sets it to freeze a database, as for a switch-over or when its disk is full. " +
			"If it is a mistake: alter role ... set default_transaction_read_only = off", true})
	add(commit == "off", Finding{"synchronous_commit", commit,
		"a crash of the server takes back what was committed last, with answers that callers have got already; set it to on for this role", false})
	add(commit == "local" && standbys != "", Finding{"synchronous_commit", commit,
		"commits do not wait for the synchronous standbys: a failover takes back what was committed last; set it to on for this role", false})
	add(fsync == "off", Finding{"fsync", fsync,
		"a crash of the machine can lose or corrupt everything; set it to on, unless the data is worth nothing", false})
	add(pages == "off", Finding{"full_page_writes", pages,
		"a crash of the machine can corrupt the data; set it to on, unless the storage never tears a page", false})
	add(isolation != "read committed", Finding{"default_transaction_isolation", isolation,
		"transactions that collide fail with SQLSTATE 40001; processed.Run runs them again, transactions of your own have to. Set it to read committed, or ask for more where it is needed", false})
	add(encoding != "UTF8", Finding{"client_encoding", encoding,
		"text outside ASCII is changed on its way; set it to UTF8 for this role", false})
	add(first != "pg_catalog", Finding{"search_path", path,
		"it names a schema before pg_catalog, whose functions and operators stand in for those of Postgres; leave pg_catalog out, and it comes first", false})
	return found, nil
}
