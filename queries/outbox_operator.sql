-- What people do to intents. Each is one transaction of a few statements: lock the row, look at it, change it, record who
-- did it and why. Against the worker (queries/outbox_queue.sql) and against each other they stand like this:
--
--  * A claim takes no row that is locked here (skip locked). If the claim was first, OutboxOperatorLock waits for its commit
--    and sees what it made of the row: leased, or still unknown or answered with a lease.
--  * A settle, a release or a late answer that waits for a row locked here looks at it again after the commit. Every change
--    here gives the row another attempt, so its fence is closed: it matches nothing, and the answer is kept as a late one.
--    If the settle was first, OutboxOperatorLock sees its outcome, or no row.
--  * The sweep releases with skip locked, and compares the lease, which a change here takes away.
--  * A late answer from the attempt that was sent last still resolves what is parked, also where a person said that it was
--    not sent (last_sent_attempt stays): the vendor knows better. Once it is pending again, the answer is only kept.
--  * Two people: the second waits for the first one's commit and sees its result.
--  * Whoever finishes an ordered intent takes its ordering key's lock before any row lock, as a settle does, or the two
--    would wait for each other in a circle; the key is read from the outbox, where it never changes. An intent that left
--    its order has none in the queue, and promotes nobody.
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
-- Why there is no row to lock: the intent is finished, or is none.
select coalesce(h.final_status, '')::text as final_status
from samekey.outbox o
left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null
where o.id = @id;

-- name: OutboxOperatorCancel :execrows
-- Cancelled or rejected, under OutboxOperatorLock.
with gone as (
    delete from samekey.outbox_queue q where q.id = @id returning q.id, q.key_window_until
)
insert into samekey.outbox_history (intent_id, event, final_status, key_window_until, actor, reason)
select g.id, @event::text, 'cancelled', g.key_window_until, @actor::text, @reason::text from gone g;

-- name: OutboxOperatorApprove :execrows
with approved as (
    update samekey.outbox_queue q
    set status = 'pending', approved_at = clock_timestamp(), attempt = q.attempt + 1,
        due_at = greatest(q.due_at, clock_timestamp()) -- the vendor may have said when it wants to be asked again
    where q.id = @id and q.status = 'awaiting_approval'
    returning q.id
)
insert into samekey.outbox_history (intent_id, event, actor, reason)
select a.id, 'approved', @actor::text, @reason::text from approved a;

-- name: OutboxOperatorResolve :execrows
-- Delivered or refused: a worker applies the answer, which it reads from the history, and finishes the intent. Not sent:
-- the vendor never saw the key, so it may be redriven or cancelled; until then it rests.
with resolved as (
    update samekey.outbox_queue q
    set status        = case when @outcome::text <> 'not_sent' then 'answered' when q.status = 'unknown' then 'parked' else q.status end,
        due_at        = clock_timestamp(),
        attempts_used         = case when @outcome::text <> 'not_sent' then 0 else q.attempts_used end,
        first_sent_at = case when @outcome::text <> 'not_sent' then q.first_sent_at end,
        sent_unrendered         = @outcome::text <> 'not_sent' and q.sent_unrendered,
        no_resend        = @outcome::text <> 'not_sent' and q.no_resend,
        key_window_until   = case when @outcome::text <> 'not_sent' then q.key_window_until end,
        last_code     = coalesce(nullif(@code::text, ''), q.last_code),
        leased_by     = null,
        lease_until   = null,
        attempt       = q.attempt + 1
    where q.id = @id and q.status in ('unknown', 'parked', 'dead')
    returning q.id
)
insert into samekey.outbox_history (intent_id, event, outcome, code, response_type, response, actor, reason)
select r.id, 'resolved', @outcome::text, nullif(@code::text, ''), nullif(@response_type::text, ''),
       nullif(@response::bytea, ''), @actor::text, @reason::text
from resolved r;

-- name: OutboxOperatorRedriveAll :many
-- Dead and parked intents, the oldest first, except those that may have been sent and must not be sent
-- twice. What somebody else is changing right now is skipped. attempts_used begins anew; an approval is asked for again. One
-- that left its ordering key's order stays out of it.
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
