-- The work: what claims, settles and sweeps do to samekey.outbox_queue.

-- name: OutboxQueueClaim :many
-- Takes up to max_count due intents of one action: pending ones to be sent, unknown ones to be looked up.
-- (Answered ones are claimed by OutboxAnsweredClaim.) It takes none where this worker's own session lock is gone (somebody else may be about to release what
-- it holds; a shared try-lock tells, and the transaction's end gives it back) or where the destination or the action is
-- paused, here or in River. The mark is the low-water mark of due_at: index entries before it are dead, or are left to the
-- full scan.
--
-- It is bounded by bytes too: it takes the first by due_at whose payloads and rendered requests fit into max_bytes
-- together, and the first of all in any case. The size of a payload is known without reading it. The answer holds what is in
-- the outbox only where all of the claim fits into inline_bytes; else OutboxLoad reads it after the commit. Rows stream out
-- before the commit: an answer with large payloads makes the commit wait for a slow reader, with rows locked and not leased,
-- and a reader that gives up leaves leases that nobody knows of. Measured over a link of 10 MB/s: 400 payloads of 500 KB,
-- no call in 160 s, 250 intents unknown.
--
-- What is loaded later and may not be sent twice is leased as unsent: safe_to_resend, without first_sent_at. OutboxQueueMarkSending
-- marks it before it is sent. So a worker that dies or stops while it loads leaves nothing unknown.
--
-- Each subquery without a column of the queue is evaluated once. The arrays keep the plan a look-up by primary key,
-- whatever the statistics say, and `offset 0` does the same for the joins with the payloads.
with picked as materialized (
    select clock_timestamp() as now, array(
        select q.id
        from samekey.outbox_queue q
        where q.action = @action
          and q.leased_by is null
          and q.status in ('pending', 'unknown')
          and q.due_at >= @due_from
          and q.due_at <= (select clock_timestamp())
          and (select not pg_try_advisory_xact_lock_shared(samekey.worker_class(), @worker::int))
          and not exists (select from samekey.river_queue r where r.name = 'samekey_' || @destination::text and r.paused_at is not null)
          and not exists (select from samekey.pauses p
                          where p.ended_at is null and p.destination = @destination and p.action in ('', @action)
                            and (p.until is null or p.until > (select clock_timestamp())))
        order by q.due_at
        limit @max_count
        for update skip locked
    )::uuid[] as ids
), sized as materialized (
    select i.id, i.n, sum(o.bytes + coalesce(s.bytes, 0)) over (order by i.n rows unbounded preceding) as upto
    from picked p
    cross join unnest(p.ids) with ordinality as i (id, n)
    cross join lateral (select octet_length(x.payload) + pg_column_size(x.headers) as bytes from samekey.outbox x where x.id = i.id offset 0) o
    left join lateral (select octet_length(x.request) as bytes from samekey.outbox_sends x where x.intent_id = i.id offset 0) s on true
), fitting as materialized (
    select f.ids, f.bytes, f.bytes > @inline_bytes::bigint as payload_deferred
    from (select array_agg(z.id) as ids, coalesce(max(z.upto), 0)::bigint as bytes
          from sized z where z.n = 1 or z.upto <= @max_bytes::bigint) f
), claimed as (
    update samekey.outbox_queue q
    set status        = case q.status when 'pending' then 'leased' else q.status end,
        attempt       = q.attempt + 1,
        leased_by     = @worker::int,
        lease_until   = p.now + @lease::interval,
        -- Irreversible and not approved: this claim only sends it to wait for a person, so a crash loses nothing.
        safe_to_resend    = @safe_to_resend::boolean or f.payload_deferred or (@needs_approval::boolean and q.approved_at is null),
        first_sent_at = case when q.status = 'pending' and not (@needs_approval::boolean and q.approved_at is null)
                                  and (@safe_to_resend or not f.payload_deferred)
                        then coalesce(q.first_sent_at, p.now) else q.first_sent_at end,
        sent_to       = case when q.status = 'pending' and (q.first_sent_at is null or q.sent_to is null) then @sent_to::text else q.sent_to end,
        sent_unrendered         = q.sent_unrendered or q.status = 'pending' and not @renders::boolean and (@safe_to_resend or not f.payload_deferred),
        key_window_until   = case when q.status = 'pending' and (@safe_to_resend or not f.payload_deferred)
                        then coalesce(q.key_window_until, case when @key_window_forever::boolean then 'infinity' else coalesce(q.first_sent_at, p.now) + sqlc.narg('key_window')::interval end)
                        else q.key_window_until end
    from picked p, fitting f
    where q.id = any (f.ids)
    returning q.id, q.status, q.attempt, q.attempts_used, q.due_at, q.approved_at, q.last_code, q.ordering_key, q.key_window_until, q.no_resend, q.sent_unrendered, q.first_sent_at, q.sent_to, p.now,
              f.payload_deferred, f.bytes, cardinality(p.ids) > cardinality(f.ids) as has_more,
              -- Was the key unseen by any vendor before this claim? Then an attempt that is provably unsent leaves it so.
              coalesce(q.first_sent_at = p.now, true)::boolean as first_send
)
select c.id, c.status, c.attempt, c.attempts_used, c.due_at, c.approved_at, c.last_code, c.ordering_key, c.first_send, c.no_resend,
       c.sent_unrendered, c.first_sent_at, coalesce(c.sent_to, '')::text as sent_to,
       -- Too late to be sent: an attempt that takes its whole time would end past the vendor's memory of the key, as it was
       -- known at the first send or as it is known now, whichever is shorter.
       coalesce(not c.first_send and least(c.key_window_until, c.first_sent_at + sqlc.narg('key_window')::interval) < c.now + @min_window_left::interval, false)::boolean as past_window,
       coalesce(o.deadline <= c.now, false)::boolean as past_deadline,
       c.now::timestamptz as now, c.payload_deferred::boolean as payload_deferred, c.bytes::bigint as bytes, c.has_more::boolean as has_more,
       coalesce(o.scope, '')::text as scope, coalesce(o.idem_key, '')::text as idem_key, coalesce(o.part, '')::text as part,
       coalesce(o.delivery_key, c.id)::uuid as delivery_key, coalesce(o.content_type, '')::text as content_type, o.trace_context,
       coalesce(o.created_at, c.now)::timestamptz as created_at, o.payload, o.headers,
       coalesce(s.carried_key, '')::text as carried_key, s.request_type, s.request, s.message_id
