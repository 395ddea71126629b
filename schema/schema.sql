-- What the migrations make, to be read. Written by `go test ./schema -update`, and not meant to be run.

table samekey.endpoints
    destination text collate "C" not null
    name text collate "C" not null
    url text not null
    secrets text[] not null default '{}'::text[]
    version uuid not null default gen_random_uuid()
    stopped_at timestamp with time zone
    stopped_by text
    stop_reason text
    created_at timestamp with time zone not null default clock_timestamp()
    changed_at timestamp with time zone not null default clock_timestamp()
    constraint endpoints_pkey PRIMARY KEY (destination, name)
    constraint endpoints_destination_name CHECK ((destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'::text))
    constraint endpoints_name_length CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
    constraint endpoints_secrets CHECK (((cardinality(secrets) <= 8) AND (octet_length(array_to_string(secrets, ''::text)) <= 4096) AND (array_position(secrets, NULL::text) IS NULL)))
    constraint endpoints_secrets_form CHECK ((array_to_string(secrets, ' '::text) !~ '(^| )(v1a?,|whsk_|whpk_)'::text))
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
    due_at timestamp with time zone not null
    deadline timestamp with time zone
    trace_context text
    requested_by text
    created_at timestamp with time zone not null default clock_timestamp()
    constraint outbox_pkey PRIMARY KEY (id)
    constraint outbox_action_name CHECK ((action ~ '^[a-z][a-z0-9_.-]{0,62}$'::text))
    constraint outbox_content_type_length CHECK (((octet_length(content_type) >= 1) AND (octet_length(content_type) <= 255)))
    constraint outbox_headers_object CHECK (((jsonb_typeof(headers) = 'object'::text) AND (octet_length((headers)::text) <= 16384)))
    constraint outbox_idem_key_ascii CHECK ((idem_key ~ '^[!-~]([ -~]{0,253}[!-~])?$'::text))
    constraint outbox_once UNIQUE (idem_key, scope, action, part)
    constraint outbox_ordering_key_length CHECK (((octet_length(ordering_key) >= 1) AND (octet_length(ordering_key) <= 255)))
    constraint outbox_part_length CHECK ((octet_length(part) <= 255))
    constraint outbox_payload_length CHECK ((octet_length(payload) <= 1048576))
    constraint outbox_requested_by_length CHECK (((octet_length(requested_by) >= 1) AND (octet_length(requested_by) <= 255)))
    constraint outbox_scope_ascii CHECK (((octet_length(scope) <= 255) AND (scope ~ '^[!-~]([ -~]*[!-~])?$'::text)))
    constraint outbox_trace_context_length CHECK ((octet_length(trace_context) <= 512))

table samekey.outbox_history
    intent_id uuid not null
    id bigint not null generated always as identity
    at timestamp with time zone not null default clock_timestamp()
    started_at timestamp with time zone
    window_ends timestamp with time zone
    attempt integer
    worker integer
    finished text collate "C"
    event text collate "C" not null
    outcome text collate "C"
    code text collate "C"
    error text
    response_type text
    response bytea
    actor text
    reason text
    constraint outbox_history_pkey PRIMARY KEY (intent_id, id)
    constraint outbox_history_actor_length CHECK (((octet_length(actor) >= 1) AND (octet_length(actor) <= 255)))
    constraint outbox_history_code_length CHECK ((octet_length(code) <= 128))
    constraint outbox_history_error_length CHECK ((octet_length(error) <= 4096))
    constraint outbox_history_event CHECK ((event = ANY (ARRAY['attempt'::text, 'lookup'::text, 'apply'::text, 'orphaned'::text, 'late'::text, 'approved'::text, 'rejected'::text, 'redriven'::text, 'resolved'::text, 'cancelled'::text, 'restored'::text])))
    constraint outbox_history_finished CHECK ((finished = ANY (ARRAY['delivered'::text, 'refused'::text, 'cancelled'::text])))
    constraint outbox_history_outcome CHECK ((outcome = ANY (ARRAY['delivered'::text, 'refused'::text, 'retry'::text, 'unsent'::text, 'unknown'::text, 'dead'::text, 'parked'::text, 'awaiting_approval'::text, 'absent'::text, 'inconclusive'::text, 'accepted'::text, 'not_sent'::text])))
    constraint outbox_history_reason_length CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 4096)))
    constraint outbox_history_response_length CHECK ((octet_length(response) <= 1048576))
    constraint outbox_history_type_length CHECK ((octet_length(response_type) <= 255))
    CREATE UNIQUE INDEX outbox_history_finish ON samekey.outbox_history USING btree (intent_id) WHERE (finished IS NOT NULL)

