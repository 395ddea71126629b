-- The schema that the migrations create, for reading. `go test ./schema -update` writes this file. Do not run it.

table samekey.actions
    action text collate "C" not null
    attention boolean not null default false
    attention_seen_at timestamp with time zone
    fair_by text collate "C"
    changed_at timestamp with time zone not null default clock_timestamp()
    constraint actions_pkey PRIMARY KEY (action)
    constraint actions_action_name CHECK ((action ~ '^[a-z][a-z0-9_.-]{0,62}$'::text))
    constraint actions_fair_by CHECK ((fair_by = ANY (ARRAY['scope'::text, 'part'::text])))
    CREATE TRIGGER share_of_replace AFTER INSERT OR DELETE OR UPDATE OF fair_by ON samekey.actions FOR EACH STATEMENT EXECUTE FUNCTION samekey.share_of_replace()

table samekey.deployment
    id uuid not null default gen_random_uuid()
    name text collate "C"
    system_identifier bigint
    database_oid oid not null
    test boolean not null default false
    adopted_at timestamp with time zone not null default clock_timestamp()
    adopted_by text not null default SESSION_USER
    constraint deployment_pkey PRIMARY KEY (id)
    constraint deployment_name CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,55}$'::text))

table samekey.endpoint_history
    id bigint not null generated always as identity
    destination text collate "C" not null
    name text collate "C" not null
    at timestamp with time zone not null default clock_timestamp()
    event text collate "C" not null
    actor text
    reason text not null
    db_user text not null default SESSION_USER
    constraint endpoint_history_pkey PRIMARY KEY (destination, name, id)
    constraint endpoint_history_actor_length CHECK (((octet_length(actor) >= 1) AND (octet_length(actor) <= 255)))
    constraint endpoint_history_event CHECK ((event = ANY (ARRAY['created'::text, 'changed'::text, 'stopped'::text, 'started'::text, 'tested'::text, 'deleted'::text])))
    constraint endpoint_history_reason_length CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 4096)))

table samekey.endpoints
    destination text collate "C" not null
    name text collate "C" not null
    url text not null
    secrets text[] not null default '{}'::text[]
    headers jsonb not null default '{}'::jsonb
    version uuid not null default gen_random_uuid()
    failing_since timestamp with time zone
    stopped_at timestamp with time zone
    stopped_by text
    stop_reason text
    created_at timestamp with time zone not null default clock_timestamp()
    changed_at timestamp with time zone not null default clock_timestamp()
    changed_by text not null default SESSION_USER
    constraint endpoints_pkey PRIMARY KEY (destination, name)
    constraint endpoints_destination_name CHECK ((destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'::text))
    constraint endpoints_headers CHECK (((jsonb_typeof(headers) = 'object'::text) AND (octet_length((headers)::text) <= 65536) AND (NOT jsonb_path_exists(headers, '$.*?(@.type() != "string")'::jsonpath))))
    constraint endpoints_name_length CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
    constraint endpoints_secrets CHECK (((cardinality(secrets) <= 8) AND (octet_length(array_to_string(secrets, ''::text)) <= 4096) AND (array_position(secrets, NULL::text) IS NULL)))
    constraint endpoints_secrets_form CHECK (samekey.can_sign(secrets))
    constraint endpoints_stop_reason_length CHECK (((octet_length(stop_reason) >= 1) AND (octet_length(stop_reason) <= 4096)))
    constraint endpoints_stopped CHECK ((((stopped_at IS NULL) = (stop_reason IS NULL)) AND ((stopped_at IS NOT NULL) OR (stopped_by IS NULL))))
    constraint endpoints_stopped_by_length CHECK (((octet_length(stopped_by) >= 1) AND (octet_length(stopped_by) <= 255)))
    constraint endpoints_url CHECK (((octet_length(url) <= 2048) AND (url ~ '^https?://'::text)))

table samekey.migrations
    version integer not null
    name text not null
    applied_at timestamp with time zone not null default clock_timestamp()
    constraint migrations_pkey PRIMARY KEY (version)
    constraint migrations_version_check CHECK ((version > 0))

table samekey.operation_steps
    idem_key text collate "C" not null
    scope text collate "C" not null
    "position" smallint not null
    name text collate "C" not null
    status text collate "C" not null
    failed boolean not null default false
    code integer
    result bytea
    delivery_key uuid
    sends integer
    first_sent_at timestamp with time zone
    key_window_until timestamp with time zone
    sent_at timestamp with time zone
    ended_at timestamp with time zone
    absent_at timestamp with time zone
    resent boolean not null default false
    error text
    resolved_at timestamp with time zone
    resolved_by text
    resolved_db_user text collate "C"
    resolved_reason text
    created_at timestamp with time zone not null default clock_timestamp()
    finished_at timestamp with time zone
    constraint operation_steps_pkey PRIMARY KEY (idem_key, scope, "position")
    constraint operation_steps_call CHECK (((status = 'done'::text) OR (delivery_key IS NOT NULL)))
    constraint operation_steps_done CHECK (((status = 'done'::text) = (finished_at IS NOT NULL)))
    constraint operation_steps_length CHECK (((COALESCE(octet_length(result), 0) <= 1048576) AND (COALESCE(octet_length(error), 0) <= 4096) AND ((COALESCE(octet_length(resolved_by), 1) >= 1) AND (COALESCE(octet_length(resolved_by), 1) <= 255)) AND ((COALESCE(octet_length(resolved_reason), 1) >= 1) AND (COALESCE(octet_length(resolved_reason), 1) <= 4096))))
    constraint operation_steps_name CHECK ((name ~ '^[a-z][a-z0-9_.-]{0,62}$'::text))
    constraint operation_steps_once UNIQUE (idem_key, scope, name)
    constraint operation_steps_position CHECK ((("position" >= 1) AND ("position" <= 1002)))
    constraint operation_steps_sends CHECK (((sends >= 0) AND ((sends = 0) = (first_sent_at IS NULL))))
    constraint operation_steps_status CHECK ((status = ANY (ARRAY['done'::text, 'in_flight'::text, 'unsent'::text, 'parked'::text])))
    CREATE INDEX operation_steps_parked ON samekey.operation_steps USING btree (created_at) WHERE (status = 'parked'::text)

table samekey.operations  -- with fillfactor=50
    idem_key text collate "C" not null
    scope text collate "C" not null
    fence bigint not null
    lease_until timestamp with time zone not null
    attempts integer not null default 1
    started_at timestamp with time zone not null default clock_timestamp()
    constraint operations_pkey PRIMARY KEY (idem_key, scope)

table samekey.outbox
    id uuid not null
    scope text collate "C" not null
    idem_key text collate "C" not null
    action text collate "C" not null
    part text collate "C" not null default ''::text
    delivery_key uuid not null
    payload bytea not null
    content_type text not null
    headers jsonb not null default '{}'::jsonb
    ordering_key text collate "C"
    requested_by text
    written_by text not null default SESSION_USER
    subject text collate "C"
    trace_context text
    due_at timestamp with time zone not null
    deadline timestamp with time zone
    created_at timestamp with time zone not null default clock_timestamp()
    replaces uuid
    revision smallint not null default 0
    erased_at timestamp with time zone
    constraint outbox_pkey PRIMARY KEY (id)
    constraint outbox_once UNIQUE (idem_key, scope, action, part, revision)
    CREATE UNIQUE INDEX outbox_replaces ON samekey.outbox USING btree (replaces) WHERE (replaces IS NOT NULL)
    CREATE INDEX outbox_subject ON samekey.outbox USING btree (subject, id) WHERE (subject IS NOT NULL)

table samekey.outbox_attention
    id bigint not null generated always as identity
    intent_id uuid not null
    first_id uuid not null
    action text collate "C" not null
    status text collate "C"
    event text collate "C" not null
    endpoint text collate "C"
    code text collate "C"
    error text
    actor text
    reason text
    at timestamp with time zone not null default clock_timestamp()
    due_at timestamp with time zone not null default clock_timestamp()
    attempts_used integer not null default 0
    last_error text
    constraint outbox_attention_pkey PRIMARY KEY (id)
    constraint outbox_attention_about CHECK ((((status IS NULL) = (endpoint IS NOT NULL)) AND ((endpoint IS NOT NULL) = (event = 'endpoint_stopped'::text))))
    constraint outbox_attention_status CHECK ((status = ANY (ARRAY['dead'::text, 'parked'::text, 'awaiting_approval'::text, 'cancelled'::text])))
    CREATE INDEX outbox_attention_due ON samekey.outbox_attention USING btree (action, due_at, id)
    CREATE INDEX outbox_attention_first ON samekey.outbox_attention USING btree (first_id, id)
    CREATE INDEX outbox_attention_intent ON samekey.outbox_attention USING btree (intent_id)

table samekey.outbox_history
    intent_id uuid not null
    id bigint not null generated always as identity
    at timestamp with time zone not null default clock_timestamp()
    event text collate "C" not null
    outcome text collate "C"
    final_status text collate "C"
    attempt integer
    worker integer
    started_at timestamp with time zone
    code text collate "C"
    error text
    response_type text
    response bytea
    reference text collate "C"
    endpoint text collate "C"
    actor text
    reason text
    db_user text
    key_window_until timestamp with time zone
    constraint outbox_history_pkey PRIMARY KEY (intent_id, id)
    constraint outbox_history_actor_length CHECK (((octet_length(actor) >= 1) AND (octet_length(actor) <= 255)))
    constraint outbox_history_code_length CHECK ((octet_length(code) <= 128))
    constraint outbox_history_endpoint_length CHECK (((octet_length(endpoint) >= 3) AND (octet_length(endpoint) <= 312)))
    constraint outbox_history_error_length CHECK ((octet_length(error) <= 4096))
    constraint outbox_history_event CHECK (
CASE
    WHEN (db_user IS NULL) THEN (event = ANY (ARRAY['attempt'::text, 'lookup'::text, 'apply'::text, 'orphaned'::text, 'late'::text, 'restored'::text, 'held'::text]))
    ELSE (event = ANY (ARRAY['approved'::text, 'rejected'::text, 'redriven'::text, 'resolved'::text, 'cancelled'::text, 'replaced'::text, 'erased'::text]))
END)
    constraint outbox_history_final_status CHECK ((final_status = ANY (ARRAY['delivered'::text, 'refused'::text, 'cancelled'::text])))
    constraint outbox_history_outcome CHECK ((outcome = ANY (ARRAY['delivered'::text, 'refused'::text, 'retry'::text, 'unsent'::text, 'unknown'::text, 'dead'::text, 'parked'::text, 'awaiting_approval'::text, 'absent'::text, 'accepted'::text, 'not_sent'::text])))
    constraint outbox_history_reason_length CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 4096)))
    constraint outbox_history_reference_length CHECK (((octet_length(reference) >= 1) AND (octet_length(reference) <= 255)))
    constraint outbox_history_response_length CHECK ((octet_length(response) <= 1048576))
    constraint outbox_history_type_length CHECK ((octet_length(response_type) <= 255))
    CREATE INDEX outbox_history_endpoint ON samekey.outbox_history USING btree (endpoint, id) WHERE (endpoint IS NOT NULL)
    CREATE UNIQUE INDEX outbox_history_finish ON samekey.outbox_history USING btree (intent_id) WHERE (final_status IS NOT NULL)
    CREATE INDEX outbox_history_reference ON samekey.outbox_history USING btree (reference, intent_id) WHERE (reference IS NOT NULL)
    CREATE INDEX outbox_history_undelivered ON samekey.outbox_history USING btree (final_status, intent_id) WHERE (final_status = ANY (ARRAY['refused'::text, 'cancelled'::text]))

table samekey.outbox_queue  -- with autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0
    id uuid not null
    action text collate "C" not null
    status text collate "C" not null
    due_at timestamp with time zone not null
    ordering_key text collate "C"
    seq bigint not null default 0
    leased_by integer
    lease_until timestamp with time zone
    attempt integer not null default 0
    last_sent_attempt integer not null default 0
    attempts_used integer not null default 0
    safe_to_resend boolean not null default false
    no_resend boolean not null default false
    sent_unrendered boolean not null default false
    first_sent_at timestamp with time zone
    key_window_until timestamp with time zone
    sent_to text collate "C"
    approved_at timestamp with time zone
    last_code text collate "C"
    cause text collate "C"
    share text collate "C"
    constraint outbox_queue_pkey PRIMARY KEY (id)
    constraint outbox_queue_blocked CHECK (((status <> 'blocked'::text) OR (ordering_key IS NOT NULL)))
    constraint outbox_queue_counts CHECK (((attempt >= 0) AND (attempts_used >= 0) AND ((last_sent_attempt >= 0) AND (last_sent_attempt <= attempt))))
    constraint outbox_queue_lease CHECK ((((leased_by IS NULL) = (lease_until IS NULL)) AND ((status <> 'leased'::text) OR (leased_by IS NOT NULL)) AND ((leased_by IS NULL) OR (status = ANY (ARRAY['leased'::text, 'unknown'::text, 'answered'::text])))))
    constraint outbox_queue_status CHECK ((status = ANY (ARRAY['pending'::text, 'blocked'::text, 'leased'::text, 'unknown'::text, 'answered'::text, 'awaiting_approval'::text, 'parked'::text, 'dead'::text])))
    constraint outbox_queue_window CHECK (((key_window_until IS NULL) OR (first_sent_at IS NOT NULL)))
    CREATE INDEX outbox_queue_answered ON samekey.outbox_queue USING btree (action, due_at) WHERE ((leased_by IS NULL) AND (status = 'answered'::text))
    CREATE INDEX outbox_queue_attention ON samekey.outbox_queue USING btree (status, id) WHERE (status = ANY (ARRAY['awaiting_approval'::text, 'parked'::text, 'dead'::text]))
    CREATE INDEX outbox_queue_blocked ON samekey.outbox_queue USING btree (ordering_key, seq) WHERE (status = 'blocked'::text)
    CREATE INDEX outbox_queue_cause ON samekey.outbox_queue USING btree (status, action, last_code, cause) WHERE (status = ANY (ARRAY['awaiting_approval'::text, 'parked'::text, 'dead'::text]))
    CREATE INDEX outbox_queue_due ON samekey.outbox_queue USING btree (action, due_at) WHERE ((leased_by IS NULL) AND (status = ANY (ARRAY['pending'::text, 'unknown'::text])))
    CREATE UNIQUE INDEX outbox_queue_head ON samekey.outbox_queue USING btree (ordering_key) WHERE ((ordering_key IS NOT NULL) AND (status <> 'blocked'::text))
    CREATE INDEX outbox_queue_leased ON samekey.outbox_queue USING btree (leased_by, lease_until) WHERE (leased_by IS NOT NULL)
    CREATE INDEX outbox_queue_share ON samekey.outbox_queue USING btree (action, share, due_at) WHERE ((share IS NOT NULL) AND (leased_by IS NULL) AND (status = ANY (ARRAY['pending'::text, 'unknown'::text])))
    CREATE TRIGGER outbox_queue_approval AFTER UPDATE OF approved_at ON samekey.outbox_queue FOR EACH ROW WHEN (((new.approved_at IS NOT NULL) AND (new.approved_at IS DISTINCT FROM old.approved_at))) EXECUTE FUNCTION samekey.refuse_approval()

table samekey.outbox_sends
    intent_id uuid not null
    carried_key text collate "C" not null
    request_type text
    request bytea
    message_id text collate "C"
    created_at timestamp with time zone not null default clock_timestamp()
    constraint outbox_sends_pkey PRIMARY KEY (intent_id)
    constraint outbox_sends_id_length CHECK (((octet_length(message_id) >= 1) AND (octet_length(message_id) <= 998)))
    constraint outbox_sends_key_length CHECK (((octet_length(carried_key) >= 1) AND (octet_length(carried_key) <= 255)))
    constraint outbox_sends_request_length CHECK ((octet_length(request) <= 2097152))
    constraint outbox_sends_type_length CHECK ((octet_length(request_type) <= 255))

table samekey.outbox_stats
    action text collate "C" not null
    status text collate "C" not null
    intents bigint not null
    oldest_due_at timestamp with time zone
    handled boolean not null
    taken_at timestamp with time zone not null default clock_timestamp()
    constraint outbox_stats_pkey PRIMARY KEY (action, status)

table samekey.pauses
    id bigint not null generated always as identity
    destination text collate "C" not null
    action text collate "C" not null default ''::text
    paused_at timestamp with time zone not null default clock_timestamp()
    paused_by text not null
    reason text not null
    paused_db_user text
    until timestamp with time zone
    river_queue_created_at timestamp with time zone
    ended_at timestamp with time zone
    ended_by text
    end_reason text
    ended_db_user text
    constraint pauses_pkey PRIMARY KEY (id)
    constraint pauses_action_name CHECK (((action = ''::text) OR (action ~ '^[a-z][a-z0-9_.-]{0,62}$'::text)))
    constraint pauses_destination_name CHECK ((destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'::text))
    constraint pauses_end_reason_length CHECK (((octet_length(end_reason) >= 1) AND (octet_length(end_reason) <= 4096)))
    constraint pauses_ended CHECK ((((ended_at IS NULL) = (ended_by IS NULL)) AND ((ended_at IS NULL) = (end_reason IS NULL))))
    constraint pauses_ended_by_length CHECK (((octet_length(ended_by) >= 1) AND (octet_length(ended_by) <= 255)))
    constraint pauses_paused_by_length CHECK (((octet_length(paused_by) >= 1) AND (octet_length(paused_by) <= 255)))
    constraint pauses_reason_length CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 4096)))
    constraint pauses_river CHECK (((river_queue_created_at IS NULL) OR (action = ''::text)))
    CREATE UNIQUE INDEX pauses_in_force ON samekey.pauses USING btree (destination, action, ((river_queue_created_at IS NOT NULL))) WHERE (ended_at IS NULL)

