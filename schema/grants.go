package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Roles names the roles that use the tables. None of them owns the tables, and each must exist. An empty name gets no
// grants. If one role has several names, it gets the grants of all of them.
//
// A login can be one of these roles or a member of some. The two-person rule compares logins: the person who
// approves an intent connects with another login than the one that wrote or redrove it.
type Roles struct {
	// App is the application's role: it runs processed.Run, outbox.Insert and outbox.Await. It can write intents but not
	// read them, except for the state of one whose key and id it knows. It can read and add processed records but not
	// change them. It manages the endpoints (outbox/endpoints) but cannot read their secrets.
	App string
	// Worker is the role of the worker. It can change the queue. It cannot change an intent, and can only add a worker's
	// events to the history, until it prunes both. It makes no person's decision.
	Worker string
	// Operator is the role of people and programs that look at intents and decide: redrive, resolve, cancel, reject,
	// pause, resume, and manage endpoints. It reads everything but the secrets of endpoints, and changes nothing by any
	// other way than these functions.
	Operator string
	// Approver is the role of people and programs that approve irreversible effects. It reads what Operator reads.
	// Approver does not include Operator.
	Approver string
}

// names returns the names in a fixed order.
func (r Roles) names() []string { return []string{r.App, r.Worker, r.Operator, r.Approver} }

// enqueues are the functions that write an intent, one per type of payload.
const enqueues = `samekey.enqueue(text, text, text, bytea, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text, text, boolean), ` +
	`samekey.enqueue(text, text, text, text, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text, text), ` +
	`samekey.enqueue(text, text, text, json, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text, text), ` +
	`samekey.enqueue(text, text, text, jsonb, text, text, jsonb, text, timestamptz, timestamptz, text, uuid, boolean, text, text), samekey.enqueue_many`

// stepFunctions are what processed.Steps calls.
const stepFunctions = `samekey.operation_start, samekey.operation_release, samekey.operation_complete, samekey.step_lock, samekey.step_put, ` +
	`samekey.call_mark, samekey.call_put, samekey.call_end`

// appGrants: samekey.enqueue and samekey.intent_states run as their owner, so the role needs no right on outbox. Check
// reads the two tables of versions. The other functions read and write no table: processed uses key_lock and own_scope;
// SQL in another language creates ids, derives delivery keys and finds the key of a log line with the rest.
var appGrants = []string{
	`grant usage on schema samekey to %s`,
	`grant execute on function ` + enqueues + `, samekey.delivery_key, samekey.key_hash, samekey.text_hash, samekey.uuidv7, samekey.key_lock, samekey.ordering_lock, samekey.own_scope, samekey.refuse_scope to %s`,
	`grant execute on function samekey.intent_states to %s`, // of outbox.Await
	`grant select, insert on samekey.processed_events to %s`,
	`grant execute on function ` + stepFunctions + ` to %s`,
	`grant select on samekey.operation_steps to %s`,
	endpointsWithoutSecrets,
	`grant select on samekey.endpoint_history to %s`,
	`grant execute on function ` + endpointActs + `, samekey.endpoint_test, samekey.endpoint_deliveries to %s`,
	`grant select on samekey.migrations, samekey.river_migration to %s`,
}

const endpointsWithoutSecrets = `grant select (destination, name, url, version, failing_since, stopped_at, stopped_by, stop_reason, created_at, changed_at, changed_by) on samekey.endpoints to %s`

const endpointActs = `samekey.endpoint_put, samekey.endpoint_stop, samekey.endpoint_start, samekey.endpoint_delete`

// workerGrants: `for update` needs UPDATE on one column, so some grants name the most harmless column. An Apply may
// call processed.Do in its transaction, which inserts into processed_events. The columns of outbox_history leave out
// those of a person's act, and those of outbox_queue what an insert does not need, so the worker cannot write an approval
// (for updates, see samekey.refuse_approval). The columns of pauses leave out a person's login: the worker copies River's
// pauses and ends what has expired.
var workerGrants = []string{
	`grant usage on schema samekey to %s`,
	`grant execute on function ` + enqueues + `, samekey.delivery_key, samekey.key_hash, samekey.text_hash, samekey.uuidv7, samekey.key_lock, samekey.ordering_lock, samekey.own_scope, samekey.refuse_scope, samekey.worker_class, samekey.hold_successor, samekey.keeps_content, samekey.archive_batch, samekey.archive_bytes, samekey.archive_json to %s`,
	`grant select, delete on samekey.outbox to %s`,
	`grant select, insert (id, action, status, due_at, first_sent_at, last_code, attempt), update, delete on samekey.outbox_queue to %s`,
	`grant select on sequence samekey.outbox_history_id_seq to %s`,
	`grant select, insert (intent_id, event, outcome, final_status, attempt, worker, started_at, code, error, response_type, response, reference, endpoint, key_window_until), delete on samekey.outbox_history to %s`,
	`grant select, insert, delete on samekey.outbox_sends to %s`,
	`grant select, insert, update, delete on samekey.outbox_attention to %s`,
	`grant select, insert, update on samekey.actions to %s`,
	`grant execute on function samekey.note_attention to %s`,
	`grant select, insert, update on samekey.rate_limits to %s`,
	`grant select, insert (destination, paused_at, paused_by, reason, river_queue_created_at), update (ended_at, ended_by, end_reason, river_queue_created_at), delete on samekey.pauses to %s`,
	`grant select, update (failing_since, stopped_at, stop_reason, changed_at, changed_by) on samekey.endpoints to %s`,
	`grant select (at), insert (destination, name, event, reason), delete on samekey.endpoint_history to %s`,
	`grant select, insert, delete on samekey.processed_events to %s`,
	`grant update (expires_at) on samekey.processed_events to %s`,
	`grant select, delete on samekey.operation_steps to %s`,
	`grant select (idem_key, scope, lease_until) on samekey.operations to %s`,
	`grant select, insert, update, delete on samekey.workers, samekey.outbox_stats to %s`,
	`grant select on samekey.deployment, samekey.migrations, samekey.river_migration to %s`,
	`grant execute on function samekey.check_deployment, samekey.can_sign to %s`,
	`grant execute on function samekey.fair_walk, samekey.fair_pick to %s`,
	`grant select, insert, update, delete on samekey.river_job, samekey.river_leader, samekey.river_queue, samekey.river_notification to %s`,
	`grant usage on sequence samekey.river_job_id_seq, samekey.river_notification_id_seq to %s`,
	`grant execute on function samekey.river_job_state_in_bitmask to %s`,
}

