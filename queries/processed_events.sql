-- Processed records (idempotency records): one per scope and key.

-- name: ProcessedEventsTryLock :one
-- The transaction that works on a key holds its lock until it ends. The lock gives duplicates a fast "in flight" error;
-- the primary key is the guarantee. began tells this transaction from others on the connection: see
-- ProcessedEventsInsert. own_scope raises SK003 if the scope belongs to another service.
select pg_try_advisory_xact_lock(samekey.key_lock(samekey.own_scope(@scope::text), @idem_key::text)) as locked, now()::timestamptz as began;

-- name: ProcessedEventsLock :exec
-- After a COMMIT whose result was lost: waits until the transaction that sent the COMMIT has ended, either way.
select pg_advisory_xact_lock(samekey.key_lock(@scope::text, @idem_key::text));

-- name: ProcessedEventsFind :one
-- A statement after the lock: in one statement, the snapshot would be older than the lock. It ignores expires_at: a
-- record counts until it is pruned together with its intents.
select payload_hash, hash_version, (completed_at is null)::boolean as in_progress, (erased_at is not null)::boolean as erased, failed,
       response_code, response_headers, response_body
from samekey.processed_events
where idem_key = @idem_key::text and scope = @scope::text;

-- name: ProcessedEventsInsert :exec
-- Raises if the record exists. With DO NOTHING, the COMMIT later in the same batch would commit the rows of the loser.
--
-- Also raises (22007) if this is not the transaction that took the lock. A statement such as "..; rollback; begin" or
-- "commit and chain" ends that transaction and starts another, which would commit the record alone. now() is the start
-- of the transaction, so the check needs neither a lock nor a transaction id. The cast raises: the text is not a time,
-- and it is evaluated in that case only.
insert into samekey.processed_events
    (idem_key, scope, payload_hash, hash_version, completed_at, expires_at, failed, response_code, response_headers, response_body, subject)
select @idem_key::text, @scope::text, @payload_hash::bytea, @hash_version::smallint,
       case when now() = @began::timestamptz then clock_timestamp()
            else ('samekey: this is not the transaction in which the request started'::text)::timestamptz end,
       clock_timestamp() + (interval '1 microsecond' * @retain_us::bigint), @failed::boolean,
       sqlc.narg('code')::int, sqlc.narg('headers')::bytea, sqlc.narg('body')::bytea, nullif(@subject::text, '');

-- name: ProcessedEventsSetLockTimeout :exec
-- Before a batch that may wait for the lock of an ordering key: limits the wait to the caller's deadline, or to the
-- session's own limit if that is shorter. statement_timeout would not do: it can interrupt a COMMIT that waits for a
-- replica.
select set_config('lock_timeout', least(nullif(extract(epoch from current_setting('lock_timeout')::interval) * 1000, 0),
                                        @within_ms::bigint)::bigint::text, true);

-- name: ProcessedEventsCheckTransaction :one
-- The check of ProcessedEventsInsert, for a failure. It runs before the rollback, which would hide that a statement had
-- committed.
select case when now() = @began::timestamptz then clock_timestamp()
            else ('samekey: this is not the transaction in which the request started'::text)::timestamptz end::timestamptz as at;

-- name: ProcessedEventsInsertFailure :execrows
-- A failure is the only row of its transaction, so it may lose. No row: another first attempt won.
insert into samekey.processed_events
    (idem_key, scope, payload_hash, hash_version, completed_at, expires_at, failed, response_code, response_headers, response_body, subject)
select @idem_key::text, @scope::text, @payload_hash::bytea, @hash_version::smallint, clock_timestamp(),
       clock_timestamp() + (interval '1 microsecond' * @retain_us::bigint), @failed::boolean,
       sqlc.narg('code')::int, sqlc.narg('headers')::bytea, sqlc.narg('body')::bytea, nullif(@subject::text, '')
on conflict (idem_key, scope) do nothing;

