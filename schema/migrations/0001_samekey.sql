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
--   outbox_attention  what the application has yet to learn: an intent needs a person, or was cancelled
--   actions           what the workers have registered about their actions
--   processed_events  one row per idempotency key: the request's hash and the stored response
--   operations        operations in several transactions that are in progress: who works on them
--   operation_steps   the steps of such operations, and their results
--   endpoints         webhook receivers: URL, signing secrets, stopped or not
--   endpoint_history  what happened to endpoints, and who did it
--   pauses            which destinations and actions are paused, by whom and why
--   rate_limits       how much of a destination's rate is used, for all workers together
--   workers           the running workers
--   deployment        which deployment this database belongs to
--   outbox_stats      counts per action and state, for dashboards
--   migrations        the schema version
--   river_*           tables of the job queue River (https://riverqueue.com), which has migrations of its own
--
-- Views, for psql and BI tools (see "Views" at the end):
--
--   intents           one row per intent: names, status, cause, times
--   timeline          what happened to intents, with their names
--   needs_attention   the intents that wait for a person, and what the person can do
--
-- To write an intent in SQL, call samekey.enqueue. To find what happened to a thing of the application, read the views by
-- its subject (or by key):
--
--   select id, action, status, code, reference from samekey.intents where subject = 'booking/42' order by id desc;
--   select at, action, event, outcome, code, actor from samekey.timeline where subject = 'booking/42' order by at;
--
-- To find the intent behind a vendor's id, such as ch_123 in its dashboard, read timeline by reference.
--
-- Do not change rows by hand: call the functions samekey.redrive, resolve, cancel, approve, .. (see "Acts" below), which
-- check the state and record who did it and why.
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
-- An intent (outbox message). A claim or a settle, which update outbox_queue, never copies the payload. The row changes
-- once at most: samekey.erase_subject and erase_scope empty it.
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
    replaces      uuid,                   -- the intent that this one replaces, with the same key, action and part
    revision      smallint    not null default 0, -- 0 for an intent that samekey.enqueue wrote, then 1 more per replacement
    erased_at     timestamptz,            -- headers, subject, ordering_key, requested_by and trace_context were erased, and payload is a hash

    -- idem_key is first, so that this index also finds an intent by its key alone.
    constraint outbox_once unique (idem_key, scope, action, part, revision)
);
-- An intent has at most one successor.
create unique index outbox_replaces on samekey.outbox (replaces) where replaces is not null;
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
    cause             text        collate "C", -- of a dead or parked intent: the last error's message without its values
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
-- The groups of samekey.cause_groups. Without the id, a million entries take 8 MB instead of 119 MB, since equal ones
-- are stored once.
create index outbox_queue_cause on samekey.outbox_queue (status, action, last_code, cause)
    where status in ('awaiting_approval', 'parked', 'dead');
-- An ordering key has at most one head, at every isolation level.
create unique index outbox_queue_head on samekey.outbox_queue (ordering_key)
    where ordering_key is not null and status <> 'blocked';
create index outbox_queue_blocked on samekey.outbox_queue (ordering_key, seq) where status = 'blocked';

-- The worker's role may update the queue, and takes an approval away again (approved_at is null), but it cannot approve.
-- The act samekey.approve runs as the owner of the table. An AFTER trigger, since a BEFORE trigger locks each row once
-- more before it tests its condition; the condition is false for every row of a settle.
create function samekey.refuse_approval() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not pg_has_role(current_user, (select c.relowner from pg_class c where c.oid = tg_relid), 'MEMBER') then
        raise exception 'samekey: approve: the role % may not set outbox_queue.approved_at', current_user
            using errcode = '42501', hint = 'An approver calls samekey.approve.';
    end if;
    return null;
end
$$;
create trigger outbox_queue_approval after update of approved_at on samekey.outbox_queue
    for each row when (new.approved_at is not null and new.approved_at is distinct from old.approved_at)
    execute function samekey.refuse_approval();

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
    endpoint         text        collate "C",  -- of a call to a stored endpoint: destination/name (a destination has no slash)
    actor            text,                     -- the person who did it, as the caller named them
    reason           text,
    db_user          text,                     -- the login (session_user) of a person's act; null for a worker's event
    key_window_until timestamptz,              -- of the event with a final_status: do not prune before
    primary key (intent_id, id),

    -- A person's act has its login. Only the functions of the acts can write one: the worker's role may not.
    constraint outbox_history_event check
        (case when db_user is null then event in ('attempt', 'lookup', 'apply', 'orphaned', 'late', 'restored', 'held')
              else event in ('approved', 'rejected', 'redriven', 'resolved', 'cancelled', 'replaced', 'erased') end),
    constraint outbox_history_outcome check (outcome in
        ('delivered', 'refused', 'retry', 'unsent', 'unknown', 'dead', 'parked', 'awaiting_approval',
         'absent', 'accepted', 'not_sent')),
    constraint outbox_history_final_status check (final_status in ('delivered', 'refused', 'cancelled')),
    constraint outbox_history_code_length     check (octet_length(code) <= 128),
    constraint outbox_history_error_length    check (octet_length(error) <= 4096),
    constraint outbox_history_response_length check (octet_length(response) <= 1048576),
    constraint outbox_history_type_length     check (octet_length(response_type) <= 255),
    constraint outbox_history_reference_length check (octet_length(reference) between 1 and 255),
    constraint outbox_history_endpoint_length check (octet_length(endpoint) between 3 and 312),
    constraint outbox_history_actor_length    check (octet_length(actor) between 1 and 255),
    constraint outbox_history_reason_length   check (octet_length(reason) between 1 and 4096)
);
create unique index outbox_history_finish on samekey.outbox_history (intent_id) where final_status is not null;
create index outbox_history_reference on samekey.outbox_history (reference, intent_id) where reference is not null;
-- The lists of intents that ended in another way than most. A delivered one is not in it.
create index outbox_history_undelivered on samekey.outbox_history (final_status, intent_id)
    where final_status in ('refused', 'cancelled');
-- The log of an endpoint, samekey.endpoint_deliveries. A call to no stored endpoint is not in it.
create index outbox_history_endpoint on samekey.outbox_history (endpoint, id) where endpoint is not null;

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
-- Attention events: one row each time an intent of an action with an Attention function becomes dead, parked,
-- awaiting_approval or cancelled. A worker runs the function in the transaction that deletes the row: in order of id for
-- each intent and those that replace it, before a later Apply. The table is empty most of the time.
-- queries/outbox_attention.sql has the interleavings.
create table samekey.outbox_attention (
    id            bigint      generated always as identity primary key,
    intent_id     uuid        not null,
    first_id      uuid        not null,     -- the intent, or the first one of those that it replaces
    action        text        collate "C" not null,
    status        text        collate "C",  -- null: the event is about an endpoint
    event         text        collate "C" not null, -- what led there, as in outbox_history; or endpoint_stopped
    endpoint      text        collate "C",  -- the endpoint that an attempt of the intent stopped
    code          text        collate "C",
    error         text,
    actor         text,                     -- the person who did it; null: a worker
    reason        text,
    at            timestamptz not null default clock_timestamp(), -- when the intent came to this status
    due_at        timestamptz not null default clock_timestamp(), -- the function is not called before
    attempts_used integer     not null default 0, -- calls of the function that failed
    last_error    text,                     -- of the last one

    constraint outbox_attention_status check (status in ('dead', 'parked', 'awaiting_approval', 'cancelled')),
    constraint outbox_attention_about  check ((status is null) = (endpoint is not null) and (endpoint is not null) = (event = 'endpoint_stopped'))
);
create index outbox_attention_due on samekey.outbox_attention (action, due_at, id);
create index outbox_attention_intent on samekey.outbox_attention (intent_id);
create index outbox_attention_first on samekey.outbox_attention (first_id, id);

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
    erased_at        timestamptz,              -- the answer and the subject were erased: a repeated request is told so
    primary key (idem_key, scope),

    -- Two CHECKs, not one per column: each takes 2 to 5 us of an insert. A bound within the regular expression, such as
    -- {0,253}, takes another 20 us.
    constraint processed_events_key check
        (octet_length(idem_key) <= 255 and idem_key ~ '^[!-~]([ -~]*[!-~])?$'
         and octet_length(scope) <= 255 and scope ~ '^[!-~]([ -~]*[!-~])?$'),
    constraint processed_events_length check
        (octet_length(payload_hash) = 32 and coalesce(octet_length(response_headers), 0) <= 65536
         and coalesce(octet_length(response_body), 0) <= 1048576
         and coalesce(octet_length(subject), 0) <= 255)
) with (autovacuum_vacuum_scale_factor = 0.05); -- each page of a prune starts where the last one left dead entries
create index processed_events_expiry on samekey.processed_events (expires_at, idem_key, scope);
create index processed_events_subject on samekey.processed_events (subject) where subject is not null;

