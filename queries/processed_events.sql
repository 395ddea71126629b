-- The memory of requests: one record for each (scope, key).

-- name: ProcessedEventsTryLock :one
-- Whoever works on a key holds its lock until the transaction ends. It buys a fast "in flight"; the primary key is the
-- guarantee.
select pg_try_advisory_xact_lock(samekey.key_lock(@scope::text, @idem_key::text));

-- name: ProcessedEventsLock :exec
-- After a COMMIT whose answer was lost: got only once the transaction that sent it has ended, either way.
select pg_advisory_xact_lock(samekey.key_lock(@scope::text, @idem_key::text));

-- name: ProcessedEventsFind :one
-- A statement of its own, after the lock: one snapshot for both would predate the lock. Expiry is ignored: a key lives
-- until it is pruned, together with its intents.
select payload_hash, hash_version, status, failed, response_code, response_body
from samekey.processed_events
where idem_key = @idem_key::text and scope = @scope::text;

-- name: ProcessedEventsInsert :exec
-- Raises where the record exists: with DO NOTHING the COMMIT behind it in the same batch would commit a loser's rows.
insert into samekey.processed_events
    (idem_key, scope, payload_hash, hash_version, status, completed_at, expires_at, failed, response_code, response_body)
select @idem_key::text, @scope::text, @payload_hash::bytea, @hash_version::smallint, 'done', clock_timestamp(),
       clock_timestamp() + (interval '1 microsecond' * @retain_us::bigint), @failed::boolean,
       sqlc.narg('code')::int, sqlc.narg('body')::bytea;

-- name: ProcessedEventsInsertFailure :execrows
-- A failure is alone in its transaction, so it may give way: no row means that another first attempt won.
insert into samekey.processed_events
    (idem_key, scope, payload_hash, hash_version, status, completed_at, expires_at, failed, response_code, response_body)
select @idem_key::text, @scope::text, @payload_hash::bytea, @hash_version::smallint, 'done', clock_timestamp(),
       clock_timestamp() + (interval '1 microsecond' * @retain_us::bigint), true,
       @response_code::int, sqlc.narg('response_body')::bytea
on conflict (idem_key, scope) do nothing;
