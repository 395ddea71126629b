-- The memory of requests: one record for each (scope, key).

-- name: ProcessedEventsTryLock :one
-- The transaction that works on a key holds its lock until it ends. The lock buys a fast "in flight"; the primary key is
-- the guarantee. began tells this transaction from every other of the connection: see ProcessedEventsInsert.
-- own_scope raises SK003 where the scope is another service's.
select pg_try_advisory_xact_lock(samekey.key_lock(samekey.own_scope(@scope::text), @idem_key::text)) as locked, now()::timestamptz as began;

-- name: ProcessedEventsLock :exec
-- After a COMMIT whose answer was lost: got only once the transaction that sent it has ended, either way.
select pg_advisory_xact_lock(samekey.key_lock(@scope::text, @idem_key::text));

-- name: ProcessedEventsFind :one
-- A statement of its own, after the lock: one snapshot for both would predate the lock. Expiry is ignored: a key lives
-- until it is pruned, together with its intents.
select payload_hash, hash_version, (completed_at is null)::boolean as in_progress, failed, response_code, response_headers, response_body
from samekey.processed_events
where idem_key = @idem_key::text and scope = @scope::text;

-- name: ProcessedEventsInsert :exec
-- Raises where the record exists: with DO NOTHING the COMMIT behind it in the same batch would commit a loser's rows.
--
-- Raises too (22007) where the transaction is not the one that took the lock: a text such as "..; rollback; begin", or
-- "commit and chain", ends that one with its rows and begins another, in which the record would be committed alone.
-- now() is the transaction's start, so the comparison costs neither a lock nor a transaction id. The cast of a text that
-- is no time raises, and is evaluated in that case only.
insert into samekey.processed_events
    (idem_key, scope, payload_hash, hash_version, completed_at, expires_at, failed, response_code, response_headers, response_body)
select @idem_key::text, @scope::text, @payload_hash::bytea, @hash_version::smallint,
       case when now() = @began::timestamptz then clock_timestamp()
            else ('samekey: this is not the transaction that the request began in'::text)::timestamptz end,
       clock_timestamp() + (interval '1 microsecond' * @retain_us::bigint), @failed::boolean,
       sqlc.narg('code')::int, sqlc.narg('headers')::bytea, sqlc.narg('body')::bytea;

-- name: ProcessedEventsSetLockTimeout :exec
-- Before a batch that may wait for an ordering key: until the caller's deadline, or as long as the session allows.
-- lock_timeout, and not statement_timeout, which could cut a COMMIT's wait for a replica short.
select set_config('lock_timeout', least(nullif(extract(epoch from current_setting('lock_timeout')::interval) * 1000, 0),
                                        @within_ms::bigint)::bigint::text, true);

-- name: ProcessedEventsCheckTransaction :one
-- The check of ProcessedEventsInsert, for a failure: it raises before the rollback, which would hide that a statement had
-- committed.
select case when now() = @began::timestamptz then clock_timestamp()
            else ('samekey: this is not the transaction that the request began in'::text)::timestamptz end::timestamptz as at;

-- name: ProcessedEventsInsertFailure :execrows
-- A failure is alone in its transaction, so it may give way: no row means that another first attempt won.
insert into samekey.processed_events
    (idem_key, scope, payload_hash, hash_version, completed_at, expires_at, failed, response_code, response_headers, response_body)
select @idem_key::text, @scope::text, @payload_hash::bytea, @hash_version::smallint, clock_timestamp(),
       clock_timestamp() + (interval '1 microsecond' * @retain_us::bigint), @failed::boolean,
       sqlc.narg('code')::int, sqlc.narg('headers')::bytea, sqlc.narg('body')::bytea
on conflict (idem_key, scope) do nothing;

-- name: ProcessedEventsPrune :one
-- Deletes a page of expired records, each with its intents, or keeps it whole: all intents must be finished, by an event
-- in the history and by the absence of a queue row, and past the window in which their vendor remembers the key
-- ('infinity', Forever, is capped by the retention, which is over). Pages follow one another by the cursor, so that
-- records that must stay are passed and do not stall it; locked ones are another pruner's.
--
-- The scalar subqueries with a limit, and the arrays, keep every step a look-up in an index whatever the statistics say:
-- an EXISTS may be turned into a hash of the whole history.
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
                        and (select q.id from samekey.outbox_queue q where q.id = o.id limit 1) is null) as finished
        from samekey.outbox o
        where o.idem_key = g.idem_key and o.scope = g.scope
    ) i
), doomed as materialized (
    select array(select unnest(j.ids) from judged j where j.doomed) as ids,
           array(select j.idem_key from judged j where j.doomed) as keys,
           array(select j.scope from judged j where j.doomed) as scopes
), history as (
    delete from samekey.outbox_history h where h.intent_id = any ((select d.ids from doomed d)::uuid[])
), sends as (
    delete from samekey.outbox_sends s where s.intent_id = any ((select d.ids from doomed d)::uuid[])
), intents as (
    delete from samekey.outbox o where o.id = any ((select d.ids from doomed d)::uuid[])
), records as (
    delete from samekey.processed_events p
    using (select unnest((select d.keys from doomed d)::text[]) as idem_key,
                  unnest((select d.scopes from doomed d)::text[]) as scope) k
    where p.idem_key = k.idem_key and p.scope = k.scope
)
select (select count(*) from page)::int as seen,
       cardinality(d.keys)::int as records,
       cardinality(d.ids)::int as intents,
       coalesce(last.expires_at, @after_expires::timestamptz)::timestamptz as last_expires,
       coalesce(last.idem_key, '')::text as last_key,
       coalesce(last.scope, '')::text as last_scope
from doomed d
left join lateral (
    select g.expires_at, g.idem_key, g.scope from page g order by g.expires_at desc, g.idem_key desc, g.scope desc limit 1
) last on true;

-- name: ProcessedEventsPruneOrphans :one
-- The same for intents without a record, which were written outside Run and Do: all intents of a key go together, once
-- the last was finished longer ago than the retention. Who holds the key's lock decides for all of
-- them; a key that is in use right now is left for the next time.
with page as materialized (
    select o.id, o.idem_key, o.scope, o.action, o.part
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
               where f.idem_key = g.idem_key and f.scope = g.scope and (f.action, f.part) < (g.action, g.part)
               limit 1) is null
    ) as ids
), locked as materialized (
    select o.idem_key, o.scope
    from samekey.outbox o
    where o.id = any ((select h.ids from heads h)::uuid[])
      -- Not a row lock, for which the worker's role would need the right to change an intent.
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
                        and (select q.id from samekey.outbox_queue q where q.id = o.id limit 1) is null) as finished
        from samekey.outbox o
        where o.idem_key = g.idem_key and o.scope = g.scope
    ) i
    where i.finished
), doomed as materialized (
    select array(select unnest(j.ids) from judged j) as ids
), history as (
    delete from samekey.outbox_history h where h.intent_id = any ((select d.ids from doomed d)::uuid[])
), sends as (
    delete from samekey.outbox_sends s where s.intent_id = any ((select d.ids from doomed d)::uuid[])
), intents as (
    delete from samekey.outbox o where o.id = any ((select d.ids from doomed d)::uuid[])
)
select (select count(*) from page)::int as seen,
       cardinality(d.ids)::int as intents,
       coalesce((select g.id from page g order by g.id desc limit 1), @after)::uuid as last
from doomed d;
