package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Roles names the two roles that work with the tables, neither of which owns them. They must exist; one that is left
// empty gets nothing. The same role in both places gets the sum.
type Roles struct {
	// App is the application's: it runs processed.Run and outbox.Insert. It can write an intent but not read one back,
	// and can read and add what is remembered of requests, but change neither. It keeps the endpoints (outbox/endpoints), and
	// cannot read back their secrets.
	App string
	// Worker is the worker's, and that of people who look at intents, redrive and resolve them. It can change the work,
	// but not an intent once written, nor the history but by adding to it, until it prunes both.
	Worker string
}

// enqueues are the functions that write an intent, one for each type of a payload.
const enqueues = `samekey.enqueue(text, text, text, bytea, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text), ` +
	`samekey.enqueue(text, text, text, text, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text), ` +
	`samekey.enqueue(text, text, text, json, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text), ` +
	`samekey.enqueue(text, text, text, jsonb, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text)`

// appGrants: an intent is written by samekey.enqueue, which runs as its owner. The two tables of versions are for Check. The
// small functions read and write nothing: key_lock is for processed; with the others SQL in another language makes an id of
// its own, tells a vendor's record by its delivery key, or finds the key that a log line means. own_scope is for processed.
var appGrants = []string{
	`grant usage on schema samekey to %s`,
	`grant execute on function ` + enqueues + `, samekey.delivery_key, samekey.key_hash, samekey.uuidv7, samekey.key_lock, samekey.ordering_lock, samekey.own_scope, samekey.refuse_scope to %s`,
	`grant select, insert on samekey.processed_events to %s`,
	`grant select (destination, name, url, version, stopped_at, stopped_by, stop_reason, created_at, changed_at), insert, update, delete on samekey.endpoints to %s`,
	`grant select on samekey.migrations, samekey.river_migration to %s`,
}

// workerGrants: an update of a single column is what `for update` asks for, and the column the least harmful one. An Apply
// may call processed.Do in its transaction, and so inserts into processed_events.
var workerGrants = []string{
	`grant usage on schema samekey to %s`,
	`grant execute on function ` + enqueues + `, samekey.delivery_key, samekey.key_hash, samekey.uuidv7, samekey.key_lock, samekey.ordering_lock, samekey.own_scope, samekey.refuse_scope, samekey.worker_class to %s`,
	`grant select, delete on samekey.outbox to %s`,
	`grant select, insert, update, delete on samekey.outbox_queue to %s`,
	`grant select on sequence samekey.outbox_history_id_seq to %s`,
	`grant select, insert, delete on samekey.outbox_history to %s`,
	`grant select, insert, delete on samekey.outbox_sends to %s`,
	`grant select, insert, update on samekey.rate_limits to %s`,
	`grant select, insert, update, delete on samekey.pauses to %s`,
	`grant select, insert, update, delete on samekey.endpoints to %s`,
	`grant select, insert, delete on samekey.processed_events to %s`,
	`grant update (expires_at) on samekey.processed_events to %s`,
	`grant select, insert, update, delete on samekey.workers, samekey.outbox_stats to %s`,
	`grant select on samekey.migrations, samekey.river_migration to %s`,
	`grant select, insert, update, delete on samekey.river_job, samekey.river_leader, samekey.river_queue, samekey.river_notification to %s`,
	`grant usage on sequence samekey.river_job_id_seq, samekey.river_notification_id_seq to %s`,
	`grant execute on function samekey.river_job_state_in_bitmask to %s`,
}

// Grants is the SQL that gives an application's role and the worker's role what they need in the schema, and takes away
// whatever else they had there. Run it in one transaction, as the owner of the tables, after each migration: it says
// the same however often it runs. The names are quoted as they stand; an empty one is left out. Neither may be the owner,
// whose own rights it would take away.
//
// What the application's own tables need it cannot know: grant that to the worker's role where an Apply uses them.
func Grants(app, worker string) string {
	var b strings.Builder
	for _, role := range []string{app, worker} {
		if role != "" {
			name := pgx.Identifier{role}.Sanitize()
			fmt.Fprintf(&b, "revoke all on schema samekey from %[1]s;\n"+
				"revoke all on all tables in schema samekey from %[1]s;\n"+
				"revoke all on all sequences in schema samekey from %[1]s;\n"+
				"revoke all on all functions in schema samekey from %[1]s;\n", name)
		}
	}
	write := func(role string, grants []string) {
		for _, grant := range grants {
			if role != "" {
				fmt.Fprintf(&b, grant+";\n", pgx.Identifier{role}.Sanitize())
			}
		}
	}
	write(app, appGrants)
	write(worker, workerGrants)
	return b.String()
}

// Grant runs [Grants] in a transaction: both roles have exactly what they need afterwards, or nothing changed. The pool's
// role must own the tables, and neither of the two may. It may run in several processes at once, and any number of times, also while they work.
func Grant(ctx context.Context, pool *pgxpool.Pool, roles Roles) error {
	if roles.App == "" && roles.Worker == "" {
		return errors.New("schema: Grant: both Roles.App and Roles.Worker are empty: name at least one")
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
			return err
		}
		var owns *string
		err := tx.QueryRow(ctx, `select min(tableowner) from pg_tables where schemaname = 'samekey' and tableowner = any ($1)`,
			[]string{roles.App, roles.Worker}).Scan(&owns)
		if err != nil {
			return err
		}
		if owns != nil {
			return fmt.Errorf("role %q owns tables of the schema and would lose its own rights: name another", *owns)
		}
		_, err = tx.Exec(ctx, Grants(roles.App, roles.Worker))
		return err
	})
	if err != nil {
		return fmt.Errorf("schema: grant: %w", err)
	}
	return nil
}
