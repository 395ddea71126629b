-- samekey 0001: the tables of the design, section 4, and the one function that writes an intent.
--
-- Times are the database's (clock_timestamp, not the transaction's start). Keys, actions and scopes compare as bytes
-- (COLLATE "C"). Payloads, responses and hashes are bytea: jsonb keeps neither digits nor order.

-- ---------------------------------------------------------------------------------------------------------------------
-- The intent: written once, never changed. It holds the payload, so that claims and settles, which change the queue,
-- never copy it. It has no CHECKs: samekey.enqueue holds every row to the rules, no role but the owner can insert past it,
-- and ten CHECKs on one row cost as much as writing it (85 us; a test holds the grants to this).
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
    constraint outbox_once unique (idem_key, scope, action, part)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- The work: one narrow row per unfinished intent, gone when the intent is finished. No foreign key to outbox: both rows
-- are written by samekey.enqueue alone, and the check would cost each insert a look-up and a row lock.
create table samekey.outbox_queue (
    id            uuid        primary key,
    seq           bigint      not null default 0, -- the place within the ordering key
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
    where leased_by is null and status in ('pending', 'unknown');
-- What has only its Apply to come. An index of its own: a million of them cost a claim nothing.
create index outbox_queue_answered on samekey.outbox_queue (action, due_at)
    where leased_by is null and status = 'answered';
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

-- How fast a vendor account may be called, by all workers together: how many calls were given out and not yet earned back
-- at the rate, and when that was counted. Not a time until which the budget is given out: such a time means nothing once
-- the clock is set back or the rate is changed.
create table samekey.rate_limits (
    destination text             collate "C" primary key,
    counted_at  timestamptz      not null,
    owed        double precision not null default 0
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

-- Why a destination, or one action of it, is not called: each reason with who gave it. River's queue of the destination can
-- be paused too; that reason is copied here (river_row is set), since River deletes the queue's row once no worker of that
-- destination has run for a day. A reason that ended stays, so that people see who paused what.
create table samekey.pauses (
    id          bigint      generated always as identity primary key,
    destination text        collate "C" not null,
    action      text        collate "C" not null default '', -- '': all actions
    paused_at   timestamptz not null default clock_timestamp(),
    paused_by   text        not null,
    reason      text        not null,
    until       timestamptz,              -- null: until it is resumed
    river_row   bigint,                   -- copied from River: which row it was, by its created_at in microseconds
    ended_at    timestamptz,
    ended_by    text,
    end_reason  text,

    constraint pauses_destination_name  check (destination ~ '^[a-z0-9][a-z0-9_-]{0,55}$'),
    constraint pauses_action_name       check (action = '' or action ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    constraint pauses_paused_by_length  check (octet_length(paused_by) between 1 and 255),
    constraint pauses_reason_length     check (octet_length(reason) between 1 and 4096),
    constraint pauses_ended_by_length   check (octet_length(ended_by) between 1 and 255),
    constraint pauses_end_reason_length check (octet_length(end_reason) between 1 and 4096),
    constraint pauses_ended             check ((ended_at is null) = (ended_by is null) and (ended_at is null) = (end_reason is null)),
    constraint pauses_river             check (river_row is null or action = '')
);
-- One reason of people's and one of River's at a time.
create unique index pauses_in_force on samekey.pauses (destination, action, (river_row is not null)) where ended_at is null;

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
create table samekey.workers (
    id         integer     primary key, -- drawn at random: a sequence repeats itself after a restore
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    name       text        not null,
    actions    text[]      collate "C" not null,
    constraint workers_id_positive check (id > 0),
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
-- The functions that samekey.enqueue calls are PL/pgSQL: before Postgres 18 a function in SQL that is called from PL/pgSQL
-- and not inlined is planned again at each call (measured: 130 us of 290 for one intent). Text is compared under
-- COLLATE "C" everywhere: the arguments carry the collation of whatever column or type the caller took them from.

-- The key carried downstream: a UUID of version 8 over the parts, each behind its length, so that no two lists of parts
-- run together. The same as samekey.DeliveryKey in Go.
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
    language plpgsql volatile parallel safe
    set search_path = pg_catalog, pg_temp
as $$
begin
    return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
end
$$;

-- The advisory locks, each in one place. Locks on keys and ordering keys are of the one-number form, with seeds of
-- their own; a worker's is of the two-number form. The "C": other collations hash other bytes.
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
-- Whose scope it is. A connection that sets samekey.service may use keys whose scope begins with that name, and no other:
-- two services that share a database and have two names cannot meet each other's keys, answers and intents.

create function samekey.refuse_scope() returns text
    language plpgsql stable
as $$
begin
    raise exception 'samekey: scope does not begin with "%", the service of this connection', pg_catalog.current_setting('samekey.service', true)
        using errcode = 'SK003', column = 'scope',
              hint = 'Make the service''s name the first part of the scope, or correct the connection''s setting samekey.service.';
end
$$;

-- Returns the scope, or raises SK003. Where the setting is absent every scope is allowed.
create function samekey.own_scope(scope text) returns text
    language sql stable parallel safe
as $$
    select case when coalesce(nullif(pg_catalog.current_setting('samekey.service', true), ''), '/')
                     in ('/', pg_catalog.split_part(scope collate pg_catalog."C", '/', 1)) then scope
                else samekey.refuse_scope() end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- The rules of an intent. They are those of outbox.Intent and samekey.Key in Go: a table of intents that goes through both
-- holds them together.

-- Reports whether the bytes are one JSON document in UTF-8, as Go's json.Valid sees it: the type json checks the syntax and
-- keeps the text, so that duplicate members, "\u0000", lone surrogates and 1e400 pass. The error is caught here because
-- its text quotes the payload. Go nests 10,000 deep and Postgres deeper, so a document that opens more than that is measured.
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

-- What is wrong with the headers; null for nothing. The worker sets some by itself, and secrets have no place in rows.
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
        return 'are not a JSON object: give names and values';
    end if;
    for h in select e.key collate "C" as name, jsonb_typeof(e.value) as kind, (e.value #>> '{}') collate "C" as value from jsonb_each(headers) e loop
        v_name := lower(h.name);
        if h.name !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' then
            return 'have a name that is not an HTTP token: use letters, digits and -';
        elsif v_name in ('idempotency-key', 'x-idempotency-key', 'host', 'content-length', 'content-type', 'transfer-encoding',
                         'connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'upgrade', 'expect', 'traceparent', 'tracestate') then
            return format('have "%s", which the worker sets: leave it out', v_name);
        elsif v_name in ('authorization', 'proxy-authorization', 'cookie', 'set-cookie', 'x-api-key', 'api-key', 'x-auth-token') then
            return format('have "%s": secrets have no place in rows, set it in the worker''s configuration', v_name);
        elsif h.kind <> 'string' or h.value !~ '^([!-~]([ -~\t]*[!-~])?)?$' then
            return format('have a value of "%s" that is not a string of visible ASCII without spaces at its ends', v_name);
        elsif v_name = any (v_seen) then
            return format('have "%s" twice, in two spellings: keep one', v_name);
        end if;
        v_seen := v_seen || v_name;
    end loop;
    if octet_length(headers::text) > 16384 then
        return format('are %s bytes long, more than 16384: move what is large to the payload', octet_length(headers::text));
    end if;
    return null;
end
$$;

-- Raises what is wrong with an intent that samekey.enqueue does not take: the first field that breaks a rule, which is also
-- the error's column, and what to do. It never quotes a value, and no constraint is asked, so none reaches the server's log.
create function samekey.refuse_intent(scope text, idem_key text, action text, payload bytea, part text, content_type text, headers jsonb,
    ordering_key text, due_at timestamptz, deadline timestamptz, trace_context text, id uuid, requested_by text) returns void
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
                                   ('trace_context', trace_context, 512, false), ('requested_by', requested_by, 255, false)) v (field, value, most, required) loop
        v_wrong := case
            when t.required and t.value is null then 'is null: it is required'
            when t.required and t.value collate "C" = '' then 'is empty: it is required'
            when octet_length(t.value) > t.most then format('is %s bytes long, more than %s', octet_length(t.value), t.most)
            when t.field = 'action' and t.value collate "C" !~ '^[a-z][a-z0-9_.-]*$' then 'must match ^[a-z][a-z0-9_.-]{0,62}$, such as charge_card'
            when t.field in ('scope', 'idem_key') and t.value collate "C" !~ '^[!-~]([ -~]*[!-~])?$'
                then 'must be printable ASCII without spaces at its ends'
            when t.field = 'scope' and ('/' || t.value || '/') collate "C" like '%//%'
                then 'has an empty part: name the tenant or principal and the operation, as in acme/orders.create'
            when t.field in ('part', 'ordering_key', 'requested_by')
                 and t.value collate "C" ~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
                then 'has a control character, or one that cannot be seen: give printable text'
            when t.field = 'trace_context' and t.value collate "C" !~ '^([!-~]([ -~\t]*[!-~])?)?$'
                then 'must be visible ASCII, as in the header traceparent'
            when t.field = 'content_type' and t.value collate "C" <> '' and t.value collate "C"
                 !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+/[A-Za-z0-9!#$%&''*+.^_`|~-]+([ \t]*;[ \t]*[A-Za-z0-9!#$%&''*+.^_`|~-]+=([A-Za-z0-9!#$%&''*+.^_`|~-]+|"([ !#-\[\]-~]|\\[ -~])*"))*$'
                then 'must be a media type, such as application/json'
        end;
        v_field := t.field;
        exit when v_wrong is not null;
    end loop;
    if v_wrong is null then
        v_field := 'payload';
        v_wrong := case
            when payload is null then 'is null: give {} for an effect without one'
            when octet_length(payload) > 1048576 then format('is %s bytes long, more than 1048576: store it elsewhere and send a reference', octet_length(payload))
            when (coalesce(content_type, '') = '' or content_type collate "C" ~* '^(application/json|[^;]+\+json)[ \t]*(;|$)') and not samekey.is_json(payload)
                then 'is not JSON in UTF-8: name its content_type, such as application/octet-stream' end;
    end if;
    if v_wrong is null then
        v_field := 'headers';
        v_wrong := samekey.headers_refusal(headers);
    end if;
    if v_wrong is null and due_at not between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        v_field := 'due_at';
        v_wrong := 'is not between the years 1970 and 9999: leave it out for now';
    elsif v_wrong is null and deadline not between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        v_field := 'deadline';
        v_wrong := 'is not between the years 1970 and 9999: leave it out for never';
    elsif v_wrong is null and deadline <= due_at then
        v_field := 'deadline';
        v_wrong := 'is not after due_at: the intent could never be sent';
    elsif v_wrong is null and id in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
        v_field := 'id';
        v_wrong := 'is the nil or the maximal UUID: leave it out, or make one of version 7';
    end if;
    raise exception 'samekey: enqueue: % %', v_field, v_wrong using errcode = '22023', column = v_field;
end
$$;

-- What samekey.enqueue does where the key, action and part are taken. It is a statement of its own, since the snapshot of the
-- insert may predate the row that the insert met.
create function samekey.enqueue_again(scope text, idem_key text, action text, part text, payload bytea, must_be_new boolean) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id   uuid;
    v_same boolean;
begin
    select o.id, o.payload = enqueue_again.payload into v_id, v_same
    from samekey.outbox o
    where o.idem_key = enqueue_again.idem_key collate "C" and o.scope = enqueue_again.scope collate "C"
      and o.action = enqueue_again.action collate "C" and o.part = enqueue_again.part collate "C";
    if v_id is null then
        raise exception 'samekey: intent "%" under key % was written by a transaction that this one cannot see',
            enqueue_again.action, samekey.key_hash(enqueue_again.scope, enqueue_again.idem_key)
            using errcode = 'serialization_failure', hint = 'Roll back and run the transaction again.';
    end if;
    if not v_same then
        raise exception 'samekey: intent "%" under key % exists with the same part and another payload',
            enqueue_again.action, samekey.key_hash(enqueue_again.scope, enqueue_again.idem_key)
            using errcode = 'SK001',
                  hint = 'Another effect of the same action under one key needs another part; this transaction must roll back.';
    end if;
    if must_be_new then
        raise exception 'samekey: intent "%" under key % exists already',
            enqueue_again.action, samekey.key_hash(enqueue_again.scope, enqueue_again.idem_key)
            using errcode = 'SK002', hint = 'Roll back and insert it without must_be_new, which returns the first id.';
    end if;
    return v_id;
end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Writes an intent in the caller's transaction and returns its id. The same key, action, part and payload again is a
-- no-op that returns the first id (raises SK002 with must_be_new); another payload raises SK001; a field that breaks a rule
-- raises 22023 and is the error's column. Errors go to the server's log, and so leave out every value but the action. An
-- empty part, ordering_key, trace_context or requested_by is none. It runs as its owner, so that a role needs EXECUTE on it
-- and nothing else.
--
-- The delivery key is made here and taken from nobody: a caller that gave a wrong one would have two effects share a key at
-- the vendor, or one effect change its key between two attempts.
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
    v_id   uuid;
    v_due  timestamptz;
    v_head bigint;
    v_last bigint;
begin
    -- All rules are one expression, since PL/pgSQL prepares each expression again in every transaction. Lengths are compared
    -- beside the regular expressions, not inside them: a bounded repetition ({0,253}) costs 20 us. Where the expression is
    -- not true, samekey.refuse_intent names the field.
    if (octet_length(enqueue.scope) <= 255
       and enqueue.scope collate "C" ~ '^[!-.0-~]([ -~]*[!-.0-~])?$' and strpos(enqueue.scope collate "C", '//') = 0
       and octet_length(enqueue.idem_key) <= 255 and enqueue.idem_key collate "C" ~ '^[!-~]([ -~]*[!-~])?$'
       and octet_length(enqueue.action) <= 63 and enqueue.action collate "C" ~ '^[a-z][a-z0-9_.-]*$'
       and octet_length(enqueue.payload) <= 1048576
       and (enqueue.part is null or enqueue.part collate "C" = '' or octet_length(enqueue.part) <= 255
            and enqueue.part collate "C" !~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]')
       and (case when coalesce(enqueue.content_type, '') collate "C" in ('', 'application/json') then samekey.is_json(enqueue.payload)
                else octet_length(enqueue.content_type) <= 255 and enqueue.content_type collate "C"
                     ~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+/[A-Za-z0-9!#$%&''*+.^_`|~-]+([ \t]*;[ \t]*[A-Za-z0-9!#$%&''*+.^_`|~-]+=([A-Za-z0-9!#$%&''*+.^_`|~-]+|"([ !#-\[\]-~]|\\[ -~])*"))*$'
                     and (enqueue.content_type collate "C" !~* '^(application/json|[^;]+\+json)[ \t]*(;|$)' or samekey.is_json(enqueue.payload)) end)
       and (enqueue.headers is null or enqueue.headers = '{}' or samekey.headers_refusal(enqueue.headers) is null)
       and (enqueue.ordering_key is null or octet_length(enqueue.ordering_key) <= 255
            and enqueue.ordering_key collate "C" !~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]')
       and (enqueue.due_at is null or enqueue.due_at between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00')
       and (enqueue.deadline is null or enqueue.deadline between '1970-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00'
            and coalesce(enqueue.deadline > enqueue.due_at, true))
       and (enqueue.trace_context is null or octet_length(enqueue.trace_context) <= 512
            and enqueue.trace_context collate "C" ~ '^([!-~]([ -~\t]*[!-~])?)?$')
       and (enqueue.id is null or enqueue.id > '00000000-0000-0000-0000-000000000000' and enqueue.id < 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       and (enqueue.requested_by is null or octet_length(enqueue.requested_by) <= 255
            and enqueue.requested_by collate "C" !~ '[\u0001-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]')
       and samekey.own_scope(enqueue.scope) is not null) is not true then
        perform samekey.refuse_intent(enqueue.scope, enqueue.idem_key, enqueue.action, enqueue.payload, enqueue.part, enqueue.content_type, enqueue.headers,
            enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.requested_by);
    end if;

    -- Not ordered: both rows in one statement. No row means that the key, action and part are taken: by a row that was
    -- there, or by a transaction that this insert waited for and that has committed meanwhile.
    if coalesce(enqueue.ordering_key, '') collate "C" = '' then
        with intent as (
            insert into samekey.outbox as o (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers,
                                             due_at, deadline, trace_context, requested_by)
            values (coalesce(enqueue.id, samekey.uuidv7()), enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''),
                    samekey.delivery_key(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, '')),
                    enqueue.payload, coalesce(nullif(enqueue.content_type collate "C", ''), 'application/json'), coalesce(enqueue.headers, '{}'),
                    coalesce(enqueue.due_at, clock_timestamp()), enqueue.deadline, nullif(enqueue.trace_context collate "C", ''),
                    nullif(enqueue.requested_by collate "C", ''))
            on conflict on constraint outbox_once do nothing
            returning o.id, o.action, o.due_at
        )
        insert into samekey.outbox_queue as q (id, action, status, due_at)
        select i.id, i.action, 'pending', i.due_at from intent i
        returning q.id into v_id;
        if v_id is null then
            return samekey.enqueue_again(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''), enqueue.payload, enqueue.must_be_new);
        end if;
        return v_id;
    end if;

    insert into samekey.outbox as o (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers,
                                     ordering_key, due_at, deadline, trace_context, requested_by)
    values (coalesce(enqueue.id, samekey.uuidv7()), enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''),
            samekey.delivery_key(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, '')),
            enqueue.payload, coalesce(nullif(enqueue.content_type collate "C", ''), 'application/json'), coalesce(enqueue.headers, '{}'),
            enqueue.ordering_key, coalesce(enqueue.due_at, clock_timestamp()), enqueue.deadline, nullif(enqueue.trace_context collate "C", ''),
            nullif(enqueue.requested_by collate "C", ''))
    on conflict on constraint outbox_once do nothing
    returning o.id, o.due_at into v_id, v_due;
    if v_id is null then
        return samekey.enqueue_again(enqueue.scope, enqueue.idem_key, enqueue.action, coalesce(enqueue.part, ''), enqueue.payload, enqueue.must_be_new);
    end if;

    -- Writers W1 and W2 of one ordering key, and the worker F that finishes its head:
    --   W1 locks, numbers, inserts, commits; W2 waits for the lock, then sees W1's row: a higher number, and blocked.
    --   W1 rolls back: W2 sees nothing of it and is the head.
    --   F holds the lock, deletes the head and promotes the next: W2 sees what F left, and never a head that is gone.
    --   W2 is REPEATABLE READ, and its snapshot predates W1 or F: it may see no head where there is one. The unique index on
    --   heads lets it in as a second head never: 40001. It may take itself for blocked where the head is gone: the worker's
    --   sweep promotes it.
    -- The number is the clock's, in microseconds, and above that of all who wait. The clock alone may be set back, or be
    -- another server's after a failover; the maximum alone misses rows that an old snapshot does not show; a sequence starts
    -- at 1 after a switchover by logical replication, which does not copy it.
    perform pg_advisory_xact_lock(samekey.ordering_lock(enqueue.ordering_key));
    -- The head (one at most) and the last that waits, each by its own index: whether any is there, the planner may find
    -- out by reading the queue until one turns up.
    select (select max(q.seq) from samekey.outbox_queue q
            where q.ordering_key = enqueue.ordering_key collate "C" and q.ordering_key is not null and q.status <> 'blocked'),
           (select q.seq from samekey.outbox_queue q
            where q.ordering_key = enqueue.ordering_key collate "C" and q.status = 'blocked' order by q.seq desc limit 1)
    into v_head, v_last;
    if v_head is not null or v_last is not null then
        insert into samekey.outbox_queue as q (id, seq, action, status, due_at, ordering_key)
        values (v_id, greatest((extract(epoch from clock_timestamp()) * 1000000)::bigint, v_head + 1, v_last + 1),
                enqueue.action, 'blocked', v_due, enqueue.ordering_key);
        return v_id;
    end if;
    insert into samekey.outbox_queue as q (id, seq, action, status, due_at, ordering_key)
    values (v_id, (extract(epoch from clock_timestamp()) * 1000000)::bigint, enqueue.action, 'pending', v_due, enqueue.ordering_key)
    on conflict (ordering_key) where ordering_key is not null and status <> 'blocked' do nothing;
    if not found then
        raise exception 'samekey: intent "%": another head of its ordering key was written by a transaction that this one cannot see', enqueue.action
            using errcode = 'serialization_failure', hint = 'Roll back and run the transaction again.';
    end if;
    return v_id;
end
$$;

-- The same for a payload in text, json or jsonb: its text in UTF-8, to the byte (jsonb has its own spacing and order of
-- members). A literal without a type is text, so that its backslashes stay; bytes are written as '\x00ff'::bytea. Some clients
-- send bytes in that form and without a type (pgx in its simple protocol and exec modes): such a text is refused.
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
    requested_by  text        default null
) returns uuid
    language plpgsql volatile
as $$
begin
    if pg_catalog.left(enqueue.payload, 2) collate pg_catalog."C" = '\x' and enqueue.payload collate pg_catalog."C" ~ '^\\x([0-9A-Fa-f]{2})*$' then
        raise exception 'samekey: enqueue: payload is bytea written as text: give its type, as in $4::bytea'
            using errcode = '22023', column = 'payload';
    end if;
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by);
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
    requested_by  text        default null
) returns uuid
    language plpgsql volatile
as $$
begin
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload::pg_catalog.text, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by);
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
    requested_by  text        default null
) returns uuid
    language plpgsql volatile
as $$
begin
    return samekey.enqueue(enqueue.scope, enqueue.idem_key, enqueue.action, pg_catalog.convert_to(enqueue.payload::pg_catalog.text, 'UTF8'),
        enqueue.part, enqueue.content_type, enqueue.headers, enqueue.ordering_key, enqueue.due_at, enqueue.deadline, enqueue.trace_context, enqueue.id, enqueue.must_be_new, enqueue.requested_by);
end
$$;

-- Nothing is for everybody: see the grants for the application's role and the worker's.
revoke all on all functions in schema samekey from public;