from claimed c
left join lateral (select * from samekey.outbox x where x.id = c.id and not c.payload_deferred offset 0) o on true
left join lateral (select * from samekey.outbox_sends x where x.intent_id = c.id and not c.payload_deferred offset 0) s on true;

-- name: OutboxQueueMarkSending :many
-- Right before what OutboxQueueClaim leased as unsent is sent: from here on a vendor may have seen it. Returns those that
-- are still this claim's; the others are not sent. Fenced as OutboxQueueSettle is.
--
--   killed before this commits               it is pending again, and was never sent
--   killed after it                          it is unknown, as after any claim
--   stopped while loading, and taken over    the fence is closed: nothing is sent
--   the answer is lost                       it is given back: the settle takes first_sent_at back, since nothing was sent
update samekey.outbox_queue q
set safe_to_resend    = false,
    first_sent_at = coalesce(q.first_sent_at, c.now),
    sent_unrendered         = q.sent_unrendered or not @renders::boolean,
    key_window_until   = coalesce(q.key_window_until, case when @key_window_forever::boolean then 'infinity' else coalesce(q.first_sent_at, c.now) + sqlc.narg('key_window')::interval end)
from (select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt) u, (select clock_timestamp() as now) c
where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int and q.status = 'leased'
returning q.id;

