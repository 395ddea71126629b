-- What the workers have registered about actions (samekey.actions), for statements that run outside a worker.

-- name: OutboxActionsRegister :exec
-- A worker registers its actions at its start; the last one that starts wins. Sorted, so that two workers that start at
-- the same time do not deadlock.
insert into samekey.actions as a (action, attention)
select r.action, r.attention
from (select unnest(@actions::text[]) as action, unnest(@attention::boolean[]) as attention) r
order by 1
on conflict (action) do update
set attention = excluded.attention, changed_at = clock_timestamp()
where a.attention is distinct from excluded.attention;