// readGrants are the rights of people who look: everything but the secrets of endpoints.
var readGrants = []string{
	`grant usage on schema samekey to %s`,
	`grant execute on function samekey.delivery_key, samekey.key_hash, samekey.text_hash, samekey.cause_groups, samekey.endpoint_deliveries to %s`,
	`grant select on samekey.intents, samekey.timeline, samekey.needs_attention to %s`,
	`grant select on samekey.outbox, samekey.outbox_queue, samekey.outbox_history, samekey.outbox_sends, samekey.processed_events to %s`,
	`grant select on samekey.operation_steps to %s`,
	`grant select (idem_key, scope, lease_until, attempts, started_at) on samekey.operations to %s`,
	endpointsWithoutSecrets,
	`grant select on samekey.endpoint_history to %s`,
	`grant select on samekey.outbox_attention, samekey.actions, samekey.pauses, samekey.rate_limits, samekey.workers, samekey.deployment, samekey.outbox_stats to %s`,
	`grant select on samekey.migrations, samekey.river_migration, samekey.river_job, samekey.river_leader, samekey.river_queue to %s`,
}

var operatorGrants = []string{
	`grant execute on function samekey.redrive, samekey.resolve, samekey.cancel, samekey.reject, samekey.replace, samekey.pause, samekey.resume to %s`,
	`grant execute on function samekey.redrive_all, samekey.resolve_all, samekey.cancel_all, samekey.replace_all, samekey.bulk_plan to %s`,
	`grant execute on function samekey.resolve_step, samekey.abandon_operation to %s`,
	`grant execute on function samekey.erase_subject, samekey.erase_scope, samekey.erase_plan to %s`,
	`grant execute on function ` + endpointActs + ` to %s`,
}

var approverGrants = []string{
	`grant execute on function samekey.approve, samekey.replace, samekey.replace_payload to %s`,
	`grant execute on function samekey.replace_all, samekey.replace_payload_all, samekey.bulk_plan to %s`,
}

// Grants returns the SQL that gives the roles what they need in the schema, and revokes everything else they had there.
// Run it in one transaction, as the owner of the tables, after each migration. It may run any number of times. It quotes
// the names, and skips an empty one. None of the roles may be the owner, who would lose its own rights.
//
// It does not know the application's own tables: if an Apply uses them, grant the worker's role access yourself.
func Grants(roles Roles) string {
	var b strings.Builder
	for _, role := range roles.names() {
		if role != "" {
			name := pgx.Identifier{role}.Sanitize()
			fmt.Fprintf(&b, "revoke all on schema samekey from %[1]s;\n"+
				"revoke all on all tables in schema samekey from %[1]s;\n"+
				"revoke all on all sequences in schema samekey from %[1]s;\n"+
				"revoke all on all functions in schema samekey from %[1]s;\n", name)
		}
	}
	write := func(role string, lists ...[]string) {
		for _, grant := range slices.Concat(lists...) {
			if role != "" {
				fmt.Fprintf(&b, grant+";\n", pgx.Identifier{role}.Sanitize())
			}
		}
	}
	write(roles.App, appGrants)
	write(roles.Worker, workerGrants)
	write(roles.Operator, readGrants, operatorGrants)
	write(roles.Approver, readGrants, approverGrants)
	return b.String()
}

// Grant runs the SQL of [Grants] in one transaction. The role of the pool must own the tables, and none of the roles
// may. It may run in several processes at once, any number of times, and while the roles are in use.
func Grant(ctx context.Context, pool *pgxpool.Pool, roles Roles) error {
	if roles == (Roles{}) {
		return errors.New("schema: Grant: all Roles are empty: set at least one")
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
			return err
		}
		var owns *string
		err := tx.QueryRow(ctx, `select min(tableowner) from pg_tables where schemaname = 'samekey' and tableowner = any ($1)`,
			roles.names()).Scan(&owns)
		if err != nil {
			return err
		}
		if owns != nil {
			return fmt.Errorf("role %q owns tables of the schema and would lose its own rights: use another role", *owns)
		}
		_, err = tx.Exec(ctx, Grants(roles))
		return err
	})
	if err != nil {
		return fmt.Errorf("schema: grant: %w", err)
	}
	return nil
}
