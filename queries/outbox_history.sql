-- Events of an intent that a worker needs.

-- name: OutboxHistoryAnswer :one
-- The outcome of an answered intent: from an attempt, a lookup, a late attempt or a person, whichever is the latest. A
-- late outcome counts only if it is of the last attempt that was sent, or of a later lookup and not behind a person's
-- answer. If it has no reference, the last earlier answer that has one tells it, as in OutboxHistoryLast: the id in a
-- 202 names what the lookup found done.
select h.outcome::text as outcome, coalesce(h.code, '')::text as code, coalesce(h.response_type, '')::text as response_type,
       coalesce(h.response, '')::bytea as response, (h.event = 'resolved')::boolean as resolved,
       coalesce(h.reference, (
           select r.reference
           from samekey.outbox_history r
           join samekey.outbox_queue q on q.id = r.intent_id
           where r.intent_id = h.intent_id and r.reference is not null and r.at >= q.first_sent_at
             and (r.event in ('attempt', 'lookup') or r.event = 'late' and r.attempt >= q.last_sent_attempt)
           order by r.id desc
           limit 1), '')::text as reference
from samekey.outbox_history h
where h.intent_id = @id and h.outcome in ('delivered', 'refused')
  and (h.event <> 'late' or h.attempt = (select q.last_sent_attempt from samekey.outbox_queue q where q.id = @id)
       or h.attempt > (select q.last_sent_attempt from samekey.outbox_queue q where q.id = @id)
          and not exists (select from samekey.outbox_history r
                          where r.intent_id = h.intent_id and r.event = 'resolved' and r.outcome in ('delivered', 'refused') and r.id < h.id))
order by h.id desc
limit 1;

-- name: OutboxHistoryLast :one
-- What a lookup may need: the vendor's last response to an attempt, and the last reference in a response to an attempt
-- or a lookup. Responses from before first_sent_at do not count: the intent was known to be unsent after them. Neither
-- does a late response to an attempt that was not the last one sent.
select coalesce(l.code, '')::text as code, coalesce(l.response_type, '')::text as response_type, l.response,
       coalesce((
           select r.reference
           from samekey.outbox_history r
           where r.intent_id = q.id and r.reference is not null and r.at >= q.first_sent_at
             and (r.event in ('attempt', 'lookup') or r.event = 'late' and r.attempt >= q.last_sent_attempt)
           order by r.id desc
           limit 1), '')::text as reference
from samekey.outbox_queue q
left join lateral (
    select h.code, h.response_type, h.response
    from samekey.outbox_history h
    where h.intent_id = q.id and h.response is not null and h.at >= q.first_sent_at
      and (h.event = 'attempt' or h.event = 'late' and h.attempt = q.last_sent_attempt)
    order by h.id desc
    limit 1) l on true
where q.id = @id;

-- name: OutboxHistoryMade :one
-- How many attempts or lookups of an intent were made since it was written or redriven last. Claims that were given back,
-- and those that were left to a later release, made none.
select count(*)::int
from samekey.outbox_history h
where h.intent_id = @id and h.event = @event and coalesce(h.code, '') not in ('given_back', 'payload_version')
  and h.id > coalesce((select max(r.id) from samekey.outbox_history r where r.intent_id = @id and r.event = 'redriven'), 0);

-- name: OutboxHistoryWasCancelled :one
-- After a late answer that an intent was delivered, which a person has resolved as not sent and cancelled meanwhile: reports
-- whether that is so, and writes an attention event. Run it after OutboxQueueSettleLate, in the same transaction and in a
-- statement of its own, whose snapshot is younger: if the act commits first, it is seen; if the answer locks the row
-- first, the act finds an answered intent and refuses.
with cancelled as materialized (
    select o.id, o.action from samekey.outbox o
    where o.id = @id::uuid and exists (select from samekey.outbox_history h where h.intent_id = o.id and h.final_status = 'cancelled')
)
select (count(*) > 0)::boolean as cancelled,
       count(samekey.note_attention(c.id, c.action, 'cancelled', 'late', 'delivered_after_cancel'))::int as noted
from cancelled c;
