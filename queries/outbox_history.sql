-- Events of an intent that a worker needs.

-- name: OutboxHistoryAnswer :one
-- The outcome of an answered intent: from an attempt, a lookup, a late attempt or a person, whichever is the latest. A
-- late outcome counts only if it belongs to the last attempt that was sent.
select h.outcome::text as outcome, coalesce(h.code, '')::text as code, coalesce(h.response_type, '')::text as response_type,
       coalesce(h.response, '')::bytea as response, (h.event = 'resolved')::boolean as resolved
from samekey.outbox_history h
where h.intent_id = @id and h.outcome in ('delivered', 'refused')
  and (h.event <> 'late' or h.attempt = (select q.last_sent_attempt from samekey.outbox_queue q where q.id = @id))
order by h.id desc
limit 1;

-- name: OutboxHistoryLastResponse :one
-- The vendor's last response to an attempt of an intent with an unknown outcome. The lookup may need it. Responses from
-- before first_sent_at do not count: the intent was known to be unsent after them. Neither does a late response to an
-- attempt that was not the last one sent.
select coalesce(h.code, '')::text as code, coalesce(h.response_type, '')::text as response_type, h.response
from samekey.outbox_queue q
join samekey.outbox_history h on h.intent_id = q.id
where q.id = @id and h.response is not null and h.at >= q.first_sent_at
  and (h.event = 'attempt' or h.event = 'late' and h.attempt = q.last_sent_attempt)
order by h.id desc
limit 1;