-- name: OutboxQueueSettle :many
-- Writes outcomes back, fenced: a row is changed only while its attempt and its worker are still the claim's. Returns
-- the attempts that were settled; one that is missing was taken over, see OutboxQueueSettleLate. The batch may hold two
-- attempts of one intent, of which the fence lets one through: hence the attempt in each join.
--
-- The fence compares coalesce(leased_by, 0) with a parameter: statistics say that leased_by is all null, and a plain
-- equality tempts the planner away from the primary key (PITFALLS: 201 ms instead of 11 ms per 1,000).
with u as materialized (
    select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt, unnest(@statuses::text[]) as status,
           unnest(@delays::bigint[]) as delay_us, unnest(@attempts_used::int[]) as attempts_used, unnest(@clear_sent::boolean[]) as clear_sent,
           unnest(@keep_lease::boolean[]) as keep_lease, unnest(@leave_order::boolean[]) as leave_order, unnest(@was_sent::boolean[]) as was_sent,
           unnest(@forbid_resend::boolean[]) as forbid_resend,
           unnest(@events::text[]) as event, unnest(@outcomes::text[]) as outcome, unnest(@codes::text[]) as code,
           unnest(@errors::text[]) as error, unnest(@response_types::text[]) as response_type,
           unnest(@responses::bytea[]) as response, unnest(@took_us::bigint[]) as took_us
), finished as (
    delete from samekey.outbox_queue q
    using u
    where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int
      and u.status in ('delivered', 'refused')
    returning q.id, q.attempt, q.key_window_until
), kept as (
    update samekey.outbox_queue q
    set status        = u.status,
        due_at        = clock_timestamp() + u.delay_us * interval '1 microsecond',
        attempts_used         = u.attempts_used,
        last_sent_attempt  = case when u.was_sent then u.attempt else q.last_sent_attempt end,
        leased_by     = case when u.keep_lease then q.leased_by end,
        lease_until   = case when u.keep_lease then q.lease_until end,
        first_sent_at = case when u.clear_sent then null else q.first_sent_at end,
        key_window_until   = case when u.clear_sent then null else q.key_window_until end,
        approved_at   = case when u.status = 'awaiting_approval' then null else q.approved_at end,
        sent_unrendered         = q.sent_unrendered and not u.clear_sent,
        no_resend        = q.no_resend or coalesce(u.forbid_resend, false),
        ordering_key  = case when u.leave_order then null else q.ordering_key end,
        -- A look-up that found nothing out leaves what is known: that it was accepted, or absent once.
        last_code     = case when u.event = 'lookup' and u.outcome = 'retry' and u.code <> 'settling' then q.last_code else nullif(u.code, '') end
    from u
    where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int
      and u.status not in ('delivered', 'refused')
    returning q.id, q.attempt, null::timestamptz as key_window_until
), settled as (
    select id, attempt, key_window_until from finished
    union all
    select id, attempt, key_window_until from kept
)
insert into samekey.outbox_history (intent_id, event, outcome, code, error, response_type, response, attempt, worker,
                                    started_at, final_status, key_window_until)
select u.id, u.event, nullif(u.outcome, ''), nullif(u.code, ''), nullif(u.error, ''), nullif(u.response_type, ''),
       nullif(u.response, ''), u.attempt, @worker::int, clock_timestamp() - u.took_us * interval '1 microsecond',
       case when u.status in ('delivered', 'refused') then u.status end, s.key_window_until
from settled s
join u on u.id = s.id and u.attempt = s.attempt
returning intent_id as id, coalesce(attempt, 0)::int as attempt;

-- name: OutboxQueuePostpone :execrows
-- Undoes claims of which nothing was sent, since their endpoint is busy or fails, or nothing applied, since an Apply finds no
-- slot: each is due again after its delay, as if
-- it had not been claimed, but for the attempt, which never goes back. It leaves no line in the history. Fenced as
-- OutboxQueueSettle is.
update samekey.outbox_queue q
set status        = case q.status when 'leased' then 'pending' else q.status end,
    due_at        = clock_timestamp() + u.delay_us * interval '1 microsecond',
    leased_by     = null,
    lease_until   = null,
    first_sent_at = case when u.clear_sent then null else q.first_sent_at end,
    key_window_until   = case when u.clear_sent then null else q.key_window_until end,
    sent_unrendered         = q.sent_unrendered and not u.clear_sent
from (select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt, unnest(@delays::bigint[]) as delay_us,
             unnest(@clear_sent::boolean[]) as clear_sent) u
where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int;

