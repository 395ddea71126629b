-- The steps of an operation: see operations.sql.

-- name: OperationStepsList :many
-- The steps of an operation, in order, right after the call has taken it over.
select position, name, status, failed, code, result, (delivery_key is not null)::boolean as calls, coalesce(sends, 0)::int as sends
from samekey.operation_steps
where idem_key = @idem_key::text and scope = @scope::text
order by position;

-- name: OperationStepsLock :one
-- The start of a step's transaction. The columns are those of ProcessedEventsTryLock.
select samekey.step_lock(@scope::text, @idem_key::text, @fence::bigint) as locked, now()::timestamptz as began;

-- name: OperationStepsFind :one
-- The columns are those of ProcessedEventsFind, so a step replays as a record does.
select p.payload_hash, p.hash_version, false::boolean as in_progress, false::boolean as erased, s.failed, s.code as response_code,
       null::bytea as response_headers, s.result as response_body
from samekey.operation_steps s
join samekey.processed_events p on p.idem_key = s.idem_key and p.scope = s.scope
where s.idem_key = @idem_key::text and s.scope = @scope::text and s.position = @position::smallint and s.name = @name::text
  and s.status = 'done';

-- name: OperationStepsPut :exec
-- The end of a step's transaction. It raises if this is not the transaction that took the lock: see
-- ProcessedEventsInsert.
select samekey.step_put(@scope::text, @idem_key::text, @fence::bigint, @lease_us::bigint, @position::smallint, @name::text,
                        @failed::boolean, sqlc.narg('code')::int, sqlc.narg('result')::bytea)
where case when now() = @began::timestamptz then clock_timestamp()
           else ('samekey: this is not the transaction in which the step started'::text)::timestamptz end is not null;

-- name: OperationStepsPutFailure :exec
-- A step that ended with a failure, in a transaction of its own: what the step wrote is rolled back.
select samekey.step_put(@scope::text, @idem_key::text, @fence::bigint, @lease_us::bigint, @position::smallint, @name::text,
                        @failed::boolean, sqlc.narg('code')::int, sqlc.narg('result')::bytea);

-- name: OperationStepsMark :one
select verdict::text as verdict, sends::int as sends, wait_us::bigint as wait_us
from samekey.call_mark(@scope::text, @idem_key::text, @fence::bigint, @lease_us::bigint, @position::smallint, @name::text,
                       @timeout_us::bigint, @window_us::bigint, @settle_us::bigint, @can_lookup::boolean, @absent::boolean, @resend_absent::boolean);

-- name: OperationStepsAnswer :exec
select samekey.call_put(@scope::text, @idem_key::text, @fence::bigint, @lease_us::bigint, @position::smallint,
                        @failed::boolean, sqlc.narg('code')::int, sqlc.narg('result')::bytea);

-- name: OperationStepsEnd :exec
select samekey.call_end(@scope::text, @idem_key::text, @fence::bigint, @lease_us::bigint, @position::smallint, @sends::int,
                        @unsent::boolean, @error::text);
