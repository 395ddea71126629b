package outbox_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// What an erasure does with a column, or why it leaves the value.
const (
	dropped  = "dropped"
	named    = "a key, scope or part, which must not contain personal data: without it the request would run again"
	hashed   = "a hash: a repetition with other content is a conflict"
	worded   = "a word of samekey's, or a name that the developer chose"
	coded    = "a code of the vendor's or of samekey's"
	decided  = "who decided what and why: docs/retention.md says not to write personal data of customers there"
	login    = "a login of the database"
	typed    = "a media type"
	queued   = "the row is gone when the intent is finished, and an unfinished one refuses the erasure"
	receiver = "about a receiver of webhooks, and not about a subject: endpoints.Delete"
	running  = "the row is gone when the operation is completed, and an open one refuses the erasure"
	operated = "about the operation of the workers"
)

// columnsOfErasure has each column that can hold text. A new column needs a row here, and a decision.
var columnsOfErasure = map[string]string{
	"outbox.scope": named, "outbox.idem_key": named, "outbox.part": named, "outbox.action": worded,
	"outbox.payload": dropped, "outbox.headers": dropped, "outbox.ordering_key": dropped, "outbox.requested_by": dropped,
	"outbox.subject": dropped, "outbox.trace_context": dropped, "outbox.content_type": typed, "outbox.written_by": login,

	"outbox_queue.action": queued, "outbox_queue.status": queued, "outbox_queue.ordering_key": queued, "outbox_queue.sent_to": queued,
	"outbox_queue.last_code": queued, "outbox_queue.cause": queued, "outbox_queue.share": queued,

	"outbox_history.event": worded, "outbox_history.outcome": worded, "outbox_history.final_status": worded, "outbox_history.code": coded,
	"outbox_history.error": dropped, "outbox_history.response_type": dropped, "outbox_history.response": dropped, "outbox_history.reference": dropped,
	"outbox_history.endpoint": receiver, "outbox_history.actor": decided, "outbox_history.reason": decided, "outbox_history.db_user": login,

	"outbox_sends.carried_key": "the delivery key, a hash: it finds the call at the vendor",
	"outbox_sends.request":     dropped, "outbox_sends.request_type": dropped, "outbox_sends.message_id": dropped,

	"outbox_attention.action": worded, "outbox_attention.status": worded, "outbox_attention.event": worded, "outbox_attention.code": coded,
	"outbox_attention.endpoint": receiver, "outbox_attention.actor": decided,
	"outbox_attention.error": dropped, "outbox_attention.reason": dropped, "outbox_attention.last_error": dropped,

	"processed_events.scope": named, "processed_events.idem_key": named, "processed_events.payload_hash": hashed,
	"processed_events.subject": dropped, "processed_events.response_headers": dropped, "processed_events.response_body": dropped,

	"operations.scope": running, "operations.idem_key": running,
	"operation_steps.scope": named, "operation_steps.idem_key": named, "operation_steps.name": worded, "operation_steps.status": worded,
	"operation_steps.result": dropped, "operation_steps.error": dropped,
	"operation_steps.resolved_by": decided, "operation_steps.resolved_reason": decided, "operation_steps.resolved_db_user": login,

	"endpoints.destination": receiver, "endpoints.name": receiver, "endpoints.url": receiver, "endpoints.secrets": receiver,
	"endpoints.headers": receiver, "endpoints.stopped_by": receiver, "endpoints.stop_reason": receiver, "endpoints.changed_by": login,
	"endpoint_history.destination": receiver, "endpoint_history.name": receiver, "endpoint_history.event": worded,
	"endpoint_history.actor": decided, "endpoint_history.reason": decided, "endpoint_history.db_user": login,

	"pauses.destination": operated, "pauses.action": operated, "pauses.paused_by": decided, "pauses.reason": decided, "pauses.paused_db_user": login,
	"pauses.ended_by": decided, "pauses.end_reason": decided, "pauses.ended_db_user": login,
	"actions.action": operated, "actions.fair_by": operated, "outbox_stats.action": operated, "outbox_stats.status": operated,
	"rate_limits.destination": operated, "workers.name": operated, "workers.actions": operated,
	"deployment.name": operated, "deployment.adopted_by": login, "migrations.name": operated,
}

// River's tables are left out: their jobs name destinations and tasks, and no intent.
func TestErasureKnowsEachColumn(t *testing.T) {
	on := samekeytest.NewDB(t)
	rows, err := on.Query(t.Context(), `
		select c.relname || '.' || a.attname
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		where c.relnamespace = 'samekey'::regnamespace and c.relkind in ('r', 'p') and c.relname !~ '^river_'
		  and a.atttypid <> all ('{uuid,smallint,integer,bigint,float8,boolean,timestamptz,oid}'::regtype[])`)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range columns {
		if columnsOfErasure[column] == "" {
			t.Errorf("%s can hold personal data: decide what an erasure does with it", column)
		}
	}
	for column := range maps.Keys(columnsOfErasure) {
		if !slices.Contains(columns, column) {
			t.Errorf("%s does not exist", column)
		}
	}

	finish(t, on, answered(t, on, "k1", "customer/"+secret))
	if err := stepped(t, on, "k2", "customer/"+secret, nil); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`update samekey.outbox set trace_context = $1`,
		`update samekey.outbox_history set response_type = $1`,
		`update samekey.outbox_sends set request_type = $1`,
		`update samekey.processed_events set response_headers = convert_to($1, 'UTF8')`,
		`update samekey.operation_steps set error = $1`,
	} {
		dbtest.Exec(t, on, sql, secret)
	}
	holding := func() (held []string) {
		for column, what := range columnsOfErasure {
			table, name, _ := strings.Cut(column, ".")
			if what == dropped && count(t, on, fmt.Sprintf(`select count(*) from samekey.%s where strpos(%s::text, $1) > 0 or strpos(%[2]s::text, $2) > 0`, table, name),
				secret, hex.EncodeToString([]byte(secret))) > 0 {
				held = append(held, column)
			}
		}
		return held
	}
	before := holding()
	for column, what := range columnsOfErasure {
		if what == dropped && !slices.Contains(before, column) {
			t.Errorf("%s should be dropped, but this test does not fill it", column)
		}
	}
	mustErase(t, on, outbox.Content{Subject: "customer/" + secret}, outbox.Erased{Intents: 1, Records: 2})
	if left := holding(); len(left) > 0 {
		t.Errorf("the secret is still in %v", left)
	}
}
