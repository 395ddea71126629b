-- samekey, schema version 1.
--
-- samekey makes side effects safe to repeat. An application writes its own rows, an intent for each effect outside the
-- database (an outbox message: "charge this card") and a processed record (an idempotency record: "this request was
-- answered like this") in one transaction. A worker later sends each intent with an idempotency key that never changes.
--
--   outbox            an intent: what to send. One row, written once, deleted by pruning
--   outbox_queue      the work that is left: one row per unfinished intent, with its state and its lease
--   outbox_history    what happened to an intent, one row per event
--   outbox_sends      the rendered request of an intent, stored before the first attempt
--   processed_events  one row per idempotency key: the request's hash and the stored response
--   endpoints         webhook receivers: URL, signing secrets, stopped or not
--   pauses            which destinations and actions are paused, by whom and why
--   actions           what the workers have registered about actions
--   rate_limits       how much of a destination's rate is used, for all workers together
--   workers           the running workers
--   deployment        which deployment this database belongs to
--   outbox_stats      counts per action and state, for dashboards
--   migrations        the schema version
--   river_*           tables of the job queue River (https://riverqueue.com), which has migrations of its own
--
-- To write an intent in SQL, call samekey.enqueue. To find what happened to a thing of the application, read outbox by
-- its subject (or by idem_key) and join the others by id:
--
--   select o.id, o.action, coalesce(q.status, h.final_status) as status, q.due_at, q.last_code,
--          (select r.reference from samekey.outbox_history r
--           where r.intent_id = o.id and r.reference is not null order by r.id desc limit 1) as reference
--   from samekey.outbox o
--   left join samekey.outbox_queue q on q.id = o.id
--   left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
--   where o.subject = 'booking/42';
--
-- To find the intent behind a vendor's id, such as ch_123 in its dashboard, read outbox_history by reference.
--
-- Do not change rows by hand: the worker's commands (approve, redrive, resolve, cancel) record who did it and why.
--
-- States (status): a new intent is pending, or blocked behind an earlier one with its ordering key. A worker's claim
-- makes it leased for one attempt. The attempt ends it as delivered or refused, schedules a retry (pending), or leaves
-- the outcome unknown, and then the worker looks it up. An answered intent has its outcome and waits for the
-- application's callback (Apply). Three states wait for a person: awaiting_approval, parked (the outcome is unknown and
-- nothing can find it out) and dead (no attempt is left, or the request cannot succeed). Delivered, refused and
-- cancelled intents are finished: they leave outbox_queue, and the final state is in outbox_history.
--
-- Conventions
--   * Times come from clock_timestamp(), not from the transaction's start: a long transaction must not backdate a row.
--   * Keys, actions and scopes compare as bytes (COLLATE "C").
--   * Payloads, responses and hashes are bytea: jsonb changes the text of numbers and the order of members.
--
-- Advisory locks. These are all the lock numbers that samekey uses. schema/locks.go in the source has the same table.
--
--   lock                                   form          number            held by
--   samekey.key_lock(scope, idem_key)      one bigint    seed 7309453201   the transaction that works on the key
--   samekey.ordering_lock(ordering_key)    one bigint    seed 8243107313   a transaction that writes or ends an intent
--                                                                          with this ordering key
--   (samekey.worker_class(), workers.id)   two integers  class 1935764331  the worker's session, while it runs
--   migration                              one bigint    7309453202        Migrate and Grant, while they run
--   shares                                 one bigint    7309453203        a worker that registers its actions
--   hashtextextended(database name, 0)     one bigint    seed 0            samekeytest, in another database

-- ---------------------------------------------------------------------------------------------------------------------
-- An intent (outbox message). The row never changes, so that a claim or a settle, which update outbox_queue, never
-- copies the payload.
--
-- The table has no CHECKs. samekey.enqueue validates every row, and no role but the owner can insert in another way (a
-- test of the grants holds this). Ten CHECKs on one row took 85 us, as long as the insert itself.
create table samekey.outbox (
    id            uuid        primary key,
    scope         text        collate "C" not null, -- whose key it is, such as acme/orders.create
    idem_key      text        collate "C" not null, -- the request's idempotency key
    action        text        collate "C" not null, -- what to do, such as charge_card
    part          text        collate "C" not null default '', -- tells effects of one action under one key apart
    delivery_key  uuid        not null,   -- sent to the vendor as the idempotency key; derived from the four columns above
    payload       bytea       not null,
    content_type  text        not null,
    headers       jsonb       not null default '{}',
    ordering_key  text        collate "C", -- intents with the same ordering key are sent one after another
    requested_by  text,                   -- who asked for the effect; this person may not approve it
    written_by    text        not null default session_user, -- the login that wrote the intent; it may not approve it
    subject       text        collate "C", -- the application's own name of what the effect is about, such as booking/42
    trace_context text,                   -- the W3C traceparent of the writer
    due_at        timestamptz not null,   -- not sent before
    deadline      timestamptz,            -- not sent after
    created_at    timestamptz not null default clock_timestamp(),

    -- idem_key is first, so that this index also finds an intent by its key alone.
    constraint outbox_once unique (idem_key, scope, action, part)
);
-- What happened to a booking is one lookup. An intent without a subject costs this index nothing.
create index outbox_subject on samekey.outbox (subject, id) where subject is not null;

-- ---------------------------------------------------------------------------------------------------------------------
-- The work queue: one narrow row per unfinished intent, deleted when the intent is finished. It has no foreign key to
-- outbox: samekey.enqueue writes both rows, and the check would add a lookup and a row lock to every insert.
create table samekey.outbox_queue (
    id                uuid        primary key,
    action            text        collate "C" not null,
    status            text        collate "C" not null,
    due_at            timestamptz not null,
    ordering_key      text        collate "C",
    seq               bigint      not null default 0, -- position within the ordering key

    leased_by         integer,                -- workers.id of the worker that holds the claim
    lease_until       timestamptz,            -- after this, another worker may take the intent over

    attempt           integer     not null default 0, -- number of the last claim. It only grows: the fencing token of a claim
    last_sent_attempt integer     not null default 0, -- the last attempt whose request may have left the worker
    attempts_used     integer     not null default 0, -- attempts counted against the policy's limit

    safe_to_resend    boolean     not null default false, -- set by the claim: if its worker dies, send again without a lookup
    no_resend         boolean     not null default false, -- an absent lookup must not lead to another send: that was done once,
                                                          -- or the vendor accepted the request
    sent_unrendered   boolean     not null default false, -- may have been sent without a stored request (outbox_sends)

    first_sent_at     timestamptz,            -- when a vendor may first have seen the key; null while certainly none has
    key_window_until  timestamptz,            -- until when the vendor remembers the key
    sent_to           text        collate "C", -- destination and digest of the request's form at the first send

    approved_at       timestamptz,
    last_code         text        collate "C", -- code of the last outcome, such as 503, timeout or absent
    share             text        collate "C", -- of a fair action: whose share of the slots it is in; see actions.fair_by

    constraint outbox_queue_status check (status in
        ('pending', 'blocked', 'leased', 'unknown', 'answered', 'awaiting_approval', 'parked', 'dead')),
    -- A claim for a lookup or an Apply keeps the status: unknown or answered.
    constraint outbox_queue_lease check
        ((leased_by is null) = (lease_until is null)
         and (status <> 'leased' or leased_by is not null)
         and (leased_by is null or status in ('leased', 'unknown', 'answered'))),
    constraint outbox_queue_blocked check (status <> 'blocked' or ordering_key is not null),
    constraint outbox_queue_counts check (attempt >= 0 and attempts_used >= 0 and last_sent_attempt between 0 and attempt),
    constraint outbox_queue_window check (key_window_until is null or first_sent_at is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Claims read this index in order. Parked, dead, blocked and unapproved intents are not in it.
create index outbox_queue_due on samekey.outbox_queue (action, due_at)
    where leased_by is null and status in ('pending', 'unknown');
-- Claims of fair actions walk this index from share to share. Rows of other actions have no share and are not in it. The
-- test for it is first, since it ends the test of the predicate: an insert of such a row takes 1.5 % longer.
create index outbox_queue_share on samekey.outbox_queue (action, share, due_at)
    where share is not null and leased_by is null and status in ('pending', 'unknown');
-- Intents whose Apply is due have an index of their own: a million of them do not slow a claim down.
create index outbox_queue_answered on samekey.outbox_queue (action, due_at)
    where leased_by is null and status = 'answered';
-- The sweep finds expired leases and the leases of dead workers.
create index outbox_queue_leased on samekey.outbox_queue (leased_by, lease_until) where leased_by is not null;
-- The lists for operators.
create index outbox_queue_attention on samekey.outbox_queue (status, id)
    where status in ('awaiting_approval', 'parked', 'dead');
-- An ordering key has at most one head, at every isolation level.
create unique index outbox_queue_head on samekey.outbox_queue (ordering_key)
    where ordering_key is not null and status <> 'blocked';
create index outbox_queue_blocked on samekey.outbox_queue (ordering_key, seq) where status = 'blocked';

-- ---------------------------------------------------------------------------------------------------------------------
-- What happened to an intent, in order. At most one event of an intent has a final_status.
create table samekey.outbox_history (
    intent_id        uuid        not null,
    id               bigint      generated always as identity,
    at               timestamptz not null default clock_timestamp(),
    event            text        collate "C" not null,
    outcome          text        collate "C",
    final_status     text        collate "C",  -- set if this event finished the intent
    attempt          integer,
    worker           integer,                  -- workers.id
    started_at       timestamptz,              -- when the attempt, lookup or Apply began
    code             text        collate "C",
    error            text,
    response_type    text,
    response         bytea,
    reference        text        collate "C",  -- the vendor's own id of what it did, such as ch_123
    actor            text,                     -- the person who did it, as the caller named them
    reason           text,
    db_user          text,                     -- the login (session_user) of a person's act; null for a worker's event
    key_window_until timestamptz,              -- of the event with a final_status: do not prune before
    primary key (intent_id, id),

    -- A person's act has its login. Only the functions of the acts can write one: the worker's role may not.
    constraint outbox_history_event check
        (case when db_user is null then event in ('attempt', 'lookup', 'apply', 'orphaned', 'late', 'restored')
              else event in ('approved', 'rejected', 'redriven', 'resolved', 'cancelled') end),
    constraint outbox_history_outcome check (outcome in
        ('delivered', 'refused', 'retry', 'unsent', 'unknown', 'dead', 'parked', 'awaiting_approval',
         'absent', 'accepted', 'not_sent')),
    constraint outbox_history_final_status check (final_status in ('delivered', 'refused', 'cancelled')),
    constraint outbox_history_code_length     check (octet_length(code) <= 128),
    constraint outbox_history_error_length    check (octet_length(error) <= 4096),
    constraint outbox_history_response_length check (octet_length(response) <= 1048576),
    constraint outbox_history_type_length     check (octet_length(response_type) <= 255),
    constraint outbox_history_reference_length check (octet_length(reference) between 1 and 255),
    constraint outbox_history_actor_length    check (octet_length(actor) between 1 and 255),
    constraint outbox_history_reason_length   check (octet_length(reason) between 1 and 4096)
);
create unique index outbox_history_finish on samekey.outbox_history (intent_id) where final_status is not null;
create index outbox_history_reference on samekey.outbox_history (reference, intent_id) where reference is not null;

-- The rendered request of an intent, stored before the first attempt if the action renders one. Every attempt sends
-- these bytes, even if the configuration has changed since.
create table samekey.outbox_sends (
    intent_id    uuid        primary key,
    carried_key  text        collate "C" not null, -- the delivery key in the form that the vendor accepts
    request_type text,
    request      bytea,
    message_id   text        collate "C",          -- the Message-ID of a mail
    created_at   timestamptz not null default clock_timestamp(),
    constraint outbox_sends_key_length     check (octet_length(carried_key) between 1 and 255),
    constraint outbox_sends_type_length    check (octet_length(request_type) <= 255),
    constraint outbox_sends_request_length check (octet_length(request) <= 2097152),
    constraint outbox_sends_id_length      check (octet_length(message_id) between 1 and 998)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The processed records (idempotency records), one per key. A record counts until it is pruned: reads ignore
-- expires_at. A record without completed_at belongs to a request that is in progress.
create table samekey.processed_events (
    idem_key         text        collate "C" not null,
    scope            text        collate "C" not null,
    subject          text        collate "C",  -- the application's own name of what the request is about
    payload_hash     bytea       not null,     -- the fingerprint of the first request with this key
    hash_version     smallint    not null,
    failed           boolean     not null default false, -- the stored response is a business error
    response_code    integer,
    response_headers bytea,
    response_body    bytea,
    created_at       timestamptz not null default clock_timestamp(),
    completed_at     timestamptz,
    expires_at       timestamptz not null,     -- pruned after this
    primary key (idem_key, scope),

    -- Two CHECKs, not one per column: each takes 2 to 5 us of an insert. A bound within the regular expression, such as
    -- {0,253}, takes another 20 us.
    constraint processed_events_key check
        (octet_length(idem_key) <= 255 and idem_key ~ '^[!-~]([ -~]*[!-~])?$'
         and octet_length(scope) <= 255 and scope ~ '^[!-~]([ -~]*[!-~])?$'),
    constraint processed_events_length check
        (octet_length(payload_hash) = 32 and coalesce(octet_length(response_headers), 0) <= 65536
         and coalesce(octet_length(response_body), 0) <= 1048576
         and coalesce(octet_length(subject), 1) between 1 and 255)
) with (autovacuum_vacuum_scale_factor = 0.05); -- each page of a prune starts where the last one left dead entries
create index processed_events_expiry on samekey.processed_events (expires_at, idem_key, scope);
create index processed_events_subject on samekey.processed_events (subject) where subject is not null;

-- ---------------------------------------------------------------------------------------------------------------------
-- Webhook receivers: many endpoints behind one destination. Each attempt reads its endpoint's row. Nothing is sent to a
-- stopped endpoint.
create table samekey.endpoints (
    destination text        collate "C" not null,
    name        text        collate "C" not null,
    url         text        not null,
    secrets     text[]      not null default '{}', -- they sign each request
    version     uuid        not null default gen_random_uuid(), -- changes with every edit. A 410 to a request that was made
                                                                -- from an older version does not stop the endpoint
    stopped_at  timestamptz,
    stopped_by  text,                     -- null if the receiver stopped it, by a 410
    stop_reason text,
    created_at  timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp(),
    changed_by  text        not null default session_user, -- the login that changed it last
    primary key (destination, name),

    constraint endpoints_destination_name   check (destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'),
    constraint endpoints_name_length        check (octet_length(name) between 1 and 255),
    constraint endpoints_url                check (octet_length(url) <= 2048 and url ~ '^https?://'),
    constraint endpoints_secrets            check (cardinality(secrets) <= 8 and octet_length(array_to_string(secrets, '')) <= 4096 and array_position(secrets, null) is null),
    -- Other libraries hand out secrets in these forms, which cannot sign: every intent for this receiver would be dead.
    constraint endpoints_secrets_form       check (array_to_string(secrets, ' ') !~ '(^| )(v1a?,|whsk_|whpk_)'),
    constraint endpoints_stopped            check ((stopped_at is null) = (stop_reason is null) and (stopped_at is not null or stopped_by is null)),
    constraint endpoints_stopped_by_length  check (octet_length(stopped_by) between 1 and 255),
    constraint endpoints_stop_reason_length check (octet_length(stop_reason) between 1 and 4096)
);

-- Which destinations, and which actions of them, are paused, with the person and the reason. A pause that has ended
-- stays in the table as a record.
--
-- An operator can also pause the destination's queue in River. Workers copy that pause here, since River deletes the
-- row of a queue that no worker has used for a day. river_queue_created_at tells which row of River's was copied.
create table samekey.pauses (
    id                     bigint      generated always as identity primary key,
    destination            text        collate "C" not null,
    action                 text        collate "C" not null default '', -- '': all actions
    paused_at              timestamptz not null default clock_timestamp(),
    paused_by              text        not null,   -- the person, as the caller named them
    reason                 text        not null,
    paused_db_user         text,                   -- the person's login (session_user); null if copied from River
    until                  timestamptz,            -- null: until someone resumes it
    river_queue_created_at timestamptz,            -- null: not copied from River
    ended_at               timestamptz,            -- null: in force
    ended_by               text,
    end_reason             text,
    ended_db_user          text,                   -- null if the pause ended by itself or in River

    constraint pauses_destination_name  check (destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'),
    constraint pauses_action_name       check (action = '' or action ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    constraint pauses_paused_by_length  check (octet_length(paused_by) between 1 and 255),
    constraint pauses_reason_length     check (octet_length(reason) between 1 and 4096),
    constraint pauses_ended_by_length   check (octet_length(ended_by) between 1 and 255),
    constraint pauses_end_reason_length check (octet_length(end_reason) between 1 and 4096),
    constraint pauses_ended             check ((ended_at is null) = (ended_by is null) and (ended_at is null) = (end_reason is null)),
    constraint pauses_river             check (river_queue_created_at is null or action = '')
);
-- A destination, or an action of it, has at most one pause by a person and one by River in force.
create unique index pauses_in_force on samekey.pauses (destination, action, (river_queue_created_at is not null)) where ended_at is null;

-- What the workers have registered about actions, for statements that run outside a worker. A worker writes the rows of
-- its actions when it starts; the last one to start wins.
create table samekey.actions (
    action     text    collate "C" primary key,
    attention  boolean not null default false, -- resting and cancelled intents of it write a row of outbox_attention
    fair_by    text    collate "C",            -- 'scope' or 'part': outbox_queue.share is taken from it. null: no shares
    changed_at timestamptz not null default clock_timestamp(),
    constraint actions_action_name check (action ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    constraint actions_fair_by     check (fair_by in ('scope', 'part'))
);

-- A leaky bucket per destination, shared by all workers: level calls were in it at updated_at, and it leaks at the
-- rate. The row does not store a time until which the budget is used up: such a time is wrong once the clock is set
-- back or the rate changes.
create table samekey.rate_limits (
    destination text             collate "C" primary key,
    level       double precision not null default 0,
    updated_at  timestamptz      not null
) with (fillfactor = 10); -- leaves space on the page for the row's next versions

-- ---------------------------------------------------------------------------------------------------------------------
-- The running workers. A worker is alive while its session holds the advisory lock (samekey.worker_class(), id).
create table samekey.workers (
    id         integer     primary key, -- chosen at random: a sequence would give out ids again after a restore
    name       text        not null,
    actions    text[]      collate "C" not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    constraint workers_id_positive check (id > 0),
    constraint workers_name_length check (octet_length(name) between 1 and 255)
);

-- Which deployment (production, staging, ...) this database belongs to, and which database it is. A copy of the database
-- has the row of the original, so workers see that it is a copy and deliver nothing. See samekey.check_deployment.
--
-- The table has one row. It has no constraint for that, on purpose: a dump of the data that is restored into another
-- deployment's tables adds a second row, and then nothing is claimed either.
create table samekey.deployment (
    id                uuid        primary key default gen_random_uuid(), -- changes with each samekey.adopt. Claims compare it
    name              text        collate "C", -- null: the first worker that starts gives the database its name
    system_identifier bigint,                  -- of the server; null: the server does not tell it
    database_oid      oid         not null,
    test              boolean     not null default false, -- made by samekeytest.NewDB: any worker may deliver here
    adopted_at        timestamptz not null default clock_timestamp(),
    adopted_by        text        not null default session_user,
    constraint deployment_name check (name ~ '^[a-z0-9][a-z0-9_-]{0,55}$')
);

-- Counts of unfinished intents by action and state, refreshed by a periodic job.
create table samekey.outbox_stats (
    action        text        collate "C" not null,
    status        text        collate "C" not null,
    intents       bigint      not null,
    oldest_due_at timestamptz,
    handled       boolean     not null,   -- false: no running worker handles this action
    taken_at      timestamptz not null default clock_timestamp(),
    primary key (action, status)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Functions. Those that samekey.enqueue calls are written in PL/pgSQL: before Postgres 18, PL/pgSQL plans a function in
-- SQL again at each call unless it is inlined (130 us of 290 us per intent). Comparisons name COLLATE "C", since an
-- argument has the collation of the expression that the caller passed.

-- Derives the idempotency key that the vendor gets: a version 8 UUID from the hash of the four parts, each with its
-- length before it, so that two different lists of parts never hash the same bytes. samekey.DeliveryKey in Go does the
-- same.
create function samekey.delivery_key(scope text, idem_key text, action text, part text) returns uuid
    language plpgsql immutable strict parallel safe
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Returns the 8 hex digits that logs and errors print instead of a key. Key.Hash in Go does the same. Use it to find
-- the intent that a log line is about.
create function samekey.key_hash(scope text, idem_key text) returns text
    language sql immutable strict parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select left(encode(sha256(
        convert_to('samekey/log/v1', 'UTF8')
        || int4send(octet_length(convert_to(scope, 'UTF8')))    || convert_to(scope, 'UTF8')
        || int4send(octet_length(convert_to(idem_key, 'UTF8'))) || convert_to(idem_key, 'UTF8')), 'hex'), 8)
$$;

-- Returns the 8 hex digits that logs and errors print instead of a subject or a vendor's reference. Use it to find what
-- a log line is about: select id from samekey.outbox where samekey.text_hash(subject) = '0a1b2c3d'.
create function samekey.text_hash(value text) returns text
    language sql immutable strict parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select left(encode(sha256(
        convert_to('samekey/log/v1', 'UTF8') || int4send(octet_length(convert_to(value, 'UTF8'))) || convert_to(value, 'UTF8')), 'hex'), 8)
$$;

-- Returns a version 7 UUID. (Postgres has uuidv7() since version 18.)
create function samekey.uuidv7() returns uuid
    language plpgsql volatile parallel safe
    set search_path = pg_catalog, pg_temp
as $$
begin
    return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
end
$$;

-- The advisory locks: see the table at the top. COLLATE "C", since other collations hash other bytes.
create function samekey.key_lock(scope text, idem_key text) returns bigint
    language sql immutable strict parallel safe
as $$ select pg_catalog.hashtextextended((pg_catalog.octet_length(scope)::text || ':' || scope || idem_key) collate pg_catalog."C", 7309453201) $$;

create function samekey.ordering_lock(ordering_key text) returns bigint
    language sql immutable strict parallel safe
as $$ select pg_catalog.hashtextextended(ordering_key collate pg_catalog."C", 8243107313) $$;

create function samekey.worker_class() returns integer
    language sql immutable parallel safe
as $$ select 1935764331 $$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Services that share a database. A connection that sets samekey.service can use only keys whose scope starts with that
-- name, so two services never read or write each other's records and intents.

create function samekey.refuse_scope() returns text
    language plpgsql stable
as $$
begin
    raise exception 'samekey: scope does not start with "%", the service of this connection', pg_catalog.current_setting('samekey.service', true)
        using errcode = 'SK003', column = 'scope',
              hint = 'Start the scope with the name of the service, or correct the setting samekey.service of the connection.';
end
$$;

-- Returns the scope, or raises SK003 if it belongs to another service. Without the setting, every scope is allowed.
create function samekey.own_scope(scope text) returns text
    language sql stable parallel safe
as $$
    select case when coalesce(nullif(pg_catalog.current_setting('samekey.service', true), ''), '/')
                     in ('/', pg_catalog.split_part(scope collate pg_catalog."C", '/', 1)) then scope
                else samekey.refuse_scope() end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- The rules of an intent. outbox.Intent and samekey.Key in Go have the same rules: a test runs one table of intents
-- through both.

-- Reports whether the payload is one JSON document in UTF-8, as json.Valid in Go does. The cast to json checks the
-- syntax only: duplicate members, "\u0000", lone surrogates and 1e400 pass. The error is caught, since its text quotes
-- the payload. Go accepts 10,000 levels of nesting and Postgres more, so the depth is computed if the payload has that
-- many brackets.
create function samekey.is_json(payload bytea) returns boolean
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Returns what is wrong with the headers, or null. Headers that the worker sets and headers that hold secrets are
-- refused.
create function samekey.headers_refusal(headers jsonb) returns text
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Raises the error for an intent that samekey.enqueue refuses. The error names the first argument that breaks a rule
-- (also as its column) and what to do. It never quotes a value, so none reaches the server's log.
create function samekey.refuse_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb,
    ordering_key text, due_at timestamptz, deadline timestamptz, trace_context text, id uuid, requested_by text, subject text) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Handles an intent that exists already: returns its id, or raises. It runs as a statement of its own, since the row
-- may be newer than the snapshot of the insert that met it.
create function samekey.enqueue_duplicate(scope text, idem_key text, action text, part text, payload bytea, must_be_new boolean) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Fair shares. samekey.share_of returns the share of a new intent, which samekey.enqueue writes to the queue: its scope,
-- its part, or null if its action has no shares. The function is samekey.actions in the form of an expression: a trigger
-- on the table replaces the function when fair_by of an action changes. A subselect from the table in enqueue took 3 %
-- of an intent's instructions although no action had shares; the expression, which becomes part of the plan, takes none.

create function samekey.share_of(action text, scope text, part text) returns text
    language sql immutable parallel safe
as $$ select null::text $$;

-- Two workers may register actions at once: the second waits for the lock, and then sees the rows of the first.
create function samekey.share_of_replace() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- For each statement, also one that changes no row: so a worker's start corrects a function that a restored or a
-- replicated database does not have.
create trigger share_of_replace after insert or update or delete on samekey.actions
    for each statement execute function samekey.share_of_replace();

-- ---------------------------------------------------------------------------------------------------------------------
-- Writes an intent in the caller's transaction and returns its id. The call is idempotent: the same key, action, part
-- and payload returns the first id.
--
-- Errors: SK001 if the intent exists with another payload; SK002 if it exists and must_be_new is set; SK003 if the
-- scope belongs to another service; 22023 for an invalid argument, which is the error's column; 40001 if a concurrent
-- transaction interferes. Errors go to the server's log, so the only value that they contain is the action.
--
-- An empty part, ordering_key, trace_context, requested_by or subject means none. The function runs as its owner: a role needs
-- EXECUTE and no right on the tables. It derives the delivery key itself. With a wrong one, two effects would share a
-- key at the vendor, or one effect would change its key between two attempts.
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
    requested_by  text        default null,
    subject       text        default null
) returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- The same for a payload of type text, json or jsonb: the intent's payload is its text in UTF-8 (jsonb has changed
-- spacing and the order of members). A literal without a type is text, so backslashes stay; write bytes as
-- '\x00ff'::bytea. Some clients send bytes as text in that form (pgx in its simple protocol and exec modes): such a
-- text is refused.
create function samekey.enqueue(
    scope         text,
    idem_key      text,
    action        text,
    payload       text,
    part          text        default '',
    content_type  text        default 'application/json',
    headers       jsonb       default '{}',
    ordering_key  text        default null,
    due_at        timestamptz default null,
    deadline      timestamptz default null,
    trace_context text        default null,
    id            uuid        default null,
    must_be_new   boolean     default false,
    requested_by  text        default null,
    subject       text        default null
) returns uuid
    language plpgsql volatile
as $$
begin
    if pg_catalog.left(enqueue.payload, 2) collate pg_catalog."C" = '\x' and enqueue.payload collate pg_catalog."C" ~ '^\\x([0-9A-Fa-f]{2})*$' then
        raise exception 'samekey: enqueue: payload is bytea in text form: cast it, as in $4::bytea'
            using errcode = '22023', column = 'payload';
    end if;
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by, enqueue.subject);
end
$$;

create function samekey.enqueue(
    scope         text,
    idem_key      text,
    action        text,
    payload       json,
    part          text        default '',
    content_type  text        default 'application/json',
    headers       jsonb       default '{}',
    ordering_key  text        default null,
    due_at        timestamptz default null,
    deadline      timestamptz default null,
    trace_context text        default null,
    id            uuid        default null,
    must_be_new   boolean     default false,
    requested_by  text        default null,
    subject       text        default null
) returns uuid
    language plpgsql volatile
as $$
begin
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload::pg_catalog.text, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by, enqueue.subject);
end
$$;

create function samekey.enqueue(
    scope         text,
    idem_key      text,
    action        text,
    payload       jsonb,
    part          text        default '',
    content_type  text        default 'application/json',
    headers       jsonb       default '{}',
    ordering_key  text        default null,
    due_at        timestamptz default null,
    deadline      timestamptz default null,
    trace_context text        default null,
    id            uuid        default null,
    must_be_new   boolean     default false,
    requested_by  text        default null,
    subject       text        default null
) returns uuid
    language plpgsql volatile
as $$
begin
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload::pg_catalog.text, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by, enqueue.subject);
end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Acts: what people do to intents, pauses and endpoints. Go, the command line, pages and psql call the same functions.
-- Each function is one act: it locks, checks, changes, and records who did it. It runs as its owner, so a role needs
-- EXECUTE and no right on the tables. The caller's transaction decides whether the act counts.
--
-- actor and reason are required: a name of at most 255 bytes, and a sentence of at most 4096. The caller chooses the
-- actor. The history also keeps db_user, the login of the session (session_user), which nobody can choose.
--
-- An act of an intent returns the actions that have something to do after the commit. Go wakes their workers; without
-- that, the workers find it within half a second. Errors:
--
--   SK010  there is no such intent
--   SK011  the present state does not allow the act. The error's constraint is the state, and the hint what is possible
--   SK012  the two-person rule: another login has to approve. The error's constraint is the state
--   22023  an invalid argument, which is the error's column
--   42501  Postgres's own error: the role lacks the right. See schema.Roles
--
-- How acts on intents interleave with workers (queries/outbox_queue.sql) and with each other:
--
--  * A claim skips rows that are locked here. If the claim came first, act_lock waits for its commit and sees the
--    result: leased, or still unknown or answered with a lease.
--  * A settle, a release or a late answer that waits for a row locked here checks the row again after the commit. Each
--    act raises the attempt, so it matches no row, and its answer is kept as a late one. If the settle came first,
--    act_lock sees its outcome, or no row.
--  * The sweep skips locked rows and compares the lease, which each act removes.
--  * A late answer to the attempt that was sent last still resolves a parked intent, even if a person said that it was
--    not sent (last_sent_attempt stays): the vendor knows better. Once the intent is pending again, the answer is only
--    recorded.
--  * Two people: the second waits for the commit of the first and sees the result.
--  * A transaction that finishes an ordered intent takes the lock of its ordering key before any row lock, as a settle
--    does; otherwise the two could deadlock. The ordering key is read from outbox, where it never changes. An intent
--    that left its order has none in the queue and promotes no other.
--  * Reconcile sees the queue row and the finishing event in one snapshot: one of them is always there.

-- Refuses an actor or a reason that the next person could not use.
create function samekey.act_check(act text, actor text, reason text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Returns what is wrong with a text that is shown to people, or null.
create function samekey.act_text(value text, max_bytes integer) returns text
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when octet_length(value) > max_bytes then format('has %s bytes, the limit is %s', octet_length(value), max_bytes)
        when value collate "C" ~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
            then 'contains a control or invisible character: use printable text' end;
end
$$;

-- Refuses the name of a destination or of an action. An empty action means all.
create function samekey.act_target(act text, destination text, action text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(destination, '') collate "C" !~ '^[a-z0-9][a-z0-9_-]{0,55}$' then
        raise exception 'samekey: %: destination must match ^[a-z0-9][a-z0-9_-]{0,55}$, as in stripe', act
            using errcode = '22023', column = 'destination';
    elsif coalesce(action, '') collate "C" !~ '^([a-z][a-z0-9_.-]{0,62})?$' then
        raise exception 'samekey: %: action must match ^[a-z][a-z0-9_.-]{0,62}$, as in charge_card', act
            using errcode = '22023', column = 'action';
    end if;
end
$$;

-- Raises SK011 for an intent in this state. Without a hint, it is what a person can do about the state.
create function samekey.act_refuse(act text, id uuid, status text, hint text default null) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Begins an act: locks the intent's ordering key and its row in the queue, and returns the row. Raises SK010 or SK011
-- unless the intent is in one of the states.
create function samekey.act_lock(act text, id uuid, actor text, reason text, states text[]) returns samekey.outbox_queue
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Refuses an intent that may have been sent and must not be sent twice.
create function samekey.act_unsent(act text, q samekey.outbox_queue) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if q.first_sent_at is not null and not q.safe_to_resend then
        perform samekey.act_refuse(act, q.id, q.status, 'it may have been sent and must not be sent twice: find out what the vendor did, '
            'and resolve it; resolved as not sent, it can be redriven or cancelled');
    end if;
end
$$;

-- Makes a dead or parked intent due now. It has all its attempts again, and the same delivery key and bytes. An
-- irreversible action needs approval again. An intent that left its order stays out of it. Refuses an intent that may
-- have been sent and must not be sent twice: resolve it first.
create function samekey.redrive(id uuid, actor text, reason text) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Finishes an intent as cancelled, and promotes the next intent with its ordering key. For cancel and reject.
create function samekey.act_cancel(act text, event text, id uuid, actor text, reason text, states text[]) returns text[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Finishes an intent as cancelled. It is not sent, and the next intent with its ordering key follows. Refuses an intent
-- that may have been sent: resolve it first.
create function samekey.cancel(id uuid, actor text, reason text) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return samekey.act_cancel('cancel', 'cancelled', id, actor, reason, '{pending,blocked,awaiting_approval,parked,dead}');
end
$$;

-- Finishes an intent that awaits approval as cancelled. It is not sent, and the next intent with its ordering key
-- follows.
create function samekey.reject(id uuid, actor text, reason text) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return samekey.act_cancel('reject', 'rejected', id, actor, reason, '{awaiting_approval}');
end
$$;

-- Allows an intent that awaits approval to be sent, once. It becomes due now, or when the vendor's Retry-After has
-- passed.
--
-- Two-person rule: the login that wrote the intent, and the login that redrove it last, cannot approve it (SK012). These
-- are logins of the database, which nobody can choose. The actor whom the writer named as requested_by is refused too.
create function samekey.approve(id uuid, actor text, reason text) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Records what really happened to an intent that is unknown, parked or dead. outcome is delivered, refused or not_sent.
--
-- Delivered or refused: a worker reads the answer from the history, applies it and finishes the intent. Not sent: the
-- vendor never saw the key, and never will. The intent forgets that it was sent, and rests until a person redrives or
-- cancels it.
--
-- The other arguments are the evidence: the vendor's code, its answer (at most 1 MiB, without secrets) with its media
-- type, and its own id of what it did. Empty means none.
create function samekey.resolve(
    id            uuid,
    outcome       text,
    actor         text,
    reason        text,
    code          text  default null,
    response_type text  default null,
    response      bytea default null,
    reference     text  default null
) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Stops the calls to a destination, or of one of its actions, on all workers. Calls and lookups stop starting within a
-- second. Without until, it lasts until samekey.resume. The destination need not exist yet.
--
-- Errors: SK011 with the constraint "paused" if it is paused already: that pause and its reason stay. queries/pauses.sql
-- has the interleavings.
create function samekey.pause(
    destination text,
    actor       text,
    reason      text,
    action      text        default '',
    until       timestamptz default null
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Ends the pauses of exactly this destination and action, and River's pause if it is for all actions. Workers continue
-- within a second. Errors: SK011 with the constraint "not_paused" if there is none.
create function samekey.resume(
    destination text,
    actor       text,
    reason      text,
    action      text default ''
) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Adds a webhook receiver, or replaces the URL and the secrets of an existing one. A stopped one stays stopped. The
-- errors (22023) contain neither the URL nor a secret.
--
-- The functions of endpoints raise no error if there is no such endpoint, but return false: a caller's transaction goes
-- on. No function returns a secret.
create function samekey.endpoint_put(destination text, name text, url text, secrets text[] default '{}') returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Stops an endpoint: nothing is sent to it after the commit. One that is stopped already keeps its reason.
create function samekey.endpoint_stop(destination text, name text, actor text, reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Allows calls to a stopped endpoint again. Its dead intents stay dead until they are redriven.
create function samekey.endpoint_start(destination text, name text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    update samekey.endpoints e
    set stopped_at = null, stopped_by = null, stop_reason = null, version = gen_random_uuid(), changed_at = clock_timestamp(), changed_by = session_user
    where e.destination = endpoint_start.destination collate "C" and e.name = endpoint_start.name collate "C";
    return found;
end
$$;

-- Deletes an endpoint. Its unfinished intents become dead, unsent.
create function samekey.endpoint_delete(destination text, name text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from samekey.endpoints e
    where e.destination = endpoint_delete.destination collate "C" and e.name = endpoint_delete.name collate "C";
    return found;
end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- The deployment. A worker delivers only if the database is the one that its configuration names, and not a copy.
--
--   what was done                                 system identifier   database oid   rows   found by
--   dump and restore, logical replication         another             another        1      the identity
--   create database ... template                  the same            another        1      the identity
--   pg_upgrade                                    another             either         1      the identity
--   data restored into another deployment         -                   -              2      the number of rows
--   snapshot, pg_basebackup, restored backup      the same            the same       1      the name, if it differs
--   failover to a physical replica                the same            the same       1      nothing: it is the original
--
-- In each case but the last two, a person decides by samekey.adopt that workers may deliver what the copy contains.

-- Returns what tells this database from its copies. The functions below run as their owner, so that the answer is the
-- same for each role. Postgres lets every role call pg_control_system. Where it was revoked from the owner, or a
-- compatible server lacks it, the system identifier is null and does not count.
create function samekey.this_database(out system_identifier bigint, out database_oid oid)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    select d.oid into database_oid from pg_database d where d.datname = current_database();
    select c.system_identifier into system_identifier from pg_control_system() c;
exception when insufficient_privilege or undefined_function or feature_not_supported then
    select d.oid into database_oid from pg_database d where d.datname = current_database();
end
$$;

-- Reports whether a worker of the deployment may deliver what is in this database: problem is null, and id is what its
-- claims compare. Otherwise problem is 'unnamed' (the worker names no deployment), 'missing' (the table has no row),
-- 'several' (it has more than one), 'copy' or 'name' (it belongs to another deployment); belongs_to is the name in the
-- row. A worker calls it at its start, when its session is connected again, and with each heartbeat. The first call in
-- a new database sets the name. Interleavings: queries/deployment.sql.
create function samekey.check_deployment(deployment text, out id uuid, out belongs_to text, out problem text)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Makes this database the deployment's: from now on its workers deliver what is in it, whatever deployment it was
-- copied from. Returns how many intents are unfinished; those that are due are sent. For the owner of the tables, or a
-- role with a grant of its own.
--
-- It raises 55006 while a worker of another deployment is at work here: stop it first. If nothing changes, running
-- workers are no obstacle.
create function samekey.adopt(deployment text) returns bigint
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

insert into samekey.deployment (system_identifier, database_oid) select t.system_identifier, t.database_oid from samekey.this_database() t;

-- No function is executable by PUBLIC. schema.Grant gives the application's role and the worker's role what they need.
revoke all on all functions in schema samekey from public;