-- name: OutboxQueueSettleLate :one
-- A zombie's answer: kept in the history once, and where it is definite (delivered or refused) it resolves an intent
-- that is unknown, parked or dead from that same attempt. Whoever is looking it up meanwhile finds the fence closed.
with resolved as (
    update samekey.outbox_queue q
    set status = 'answered', due_at = clock_timestamp(), leased_by = null, lease_until = null, attempts_used = 0,
        attempt = q.attempt + 1
    where q.id = @id::uuid and q.last_sent_attempt = @attempt::int and q.status in ('unknown', 'parked', 'dead')
      and @outcome::text in ('delivered', 'refused')
      and not exists (select from samekey.outbox_history h
                      where h.intent_id = @id::uuid and h.attempt = @attempt::int and h.worker = @worker::int
                        and h.event in ('attempt', 'lookup', 'apply', 'late'))
    returning q.id
), logged as (
    insert into samekey.outbox_history (intent_id, event, outcome, code, error, response_type, response, attempt, worker)
    select @id::uuid, 'late', nullif(@outcome::text, ''), nullif(@code::text, ''), nullif(@error::text, ''),
           nullif(@response_type::text, ''), nullif(@response::bytea, ''), @attempt::int, @worker::int
    where exists (select from samekey.outbox o where o.id = @id::uuid) -- else it was pruned meanwhile
      and not exists (select from samekey.outbox_history h
                      where h.intent_id = @id::uuid and h.attempt = @attempt::int and h.worker = @worker::int
                        and h.event in ('attempt', 'lookup', 'apply', 'late'))
    returning intent_id
)
select (select count(*) from resolved)::int as resolved, (select count(*) from logged)::int as logged;

-- name: OutboxQueueFinish :execrows
-- The last statement of the transaction in which Apply ran: the intent is finished, or, where the fence is closed or Apply
-- ended the transaction that it was given, nothing is and the transaction must roll back.
--
-- A transaction is told from any other by its id, which OutboxQueueCheckClaim has read: `rollback; begin` and `commit and chain`
-- leave another one behind, and after a mere `rollback` this statement would be one by itself.
with finished as (
    delete from samekey.outbox_queue q
    where q.id = @id and q.attempt = @attempt::int and coalesce(q.leased_by, 0) = @worker::int and q.status = 'answered'
      and pg_current_xact_id()::text = @began::text
    returning q.id, q.key_window_until
)
insert into samekey.outbox_history (intent_id, event, outcome, code, attempt, worker, final_status, key_window_until)
select id, 'apply', @outcome::text, nullif(@code::text, ''), @attempt::int, @worker::int, @outcome::text, key_window_until
from finished;

-- name: OutboxQueueCheckClaim :one
-- Is the fence still open? Without a row lock: an Apply locks rows of the application's, whose own transactions may lock
-- them before they come to the queue. OutboxQueueFinish decides. The id of the transaction costs nothing: the
-- transaction that finishes an intent writes, and so gets one in any case.
select pg_current_xact_id()::text as began
from samekey.outbox_queue q
where q.id = @id and q.attempt = @attempt and coalesce(q.leased_by, 0) = @worker::int and q.status = 'answered';

-- name: OutboxQueueApplyEnded :one
-- Whether Apply ended the transaction that it was given, and how. Asked only where nothing was finished.
select pg_current_xact_id()::text <> @began::text as ended,
       coalesce(pg_xact_status(cast(@began::text as xid8)), '') = 'committed' as committed;

-- name: OutboxQueueTryLockOrder :many
-- The ordering keys of these whose locks are free, and now held. A writer may hold one for as long as its transaction
-- lasts, and a settle must not wait for it. Nobody who gets a lock without waiting closes a circle.
select k.ordering_key::text
from (select distinct o.ordering_key from unnest(@ordering_keys::text[]) as o (ordering_key) order by 1) k
where pg_try_advisory_xact_lock(samekey.ordering_lock(k.ordering_key));

-- name: OutboxQueueLocked :many
-- Which of these rows somebody else holds locked at this moment.
with free as materialized (
    select q.id from samekey.outbox_queue q where q.id = any (@ids::uuid[]) for update skip locked
)
select q.id from samekey.outbox_queue q
where q.id = any (@ids::uuid[]) and not exists (select from free f where f.id = q.id);

-- name: OutboxQueueRenew :exec
-- Keeps the leases of attempts whose outcomes are known and wait to be written, so that nobody makes them again.
update samekey.outbox_queue q
set lease_until = greatest(q.lease_until, clock_timestamp() + @lease::interval)
from (select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt) u
where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int;

