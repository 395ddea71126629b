-- Intents (samekey.outbox): one insert, and what people read.

-- name: OutboxEnqueue :one
-- All rules are in the SQL function, so psql, triggers and other languages get the same behavior.
select samekey.enqueue(@scope::text, @idem_key::text, @action::text, @payload::bytea, @part::text, @content_type::text,
                       (@headers::text)::jsonb, sqlc.narg('ordering_key')::text, sqlc.narg('due_at')::timestamptz,
                       sqlc.narg('deadline')::timestamptz, sqlc.narg('trace_context')::text, @id::uuid,
                       @must_be_new::boolean, sqlc.narg('requested_by')::text, sqlc.narg('subject')::text, payload_checked => true)::uuid;

-- name: OutboxEnqueueMany :one
-- Intents without an ordering key, in one statement. The result is the positions, from 1, of those that were not written.
-- Headers and ids are text and absent values are empty: see keyed.Intent.Params.
select samekey.enqueue_many(@scopes::text[], @idem_keys::text[], @actions::text[], @payloads::bytea[], @parts::text[], @content_types::text[],
                            @headers::text[], @due_ats::timestamptz[], @deadlines::timestamptz[], @trace_contexts::text[], (@ids::text[])::uuid[],
                            @must_be_new::boolean, @requested_bys::text[], @subjects::text[])::int[] as rest;

-- Lists. Each OutboxList query returns ids, newest first, from one index in that order, so a page costs its own rows
-- and those that its filters drop. OutboxEntries then reads the intents. The cursor is the last id of a page. The order
-- of ids is almost the order of time (version 7 UUIDs from writers with different clocks), and each intent keeps its
-- place. An absent filter is an empty text, or 0 for the age.
--
-- `offset 0` forces a lookup in outbox by primary key for each row from the index; a hash join would read both tables.
-- The limit is a parameter: the planner assumes a tenth of all rows for it, so a generic plan never looks cheaper than
-- a plan for the actual arguments. (A generic plan walks the queue's primary key, a million rows, for a state that no
-- intent is in.) With 1 million finished and 1 million queued intents, a page of awaiting_approval, parked or dead ones
-- or refused or cancelled ones, takes under 1 ms. A page of leased, unknown or answered intents scans the queue: 0.3 to
-- 0.5 s on a busy machine with two cores.

-- name: OutboxListAll :many
-- Intents in any state. It reads the primary key backwards.
select o.id
from samekey.outbox o
where o.id < @before
  and (cardinality(@actions::text[]) = 0 or o.action = any (@actions::text[]))
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by o.id desc
limit @max_count;

-- name: OutboxListByKey :many
-- Intents of one key. The unique index starts with the key.
select o.id
from samekey.outbox o
left join samekey.outbox_queue q on q.id = o.id
left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
where o.idem_key = @idem_key
  and o.id < @before
  and (@status::text = '' or coalesce(q.status, h.final_status) = @status)
  and (cardinality(@actions::text[]) = 0 or o.action = any (@actions::text[]))
  and (@scope::text = '' or o.scope = @scope)
  and (@subject::text = '' or o.subject = @subject)
  and (@part::text = '' or o.part = @part)
  and (@code::text = '' or coalesce(q.last_code, h.code) = @code)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by o.id desc
limit @max_count;

-- name: OutboxListBySubject :many
-- Intents of one subject. outbox_subject has them in the order of the page.
select o.id
from samekey.outbox o
left join lateral (select x.status, x.last_code from samekey.outbox_queue x where x.id = o.id offset 0) q on true
left join lateral (select x.final_status, x.code from samekey.outbox_history x
                   where x.intent_id = o.id and x.final_status is not null offset 0) h on true
where o.subject = @subject::text and o.subject is not null
  and o.id < @before
  and (@status::text = '' or coalesce(q.status, h.final_status) = @status)
  and (cardinality(@actions::text[]) = 0 or o.action = any (@actions::text[]))
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@code::text = '' or coalesce(q.last_code, h.code) = @code)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by o.id desc
limit @max_count;

-- name: OutboxListByReference :many
-- Intents that a vendor's answer named by this reference. Several events of one intent may have it. The array forces
-- lookups by primary key regardless of statistics.
select o.id
from samekey.outbox o
left join lateral (select x.status, x.last_code from samekey.outbox_queue x where x.id = o.id offset 0) q on true
left join lateral (select x.final_status, x.code from samekey.outbox_history x
                   where x.intent_id = o.id and x.final_status is not null offset 0) h on true
where o.id = any (array(select r.intent_id from samekey.outbox_history r
                        where r.reference = @reference::text and r.reference is not null and r.intent_id < @before))
  and (@status::text = '' or coalesce(q.status, h.final_status) = @status)
  and (@idem_key::text = '' or o.idem_key = @idem_key)
  and (@subject::text = '' or o.subject = @subject)
  and (cardinality(@actions::text[]) = 0 or o.action = any (@actions::text[]))
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@code::text = '' or coalesce(q.last_code, h.code) = @code)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by o.id desc
limit @max_count;