-- name: ProcessedEventsPrune :one
-- Deletes one page of expired records, each with its intents. It keeps a record unless all its intents are finished
-- (they have an event with a final_status and no queue row), past the key window of their vendor, and the application
-- has taken their attention events. A window of 'infinity' (Forever) is capped by the retention, which has passed. Pages
-- follow a cursor, so a record that must stay does not block the next ones. Another pruner has the rows that are locked.
--
-- With only_pick it deletes nothing and returns what it would delete, locked until the transaction ends: for an archive.
-- ProcessedEventsPruneDelete then deletes it.
--
-- The scalar subqueries with a limit and the arrays force index lookups regardless of statistics. The planner may
-- turn an EXISTS into a hash of the whole history.
with page as materialized (
    select p.idem_key, p.scope, p.expires_at
    from samekey.processed_events p
    where p.expires_at < (select clock_timestamp())
      and (p.expires_at, p.idem_key, p.scope) > (@after_expires::timestamptz, @after_key::text, @after_scope::text)
      and p.completed_at is not null
    order by p.expires_at, p.idem_key, p.scope
    limit @max_count
    for update skip locked
), judged as materialized (
    select g.idem_key, g.scope, i.ids, coalesce(i.finished, true) as doomed
    from page g
    cross join lateral (
        select array_agg(o.id) as ids,
               bool_and((select h.intent_id from samekey.outbox_history h
                         where h.intent_id = o.id and h.final_status is not null
                           and (h.key_window_until is null or h.key_window_until = 'infinity' or h.key_window_until < (select clock_timestamp()))
                         limit 1) is not null
                        and (select q.id from samekey.outbox_queue q where q.id = o.id limit 1) is null
                        and (select n.id from samekey.outbox_attention n
                             where n.intent_id = o.id and (select a.attention from samekey.actions a where a.action = n.action)
                             limit 1) is null) as finished
        from samekey.outbox o
        where o.idem_key = g.idem_key and o.scope = g.scope
    ) i
), doomed as materialized (
    select array(select unnest(j.ids) from judged j where j.doomed) as ids,
           array(select j.idem_key from judged j where j.doomed) as keys,
           array(select j.scope from judged j where j.doomed) as scopes
), gone as materialized (
    select d.* from doomed d where not @only_pick::boolean
), history as (
    delete from samekey.outbox_history h where h.intent_id = any ((select d.ids from gone d)::uuid[])
), attention as ( -- of actions without an Attention function
    delete from samekey.outbox_attention n where n.intent_id = any ((select d.ids from gone d)::uuid[])
), sends as (
    delete from samekey.outbox_sends s where s.intent_id = any ((select d.ids from gone d)::uuid[])
), intents as (
    delete from samekey.outbox o where o.id = any ((select d.ids from gone d)::uuid[])
), steps as (
    delete from samekey.operation_steps s
    using (select unnest((select d.keys from gone d)::text[]) as idem_key,
                  unnest((select d.scopes from gone d)::text[]) as scope) k
    where s.idem_key = k.idem_key and s.scope = k.scope
), records as (
    delete from samekey.processed_events p
    using (select unnest((select d.keys from gone d)::text[]) as idem_key,
                  unnest((select d.scopes from gone d)::text[]) as scope) k
    where p.idem_key = k.idem_key and p.scope = k.scope
)
select (select count(*) from page)::int as seen,
       cardinality(d.keys)::int as records,
       cardinality(d.ids)::int as intents,
       (case when @only_pick::boolean then d.ids end)::uuid[] as ids,
       (case when @only_pick::boolean then d.keys end)::text[] as keys,
       (case when @only_pick::boolean then d.scopes end)::text[] as scopes,
       coalesce(last.expires_at, @after_expires::timestamptz)::timestamptz as last_expires,
       coalesce(last.idem_key, '')::text as last_key,
       coalesce(last.scope, '')::text as last_scope
from doomed d
left join lateral (
    select g.expires_at, g.idem_key, g.scope from page g order by g.expires_at desc, g.idem_key desc, g.scope desc limit 1
) last on true;

