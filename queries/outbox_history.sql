-- What happened to an intent, in order.

-- name: OutboxHistoryAnswer :one
-- The answer that an answered intent was given: by an attempt, a look-up, a zombie or a person, whichever came last. The
-- late answer of an attempt that was not the last one sent counts for nothing.
select h.outcome::text as outcome, coalesce(h.code, '')::text as code, coalesce(h.response_type, '')::text as response_type,
       coalesce(h.response, '')::bytea as response, (h.event = 'resolved')::boolean as resolved
from samekey.outbox_history h
where h.intent_id = @id and h.outcome in ('delivered', 'refused')
  and (h.event <> 'late' or h.attempt = (select q.last_sent_attempt from samekey.outbox_queue q where q.id = @id))
order by h.id desc
limit 1;

-- name: OutboxHistoryLastResponse :one
-- What the vendor last answered to an attempt of an intent whose outcome is unknown, for its look-up. What was answered
-- before the intent was known to be unsent, as by a person, is about something else, and so is the late answer of an
-- attempt that was not the last one sent.
select coalesce(h.code, '')::text as code, coalesce(h.response_type, '')::text as response_type, h.response
from samekey.outbox_queue q
join samekey.outbox_history h on h.intent_id = q.id
where q.id = @id and h.response is not null and h.at >= q.first_sent_at
  and (h.event = 'attempt' or h.event = 'late' and h.attempt = q.last_sent_attempt)
order by h.id desc
limit 1;