-- name: OutboxQueueLockOrder :exec
-- Whoever finishes or writes an ordered intent holds its ordering key's lock; several are taken in one order, so that
-- two such transactions never wait for each other in a circle.
select pg_advisory_xact_lock(k.lock)
from (select distinct samekey.ordering_lock(o.ordering_key) as lock
      from unnest(@ordering_keys::text[]) as o (ordering_key)
      order by 1) k;

-- name: OutboxQueuePromote :many
-- Makes the next of each ordering key its head, due now (or when it was meant to be, where that is later), if the key
-- has no head. Runs under OutboxQueueLockOrder, in a statement after it.
--
-- coalesce keeps the planner from the index of all that wait, as in OutboxQueueSettle. Heads are counted (there is one at
-- most) rather than asked for: for `exists` it may read the queue until one turns up.
update samekey.outbox_queue q
set status = 'pending', due_at = greatest(q.due_at, clock_timestamp())
where coalesce(q.status, '') = 'blocked' and q.id = any (array(
    select (select b.id from samekey.outbox_queue b
            where b.ordering_key = o.ordering_key and b.status = 'blocked' order by b.seq limit 1)
    from unnest(@ordering_keys::text[]) as o (ordering_key)
    where (select count(*) from samekey.outbox_queue h
           where h.ordering_key = o.ordering_key and h.ordering_key is not null and h.status <> 'blocked') = 0))
returning q.action;

-- name: OutboxQueueHeadless :many
-- Ordering keys that have somebody waiting and no head, a page of keys at a time: the safety net of OutboxQueuePromote.
with recursive waiting as (
    (select q.ordering_key as k, 1 as n from samekey.outbox_queue q
     where q.status = 'blocked' and q.ordering_key > @after::text order by q.ordering_key limit 1)
    union all
    select (select q.ordering_key from samekey.outbox_queue q
            where q.status = 'blocked' and q.ordering_key > w.k order by q.ordering_key limit 1), w.n + 1
    from waiting w
    where w.k is not null and w.n < @max_count::int
)
select w.k::text as ordering_key,
       ((select count(*) from samekey.outbox_queue h
         where h.ordering_key = w.k and h.ordering_key is not null and h.status <> 'blocked') = 0)::boolean as headless
from waiting w
where w.k is not null;

-- name: OutboxQueueSweep :many
-- One look of the sweep, in one statement: which actions have something due to be called or to be applied, which workers
-- hold leases without their session lock, whose leases ran out, what is paused (a destination and an action, or all of its
-- actions).
with recursive holders as (
    -- One step per worker, however many leases each holds. Statistics know of no lease, and put a third of the queue past an
    -- open bound: a cost so high that the server compiles the statement (JIT) for a second, each time. Hence the other one.
    (select q.leased_by as worker from samekey.outbox_queue q where q.leased_by is not null order by q.leased_by limit 1)
    union all
    select (select q.leased_by from samekey.outbox_queue q
            where q.leased_by > h.worker and q.leased_by <= 2147483647 order by q.leased_by limit 1)
    from holders h where h.worker is not null
)
select 'due' as kind, a.action::text as name, 0 as worker
from unnest(@actions::text[]) as a (action)
-- The first by due_at, not any: for any, statistics tempt the planner into reading the queue until one turns up.
where (select q.id from samekey.outbox_queue q
       where q.action = a.action and q.leased_by is null and q.status in ('pending', 'unknown')
         and q.due_at <= (select clock_timestamp())
       order by q.due_at limit 1) is not null
union all
select 'answered', a.action::text, 0
from unnest(@actions::text[]) as a (action)
where (select q.id from samekey.outbox_queue q
       where q.action = a.action and q.leased_by is null and q.status = 'answered'
         and q.due_at <= (select clock_timestamp())
       order by q.due_at limit 1) is not null
union all
select 'gone', '', h.worker
from holders h
where h.worker is not null and h.worker <> @worker::int
  and pg_try_advisory_xact_lock_shared(samekey.worker_class(), h.worker)
union all
select 'expired', '', h.worker
from holders h
where exists (select from samekey.outbox_queue q
              where q.leased_by = h.worker and q.lease_until < (select clock_timestamp()))
