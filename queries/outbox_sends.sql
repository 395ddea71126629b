-- The rendered request of an intent, stored before its first attempt.

-- name: OutboxSendsStore :many
-- Stores what an attempt is about to send, if its claim is still valid, and returns what is stored: this request, or
-- the one that an earlier attempt stored. No row: another worker has taken the intent over, or is storing a request
-- right now.
with held as materialized (
    select q.id from samekey.outbox_queue q
    where q.id = @id and q.attempt = @attempt::int and coalesce(q.leased_by, 0) = @worker::int and q.status = 'leased'
), stored as (
    insert into samekey.outbox_sends (intent_id, carried_key, request_type, request, message_id)
    select h.id, @carried_key::text, sqlc.narg('request_type')::text, sqlc.narg('request')::bytea, sqlc.narg('message_id')::text
    from held h
    on conflict (intent_id) do nothing
    returning carried_key, request_type, request, message_id
)
select f.carried_key, f.request_type, f.request, f.message_id from stored f
union all
select s.carried_key, s.request_type, s.request, s.message_id
from samekey.outbox_sends s
where s.intent_id = (select h.id from held h) and (select count(*) from stored) = 0;

-- name: OutboxSendsGet :one
select s.carried_key, s.request_type, s.request, s.message_id, s.created_at
from samekey.outbox_sends s
where s.intent_id = @id;
