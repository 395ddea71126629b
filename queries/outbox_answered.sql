-- Claims of answered intents, whose Apply is due. Claims for attempts never read these rows, so attempts go on however
-- many answered intents wait for an Apply that is blocked. The interleavings:
--
--   many intents wait and one Apply is blocked   the action claims up to its free slots and leaves the rest alone
--   two workers claim at once                    skip locked: each row goes to one of them
--   the claim commits and its result is lost     the lease expires, and the sweep releases the row
--   the worker's session lock is lost            it claims nothing
--   the database belongs to another deployment   it claims nothing

-- name: OutboxAnsweredClaim :many
-- Claims up to max_count answered intents of one action that are due. As in OutboxQueueClaim, it claims none without
-- the worker's session lock, and looks up rows by primary key. It returns no payload. Rows reach the client before the
-- commit, and over a link of 200 KB/s four payloads of 1 MiB took longer than a claim may. OutboxLoad reads the payload
-- when the Apply starts.
with picked as materialized (
    select clock_timestamp() as now, array(
        select q.id
        from samekey.outbox_queue q
        where q.action = @action
          and q.leased_by is null
          and q.status = 'answered'
          and q.due_at <= (select clock_timestamp())
          and (select not pg_try_advisory_xact_lock_shared(samekey.worker_class(), @worker::int))
          and (select array_agg(d.id) from samekey.deployment d) = array[@deployment::uuid]
        order by q.due_at
        limit @max_count
        for update skip locked
    )::uuid[] as ids
)
update samekey.outbox_queue q
set attempt = q.attempt + 1, leased_by = @worker::int, lease_until = p.now + @lease::interval
from picked p
where q.id = any (p.ids)
returning q.id, q.status, q.attempt, q.attempts_used, q.ordering_key;
