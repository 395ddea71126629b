-- What operators do to intents: approve, reject, cancel, redrive, resolve. Each is one transaction: lock the row, check
-- it, change it, record the person and the reason. How these interleave with workers (queries/outbox_queue.sql) and
-- each other:
--
--  * A claim skips rows that are locked here. If the claim came first, OutboxOperatorLock waits for its commit and sees
--    the result: leased, or still unknown or answered with a lease.
--  * A settle, a release or a late answer that waits for a row locked here checks the row again after the commit. Each
--    change here raises the attempt, so it matches no row, and its answer is kept as a late one. If the settle came
--    first, OutboxOperatorLock sees its outcome, or no row.
--  * The sweep skips locked rows and compares the lease, which each change here removes.
--  * A late answer to the attempt that was sent last still resolves a parked intent, even if a person said that it was
--    not sent (last_sent_attempt stays): the vendor knows better. Once the intent is pending again, the answer is only
--    recorded.
--  * Two people: the second waits for the commit of the first and sees the result.
--  * A transaction that finishes an ordered intent takes the lock of its ordering key before any row lock, as a settle
--    does; otherwise the two could deadlock. The ordering key is read from outbox, where it never changes. An intent
--    that left its order has none in the queue and promotes no other.
--  * Reconcile sees the queue row and the finishing event in one snapshot: one of them is always there.

-- name: OutboxOperatorLockOrder :exec
select pg_advisory_xact_lock(samekey.ordering_lock(o.ordering_key))
from samekey.outbox o
where o.id = @id and o.ordering_key is not null;

-- name: OutboxOperatorLock :one
select q.action, q.status, q.ordering_key, q.safe_to_resend, (q.first_sent_at is not null)::boolean as sent,
       (select o.requested_by from samekey.outbox o where o.id = q.id) as requested_by
from samekey.outbox_queue q
where q.id = @id
for update;

-- name: OutboxOperatorFinalStatus :one
-- Tells why there is no row to lock: the intent is finished, or does not exist.
select coalesce(h.final_status, '')::text as final_status
from samekey.outbox o
left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
where o.id = @id;

-- name: OutboxOperatorCancel :execrows
-- Cancels or rejects an intent that OutboxOperatorLock has locked.
with gone as (
    delete from samekey.outbox_queue q where q.id = @id
    returning q.id, q.key_window_until,
              samekey.note_attention(q.id, q.action, 'cancelled', @event::text, actor => @actor::text, reason => @reason::text) as noted
)
insert into samekey.outbox_history (intent_id, event, final_status, key_window_until, actor, reason)
select g.id, @event::text, 'cancelled', g.key_window_until, @actor::text, @reason::text from gone g;

-- name: OutboxOperatorApprove :execrows
with approved as (
    update samekey.outbox_queue q
    set status = 'pending', approved_at = clock_timestamp(), attempt = q.attempt + 1,
        due_at = greatest(q.due_at, clock_timestamp()) -- the vendor may have asked for a wait
    where q.id = @id and q.status = 'awaiting_approval'
    returning q.id
)
insert into samekey.outbox_history (intent_id, event, actor, reason)
select a.id, 'approved', @actor::text, @reason::text from approved a;

-- name: OutboxOperatorResolve :execrows
-- Delivered or refused: a worker reads the answer from the history, applies it and finishes the intent. Not sent: the
-- vendor never saw the key. The intent forgets that it was sent, and waits until a person redrives or cancels it.
with resolved as (
    update samekey.outbox_queue q
    set status           = case when u.sent then 'answered' when q.status = 'unknown' then 'parked' else q.status end,
        due_at           = clock_timestamp(),
        leased_by        = null,
        lease_until      = null,
        attempt          = q.attempt + 1,
        attempts_used    = case when u.sent then 0 else q.attempts_used end,
        no_resend        = u.sent and q.no_resend,
        sent_unrendered  = u.sent and q.sent_unrendered,
        first_sent_at    = case when u.sent then q.first_sent_at end,
        key_window_until = case when u.sent then q.key_window_until end,
        last_code        = coalesce(nullif(@code::text, ''), q.last_code)
    from (select @outcome::text <> 'not_sent' as sent) u
    where q.id = @id and q.status in ('unknown', 'parked', 'dead')
    returning q.id,
              case when @from_status::text = 'unknown' and q.status = 'parked' -- the others were at rest before
                   then samekey.note_attention(q.id, q.action, q.status, 'resolved', @code::text, null, @actor::text, @reason::text) end as noted
)
insert into samekey.outbox_history (intent_id, event, outcome, code, response_type, response, actor, reason)
select r.id, 'resolved', @outcome::text, nullif(@code::text, ''), nullif(@response_type::text, ''),
       nullif(@response::bytea, ''), @actor::text, @reason::text
from resolved r;

-- name: OutboxOperatorRedriveAll :many
-- Redrives dead and parked intents, the oldest first. It leaves out those that may have been sent and must not be sent
-- twice, and skips rows that another transaction has locked. attempts_used starts at 0 again, and an approval is needed
-- again. An intent that left its order stays out of it.
with picked as materialized (
    select array(
        select q.id
        from samekey.outbox_queue q
        cross join lateral (select o.scope, o.idem_key, o.part, o.created_at from samekey.outbox o where o.id = q.id offset 0) o
        where q.status in ('parked', 'dead') and q.status = any (@statuses::text[])
          and (q.safe_to_resend or q.first_sent_at is null)
          and (@action::text = '' or q.action = @action)
          and (@code::text = '' or q.last_code = @code)
          and (@scope::text = '' or o.scope = @scope)
          and (@part::text = '' or o.part = @part)
          and (@idem_key::text = '' or o.idem_key = @idem_key)
          and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
        order by q.id
        limit @max_count
        for update of q skip locked) as ids
), redriven as (
    update samekey.outbox_queue q
    set status = 'pending', due_at = clock_timestamp(), attempts_used = 0, approved_at = null, attempt = q.attempt + 1
    from picked p
    where q.id = any (p.ids)
    returning q.id, q.action
), logged as (
    insert into samekey.outbox_history (intent_id, event, actor, reason)
    select r.id, 'redriven', @actor::text, @reason::text from redriven r
)
select r.action from redriven r;

-- name: OutboxOperatorRedrive :execrows
with redriven as (
    update samekey.outbox_queue q
    set status = 'pending', due_at = clock_timestamp(), attempts_used = 0, approved_at = null, attempt = q.attempt + 1
    where q.id = @id and q.status in ('dead', 'parked')
    returning q.id
)
insert into samekey.outbox_history (intent_id, event, actor, reason)
select r.id, 'redriven', @actor::text, @reason::text from redriven r;
