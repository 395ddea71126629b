-- Answered intents: what claims them so that their answers are applied. They are no part of a destination's claims: a call's
-- claim never reads them, so however many wait for an Apply that is blocked, calls go on.
--
--   many wait, one Apply is blocked            none is claimed beyond the free slots of its action; the rest is not touched
--   two nodes claim at once                    skip locked: each row goes to one
--   the claim committed, its answer was lost   the lease runs out, and the sweep puts the row back
--   the worker's session lock is gone          nothing is claimed

-- name: OutboxAppliesClaim :many
-- Takes up to max_count answered intents of one action that are due. Like OutboxQueueClaim: none without the worker's own
-- session lock, and a look-up by primary key whatever the statistics say.
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
), claimed as (
    update samekey.outbox_queue q
    set attempt = q.attempt + 1, leased_by = @worker::int, lease_until = p.now + @lease::interval
    from picked p
    where q.id = any (p.ids)
    returning q.id, q.status, q.attempt, q.spent, q.ordering_key
)
select c.id, c.status, c.attempt, c.spent, c.ordering_key,
       o.scope, o.idem_key, o.part, o.delivery_key, o.payload, o.content_type, o.headers, o.trace_context, o.created_at,
       coalesce(s.carried_key, '')::text as carried_key, s.request_type, s.request, s.message_id
from claimed c
cross join lateral (select * from samekey.outbox x where x.id = c.id offset 0) o
left join lateral (select * from samekey.outbox_sends x where x.intent_id = c.id offset 0) s on true;