table samekey.processed_events  -- with autovacuum_vacuum_scale_factor=0.05
    idem_key text collate "C" not null
    scope text collate "C" not null
    subject text collate "C"
    payload_hash bytea not null
    hash_version smallint not null
    failed boolean not null default false
    response_code integer
    response_headers bytea
    response_body bytea
    created_at timestamp with time zone not null default clock_timestamp()
    completed_at timestamp with time zone
    expires_at timestamp with time zone not null
    erased_at timestamp with time zone
    constraint processed_events_pkey PRIMARY KEY (idem_key, scope)
    constraint processed_events_key CHECK (((octet_length(idem_key) <= 255) AND (idem_key ~ '^[!-~]([ -~]*[!-~])?$'::text) AND (octet_length(scope) <= 255) AND (scope ~ '^[!-~]([ -~]*[!-~])?$'::text)))
    constraint processed_events_length CHECK (((octet_length(payload_hash) = 32) AND (COALESCE(octet_length(response_headers), 0) <= 65536) AND (COALESCE(octet_length(response_body), 0) <= 1048576) AND (COALESCE(octet_length(subject), 0) <= 255)))
    CREATE INDEX processed_events_expiry ON samekey.processed_events USING btree (expires_at, idem_key, scope)
    CREATE INDEX processed_events_subject ON samekey.processed_events USING btree (subject) WHERE (subject IS NOT NULL)

table samekey.rate_limits  -- with fillfactor=10
    destination text collate "C" not null
    level double precision not null default 0
    updated_at timestamp with time zone not null
    constraint rate_limits_pkey PRIMARY KEY (destination)

table samekey.river_job  -- River's

table samekey.river_leader  -- River's

table samekey.river_migration  -- River's

table samekey.river_notification  -- River's

table samekey.river_queue  -- River's

table samekey.workers
    id integer not null
    name text not null
    actions text[] collate "C" not null
    started_at timestamp with time zone not null default clock_timestamp()
    seen_at timestamp with time zone not null default clock_timestamp()
    constraint workers_pkey PRIMARY KEY (id)
    constraint workers_id_positive CHECK ((id > 0))
    constraint workers_name_length CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))

sequence samekey.endpoint_history_id_seq as bigint

view samekey.intents  -- as its owner
    id uuid
    scope text collate "C"
    key text collate "C"
    action text collate "C"
    part text collate "C"
    subject text collate "C"
    status text collate "C"
    code text collate "C"
    cause text collate "C"
    reference text collate "C"
    attempts integer
    attempts_used integer
    created_at timestamp with time zone
    due_at timestamp with time zone
    deadline timestamp with time zone
    first_sent_at timestamp with time zone
    key_window_until timestamp with time zone
    approved_at timestamp with time zone
    finished_at timestamp with time zone
    delivery_key uuid
    ordering_key text collate "C"
    requested_by text
    written_by text
    trace_context text
    revision smallint
    replaces uuid
    replaced_by uuid
    erased_at timestamp with time zone

view samekey.needs_attention  -- as its owner
    id uuid
    scope text collate "C"
    key text collate "C"
    action text collate "C"
    part text collate "C"
    subject text collate "C"
    status text collate "C"
    since timestamp with time zone
    code text collate "C"
    cause text collate "C"
    reference text collate "C"
    acts text[]
    attempts_used integer
    created_at timestamp with time zone
    deadline timestamp with time zone
    first_sent_at timestamp with time zone
    delivery_key uuid
    ordering_key text collate "C"
    requested_by text
    written_by text

sequence samekey.outbox_attention_id_seq as bigint

sequence samekey.outbox_history_id_seq as bigint

sequence samekey.pauses_id_seq as bigint

view samekey.timeline  -- as its owner
    intent_id uuid
    id bigint
    at timestamp with time zone
    scope text collate "C"
    key text collate "C"
    action text collate "C"
    part text collate "C"
    subject text collate "C"
    event text collate "C"
    outcome text collate "C"
    final_status text collate "C"
    code text collate "C"
    error text
    reference text collate "C"
    attempt integer
    worker integer
    started_at timestamp with time zone
    actor text
    reason text
    db_user text