union all
select 'paused', p.destination || ' ' || p.action, 0 from samekey.pauses p
where p.ended_at is null and (p.until is null or p.until > (select clock_timestamp()))
union all
select 'paused', substr(r.name, 9) || ' ', 0 from samekey.river_queue r where r.paused_at is not null and starts_with(r.name, 'samekey_')
union all
select 'mirror', '', 0 -- River's pauses and their copies differ, or the time of a pause is over: see queries/pauses.sql
where exists (select from samekey.river_queue r
              left join samekey.pauses p on p.destination = substr(r.name, 9) and p.river_queue_created_at is not null and p.ended_at is null
              where starts_with(r.name, 'samekey_')
                and ((r.paused_at is not null) <> (p.id is not null) or p.river_queue_created_at <> r.created_at))
   or exists (select from samekey.pauses p where p.ended_at is null and p.until <= (select clock_timestamp()));

-- name: OutboxQueueRelease :many
-- Takes back what a worker held whose session lock is gone, or whose leases ran out. What may be repeated is due at
-- once (a look-up and an apply may always be), the rest only once its lease ran out, since a lost lock is not a dead
-- worker: then it is unknown, to be looked up after a settling delay.
with picked as materialized (
    select array(
        select q.id from samekey.outbox_queue q
        where q.leased_by = @holder::int
          and (q.lease_until < (select clock_timestamp())
               or (@holder_gone::boolean and (q.safe_to_resend or q.status <> 'leased')))
        order by q.lease_until
        limit @max_count
        for update skip locked) as ids
), released as (
    update samekey.outbox_queue q
    set status      = case when q.status <> 'leased' then q.status when q.safe_to_resend then 'pending' else 'unknown' end,
        due_at      = case when q.status <> 'leased' or q.safe_to_resend then clock_timestamp()
                           else clock_timestamp() + @settling_delay::interval end,
        attempts_used       = case when q.status = 'leased' and not q.safe_to_resend then 0 else q.attempts_used + 1 end,
        last_sent_attempt = case when q.status = 'leased' then q.attempt else q.last_sent_attempt end,
        leased_by   = null,
        lease_until = null,
        last_code   = case when q.status = 'leased' then 'orphaned' else q.last_code end
    from picked p
    where q.id = any (p.ids)
    returning q.id, q.action, q.attempt, q.status
), logged as (
    insert into samekey.outbox_history (intent_id, event, outcome, code, attempt, worker)
    select r.id, 'orphaned', 'unknown', 'orphaned', r.attempt, @holder::int from released r
)
select r.id, r.action, r.status from released r;

-- name: OutboxQueueRestore :many
-- Reconcile: gives an intent back its queue row where it has neither one nor an event that finished it. Works through
-- the outbox a page at a time, in the order of ids; young intents are left alone, since their rows may be in flight.
with page as materialized (
    select o.id, o.action, o.due_at, o.created_at
    from samekey.outbox o
    where o.id > @after and o.created_at < clock_timestamp() - interval '1 minute'
    order by o.id
    limit @max_count
), lost as (
    select p.* from page p
    -- `offset 0` keeps each a look-up by index: as a join, it would read the whole history for each page.
    where not exists (select from samekey.outbox_queue q where q.id = p.id offset 0)
      and not exists (select from samekey.outbox_history h where h.intent_id = p.id and h.final_status is not null offset 0)
), restored as (
    -- As one that may have been sent when it was written: its claim counts the key window from then, and an intent that
    -- may not be repeated is looked up or parked, never sent.
    insert into samekey.outbox_queue (id, action, status, due_at, first_sent_at, last_code, attempt)
    select l.id, l.action, 'pending', greatest(l.due_at, clock_timestamp()), l.created_at, 'restored',
           coalesce((select max(h.attempt) from (select y.attempt from samekey.outbox_history y
                                                  where y.intent_id = l.id order by y.id desc limit 10) h), 0) from lost l
    on conflict do nothing
    returning id
), logged as (
    insert into samekey.outbox_history (intent_id, event) select r.id, 'restored' from restored r
)
select p.id, (r.id is not null)::boolean as restored from page p left join restored r on r.id = p.id order by p.id;
