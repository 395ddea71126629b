-- The schema that the migrations create, for reading. `go test ./schema -update` writes this file. Do not run it.

table samekey.actions
    action text collate "C" not null
    attention boolean not null default false
    fair_by text collate "C"
    changed_at timestamp with time zone not null default clock_timestamp()
    constraint actions_pkey PRIMARY KEY (action)
    constraint actions_action_name CHECK ((action ~ '^[a-z][a-z0-9_.-]{0,62}$'::text))
    constraint actions_fair_by CHECK ((fair_by = ANY (ARRAY['scope'::text, 'part'::text])))
    CREATE TRIGGER share_of_replace AFTER INSERT OR DELETE OR UPDATE ON samekey.actions FOR EACH STATEMENT EXECUTE FUNCTION samekey.share_of_replace()

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
    changed_by text not null default SESSION_USER
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
    requested_by text
    written_by text not null default SESSION_USER
    subject text collate "C"
    trace_context text
    due_at timestamp with time zone not null
    deadline timestamp with time zone
    created_at timestamp with time zone not null default clock_timestamp()
    constraint outbox_pkey PRIMARY KEY (id)
    constraint outbox_once UNIQUE (idem_key, scope, action, part)
    CREATE INDEX outbox_subject ON samekey.outbox USING btree (subject, id) WHERE (subject IS NOT NULL)

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
    actor text
    reason text
    db_user text
    key_window_until timestamp with time zone
    constraint outbox_history_pkey PRIMARY KEY (intent_id, id)
    constraint outbox_history_actor_length CHECK (((octet_length(actor) >= 1) AND (octet_length(actor) <= 255)))
    constraint outbox_history_code_length CHECK ((octet_length(code) <= 128))
    constraint outbox_history_error_length CHECK ((octet_length(error) <= 4096))
    constraint outbox_history_event CHECK (
CASE
    WHEN (db_user IS NULL) THEN (event = ANY (ARRAY['attempt'::text, 'lookup'::text, 'apply'::text, 'orphaned'::text, 'late'::text, 'restored'::text]))
    ELSE (event = ANY (ARRAY['approved'::text, 'rejected'::text, 'redriven'::text, 'resolved'::text, 'cancelled'::text]))
END)
    constraint outbox_history_final_status CHECK ((final_status = ANY (ARRAY['delivered'::text, 'refused'::text, 'cancelled'::text])))
    constraint outbox_history_outcome CHECK ((outcome = ANY (ARRAY['delivered'::text, 'refused'::text, 'retry'::text, 'unsent'::text, 'unknown'::text, 'dead'::text, 'parked'::text, 'awaiting_approval'::text, 'absent'::text, 'accepted'::text, 'not_sent'::text])))
    constraint outbox_history_reason_length CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 4096)))
    constraint outbox_history_reference_length CHECK (((octet_length(reference) >= 1) AND (octet_length(reference) <= 255)))
    constraint outbox_history_response_length CHECK ((octet_length(response) <= 1048576))
    constraint outbox_history_type_length CHECK ((octet_length(response_type) <= 255))
    CREATE UNIQUE INDEX outbox_history_finish ON samekey.outbox_history USING btree (intent_id) WHERE (final_status IS NOT NULL)
    CREATE INDEX outbox_history_reference ON samekey.outbox_history USING btree (reference, intent_id) WHERE (reference IS NOT NULL)

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
    CREATE INDEX outbox_queue_due ON samekey.outbox_queue USING btree (action, due_at) WHERE ((leased_by IS NULL) AND (status = ANY (ARRAY['pending'::text, 'unknown'::text])))
    CREATE UNIQUE INDEX outbox_queue_head ON samekey.outbox_queue USING btree (ordering_key) WHERE ((ordering_key IS NOT NULL) AND (status <> 'blocked'::text))
    CREATE INDEX outbox_queue_leased ON samekey.outbox_queue USING btree (leased_by, lease_until) WHERE (leased_by IS NOT NULL)
    CREATE INDEX outbox_queue_share ON samekey.outbox_queue USING btree (action, share, due_at) WHERE ((share IS NOT NULL) AND (leased_by IS NULL) AND (status = ANY (ARRAY['pending'::text, 'unknown'::text])))

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
    constraint processed_events_pkey PRIMARY KEY (idem_key, scope)
    constraint processed_events_key CHECK (((octet_length(idem_key) <= 255) AND (idem_key ~ '^[!-~]([ -~]*[!-~])?$'::text) AND (octet_length(scope) <= 255) AND (scope ~ '^[!-~]([ -~]*[!-~])?$'::text)))
    constraint processed_events_length CHECK (((octet_length(payload_hash) = 32) AND (COALESCE(octet_length(response_headers), 0) <= 65536) AND (COALESCE(octet_length(response_body), 0) <= 1048576) AND ((COALESCE(octet_length(subject), 1) >= 1) AND (COALESCE(octet_length(subject), 1) <= 255))))
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

