-- What the workers have registered about actions (samekey.actions), for statements that run outside a worker.

-- name: OutboxActionsRegister :exec
-- Writes the actions of a worker that starts. The last one to start decides on fair_by. A start never ends attention:
-- WorkersHeartbeat does. Rows that are as they should be are not written. In order, so that two workers do not deadlock.
--
--   two workers start with different settings     the second waits for the rows of the first, and overwrites them
--   two workers start with different actions      the second waits in the trigger, until the first has committed, and
--                                                 then makes samekey.share_of of both
--   a writer inserts at that moment               its plan has the old function: the intent has no share, or one of the
--                                                 former kind. OutboxQueueShareFill gives a share to those without
--   a worker runs that does not share             the actions are overwritten when it starts: new intents have no share.
--                                                 Workers that share give them one
insert into samekey.actions as a (action, attention, attention_seen_at, fair_by)
select u.action, u.attention, case when u.attention then clock_timestamp() end, nullif(u.fair_by, '')
from (select unnest(@actions::text[]) as action, unnest(@attention::boolean[]) as attention, unnest(@fair_by::text[]) as fair_by) u
order by u.action
on conflict (action) do update
set attention = a.attention or excluded.attention, attention_seen_at = coalesce(excluded.attention_seen_at, a.attention_seen_at),
    fair_by = excluded.fair_by, changed_at = clock_timestamp()
where a.fair_by is distinct from excluded.fair_by or excluded.attention and not a.attention;
