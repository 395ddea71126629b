package schema

import (
	"context"
	"fmt"
)

// Finding is a setting of the server, the database or the role that weakens a guarantee of samekey. See
// [CheckSettings].
type Finding struct {
	Setting string // the name in Postgres, such as "synchronous_commit"
	Value   string // its value in this session
	Problem string // what can go wrong, and what to do

	// ReadOnly means that this session cannot write at all.
	ReadOnly bool
}

// String returns the finding in one line.
func (f Finding) String() string { return fmt.Sprintf("%s is %q: %s", f.Setting, f.Value, f.Problem) }

// settingsSQL reads the settings as text, which works in every mode of pgx.
const settingsSQL = `select
	pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('synchronous_standby_names'),
	pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
	pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('default_transaction_read_only'),
	pg_catalog.pg_is_in_recovery()::text, pg_catalog.current_setting('client_encoding'), pg_catalog.current_setting('search_path'),
	coalesce((select s from pg_catalog.unnest(pg_catalog.current_schemas(true)) as s where s !~ '^pg_temp' limit 1), '')::text`

// CheckSettings returns a finding for each setting of this session that weakens a guarantee of samekey, and none if all
// is well. It changes nothing. Call it when a program that writes (processed.Run, outbox.Insert) starts, on the pool
// that writes, since settings differ by role and database. Log the findings, or refuse to start.
//
// A worker does not need this call. It logs the findings at its start, sets what its own connections need
// (docs/worker.md), and waits if the database is read-only.
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
		"the server is a read-only standby; connect to the primary (target_session_attrs=read-write in the connection string)", true})
	add(readOnly == "on", Finding{"default_transaction_read_only", readOnly,
		"every write fails. An operator or the provider sets this for a switchover or when the disk is full. " +
			"If it is a mistake: alter role ... set default_transaction_read_only = off", true})
	add(commit == "off", Finding{"synchronous_commit", commit,
		"a crash of the server loses the last commits, including responses that callers already have; set it to on for this role", false})
	add(commit == "local" && standbys != "", Finding{"synchronous_commit", commit,
		"commits do not wait for the synchronous standbys, so a failover loses the last commits; set it to on for this role", false})
	add(fsync == "off", Finding{"fsync", fsync,
		"a crash of the machine can lose or corrupt all data; set it to on, except for throwaway data", false})
	add(pages == "off", Finding{"full_page_writes", pages,
		"a crash of the machine can corrupt data; set it to on, unless the storage writes whole pages atomically", false})
	add(isolation != "read committed", Finding{"default_transaction_isolation", isolation,
		"concurrent transactions fail with SQLSTATE 40001. processed.Run retries them; your own transactions must do so too. Set it to read committed, and request a higher level where you need it", false})
	add(encoding != "UTF8", Finding{"client_encoding", encoding,
		"text outside ASCII is corrupted in transit; set it to UTF8 for this role", false})
	add(first != "pg_catalog", Finding{"search_path", path,
		"a schema before pg_catalog can replace functions and operators of Postgres; remove pg_catalog from the path, then it comes first", false})
	return found, nil
}