table samekey.outbox_queue  -- with autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0
    id uuid not null
    seq bigint not null default nextval('samekey.outbox_seq'::regclass)
    due_at timestamp with time zone not null
    first_sent_at timestamp with time zone
    window_ends timestamp with time zone
    lease_until timestamp with time zone
    approved_at timestamp with time zone
    attempt integer not null default 0
    sent_attempt integer not null default 0
    spent integer not null default 0
    leased_by integer
    repeatable boolean not null default false
    plain boolean not null default false
    resent boolean not null default false
    action text collate "C" not null
    status text collate "C" not null
    ordering_key text collate "C"
    last_code text collate "C"
    sent_to text collate "C"
    constraint outbox_queue_pkey PRIMARY KEY (id)
    constraint outbox_queue_blocked CHECK (((status <> 'blocked'::text) OR (ordering_key IS NOT NULL)))
    constraint outbox_queue_counts CHECK (((attempt >= 0) AND (spent >= 0) AND ((sent_attempt >= 0) AND (sent_attempt <= attempt))))
    constraint outbox_queue_lease CHECK ((((leased_by IS NULL) = (lease_until IS NULL)) AND ((status <> 'leased'::text) OR (leased_by IS NOT NULL)) AND ((leased_by IS NULL) OR (status = ANY (ARRAY['leased'::text, 'unknown'::text, 'answered'::text])))))
    constraint outbox_queue_status CHECK ((status = ANY (ARRAY['pending'::text, 'blocked'::text, 'leased'::text, 'unknown'::text, 'answered'::text, 'awaiting_approval'::text, 'parked'::text, 'dead'::text])))
    constraint outbox_queue_window CHECK (((window_ends IS NULL) OR (first_sent_at IS NOT NULL)))
    CREATE INDEX outbox_queue_blocked ON samekey.outbox_queue USING btree (ordering_key, seq) WHERE (status = 'blocked'::text)
    CREATE INDEX outbox_queue_due ON samekey.outbox_queue USING btree (action, due_at) WHERE ((leased_by IS NULL) AND (status = ANY (ARRAY['pending'::text, 'unknown'::text, 'answered'::text])))
    CREATE UNIQUE INDEX outbox_queue_head ON samekey.outbox_queue USING btree (ordering_key) WHERE ((ordering_key IS NOT NULL) AND (status <> 'blocked'::text))
    CREATE INDEX outbox_queue_leased ON samekey.outbox_queue USING btree (leased_by, lease_until) WHERE (leased_by IS NOT NULL)
    CREATE INDEX outbox_queue_resting ON samekey.outbox_queue USING btree (status, id) WHERE (status = ANY (ARRAY['awaiting_approval'::text, 'parked'::text, 'dead'::text]))

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

table samekey.processed_events  -- with autovacuum_vacuum_scale_factor=0.05
    idem_key text collate "C" not null
    scope text collate "C" not null
    created_at timestamp with time zone not null default clock_timestamp()
    completed_at timestamp with time zone
    expires_at timestamp with time zone not null
    lease_until timestamp with time zone
    attempt integer not null default 0
    response_code integer
    hash_version smallint not null
    failed boolean not null default false
    status text collate "C" not null
    payload_hash bytea not null
    response_headers bytea
    response_body bytea
    progress bytea
    constraint processed_events_pkey PRIMARY KEY (idem_key, scope)
    constraint processed_events_body_length CHECK ((octet_length(response_body) <= 1048576))
    constraint processed_events_done CHECK (((status = 'done'::text) = (completed_at IS NOT NULL)))
    constraint processed_events_hash_length CHECK ((octet_length(payload_hash) = 32))
    constraint processed_events_headers_length CHECK ((octet_length(response_headers) <= 65536))
    constraint processed_events_key_ascii CHECK ((idem_key ~ '^[!-~]([ -~]{0,253}[!-~])?$'::text))
    constraint processed_events_progress_length CHECK ((octet_length(progress) <= 1048576))
    constraint processed_events_scope_ascii CHECK (((octet_length(scope) <= 255) AND (scope ~ '^[!-~]([ -~]*[!-~])?$'::text)))
    constraint processed_events_status CHECK ((status = ANY (ARRAY['started'::text, 'done'::text])))
    CREATE INDEX processed_events_expiry ON samekey.processed_events USING btree (expires_at, idem_key, scope)

table samekey.rate_limits  -- with fillfactor=10
    destination text collate "C" not null
    given_until timestamp with time zone not null
    constraint rate_limits_pkey PRIMARY KEY (destination)

table samekey.river_job  -- River's

table samekey.river_leader  -- River's

table samekey.river_migration  -- River's

table samekey.river_notification  -- River's

table samekey.river_queue  -- River's

table samekey.workers
    id integer not null default nextval('samekey.worker_seq'::regclass)
    started_at timestamp with time zone not null default clock_timestamp()
    seen_at timestamp with time zone not null default clock_timestamp()
    name text not null
    actions text[] collate "C" not null
    constraint workers_pkey PRIMARY KEY (id)
    constraint workers_name_length CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))

sequence samekey.outbox_history_id_seq as bigint

sequence samekey.outbox_seq as bigint

sequence samekey.worker_seq as integer cycle