sequence samekey.outbox_history_id_seq as bigint

sequence samekey.pauses_id_seq as bigint

CREATE OR REPLACE FUNCTION samekey.act_cancel(act text, event text, id uuid, actor text, reason text, states text[])
 RETURNS text[]
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row      samekey.outbox_queue := samekey.act_lock(act, act_cancel.id, actor, reason, states);
    v_promoted text[];
begin
    if v_row.first_sent_at is not null and v_row.status not in ('parked', 'dead') then
        perform samekey.act_refuse(act, act_cancel.id, v_row.status,
            'it may have been sent at an earlier attempt: wait until it is finished, dead or parked');
    elsif v_row.first_sent_at is not null and v_row.safe_to_resend then
        perform samekey.act_refuse(act, act_cancel.id, v_row.status,
            'it may have been sent: redrive it, or resolve it; resolved as not sent, it can be cancelled');
    end if;
    perform samekey.act_unsent(act, v_row);
    delete from samekey.outbox_queue q where q.id = act_cancel.id;
    insert into samekey.outbox_history (intent_id, event, final_status, key_window_until, actor, reason, db_user)
    values (act_cancel.id, act_cancel.event, 'cancelled', v_row.key_window_until, act_cancel.actor, act_cancel.reason, session_user);
    if v_row.ordering_key is not null then
        -- As OutboxQueuePromote does. A statement of its own: it must see the deletion.
        with promoted as (
            update samekey.outbox_queue q
            set status = 'pending', due_at = greatest(q.due_at, clock_timestamp())
            where coalesce(q.status, '') = 'blocked'
              and q.id = (select b.id from samekey.outbox_queue b
                          where b.ordering_key = v_row.ordering_key and b.status = 'blocked' order by b.seq limit 1)
              and (select count(*) from samekey.outbox_queue h
                   where h.ordering_key = v_row.ordering_key and h.ordering_key is not null and h.status <> 'blocked') = 0
            returning q.action
        )
        select array_agg(p.action) into v_promoted from promoted p;
    end if;
    return coalesce(v_promoted, '{}');
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

CREATE OR REPLACE FUNCTION samekey.act_lock(act text, id uuid, actor text, reason text, states text[])
 RETURNS samekey.outbox_queue
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row   samekey.outbox_queue;
    v_final text;
begin
    perform samekey.act_check(act, actor, reason);
    perform pg_advisory_xact_lock(samekey.ordering_lock(o.ordering_key))
    from samekey.outbox o where o.id = act_lock.id and o.ordering_key is not null;
    select q.* into v_row from samekey.outbox_queue q where q.id = act_lock.id for update;
    if not found then
        select coalesce(h.final_status, '') into v_final
        from samekey.outbox o
        left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
        where o.id = act_lock.id;
        if not found then
            raise exception 'samekey: %: there is no intent %', act, act_lock.id
                using errcode = 'SK010', hint = 'Its transaction did not commit, or it was pruned after its retention.';
        end if;
        perform samekey.act_refuse(act, act_lock.id, v_final);
    elsif v_row.status <> all (states) then
        perform samekey.act_refuse(act, act_lock.id, v_row.status);
    end if;
    return v_row;
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
    v_written   text;
    v_requested text;
    v_redrove   text;
