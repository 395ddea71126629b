-- The intent: written once, never changed.

-- name: OutboxEnqueue :one
-- Every semantic is in the SQL function, so that psql, triggers and other languages have the same.
select samekey.enqueue(@scope::text, @idem_key::text, @action::text, @payload::bytea, @part::text, @content_type::text,
                       (@headers::text)::jsonb, sqlc.narg('ordering_key')::text, sqlc.narg('due_at')::timestamptz,
                       sqlc.narg('deadline')::timestamptz, sqlc.narg('trace_context')::text, @id::uuid,
                       @must_be_new::boolean, sqlc.narg('requested_by')::text)::uuid;

-- What people read. Each list finds ids, newest first, from one index that is already in that order, so that a page
-- costs its own rows and those that its filters drop; OutboxEntries then looks the ids up. A cursor is the last id of a
-- page: ids are no strict order of time (UUIDs of version 7, made by writers whose clocks differ), but each intent keeps
-- its place. Absent filters are empty, or 0 for the age.
--
-- `offset 0` keeps the plan a look-up of the outbox by primary key for each row that the index gives; a hash join would
-- read all of both tables. The limit stays a parameter: a generic plan has to assume a tenth of all rows for it, and so
-- never looks cheaper than one for the arguments (a generic one walks the queue's primary key for a state that nothing is
-- in: a million rows). Over 1 million finished and 1 million in the queue, a page of each resting state takes under 1 ms.
-- States without an index in their order (leased, unknown, answered; refused and cancelled where nearly all are
-- delivered) cost one scan of the narrow queue, or of the history: 0.3 to 0.5 s on a busy machine of two cores.

-- name: OutboxListAll :many
-- Intents of any state: the primary key, backwards.
select o.id
from samekey.outbox o
where o.id < @before
  and (@action::text = '' or o.action = @action)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
order by o.id desc
limit @max_count;

-- name: OutboxListByKey :many
-- Intents of one key: the unique index starts with it.
select o.id
from samekey.outbox o
left join samekey.outbox_queue q on q.id = o.id
left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
where o.idem_key = @idem_key
  and o.id < @before
  and (@status::text = '' or coalesce(q.status, h.final_status) = @status)
  and (@action::text = '' or o.action = @action)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@code::text = '' or coalesce(q.last_code, h.code) = @code)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
order by o.id desc
limit @max_count;

-- name: OutboxListAttention :many
-- What waits for a person, by outbox_queue_attention, whose predicate is repeated here.
select q.id
from samekey.outbox_queue q
cross join lateral (select o.scope, o.part, o.created_at from samekey.outbox o where o.id = q.id offset 0) o
where q.status in ('awaiting_approval', 'parked', 'dead') and q.status = @status
  and q.id < @before
  and (@action::text = '' or q.action = @action)
  and (@code::text = '' or q.last_code = @code)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
order by q.id desc
limit @max_count;

-- name: OutboxListActive :many
-- What the worker has before it or in hands: the queue's primary key, backwards. It is short in a healthy system.
select q.id
from samekey.outbox_queue q
cross join lateral (select o.scope, o.part, o.created_at from samekey.outbox o where o.id = q.id offset 0) o
where q.status = @status
  and q.id < @before
  and (@action::text = '' or q.action = @action)
  and (@code::text = '' or q.last_code = @code)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
order by q.id desc
limit @max_count;

-- name: OutboxListFinished :many
-- What is finished: outbox_history_finish, backwards.
select h.intent_id
from samekey.outbox_history h
cross join lateral (select o.action, o.scope, o.part, o.created_at from samekey.outbox o where o.id = h.intent_id offset 0) o
where h.final_status is not null and h.final_status = @status
  and h.intent_id < @before
  and (@action::text = '' or o.action = @action)
  and (@code::text = '' or h.code = @code)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
order by h.intent_id desc
limit @max_count;

-- name: OutboxEntries :many
-- The intents and where they stand. The payload is left out unless asked for: a page of them could be 1 GB.
--
-- The ids come as text: an application may use pgx's exec mode or the simple protocol, which cannot encode arrays of uuid.
--
-- Go's time has no
-- infinity: one such value, which samekey.enqueue refuses and an owner may have written, must not hide the page that it is on.
select o.id, o.scope, o.idem_key, o.action, o.part, o.delivery_key,
       (case when @with_payload::boolean then o.payload end)::bytea as payload,
       o.content_type, o.headers, o.ordering_key,
       greatest('1970-01-01 00:00:00+00', least('9999-12-31 23:59:59+00', coalesce(q.due_at, o.due_at)))::timestamptz as due_at,
       coalesce(case when isfinite(o.deadline) then o.deadline end, '0001-01-01 00:00:00+00')::timestamptz as deadline, o.trace_context, o.requested_by, o.created_at,
       q.status, q.attempt, q.attempts_used, q.first_sent_at, w.key_window_until, q.leased_by, q.lease_until,
       q.approved_at, q.safe_to_resend, q.last_code,
       h.final_status, h.at as finished_at, h.code as finished_code
from samekey.outbox o
left join samekey.outbox_queue q on q.id = o.id
left join samekey.outbox_queue w on w.id = o.id and w.key_window_until < 'infinity' -- Go's time has no infinity
left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
where o.id = any (cast(@ids::text[] as uuid[]))
order by o.id desc;

-- name: OutboxHistory :many
-- What happened to an intent, in order.
select h.at, h.event, h.outcome, h.code, h.error, h.response_type, h.response, h.started_at, h.attempt, h.worker,
       h.final_status, h.actor, h.reason
from samekey.outbox_history h
where h.intent_id = @id
order by h.id;

-- name: OutboxLoad :many
-- What a claim's answer was too small for. It locks nothing and waits for nobody: a slow reader holds up itself alone.
select o.id, o.scope, o.idem_key, o.part, o.delivery_key, o.content_type, o.trace_context, o.created_at, o.deadline,
       o.payload, o.headers, coalesce(s.carried_key, '')::text as carried_key, s.request_type, s.request, s.message_id
from unnest(@ids::uuid[]) as i (id)
cross join lateral (select * from samekey.outbox x where x.id = i.id offset 0) o
left join lateral (select * from samekey.outbox_sends x where x.intent_id = i.id offset 0) s on true;