CREATE OR REPLACE FUNCTION samekey.delivery_key(scope text, idem_key text, action text, part text)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select encode(set_byte(set_byte(d, 6, (get_byte(d, 6) & 15) | 128), 8, (get_byte(d, 8) & 63) | 128), 'hex')::uuid
    from (select substring(sha256(
        convert_to('samekey/delivery/v1', 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8')))    || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(idem_key, 'UTF8'))) || convert_to(idem_key, 'UTF8')
        || int4send(octet_length(convert_to(action, 'UTF8')))   || convert_to(action, 'UTF8')
        || int4send(octet_length(convert_to(part, 'UTF8')))     || convert_to(part, 'UTF8')) from 1 for 16) as d) as digest
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue(scope text, idem_key text, action text, payload bytea, part text DEFAULT ''::text, content_type text DEFAULT 'application/json'::text, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text, due_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context text DEFAULT NULL::text, id uuid DEFAULT NULL::uuid, must_be_new boolean DEFAULT false, requested_by text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
declare
    v_id   uuid := coalesce(enqueue.id, samekey.uuidv7());
    v_due  timestamptz := coalesce(enqueue.due_at, clock_timestamp());
    v_have uuid;
    v_same boolean;
    v_seq  bigint;
begin
    insert into samekey.outbox as o (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers,
                                     ordering_key, due_at, deadline, trace_context, requested_by)
    values (v_id, enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''),
            samekey.delivery_key(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, '')),
            enqueue.payload, coalesce(enqueue.content_type, 'application/json'), coalesce(enqueue.headers, '{}'),
            enqueue.ordering_key, v_due, enqueue.deadline, enqueue.trace_context, enqueue.requested_by)
    on conflict on constraint outbox_once do nothing
    returning o.id into v_have;

    if v_have is null then
        -- A second statement, since the first one's snapshot may predate the row that it met.
        select o.id, o.payload = enqueue.payload into v_have, v_same
        from samekey.outbox o
        where o.idem_key = enqueue.idem_key and o.scope = enqueue.scope
          and o.action = enqueue.action and o.part = coalesce(enqueue.part, '');
        if v_have is null then
            raise exception 'samekey: intent "%" under key % was written by a transaction that this one cannot see',
                enqueue.action, samekey.key_hash(enqueue.scope, enqueue.idem_key)
                using errcode = 'serialization_failure', hint = 'Roll back and run the transaction again.';
        end if;
        if not v_same then
            raise exception 'samekey: intent "%" under key % exists with the same part and another payload',
                enqueue.action, samekey.key_hash(enqueue.scope, enqueue.idem_key)
                using errcode = 'SK001',
                      hint = 'Another effect of the same action under one key needs another part; this transaction must roll back.';
        end if;
        if enqueue.must_be_new then
            raise exception 'samekey: intent "%" under key % exists already',
                enqueue.action, samekey.key_hash(enqueue.scope, enqueue.idem_key)
                using errcode = 'SK002', hint = 'Roll back and insert it without must_be_new, which returns the first id.';
        end if;
        return v_have;
    end if;

    if enqueue.ordering_key is null then
        insert into samekey.outbox_queue (id, action, status, due_at) values (v_id, enqueue.action, 'pending', v_due);
        return v_id;
    end if;

    -- The lock comes before the number: what commits first has the smaller one, and a head that is being finished is
    -- either still seen here, or this row becomes the head.
    perform pg_advisory_xact_lock(samekey.ordering_lock(enqueue.ordering_key));
    v_seq := nextval('samekey.outbox_seq');
    -- The head (one at most) and the first that waits, each by its own index: whether any is there, the planner may find
    -- out by reading the queue until one turns up.
    if (select count(*) from samekey.outbox_queue q
        where q.ordering_key = enqueue.ordering_key and q.ordering_key is not null and q.status <> 'blocked') > 0
       or (select q.id from samekey.outbox_queue q
           where q.ordering_key = enqueue.ordering_key and q.status = 'blocked' order by q.seq limit 1) is not null then
        insert into samekey.outbox_queue as q (id, seq, action, status, due_at, ordering_key)
        values (v_id, v_seq, enqueue.action, 'blocked', v_due, enqueue.ordering_key);
        return v_id;
    end if;
    insert into samekey.outbox_queue as q (id, seq, action, status, due_at, ordering_key)
    values (v_id, v_seq, enqueue.action, 'pending', v_due, enqueue.ordering_key)
    on conflict (ordering_key) where ordering_key is not null and status <> 'blocked' do nothing;
    if not found then
        raise exception 'samekey: intent "%": another head of its ordering key was written by a transaction that this one cannot see', enqueue.action
            using errcode = 'serialization_failure', hint = 'Roll back and run the transaction again.';
    end if;
    return v_id;
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
AS $function$ select pg_catalog.hashtextextended(pg_catalog.octet_length(scope)::text || ':' || scope || idem_key, 7309453201) $function$

CREATE OR REPLACE FUNCTION samekey.ordering_lock(ordering_key text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$ select pg_catalog.hashtextextended(ordering_key, 8243107313) $function$

function samekey.river_job_state_in_bitmask  -- River's

CREATE OR REPLACE FUNCTION samekey.uuidv7()
 RETURNS uuid
 LANGUAGE sql
 PARALLEL SAFE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
$function$

CREATE OR REPLACE FUNCTION samekey.worker_class()
 RETURNS integer
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ select 1935764331 $function$

type samekey.river_job_state  -- River's
