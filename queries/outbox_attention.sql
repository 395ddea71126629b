-- Attention events (samekey.outbox_attention): what the application learns about intents that need a person, or that a
-- person cancelled. samekey.note_attention writes the row in the statement that changes the status. A worker runs the
-- application's Attention function in a transaction that locks the row first and deletes it last. The row lock is the
-- claim: it ends with the transaction, so a crash leaves nothing to release. The interleavings:
--
--   the statement that changes the status fails    neither the status nor the row is there
--   killed before the function's commit            the lock ends with the connection: any worker runs the function again
--   killed after the commit                        the row is gone
--   two workers look for a row                     skip locked: each row goes to one of them. They never take two rows of
--                                                  one first_id: a row that an older one precedes is not taken, and an older
--                                                  row that is being deleted still precedes until the commit
--   two transitions of one intent                  the second statement waits for the row lock of the first in the queue,
--                                                  and takes its number after that: ids follow the order of transitions
--   the function fails                             its transaction rolls back. OutboxAttentionFailed sets the row's next
--                                                  time; killed before it, the row is due at once. Later rows of the intent
--                                                  wait for it
--   dead, function blocked; redriven; delivered    without Apply, the intent is finished and the row stays: prune waits for
--                                                  it. With Apply, OutboxQueueCheckClaim sees the row, and Apply waits
--   dead, then a late answer, then Apply           the same: the row was committed before the status changed from dead, so
--                                                  each snapshot that shows answered shows the row
--   Apply runs; can a row be written meanwhile     no: an answered intent only becomes delivered or refused
--   Apply waits for a row that its worker could    Apply's worker runs the row's function itself, by
--   run                                            OutboxAttentionOfIntent, unless another worker is running it
--   dead, function blocked; cancelled              the second row waits for the first
--   dead, function blocked; replaced; the          the rows of the first one have the same first_id as those of the
--   successor is delivered, or dead                successor, so its Apply and its rows wait for them
--   the function ends the transaction itself       OutboxAttentionDelete compares the transaction's id, as
--                                                  OutboxQueueFinish does
--   no worker has had the function for 10 minutes  samekey.actions.attention is false: no rows are written, no Apply waits
--                                                  for rows, and prune deletes them (see WorkersHeartbeat)
--   an attempt stops its endpoint, by a 410 or     EndpointsStop writes a row about the endpoint, in the statement of the
--   by failing for too long                        stop: once, since only one attempt finds the endpoint not stopped. It
--                                                  holds no row of the intent, and says nothing of its status
--   the action is paused                           the rows wait, as its Applies do
--   the database belongs to another deployment     the rows wait, as everything does

-- name: OutboxAttentionNext :one
-- The first due row of an action that no older row of its first_id precedes, locked. No row: nothing is due, or others
-- have it.
--
-- `offset 0` keeps the lookup of an older row a filter. The planner expects half of the rows to pass it, so it reads the
-- index in order and stops at the first row. For other forms it expects one in 200, and sorts all that is due.
select a.id, a.intent_id, coalesce(a.status, '')::text as status, a.endpoint, a.event, a.code, a.error, a.actor, a.reason, a.at, a.attempts_used,
       pg_current_xact_id()::text as began,
       coalesce((select q.status from samekey.outbox_queue q where q.id = a.intent_id),
                (select h.final_status from samekey.outbox_history h where h.intent_id = a.intent_id and h.final_status is not null), '')::text as now_status,
       coalesce((select h.reference from samekey.outbox_history h
                 where h.intent_id = a.intent_id and h.reference is not null order by h.id desc limit 1), '')::text as reference
from samekey.outbox_attention a
where a.action = @action and a.due_at <= (select clock_timestamp())
  and (select array_agg(d.id) from samekey.deployment d) = array[@deployment::uuid]
  and not exists (select from samekey.outbox_attention b where b.first_id = a.first_id and b.id < a.id offset 0)
order by a.due_at, a.id
limit 1
for update of a skip locked;

-- name: OutboxAttentionOfIntent :one
-- The first row of an intent and of those that it replaces, if it is due, locked.
select a.id, a.intent_id, coalesce(a.status, '')::text as status, a.endpoint, a.event, a.code, a.error, a.actor, a.reason, a.at, a.attempts_used,
       pg_current_xact_id()::text as began,
       coalesce((select q.status from samekey.outbox_queue q where q.id = a.intent_id),
                (select h.final_status from samekey.outbox_history h where h.intent_id = a.intent_id and h.final_status is not null), '')::text as now_status,
       coalesce((select h.reference from samekey.outbox_history h
                 where h.intent_id = a.intent_id and h.reference is not null order by h.id desc limit 1), '')::text as reference
from samekey.outbox_attention a
where a.id = (select b.id from samekey.outbox_attention b
              where b.first_id = coalesce((select f.id
                                           from (select x.idem_key, x.scope, x.action, x.part, x.revision from samekey.outbox x
                                                 where x.id = @intent_id offset 0) o -- as in samekey.note_attention
                                           join samekey.outbox f on f.idem_key = o.idem_key and f.scope = o.scope
                                                                and f.action = o.action and f.part = o.part
                                           where o.revision > 0 and f.revision = 0), @intent_id)
              order by b.id limit 1)
  and a.due_at <= (select clock_timestamp())
for update of a skip locked;

-- name: OutboxAttentionDelete :execrows
-- The last statement of the transaction in which the function ran. began is the id of that transaction, or empty after
-- the function has committed it. The next event of the first_id is due now, if it was put off with this one.
with next as (
    update samekey.outbox_attention n
    set due_at = clock_timestamp()
    where n.first_id = (select b.first_id from samekey.outbox_attention b where b.id = @id) and n.id > @id and n.due_at > clock_timestamp()
)
delete from samekey.outbox_attention a
where a.id = @id and (@began::text = '' or pg_current_xact_id()::text = @began::text);

-- name: OutboxAttentionFailed :exec
-- Puts the event off, and with it the later ones of its first_id, so that OutboxAttentionNext does not step over them.
-- attempts_used keeps a worker that comes late from counting another worker's try.
update samekey.outbox_attention a
set attempts_used = case when a.id = @id then a.attempts_used + 1 else a.attempts_used end,
    last_error    = case when a.id = @id then @last_error::text else a.last_error end,
    due_at        = greatest(a.due_at, clock_timestamp() + interval '1 microsecond' * @delay_us::bigint)
where a.first_id = (select b.first_id from samekey.outbox_attention b where b.id = @id) and a.id >= @id
  and (select b.attempts_used from samekey.outbox_attention b where b.id = @id) = @attempts_used::int;
