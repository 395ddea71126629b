-- Answered intents: what claims them so that their answers are applied. They are no part of a destination's claims: a call's
-- claim never reads them, so however many wait for an Apply that is blocked, calls go on.
--
--   many wait, one Apply is blocked            none is claimed beyond the free slots of its action; the rest is not touched
--   two nodes claim at once                    skip locked: each row goes to one
--   the claim committed, its answer was lost   the lease runs out, and the sweep puts the row back
--   the worker's session lock is gone          nothing is claimed

-- name: OutboxAnsweredClaim :many
-- Takes up to max_count answered intents of one action that are due. Like OutboxQueueClaim: none without the worker's own
-- session lock, and a look-up by primary key whatever the statistics say. It returns no payload, which OutboxLoad reads when the
-- Apply begins: rows stream out before the commit, and four payloads of 1 MiB over a link of 200 KB/s took longer than a claim may.
with picked as materialized (
    select clock_timestamp() as now, array(
        select q.id
        from samekey.outbox_queue q
        where q.action = @action
          and q.leased_by is null
          and q.status = 'answered'
          and q.due_at <= (select clock_timestamp())
          and (select not pg_try_advisory_xact_lock_shared(samekey.worker_class(), @worker::int))
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
