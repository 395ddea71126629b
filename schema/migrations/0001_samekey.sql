-- samekey 0001: the tables of the design, section 4, and the one function that writes an intent.
--
-- Times are the database's (clock_timestamp, not the transaction's start). Keys, actions and scopes compare as bytes
-- (COLLATE "C"). Payloads, responses and hashes are bytea: jsonb keeps neither digits nor order.

-- ---------------------------------------------------------------------------------------------------------------------
-- The intent: written once, never changed. It holds the payload, so that claims and settles, which change the queue,
-- never copy it.
create table samekey.outbox (
    id            uuid        primary key,
    scope         text        collate "C" not null,
    idem_key      text        collate "C" not null,
    action        text        collate "C" not null,
    part          text        collate "C" not null default '',
    delivery_key  uuid        not null,
    payload       bytea       not null,
    content_type  text        not null,
    headers       jsonb       not null default '{}',
    ordering_key  text        collate "C",
    due_at        timestamptz not null,
    deadline      timestamptz,
    trace_context text,
    requested_by  text,                   -- who asked for it, and so may not approve it
    created_at    timestamptz not null default clock_timestamp(),

    -- The key first: the same index finds an intent by its key alone.
    constraint outbox_once unique (idem_key, scope, action, part),

    constraint outbox_scope_ascii          check (octet_length(scope) <= 255 and scope ~ '^[!-~]([ -~]*[!-~])?$'),
    constraint outbox_idem_key_ascii       check (idem_key ~ '^[!-~]([ -~]{0,253}[!-~])?$'),
    constraint outbox_action_name          check (action ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    constraint outbox_part_length          check (octet_length(part) <= 255),
    constraint outbox_payload_length       check (octet_length(payload) <= 1048576),
    constraint outbox_content_type_length  check (octet_length(content_type) between 1 and 255),
    constraint outbox_headers_object       check (jsonb_typeof(headers) = 'object' and octet_length(headers::text) <= 16384),
    constraint outbox_ordering_key_length  check (octet_length(ordering_key) between 1 and 255),
    constraint outbox_trace_context_length check (octet_length(trace_context) <= 512),
    constraint outbox_requested_by_length  check (octet_length(requested_by) between 1 and 255)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The work: one narrow row per unfinished intent, gone when the intent is finished. No foreign key to outbox: both rows
-- are written by samekey.enqueue alone, and the check would cost each insert a look-up and a row lock.
create sequence samekey.outbox_seq;

create table samekey.outbox_queue (
    id            uuid        primary key,
    seq           bigint      not null default nextval('samekey.outbox_seq'),
    due_at        timestamptz not null,
    first_sent_at timestamptz,            -- when a vendor may first have seen the key; null again where provably unsent
    window_ends   timestamptz,            -- until when that vendor remembers the key
    lease_until   timestamptz,
    approved_at   timestamptz,
    attempt       integer     not null default 0, -- grows with every claim and never goes back: the fence
    sent_attempt  integer     not null default 0, -- the last attempt that was given out to be sent
    spent         integer     not null default 0, -- what counts against the policy's attempts
    leased_by     integer,                -- samekey.workers.id
    repeatable    boolean     not null default false, -- set by the claim: may it be sent again without a look-up
    plain         boolean     not null default false, -- it may have been sent with nothing fixed in outbox_sends
    resent        boolean     not null default false, -- it was sent once more after look-ups said absent, or was accepted: never again
    action        text        collate "C" not null,
    status        text        collate "C" not null,
    ordering_key  text        collate "C",
    last_code     text        collate "C",
    sent_to       text        collate "C",-- the destination that may have seen it, and a digest of the form; counts while first_sent_at is set

    constraint outbox_queue_status check (status in
        ('pending', 'blocked', 'leased', 'unknown', 'answered', 'awaiting_approval', 'parked', 'dead')),
    -- Unknown and answered intents keep their status while a worker looks them up or applies their answer.
    constraint outbox_queue_lease check
        ((leased_by is null) = (lease_until is null)
         and (status <> 'leased' or leased_by is not null)
         and (leased_by is null or status in ('leased', 'unknown', 'answered'))),
    constraint outbox_queue_blocked check (status <> 'blocked' or ordering_key is not null),
    constraint outbox_queue_counts check (attempt >= 0 and spent >= 0 and sent_attempt between 0 and attempt),
    constraint outbox_queue_window check (window_ends is null or first_sent_at is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- What a claim reads, in the order in which it takes it. Parked, dead, awaiting and blocked intents are outside.
create index outbox_queue_due on samekey.outbox_queue (action, due_at)
    where leased_by is null and status in ('pending', 'unknown', 'answered');
-- What the sweep reads: who holds what.
create index outbox_queue_leased on samekey.outbox_queue (leased_by, lease_until) where leased_by is not null;
-- What a person looks at.
create index outbox_queue_resting on samekey.outbox_queue (status, id)
    where status in ('awaiting_approval', 'parked', 'dead');
-- Two heads of one ordering key are impossible, at every isolation level.
create unique index outbox_queue_head on samekey.outbox_queue (ordering_key)
    where ordering_key is not null and status <> 'blocked';
create index outbox_queue_blocked on samekey.outbox_queue (ordering_key, seq) where status = 'blocked';

-- ---------------------------------------------------------------------------------------------------------------------
-- What happened, in order. An intent has at most one event that finished it.
create table samekey.outbox_history (
    intent_id     uuid        not null,
    id            bigint      generated always as identity,
    at            timestamptz not null default clock_timestamp(),
    started_at    timestamptz,
    window_ends   timestamptz,            -- of a finishing event: until then the key must not be forgotten
    attempt       integer,
    worker        integer,
    finished      text        collate "C",-- the final state that this event put the intent in
    event         text        collate "C" not null,
    outcome       text        collate "C",
    code          text        collate "C",
    error         text,
    response_type text,
    response      bytea,
    actor         text,
    reason        text,
    primary key (intent_id, id),

    constraint outbox_history_event check (event in
        ('attempt', 'lookup', 'apply', 'orphaned', 'late',
         'approved', 'rejected', 'redriven', 'resolved', 'cancelled', 'restored')),
    constraint outbox_history_finished check (finished in ('delivered', 'refused', 'cancelled')),
    constraint outbox_history_outcome check (outcome in
        ('delivered', 'refused', 'retry', 'unsent', 'unknown', 'dead', 'parked', 'awaiting_approval',
         'absent', 'inconclusive', 'accepted', 'not_sent')),
    constraint outbox_history_code_length     check (octet_length(code) <= 128),
    constraint outbox_history_error_length    check (octet_length(error) <= 4096),
    constraint outbox_history_response_length check (octet_length(response) <= 1048576),
    constraint outbox_history_type_length     check (octet_length(response_type) <= 255),
    constraint outbox_history_actor_length    check (octet_length(actor) between 1 and 255),
    constraint outbox_history_reason_length   check (octet_length(reason) between 1 and 4096)
);
create unique index outbox_history_finish on samekey.outbox_history (intent_id) where finished is not null;

-- What was fixed before the first send, where it is more than the payload and the delivery key. Every attempt sends
-- these bytes, whatever the configuration says by then.
create table samekey.outbox_sends (
    intent_id    uuid        primary key,
    carried_key  text        collate "C" not null, -- the delivery key, in the form that the vendor takes
    request_type text,
    request      bytea,
    message_id   text        collate "C",
    created_at   timestamptz not null default clock_timestamp(),
    constraint outbox_sends_key_length     check (octet_length(carried_key) between 1 and 255),
    constraint outbox_sends_type_length    check (octet_length(request_type) <= 255),
    constraint outbox_sends_request_length check (octet_length(request) <= 2097152),
    constraint outbox_sends_id_length      check (octet_length(message_id) between 1 and 998)
);

-- How fast a vendor account may be called, by all workers together: until when its budget is given out already.
create table samekey.rate_limits (
    destination text        collate "C" primary key,
    given_until timestamptz not null
) with (fillfactor = 10); -- a row is a page, so that its versions stay on it

-- Receivers of webhooks and the like, many behind one destination, as people set them. A call reads its endpoint's row;
-- nothing is sent to one that is stopped.
create table samekey.endpoints (
    destination text        collate "C" not null,
    name        text        collate "C" not null,
    url         text        not null,
    secrets     text[]      not null default '{}', -- sign each call
    version     uuid        not null default gen_random_uuid(), -- another with each change: what a receiver says to a call of an older one counts for nothing
    stopped_at  timestamptz,
    stopped_by  text,                     -- null: the receiver itself
    stop_reason text,
    created_at  timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp(),
    primary key (destination, name),

    constraint endpoints_destination_name   check (destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'),
    constraint endpoints_name_length        check (octet_length(name) between 1 and 255),
    constraint endpoints_url                check (octet_length(url) <= 2048 and url ~ '^https?://'),
    constraint endpoints_secrets            check (cardinality(secrets) <= 8 and octet_length(array_to_string(secrets, '')) <= 4096 and array_position(secrets, null) is null),
    -- Forms that other libraries hand out and that cannot sign: each intent of such a receiver would be dead.
    constraint endpoints_secrets_form       check (array_to_string(secrets, ' ') !~ '(^| )(v1a?,|whsk_|whpk_)'),
    constraint endpoints_stopped            check ((stopped_at is null) = (stop_reason is null) and (stopped_at is not null or stopped_by is null)),
    constraint endpoints_stopped_by_length  check (octet_length(stopped_by) between 1 and 255),
    constraint endpoints_stop_reason_length check (octet_length(stop_reason) between 1 and 4096)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The memory of requests. A row lives until it is pruned: look-up ignores expires_at.
create table samekey.processed_events (
    idem_key         text        collate "C" not null,
    scope            text        collate "C" not null,
    created_at       timestamptz not null default clock_timestamp(),
    completed_at     timestamptz,
    expires_at       timestamptz not null,
    lease_until      timestamptz,         -- of an operation that spans several transactions
    attempt          integer     not null default 0,
    response_code    integer,
    hash_version     smallint    not null,
    failed           boolean     not null default false, -- a business error that replays
    status           text        collate "C" not null,
    payload_hash     bytea       not null,
    response_headers bytea,
    response_body    bytea,
    progress         bytea,
    primary key (idem_key, scope),

    constraint processed_events_scope_ascii  check (octet_length(scope) <= 255 and scope ~ '^[!-~]([ -~]*[!-~])?$'),
    constraint processed_events_key_ascii    check (idem_key ~ '^[!-~]([ -~]{0,253}[!-~])?$'),
    constraint processed_events_hash_length  check (octet_length(payload_hash) = 32),
    constraint processed_events_status       check (status in ('started', 'done')),
    constraint processed_events_done         check ((status = 'done') = (completed_at is not null)),
    constraint processed_events_headers_length check (octet_length(response_headers) <= 65536),
    constraint processed_events_body_length  check (octet_length(response_body) <= 1048576),
    constraint processed_events_progress_length check (octet_length(progress) <= 1048576)
) with (autovacuum_vacuum_scale_factor = 0.05); -- a prune leaves dead entries where the next one begins
create index processed_events_expiry on samekey.processed_events (expires_at, idem_key, scope);

-- ---------------------------------------------------------------------------------------------------------------------
-- Who drains. A worker is alive while its session holds the advisory lock (samekey.worker_class(), id).
create sequence samekey.worker_seq as integer cycle;
create table samekey.workers (
    id         integer     primary key default nextval('samekey.worker_seq'),
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    name       text        not null,
    actions    text[]      collate "C" not null,
    constraint workers_name_length check (octet_length(name) between 1 and 255)
);

-- Counts by action and state, taken by a periodic job, for whoever watches with SQL.
create table samekey.outbox_stats (
    action        text        collate "C" not null,
    status        text        collate "C" not null,
    intents       bigint      not null,
    oldest_due_at timestamptz,
    handled       boolean     not null,   -- does any live worker handle the action
    taken_at      timestamptz not null default clock_timestamp(),
    primary key (action, status)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The key carried downstream: a UUID of version 8 over the parts, each behind its length, so that no two lists of parts
-- run together. The same as samekey.DeliveryKey in Go.
create function samekey.delivery_key(scope text, idem_key text, action text, part text) returns uuid
    language sql immutable strict parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select encode(set_byte(set_byte(d, 6, (get_byte(d, 6) & 15) | 128), 8, (get_byte(d, 8) & 63) | 128), 'hex')::uuid
    from (select substring(sha256(
        convert_to('samekey/delivery/v1', 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8')))    || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(idem_key, 'UTF8'))) || convert_to(idem_key, 'UTF8')
        || int4send(octet_length(convert_to(action, 'UTF8')))   || convert_to(action, 'UTF8')
        || int4send(octet_length(convert_to(part, 'UTF8')))     || convert_to(part, 'UTF8')) from 1 for 16) as d) as digest
$$;

-- The 8 hex digits that stand for a key in logs and errors: the same as Key.Hash in Go, to find a log line's intent.
create function samekey.key_hash(scope text, idem_key text) returns text
    language sql immutable strict parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select left(encode(sha256(
        convert_to('samekey/log/v1', 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8')))    || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(idem_key, 'UTF8'))) || convert_to(idem_key, 'UTF8')), 'hex'), 8)
$$;

-- A UUID of version 7 for writers that have no library for it (Postgres has one since 18).
create function samekey.uuidv7() returns uuid
    language sql volatile parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- The advisory locks, each in one place. Locks on keys and ordering keys are of the one-number form, with seeds of
-- their own; a worker's is of the two-number form.
create function samekey.key_lock(scope text, idem_key text) returns bigint
    language sql immutable strict parallel safe
as $$ select pg_catalog.hashtextextended(pg_catalog.octet_length(scope)::text || ':' || scope || idem_key, 7309453201) $$;

create function samekey.ordering_lock(ordering_key text) returns bigint
    language sql immutable strict parallel safe
as $$ select pg_catalog.hashtextextended(ordering_key, 8243107313) $$;

create function samekey.worker_class() returns integer
    language sql immutable parallel safe
as $$ select 1935764331 $$;

-- Writes an intent in the caller's transaction and returns its id. The same key, action, part and payload again is a
-- no-op that returns the first id (raises SK002 with must_be_new); another payload raises SK001. Errors go to the server's
-- log, and so leave out the part. It runs as its owner, so that a role needs EXECUTE on it and nothing else.
create function samekey.enqueue(
    scope         text,
    idem_key      text,
    action        text,
    payload       bytea,
    part          text        default '',
    content_type  text        default 'application/json',
    headers       jsonb       default '{}',
    ordering_key  text        default null,
    due_at        timestamptz default null,
    deadline      timestamptz default null,
    trace_context text        default null,
    id            uuid        default null,
    must_be_new   boolean     default false,
    requested_by  text        default null
) returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Nothing is for everybody: see the grants for the application's role and the worker's.
revoke all on function samekey.enqueue, samekey.delivery_key, samekey.key_hash, samekey.uuidv7, samekey.key_lock, samekey.ordering_lock,
    samekey.worker_class from public;