-- name: OutboxListAttention :many
-- Intents that wait for a person. The first condition repeats the predicate of outbox_queue_attention.
select q.id
from samekey.outbox_queue q
cross join lateral (select o.scope, o.part, o.created_at from samekey.outbox o where o.id = q.id offset 0) o
where q.status in ('awaiting_approval', 'parked', 'dead') and q.status = @status
  and q.id < @before
  and (cardinality(@actions::text[]) = 0 or q.action = any (@actions::text[]))
  and (@code::text = '' or q.last_code = @code)
  and (@cause::text = '' or q.cause = @cause)
  and (not @exact::boolean or coalesce(q.last_code, '') = @code and coalesce(q.cause, '') = @cause)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by q.id desc
limit @max_count;

-- name: OutboxListActive :many
-- Intents that a worker has yet to finish. It reads the queue's primary key backwards; the queue is short in normal
-- operation.
select q.id
from samekey.outbox_queue q
cross join lateral (select o.scope, o.part, o.created_at from samekey.outbox o where o.id = q.id offset 0) o
where q.status = @status
  and q.id < @before
  and (cardinality(@actions::text[]) = 0 or q.action = any (@actions::text[]))
  and (@code::text = '' or q.last_code = @code)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by q.id desc
limit @max_count;

-- name: OutboxListFinished :many
-- Finished intents. It reads outbox_history_finish backwards, or outbox_history_undelivered.
select h.intent_id
from samekey.outbox_history h
cross join lateral (select o.action, o.scope, o.part, o.created_at from samekey.outbox o where o.id = h.intent_id offset 0) o
where h.final_status is not null and h.final_status = @status
  and h.intent_id < @before
  and (cardinality(@actions::text[]) = 0 or o.action = any (@actions::text[]))
  and (@code::text = '' or h.code = @code)
  and (@scope::text = '' or o.scope = @scope)
  and (@part::text = '' or o.part = @part)
  and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
  and (sqlc.narg('written_from')::timestamptz is null or o.created_at >= sqlc.narg('written_from')::timestamptz)
  and (sqlc.narg('written_to')::timestamptz is null or o.created_at < sqlc.narg('written_to')::timestamptz)
order by h.intent_id desc
limit @max_count;

-- name: OutboxEntries :many
-- The intents with their current state. The payload is read on request only: a page of payloads can be 1 GB.
--
-- The ids are passed as text[]: pgx's exec mode and simple protocol cannot encode uuid[].
--
-- time.Time has no infinity. samekey.enqueue refuses infinite times, but the owner of the table can write one, and it
-- must not make a whole page unreadable.
select o.id, o.scope, o.idem_key, o.action, o.part, o.delivery_key,
       (case when @with_payload::boolean then o.payload end)::bytea as payload,
       o.content_type, o.headers, o.ordering_key,
       greatest('1970-01-01 00:00:00+00', least('9999-12-31 23:59:59+00', coalesce(q.due_at, o.due_at)))::timestamptz as due_at,
       coalesce(case when isfinite(o.deadline) then o.deadline end, '0001-01-01 00:00:00+00')::timestamptz as deadline, o.trace_context, o.requested_by, o.written_by, o.subject, o.created_at,
       q.status, q.attempt, q.attempts_used, q.first_sent_at, w.key_window_until, q.leased_by, q.lease_until,
       q.approved_at, q.safe_to_resend, q.last_code, q.cause,
       h.final_status, h.at as finished_at, h.code as finished_code,
       coalesce((select r.reference from samekey.outbox_history r
                 where r.intent_id = o.id and r.reference is not null order by r.id desc limit 1), '')::text as reference, o.replaces, o.revision,
       coalesce((select s.id from samekey.outbox s where s.replaces = o.id), '00000000-0000-0000-0000-000000000000')::uuid as replaced_by,
       o.erased_at
from samekey.outbox o
left join samekey.outbox_queue q on q.id = o.id
left join samekey.outbox_queue w on w.id = o.id and w.key_window_until < 'infinity'
left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
where o.id = any (cast(@ids::text[] as uuid[]))
order by o.id desc;

-- name: OutboxHistory :many
-- The events of an intent, in order.
select h.at, h.event, h.outcome, h.code, h.error, h.response_type, h.response, h.started_at, h.attempt, h.worker,
       h.final_status, h.actor, h.reason, h.db_user, h.reference
from samekey.outbox_history h
where h.intent_id = @id
order by h.id;

-- name: OutboxLoad :many
-- Reads the payloads that a claim did not return. It takes no locks, so a slow reader delays no other worker.
select o.id, o.scope, o.idem_key, o.part, o.subject, o.delivery_key, o.content_type, o.trace_context, o.created_at, o.deadline,
       o.payload, o.headers, coalesce(s.carried_key, '')::text as carried_key, s.request_type, s.request, s.message_id
from unnest(@ids::uuid[]) as i (id)
cross join lateral (select * from samekey.outbox x where x.id = i.id offset 0) o
left join lateral (select * from samekey.outbox_sends x where x.intent_id = i.id offset 0) s on true;

-- name: OutboxStates :many
-- The states of the intents that a process waits for. The ids are text, which every exec mode of pgx can encode.
select s.n::int as n, s.id::uuid as id, s.action::text as action, coalesce(s.status, '')::text as status, coalesce(s.code, '')::text as code
from samekey.intent_states(@scopes::text[], @idem_keys::text[], (@ids::text[])::uuid[]) as s;
