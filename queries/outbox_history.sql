-- What happened to an intent, in order.

-- name: OutboxHistoryAnswer :one
-- The answer that an answered intent was given: by an attempt, a look-up, a zombie or a person, whichever came last. The
-- late answer of an attempt that was not the last one sent counts for nothing.
select h.outcome::text as outcome, coalesce(h.code, '')::text as code, coalesce(h.response_type, '')::text as response_type,
       coalesce(h.response, '')::bytea as response, (h.event = 'resolved')::boolean as resolved
from samekey.outbox_history h
where h.intent_id = @id and h.outcome in ('delivered', 'refused')
  and (h.event <> 'late' or h.attempt = (select q.sent_attempt from samekey.outbox_queue q where q.id = @id))
order by h.id desc
limit 1;
