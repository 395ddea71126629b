-- Counts of unfinished intents, for dashboards.

-- name: OutboxStatsRefresh :exec
-- Counts with one scan of the queue, and deletes the rows of pairs that are gone.
with counted as materialized (
    select q.action, q.status, count(*) as intents, min(q.due_at) as oldest_due_at
    from samekey.outbox_queue q
    group by q.action, q.status
), live as materialized (
    select distinct unnest(w.actions) as action
    from samekey.workers w
    where not pg_try_advisory_xact_lock_shared(samekey.worker_class(), w.id)
), gone as (
    delete from samekey.outbox_stats s
    where not exists (select from counted c where c.action = s.action and c.status = s.status)
)
insert into samekey.outbox_stats as s (action, status, intents, oldest_due_at, handled)
select c.action, c.status, c.intents, c.oldest_due_at, exists (select from live l where l.action = c.action)
from counted c
on conflict (action, status) do update
set intents = excluded.intents, oldest_due_at = excluded.oldest_due_at, handled = excluded.handled,
    taken_at = clock_timestamp();

-- name: OutboxStatsUnhandled :many
select s.action, sum(s.intents)::bigint as intents
from samekey.outbox_stats s
where not s.handled
group by s.action
order by s.action;