begin
    select o.written_by, o.requested_by into v_written, v_requested from samekey.outbox o where o.id = approve.id;
    select h.db_user into v_redrove from samekey.outbox_history h
    where h.intent_id = approve.id and h.event = 'redriven' order by h.id desc limit 1;
    if session_user in (v_written, v_redrove) or actor = v_requested then
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

CREATE OR REPLACE FUNCTION samekey.endpoint_delete(destination text, name text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    delete from samekey.endpoints e
    where e.destination = endpoint_delete.destination collate "C" and e.name = endpoint_delete.name collate "C";
    return found;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_put(destination text, name text, url text, secrets text[] DEFAULT '{}'::text[])
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field text;
    v_wrong text;
begin
    perform samekey.act_target('endpoint_put', destination, '');
    select w.field, w.wrong into v_field, v_wrong from (values
        ('name', case when octet_length(name) not between 1 and 255 or name is null then 'must be text of 1 to 255 bytes' end),
        ('url', case when url is null or octet_length(url) > 2048 or url !~ '^https?://' then 'must begin with https:// or http://, and have at most 2048 bytes' end),
        ('secrets', case
            when cardinality(secrets) > 8 or octet_length(array_to_string(secrets, '')) > 4096 then 'are too many or too long: at most 8, of 4096 bytes together'
            when array_position(secrets, null) is not null or array_position(secrets, '') is not null then 'must not be empty or null'
            when array_to_string(secrets, ' ') ~ '(^| )(v1a?,|whsk_|whpk_)' then 'must be of the form whsec_ and base64: v1, is the name of a signature, and whsk_ and whpk_ are ed25519 keys, which cannot sign'
            end)) w (field, wrong)
    where w.wrong is not null
    limit 1;
    if v_wrong is not null then
        raise exception 'samekey: endpoint_put: % %', v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
    insert into samekey.endpoints as e (destination, name, url, secrets)
    values (endpoint_put.destination, endpoint_put.name, endpoint_put.url, coalesce(endpoint_put.secrets, '{}'))
    on conflict on constraint endpoints_pkey do update
    set url = excluded.url, secrets = excluded.secrets, version = gen_random_uuid(), changed_at = clock_timestamp(), changed_by = session_user;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_start(destination text, name text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    update samekey.endpoints e
    set stopped_at = null, stopped_by = null, stop_reason = null, version = gen_random_uuid(), changed_at = clock_timestamp(), changed_by = session_user
    where e.destination = endpoint_start.destination collate "C" and e.name = endpoint_start.name collate "C";
    return found;
end
$function$

CREATE OR REPLACE FUNCTION samekey.endpoint_stop(destination text, name text, actor text, reason text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
    perform samekey.act_check('endpoint_stop', actor, reason);
    update samekey.endpoints e
    set stopped_by  = case when e.stopped_at is null then endpoint_stop.actor else e.stopped_by end,
        stop_reason = coalesce(e.stop_reason, endpoint_stop.reason),
        stopped_at  = coalesce(e.stopped_at, clock_timestamp()),
        version     = gen_random_uuid(),
        changed_at  = clock_timestamp(),
        changed_by  = session_user
    where e.destination = endpoint_stop.destination collate "C" and e.name = endpoint_stop.name collate "C";
    return found;
end
$function$

CREATE OR REPLACE FUNCTION samekey.enqueue(scope text, idem_key text, action text, payload bytea, part text DEFAULT ''::text, content_type text DEFAULT 'application/json'::text, headers jsonb DEFAULT '{}'::jsonb, ordering_key text DEFAULT NULL::text, due_at timestamp with time zone DEFAULT NULL::timestamp with time zone, deadline timestamp with time zone DEFAULT NULL::timestamp with time zone, trace_context text DEFAULT NULL::text, id uuid DEFAULT NULL::uuid, must_be_new boolean DEFAULT false, requested_by text DEFAULT NULL::text, subject text DEFAULT NULL::text)
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
    -- All rules are one expression, since PL/pgSQL prepares each expression again in every transaction. Lengths are
    -- checked outside the regular expressions: a bound such as {0,253} takes 20 us. If the expression is not true,
    -- refuse_intent finds the argument.
    if (octet_length(enqueue.scope) <= 255
       and enqueue.scope collate "C" ~ '^[!-.0-~]([ -~]*[!-.0-~])?$' and strpos(enqueue.scope collate "C", '//') = 0
       and octet_length(enqueue.idem_key) <= 255 and enqueue.idem_key collate "C" ~ '^[!-~]([ -~]*[!-~])?$'
       and octet_length(enqueue.action) <= 63 and enqueue.action collate "C" ~ '^[a-z][a-z0-9_.-]*$'
       and octet_length(enqueue.payload) <= 1048576
       and coalesce(octet_length(enqueue.part), 0) <= 255 and coalesce(octet_length(enqueue.ordering_key), 0) <= 255
       and coalesce(octet_length(enqueue.requested_by), 0) <= 255 and coalesce(octet_length(enqueue.subject), 0) <= 255
       and concat(enqueue.part, enqueue.ordering_key, enqueue.requested_by, enqueue.subject) collate "C"
           !~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
       and (case when coalesce(enqueue.content_type, '') collate "C" in ('', 'application/json') then samekey.is_json(enqueue.payload)
                else octet_length(enqueue.content_type) <= 255 and enqueue.content_type collate "C"
                     ~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+/[A-Za-z0-9!#$%&''*+.^_`|~-]+([ \t]*;[ \t]*[A-Za-z0-9!#$%&''*+.^_`|~-]+=([A-Za-z0-9!#$%&''*+.^_`|~-]+|"([ !#-\[\]-~]|\\[ -~])*"))*$'
                     and (enqueue.content_type collate "C" !~* '^(application/json|[^;]+\+json)[ \t]*(;|$)' or samekey.is_json(enqueue.payload)) end)
       and (enqueue.headers is null or enqueue.headers = '{}' or samekey.headers_refusal(enqueue.headers) is null)
       and (enqueue.due_at is null or enqueue.due_at between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00')
       and (enqueue.deadline is null or enqueue.deadline between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00'
            and coalesce(enqueue.deadline > enqueue.due_at, true))
       and (enqueue.trace_context is null or octet_length(enqueue.trace_context) <= 512
            and enqueue.trace_context collate "C" ~ '^([!-~]([ -~\t]*[!-~])?)?$')
       and (enqueue.id is null or enqueue.id > '00000000-0000-0000-0000-000000000000' and enqueue.id < 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       and samekey.own_scope(enqueue.scope) is not null) is not true then
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
    select o.id, o.payload = enqueue_duplicate.payload into v_id, v_same
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
        elsif v_name in ('idempotency-key', 'x-idempotency-key', 'host', 'content-length', 'content-type', 'transfer-encoding',
                         'connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'upgrade', 'expect', 'traceparent', 'tracestate') then
            return format('must not contain "%s": the worker sets it', v_name);
        elsif v_name in ('authorization', 'proxy-authorization', 'cookie', 'set-cookie', 'x-api-key', 'api-key', 'x-auth-token') then
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
    v_row samekey.outbox_queue := samekey.act_lock('redrive', redrive.id, actor, reason, '{parked,dead}');
begin
    perform samekey.act_unsent('redrive', v_row);
    update samekey.outbox_queue q
    set status = 'pending', due_at = clock_timestamp(), attempts_used = 0, approved_at = null, attempt = q.attempt + 1
    where q.id = redrive.id;
    insert into samekey.outbox_history (intent_id, event, actor, reason, db_user)
    values (redrive.id, 'redriven', redrive.actor, redrive.reason, session_user);
    return array[v_row.action];
end
$function$

CREATE OR REPLACE FUNCTION samekey.refuse_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb, ordering_key text, due_at timestamp with time zone, deadline timestamp with time zone, trace_context text, id uuid, requested_by text, subject text)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_field text;
    v_wrong text;
    t       record;
begin
    for t in select * from (values ('scope', scope, 255, true), ('idem_key', idem_key, 255, true), ('action', action, 63, true), ('part', part, 255, false),
                                   ('content_type', content_type, 255, false), ('ordering_key', ordering_key, 255, false),
                                   ('trace_context', trace_context, 512, false), ('requested_by', requested_by, 255, false),
                                   ('subject', subject, 255, false)) v (field, value, max_bytes, required) loop
        v_wrong := case
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
        v_field := t.field;
        exit when v_wrong is not null;
    end loop;
    if v_wrong is null then
        v_field := 'payload';
        v_wrong := case
            when payload is null then 'is required: pass {} if the effect needs none'
            when octet_length(payload) > 1048576 then format('has %s bytes, the limit is 1048576: store it elsewhere and send a reference', octet_length(payload))
            when (coalesce(content_type, '') = '' or content_type collate "C" ~* '^(application/json|[^;]+\+json)[ \t]*(;|$)') and not samekey.is_json(payload)
                then 'is not JSON in UTF-8: pass its content_type, as in application/octet-stream' end;
    end if;
    if v_wrong is null then
        v_field := 'headers';
        v_wrong := samekey.headers_refusal(headers);
    end if;
    if v_wrong is null and due_at not between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        v_field := 'due_at';
        v_wrong := 'is not between the years 1970 and 9999: omit it to send now';
    elsif v_wrong is null and deadline not between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        v_field := 'deadline';
        v_wrong := 'is not between the years 1970 and 9999: omit it for none';
    elsif v_wrong is null and deadline <= due_at then
        v_field := 'deadline';
        v_wrong := 'must be after due_at, or the intent is never sent';
    elsif v_wrong is null and id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
        v_field := 'id';
        v_wrong := 'is the nil or the max UUID: omit it, or pass a version 7 UUID';
    end if;
    raise exception 'samekey: enqueue: % %', v_field, v_wrong using errcode = '22023', column = v_field;
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

CREATE OR REPLACE FUNCTION samekey.resolve(id uuid, outcome text, actor text, reason text, code text DEFAULT NULL::text, response_type text DEFAULT NULL::text, response bytea DEFAULT NULL::bytea, reference text DEFAULT NULL::text)
 RETURNS text[]
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
    v_row   samekey.outbox_queue;
    v_sent  boolean := outcome <> 'not_sent';
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
        raise exception 'samekey: resolve: % %', v_field, v_wrong using errcode = '22023', column = v_field;
    end if;
    v_row := samekey.act_lock('resolve', resolve.id, actor, reason, '{unknown,parked,dead}');
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
        last_code        = coalesce(nullif(resolve.code, ''), q.last_code)
    where q.id = resolve.id;
    insert into samekey.outbox_history (intent_id, event, outcome, code, response_type, response, reference, actor, reason, db_user)
    values (resolve.id, 'resolved', resolve.outcome, nullif(resolve.code, ''), nullif(resolve.response_type, ''),
            nullif(resolve.response, ''), nullif(resolve.reference, ''), resolve.actor, resolve.reason, session_user);
    return case when v_sent then array[v_row.action] else '{}' end;
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