-- ---------------------------------------------------------------------------------------------------------------------
-- Operations in several transactions (processed.Steps). An operation's processed record is in progress until its last
-- transaction. Until then it has a row here: who works on it, and until when. Only the functions below change the two
-- tables; queries/operations.sql has the interleavings.
create table samekey.operations (
    idem_key    text        collate "C" not null,
    scope       text        collate "C" not null,
    fence       bigint      not null,     -- random, new for each call that takes the operation over. Other calls' writes fail
    lease_until timestamptz not null,     -- after this, another call may take the operation over
    attempts    integer     not null default 1, -- how many calls have worked on it
    started_at  timestamptz not null default clock_timestamp(),
    primary key (idem_key, scope)
) with (fillfactor = 50);                 -- leaves space on the page for the row's next versions

-- The steps that an operation has finished or begun to send, in order. They stay until the record is pruned.
create table samekey.operation_steps (
    idem_key         text        collate "C" not null,
    scope            text        collate "C" not null,
    position         smallint    not null,     -- 1 for the first step
    name             text        collate "C" not null,
    status           text        collate "C" not null,
    failed           boolean     not null default false, -- the result is a business error
    code             integer,                  -- of a business error
    result           bytea,
    -- The rest is null for a step in the database.
    delivery_key     uuid,                     -- sent to the vendor as the idempotency key
    sends            integer,                  -- how many sends may have reached the vendor
    first_sent_at    timestamptz,              -- when a vendor may first have seen the key; null while certainly none has
    key_window_until timestamptz,              -- until when the vendor remembers the key; null if it does not
    sent_at          timestamptz,              -- the last send
    ended_at         timestamptz,              -- when the last send ended without an answer; null if its process died
    absent_at        timestamptz,              -- when a lookup first reported that the vendor does not know the key
    resent           boolean     not null default false, -- was sent again after two such lookups, which happens once
    error            text,                     -- of the last send or lookup
    resolved_at      timestamptz,              -- a person recorded what the vendor did
    resolved_by      text,
    resolved_db_user text        collate "C",
    resolved_reason  text,
    created_at       timestamptz not null default clock_timestamp(),
    finished_at      timestamptz,
    primary key (idem_key, scope, position),
    constraint operation_steps_once unique (idem_key, scope, name),

    constraint operation_steps_position check (position between 1 and 1002), -- the last two for samekey.abandoned and samekey.erased
    constraint operation_steps_name     check (name ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    -- in_flight: a call is being made, or its outcome is unknown. unsent: certainly not sent. parked: its outcome is
    -- unknown, and a person has to find it out.
    constraint operation_steps_status   check (status in ('done', 'in_flight', 'unsent', 'parked')),
    constraint operation_steps_done     check ((status = 'done') = (finished_at is not null)),
    constraint operation_steps_call     check (status = 'done' or delivery_key is not null),
    constraint operation_steps_sends    check (sends >= 0 and (sends = 0) = (first_sent_at is null)),
    constraint operation_steps_length   check
        (coalesce(octet_length(result), 0) <= 1048576 and coalesce(octet_length(error), 0) <= 4096
         and coalesce(octet_length(resolved_by), 1) between 1 and 255
         and coalesce(octet_length(resolved_reason), 1) between 1 and 4096)
);
-- What waits for a person.
create index operation_steps_parked on samekey.operation_steps (created_at) where status = 'parked';

-- ---------------------------------------------------------------------------------------------------------------------
-- Whether secrets can sign. Other libraries hand out texts that cannot: a secret behind the name of a signature, and a
-- public key. Every intent for their receiver would be dead. An ed25519 private key is 32 or 64 bytes in base64.
create function samekey.can_sign(secrets text[]) returns boolean
    language sql immutable parallel safe
    return array_to_string(secrets, ' ') !~ '(^| )(v1a?,|whpk_|whsk_(?!([A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==)( |$)))';

-- Webhook receivers: many endpoints behind one destination. Each attempt reads its endpoint's row. Nothing is sent to a
-- stopped endpoint.
create table samekey.endpoints (
    destination text        collate "C" not null,
    name        text        collate "C" not null,
    url         text        not null,
    secrets     text[]      not null default '{}', -- they sign each request
    headers     jsonb       not null default '{}', -- are sent with each request, and may be credentials
    version     uuid        not null default gen_random_uuid(), -- changes with every edit. A 410 to a request that was made
                                                                -- from an older version does not stop the endpoint
    failing_since timestamptz,            -- the first failed attempt since the last success, see Limits.StopEndpointAfter
    stopped_at  timestamptz,
    stopped_by  text,                     -- null if the receiver stopped it, by a 410 or by failing for too long
    stop_reason text,
    created_at  timestamptz not null default clock_timestamp(),
    changed_at  timestamptz not null default clock_timestamp(),
    changed_by  text        not null default session_user, -- the login that changed it last
    primary key (destination, name),

    constraint endpoints_destination_name   check (destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'),
    constraint endpoints_name_length        check (octet_length(name) between 1 and 255),
    constraint endpoints_url                check (octet_length(url) <= 2048 and url ~ '^https?://'),
    constraint endpoints_secrets            check (cardinality(secrets) <= 8 and octet_length(array_to_string(secrets, '')) <= 4096 and array_position(secrets, null) is null),
    constraint endpoints_secrets_form       check (samekey.can_sign(secrets)),
    constraint endpoints_headers            check (jsonb_typeof(headers) = 'object' and octet_length(headers::text) <= 65536
                                                   and not jsonb_path_exists(headers, '$.* ? (@.type() != "string")')),
    constraint endpoints_stopped            check ((stopped_at is null) = (stop_reason is null) and (stopped_at is not null or stopped_by is null)),
    constraint endpoints_stopped_by_length  check (octet_length(stopped_by) between 1 and 255),
    constraint endpoints_stop_reason_length check (octet_length(stop_reason) between 1 and 4096)
);

-- What happened to endpoints, also to deleted ones. It has no URL and no secret.
create table samekey.endpoint_history (
    id          bigint      generated always as identity,
    destination text        collate "C" not null,
    name        text        collate "C" not null,
    at          timestamptz not null default clock_timestamp(),
    event       text        collate "C" not null,
    actor       text,                     -- the person, as the caller named them; null: the receiver stopped it, by a 410 or by failing
    reason      text        not null,
    db_user     text        not null default session_user, -- the login
    primary key (destination, name, id),

    constraint endpoint_history_event         check (event in ('created', 'changed', 'stopped', 'started', 'tested', 'deleted')),
    constraint endpoint_history_actor_length  check (octet_length(actor) between 1 and 255),
    constraint endpoint_history_reason_length check (octet_length(reason) between 1 and 4096)
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
-- its actions when it starts. The last one to start decides on fair_by; attention is true until no worker has had an
-- Attention function for 10 minutes (queries/workers.sql).
create table samekey.actions (
    action     text    collate "C" primary key,
    attention  boolean not null default false, -- resting and cancelled intents of it write a row of outbox_attention
    attention_seen_at timestamptz,             -- when a worker with an Attention function of it last reported
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

-- Derives the delivery key of an intent that replaces another one, from the key of that one. The vendor remembers the
-- first key with the first request, so the successor needs a key of its own, and the same one if the replacement is lost
-- in a failover and made again.
create function samekey.replacement_key(delivery_key uuid) returns uuid
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
declare
    d bytea := substring(sha256(convert_to('samekey/replacement/v1', 'UTF8') || uuid_send(delivery_key)) from 1 for 16);
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

-- Writes the attention event of an intent, if its action has an Attention function. Each statement and each function
-- that makes an intent dead, parked, awaiting_approval or cancelled calls it for that intent, with what it writes to
-- outbox_history, once the intent's row in outbox_queue is locked. Returns whether a row was written. (`offset 0`: with
-- statistics of an empty table, the planner would look for revisions in all of outbox_once.)
create function samekey.note_attention(
    intent_id uuid,
    action    text,
    status    text,
    event     text,
    code      text default null,
    error     text default null,
    actor     text default null,
    reason    text default null
) returns boolean
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

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

-- Returns who sets a header: the connection, the worker for any vendor, or null. internal/names has the same lists.
create function samekey.header_owner(name text) returns text
    language sql immutable parallel safe
    return case
        when lower(name collate "C") in ('host', 'content-length', 'transfer-encoding', 'connection', 'keep-alive', 'te', 'trailer', 'upgrade', 'expect',
                                         'accept-encoding', 'proxy-connection', 'proxy-authorization', 'proxy-authenticate') then 'connection'
        when lower(name collate "C") in ('idempotency-key', 'x-idempotency-key', 'content-type', 'traceparent', 'tracestate', 'samekey-attempt') then 'worker'
    end;

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
$$;

-- Returns the first argument that breaks a rule and what is wrong with it, or nulls.
create function samekey.intent_refusal(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb,
    ordering_key text, due_at timestamptz, deadline timestamptz, trace_context text, id uuid, requested_by text, subject text,
    out field text, out wrong text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Raises the error for an intent that samekey.enqueue refuses. The error names the first argument that breaks a rule
-- (also as its column) and what to do. It never quotes a value, so none reaches the server's log.
create function samekey.refuse_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb,
    ordering_key text, due_at timestamptz, deadline timestamptz, trace_context text, id uuid, requested_by text, subject text) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    v record;
begin
    select r.* into v from samekey.intent_refusal(scope, idem_key, action, payload, part, content_type, headers,
        ordering_key, due_at, deadline, trace_context, id, requested_by, subject) r;
    raise exception 'samekey: enqueue: % %', v.field, v.wrong using errcode = '22023', column = v.field;
end
$$;

-- Returns what is stored in place of an erased payload, so that a repeated insert can be compared with it. (A column of
-- its own made each row look wider, and the plan of reconcile with stale statistics worse.) The delivery key in front
-- makes the hashes of two equal payloads different.
create function samekey.erased_hash(delivery_key uuid, payload bytea) returns bytea
    language plpgsql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
begin
    return sha256(uuid_send(delivery_key) || payload);
end
$$;

-- Handles an intent that exists already: returns its id, or raises. If the intent was replaced, it returns the last
-- successor: a repeated request has the first payload, and the effect is now the successor's. It runs as a statement of
-- its own, since the row may be newer than the snapshot of the insert that met it.
create function samekey.enqueue_duplicate(scope text, idem_key text, action text, part text, payload bytea, must_be_new boolean) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
create trigger share_of_replace after insert or update of fair_by or delete on samekey.actions
    for each statement execute function samekey.share_of_replace();

-- What a fair claim reads (queries/outbox_queue.sql). Both functions read outbox_queue_share in its order, whatever the
-- statistics are: enable_sort = off leaves the planner no other index. Without it, and with statistics from a time when
-- the queue was empty, a walk of 1,000 of 20,000 shares read outbox_queue_due and sorted 40,000 rows for each share: 26 s.
-- plan_cache_mode saves planning at each call: two thirds of the time of a walk over one share.

-- Walks the shares of an action that have intents, from a share on, and tells which have one that is due. It stops after
-- max_steps shares. If it returns fewer, no share comes after the last one. first_due is the first due_at of all, and now
-- if that is later: the low-water mark of a walk over all shares.
--
-- It reads the first page_size intents in one scan, and then takes a step from share to share, however many intents each
-- has. A step takes as long as a scan of ten intents, so a page is worth its time where shares have few intents. A page
-- of 1 is a step. No page has more than max_steps intents.
create function samekey.fair_walk(action text, from_share text, due_from timestamptz, max_steps integer, page_size integer,
        out shares text[], out due boolean[], out first_due timestamptz)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
    set plan_cache_mode = force_generic_plan
as $$
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
$$;

-- Locks due intents of the shares, at most quotas[n] of shares[n], and returns their ids in the order of the shares. The
-- range of one share, in place of an equality, makes `order by` ask for the order of outbox_queue_share.
create function samekey.fair_pick(action text, shares text[], quotas integer[], due_from timestamptz) returns uuid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
    set plan_cache_mode = force_generic_plan
as $$
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
$$;

-- Reports whether an intent follows all rules; null or false if it does not. With payload_checked, it does not look whether
-- a JSON payload is JSON.
--
-- It is one expression, which becomes part of the caller's: PL/pgSQL prepares each expression again in every transaction.
-- So it has no search_path of its own, and only functions that set theirs may call it. Lengths are checked outside the
-- regular expressions: a bound such as {0,253} takes 20 us.
create function samekey.is_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb,
    ordering_key text, due_at timestamptz, deadline timestamptz, trace_context text, id uuid, requested_by text, subject text,
    payload_checked boolean) returns boolean
    language sql stable parallel safe
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Writes an intent in the caller's transaction and returns its id. The call is idempotent: the same key, action, part
-- and payload returns the first id.
--
-- Errors: SK001 if the intent exists with another payload; SK002 if it exists and must_be_new is set; SK003 if the
-- scope belongs to another service; 22023 for an invalid argument, which is the error's column; 40001 if a concurrent
-- transaction interferes. Errors go to the server's log, so the only value that they contain is the action.
--
-- An empty part, ordering_key, trace_context, requested_by or subject means none. payload_checked: the caller has
-- checked a JSON payload, as outbox.Insert does. The function runs as its owner: a role needs
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
    subject       text        default null,
    payload_checked boolean   default false
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
$$;

-- Writes intents that have no ordering key, in one statement, in the order of the arrays, and returns the positions of
-- those that it did not write: they exist, in the table or at an earlier position, or they break a rule. Call
-- samekey.enqueue for each of them: it returns the first id, or raises the error. With must_be_new, such an intent raises
-- SK002. The ids are version 7 UUIDs, and payloads are checked, as in samekey.enqueue with payload_checked. A time in the
-- year 1 means none, as an empty text does: Go's arrays have no null.
--
-- Two calls whose arrays are sorted by key, scope, action and part do not deadlock. 1,000 intents take a sixth of the
-- time of 1,000 calls of samekey.enqueue. The expression of samekey.delivery_key is repeated, as its call costs 10 to 20 us
-- a row; the subquery with `offset 0` computes each hash once.
create function samekey.enqueue_many(scopes text[], idem_keys text[], actions text[], payloads bytea[], parts text[], content_types text[],
    headers text[], due_ats timestamptz[], deadlines timestamptz[], trace_contexts text[], ids uuid[], must_be_new boolean,
    requested_bys text[], subjects text[]) returns integer[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
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
-- Returns the states of intents to a caller that knows their keys and ids: row n belongs to the n-th of each array. An
-- intent that does not exist, is not committed or has another key has no row. For an intent that was replaced, the row
-- is that of its last successor. The status is null if the intent lost its row in the queue, which reconcile restores.
--
-- It is what outbox.Await reads. It runs as its owner, since the application's role cannot read intents.
--
-- `offset 0` forces index lookups, regardless of statistics. So all plans are the same, and the generic one is kept: to
-- plan each call again takes 0.7 ms of 1.2 ms.
create function samekey.intent_states(scopes text[], idem_keys text[], ids uuid[])
    returns table (n integer, id uuid, action text, status text, code text)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
    set jit = off
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Operations in several transactions: see queries/operations.sql. The functions run as their owner, so a role needs
-- EXECUTE and no right to change the two tables. Each refuses a scope of another service (SK003), and each write of a
-- call that lost the operation to another one (SK020). own_scope is assigned and not compared in a WHERE clause: there,
-- the planner may evaluate its refusal to estimate the rows.

-- Starts an operation, or takes it over if no call works on it. The outcome is
--   mine   the caller works on it now. Steps that are finished already are in operation_steps
--   held   another call works on it, for retry_us more at most (0: unknown)
--   other  the record is completed, or has another payload hash: nothing was changed
-- A repetition with the same fence changes nothing, so a call whose answer was lost may be made again.
create function samekey.operation_start(scope text, idem_key text, payload_hash bytea, hash_version smallint, retain_us bigint,
    subject text, fence bigint, lease_us bigint, out outcome text, out retry_us bigint)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Extends the lease, or raises SK020 if the caller has lost the operation. The row stays locked until the transaction
-- ends.
create function samekey.operation_hold(scope text, idem_key text, fence bigint, lease_us bigint) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Begins the transaction of a step: locks the operation's row, and reports whether the caller still has it. While the
-- row is locked, no other call takes the operation over, however long the step takes.
create function samekey.step_lock(scope text, idem_key text, fence bigint) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Stores the result of a step, in the transaction of what the step wrote. It raises if the step is stored already:
-- otherwise the COMMIT behind it would keep the step's rows twice.
create function samekey.step_put(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, name text,
    failed boolean, code integer, result bytea) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform samekey.operation_hold(step_put.scope, step_put.idem_key, step_put.fence, step_put.lease_us);
    insert into samekey.operation_steps as s (idem_key, scope, position, name, status, failed, code, result, finished_at)
    values (step_put.idem_key, step_put.scope, step_put.position, step_put.name, 'done', step_put.failed, step_put.code, step_put.result,
            clock_timestamp());
end
$$;

-- Decides what to do with a step that calls a vendor, and marks it in flight before it is sent. The verdict is
--   send    marked: commit, then send. sends is the number of this send
--   lookup  the outcome of an earlier send is unknown: ask the vendor
--   wait    likewise, but not before wait_us are over: a call in progress at the vendor can end meanwhile
--   parked  no lookup can tell: a person has to
-- window_us is how long the vendor remembers the key; 0 if it does not deduplicate by it. absent is true after a lookup
-- that did not find the key. The lease covers the call (timeout_us) and lease_us.
create function samekey.call_mark(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, name text,
    timeout_us bigint, window_us bigint, settle_us bigint, can_lookup boolean, absent boolean, resend_absent boolean,
    out verdict text, out sends integer, out wait_us bigint)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Stores the vendor's answer to a call. A repetition changes nothing.
create function samekey.call_put(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint,
    failed boolean, code integer, result bytea) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform samekey.operation_hold(call_put.scope, call_put.idem_key, call_put.fence, call_put.lease_us);
    update samekey.operation_steps s
    set status = 'done', failed = call_put.failed, code = call_put.code, result = call_put.result, error = null, finished_at = clock_timestamp()
    where s.idem_key = call_put.idem_key collate "C" and s.scope = call_put.scope collate "C" and s.position = call_put.position
      and s.status = 'in_flight';
end
$$;

-- Notes that a send or a lookup ended without an answer. unsent: this send certainly did not reach the vendor. If no
-- earlier one may have, the step may be sent again, whatever its class. A repetition changes nothing.
create function samekey.call_end(scope text, idem_key text, fence bigint, lease_us bigint, "position" smallint, sends integer,
    unsent boolean, error text) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Completes an operation: its record gets the answer. No step may be left whose outcome is unknown.
create function samekey.operation_complete(scope text, idem_key text, fence bigint, retain_us bigint,
    failed boolean, code integer, headers bytea, body bytea) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Lets the next call take the operation over at once. If no step of it was stored, may have been sent or was resolved by
-- a person, the operation is deleted, and the key can be used again. Without the fence it changes nothing.
create function samekey.operation_release(scope text, idem_key text, fence bigint) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- What a person decides about an operation: acts, with the arguments and the errors of the acts below.

-- Locks an operation on which no call works.
create function samekey.operation_lock_idle(act text, scope text, idem_key text, actor text, reason text) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Records what really happened to a step whose outcome is unknown: in_flight or parked, while no call works on the
-- operation. The outcome is delivered (result is the vendor's answer as JSON: what the step returns), refused (code and
-- result are the step's failure) or not_sent (it is sent again when the operation is resumed: no earlier send reached
-- the vendor, and none will). The next call with the key continues behind the step.
create function samekey.resolve_step(scope text, idem_key text, step text, outcome text, actor text, reason text,
    code integer default null, result bytea default null) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Ends an operation that no caller will resume: its answer is the failure with this code and body, and the record can be
-- pruned. No step may be in doubt. What its steps did stays. The act is stored as the last step, samekey.abandoned.
create function samekey.abandon_operation(scope text, idem_key text, actor text, reason text, code integer, body bytea) returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Acts: what people do to intents, pauses and endpoints. Go, the command line, pages and psql call the same functions.
-- Each function is one act: it locks, checks, changes, and records who did it. It runs as its owner, so a role needs
-- EXECUTE and no right on the tables. The caller's transaction decides whether the act counts.
--
-- actor and reason are required: a name of at most 255 bytes, and a sentence of at most 4096. The caller chooses the
-- actor. The history also keeps db_user, the login of the session (session_user), which no caller can choose.
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
--  * A late answer to the attempt that was sent last, or of a lookup after it, still resolves a parked intent, even if a
--    person said that it was not sent (last_sent_attempt stays): the vendor knows better. Once the intent is pending again, the answer is only
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

create function samekey.erased_hint() returns text
    language sql immutable
    set search_path = pg_catalog, pg_temp
as $$ select 'it is finished, and its content was erased: for another effect, insert an intent under another key or part' $$;

-- Reports whether the content of an intent is kept: false if it was erased, null if there is no such intent. It is for
-- events of finished intents (a late answer, a vendor's message) and locks the intent, so that no event brings content
-- back: see the interleavings of erase_subject. It runs as its owner, since a row lock needs the right to update.
create function samekey.keeps_content(id uuid) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (select o.erased_at is null from samekey.outbox o where o.id = keeps_content.id for share);
end
$$;

-- Begins an act: locks the intent's ordering key and its row in the queue, and returns the row. Raises SK010 or SK011
-- unless the intent is in one of the states.
create function samekey.act_lock(act text, id uuid, actor text, reason text, states text[]) returns samekey.outbox_queue
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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

-- Refuses a successor that samekey.hold_successor holds, until a person resolves it as not sent: the vendor has acted for
-- the intent that it replaces.
create function samekey.act_not_held(act text, q samekey.outbox_queue) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if q.cause = 'the intent that it replaces was delivered' then
        perform samekey.act_refuse(act, q.id, q.status, 'the intent that it replaces was delivered after all, and this one would be a second effect: '
            'resolve it as delivered, or cancel it; resolved as not sent, it can be sent nevertheless');
    end if;
end
$$;

-- The four changes below take locked rows whose state was checked. An act makes one for its intent, and an act on many
-- intents for a batch of them. Each returns the actions that have something to do. enable_seqscan = off: with statistics
-- of an empty queue, a batch of 500 of 40,000 dead intents read all of them.

create function samekey.act_redriven(ids uuid[], actor text, reason text) returns text[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
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
$$;

-- event is cancelled or rejected. The next intents with their ordering keys are promoted, as OutboxQueuePromote does: in
-- a statement of its own, which sees the deletion.
create function samekey.act_cancelled(event text, ids uuid[], actor text, reason text) returns text[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
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
$$;

create function samekey.act_resolved(ids uuid[], outcome text, actor text, reason text, code text, response_type text, response bytea,
    reference text) returns text[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set enable_nestloop = off -- with statistics of an empty queue, a nested loop reads ids times ids rows
as $$
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
$$;

-- Writes a successor for each intent, with this payload, with its own one changed by a merge patch, or with the same. due_at follows the order of
-- the ids, so that the oldest is sent first. `offset 0` forces lookups by primary key in outbox.
create function samekey.act_replaced(ids uuid[], payload bytea, content_type text, patch jsonb, deadline timestamptz, actor text, reason text)
    returns text[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
as $$
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
$$;

-- Refuses evidence that samekey.resolve cannot store.
create function samekey.act_evidence(act text, outcome text, code text, response_type text, response bytea, reference text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Makes a dead or parked intent due now. It has all its attempts again, and the same delivery key and bytes. An
-- irreversible action needs approval again. An intent that left its order stays out of it. Refuses an intent that may
-- have been sent and must not be sent twice: resolve it first.
create function samekey.redrive(id uuid, actor text, reason text) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_row samekey.outbox_queue := samekey.act_lock('redrive', id, actor, reason, '{parked,dead}');
begin
    perform samekey.act_unsent('redrive', v_row);
    perform samekey.act_not_held('redrive', v_row);
    return samekey.act_redriven(array[id], actor, reason);
end
$$;

-- For cancel and reject.
create function samekey.act_cancel(act text, event text, id uuid, actor text, reason text, states text[]) returns text[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
-- are logins of the database, which no caller can choose. The actor whom the writer named as requested_by is refused too.
create function samekey.approve(id uuid, actor text, reason text) returns text[]
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Returns the lines of the history since first_sent_at after which a vendor may have acted: attempts that were neither
-- unsent nor answered by "the vendor did not act". (No vendor had acted by first_sent_at.) The planner puts this query in
-- the place of a call: do not set a search_path.
create function samekey.may_have_acted(intent_id uuid, first_sent_at timestamptz) returns setof bigint
    language sql stable
as $$
    select h.id
    from samekey.outbox_history h
    where h.intent_id = may_have_acted.intent_id and h.at >= may_have_acted.first_sent_at
      and (h.event = 'restored' or h.event in ('attempt', 'lookup', 'late', 'orphaned')
           and coalesce(h.outcome, 'unknown') not in ('retry', 'unsent', 'dead', 'awaiting_approval'))
$$;

-- Replaces a dead or parked intent that no vendor acted on: cancels it and writes its successor, with the same key,
-- action and part, and a delivery key derived from the first one's. The successor takes the first one's place in its
-- order, is rendered again and needs an approval of its own. Returns the successor's id.
--
-- Each attempt must have been unsent, or answered by "the vendor did not act"; otherwise a person resolves the intent as
-- not sent first.
--
-- Two people, or a person and a worker: see the interleavings of acts above. OutboxQueueHoldSuccessor has those of a
-- late answer.
create function samekey.act_replace(id uuid, payload bytea, content_type text, deadline timestamptz, actor text, reason text) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- The act with the same payload, which an operator may do. Without a deadline, the successor has that of the first one.
create function samekey.replace(id uuid, actor text, reason text, deadline timestamptz default null) returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return samekey.act_replace(replace.id, null, null, replace.deadline, replace.actor, replace.reason);
end
$$;

-- The act with another payload: a new effect, so it needs the approver. Without a content_type, it is the first one's.
create function samekey.replace_payload(id uuid, payload bytea, actor text, reason text, content_type text default null,
    deadline timestamptz default null) returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if replace_payload.payload is null then
        raise exception 'samekey: replace: payload is required: call samekey.replace for the same payload' using errcode = '22023', column = 'payload';
    end if;
    return samekey.act_replace(replace_payload.id, replace_payload.payload, replace_payload.content_type, replace_payload.deadline,
        replace_payload.actor, replace_payload.reason);
end
$$;

-- Parks the last successor of an intent that was delivered after all, before the successor is sent (again). Returns the
-- successor and its status before. held is false if it is being sent, is looked up, rests as parked or is finished; sent
-- is true if a vendor may have seen it, so that there may be two effects. Either way the application gets an attention
-- event: of the successor if it is held, else of the intent, with the code successor_sent. Returns no row for an intent
-- without a successor. The caller has written the event to the history, and has a snapshot that is younger than the
-- replacement.
create function samekey.hold_successor(id uuid, out successor uuid, out status text, out held boolean, out sent boolean) returns setof record
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Acts on many intents. Each call does one batch in the caller's transaction: at most max_count intents, in the order of
-- their ids, and each with its line in the history. Call it again for the next batch, with last_id as after_id, until
-- last_id is null. An interrupted run loses nothing: a new one leaves out what is done.
--
-- filter is a JSON object that selects intents. All members are optional, except that cancel_all needs a status:
--
--   status      one state: dead or parked; for resolve_all also unknown; for cancel_all also pending, blocked and
--               awaiting_approval. Default: dead, and then parked
--   action      an action, or an array of actions, such as all actions of a destination
--   part        the part, such as the endpoint of a webhook
--   code        the code of the last outcome; null: none
--   cause       the cause, as samekey.cause_groups returns it; null: none
--   scope, key  of the intent
--   subject     what the intent is about
--   reference   the vendor's own id in any of its answers
--   from, to    written at or after this time, and before that time
--   older_than  written longer ago than this interval
--
-- A batch skips intents that an act on one intent would refuse, and intents that another transaction has locked: a
-- worker, another person, or a writer of their ordering key. samekey.bulk_plan counts without a change.
--
-- How a batch B interleaves with another transaction T about one of its intents:
--
--   T is uncommitted                         B skips the row. If T rolls back, another run takes it
--   T commits after B's snapshot, before     B locks the new row and checks its columns again: it skips what is in
--   B's lock                                 another state. The history is still read as of the snapshot: an intent that
--                                            was redriven, sent and dead again within this time passes. So replacements
--                                            look at the history again after the lock
--   T is an act on one, and waits for B      T finds no row, or another state, and refuses. It holds the lock of the
--                                            ordering key meanwhile, for which B never waits: no deadlock
--   T is a late answer, and waits for B      it matches no row (B raised the attempt, or replaced the intent), and is kept.
--                                            OutboxQueueHoldSuccessor then holds the successor
--   T is a batch of another person           each takes the intents that the other has not locked. Both go in the order of
--                                            ids, and neither waits
--   T inserts the key, action and part       it gets the first intent's id before B's commit, and the successor's after
--   of a replaced intent again               it. Both are answers to the same effect
--   T prunes                                 it deletes the intents of a key once all are finished, which the successor is not
--   B's session is killed                    nothing of the batch happened. Another run begins with the same intents

-- Returns the filter's conditions, checked.
create function samekey.bulk_filter(act text, filter jsonb, out statuses text[], out actions text[], out part text, out code text, out cause text,
    out scope text, out key text, out subject text, out reference text, out written_from timestamptz, out written_to timestamptz, out of_outbox boolean)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Locks the next batch and returns its ids. The settings make the planner read an index in the order of ids, whatever the
-- statistics are: outbox_queue_attention, or for other states the primary key. So a run reads the queue once, and not
-- once for each batch. `offset 0` forces lookups by primary key in outbox.
create function samekey.bulk_pick(act text, filter jsonb, after_id uuid, max_count integer, outcome text default null,
    patch jsonb default null, deadline timestamptz default null) returns uuid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
as $$
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
$$;

-- Returns an ordered batch's ids without those whose ordering key is busy. The rows are locked already, so the keys are
-- only tried: a settle may hold such a lock and wait for a row.
create function samekey.bulk_order(ids uuid[]) returns uuid[]
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Applies a JSON merge patch (RFC 7396): a member that is null removes, an object changes an object's members, and any
-- other value replaces. Members that the patch does not name keep their place and their text, such as 1.10 or 1e3, which
-- jsonb would not.
create function samekey.merge_patch(target json, patch jsonb) returns json
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Reports whether a payload can have the merge patch: it is a JSON object, has no text that Postgres cannot read (\u0000,
-- half of a surrogate pair), and is not longer than 1 MiB together with the patch.
create function samekey.patchable(payload bytea, content_type text, patch jsonb) returns boolean
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Refuses what the successors of many intents cannot have.
create function samekey.bulk_change(act text, patch jsonb, deadline timestamptz) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Counts what an act on many intents would do now. act is the name of its function. resolve_all also looks at its outcome
-- (what was resolved as not sent already is left out), and replacements at their patch and deadline. sample has the first
-- ten ids that no other transaction has locked. The other counts are the intents that the act would skip:
--
--   may_have_been_sent  they may have been sent; for replacements, a vendor may have acted. Resolve them first
--   past_deadline       replacements: their deadline has passed. Pass another one
--   not_patchable       replace_payload_all: see samekey.patchable
create function samekey.bulk_plan(act text, filter jsonb, outcome text default null, patch jsonb default null, deadline timestamptz default null,
    out intents bigint, out sample uuid[], out may_have_been_sent bigint, out past_deadline bigint, out not_patchable bigint)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set jit = off
as $$
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
$$;

-- samekey.redrive for many intents. changed is how many were redriven.
create function samekey.redrive_all(filter jsonb, actor text, reason text, max_count integer default 500, after_id uuid default null,
    out changed integer, out last_id uuid, out actions text[])
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids uuid[];
begin
    perform samekey.act_check('redrive_all', actor, reason);
    v_ids := samekey.bulk_pick('redrive_all', filter, after_id, max_count);
    actions := samekey.act_redriven(v_ids, actor, reason);
    changed := cardinality(v_ids);
    last_id := v_ids[changed];
end
$$;

-- samekey.cancel for many intents. Intents whose ordering key is busy are skipped.
create function samekey.cancel_all(filter jsonb, actor text, reason text, max_count integer default 500, after_id uuid default null,
    out changed integer, out last_id uuid, out actions text[])
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- samekey.resolve for many intents, all with the same outcome and evidence.
create function samekey.resolve_all(
    filter        jsonb,
    outcome       text,
    actor         text,
    reason        text,
    code          text    default null,
    response_type text    default null,
    response      bytea   default null,
    reference     text    default null,
    max_count     integer default 500,
    after_id      uuid    default null,
    out changed   integer,
    out last_id   uuid,
    out actions   text[]
)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- For the two acts below. Intents whose ordering key is busy are skipped.
create function samekey.bulk_replace(act text, filter jsonb, patch jsonb, deadline timestamptz, actor text, reason text, max_count integer, after_id uuid,
    out changed integer, out last_id uuid, out actions text[])
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- samekey.replace for many intents: the same payloads, rendered again. Without a deadline, each successor has that of the
-- first one, and intents whose deadline has passed are skipped.
create function samekey.replace_all(filter jsonb, actor text, reason text, deadline timestamptz default null, max_count integer default 500,
    after_id uuid default null, out changed integer, out last_id uuid, out actions text[])
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    select b.* into changed, last_id, actions
    from samekey.bulk_replace('replace_all', filter, null, deadline, actor, reason, max_count, after_id) b;
end
$$;

-- samekey.replace_payload for many intents: patch is a JSON merge patch of each payload (samekey.merge_patch), which needs
-- the approver as another payload does. Payloads that are not JSON objects are skipped: see samekey.patchable.
create function samekey.replace_payload_all(filter jsonb, patch jsonb, actor text, reason text, deadline timestamptz default null,
    max_count integer default 500, after_id uuid default null, out changed integer, out last_id uuid, out actions text[])
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    select b.* into changed, last_id, actions
    from samekey.bulk_replace('replace_payload_all', filter, patch, deadline, actor, reason, max_count, after_id) b;
end
$$;

-- Returns the groups of intents that rest with one cause, the largest first: for these actions, or all. The filter of
-- an act on many intents takes the columns of a row. It reads one index, and no row of the queue that does not rest:
-- before a vacuum, the planner would read the whole queue instead.
create function samekey.cause_groups(for_actions text[] default null, max_count integer default 100)
    returns table (status text, action text, code text, cause text, intents bigint)
    language sql stable
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off
    set jit = off
as $$
    select q.status, q.action, q.last_code, q.cause, count(*)
    from samekey.outbox_queue q
    where q.status in ('awaiting_approval', 'parked', 'dead')
      and (for_actions is null or q.action = any (for_actions collate "C"))
    group by q.status, q.action, q.last_code, q.cause
    order by count(*) desc, q.status, q.action, q.last_code, q.cause
    limit max_count
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Erase. What finished intents and completed records contain is dropped, of one subject or of one scope:
--
--   outbox            payload, headers, subject, ordering_key, requested_by, trace_context
--   outbox_history    error, response, response_type, reference
--   outbox_sends      request, request_type, message_id
--   outbox_attention  error, reason, last_error
--   processed_events  response_headers, response_body, subject
--   operation_steps   result, error
--
-- Ids, scopes, keys, parts, hashes, statuses, codes and times stay, so that no request and no effect is executed again:
-- a repeated request is told that its answer was erased, and a repeated insert gets the id of its intent. Actors, reasons
-- and logins of people's acts stay too. Each intent gets a line "erased" in its history, and each record a last step
-- samekey.erased, whose resolved_by, resolved_reason and resolved_db_user say who erased it and why. A test holds what
-- becomes of each column of each table.
--
-- Each call does one batch in the caller's transaction. Call it again, with next as after, until next is null: intents
-- first, then records. Rows that another transaction has locked are skipped and counted: call it from the start for those.
--
-- How an erasure E interleaves with another transaction T about one of its rows:
--
--   T finishes the intent, uncommitted       E sees the row in the queue and refuses
--   T writes a late answer, uncommitted      T has locked the intent (keeps_content): E skips it. After T's commit, another
--                                            run erases the answer with the rest
--   T writes a late answer after E's update  T waits for E's end, sees that the content is gone, and keeps outcome and code.
--                                            The same holds for a vendor's message about a replaced intent (resolve)
--   T redrives, cancels or resolves          the intent is unfinished: E refuses, before and after T's commit. Once T has
--                                            cancelled it, E erases it
--   T replaces the intent                    likewise; the successor has the same subject and scope, and is unfinished
--   T is a first attempt (Run, Do, Once)     E does not see its rows. Another run erases them. Stop the writers of a
--   with the subject or the scope            subject before you erase it
--   T repeats a request or an insert         it reads the record or the intent in one row version: the answer before E's
--                                            commit, "erased" after it. A repeated insert gets the same id at any time
--   T starts or ends an operation            its record is in progress: E refuses. Once T has completed it, E erases it
--   T prunes                                 E skips the rows that T deletes, and T skips records that E has locked. T waits
--                                            for E's intents. E changes intents and records in different transactions, so
--                                            the two never wait for each other
--   T archives and prunes                    T has locked records and intents before its function reads them: E skips and
--                                            counts them. If E was first, T waits for it and hands over what E has left. So
--                                            after an E that skipped nothing, nothing of what it erased is handed over
--   T is another erasure                     each skips what the other has locked
--   E's session is killed                    nothing of the batch happened. Another run begins with the same rows

-- Counts what refuses an erasure: unfinished intents, with ten ids, and requests in progress. An intent is unfinished if
-- it has a row in the queue, no finishing event, or an attention event that the application has yet to take. For a scope
-- it reads the queue and the attention events; erase_batch finds the rest.
create function samekey.erase_unfinished(subject text, scope text, out intents bigint, out sample uuid[], out requests bigint)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set jit = off
as $$
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
$$;

-- Reports whether an intent is finished, and the application has taken its attention events.
create function samekey.erasable(id uuid) returns boolean
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return (select h.intent_id from samekey.outbox_history h where h.intent_id = erasable.id and h.final_status is not null limit 1) is not null
        and (select q.id from samekey.outbox_queue q where q.id = erasable.id limit 1) is null
        and (select n.id from samekey.outbox_attention n
             where n.intent_id = erasable.id and (select a.attention from samekey.actions a where a.action = n.action) limit 1) is null;
end
$$;

-- The look before an erasure by scope, which has no index: the unfinished intents of the scope among the next 10,000 rows
-- of the queue or of the attention events (kind). next is null after the last page. With 950,000 rows in the queue, one
-- statement for all of them took 5 to 13 s, longer than many a statement timeout. A page takes 47 to 65 ms.
create function samekey.erase_look(scope text, kind text, after_row text, out ids uuid[], out next jsonb)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
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
$$;

-- Raises SK011, with the constraint "unfinished", if something refuses the erasure.
create function samekey.erase_refuse(act text, intents bigint, sample uuid[], requests bigint) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Erases a batch of finished intents of a subject or of a scope. last is null if no intent is left. A scope has no index,
-- since each insert would pay for it: a call walks 10,000 rows of the primary key at most. The settings force lookups by
-- index, whatever the statistics are.
create function samekey.erase_intents(act text, subject text, scope text, actor text, reason text, max_count integer, after_id uuid,
    out intents integer, out skipped integer, out last uuid)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set jit = off
as $$
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
$$;

-- The same for records, with their steps. next is null if no record is left.
create function samekey.erase_records(act text, subject text, scope text, actor text, reason text, max_count integer, after_key text, after_scope text,
    out records integer, out skipped integer, out next jsonb)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set jit = off
as $$
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
$$;

-- For the two acts below: one batch. Without after it begins, and refuses if something is unfinished: for a subject at
-- once, and for a scope after the calls that look at the queue. A full page of the look ends a call, which erases nothing.
create function samekey.erase_batch(act text, subject text, scope text, actor text, reason text, max_count integer, after jsonb,
    out intents integer, out records integer, out skipped integer, out next jsonb)
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Erases a batch of what has this subject: intents and records each by their own. The subject is dropped too.
create function samekey.erase_subject(subject text, actor text, reason text, max_count integer default 500, after jsonb default null,
    out intents integer, out records integer, out skipped integer, out next jsonb)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    select b.* into intents, records, skipped, next
    from samekey.erase_batch('erase_subject', coalesce(subject, ''), null, actor, reason, max_count, after) b;
end
$$;

-- Erases a batch of what has this scope, such as all of a tenant's requests of one operation.
create function samekey.erase_scope(scope text, actor text, reason text, max_count integer default 500, after jsonb default null,
    out intents integer, out records integer, out skipped integer, out next jsonb)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    select b.* into intents, records, skipped, next
    from samekey.erase_batch('erase_scope', null, samekey.own_scope(coalesce(scope, '')), actor, reason, max_count, after) b;
end
$$;

-- Counts what an erasure would find: give a subject or a scope. It erases nothing as long as unfinished or requests is
-- not 0. sample has ten unfinished intents. For a scope it reads both tables.
create function samekey.erase_plan(subject text default null, scope text default null,
    out intents bigint, out records bigint, out unfinished bigint, out sample uuid[], out requests bigint)
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_custom_plan
    set jit = off
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Archive. What is pruned can be handed to a function of the application before: see queries/processed_events.sql.

-- Returns bytes as jsonb, or null if they are not JSON that jsonb can hold. A number such as 1e1000, whose jsonb has a
-- digit for each zero, counts as such.
create function samekey.archive_json(content bytea) returns jsonb
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_text text;
begin
    v_text := convert_from(content, 'UTF8');
    return case when v_text !~ '[0-9][eE][+-]?[0-9]{3}' then v_text::jsonb end;
exception when data_exception or program_limit_exceeded or statement_too_complex then
    return null;
end
$$;

-- Returns bytes as members of an object: name if they fit jsonb, else name_base64.
create function samekey.archive_bytes(name text, content bytea) returns jsonb
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    v_json jsonb := samekey.archive_json(content);
begin
    return jsonb_build_object(name, v_json,
        name || '_base64', case when v_json is null then translate(encode(content, 'base64'), e'\n', '') end);
end
$$;

-- Returns intents with their history, and records with their steps, for an archive. The members have the names of the
-- views samekey.intents and samekey.timeline; those without a value are null.
create function samekey.archive_batch(ids uuid[], keys text[], scopes text[]) returns jsonb
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Pauses and endpoints.

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

-- Returns what is wrong with the headers of an endpoint, or null. Those of the connection and those that the worker sets
-- are refused. The text holds no value.
create function samekey.endpoint_headers_wrong(headers jsonb) returns text
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Adds a webhook receiver, or replaces the URL, the secrets and the headers of an existing one. A stopped one stays
-- stopped. The errors (22023) contain neither the URL nor a secret nor the value of a header.
--
-- The functions of endpoints raise no error if there is no such endpoint, but return false: a caller's transaction goes
-- on. No function returns a secret. Each change is a line of samekey.endpoint_history; the second stop changes nothing.
create function samekey.endpoint_put(destination text, name text, url text, actor text, reason text, secrets text[] default '{}', headers jsonb default '{}') returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Stops an endpoint: nothing is sent to it after the commit. One that is stopped already keeps its reason.
create function samekey.endpoint_stop(destination text, name text, actor text, reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Allows calls to a stopped endpoint again. Its dead intents stay dead until they are redriven. One that is not stopped
-- gets a new version too: answers to calls from before do not stop it, and it counts as failing since no time.
create function samekey.endpoint_start(destination text, name text, actor text, reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Writes an intent of an action for one endpoint, as a test, and returns its id; null if there is no such endpoint. It has
-- a key of its own in a scope of tests, and the endpoint's name as its part. SK011 if the endpoint is stopped: the intent
-- would be dead. Only the application may call it, since it writes an intent of any action:
--
--   a stop commits before this reads the endpoint   SK011
--   a stop commits later                            the intent is dead with endpoint_stopped, as others on their way are
--   a delete commits later                          it is dead with endpoint_missing
create function samekey.endpoint_test(destination text, name text, action text, payload bytea, actor text, reason text, content_type text default 'application/json') returns uuid
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- Deletes an endpoint. Its unfinished intents become dead, unsent. Its history stays.
create function samekey.endpoint_delete(destination text, name text, actor text, reason text) returns boolean
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
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
$$;

-- The log of an endpoint: a page of the calls to it, newest first, with the present status of each call's intent. It has
-- no payload, no URL, no answer and no secret, so an application can show it to the endpoint's owner. The next page is
-- before the last id. The rest is read for the rows of the page alone: a subquery per row, since without statistics the
-- planner joins whole tables.
create function samekey.endpoint_deliveries(destination text, name text, before bigint default null, max_count integer default 100)
    returns table (id bigint, at timestamptz, intent_id uuid, action text, event text, attempt integer, outcome text, code text, took interval, status text)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
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

-- ---------------------------------------------------------------------------------------------------------------------
-- Views: what people, psql and BI tools read. They are an interface, which docs/schema.md describes: a later release
-- keeps the names and meanings of the columns, and adds columns at the end. The names are those of Entry and Event in
-- Go as JSON, of the filters above, and of the argument of an Apply in SQL.
--
-- A view runs with the rights of its owner. So a login that may read the views and nothing else sees what is in them: no
-- payload, header, answer, rendered request or secret. (With security_invoker, which Postgres has since version 15, it
-- would need a right on each table.) Tests hold this, and that no role of schema.Grants sees more than in the tables.
--
-- Each view is one statement with one snapshot. An intent is either in outbox_queue or has an event with a final_status,
-- also while a worker finishes it or a person acts, so it has one row.

-- One row per intent. (An unfinished intent that lost its row in the queue has none until reconcile restores that row.)
--
-- The plans of lookups depend on the form of the statement. The branches of the union are plain tables without a
-- condition, so the planner joins them as one table: a query by key or subject starts in outbox and looks each intent up
-- in both, and a query in the order of ids merges both by an index. A status excludes the branch whose CHECK does not
-- allow it, so the query starts with an index of the other one. `s.status is not null` reaches each branch, where it is
-- the predicate of outbox_history_finish. What is computed per intent is a subquery of its own: it costs nothing unless
-- it is selected, and it is computed after the limit.
create view samekey.intents as
select s.id,
       o.scope,
       o.idem_key as key,
       o.action,
       o.part,
       o.subject,
       s.status,
       s.code,
       s.cause,
       (select r.reference from samekey.outbox_history r
        where r.intent_id = o.id and r.reference is not null order by r.id desc limit 1) as reference,
       (select count(*)::integer from samekey.outbox_history a where a.intent_id = o.id and a.event = 'attempt') as attempts,
       s.attempts_used,
       o.created_at,
       coalesce(s.due_at, o.due_at) as due_at,
       o.deadline,
       s.first_sent_at,
       s.key_window_until,
       s.approved_at,
       s.finished_at,
       o.delivery_key,
       o.ordering_key,
       o.requested_by,
       o.written_by,
       o.trace_context,
       o.revision,
       o.replaces,
       (select n.id from samekey.outbox n where n.replaces = o.id) as replaced_by,
       o.erased_at
from samekey.outbox o
join (
    select q.id, q.status, q.last_code as code, q.cause, q.attempts_used, q.due_at, q.first_sent_at,
           case when q.key_window_until < 'infinity' then q.key_window_until end as key_window_until,
           q.approved_at, null::timestamptz as finished_at
    from samekey.outbox_queue q
    union all
    select h.intent_id, h.final_status, h.code, null, null, null, null, null, null, h.at
    from samekey.outbox_history h
) s on s.id = o.id
where s.status is not null;
comment on view samekey.intents is 'samekey: one row per intent (outbox message), with its present status';

-- What happened to intents, one row per event: attempts, lookups, and what people did. intent_id and id are the order.
create view samekey.timeline as
select h.intent_id,
       h.id,
       h.at,
       o.scope,
       o.idem_key as key,
       o.action,
       o.part,
       o.subject,
       h.event,
       h.outcome,
       h.final_status,
       h.code,
       h.error,
       h.reference,
       h.attempt,
       h.worker,
       h.started_at,
       h.actor,
       h.reason,
       h.db_user
from samekey.outbox_history h
join samekey.outbox o on o.id = h.intent_id;
comment on view samekey.timeline is 'samekey: what happened to each intent, and what people did about it';

-- The intents that rest: they wait for a person. acts names the functions of "Acts" that the intent's state allows now,
-- by the conditions of those functions; a test compares them. since is the time of the event that gave the intent its
-- status or its cause. A late answer that changed nothing is no such event.
--
-- One index (id) of the resting rows would give their order without a status. It made bulk_pick read all dead intents to
-- learn that no parked one exists, also with fresh statistics.
create view samekey.needs_attention as
select s.id,
       o.scope,
       o.idem_key as key,
       o.action,
       o.part,
       o.subject,
       s.status,
       coalesce((select h.at from samekey.outbox_history h
                 where h.intent_id = o.id and h.event <> 'late' order by h.id desc limit 1), o.created_at) as since,
       s.last_code as code,
       s.cause,
       (select r.reference from samekey.outbox_history r
        where r.intent_id = o.id and r.reference is not null order by r.id desc limit 1) as reference,
       case when s.status = 'awaiting_approval'
            then array['approve'] || case when s.first_sent_at is null then array['reject', 'cancel'] end
            else case when (s.first_sent_at is null or s.safe_to_resend) and s.cause is distinct from 'the intent that it replaces was delivered'
                      then array['redrive'] end
                 || array['resolve']
                 || case when s.first_sent_at is null then array['cancel'] end
                 || case when s.cause is distinct from 'the intent that it replaces was delivered' and (s.first_sent_at is null or not exists (
                        select from samekey.outbox_history h
                        where h.intent_id = o.id and h.at >= s.first_sent_at
                          and (h.event = 'restored' or h.event in ('attempt', 'lookup', 'late', 'orphaned')
                               and coalesce(h.outcome, 'unknown') not in ('retry', 'unsent', 'dead', 'awaiting_approval'))))
                    then array['replace', 'replace_payload'] end
       end as acts,
       s.attempts_used,
       o.created_at,
       o.deadline,
       s.first_sent_at,
       o.delivery_key,
       o.ordering_key,
       o.requested_by,
       o.written_by
from samekey.outbox_queue s
join samekey.outbox o on o.id = s.id
where s.status in ('awaiting_approval', 'parked', 'dead');
comment on view samekey.needs_attention is 'samekey: the intents that wait for a person, since when, and the acts that are possible';

-- No function is executable by PUBLIC. schema.Grant gives the application's role and the worker's role what they need.
revoke all on all functions in schema samekey from public;