-- name: ProcessedEventsPruneOrphans :one
-- The same for intents without a record, written outside Run and Do. All intents of a key are deleted together, once
-- the last one was finished longer ago than the retention. The lock of the key keeps other transactions away; if the
-- key is in use, the next prune tries again.
with page as materialized (
    select o.id, o.idem_key, o.scope, o.action, o.part, o.revision
    from samekey.outbox o
    where o.id > @after
    order by o.id
    limit @max_count
), heads as materialized (
    select array(
        select g.id from page g
        where (select e.idem_key from samekey.processed_events e
               where e.idem_key = g.idem_key and e.scope = g.scope limit 1) is null
          and (select f.id from samekey.outbox f
               where f.idem_key = g.idem_key and f.scope = g.scope and (f.action, f.part, f.revision) < (g.action, g.part, g.revision)
               limit 1) is null
    ) as ids
), locked as materialized (
    select o.idem_key, o.scope
    from samekey.outbox o
    where o.id = any ((select h.ids from heads h)::uuid[])
      -- Not a row lock: the worker's role has no right to update an intent.
      and pg_try_advisory_xact_lock(samekey.key_lock(o.scope, o.idem_key))
), judged as materialized (
    select i.ids
    from locked g
    cross join lateral (
        select array_agg(o.id) as ids,
               bool_and((select h.intent_id from samekey.outbox_history h
                         where h.intent_id = o.id and h.final_status is not null
                           and h.at < (select clock_timestamp()) - (interval '1 microsecond' * @retain_us::bigint)
                           and (h.key_window_until is null or h.key_window_until = 'infinity' or h.key_window_until < (select clock_timestamp()))
                         limit 1) is not null
                        and (select q.id from samekey.outbox_queue q where q.id = o.id limit 1) is null
                        and (select n.id from samekey.outbox_attention n
                             where n.intent_id = o.id and (select a.attention from samekey.actions a where a.action = n.action)
                             limit 1) is null) as finished
        from samekey.outbox o
        where o.idem_key = g.idem_key and o.scope = g.scope
    ) i
    where i.finished
), doomed as materialized (
    select array(select unnest(j.ids) from judged j) as ids
), gone as materialized (
    select d.* from doomed d where not @only_pick::boolean
), history as (
    delete from samekey.outbox_history h where h.intent_id = any ((select d.ids from gone d)::uuid[])
), attention as ( -- of actions without an Attention function
    delete from samekey.outbox_attention n where n.intent_id = any ((select d.ids from gone d)::uuid[])
), sends as (
    delete from samekey.outbox_sends s where s.intent_id = any ((select d.ids from gone d)::uuid[])
), intents as (
    delete from samekey.outbox o where o.id = any ((select d.ids from gone d)::uuid[])
)
select (select count(*) from page)::int as seen,
       cardinality(d.ids)::int as intents,
       (case when @only_pick::boolean then d.ids end)::uuid[] as ids,
       coalesce((select g.id from page g order by g.id desc limit 1), @after)::uuid as last
from doomed d;

-- name: ProcessedEventsPruneDelete :exec
-- Deletes what only_pick returned, in the same transaction: records with their steps, and intents with all that belongs
-- to them.
with history as (
    delete from samekey.outbox_history h where h.intent_id = any (@ids::uuid[])
), attention as (
    delete from samekey.outbox_attention n where n.intent_id = any (@ids::uuid[])
), sends as (
    delete from samekey.outbox_sends s where s.intent_id = any (@ids::uuid[])
), intents as (
    delete from samekey.outbox o where o.id = any (@ids::uuid[])
), steps as (
    delete from samekey.operation_steps s
    using (select unnest(@keys::text[]) as idem_key, unnest(@scopes::text[]) as scope) k
    where s.idem_key = k.idem_key and s.scope = k.scope
)
delete from samekey.processed_events p
using (select unnest(@keys::text[]) as idem_key, unnest(@scopes::text[]) as scope) k
where p.idem_key = k.idem_key and p.scope = k.scope;

-- name: ArchiveLock :exec
-- Locks what only_pick returned, before an archive reads it, in a statement of its own. An erasure that is under way ends
-- first. A later one leaves these intents and says so; otherwise it would report as erased what the archive got in a
-- transaction that no one can see yet.
select count(samekey.keeps_content(i.id)) from (select unnest(@ids::uuid[]) as id order by 1) i;

-- What an archive gets is handed over in parts, so the sizes are read first.

-- name: ArchiveIntentSizes :many
select o.id, (octet_length(o.payload)
        + coalesce((select sum(coalesce(octet_length(h.response), 0) + coalesce(octet_length(h.error), 0))
                    from samekey.outbox_history h where h.intent_id = o.id), 0)
        + coalesce((select octet_length(s.request) from samekey.outbox_sends s where s.intent_id = o.id), 0))::bigint as bytes
from samekey.outbox o
where o.id = any (@ids::uuid[])
order by o.id;

-- name: ProcessedEventsSizes :many
select p.idem_key, p.scope, (coalesce(octet_length(p.response_body), 0) + coalesce(octet_length(p.response_headers), 0)
        + coalesce((select sum(coalesce(octet_length(s.result), 0)) from samekey.operation_steps s
                    where s.idem_key = p.idem_key and s.scope = p.scope), 0))::bigint as bytes
from (select unnest(@keys::text[]) as idem_key, unnest(@scopes::text[]) as scope) k
join samekey.processed_events p on p.idem_key = k.idem_key and p.scope = k.scope
order by p.idem_key, p.scope;