CREATE OR REPLACE FUNCTION samekey.abandon_operation(scope text, idem_key text, actor text, reason text, code integer, body bytea)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_doubt text;
begin
    if abandon_operation.code is null then
        raise exception 'samekey: abandon_operation: code is required: callers get it as the code of the failure' using errcode = '22023', column = 'code';
    elsif abandon_operation.body is null or octet_length(abandon_operation.body) > 1048576 or not samekey.is_json(abandon_operation.body) then
        raise exception 'samekey: abandon_operation: body must be JSON of at most 1048576 bytes' using errcode = '22023', column = 'body';
    end if;
    perform samekey.operation_lock_idle('abandon_operation', abandon_operation.scope, abandon_operation.idem_key, abandon_operation.actor, abandon_operation.reason);
    select s.status into v_doubt
    from samekey.operation_steps s
    where s.idem_key = abandon_operation.idem_key collate "C" and s.scope = abandon_operation.scope collate "C" and s.status in ('in_flight', 'parked')
    limit 1;
    if v_doubt is not null then
        raise exception 'samekey: abandon_operation: a step of the operation with key % is %',
            samekey.key_hash(abandon_operation.scope, abandon_operation.idem_key), v_doubt
            using errcode = 'SK011', constraint = v_doubt, hint = 'Find out what the vendor did, and call samekey.resolve_step first.';
    end if;
    insert into samekey.operation_steps as s (idem_key, scope, position, name, status, failed, code, result, finished_at,
                                              resolved_at, resolved_by, resolved_db_user, resolved_reason)
    select abandon_operation.idem_key, abandon_operation.scope, coalesce(max(t.position), 0) + 1, 'samekey.abandoned', 'done', true,
           abandon_operation.code, abandon_operation.body, clock_timestamp(),
           clock_timestamp(), abandon_operation.actor, session_user, abandon_operation.reason
    from samekey.operation_steps t
    where t.idem_key = abandon_operation.idem_key collate "C" and t.scope = abandon_operation.scope collate "C";
    update samekey.processed_events p
    set completed_at = clock_timestamp(), expires_at = clock_timestamp() + (p.expires_at - p.created_at), failed = true,
        response_code = abandon_operation.code, response_body = abandon_operation.body
    where p.idem_key = abandon_operation.idem_key collate "C" and p.scope = abandon_operation.scope collate "C" and p.completed_at is null;
    delete from samekey.operations o
    where o.idem_key = abandon_operation.idem_key collate "C" and o.scope = abandon_operation.scope collate "C";
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_cancel(act text, event text, id uuid, actor text, reason text, states text[])
 RETURNS text[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row samekey.outbox_queue := samekey.act_lock(act, id, actor, reason, states);
begin
    if v_row.first_sent_at is not null and v_row.status not in ('parked', 'dead') then
        perform samekey.act_refuse(act, id, v_row.status,
            'it may have been sent at an earlier attempt: wait until it is finished, dead or parked');
    elsif v_row.first_sent_at is not null and v_row.safe_to_resend then
        perform samekey.act_refuse(act, id, v_row.status,
            'it may have been sent: redrive it, or resolve it; resolved as not sent, it can be cancelled');
    end if;
    perform samekey.act_unsent(act, v_row);
    return samekey.act_cancelled(event, array[id], actor, reason);
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_cancelled(event text, ids uuid[], actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
AS $function$
declare
    v_keys    text[];
    v_noted   bigint;
    v_actions text[];
begin
    with gone as (
        delete from samekey.outbox_queue q where q.id = any (ids) returning q.id, q.action, q.key_window_until, q.ordering_key
    ), logged as (
        insert into samekey.outbox_history (intent_id, event, final_status, key_window_until, actor, reason, db_user)
        select g.id, act_cancelled.event, 'cancelled', g.key_window_until, act_cancelled.actor, act_cancelled.reason, session_user from gone g
    )
    select array_agg(distinct g.ordering_key) filter (where g.ordering_key is not null),
           count(samekey.note_attention(g.id, g.action, 'cancelled', act_cancelled.event, actor => act_cancelled.actor, reason => act_cancelled.reason))
    into v_keys, v_noted
    from gone g;
    if v_keys is not null then
        with promoted as (
            update samekey.outbox_queue q
            set status = 'pending', due_at = greatest(q.due_at, clock_timestamp())
            where coalesce(q.status, '') = 'blocked' and q.id = any (array(
                select (select b.id from samekey.outbox_queue b
                        where b.ordering_key = k.ordering_key collate "C" and b.status = 'blocked' order by b.seq limit 1)
                from unnest(v_keys) as k (ordering_key)
                where (select count(*) from samekey.outbox_queue h
                       where h.ordering_key = k.ordering_key collate "C" and h.ordering_key is not null and h.status <> 'blocked') = 0))
            returning q.action
        )
        select array_agg(distinct p.action) into v_actions from promoted p;
    end if;
    return coalesce(v_actions, '{}');
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_check(act text, actor text, reason text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field text;
    v_wrong text;
    t       record;
begin
    for t in select * from (values ('actor', actor, 255), ('reason', reason, 4096)) v (field, value, max_bytes) loop
        v_field := t.field;
        v_wrong := case
            when coalesce(t.value, '') collate "C" !~ '[^\s\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]'
                then 'is required: the next person who looks at the history needs it'
            when octet_length(t.value) > t.max_bytes then format('has %s bytes, the limit is %s', octet_length(t.value), t.max_bytes)
        end;
        exit when v_wrong is not null;
    end loop;
    if v_wrong is not null then
        raise exception 'samekey: %: % %', act, v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_evidence(act text, outcome text, code text, response_type text, response bytea, reference text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field text;
    v_wrong text;
begin
    select w.field, w.wrong into v_field, v_wrong from (values
        ('outcome', case when outcome is null or outcome not in ('delivered', 'refused', 'not_sent') then 'must be delivered, refused or not_sent' end),
        ('code', samekey.act_text(code, 128)),
        ('response_type', samekey.act_text(response_type, 255)),
        ('response', case when octet_length(response) > 1048576 then format('has %s bytes, the limit is 1048576: keep what matters', octet_length(response)) end),
        ('reference', samekey.act_text(reference, 255))) w (field, wrong)
    where w.wrong is not null
    limit 1;
    if v_wrong is not null then
        raise exception 'samekey: %: % %', act, v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_lock(act text, id uuid, actor text, reason text, states text[])
 RETURNS samekey.outbox_queue
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row    samekey.outbox_queue;
    v_final  text;
    v_erased boolean;
begin
    perform samekey.act_check(act, actor, reason);
    perform pg_advisory_xact_lock(samekey.ordering_lock(o.ordering_key))
    from samekey.outbox o where o.id = act_lock.id and o.ordering_key is not null;
    select q.* into v_row from samekey.outbox_queue q where q.id = act_lock.id for update;
    if not found then
        select coalesce(h.final_status, ''), o.erased_at is not null into v_final, v_erased
        from samekey.outbox o
        left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
        where o.id = act_lock.id;
        if not found then
            raise exception 'samekey: %: there is no intent %', act, act_lock.id
                using errcode = 'SK010', hint = 'Its transaction did not commit, or it was pruned after its retention.';
        end if;
        perform samekey.act_refuse(act, act_lock.id, v_final, case when v_erased then samekey.erased_hint() end);
    elsif v_row.status <> all (states) then
        perform samekey.act_refuse(act, act_lock.id, v_row.status);
    end if;
    return v_row;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_not_held(act text, q samekey.outbox_queue)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if q.cause = 'the intent that it replaces was delivered' then
        perform samekey.act_refuse(act, q.id, q.status, 'the intent that it replaces was delivered after all, and this one would be a second effect: '
            'resolve it as delivered, or cancel it; resolved as not sent, it can be sent nevertheless');
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_redriven(ids uuid[], actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
AS $function$
declare
    v_actions text[];
begin
    with redriven as (
        update samekey.outbox_queue q
        set status = 'pending', due_at = clock_timestamp(), attempts_used = 0, approved_at = null, attempt = q.attempt + 1, cause = null
        where q.id = any (ids)
        returning q.id, q.action
    ), logged as (
        insert into samekey.outbox_history (intent_id, event, actor, reason, db_user)
        select r.id, 'redriven', act_redriven.actor, act_redriven.reason, session_user from redriven r
    )
    select array_agg(distinct r.action) into v_actions from redriven r;
    return coalesce(v_actions, '{}');
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_refuse(act text, id uuid, status text, hint text DEFAULT NULL::text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    raise exception 'samekey: %: intent % is %', act, id, coalesce(nullif(status, ''), 'not in the queue')
        using errcode = 'SK011', constraint = status, hint = coalesce(hint, case
            when status = 'pending' then 'a worker will send it when it is due; cancel takes it back if it was never sent'
            when status = 'blocked' then 'it waits for earlier intents with its ordering key; cancel removes it'
            when status = 'leased' then 'a worker is sending it now: look again after the attempt'
            when status = 'unknown' then 'the vendor may or may not have acted: wait for the lookup, or find out and resolve it'
            when status = 'answered' then 'the vendor has answered, and a worker will run Apply and finish it'
            when status = 'awaiting_approval' then 'approve or reject it'
            when status in ('parked', 'dead') then 'redrive or resolve it; cancel it if it was never sent, or is resolved as not sent'
            when status in ('delivered', 'refused', 'cancelled') then 'it is finished: for another effect, insert an intent under another key or part'
            else 'it lost its row in the queue: a worker''s reconcile restores the row' end);
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_replace(id uuid, payload bytea, content_type text, deadline timestamp with time zone, actor text, reason text)
 RETURNS uuid
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row      samekey.outbox_queue := samekey.act_lock('replace', act_replace.id, actor, reason, '{parked,dead}');
    v_old      samekey.outbox;
    v_deadline timestamptz;
    v_refusal  record;
begin
    perform samekey.act_not_held('replace', v_row);
    if exists (select from samekey.may_have_acted(v_row.id, v_row.first_sent_at)) then
        perform samekey.act_refuse('replace', act_replace.id, v_row.status, 'an attempt may have taken effect: find out what the vendor did, and '
            'resolve it; resolved as not sent, it can be replaced');
    end if;

    select o.* into v_old from samekey.outbox o where o.id = act_replace.id;
    v_deadline := nullif(coalesce(act_replace.deadline, v_old.deadline), 'infinity');
    select r.* into v_refusal from samekey.intent_refusal(v_old.scope, v_old.idem_key, v_old.action, coalesce(act_replace.payload, v_old.payload),
        v_old.part, coalesce(nullif(act_replace.content_type collate "C", ''), v_old.content_type), v_old.headers,
        v_old.ordering_key, null, v_deadline, v_old.trace_context, null, v_old.requested_by, v_old.subject) r;
    if v_refusal.field is not null then
        raise exception 'samekey: replace: % %', v_refusal.field, v_refusal.wrong using errcode = '22023', column = v_refusal.field;
    elsif v_deadline <= clock_timestamp() then
        raise exception 'samekey: replace: deadline has passed: pass a later one, or infinity for none' using errcode = '22023', column = 'deadline';
    end if;
    perform samekey.act_replaced(array[act_replace.id], act_replace.payload, act_replace.content_type, null, act_replace.deadline,
        act_replace.actor, act_replace.reason);
    return (select o.id from samekey.outbox o where o.replaces = act_replace.id);
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_replaced(ids uuid[], payload bytea, content_type text, patch jsonb, deadline timestamp with time zone, actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
AS $function$
declare
    v_noted   bigint;
    v_actions text[];
begin
    -- The deletion of a row comes before the insert that reads it: an ordering key has one head.
    with gone as (
        delete from samekey.outbox_queue q where q.id = any (ids) returning q.id, q.action, q.key_window_until, q.ordering_key, q.seq
    ), pair as materialized (
        select g.id as old_id, g.action as queue_action, g.key_window_until, g.ordering_key as queue_order, g.seq,
               samekey.uuidv7() as new_id, clock_timestamp() as now, o.*
        from gone g
        cross join lateral (select x.* from samekey.outbox x where x.id = g.id offset 0) o
        order by g.id
    ), logged as (
        insert into samekey.outbox_history (intent_id, event, final_status, key_window_until, actor, reason, db_user)
        select p.old_id, 'replaced', 'cancelled', p.key_window_until, act_replaced.actor, act_replaced.reason, session_user from pair p
    ), written as (
        insert into samekey.outbox (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers, ordering_key, requested_by,
                                    trace_context, due_at, deadline, subject, replaces, revision)
        select p.new_id, p.scope, p.idem_key, p.action, p.part, samekey.replacement_key(p.delivery_key),
               case when act_replaced.payload is not null then act_replaced.payload
                    when act_replaced.patch is not null
                        then convert_to(samekey.merge_patch(convert_from(p.payload, 'UTF8')::json, act_replaced.patch)::text, 'UTF8')
                    else p.payload end,
               coalesce(nullif(act_replaced.content_type collate "C", ''), p.content_type), p.headers, p.ordering_key, p.requested_by,
               p.trace_context, p.now, nullif(coalesce(act_replaced.deadline, p.deadline), 'infinity'), p.subject, p.old_id, p.revision + 1
        from pair p
    ), queued as (
        insert into samekey.outbox_queue (id, action, status, due_at, ordering_key, seq, share)
        select p.new_id, p.queue_action, 'pending', p.now, p.queue_order, p.seq, samekey.share_of(p.action, p.scope, p.part) from pair p
    )
    select array_agg(distinct p.queue_action),
           count(samekey.note_attention(p.old_id, p.queue_action, 'cancelled', 'replaced', actor => act_replaced.actor, reason => act_replaced.reason))
    into v_actions, v_noted
    from pair p;
    return coalesce(v_actions, '{}');
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_resolved(ids uuid[], outcome text, actor text, reason text, code text, response_type text, response bytea, reference text)
 RETURNS text[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
 SET enable_nestloop TO 'off'
AS $function$
declare
    v_sent    boolean := outcome <> 'not_sent';
    v_noted   bigint;
    v_actions text[];
begin
    with resolved as (
        update samekey.outbox_queue q
        set status           = case when v_sent then 'answered' when q.status = 'unknown' then 'parked' else q.status end,
            due_at           = clock_timestamp(),
            leased_by        = null,
            lease_until      = null,
            attempt          = q.attempt + 1,
            attempts_used    = case when v_sent then 0 else q.attempts_used end,
            no_resend        = v_sent and q.no_resend,
            sent_unrendered  = v_sent and q.sent_unrendered,
            first_sent_at    = case when v_sent then q.first_sent_at end,
            key_window_until = case when v_sent then q.key_window_until end,
            last_code        = coalesce(nullif(act_resolved.code, ''), q.last_code),
            cause            = case when not v_sent then 'resolved as not sent' end
        from (select x.id, x.status as before from samekey.outbox_queue x where x.id = any (ids)) w
        where q.id = any (ids) and q.id = w.id
        returning q.id, q.action, w.before
    ), logged as (
        insert into samekey.outbox_history (intent_id, event, outcome, code, response_type, response, reference, actor, reason, db_user)
        select r.id, 'resolved', act_resolved.outcome, nullif(act_resolved.code, ''), nullif(act_resolved.response_type, ''),
               nullif(act_resolved.response, ''), nullif(act_resolved.reference, ''), act_resolved.actor, act_resolved.reason, session_user
        from resolved r
    )
    select array_agg(distinct r.action),
           -- The others were at rest before.
           count(samekey.note_attention(r.id, r.action, 'parked', 'resolved', act_resolved.code, null, act_resolved.actor, act_resolved.reason))
               filter (where not v_sent and r.before = 'unknown')
    into v_actions, v_noted
    from resolved r;
    return case when v_sent then coalesce(v_actions, '{}') else '{}' end;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_target(act text, destination text, action text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if coalesce(destination, '') collate "C" !~ '^[a-z0-9][a-z0-9_-]{0,55}$' then
        raise exception 'samekey: %: destination must match ^[a-z0-9][a-z0-9_-]{0,55}$, as in stripe', act
            using errcode = '22023', column = 'destination';
    elsif coalesce(action, '') collate "C" !~ '^([a-z][a-z0-9_.-]{0,62})?$' then
        raise exception 'samekey: %: action must match ^[a-z][a-z0-9_.-]{0,62}$, as in charge_card', act
            using errcode = '22023', column = 'action';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_text(value text, max_bytes integer)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return case
        when octet_length(value) > max_bytes then format('has %s bytes, the limit is %s', octet_length(value), max_bytes)
        when value collate "C" ~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
            then 'contains a control or invisible character: use printable text' end;
end
$function$

CREATE OR REPLACE FUNCTION samekey.act_unsent(act text, q samekey.outbox_queue)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if q.first_sent_at is not null and not q.safe_to_resend then
        perform samekey.act_refuse(act, q.id, q.status, 'it may have been sent and must not be sent twice: find out what the vendor did, '
            'and resolve it; resolved as not sent, it can be redriven or cancelled');
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.adopt(deployment text)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    this     record;
    v_worker text;
begin
    if (deployment collate "C" ~ '^[a-z0-9][a-z0-9_-]{0,55}$') is not true then
        raise exception 'samekey: adopt: deployment must be 1 to 56 of a-z, 0-9, "_" and "-", and start with a letter or a digit, as in production'
            using errcode = '22023', column = 'deployment';
    end if;
    lock table samekey.deployment in exclusive mode; -- against another adopt; claims go on reading
    this := samekey.this_database();
    if (select count(*) from samekey.deployment) <> 1
       or not exists (select from samekey.deployment d
                      where d.name = deployment collate "C" and not d.test and d.database_oid = this.database_oid
                        and d.system_identifier is not distinct from this.system_identifier) then
        select coalesce(w.name, held.objid::text) into v_worker
        from pg_locks held left join samekey.workers w on w.id = held.objid::bigint
        where held.locktype = 'advisory' and held.classid::bigint = samekey.worker_class() and held.objsubid = 2
          and held.granted and held.mode = 'ExclusiveLock' and held.database = this.database_oid
        limit 1;
        if found then
            raise exception 'samekey: adopt: the worker "%" is at work in this database', v_worker
                using errcode = 'object_in_use', hint = 'Check that this is the right database. If it is, stop its workers first.';
        end if;
        delete from samekey.deployment;
        insert into samekey.deployment (name, system_identifier, database_oid)
        values (deployment, this.system_identifier, this.database_oid);
    end if;
    return (select count(*) from samekey.outbox_queue);
end
$function$

CREATE OR REPLACE FUNCTION samekey.approve(id uuid, actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row       samekey.outbox_queue := samekey.act_lock('approve', approve.id, actor, reason, '{awaiting_approval}');
    v_written   text[];
    v_requested text;
    v_redrove   text;
begin
    -- A successor has the author of its payload and each login that replaced it on the way.
    select array_agg(p.written_by), max(o.requested_by) into v_written, v_requested
    from samekey.outbox o
    join samekey.outbox p on p.idem_key = o.idem_key and p.scope = o.scope and p.action = o.action and p.part = o.part and p.revision <= o.revision
    where o.id = approve.id;
    select h.db_user into v_redrove from samekey.outbox_history h
    where h.intent_id = approve.id and h.event = 'redriven' order by h.id desc limit 1;
    if session_user = any (v_written) or session_user = v_redrove or actor = v_requested then
        raise exception 'samekey: approve: intent % is awaiting_approval, and needs another person', approve.id
            using errcode = 'SK012', constraint = 'awaiting_approval', hint = case
                when actor = v_requested then 'its requester cannot approve it: another person has to'
                when session_user = v_redrove then 'the login that redrove it cannot approve it: connect as another one'
                else 'the login that wrote it cannot approve it: connect as another one' end;
    end if;
    update samekey.outbox_queue q
    set status = 'pending', approved_at = clock_timestamp(), attempt = q.attempt + 1,
        due_at = greatest(q.due_at, clock_timestamp()) -- the vendor may have asked for a wait
    where q.id = approve.id;
    insert into samekey.outbox_history (intent_id, event, actor, reason, db_user)
    values (approve.id, 'approved', approve.actor, approve.reason, session_user);
    return array[v_row.action];
end
$function$

CREATE OR REPLACE FUNCTION samekey.archive_batch(ids uuid[], keys text[], scopes text[])
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return jsonb_build_object(
        'intents', (
            select coalesce(jsonb_agg(jsonb_build_object(
                'id', o.id, 'scope', o.scope, 'key', o.idem_key, 'action', o.action, 'part', o.part, 'subject', o.subject,
                'status', f.final_status, 'code', f.code, 'finished_at', f.at, 'created_at', o.created_at, 'due_at', o.due_at,
                'deadline', o.deadline, 'delivery_key', o.delivery_key, 'ordering_key', o.ordering_key, 'requested_by', o.requested_by,
                'written_by', o.written_by, 'trace_context', o.trace_context, 'revision', o.revision, 'replaces', o.replaces,
                'erased_at', o.erased_at, 'content_type', o.content_type, 'headers', o.headers,
                'sent', (select jsonb_build_object('carried_key', s.carried_key, 'request_type', s.request_type, 'message_id', s.message_id,
                                                   'created_at', s.created_at) || samekey.archive_bytes('request', s.request)
                         from samekey.outbox_sends s where s.intent_id = o.id),
                'history', (select jsonb_agg(jsonb_build_object(
                                'id', h.id, 'at', h.at, 'event', h.event, 'outcome', h.outcome, 'final_status', h.final_status, 'code', h.code,
                                'error', h.error, 'reference', h.reference, 'attempt', h.attempt, 'worker', h.worker, 'started_at', h.started_at,
                                'actor', h.actor, 'reason', h.reason, 'db_user', h.db_user, 'response_type', h.response_type)
                                || samekey.archive_bytes('response', h.response) order by h.id)
                            from samekey.outbox_history h where h.intent_id = o.id))
                || samekey.archive_bytes('payload', case when o.erased_at is null then o.payload end) order by o.id), '[]')
            from samekey.outbox o
            left join samekey.outbox_history f on f.intent_id = o.id and f.final_status is not null
            where o.id = any (archive_batch.ids)),
        'records', (
            select coalesce(jsonb_agg(jsonb_build_object(
                'scope', p.scope, 'key', p.idem_key, 'subject', p.subject, 'payload_hash', encode(p.payload_hash, 'hex'), 'hash_version', p.hash_version,
                'failed', p.failed, 'code', p.response_code, 'created_at', p.created_at, 'completed_at', p.completed_at,
                'expires_at', p.expires_at, 'erased_at', p.erased_at,
                'steps', (select coalesce(jsonb_agg(jsonb_build_object(
                              'position', s.position, 'name', s.name, 'status', s.status, 'failed', s.failed, 'code', s.code,
                              'delivery_key', s.delivery_key, 'sends', s.sends, 'first_sent_at', s.first_sent_at, 'error', s.error,
                              'resolved_at', s.resolved_at, 'resolved_by', s.resolved_by, 'resolved_db_user', s.resolved_db_user,
                              'resolved_reason', s.resolved_reason, 'created_at', s.created_at, 'finished_at', s.finished_at)
                              || samekey.archive_bytes('result', s.result) order by s.position), '[]')
                          from samekey.operation_steps s where s.idem_key = p.idem_key and s.scope = p.scope))
                || samekey.archive_bytes('response', p.response_body) || samekey.archive_bytes('response_headers', p.response_headers)
                order by p.idem_key, p.scope), '[]')
            from unnest(archive_batch.keys, archive_batch.scopes) k (idem_key, scope)
            join samekey.processed_events p on p.idem_key = k.idem_key collate "C" and p.scope = k.scope collate "C"));
end
$function$

CREATE OR REPLACE FUNCTION samekey.archive_bytes(name text, content bytea)
 RETURNS jsonb
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_json jsonb := samekey.archive_json(content);
begin
    return jsonb_build_object(name, v_json,
        name || '_base64', case when v_json is null then translate(encode(content, 'base64'), e'\n', '') end);
end
$function$

CREATE OR REPLACE FUNCTION samekey.archive_json(content bytea)
 RETURNS jsonb
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_text text;
begin
    v_text := convert_from(content, 'UTF8');
    return case when v_text !~ '[0-9][eE][+-]?[0-9]{3}' then v_text::jsonb end;
exception when data_exception or program_limit_exceeded or statement_too_complex then
    return null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.bulk_change(act text, patch jsonb, deadline timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field text;
    v_wrong text;
begin
    select w.field, w.wrong into v_field, v_wrong from (values
        ('patch', case
            when act <> 'replace_payload_all' then case when patch is not null then 'is for replace_payload_all' end
            when patch is null or jsonb_typeof(patch) <> 'object' or patch = '{}' then 'must be a JSON object with a member, as in {"currency": "EUR"}' end),
        ('deadline', case
            when act not in ('replace_all', 'replace_payload_all') then case when deadline is not null then 'is for replacements' end
            when deadline <= clock_timestamp() then 'has passed: pass a later one, or infinity for none'
            when deadline <> 'infinity' and deadline > '9999-12-31 23:59:59.999999+00' then 'is not between the years 1970 and 9999: pass infinity for none' end)) w (field, wrong)
    where w.wrong is not null
    limit 1;
    if v_wrong is not null then
        raise exception 'samekey: %: % %', act, v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.bulk_filter(act text, filter jsonb, OUT statuses text[], OUT actions text[], OUT part text, OUT code text, OUT cause text, OUT scope text, OUT key text, OUT subject text, OUT reference text, OUT written_from timestamp with time zone, OUT written_to timestamp with time zone, OUT of_outbox boolean)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field   text;
    v_wrong   text;
    v_allowed text[] := case act when 'resolve_all' then '{dead,parked,unknown}'
                                 when 'cancel_all' then '{dead,parked,pending,blocked,awaiting_approval}' else '{dead,parked}' end;
    m         record;
begin
    if filter is null or jsonb_typeof(filter) <> 'object' then
        raise exception 'samekey: %: filter must be a JSON object, as in {"action": "charge_card", "code": "503"}', act
            using errcode = '22023', column = 'filter';
    end if;
    for m in select e.key as name, e.value #>> '{}' as text, jsonb_typeof(e.value) as kind, e.value from jsonb_each(filter) e loop
        v_wrong := case
            when m.name not in ('status', 'action', 'part', 'code', 'cause', 'scope', 'key', 'subject', 'reference', 'from', 'to', 'older_than') then 'is not a member of a filter'
            when m.name in ('code', 'cause') and m.kind = 'null' then null
            when m.name = 'action' and m.kind = 'array' then case when exists (
                select from jsonb_array_elements(m.value) a where jsonb_typeof(a.value) <> 'string') then 'must be a string, or an array of strings' end
            when m.kind <> 'string' then 'must be a string'
            when m.name = 'status' and m.text <> all (v_allowed) then format('must be one of %s', array_to_string(v_allowed, ', ')) end;
        if v_wrong is not null then
            raise exception 'samekey: %: filter: "%" %', act, left(m.name, 64), v_wrong using errcode = '22023', column = 'filter';
        end if;
    end loop;
    if act = 'cancel_all' and not filter ? 'status' then
        raise exception 'samekey: cancel_all: filter: "status" is required' using errcode = '22023', column = 'filter';
    end if;
    statuses := case when filter ? 'status' then array[filter ->> 'status'] else '{dead,parked}' end;
    actions := case jsonb_typeof(filter -> 'action') when 'array' then array(select jsonb_array_elements_text(filter -> 'action'))
                                                     when 'string' then array[filter ->> 'action'] end;
    part := filter ->> 'part';
    code := case when filter ? 'code' then coalesce(filter ->> 'code', '') end;
    cause := case when filter ? 'cause' then coalesce(filter ->> 'cause', '') end;
    scope := filter ->> 'scope';
    key := filter ->> 'key';
    subject := filter ->> 'subject';
    reference := filter ->> 'reference';
    begin
        v_field := 'from'; written_from := (filter ->> 'from')::timestamptz;
        v_field := 'to'; written_to := (filter ->> 'to')::timestamptz;
        v_field := 'older_than'; written_to := least(written_to, clock_timestamp() - (filter ->> 'older_than')::interval);
    exception when data_exception then
        raise exception 'samekey: %: filter: "%" must be %', act, v_field, case v_field when 'older_than' then 'an interval, as in 2 hours' else 'a time, as in 2026-05-01 10:00:00+00' end
            using errcode = '22023', column = 'filter';
    end;
    of_outbox := coalesce(part, scope, key, subject, reference) is not null or written_from is not null or written_to is not null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.bulk_order(ids uuid[])
 RETURNS uuid[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_busy text[];
begin
    select array_agg(k.ordering_key) into v_busy
    from (select distinct q.ordering_key from samekey.outbox_queue q where q.id = any (ids) and q.ordering_key is not null offset 0) k
    where not pg_try_advisory_xact_lock(samekey.ordering_lock(k.ordering_key));
    if v_busy is null then
        return ids;
    end if;
    return array(select q.id from samekey.outbox_queue q
                 where q.id = any (ids) and (q.ordering_key is null or q.ordering_key <> all (v_busy collate "C")));
end
$function$

CREATE OR REPLACE FUNCTION samekey.bulk_pick(act text, filter jsonb, after_id uuid, max_count integer, outcome text DEFAULT NULL::text, patch jsonb DEFAULT NULL::jsonb, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone)
 RETURNS uuid[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_sort TO 'off'
 SET jit TO 'off'
AS $function$
declare
    f          record;
    v_status   text;
    v_ids      uuid[] := '{}';
    v_replaces boolean := act in ('replace_all', 'replace_payload_all');
begin
    f := samekey.bulk_filter(act, filter);
    if max_count is null or max_count not between 1 and 10000 then
        raise exception 'samekey: %: max_count must be between 1 and 10000', act using errcode = '22023', column = 'max_count';
    elsif after_id is not null and not filter ? 'status' then
        raise exception 'samekey: %: after_id needs a "status" in the filter', act using errcode = '22023', column = 'after_id';
    end if;
    foreach v_status in array f.statuses loop
        v_ids := v_ids || array(
            select q.id
            from samekey.outbox_queue q
            where q.status = v_status collate "C"
              and q.id > coalesce(after_id, '00000000-0000-0000-0000-000000000000')
              and case when v_replaces then not exists (select from samekey.may_have_acted(q.id, q.first_sent_at))
                       when act = 'redrive_all' then q.safe_to_resend or q.first_sent_at is null
                       when act = 'resolve_all' then true
                       else q.first_sent_at is null end
              and (outcome is distinct from 'not_sent' or q.cause is distinct from 'resolved as not sent')
              and (f.actions is null or q.action = any (f.actions collate "C"))
              and (f.code is null or coalesce(q.last_code, '') = f.code collate "C")
              and (f.cause is null or coalesce(q.cause, '') = f.cause collate "C")
              and (act <> 'redrive_all' and not v_replaces or q.cause is distinct from 'the intent that it replaces was delivered')
              and (not (f.of_outbox or v_replaces) or exists (
                  select from samekey.outbox o
                  where o.id = q.id
                    and (f.part is null or o.part = f.part collate "C")
                    and (f.scope is null or o.scope = f.scope collate "C")
                    and (f.key is null or o.idem_key = f.key collate "C")
                    and (f.subject is null or o.subject = f.subject collate "C")
                    and (f.reference is null or exists (select from samekey.outbox_history h
                                                        where h.intent_id = o.id and h.reference = f.reference collate "C"))
                    and (f.written_from is null or o.created_at >= f.written_from)
                    and (f.written_to is null or o.created_at < f.written_to)
                    and (not v_replaces or coalesce(bulk_pick.deadline, o.deadline, 'infinity') > clock_timestamp())
                    and (bulk_pick.patch is null or samekey.patchable(o.payload, o.content_type, bulk_pick.patch))
                  offset 0))
            order by q.id
            limit max_count - cardinality(v_ids)
            for update skip locked);
    end loop;
    return v_ids;
end
$function$

CREATE OR REPLACE FUNCTION samekey.bulk_plan(act text, filter jsonb, outcome text DEFAULT NULL::text, patch jsonb DEFAULT NULL::jsonb, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT intents bigint, OUT sample uuid[], OUT may_have_been_sent bigint, OUT past_deadline bigint, OUT not_patchable bigint)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET jit TO 'off'
AS $function$
declare
    f          record;
    v_replaces boolean := act in ('replace_all', 'replace_payload_all');
begin
    if act is null or act not in ('redrive_all', 'cancel_all', 'resolve_all', 'replace_all', 'replace_payload_all') then
        raise exception 'samekey: bulk_plan: act must be redrive_all, cancel_all, resolve_all, replace_all or replace_payload_all'
            using errcode = '22023', column = 'act';
    end if;
    perform samekey.bulk_change(act, patch, deadline);
    f := samekey.bulk_filter(act, filter);
    select count(*) filter (where p.found = 'possible'), count(*) filter (where p.found = 'sent'), count(*) filter (where p.found = 'deadline'),
           count(*) filter (where p.found = 'payload')
    into intents, may_have_been_sent, past_deadline, not_patchable
    from (
        select case when v_replaces then
                        case when exists (select from samekey.may_have_acted(q.id, q.first_sent_at)) then 'sent'
                             else (select case when coalesce(bulk_plan.deadline, o.deadline) <= clock_timestamp() then 'deadline'
                                               when bulk_plan.patch is not null and not samekey.patchable(o.payload, o.content_type, bulk_plan.patch) then 'payload'
                                               else 'possible' end
                                   from samekey.outbox o where o.id = q.id) end
                    when case act when 'redrive_all' then q.safe_to_resend or q.first_sent_at is null
                                  when 'resolve_all' then true
                                  else q.first_sent_at is null end then 'possible'
                    else 'sent' end as found
        from samekey.outbox_queue q
        where q.status = any (f.statuses collate "C")
          and (outcome is distinct from 'not_sent' or q.cause is distinct from 'resolved as not sent')
          and (f.actions is null or q.action = any (f.actions collate "C"))
          and (f.code is null or coalesce(q.last_code, '') = f.code collate "C")
          and (f.cause is null or coalesce(q.cause, '') = f.cause collate "C")
          and (act <> 'redrive_all' and not v_replaces or q.cause is distinct from 'the intent that it replaces was delivered')
          and (not f.of_outbox or exists (
              select from samekey.outbox o
              where o.id = q.id
                and (f.part is null or o.part = f.part collate "C")
                and (f.scope is null or o.scope = f.scope collate "C")
                and (f.key is null or o.idem_key = f.key collate "C")
                and (f.subject is null or o.subject = f.subject collate "C")
                and (f.reference is null or exists (select from samekey.outbox_history h
                                                    where h.intent_id = o.id and h.reference = f.reference collate "C"))
                and (f.written_from is null or o.created_at >= f.written_from)
                and (f.written_to is null or o.created_at < f.written_to)
              offset 0))) p;
    sample := samekey.bulk_pick(act, filter, null, 10, outcome, patch, deadline);
end
$function$

CREATE OR REPLACE FUNCTION samekey.bulk_replace(act text, filter jsonb, patch jsonb, deadline timestamp with time zone, actor text, reason text, max_count integer, after_id uuid, OUT changed integer, OUT last_id uuid, OUT actions text[])
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_ids uuid[];
begin
    perform samekey.act_check(act, actor, reason);
    perform samekey.bulk_change(act, patch, deadline);
    v_ids := samekey.bulk_pick(act, filter, after_id, max_count, null, patch, deadline);
    last_id := v_ids[cardinality(v_ids)];
    v_ids := samekey.bulk_order(v_ids);
    -- Again, in a snapshot that is younger than the locks. See the interleavings above.
    v_ids := array(select q.id from samekey.outbox_queue q
                   where q.id = any (v_ids) and not exists (select from samekey.may_have_acted(q.id, q.first_sent_at) offset 0));
    actions := samekey.act_replaced(v_ids, null, null, patch, deadline, actor, reason);
    changed := cardinality(v_ids);
end
$function$

CREATE OR REPLACE FUNCTION samekey.call_end(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, sends integer, unsent boolean, error text)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    perform samekey.operation_hold(call_end.scope, call_end.idem_key, call_end.fence, call_end.lease_us);
    update samekey.operation_steps s
    set status = case when call_end.unsent and s.sends = 1 then 'unsent' else s.status end,
        sends = s.sends - call_end.unsent::int,
        first_sent_at = case when call_end.unsent and s.sends = 1 then null else s.first_sent_at end,
        key_window_until = case when call_end.unsent and s.sends = 1 then null else s.key_window_until end,
        resent = s.resent and not call_end.unsent,
        ended_at = coalesce(s.ended_at, clock_timestamp()),
        error = call_end.error
    where s.idem_key = call_end.idem_key collate "C" and s.scope = call_end.scope collate "C" and s.position = call_end.position
      and s.status = 'in_flight' and s.sends = call_end.sends;
end
$function$

CREATE OR REPLACE FUNCTION samekey.call_mark(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, name text, timeout_us bigint, window_us bigint, settle_us bigint, can_lookup boolean, absent boolean, resend_absent boolean, OUT verdict text, OUT sends integer, OUT wait_us bigint)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    s        samekey.operation_steps;
    v_now    timestamptz;
    v_window timestamptz; -- until when the vendor remembers the key; null if it does not
    v_ready  timestamptz; -- when a lookup may be made
begin
    perform samekey.operation_hold(call_mark.scope, call_mark.idem_key, call_mark.fence, call_mark.lease_us + call_mark.timeout_us);
    v_now := clock_timestamp();
    wait_us := 0;
    select * into s
    from samekey.operation_steps t
    where t.idem_key = call_mark.idem_key collate "C" and t.scope = call_mark.scope collate "C" and t.position = call_mark.position;
    if not found then
        insert into samekey.operation_steps as t (idem_key, scope, position, name, status, delivery_key, sends)
        values (call_mark.idem_key, call_mark.scope, call_mark.position, call_mark.name, 'unsent',
                samekey.delivery_key(call_mark.scope, call_mark.idem_key, 'step:' || call_mark.name, ''), 0)
        returning * into s;
    elsif s.name <> call_mark.name collate "C" or s.status = 'done' or s.delivery_key is null then
        raise exception 'samekey: step % of the operation with key % is "%", not a call "%" that is still to be made', call_mark.position,
            samekey.key_hash(call_mark.scope, call_mark.idem_key), s.name, call_mark.name using errcode = 'SK011', constraint = s.status;
    end if;
    if call_mark.window_us > 0 then
        v_window := least(s.key_window_until, coalesce(s.first_sent_at, v_now) + interval '1 microsecond' * call_mark.window_us);
    end if;
    v_ready := greatest(coalesce(s.ended_at, s.sent_at), s.absent_at) + interval '1 microsecond' * call_mark.settle_us;
    verdict := case
        when s.status = 'unsent' then 'send'
        when s.status = 'parked' then 'parked'
        -- The vendor still remembers the key at the end of this send.
        when v_now + interval '1 microsecond' * call_mark.timeout_us + interval '10 seconds' < v_window then 'send'
        when not call_mark.can_lookup then 'parked'
        when not call_mark.absent then case when v_ready > v_now then 'wait' else 'lookup' end
        when s.absent_at is null then 'wait'
        when call_mark.resend_absent and v_window is null and not s.resent then 'send'
        else 'parked' end;
    if verdict = 'wait' then
        wait_us := case when call_mark.absent then call_mark.settle_us else extract(epoch from v_ready - v_now) * 1000000 end;
    end if;
    update samekey.operation_steps t
    set status = case verdict when 'send' then 'in_flight' when 'parked' then 'parked' else t.status end,
        sends = t.sends + (verdict = 'send')::int,
        first_sent_at = case when verdict = 'send' then coalesce(t.first_sent_at, v_now) else t.first_sent_at end,
        key_window_until = case when verdict = 'send' then v_window else t.key_window_until end,
        sent_at = case when verdict = 'send' then v_now else t.sent_at end,
        ended_at = case when verdict = 'send' then null else t.ended_at end,
        absent_at = case when verdict = 'send' then null when call_mark.absent then coalesce(t.absent_at, v_now) else t.absent_at end,
        resent = t.resent or verdict = 'send' and call_mark.absent
    where t.idem_key = s.idem_key and t.scope = s.scope and t.position = s.position
    returning t.sends into sends;
end
$function$

CREATE OR REPLACE FUNCTION samekey.call_put(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, failed boolean, code integer, result bytea)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    perform samekey.operation_hold(call_put.scope, call_put.idem_key, call_put.fence, call_put.lease_us);
    update samekey.operation_steps s
    set status = 'done', failed = call_put.failed, code = call_put.code, result = call_put.result, error = null, finished_at = clock_timestamp()
    where s.idem_key = call_put.idem_key collate "C" and s.scope = call_put.scope collate "C" and s.position = call_put.position
      and s.status = 'in_flight';
end
$function$

CREATE OR REPLACE FUNCTION samekey.can_sign(secrets text[])
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN (array_to_string(secrets, ' '::text) !~ '(^| )(v1a?,|whpk_|whsk_(?!([A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==)( |$)))'::text)

CREATE OR REPLACE FUNCTION samekey.cancel(id uuid, actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return samekey.act_cancel('cancel', 'cancelled', id, actor, reason, '{pending,blocked,awaiting_approval,parked,dead}');
end
$function$

CREATE OR REPLACE FUNCTION samekey.cancel_all(filter jsonb, actor text, reason text, max_count integer DEFAULT 500, after_id uuid DEFAULT NULL::uuid, OUT changed integer, OUT last_id uuid, OUT actions text[])
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_ids uuid[];
begin
    perform samekey.act_check('cancel_all', actor, reason);
    v_ids := samekey.bulk_pick('cancel_all', filter, after_id, max_count);
    last_id := v_ids[cardinality(v_ids)];
    v_ids := samekey.bulk_order(v_ids);
    actions := samekey.act_cancelled('cancelled', v_ids, actor, reason);
    changed := cardinality(v_ids);
end
$function$

CREATE OR REPLACE FUNCTION samekey.cause_groups(for_actions text[] DEFAULT NULL::text[], max_count integer DEFAULT 100)
 RETURNS TABLE(status text, action text, code text, cause text, intents bigint)
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
 SET jit TO 'off'
AS $function$
    select q.status, q.action, q.last_code, q.cause, count(*)
    from samekey.outbox_queue q
    where q.status in ('awaiting_approval', 'parked', 'dead')
      and (for_actions is null or q.action = any (for_actions collate "C"))
    group by q.status, q.action, q.last_code, q.cause
    order by count(*) desc, q.status, q.action, q.last_code, q.cause
    limit max_count
$function$

CREATE OR REPLACE FUNCTION samekey.check_deployment(deployment text, OUT id uuid, OUT belongs_to text, OUT problem text)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_rows integer;
    d      samekey.deployment;
    this   record;
begin
    select count(*) into v_rows from samekey.deployment;
    select * into d from samekey.deployment limit 1;
    id := d.id;
    belongs_to := d.name;
    if v_rows <> 1 then
        problem := case v_rows when 0 then 'missing' else 'several' end;
        select string_agg(coalesce(x.name, '(no name)'), ', ' order by x.name) into belongs_to from samekey.deployment x;
        return;
    elsif d.test then
        return;
    elsif coalesce(deployment, '') collate "C" = '' then
        problem := 'unnamed';
        return;
    end if;
    this := samekey.this_database();
    if d.database_oid <> this.database_oid or d.system_identifier <> this.system_identifier then
        problem := 'copy';
        return;
    end if;
    if d.name is null then
        update samekey.deployment x set name = deployment where x.id = d.id and x.name is null;
        select x.id, x.name into id, belongs_to from samekey.deployment x; -- a concurrent worker may have been first
    end if;
    if belongs_to collate "C" is distinct from deployment then
        problem := 'name';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.delivery_key(scope text, idem_key text, action text, part text)
 RETURNS uuid
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    d bytea := substring(sha256(
        convert_to('samekey/delivery/v1', 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8')))    || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(idem_key, 'UTF8'))) || convert_to(idem_key, 'UTF8')
        || int4send(octet_length(convert_to(action, 'UTF8')))   || convert_to(action, 'UTF8')
        || int4send(octet_length(convert_to(part, 'UTF8')))     || convert_to(part, 'UTF8')) from 1 for 16);
begin
    return encode(set_byte(set_byte(d, 6, (get_byte(d, 6) & 15) | 128), 8, (get_byte(d, 8) & 63) | 128), 'hex')::uuid;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_delete(destination text, name text, actor text, reason text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    perform samekey.act_check('endpoint_delete', actor, reason);
    delete from samekey.endpoints e
    where e.destination = endpoint_delete.destination collate "C" and e.name = endpoint_delete.name collate "C";
    if not found then
        return false;
    end if;
    insert into samekey.endpoint_history (destination, name, event, actor, reason)
    values (endpoint_delete.destination, endpoint_delete.name, 'deleted', endpoint_delete.actor, endpoint_delete.reason);
    return true;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_deliveries(destination text, name text, before bigint DEFAULT NULL::bigint, max_count integer DEFAULT 100)
 RETURNS TABLE(id bigint, at timestamp with time zone, intent_id uuid, action text, event text, attempt integer, outcome text, code text, took interval, status text)
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    with page as materialized (
        select h.id, h.at, h.intent_id, h.event, h.attempt, h.outcome, h.code, h.started_at
        from samekey.outbox_history h
        where h.endpoint = (endpoint_deliveries.destination || '/' || endpoint_deliveries.name) collate "C"
          and h.id < coalesce(endpoint_deliveries.before, 9223372036854775807)
        order by h.id desc
        limit least(endpoint_deliveries.max_count, 1000)
    )
    select p.id, p.at, p.intent_id, (select o.action from samekey.outbox o where o.id = p.intent_id), p.event, p.attempt, p.outcome, p.code,
           p.at - p.started_at,
           coalesce((select q.status from samekey.outbox_queue q where q.id = p.intent_id),
                    (select f.final_status from samekey.outbox_history f where f.intent_id = p.intent_id and f.final_status is not null))
    from page p
    order by p.id desc
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_headers_wrong(headers jsonb)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select case
        when jsonb_typeof(headers) <> 'object' then 'must be a JSON object of header names and values'
        else (
            select case
                when octet_length(h.key) > 255 or h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' then 'have an invalid name: use letters, digits and -'
                when samekey.header_owner(h.key) = 'connection' then format('must not contain "%s": it belongs to the connection', lower(h.key))
                when samekey.header_owner(h.key) = 'worker'
                     or lower(h.key) in ('webhook-id', 'webhook-timestamp', 'webhook-signature', 'x-hub-signature-256', 'x-webhook-signature')
                    then format('must not contain "%s": the worker sets it', lower(h.key))
                when jsonb_typeof(h.value) <> 'string' or (h.value #>> '{}') ~ '[\x01-\x08\x0a-\x1f\x7f]'
                    then format('have an invalid value of "%s": use a string without control characters', lower(h.key))
                when h.n > 1 then format('contain "%s" twice, in different case: keep one', lower(h.key))
                when h.length > 8192 then 'have more than 8192 bytes together'
                end
            from (
                select e.key collate "C" as key, e.value, count(*) over (partition by lower(e.key collate "C")) as n,
                       sum(octet_length(e.key) + octet_length(e.value #>> '{}')) over () as length
                from jsonb_each(headers) e
            ) h
            order by 1 nulls last
            limit 1)
        end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_put(destination text, name text, url text, actor text, reason text, secrets text[] DEFAULT '{}'::text[], headers jsonb DEFAULT '{}'::jsonb)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field   text;
    v_wrong   text;
    v_created boolean;
begin
    perform samekey.act_check('endpoint_put', actor, reason);
    perform samekey.act_target('endpoint_put', destination, '');
    select w.field, w.wrong into v_field, v_wrong from (values
        ('name', case when octet_length(name) not between 1 and 255 or name is null then 'must be text of 1 to 255 bytes' end),
        ('url', case when url is null or octet_length(url) > 2048 or url !~ '^https?://' then 'must begin with https:// or http://, and have at most 2048 bytes' end),
        ('secrets', case
            when cardinality(secrets) > 8 or octet_length(array_to_string(secrets, '')) > 4096 then 'are too many or too long: at most 8, of 4096 bytes together'
            when array_position(secrets, null) is not null or array_position(secrets, '') is not null then 'must not be empty or null'
            when not samekey.can_sign(secrets) then 'must be of the form whsec_ and base64, or whsk_ and the base64 of 32 or 64 bytes: v1, is the name of a signature, and whpk_ is a public key, which cannot sign'
            end),
        ('headers', samekey.endpoint_headers_wrong(headers))) w (field, wrong)
    where w.wrong is not null
    limit 1;
    if v_wrong is not null then
        raise exception 'samekey: endpoint_put: % %', v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
    insert into samekey.endpoints as e (destination, name, url, secrets, headers)
    values (endpoint_put.destination, endpoint_put.name, endpoint_put.url, coalesce(endpoint_put.secrets, '{}'), coalesce(endpoint_put.headers, '{}'))
    on conflict on constraint endpoints_pkey do update
    set url = excluded.url, secrets = excluded.secrets, headers = excluded.headers, failing_since = null, version = gen_random_uuid(), changed_at = clock_timestamp(), changed_by = session_user
    returning e.xmax = 0 into v_created; -- an updated row has the updating transaction there
    insert into samekey.endpoint_history (destination, name, event, actor, reason)
    values (endpoint_put.destination, endpoint_put.name, case when v_created then 'created' else 'changed' end, endpoint_put.actor, endpoint_put.reason);
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_start(destination text, name text, actor text, reason text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    perform samekey.act_check('endpoint_start', actor, reason);
    update samekey.endpoints e
    set stopped_at = null, stopped_by = null, stop_reason = null, failing_since = null, version = gen_random_uuid(), changed_at = clock_timestamp(), changed_by = session_user
    where e.destination = endpoint_start.destination collate "C" and e.name = endpoint_start.name collate "C";
    if not found then
        return false;
    end if;
    insert into samekey.endpoint_history (destination, name, event, actor, reason)
    values (endpoint_start.destination, endpoint_start.name, 'started', endpoint_start.actor, endpoint_start.reason);
    return true;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_stop(destination text, name text, actor text, reason text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_stopped boolean;
begin
    perform samekey.act_check('endpoint_stop', actor, reason);
    select e.stopped_at is not null into v_stopped
    from samekey.endpoints e
    where e.destination = endpoint_stop.destination collate "C" and e.name = endpoint_stop.name collate "C"
    for no key update;
    if v_stopped then
        return true;
    elsif v_stopped is null then
        return false;
    end if;
    update samekey.endpoints e
    set stopped_by = endpoint_stop.actor, stop_reason = endpoint_stop.reason, stopped_at = clock_timestamp(),
        version = gen_random_uuid(), changed_at = clock_timestamp(), changed_by = session_user
    where e.destination = endpoint_stop.destination collate "C" and e.name = endpoint_stop.name collate "C";
    insert into samekey.endpoint_history (destination, name, event, actor, reason)
    values (endpoint_stop.destination, endpoint_stop.name, 'stopped', endpoint_stop.actor, endpoint_stop.reason);
    return true;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_test(destination text, name text, action text, payload bytea, actor text, reason text, content_type text DEFAULT 'application/json'::text)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_stopped boolean;
    v_service text := nullif(nullif(current_setting('samekey.service', true), ''), '/');
    v_id      uuid;
begin
    perform samekey.act_check('endpoint_test', actor, reason);
    select e.stopped_at is not null into v_stopped from samekey.endpoints e
    where e.destination = endpoint_test.destination collate "C" and e.name = endpoint_test.name collate "C";
    if not found then
        return null;
    end if;
    if v_stopped then
        raise exception 'samekey: endpoint_test: the endpoint % is stopped, so nothing is sent to it', endpoint_test.name
            using errcode = 'SK011', constraint = 'stopped', hint = 'start it first (endpoint_start)';
    end if;
    v_id := samekey.enqueue(concat_ws('/', v_service, 'endpoint_test', endpoint_test.destination), gen_random_uuid()::text, endpoint_test.action,
        endpoint_test.payload, endpoint_test.name, endpoint_test.content_type, requested_by => endpoint_test.actor);
    insert into samekey.endpoint_history (destination, name, event, actor, reason)
    values (endpoint_test.destination, endpoint_test.name, 'tested', endpoint_test.actor, endpoint_test.reason);
    return v_id;
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue(scope text, idem_key text, action text, payload bytea, part text DEFAULT ''::text, content_type text DEFAULT 'application/json'::text, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text, due_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context text DEFAULT NULL::text, id uuid DEFAULT NULL::uuid, must_be_new boolean DEFAULT false, requested_by text DEFAULT NULL::text, subject text DEFAULT NULL::text, payload_checked boolean DEFAULT false)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_id   uuid;
    v_due  timestamptz;
    v_head bigint;
    v_last bigint;
begin
    -- If the rules are not true, refuse_intent finds the argument.
    if samekey.is_intent(enqueue.scope, enqueue.idem_key, enqueue.action, enqueue.payload, enqueue.part, enqueue.content_type, enqueue.headers,
            enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.requested_by, enqueue.subject,
            enqueue.payload_checked) is not true then
        perform samekey.refuse_intent(enqueue.scope, enqueue.idem_key, enqueue.action, enqueue.payload, enqueue.part, enqueue.content_type, enqueue.headers,
            enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.requested_by, enqueue.subject);
    end if;

    -- Without an ordering key, one statement writes both rows. It returns no row if the intent exists, perhaps because
    -- a transaction that this insert waited for has committed.
    if coalesce(enqueue.ordering_key, '') collate "C" = '' then
        with intent as (
            insert into samekey.outbox as o (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers,
                                             due_at, deadline, trace_context, requested_by, subject)
            values (coalesce(enqueue.id, samekey.uuidv7()), enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''),
                    samekey.delivery_key(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, '')),
                    enqueue.payload, coalesce(nullif(enqueue.content_type collate "C", ''), 'application/json'), coalesce(enqueue.headers, '{}'),
                    coalesce(enqueue.due_at, clock_timestamp()), enqueue.deadline, nullif(enqueue.trace_context collate "C", ''),
                    nullif(enqueue.requested_by collate "C", ''), nullif(enqueue.subject collate "C", ''))
            on conflict on constraint outbox_once do nothing
            returning o.id, o.action, o.due_at
        )
        insert into samekey.outbox_queue as q (id, action, status, due_at, share)
        select i.id, i.action, 'pending', i.due_at, samekey.share_of(i.action, enqueue.scope, coalesce(enqueue.part, '')) from intent i
        returning q.id into v_id;
        if v_id is null then
            return samekey.enqueue_duplicate(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''), enqueue.payload, enqueue.must_be_new);
        end if;
        return v_id;
    end if;

    insert into samekey.outbox as o (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers,
                                     ordering_key, due_at, deadline, trace_context, requested_by, subject)
    values (coalesce(enqueue.id, samekey.uuidv7()), enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''),
            samekey.delivery_key(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, '')),
            enqueue.payload, coalesce(nullif(enqueue.content_type collate "C", ''), 'application/json'), coalesce(enqueue.headers, '{}'),
            enqueue.ordering_key, coalesce(enqueue.due_at, clock_timestamp()), enqueue.deadline, nullif(enqueue.trace_context collate "C", ''),
            nullif(enqueue.requested_by collate "C", ''), nullif(enqueue.subject collate "C", ''))
    on conflict on constraint outbox_once do nothing
    returning o.id, o.due_at into v_id, v_due;
    if v_id is null then
        return samekey.enqueue_duplicate(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''), enqueue.payload, enqueue.must_be_new);
    end if;

    -- Two writers W1 and W2 of one ordering key, and a worker F that finishes the head of the key:
    --   * W1 locks, numbers its row, inserts and commits. W2 waits for the lock, then sees W1's row. W2 takes a higher
    --     number and is blocked.
    --   * W1 rolls back. W2 sees no row and becomes the head.
    --   * F holds the lock, deletes the head and promotes the next row. W2 sees the result.
    --   * W2 is REPEATABLE READ and its snapshot is older than W1 or F. If it misses the head, the unique index on
    --     heads stops it (40001). If it sees a head that is gone, it is blocked until the worker's sweep promotes it.
    --
    -- The number is the clock in microseconds, but always higher than that of the rows in front. The clock alone is not
    -- enough: it can be set back, or be another server's after a failover. The maximum alone is not enough: an old
    -- snapshot misses rows. A sequence starts at 1 after a switchover by logical replication, which does not copy
    -- sequences.
    perform pg_advisory_xact_lock(samekey.ordering_lock(enqueue.ordering_key));
    -- Two lookups, each by its own index: the head, and the last blocked row. For EXISTS over both, the planner may
    -- scan the queue instead.
    select (select max(q.seq) from samekey.outbox_queue q
            where q.ordering_key = enqueue.ordering_key collate "C" and q.ordering_key is not null and q.status <> 'blocked'),
           (select q.seq from samekey.outbox_queue q
            where q.ordering_key = enqueue.ordering_key collate "C" and q.status = 'blocked' order by q.seq desc limit 1)
    into v_head, v_last;
    if v_head is not null or v_last is not null then
        insert into samekey.outbox_queue as q (id, seq, share, action, status, due_at, ordering_key)
        values (v_id, greatest((extract(epoch from clock_timestamp()) * 1000000)::bigint, v_head + 1, v_last + 1), samekey.share_of(enqueue.action, enqueue.scope, coalesce(enqueue.part, '')),
                enqueue.action, 'blocked', v_due, enqueue.ordering_key);
        return v_id;
    end if;
    insert into samekey.outbox_queue as q (id, seq, share, action, status, due_at, ordering_key)
    values (v_id, (extract(epoch from clock_timestamp()) * 1000000)::bigint, samekey.share_of(enqueue.action, enqueue.scope, coalesce(enqueue.part, '')),
            enqueue.action, 'pending', v_due, enqueue.ordering_key)
    on conflict (ordering_key) where ordering_key is not null and status <> 'blocked' do nothing;
    if not found then
        raise exception 'samekey: enqueue: a concurrent transaction wrote an intent with the ordering key of this intent "%"', enqueue.action
            using errcode = 'serialization_failure', hint = 'Roll back and run the transaction again.';
    end if;
    return v_id;
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue(scope text, idem_key text, action text, payload json, part text DEFAULT ''::text, content_type text DEFAULT 'application/json'::text, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text, due_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context text DEFAULT NULL::text, id uuid DEFAULT NULL::uuid, must_be_new boolean DEFAULT false, requested_by text DEFAULT NULL::text, subject text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
begin
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload::pg_catalog.text, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by, enqueue.subject);
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue(scope text, idem_key text, action text, payload jsonb, part text DEFAULT ''::text, content_type text DEFAULT 'application/json'::text, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text, due_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context text DEFAULT NULL::text, id uuid DEFAULT NULL::uuid, must_be_new boolean DEFAULT false, requested_by text DEFAULT NULL::text, subject text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
begin
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload::pg_catalog.text, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by, enqueue.subject);
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue(scope text, idem_key text, action text, payload text, part text DEFAULT ''::text, content_type text DEFAULT 'application/json'::text, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text, due_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context text DEFAULT NULL::text, id uuid DEFAULT NULL::uuid, must_be_new boolean DEFAULT false, requested_by text DEFAULT NULL::text, subject text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
begin
    if pg_catalog.left(enqueue.payload, 2) collate pg_catalog."C" = '\x' and enqueue.payload collate pg_catalog."C" ~ '^\\x([0-9A-Fa-f]{2})*$' then
        raise exception 'samekey: enqueue: payload is bytea in text form: cast it, as in $4::bytea'
            using errcode = '22023', column = 'payload';
    end if;
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by, enqueue.subject);
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue_duplicate(scope text, idem_key text, action text, part text, payload bytea, must_be_new boolean)
 RETURNS uuid
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_id   uuid;
    v_same boolean;
begin
    select (array_agg(o.id order by o.revision desc))[1],
           bool_or(case when o.erased_at is null then o.payload = enqueue_duplicate.payload
                        else o.payload = samekey.erased_hash(o.delivery_key, enqueue_duplicate.payload) end) into v_id, v_same
    from samekey.outbox o
    where o.idem_key = enqueue_duplicate.idem_key collate "C" and o.scope = enqueue_duplicate.scope collate "C"
      and o.action = enqueue_duplicate.action collate "C" and o.part = enqueue_duplicate.part collate "C";
    if v_id is null then
        raise exception 'samekey: enqueue: a concurrent transaction wrote the intent "%" with key %',
            enqueue_duplicate.action, samekey.key_hash(enqueue_duplicate.scope, enqueue_duplicate.idem_key)
            using errcode = 'serialization_failure', hint = 'Roll back and run the transaction again.';
    end if;
    if not v_same then
        raise exception 'samekey: enqueue: the intent "%" with key % exists with another payload',
            enqueue_duplicate.action, samekey.key_hash(enqueue_duplicate.scope, enqueue_duplicate.idem_key)
            using errcode = 'SK001',
                  hint = 'This transaction must roll back. To write a second effect of this action under the key, pass another part.';
    end if;
    if must_be_new then
        raise exception 'samekey: enqueue: the intent "%" with key % exists',
            enqueue_duplicate.action, samekey.key_hash(enqueue_duplicate.scope, enqueue_duplicate.idem_key)
            using errcode = 'SK002', hint = 'Roll back and call enqueue without must_be_new, which returns the id of the intent.';
    end if;
    return v_id;
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue_many(scopes text[], idem_keys text[], actions text[], payloads bytea[], parts text[], content_types text[], headers text[], due_ats timestamp with time zone[], deadlines timestamp with time zone[], trace_contexts text[], ids uuid[], must_be_new boolean, requested_bys text[], subjects text[])
 RETURNS integer[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_generic_plan'
 SET jit TO 'off'
AS $function$
#variable_conflict use_column
declare
    v_none constant timestamptz := '0001-01-01 00:00:00+00';
    v_rest integer[];
begin
    with given as materialized (
        select w.scope, w.idem_key, w.action, w.payload, w.part, w.content_type, w.headers::jsonb as headers,
               nullif(w.due_at, v_none) as due_at, nullif(w.deadline, v_none) as deadline, w.trace_context, w.id, w.requested_by, w.subject, w.n
        from unnest(enqueue_many.scopes, enqueue_many.idem_keys, enqueue_many.actions, enqueue_many.payloads, enqueue_many.parts, enqueue_many.content_types,
                    enqueue_many.headers, enqueue_many.due_ats, enqueue_many.deadlines, enqueue_many.trace_contexts, enqueue_many.ids,
                    enqueue_many.requested_bys, enqueue_many.subjects) with ordinality
             as w (scope, idem_key, action, payload, part, content_type, headers, due_at, deadline, trace_context, id, requested_by, subject, n)
    ), intent as (
        insert into samekey.outbox as o (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers,
                                         due_at, deadline, trace_context, requested_by, subject)
        select g.id, g.scope, g.idem_key, g.action, g.part,
               encode(set_byte(set_byte(k.d, 6, (get_byte(k.d, 6) & 15) | 128), 8, (get_byte(k.d, 8) & 63) | 128), 'hex')::uuid,
               g.payload, g.content_type, g.headers, coalesce(g.due_at, clock_timestamp()), g.deadline,
               nullif(g.trace_context collate "C", ''), nullif(g.requested_by collate "C", ''), nullif(g.subject collate "C", '')
        from given g
        cross join lateral (select substring(sha256(
            convert_to('samekey/delivery/v1', 'UTF8')
            || int4send(octet_length(convert_to(g.scope, 'UTF8')))    || convert_to(g.scope, 'UTF8')
            || int4send(octet_length(convert_to(g.idem_key, 'UTF8'))) || convert_to(g.idem_key, 'UTF8')
            || int4send(octet_length(convert_to(g.action, 'UTF8')))   || convert_to(g.action, 'UTF8')
            || int4send(octet_length(convert_to(g.part, 'UTF8')))     || convert_to(g.part, 'UTF8')) from 1 for 16) as d offset 0) k
        where g.id is not null
          and samekey.is_intent(g.scope, g.idem_key, g.action, g.payload, g.part, g.content_type, g.headers, null, g.due_at, g.deadline,
                                g.trace_context, g.id, g.requested_by, g.subject, true)
        order by g.n
        on conflict on constraint outbox_once do nothing
        returning o.id, o.action, o.due_at, o.scope, o.part
    ), queued as (
        insert into samekey.outbox_queue (id, action, status, due_at, share)
        select i.id, i.action, 'pending', i.due_at, samekey.share_of(i.action, i.scope, i.part) from intent i
    )
    select coalesce(array_agg(g.n::integer order by g.n), '{}') into v_rest from given g where g.id not in (select i.id from intent i);
    if must_be_new and cardinality(v_rest) > 0 then
        raise exception 'samekey: enqueue_many: % of % intents exist or break a rule', cardinality(v_rest), cardinality(scopes)
            using errcode = 'SK002', hint = 'Roll back and call enqueue for each intent, which returns the id or names the error.';
    end if;
    return v_rest;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erasable(id uuid)
 RETURNS boolean
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return (select h.intent_id from samekey.outbox_history h where h.intent_id = erasable.id and h.final_status is not null limit 1) is not null
        and (select q.id from samekey.outbox_queue q where q.id = erasable.id limit 1) is null
        and (select n.id from samekey.outbox_attention n
             where n.intent_id = erasable.id and (select a.attention from samekey.actions a where a.action = n.action) limit 1) is null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_batch(act text, subject text, scope text, actor text, reason text, max_count integer, after jsonb, OUT intents integer, OUT records integer, OUT skipped integer, OUT next jsonb)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_last  uuid;
    v_found record;
    v_kind  text;
    v_ids   uuid[];
begin
    perform samekey.act_check(act, actor, reason);
    if coalesce(subject, scope, '') = '' then
        raise exception 'samekey: %: the % is required', act, substring(act from 7) using errcode = '22023', column = substring(act from 7);
    elsif max_count is null or max_count not between 1 and 10000 then
        raise exception 'samekey: %: max_count must be between 1 and 10000', act using errcode = '22023', column = 'max_count';
    elsif after is not null and not (after ? 'intent' or after ? 'key' and after ? 'scope' or scope is not null and after ?| '{queue,attention}') then
        raise exception 'samekey: %: after must be null, or what the last call returned as next', act using errcode = '22023', column = 'after';
    end if;
    intents := 0;
    records := 0;
    skipped := 0;
    if subject is not null and after is null then
        v_found := samekey.erase_unfinished(subject, null);
        perform samekey.erase_refuse(act, v_found.intents, v_found.sample, v_found.requests);
    elsif after is null or after ?| '{queue,attention}' then
        foreach v_kind in array case when after ? 'attention' then '{attention}'::text[] else '{queue,attention}' end loop
            select l.ids, l.next into v_ids, next from samekey.erase_look(scope, v_kind, after ->> v_kind) l;
            perform samekey.erase_refuse(act, cardinality(v_ids), v_ids[:10], 0);
            if next is not null then
                return;
            end if;
        end loop;
        perform samekey.erase_refuse(act, 0, null, (select count(*) from samekey.operations p where p.scope = erase_batch.scope collate "C"));
    end if;
    if after ? 'key' then
        select r.records, r.skipped, r.next into records, skipped, next
        from samekey.erase_records(act, subject, scope, actor, reason, max_count, after ->> 'key', after ->> 'scope') r;
        return;
    end if;
    select i.intents, i.skipped, i.last into intents, skipped, v_last
    from samekey.erase_intents(act, subject, scope, actor, reason, max_count,
                               coalesce((after ->> 'intent')::uuid, '00000000-0000-0000-0000-000000000000')) i;
    next := case when v_last is null then '{"key": "", "scope": ""}' else jsonb_build_object('intent', v_last) end;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_intents(act text, subject text, scope text, actor text, reason text, max_count integer, after_id uuid, OUT intents integer, OUT skipped integer, OUT last uuid)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET jit TO 'off'
AS $function$
declare
    v_walk   constant integer := 10000;
    v_ids    uuid[];
    v_locked uuid[];
    v_busy   uuid[];
begin
    if erase_intents.subject is not null then
        v_ids := array(
            select o.id from samekey.outbox o
            where o.subject = erase_intents.subject collate "C" and o.subject is not null and o.id > after_id
            order by o.id limit max_count);
    else
        with page as materialized (
            select o.id, o.scope, o.erased_at from samekey.outbox o where o.id > after_id order by o.id limit v_walk
        )
        select array(select p.id from page p where p.scope = erase_intents.scope collate "C" and p.erased_at is null order by p.id limit max_count),
               (select p.id from page p order by p.id offset v_walk - 1 limit 1)
        into v_ids, last;
    end if;
    if cardinality(v_ids) = max_count then
        last := v_ids[max_count];
    end if;
    v_locked := array(select o.id from samekey.outbox o where o.id = any (v_ids) and o.erased_at is null order by o.id for update skip locked);
    -- In a snapshot that is younger than the locks.
    v_busy := array(select i from unnest(v_locked) i where not samekey.erasable(i) order by i);
    perform samekey.erase_refuse(act, cardinality(v_busy), v_busy[:10], 0);

    update samekey.outbox o
    set erased_at = clock_timestamp(), payload = samekey.erased_hash(o.delivery_key, o.payload), headers = '{}',
        subject = null, ordering_key = null, requested_by = null, trace_context = null
    where o.id = any (v_locked);
    update samekey.outbox_history h set error = null, response_type = null, response = null, reference = null where h.intent_id = any (v_locked);
    update samekey.outbox_sends s set request = null, request_type = null, message_id = null where s.intent_id = any (v_locked);
    update samekey.outbox_attention n set error = null, reason = null, last_error = null where n.intent_id = any (v_locked);
    insert into samekey.outbox_history (intent_id, event, actor, reason, db_user)
    select i, 'erased', erase_intents.actor, erase_intents.reason, session_user from unnest(v_locked) i;

    intents := cardinality(v_locked);
    skipped := (select count(*) from samekey.outbox o where o.id = any (v_ids) and o.id <> all (v_locked) and o.erased_at is null);
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_look(scope text, kind text, after_row text, OUT ids uuid[], OUT next jsonb)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET jit TO 'off'
AS $function$
declare
    v_walk constant integer := 10000;
begin
    if kind = 'queue' then
        with page as materialized (
            select q.id from samekey.outbox_queue q
            where q.id > coalesce(after_row, '00000000-0000-0000-0000-000000000000')::uuid order by q.id limit v_walk
        )
        select array(select p.id from page p cross join lateral (select x.scope from samekey.outbox x where x.id = p.id offset 0) o
                     where o.scope = erase_look.scope collate "C" order by p.id),
               (select jsonb_build_object(kind, p.id) from page p order by p.id offset v_walk - 1 limit 1)
        into ids, next;
    else
        with page as materialized (
            select n.id, n.intent_id, n.action from samekey.outbox_attention n
            where n.id > coalesce(after_row, '0')::bigint order by n.id limit v_walk
        )
        select array(select distinct p.intent_id from page p
                     cross join lateral (select x.scope, x.erased_at from samekey.outbox x where x.id = p.intent_id offset 0) o
                     where (select a.attention from samekey.actions a where a.action = p.action)
                       and o.scope = erase_look.scope collate "C" and o.erased_at is null),
               (select jsonb_build_object(kind, p.id) from page p order by p.id offset v_walk - 1 limit 1)
        into ids, next;
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_plan(subject text DEFAULT NULL::text, scope text DEFAULT NULL::text, OUT intents bigint, OUT records bigint, OUT unfinished bigint, OUT sample uuid[], OUT requests bigint)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET jit TO 'off'
AS $function$
declare
    v_found record;
begin
    erase_plan.subject := nullif(erase_plan.subject, '');
    erase_plan.scope := nullif(samekey.own_scope(erase_plan.scope), '');
    if (erase_plan.subject is null) = (erase_plan.scope is null) then
        raise exception 'samekey: erase_plan: give either a subject or a scope' using errcode = '22023', column = 'subject';
    end if;
    v_found := samekey.erase_unfinished(erase_plan.subject, erase_plan.scope);
    unfinished := v_found.intents;
    sample := v_found.sample;
    requests := v_found.requests;
    if erase_plan.subject is not null then
        intents := (select count(*) from samekey.outbox o where o.subject = erase_plan.subject collate "C" and o.subject is not null);
        records := (select count(*) from samekey.processed_events p where p.subject = erase_plan.subject collate "C" and p.subject is not null);
    else
        intents := (select count(*) from samekey.outbox o where o.scope = erase_plan.scope collate "C" and o.erased_at is null);
        records := (select count(*) from samekey.processed_events p where p.scope = erase_plan.scope collate "C" and p.erased_at is null);
    end if;
    intents := intents - unfinished;
    records := records - requests;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_records(act text, subject text, scope text, actor text, reason text, max_count integer, after_key text, after_scope text, OUT records integer, OUT skipped integer, OUT next jsonb)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
 SET jit TO 'off'
AS $function$
declare
    v_walk   constant integer := 10000;
    v_keys   text[];
    v_scopes text[];
    v_seen   integer;
    v_busy   bigint;
begin
    if erase_records.subject is not null then
        with mine as materialized ( -- by the index on subject, and not along the primary key
            select p.idem_key, p.scope from samekey.processed_events p
            where p.subject = erase_records.subject collate "C" and p.subject is not null
        ), batch as materialized (
            select m.idem_key, m.scope from mine m
            where (m.idem_key, m.scope) > (after_key collate "C", after_scope collate "C")
            order by m.idem_key, m.scope limit max_count
        )
        select array(select b.idem_key from batch b), array(select b.scope from batch b) into v_keys, v_scopes;
    else
        with page as materialized (
            select p.idem_key, p.scope, p.erased_at from samekey.processed_events p
            where (p.idem_key, p.scope) > (after_key collate "C", after_scope collate "C")
            order by p.idem_key, p.scope limit v_walk
        ), batch as materialized (
            select p.idem_key, p.scope from page p where p.scope = erase_records.scope collate "C" and p.erased_at is null
            order by p.idem_key, p.scope limit max_count
        )
        select array(select b.idem_key from batch b), array(select b.scope from batch b),
               (select jsonb_build_object('key', p.idem_key, 'scope', p.scope) from page p order by p.idem_key, p.scope offset v_walk - 1 limit 1)
        into v_keys, v_scopes, next;
    end if;
    v_seen := cardinality(v_keys);
    if v_seen = max_count then
        next := jsonb_build_object('key', v_keys[max_count], 'scope', v_scopes[max_count]);
    end if;
    select coalesce(array_agg(l.idem_key), '{}'), coalesce(array_agg(l.scope), '{}'), count(*) filter (where l.completed_at is null)
    into v_keys, v_scopes, v_busy
    from (select p.idem_key, p.scope, p.completed_at
          from unnest(v_keys, v_scopes) k (idem_key, scope)
          join samekey.processed_events p on p.idem_key = k.idem_key collate "C" and p.scope = k.scope collate "C"
          where p.erased_at is null
          for update of p skip locked) l;
    perform samekey.erase_refuse(act, 0, null, v_busy);

    update samekey.processed_events p
    set erased_at = clock_timestamp(), response_headers = null, response_body = null, subject = null
    from unnest(v_keys, v_scopes) k (idem_key, scope)
    where p.idem_key = k.idem_key collate "C" and p.scope = k.scope collate "C";
    update samekey.operation_steps s
    set result = null, error = null
    from unnest(v_keys, v_scopes) k (idem_key, scope)
    where s.idem_key = k.idem_key collate "C" and s.scope = k.scope collate "C";
    insert into samekey.operation_steps (idem_key, scope, position, name, status, finished_at, resolved_at, resolved_by, resolved_db_user, resolved_reason)
    select k.idem_key, k.scope,
           coalesce((select max(t.position) from samekey.operation_steps t
                     where t.idem_key = k.idem_key collate "C" and t.scope = k.scope collate "C"), 0) + 1,
           'samekey.erased', 'done', clock_timestamp(), clock_timestamp(), erase_records.actor, session_user, erase_records.reason
    from unnest(v_keys, v_scopes) k (idem_key, scope);
    records := cardinality(v_keys);
    skipped := v_seen - records;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_refuse(act text, intents bigint, sample uuid[], requests bigint)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if intents > 0 then
        raise exception 'samekey: %: intents that are not finished: %, such as %', act, intents, array_to_string(sample, ', ')
            using errcode = 'SK011', constraint = 'unfinished',
                  hint = 'Finish, cancel or resolve them first, and wait until the application has taken their attention events.';
    elsif requests > 0 then
        raise exception 'samekey: %: operations that are not completed: %', act, requests
            using errcode = 'SK011', constraint = 'unfinished', hint = 'Complete or abandon them first.';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_scope(scope text, actor text, reason text, max_count integer DEFAULT 500, after jsonb DEFAULT NULL::jsonb, OUT intents integer, OUT records integer, OUT skipped integer, OUT next jsonb)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    select b.* into intents, records, skipped, next
    from samekey.erase_batch('erase_scope', null, samekey.own_scope(coalesce(scope, '')), actor, reason, max_count, after) b;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_subject(subject text, actor text, reason text, max_count integer DEFAULT 500, after jsonb DEFAULT NULL::jsonb, OUT intents integer, OUT records integer, OUT skipped integer, OUT next jsonb)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    select b.* into intents, records, skipped, next
    from samekey.erase_batch('erase_subject', coalesce(subject, ''), null, actor, reason, max_count, after) b;
end
$function$

CREATE OR REPLACE FUNCTION samekey.erase_unfinished(subject text, scope text, OUT intents bigint, OUT sample uuid[], OUT requests bigint)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_custom_plan'
 SET jit TO 'off'
AS $function$
declare
    v_ids uuid[];
begin
    if erase_unfinished.subject is not null then
        v_ids := array(
            select o.id from samekey.outbox o
            where o.subject = erase_unfinished.subject collate "C" and o.subject is not null and not samekey.erasable(o.id)
            order by o.id);
        requests := (select count(*) from samekey.processed_events p
                     where p.subject = erase_unfinished.subject collate "C" and p.subject is not null and p.completed_at is null);
    else
        v_ids := array(
            select w.id
            from (select q.id from samekey.outbox_queue q
                  union
                  select n.intent_id from samekey.outbox_attention n join samekey.actions a on a.action = n.action where a.attention) w
            cross join lateral (select x.scope, x.erased_at from samekey.outbox x where x.id = w.id offset 0) o
            where o.scope = erase_unfinished.scope collate "C" and o.erased_at is null
            order by w.id);
        requests := (select count(*) from samekey.operations p where p.scope = erase_unfinished.scope collate "C");
    end if;
    intents := cardinality(v_ids);
    sample := v_ids[:10];
end
$function$

CREATE OR REPLACE FUNCTION samekey.erased_hash(delivery_key uuid, payload bytea)
 RETURNS bytea
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return sha256(uuid_send(delivery_key) || payload);
end
$function$

CREATE OR REPLACE FUNCTION samekey.erased_hint()
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$ select 'it is finished, and its content was erased: for another effect, insert an intent under another key or part' $function$

CREATE OR REPLACE FUNCTION samekey.fair_pick(action text, shares text[], quotas integer[], due_from timestamp with time zone)
 RETURNS uuid[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_sort TO 'off'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
declare
    v_now timestamptz := clock_timestamp();
begin
    return array(
        select x.id
        from unnest(fair_pick.shares, fair_pick.quotas) as s (share, quota)
        cross join lateral (
            select q.id
            from samekey.outbox_queue q
            where q.action = fair_pick.action collate "C"
              and q.share >= s.share collate "C" and q.share <= s.share collate "C"
              and q.leased_by is null and q.status in ('pending', 'unknown')
              and q.due_at >= fair_pick.due_from and q.due_at <= v_now
            order by q.share, q.due_at
            limit s.quota
            for update skip locked) x);
end
$function$

CREATE OR REPLACE FUNCTION samekey.fair_walk(action text, from_share text, due_from timestamp with time zone, max_steps integer, page_size integer, OUT shares text[], OUT due boolean[], OUT first_due timestamp with time zone)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_sort TO 'off'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
declare
    v_now    timestamptz := clock_timestamp();
    v_page   integer := least(page_size, max_steps);
    v_read   integer;
    v_share  text;
    v_due_at timestamptz;
begin
    select coalesce(array_agg(f.share order by f.share), '{}'), coalesce(array_agg(f.due_at <= v_now order by f.share), '{}'),
           least(min(f.due_at), v_now), coalesce(sum(f.n), 0)
    into fair_walk.shares, fair_walk.due, fair_walk.first_due, v_read
    from (select p.share, min(p.due_at) as due_at, count(*) as n
          from (select q.share, q.due_at
                from samekey.outbox_queue q
                where q.action = fair_walk.action collate "C" and q.share >= fair_walk.from_share collate "C"
                  and q.leased_by is null and q.status in ('pending', 'unknown') and q.due_at >= fair_walk.due_from
                order by q.share, q.due_at limit v_page) p
          group by p.share) f;
    while v_read = v_page and cardinality(shares) < max_steps loop
        select q.share, q.due_at into v_share, v_due_at
        from samekey.outbox_queue q
        where q.action = fair_walk.action collate "C" and q.share > fair_walk.shares[cardinality(fair_walk.shares)]
          and q.leased_by is null and q.status in ('pending', 'unknown') and q.due_at >= fair_walk.due_from
        order by q.share, q.due_at limit 1;
        exit when not found;
        shares := shares || v_share;
        due := due || (v_due_at <= v_now);
        first_due := least(first_due, v_due_at);
    end loop;
end
$function$

CREATE OR REPLACE FUNCTION samekey.header_owner(name text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN (lower((name COLLATE "C")) = ANY (ARRAY['host'::text, 'content-length'::text, 'transfer-encoding'::text, 'connection'::text, 'keep-alive'::text, 'te'::text, 'trailer'::text, 'upgrade'::text, 'expect'::text, 'accept-encoding'::text, 'proxy-connection'::text, 'proxy-authorization'::text, 'proxy-authenticate'::text])) THEN 'connection'::text WHEN (lower((name COLLATE "C")) = ANY (ARRAY['idempotency-key'::text, 'x-idempotency-key'::text, 'content-type'::text, 'traceparent'::text, 'tracestate'::text, 'samekey-attempt'::text])) THEN 'worker'::text ELSE NULL::text END

CREATE OR REPLACE FUNCTION samekey.headers_refusal(headers jsonb)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_seen text[] := '{}';
    v_name text;
    h      record;
begin
    if jsonb_typeof(headers) <> 'object' then
        return 'must be a JSON object of header names and values';
    end if;
    for h in select e.key collate "C" as name, jsonb_typeof(e.value) as kind, (e.value #>> '{}') collate "C" as value from jsonb_each(headers) e loop
        v_name := lower(h.name);
        if h.name !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' then
            return 'have an invalid name: use letters, digits and -';
        elsif samekey.header_owner(v_name) is not null then
            return format('must not contain "%s": the worker sets it', v_name);
        elsif v_name in ('authorization', 'cookie', 'set-cookie', 'x-api-key', 'api-key', 'x-auth-token') then
            return format('must not contain "%s": set secrets in the configuration of the worker', v_name);
        elsif h.kind <> 'string' or h.value !~ '^([!-~]([ -~\t]*[!-~])?)?$' then
            return format('have an invalid value of "%s": use a string of printable ASCII without spaces at the ends', v_name);
        elsif v_name = any (v_seen) then
            return format('contain "%s" twice, in different case: keep one', v_name);
        end if;
        v_seen := v_seen || v_name;
    end loop;
    if octet_length(headers::text) > 16384 then
        return format('have %s bytes, the limit is 16384: move large values to the payload', octet_length(headers::text));
    end if;
    return null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.hold_successor(id uuid, OUT successor uuid, OUT status text, OUT held boolean, OUT sent boolean)
 RETURNS SETOF record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    loop
        select s.id into successor
        from samekey.outbox o
        join samekey.outbox s on s.idem_key = o.idem_key and s.scope = o.scope and s.action = o.action and s.part = o.part
        where o.id = hold_successor.id and s.revision > o.revision
        order by s.revision desc
        limit 1;
        if successor is null then
            return;
        end if;
        select q.status, q.first_sent_at is not null or q.status not in ('pending', 'awaiting_approval', 'parked', 'dead') into status, sent
        from samekey.outbox_queue q where q.id = successor for update;
        -- This may have waited for a transaction that replaced the successor: then another one is the last.
        exit when status is not null or not exists (select from samekey.outbox s where s.replaces = successor);
    end loop;
    held := coalesce(status in ('pending', 'awaiting_approval', 'dead'), false);
    if held then
        update samekey.outbox_queue q
        set status = 'parked', attempt = q.attempt + 1, approved_at = null, last_code = 'predecessor_delivered',
            cause = 'the intent that it replaces was delivered'
        where q.id = successor;
        insert into samekey.outbox_history (intent_id, event, outcome, code)
        values (successor, 'held', 'parked', 'predecessor_delivered');
        perform samekey.note_attention(successor, (select q.action from samekey.outbox_queue q where q.id = successor), 'parked', 'held',
            'predecessor_delivered');
    elsif status is null then
        select h.final_status, h.outcome is not null into status, sent -- a person's act has no outcome
        from samekey.outbox_history h where h.intent_id = successor and h.final_status is not null;
    end if;
    sent := coalesce(sent, true);
    -- The application learns that there may be two effects, unless there is nothing left to tell it about.
    if sent and not held and samekey.keeps_content(hold_successor.id) then
        perform samekey.note_attention(hold_successor.id, (select o.action from samekey.outbox o where o.id = hold_successor.id), 'cancelled',
            (select h.event from samekey.outbox_history h where h.intent_id = hold_successor.id order by h.id desc limit 1), 'successor_sent');
    end if;
    return next;
end
$function$

CREATE OR REPLACE FUNCTION samekey.intent_refusal(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb, ordering_key text, due_at timestamp with time zone, deadline timestamp with time zone, trace_context text, id uuid, requested_by text, subject text, OUT field text, OUT wrong text)
 RETURNS record
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    t record;
begin
    for t in select * from (values ('scope', scope, 255, true), ('idem_key', idem_key, 255, true), ('action', action, 63, true), ('part', part, 255, false),
                                   ('content_type', content_type, 255, false), ('ordering_key', ordering_key, 255, false),
                                   ('trace_context', trace_context, 512, false), ('requested_by', requested_by, 255, false),
                                   ('subject', subject, 255, false)) v (field, value, max_bytes, required) loop
        wrong := case
            when t.required and coalesce(t.value, '') collate "C" = '' then 'is required'
            when octet_length(t.value) > t.max_bytes then format('has %s bytes, the limit is %s', octet_length(t.value), t.max_bytes)
            when t.field = 'action' and t.value collate "C" !~ '^[a-z][a-z0-9_.-]*$' then 'must match ^[a-z][a-z0-9_.-]{0,62}$, as in charge_card'
            when t.field in ('scope', 'idem_key') and t.value collate "C" !~ '^[!-~]([ -~]*[!-~])?$'
                then 'must be printable ASCII without spaces at the ends'
            when t.field = 'scope' and ('/' || t.value || '/') collate "C" like '%//%'
                then 'has an empty part: use the tenant or principal and the operation, as in acme/orders.create'
            when t.field in ('part', 'ordering_key', 'requested_by', 'subject')
                 and t.value collate "C" ~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
                then 'contains a control or invisible character: use printable text'
            when t.field = 'trace_context' and t.value collate "C" !~ '^([!-~]([ -~\t]*[!-~])?)?$'
                then 'must be printable ASCII, as in the header traceparent'
            when t.field = 'content_type' and t.value collate "C" <> '' and t.value collate "C"
                 !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+/[A-Za-z0-9!#$%&''*+.^_`|~-]+([ \t]*;[ \t]*[A-Za-z0-9!#$%&''*+.^_`|~-]+=([A-Za-z0-9!#$%&''*+.^_`|~-]+|"([ !#-\[\]-~]|\\[ -~])*"))*$'
                then 'must be a media type, as in application/json'
        end;
        field := t.field;
        exit when wrong is not null;
    end loop;
    if wrong is null then
        field := 'payload';
        wrong := case
            when payload is null then 'is required: pass {} if the effect needs none'
            when octet_length(payload) > 1048576 then format('has %s bytes, the limit is 1048576: store it elsewhere and send a reference', octet_length(payload))
            when (coalesce(content_type, '') = '' or content_type collate "C" ~* '^(application/json|[^;]+\+json)[ \t]*(;|$)') and not samekey.is_json(payload)
                then 'is not JSON in UTF-8: pass its content_type, as in application/octet-stream' end;
    end if;
    if wrong is null then
        field := 'headers';
        wrong := samekey.headers_refusal(headers);
    end if;
    if wrong is null and due_at not between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        field := 'due_at';
        wrong := 'is not between the years 1970 and 9999: omit it to send now';
    elsif wrong is null and deadline not between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        field := 'deadline';
        wrong := 'is not between the years 1970 and 9999: omit it for none';
    elsif wrong is null and deadline <= due_at then
        field := 'deadline';
        wrong := 'must be after due_at, or the intent is never sent';
    elsif wrong is null and id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
        field := 'id';
        wrong := 'is the nil or the max UUID: omit it, or pass a version 7 UUID';
    end if;
    if wrong is null then
        field := null;
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.intent_states(scopes text[], idem_keys text[], ids uuid[])
 RETURNS TABLE(n integer, id uuid, action text, status text, code text)
 LANGUAGE plpgsql
 STABLE SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_generic_plan'
 SET jit TO 'off'
AS $function$
#variable_conflict use_column
begin
    perform samekey.own_scope(s.scope) from unnest(intent_states.scopes) as s (scope);
    return query
    with recursive chain as (
        select w.n::integer as n, i.id, i.action, 0 as hops
        from unnest(intent_states.scopes, intent_states.idem_keys, intent_states.ids) with ordinality as w (scope, idem_key, id, n)
        cross join lateral (select o.id, o.action from samekey.outbox o
                            where o.id = w.id and o.idem_key = w.idem_key collate "C" and o.scope = w.scope collate "C" offset 0) i
        union all
        select c.n, s.id, s.action, c.hops + 1
        from chain c
        cross join lateral (select o.id, o.action from samekey.outbox o where o.replaces = c.id offset 0) s
    ), last as (
        select distinct on (c.n) c.n, c.id, c.action from chain c order by c.n, c.hops desc
    )
    select l.n, l.id, l.action::text, coalesce(f.final_status, q.status)::text,
           (case when f.final_status is null then q.last_code else f.code end)::text
    from last l
    left join lateral (select x.status, x.last_code from samekey.outbox_queue x where x.id = l.id offset 0) q on true
    left join lateral (select h.final_status, h.code from samekey.outbox_history h
                       where h.intent_id = l.id and h.final_status is not null offset 0) f on true;
end
$function$

CREATE OR REPLACE FUNCTION samekey.is_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb, ordering_key text, due_at timestamp with time zone, deadline timestamp with time zone, trace_context text, id uuid, requested_by text, subject text, payload_checked boolean)
 RETURNS boolean
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
    select octet_length(is_intent.scope) <= 255
       and is_intent.scope collate "C" ~ '^[!-.0-~]([ -~]*[!-.0-~])?$' and strpos(is_intent.scope collate "C", '//') = 0
       and octet_length(is_intent.idem_key) <= 255 and is_intent.idem_key collate "C" ~ '^[!-~]([ -~]*[!-~])?$'
       and octet_length(is_intent.action) <= 63 and is_intent.action collate "C" ~ '^[a-z][a-z0-9_.-]*$'
       and octet_length(is_intent.payload) <= 1048576
       and coalesce(octet_length(is_intent.part), 0) <= 255 and coalesce(octet_length(is_intent.ordering_key), 0) <= 255
       and coalesce(octet_length(is_intent.requested_by), 0) <= 255 and coalesce(octet_length(is_intent.subject), 0) <= 255
       and concat(is_intent.part, is_intent.ordering_key, is_intent.requested_by, is_intent.subject) collate "C"
           !~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
       and (case when coalesce(is_intent.content_type, '') collate "C" in ('', 'application/json') then is_intent.payload_checked or samekey.is_json(is_intent.payload)
                else octet_length(is_intent.content_type) <= 255 and is_intent.content_type collate "C"
                     ~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+/[A-Za-z0-9!#$%&''*+.^_`|~-]+([ \t]*;[ \t]*[A-Za-z0-9!#$%&''*+.^_`|~-]+=([A-Za-z0-9!#$%&''*+.^_`|~-]+|"([ !#-\[\]-~]|\\[ -~])*"))*$'
                     and (is_intent.content_type collate "C" !~* '^(application/json|[^;]+\+json)[ \t]*(;|$)' or is_intent.payload_checked or samekey.is_json(is_intent.payload)) end)
       and (is_intent.headers is null or is_intent.headers = '{}' or samekey.headers_refusal(is_intent.headers) is null)
       and (is_intent.due_at is null or is_intent.due_at between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00')
       and (is_intent.deadline is null or is_intent.deadline between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00'
            and coalesce(is_intent.deadline > is_intent.due_at, true))
       and (is_intent.trace_context is null or octet_length(is_intent.trace_context) <= 512
            and is_intent.trace_context collate "C" ~ '^([!-~]([ -~\t]*[!-~])?)?$')
       and (is_intent.id is null or is_intent.id > '00000000-0000-0000-0000-000000000000' and is_intent.id < 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       and samekey.own_scope(is_intent.scope) is not null
$function$

CREATE OR REPLACE FUNCTION samekey.is_json(payload bytea)
 RETURNS boolean
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_text   text;
    v_parsed json;
begin
    v_text := convert_from(payload, 'UTF8');
    v_parsed := v_text::json;
    if octet_length(payload) <= 20000 or length(v_text) - length(translate(v_text, '[{', '')) <= 10000 then
        return v_parsed is not null;
    end if;
    return (
        select max(d.depth) <= 10000
        from (select sum(case when c.bracket in ('[', '{') then 1 else -1 end) over (order by c.n rows unbounded preceding) as depth
              from string_to_table(regexp_replace(regexp_replace(v_text, '"([^"\\]|\\.)*"', '', 'g'), '[^][{}]', '', 'g'), null)
                   with ordinality c (bracket, n)) d);
exception when invalid_text_representation or character_not_in_repertoire or untranslatable_character or statement_too_complex then
    return false;
end
$function$

CREATE OR REPLACE FUNCTION samekey.keeps_content(id uuid)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return (select o.erased_at is null from samekey.outbox o where o.id = keeps_content.id for share);
end
$function$

CREATE OR REPLACE FUNCTION samekey.key_hash(scope text, idem_key text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select left(encode(sha256(
        convert_to('samekey/log/v1', 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8')))    || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(idem_key, 'UTF8'))) || convert_to(idem_key, 'UTF8')), 'hex'), 8)
$function$

CREATE OR REPLACE FUNCTION samekey.key_lock(scope text, idem_key text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ select pg_catalog.hashtextextended((pg_catalog.octet_length(scope)::text || ':' || scope || idem_key) collate pg_catalog."C", 7309453201) $function$

CREATE OR REPLACE FUNCTION samekey.may_have_acted(intent_id uuid, first_sent_at timestamp with time zone)
 RETURNS SETOF bigint
 LANGUAGE sql
 STABLE
AS $function$
    select h.id
    from samekey.outbox_history h
    where h.intent_id = may_have_acted.intent_id and h.at >= may_have_acted.first_sent_at
      and (h.event = 'restored' or h.event in ('attempt', 'lookup', 'late', 'orphaned')
           and coalesce(h.outcome, 'unknown') not in ('retry', 'unsent', 'dead', 'awaiting_approval'))
$function$

CREATE OR REPLACE FUNCTION samekey.merge_patch(target json, patch jsonb)
 RETURNS json
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if jsonb_typeof(patch) <> 'object' then
        return patch;
    end if;
    return (
        select '{' || coalesce(string_agg(to_json(m.key) || ':' || m.value, ',' order by m.n, m.added), '') || '}'
        from (
            select t.n, p.n as added, coalesce(t.key, p.key) as key, case when p.key is null then t.value else samekey.merge_patch(t.value, p.value) end as value
            from json_each(case json_typeof(target) when 'object' then target else '{}' end) with ordinality t (key, value, n)
            full join jsonb_each(patch) with ordinality p (key, value, n) on p.key = t.key
            where jsonb_typeof(p.value) is distinct from 'null') m);
end
$function$

CREATE OR REPLACE FUNCTION samekey.note_attention(intent_id uuid, action text, status text, event text, code text DEFAULT NULL::text, error text DEFAULT NULL::text, actor text DEFAULT NULL::text, reason text DEFAULT NULL::text)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    insert into samekey.outbox_attention (intent_id, first_id, action, status, event, code, error, actor, reason)
    select note_attention.intent_id,
           coalesce((select f.id
                     from (select x.idem_key, x.scope, x.action, x.part, x.revision from samekey.outbox x where x.id = note_attention.intent_id offset 0) o
                     join samekey.outbox f on f.idem_key = o.idem_key and f.scope = o.scope and f.action = o.action and f.part = o.part
                     where o.revision > 0 and f.revision = 0), note_attention.intent_id),
           a.action, note_attention.status, note_attention.event,
           nullif(note_attention.code, ''), nullif(note_attention.error, ''), note_attention.actor, note_attention.reason
    from samekey.actions a
    where a.action = note_attention.action collate "C" and a.attention;
    return found;
end
$function$

CREATE OR REPLACE FUNCTION samekey.operation_complete(scope text, idem_key text, fence bigint, retain_us bigint, failed boolean, code integer, headers bytea, body bytea)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    perform samekey.operation_hold(operation_complete.scope, operation_complete.idem_key, operation_complete.fence, 0);
    if exists (select from samekey.operation_steps s
               where s.idem_key = operation_complete.idem_key collate "C" and s.scope = operation_complete.scope collate "C" and s.status in ('in_flight', 'parked')) then
        raise exception 'samekey: the operation with key % has a step whose outcome is unknown',
            samekey.key_hash(operation_complete.scope, operation_complete.idem_key) using errcode = 'SK011', constraint = 'in_flight';
    end if;
    update samekey.processed_events p
    set completed_at = clock_timestamp(), expires_at = clock_timestamp() + interval '1 microsecond' * operation_complete.retain_us,
        failed = operation_complete.failed, response_code = operation_complete.code, response_headers = operation_complete.headers,
        response_body = operation_complete.body
    where p.idem_key = operation_complete.idem_key collate "C" and p.scope = operation_complete.scope collate "C" and p.completed_at is null;
    delete from samekey.operations o
    where o.idem_key = operation_complete.idem_key collate "C" and o.scope = operation_complete.scope collate "C";
end
$function$

CREATE OR REPLACE FUNCTION samekey.operation_hold(scope text, idem_key text, fence bigint, lease_us bigint)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    operation_hold.scope := samekey.own_scope(operation_hold.scope);
    update samekey.operations o
    set lease_until = clock_timestamp() + interval '1 microsecond' * operation_hold.lease_us
    where o.idem_key = operation_hold.idem_key collate "C" and o.scope = operation_hold.scope collate "C"
      and o.fence = operation_hold.fence;
    if not found then
        raise exception 'samekey: another call works on the operation with key %',
            samekey.key_hash(operation_hold.scope, operation_hold.idem_key)
            using errcode = 'SK020', hint = 'Call again with the same key: it resumes the operation, or returns its answer.';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.operation_lock_idle(act text, scope text, idem_key text, actor text, reason text)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_until timestamptz;
begin
    operation_lock_idle.scope := samekey.own_scope(operation_lock_idle.scope);
    perform samekey.act_check(operation_lock_idle.act, operation_lock_idle.actor, operation_lock_idle.reason);
    select o.lease_until into v_until
    from samekey.operations o
    where o.idem_key = operation_lock_idle.idem_key collate "C" and o.scope = operation_lock_idle.scope collate "C"
    for update skip locked;
    if found and v_until <= clock_timestamp() then
        return;
    elsif found or exists (select from samekey.operations o
                           where o.idem_key = operation_lock_idle.idem_key collate "C" and o.scope = operation_lock_idle.scope collate "C") then
        raise exception 'samekey: %: a call works on the operation with key %', operation_lock_idle.act,
            samekey.key_hash(operation_lock_idle.scope, operation_lock_idle.idem_key)
            using errcode = 'SK011', constraint = 'running', hint = 'Wait until it ends, at most until operations.lease_until.';
    end if;
    raise exception 'samekey: %: no operation with key % is in progress', operation_lock_idle.act,
        samekey.key_hash(operation_lock_idle.scope, operation_lock_idle.idem_key) using errcode = 'SK010';
end
$function$

CREATE OR REPLACE FUNCTION samekey.operation_release(scope text, idem_key text, fence bigint)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    operation_release.scope := samekey.own_scope(operation_release.scope);
    update samekey.operations o set lease_until = clock_timestamp()
    where o.idem_key = operation_release.idem_key collate "C" and o.scope = operation_release.scope collate "C"
      and o.fence = operation_release.fence;
    if not found or exists (select from samekey.operation_steps s
                            where s.idem_key = operation_release.idem_key collate "C" and s.scope = operation_release.scope collate "C"
                              and (s.status <> 'unsent' or s.resolved_at is not null)) then
        return;
    end if;
    delete from samekey.operation_steps s
    where s.idem_key = operation_release.idem_key collate "C" and s.scope = operation_release.scope collate "C";
    delete from samekey.operations o
    where o.idem_key = operation_release.idem_key collate "C" and o.scope = operation_release.scope collate "C";
    delete from samekey.processed_events p
    where p.idem_key = operation_release.idem_key collate "C" and p.scope = operation_release.scope collate "C" and p.completed_at is null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.operation_start(scope text, idem_key text, payload_hash bytea, hash_version smallint, retain_us bigint, subject text, fence bigint, lease_us bigint, OUT outcome text, OUT retry_us bigint)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_locked  boolean;
    v_same    boolean;
    v_fence   bigint;
    v_until   timestamptz;
begin
    retry_us := 0;
    v_locked := pg_try_advisory_xact_lock(samekey.key_lock(samekey.own_scope(operation_start.scope), operation_start.idem_key));
    select p.completed_at is null and p.payload_hash = operation_start.payload_hash and p.hash_version = operation_start.hash_version
    into v_same
    from samekey.processed_events p
    where p.idem_key = operation_start.idem_key collate "C" and p.scope = operation_start.scope collate "C";
    if not found then
        outcome := 'held'; -- by a Run or Do that has not committed
        if v_locked then
            insert into samekey.processed_events as p (idem_key, scope, payload_hash, hash_version, subject, expires_at)
            values (operation_start.idem_key, operation_start.scope, operation_start.payload_hash, operation_start.hash_version, nullif(operation_start.subject, ''),
                    clock_timestamp() + interval '1 microsecond' * operation_start.retain_us)
            on conflict (idem_key, scope) do nothing;
            if found then
                insert into samekey.operations as o (idem_key, scope, fence, lease_until)
                values (operation_start.idem_key, operation_start.scope, operation_start.fence,
                        clock_timestamp() + interval '1 microsecond' * operation_start.lease_us);
                outcome := 'mine';
            end if;
        end if;
        return;
    end if;
    outcome := 'other';
    if not v_same then
        return;
    end if;
    select o.fence, o.lease_until into v_fence, v_until
    from samekey.operations o
    where o.idem_key = operation_start.idem_key collate "C" and o.scope = operation_start.scope collate "C"
    for update skip locked;
    if not found then -- a step's transaction has the row, however old its lease is
        select greatest(0, extract(epoch from o.lease_until - clock_timestamp()) * 1000000)::bigint into retry_us
        from samekey.operations o
        where o.idem_key = operation_start.idem_key collate "C" and o.scope = operation_start.scope collate "C";
        outcome := 'held';
        retry_us := coalesce(retry_us, 0);
        return;
    end if;
    if v_fence <> operation_start.fence then
        if v_until > clock_timestamp() then
            outcome := 'held';
            retry_us := extract(epoch from v_until - clock_timestamp()) * 1000000;
            return;
        end if;
        update samekey.operations o
        set fence = operation_start.fence, attempts = o.attempts + 1,
            lease_until = clock_timestamp() + interval '1 microsecond' * operation_start.lease_us
        where o.idem_key = operation_start.idem_key collate "C" and o.scope = operation_start.scope collate "C";
    end if;
    outcome := 'mine';
end
$function$

CREATE OR REPLACE FUNCTION samekey.ordering_lock(ordering_key text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ select pg_catalog.hashtextextended(ordering_key collate pg_catalog."C", 8243107313) $function$

CREATE OR REPLACE FUNCTION samekey.own_scope(scope text)
 RETURNS text
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
    select case when coalesce(nullif(pg_catalog.current_setting('samekey.service', true), ''), '/')
                     in ('/', pg_catalog.split_part(scope collate pg_catalog."C", '/', 1)) then scope
                else samekey.refuse_scope() end
$function$

CREATE OR REPLACE FUNCTION samekey.patchable(payload bytea, content_type text, patch jsonb)
 RETURNS boolean
 LANGUAGE plpgsql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_payload json;
    v_member  json;
begin
    if content_type collate "C" !~* '^(application/json|[^;]+\+json)[ \t]*(;|$)' or octet_length(payload) + octet_length(patch::text) > 1048576 then
        return false;
    end if;
    v_payload := convert_from(payload, 'UTF8');
    v_member := v_payload -> ''; -- reads all texts
    return json_typeof(v_payload) = 'object';
exception when data_exception or program_limit_exceeded then
    return false;
end
$function$

CREATE OR REPLACE FUNCTION samekey.pause(destination text, actor text, reason text, action text DEFAULT ''::text, until timestamp with time zone DEFAULT NULL::timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    perform samekey.act_check('pause', actor, reason);
    perform samekey.act_target('pause', destination, action);
    if until <= clock_timestamp() then
        raise exception 'samekey: pause: until is in the past' using errcode = '22023', column = 'until';
    end if;
    update samekey.pauses p -- an expired pause would conflict with the new one
    set ended_at = p.until, ended_by = 'samekey', end_reason = 'the pause expired'
    where p.destination = pause.destination collate "C" and p.action = coalesce(pause.action, '') collate "C"
      and p.ended_at is null and p.until <= clock_timestamp();
    insert into samekey.pauses (destination, action, paused_by, reason, paused_db_user, until)
    values (pause.destination, coalesce(pause.action, ''), pause.actor, pause.reason, session_user, pause.until)
    on conflict do nothing;
    if not found then
        raise exception 'samekey: pause: already paused'
            using errcode = 'SK011', constraint = 'paused', hint = 'That pause and its reason stay: see samekey.pauses.';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION samekey.redrive(id uuid, actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row samekey.outbox_queue := samekey.act_lock('redrive', id, actor, reason, '{parked,dead}');
begin
    perform samekey.act_unsent('redrive', v_row);
    perform samekey.act_not_held('redrive', v_row);
    return samekey.act_redriven(array[id], actor, reason);
end
$function$

CREATE OR REPLACE FUNCTION samekey.redrive_all(filter jsonb, actor text, reason text, max_count integer DEFAULT 500, after_id uuid DEFAULT NULL::uuid, OUT changed integer, OUT last_id uuid, OUT actions text[])
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_ids uuid[];
begin
    perform samekey.act_check('redrive_all', actor, reason);
    v_ids := samekey.bulk_pick('redrive_all', filter, after_id, max_count);
    actions := samekey.act_redriven(v_ids, actor, reason);
    changed := cardinality(v_ids);
    last_id := v_ids[changed];
end
$function$

CREATE OR REPLACE FUNCTION samekey.refuse_approval()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if not pg_has_role(current_user, (select c.relowner from pg_class c where c.oid = tg_relid), 'MEMBER') then
        raise exception 'samekey: approve: the role % may not set outbox_queue.approved_at', current_user
            using errcode = '42501', hint = 'An approver calls samekey.approve.';
    end if;
    return null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.refuse_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb, ordering_key text, due_at timestamp with time zone, deadline timestamp with time zone, trace_context text, id uuid, requested_by text, subject text)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v record;
begin
    select r.* into v from samekey.intent_refusal(scope, idem_key, action, payload, part, content_type, headers,
        ordering_key, due_at, deadline, trace_context, id, requested_by, subject) r;
    raise exception 'samekey: enqueue: % %', v.field, v.wrong using errcode = '22023', column = v.field;
end
$function$

CREATE OR REPLACE FUNCTION samekey.refuse_scope()
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    raise exception 'samekey: scope does not start with "%", the service of this connection', pg_catalog.current_setting('samekey.service', true)
        using errcode = 'SK003', column = 'scope',
              hint = 'Start the scope with the name of the service, or correct the setting samekey.service of the connection.';
end
$function$

CREATE OR REPLACE FUNCTION samekey.reject(id uuid, actor text, reason text)
 RETURNS text[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return samekey.act_cancel('reject', 'rejected', id, actor, reason, '{awaiting_approval}');
end
$function$

CREATE OR REPLACE FUNCTION samekey.replace(id uuid, actor text, reason text, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return samekey.act_replace(replace.id, null, null, replace.deadline, replace.actor, replace.reason);
end
$function$

CREATE OR REPLACE FUNCTION samekey.replace_all(filter jsonb, actor text, reason text, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, max_count integer DEFAULT 500, after_id uuid DEFAULT NULL::uuid, OUT changed integer, OUT last_id uuid, OUT actions text[])
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    select b.* into changed, last_id, actions
    from samekey.bulk_replace('replace_all', filter, null, deadline, actor, reason, max_count, after_id) b;
end
$function$

CREATE OR REPLACE FUNCTION samekey.replace_payload(id uuid, payload bytea, actor text, reason text, content_type text DEFAULT NULL::text, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    if replace_payload.payload is null then
        raise exception 'samekey: replace: payload is required: call samekey.replace for the same payload' using errcode = '22023', column = 'payload';
    end if;
    return samekey.act_replace(replace_payload.id, replace_payload.payload, replace_payload.content_type, replace_payload.deadline,
        replace_payload.actor, replace_payload.reason);
end
$function$

CREATE OR REPLACE FUNCTION samekey.replace_payload_all(filter jsonb, patch jsonb, actor text, reason text, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, max_count integer DEFAULT 500, after_id uuid DEFAULT NULL::uuid, OUT changed integer, OUT last_id uuid, OUT actions text[])
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    select b.* into changed, last_id, actions
    from samekey.bulk_replace('replace_payload_all', filter, patch, deadline, actor, reason, max_count, after_id) b;
end
$function$

CREATE OR REPLACE FUNCTION samekey.replacement_key(delivery_key uuid)
 RETURNS uuid
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    d bytea := substring(sha256(convert_to('samekey/replacement/v1', 'UTF8') || uuid_send(delivery_key)) from 1 for 16);
begin
    return encode(set_byte(set_byte(d, 6, (get_byte(d, 6) & 15) | 128), 8, (get_byte(d, 8) & 63) | 128), 'hex')::uuid;
end
$function$

CREATE OR REPLACE FUNCTION samekey.resolve(id uuid, outcome text, actor text, reason text, code text DEFAULT NULL::text, response_type text DEFAULT NULL::text, response bytea DEFAULT NULL::bytea, reference text DEFAULT NULL::text)
 RETURNS text[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_held record;
begin
    perform samekey.act_evidence('resolve', outcome, code, response_type, response, reference);
    -- An event of the vendor may arrive for an intent that was replaced meanwhile: it is written down, and the successor
    -- is held. If that comes too late, a warning says so, since the act itself is done.
    if outcome = 'delivered' and exists (select from samekey.outbox s where s.replaces = resolve.id) then
        perform samekey.act_check('resolve', actor, reason);
        if not samekey.keeps_content(resolve.id) then
            perform samekey.act_refuse('resolve', resolve.id, 'cancelled', samekey.erased_hint());
        end if;
        insert into samekey.outbox_history (intent_id, event, outcome, code, response_type, response, reference, actor, reason, db_user)
        values (resolve.id, 'resolved', resolve.outcome, nullif(resolve.code, ''), nullif(resolve.response_type, ''),
                nullif(resolve.response, ''), nullif(resolve.reference, ''), resolve.actor, resolve.reason, session_user);
        select s.* into v_held from samekey.hold_successor(resolve.id) s;
        if v_held.sent then
            raise warning 'samekey: resolve: intent % was replaced by intent %, which is % and may have been sent too', resolve.id, v_held.successor, v_held.status
                using hint = 'Look for two effects at the vendor.';
        end if;
        return '{}';
    end if;
    perform samekey.act_lock('resolve', id, actor, reason, '{unknown,parked,dead}');
    return samekey.act_resolved(array[id], outcome, actor, reason, code, response_type, response, reference);
end
$function$

CREATE OR REPLACE FUNCTION samekey.resolve_all(filter jsonb, outcome text, actor text, reason text, code text DEFAULT NULL::text, response_type text DEFAULT NULL::text, response bytea DEFAULT NULL::bytea, reference text DEFAULT NULL::text, max_count integer DEFAULT 500, after_id uuid DEFAULT NULL::uuid, OUT changed integer, OUT last_id uuid, OUT actions text[])
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_ids uuid[];
begin
    perform samekey.act_check('resolve_all', actor, reason);
    perform samekey.act_evidence('resolve_all', outcome, code, response_type, response, reference);
    v_ids := samekey.bulk_pick('resolve_all', filter, after_id, max_count, outcome);
    actions := samekey.act_resolved(v_ids, outcome, actor, reason, code, response_type, response, reference);
    changed := cardinality(v_ids);
    last_id := v_ids[changed];
end
$function$

CREATE OR REPLACE FUNCTION samekey.resolve_step(scope text, idem_key text, step text, outcome text, actor text, reason text, code integer DEFAULT NULL::integer, result bytea DEFAULT NULL::bytea)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_status text;
    v_field  text;
    v_wrong  text;
begin
    if resolve_step.outcome is null or resolve_step.outcome not in ('delivered', 'refused', 'not_sent') then
        v_field := 'outcome';
        v_wrong := 'must be delivered, refused or not_sent';
    elsif (resolve_step.outcome = 'not_sent') <> (resolve_step.result is null) then
        v_field := 'result';
        v_wrong := 'is the JSON of the vendor''s answer or of the failure: required, except for not_sent';
    elsif octet_length(resolve_step.result) > 1048576 or not samekey.is_json(resolve_step.result) then
        v_field := 'result';
        v_wrong := 'must be JSON of at most 1048576 bytes';
    elsif (resolve_step.outcome = 'refused') <> (resolve_step.code is not null) then
        v_field := 'code';
        v_wrong := 'is the code of the failure: for refused only';
    end if;
    if v_field is not null then
        raise exception 'samekey: resolve_step: % %', v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
    perform samekey.operation_lock_idle('resolve_step', resolve_step.scope, resolve_step.idem_key, resolve_step.actor, resolve_step.reason);
    select s.status into v_status
    from samekey.operation_steps s
    where s.idem_key = resolve_step.idem_key collate "C" and s.scope = resolve_step.scope collate "C" and s.name = resolve_step.step collate "C";
    if v_status is null then
        raise exception 'samekey: resolve_step: the operation with key % has no such step',
            samekey.key_hash(resolve_step.scope, resolve_step.idem_key) using errcode = 'SK010';
    elsif v_status not in ('in_flight', 'parked') then
        raise exception 'samekey: resolve_step: the step is %', v_status
            using errcode = 'SK011', constraint = v_status, hint = 'Only a step whose outcome is unknown can be resolved.';
    end if;
    update samekey.operation_steps s
    set status = case when resolve_step.outcome = 'not_sent' then 'unsent' else 'done' end,
        failed = resolve_step.outcome = 'refused', code = resolve_step.code, result = resolve_step.result,
        finished_at = case when resolve_step.outcome <> 'not_sent' then clock_timestamp() end,
        sends = case when resolve_step.outcome = 'not_sent' then 0 else s.sends end,
        first_sent_at = case when resolve_step.outcome <> 'not_sent' then s.first_sent_at end,
        key_window_until = case when resolve_step.outcome <> 'not_sent' then s.key_window_until end,
        resolved_at = clock_timestamp(), resolved_by = resolve_step.actor, resolved_db_user = session_user, resolved_reason = resolve_step.reason
    where s.idem_key = resolve_step.idem_key collate "C" and s.scope = resolve_step.scope collate "C" and s.name = resolve_step.step collate "C";
end
$function$

CREATE OR REPLACE FUNCTION samekey.resume(destination text, actor text, reason text, action text DEFAULT ''::text)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_ended bigint;
begin
    perform samekey.act_check('resume', actor, reason);
    perform samekey.act_target('resume', destination, action);
    with ended as (
        update samekey.pauses p
        set ended_at = clock_timestamp(), ended_by = resume.actor, end_reason = resume.reason, ended_db_user = session_user
        where p.destination = resume.destination collate "C" and p.action = coalesce(resume.action, '') collate "C" and p.ended_at is null
        returning p.id
    ), river as (
        update samekey.river_queue r
        set paused_at = null, updated_at = clock_timestamp()
        where coalesce(resume.action, '') = '' and r.name = 'samekey_' || resume.destination and r.paused_at is not null
        returning r.name
    )
    select (select count(*) from ended) + (select count(*) from river) into v_ended;
    if v_ended = 0 then
        raise exception 'samekey: resume: not paused'
            using errcode = 'SK011', constraint = 'not_paused', hint = 'A pause of one action is ended with its action.';
    end if;
end
$function$

function samekey.river_job_state_in_bitmask  -- River's

CREATE OR REPLACE FUNCTION samekey.share_of(action text, scope text, part text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ select null::text $function$

CREATE OR REPLACE FUNCTION samekey.share_of_replace()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_body text;
begin
    perform pg_advisory_xact_lock(7309453203);
    select coalesce('select case action ' || string_agg(format('when %L then %s', a.action, a.fair_by), ' ' order by a.action) || ' end', 'select null::text')
    into v_body from samekey.actions a where a.fair_by is not null;
    if btrim((select p.prosrc from pg_proc p where p.oid = 'samekey.share_of(text, text, text)'::regprocedure)) <> v_body then
        execute format('create or replace function samekey.share_of(action text, scope text, part text) returns text '
            'language sql immutable parallel safe as %L', v_body);
    end if;
    return null;
end
$function$

CREATE OR REPLACE FUNCTION samekey.step_lock(scope text, idem_key text, fence bigint)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_mine boolean;
begin
    step_lock.scope := samekey.own_scope(step_lock.scope);
    select o.fence = step_lock.fence into v_mine
    from samekey.operations o
    where o.idem_key = step_lock.idem_key collate "C" and o.scope = step_lock.scope collate "C"
    for update;
    return coalesce(v_mine, false);
end
$function$

CREATE OR REPLACE FUNCTION samekey.step_put(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, name text, failed boolean, code integer, result bytea)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
begin
    perform samekey.operation_hold(step_put.scope, step_put.idem_key, step_put.fence, step_put.lease_us);
    insert into samekey.operation_steps as s (idem_key, scope, position, name, status, failed, code, result, finished_at)
    values (step_put.idem_key, step_put.scope, step_put.position, step_put.name, 'done', step_put.failed, step_put.code, step_put.result,
            clock_timestamp());
end
$function$

CREATE OR REPLACE FUNCTION samekey.text_hash(value text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select left(encode(sha256(
        convert_to('samekey/log/v1', 'UTF8') || int4send(octet_length(convert_to(value, 'UTF8'))) || convert_to(value, 'UTF8')), 'hex'), 8)
$function$

CREATE OR REPLACE FUNCTION samekey.this_database(OUT system_identifier bigint, OUT database_oid oid)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    select d.oid into database_oid from pg_database d where d.datname = current_database();
    select c.system_identifier into system_identifier from pg_control_system() c;
exception when insufficient_privilege or undefined_function or feature_not_supported then
    select d.oid into database_oid from pg_database d where d.datname = current_database();
end
$function$

CREATE OR REPLACE FUNCTION samekey.uuidv7()
 RETURNS uuid
 LANGUAGE plpgsql
 PARALLEL SAFE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
end
$function$

CREATE OR REPLACE FUNCTION samekey.worker_class()
 RETURNS integer
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ select 1935764331 $function$

type samekey.river_job_state  -- River's
