-- The work queue (samekey.outbox_queue): claims, settles and sweeps.

-- name: OutboxQueueClaim :many
-- Claims up to max_count due intents of one action: pending ones to be sent, unknown ones to be looked up.
-- (OutboxAnsweredClaim claims the answered ones.) It claims none if the destination or the action is paused, here or in
-- River, or if the worker's session lock is lost: then other workers may be about to release its leases. (A shared
-- try-lock tells; it ends with the transaction.) Nor does it claim in a database that belongs to another deployment, or
-- to several (queries/deployment.sql). due_from is the low-water mark of due_at: index entries before it are
-- dead, or are left to the full scan.
--
-- max_bytes bounds a claim too. It takes the first intents by due_at whose payloads and rendered requests fit together,
-- and at least one. The size of a payload is known without reading it. The result contains what is in outbox only if
-- the whole claim fits into inline_bytes; otherwise payload_deferred is set and OutboxLoad reads it after the commit.
-- Rows reach the client before the commit. So with large payloads, the commit would wait for a slow reader, with rows
-- locked and not leased, and a reader that gives up would leave leases that no worker knows of. Measured over a link of
-- 10 MB/s with 400 payloads of 500 KB: no call in 160 s, 250 intents unknown.
--
-- If the payload is deferred, an intent that must not be sent twice is leased as unsent: safe_to_resend, without
-- first_sent_at. OutboxQueueMarkSending marks it right before it is sent. So a worker that dies or stops while it loads
-- leaves no intent unknown.
--
-- A claim of a fair action (see OutboxQueueShares) names the shares to claim from, in the order of their turns, and how
-- many intents of each. Without shares, it takes the first intents by due_at, whatever their share.
--
-- Each subquery without a column of the queue runs once. The arrays force lookups by primary key regardless of
-- statistics, and `offset 0` does the same for the joins with the payloads.
with allowed as materialized (
    select not pg_try_advisory_xact_lock_shared(samekey.worker_class(), @worker::int)
           and (select array_agg(d.id) from samekey.deployment d) = array[@deployment::uuid]
           and not exists (select from samekey.river_queue r where r.name = 'samekey_' || @destination::text and r.paused_at is not null)
           and not exists (select from samekey.pauses p
                           where p.ended_at is null and p.destination = @destination and p.action in ('', @action)
                             and (p.until is null or p.until > (select clock_timestamp()))) as yes
), picked as materialized (
    select clock_timestamp() as now, case when cardinality(@shares::text[]) > 0 then
        (select samekey.fair_pick(@action, @shares::text[], @quotas::int[], @due_from) from allowed a where a.yes)
    else array(
        select q.id
        from samekey.outbox_queue q
        where q.action = @action
          and q.leased_by is null
          and q.status in ('pending', 'unknown')
          and q.due_at >= @due_from
          and q.due_at <= (select clock_timestamp())
          and (select a.yes from allowed a)
        order by q.due_at
        limit @max_count
        for update skip locked
    )::uuid[] end as ids
), sized as materialized (
    select i.id, i.n, sum(o.bytes + coalesce(s.bytes, 0)) over (order by i.n rows unbounded preceding) as upto
    from picked p
    cross join unnest(p.ids) with ordinality as i (id, n)
    cross join lateral (select octet_length(x.payload) + pg_column_size(x.headers) as bytes from samekey.outbox x where x.id = i.id offset 0) o
    left join lateral (select octet_length(x.request) as bytes from samekey.outbox_sends x where x.intent_id = i.id offset 0) s on true
), fitting as materialized (
    select f.ids, f.bytes, f.bytes > @inline_bytes::bigint as payload_deferred,
           @safe_to_resend::boolean or f.bytes <= @inline_bytes::bigint as mark_sent
    from (select array_agg(z.id) as ids, coalesce(max(z.upto), 0)::bigint as bytes
          from sized z where z.n = 1 or z.upto <= @max_bytes::bigint) f
), claimed as (
    update samekey.outbox_queue q
    set status           = case q.status when 'pending' then 'leased' else q.status end,
        attempt          = q.attempt + 1,
        leased_by        = @worker::int,
        lease_until      = p.now + @lease::interval,
        -- An irreversible intent without approval only moves to awaiting_approval in this claim: a crash loses nothing.
        safe_to_resend   = @safe_to_resend::boolean or f.payload_deferred or (@needs_approval::boolean and q.approved_at is null),
        first_sent_at    = case when q.status = 'pending' and f.mark_sent and not (@needs_approval::boolean and q.approved_at is null)
                        then coalesce(q.first_sent_at, p.now) else q.first_sent_at end,
        sent_to          = case when q.status = 'pending' and (q.first_sent_at is null or q.sent_to is null) then @sent_to::text else q.sent_to end,
        sent_unrendered  = q.sent_unrendered or q.status = 'pending' and f.mark_sent and not @renders::boolean,
        key_window_until = case when q.status = 'pending' and f.mark_sent
                        then coalesce(q.key_window_until, case when @key_window_forever::boolean then 'infinity' else coalesce(q.first_sent_at, p.now) + sqlc.narg('key_window')::interval end)
                        else q.key_window_until end
    from picked p, fitting f
    where q.id = any (f.ids)
    returning q.id, q.status, q.attempt, q.attempts_used, q.due_at, q.approved_at, q.last_code, q.ordering_key, q.key_window_until, q.no_resend, q.sent_unrendered, q.first_sent_at, q.sent_to, q.share, p.now,
              f.payload_deferred, f.bytes, cardinality(p.ids) > cardinality(f.ids) as has_more,
              -- first_send: no vendor saw the key before this claim. If the attempt is provably unsent, that stays so.
              coalesce(q.first_sent_at = p.now, true)::boolean as first_send
)
select c.id, c.status, c.attempt, c.attempts_used, c.due_at, c.approved_at, c.last_code, c.ordering_key, c.first_send, c.no_resend,
       c.sent_unrendered, c.first_sent_at, coalesce(c.sent_to, '')::text as sent_to, coalesce(c.share, '')::text as share,
       -- past_window: too late to send. An attempt that takes its whole timeout would end after the vendor forgets the
       -- key. The window is the one at the first send or the current one, whichever is shorter.
       coalesce(not c.first_send and least(c.key_window_until, c.first_sent_at + sqlc.narg('key_window')::interval) < c.now + @min_window_left::interval, false)::boolean as past_window,
       coalesce(o.deadline <= c.now, false)::boolean as past_deadline,
       c.now::timestamptz as now, c.payload_deferred::boolean as payload_deferred, c.bytes::bigint as bytes, c.has_more::boolean as has_more,
       coalesce(o.scope, '')::text as scope, coalesce(o.idem_key, '')::text as idem_key, coalesce(o.part, '')::text as part,
       o.subject,
       coalesce(o.delivery_key, c.id)::uuid as delivery_key, coalesce(o.content_type, '')::text as content_type, o.trace_context,
       coalesce(o.created_at, c.now)::timestamptz as created_at, o.payload, o.headers,
       coalesce(s.carried_key, '')::text as carried_key, s.request_type, s.request, s.message_id
from claimed c
left join lateral (select * from samekey.outbox x where x.id = c.id and not c.payload_deferred offset 0) o on true
left join lateral (select * from samekey.outbox_sends x where x.intent_id = c.id and not c.payload_deferred offset 0) s on true;

-- name: OutboxQueueShares :one
-- Walks the shares of a fair action that have intents, from a share on, and tells which have one that is due. It stops
-- after max_steps shares. If it returns fewer, no share comes after the last one.
--
-- A loose index scan: each step reads the first intent of the next share, however many each has. Of 1,000,000 intents
-- in 100,000 shares, a walk of 1,000 shares reads 1,000. Before, it reads the first page_size intents in one scan: with
-- one intent in each share, a walk takes an eighth.
--
-- The walk takes no lock, and is older than the claim that follows:
--
--   another worker claims the share's intents        the claim finds fewer, or those behind them
--   an intent is committed behind the walk           a later walk finds it
--   an intent has no share                           OutboxQueueShareFill gives it one; a claim without shares takes it
--   the action is paused, or the lock is lost        the claim takes none
select w.shares::text[] as shares, w.due::boolean[] as due, w.first_due::timestamptz as first_due
from samekey.fair_walk(@action::text, @from_share::text, @due_from::timestamptz, @max_steps::int, @page_size::int) w;

-- name: OutboxQueueShareFill :one
-- Gives a share to those of the next due intents that have none, as if it had been written with them. They are from
-- before the setting, or written while a worker without it was the last to start. Returns where to go on (the epoch: at the
-- beginning), and the due_at of the first due intent of all, which is the low-water mark of a fair action: its claims do
-- not go by due_at, so none of them tells. A fair worker calls it about once a second.
with page as materialized (
    select q.id, q.due_at, q.share
    from samekey.outbox_queue q
    where q.action = @action and q.leased_by is null and q.status in ('pending', 'unknown')
      and q.due_at >= @after and q.due_at <= (select clock_timestamp())
    order by q.due_at
    limit @max_count::int
), filled as (
    update samekey.outbox_queue q
    set share = case when @by_part::boolean then o.part else o.scope end
    from samekey.outbox o
    where q.id = any (array(select p.id from page p where p.share is null)) and o.id = q.id
      and q.share is null and q.leased_by is null
    returning q.id
)
select coalesce((select case when count(*) = @max_count::int then max(p.due_at) end from page p), 'epoch')::timestamptz as after,
       coalesce((select q.due_at from samekey.outbox_queue q
        where q.action = @action and q.leased_by is null and q.status in ('pending', 'unknown') and q.due_at <= (select clock_timestamp())
        order by q.due_at limit 1), 'epoch')::timestamptz as first_due,
       (select count(*) from filled)::int as filled;

-- name: OutboxQueueMarkSending :many
-- Marks intents as sent, right before a worker sends what OutboxQueueClaim leased as unsent. Returns the ids that still
-- belong to the claim; the others must not be sent. Fenced like OutboxQueueSettle.
--
--   killed before the commit                  the intent is pending again, and was never sent
--   killed after the commit                   the intent is unknown, as after any claim
--   stopped while loading, then taken over    the fence does not match: nothing is sent
--   the result is lost                        the worker gives the claim back: the settle resets first_sent_at, since
--                                             nothing was sent
update samekey.outbox_queue q
set safe_to_resend   = false,
    first_sent_at    = coalesce(q.first_sent_at, c.now),
    sent_unrendered  = q.sent_unrendered or not @renders::boolean,
    key_window_until = coalesce(q.key_window_until, case when @key_window_forever::boolean then 'infinity' else coalesce(q.first_sent_at, c.now) + sqlc.narg('key_window')::interval end)
from (select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt) u, (select clock_timestamp() as now) c
where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int and q.status = 'leased'
returning q.id;

-- name: OutboxQueueSettle :many
-- Settles: writes the outcomes of attempts, lookups and Applies. Fenced: a row changes only while its attempt and its
-- worker are those of the claim. Returns the attempts that it settled. A missing one was taken over: see
-- OutboxQueueSettleLate. A batch may contain two attempts of one intent, and the fence matches at most one of them, so
-- each join compares the attempt.
--
-- The fence compares coalesce(leased_by, 0). Statistics say that leased_by is always null, so with a plain comparison
-- the planner leaves the primary key: 201 ms instead of 11 ms per 1,000 rows.
--
-- clear_sent    no vendor saw the key: reset first_sent_at and what goes with it
-- keep_lease    the same worker goes on with the intent
-- leave_order   the intent leaves its ordering key
-- was_sent      the request may have left the worker
-- forbid_resend after this, an absent lookup must not lead to another send
-- cause         of an intent that comes to rest as dead or parked, or empty
-- endpoint      the stored endpoint that was called, or empty; null for all if no call of the batch had one
--
-- An intent that comes to rest gets its attention event in the same statement. The function is called in RETURNING, for
-- those rows only: a second INSERT in this statement would be set up for each batch, see docs/decisions.md.
with u as materialized (
    select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt, unnest(@statuses::text[]) as status,
           unnest(@delays::bigint[]) as delay_us, unnest(@attempts_used::int[]) as attempts_used, unnest(@clear_sent::boolean[]) as clear_sent,
           unnest(@keep_lease::boolean[]) as keep_lease, unnest(@leave_order::boolean[]) as leave_order, unnest(@was_sent::boolean[]) as was_sent,
           unnest(@forbid_resend::boolean[]) as forbid_resend, unnest(@causes::text[]) as cause,
           unnest(@events::text[]) as event, unnest(@outcomes::text[]) as outcome, unnest(@codes::text[]) as code,
           unnest(@errors::text[]) as error, unnest(@response_types::text[]) as response_type,
           unnest(@responses::bytea[]) as response, unnest(@vendor_references::text[]) as reference,
           unnest(@took_us::bigint[]) as took_us, unnest(@endpoints::text[]) as endpoint
), finished as (
    delete from samekey.outbox_queue q
    using u
    where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int
      and u.status in ('delivered', 'refused')
    returning q.id, q.attempt, q.key_window_until
), kept as (
    update samekey.outbox_queue q
    set status            = u.status,
        due_at            = clock_timestamp() + u.delay_us * interval '1 microsecond',
        attempts_used     = u.attempts_used,
        last_sent_attempt = case when u.was_sent then u.attempt else q.last_sent_attempt end,
        leased_by         = case when u.keep_lease then q.leased_by end,
        lease_until       = case when u.keep_lease then q.lease_until end,
        first_sent_at     = case when u.clear_sent then null else q.first_sent_at end,
        key_window_until  = case when u.clear_sent then null else q.key_window_until end,
        approved_at       = case when u.status = 'awaiting_approval' then null else q.approved_at end,
        sent_unrendered   = q.sent_unrendered and not u.clear_sent,
        no_resend         = q.no_resend or coalesce(u.forbid_resend, false),
        ordering_key      = case when u.leave_order then null else q.ordering_key end,
        -- A lookup without a result keeps the code: it tells that the request was accepted, or absent once.
        last_code         = case when u.event = 'lookup' and u.outcome = 'retry' and u.code <> 'settling' then q.last_code else nullif(u.code, '') end,
        cause             = nullif(u.cause, '')
    from u
    where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int
      and u.status not in ('delivered', 'refused')
    returning q.id, q.attempt, null::timestamptz as key_window_until,
              case when u.status in ('dead', 'parked', 'awaiting_approval')
                   then samekey.note_attention(q.id, q.action, u.status, u.event, u.code, u.error) end as noted
), settled as (
    select id, attempt, key_window_until from finished
    union all
    select id, attempt, key_window_until from kept
)
insert into samekey.outbox_history (intent_id, event, outcome, code, error, response_type, response, reference, endpoint, attempt,
                                    worker, started_at, final_status, key_window_until)
select u.id, u.event, nullif(u.outcome, ''), nullif(u.code, ''), nullif(u.error, ''), nullif(u.response_type, ''),
       nullif(u.response, ''), nullif(u.reference, ''), nullif(u.endpoint, ''), u.attempt, @worker::int, clock_timestamp() - u.took_us * interval '1 microsecond',
       case when u.status in ('delivered', 'refused') then u.status end, s.key_window_until
from settled s
join u on u.id = s.id and u.attempt = s.attempt
returning intent_id as id, coalesce(attempt, 0)::int as attempt;

-- name: OutboxQueuePostpone :execrows
-- Gives claims back with nothing sent (the endpoint is busy or fails) or nothing applied (no Apply slot is free). The
-- intent is due again after the delay, as if it had not been claimed, except that attempt never goes back. The history
-- gets no event. Fenced like OutboxQueueSettle.
update samekey.outbox_queue q
set status           = case q.status when 'leased' then 'pending' else q.status end,
    due_at           = clock_timestamp() + u.delay_us * interval '1 microsecond',
    leased_by        = null,
    lease_until      = null,
    first_sent_at    = case when u.clear_sent then null else q.first_sent_at end,
    key_window_until = case when u.clear_sent then null else q.key_window_until end,
    sent_unrendered  = q.sent_unrendered and not u.clear_sent
from (select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt, unnest(@delays::bigint[]) as delay_us,
             unnest(@clear_sent::boolean[]) as clear_sent) u
where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int;

-- name: OutboxQueueSettleLate :one
-- Records the answer of an attempt or a lookup that was taken over, once. A definite answer (delivered or refused)
-- resolves an intent that is unknown, parked or dead, if it is about the attempt that was sent last: it is that
-- attempt's own answer, or that of a lookup after it, which has a higher number. A person who resolved the intent as not
-- sent while it was looked up is corrected so before a redrive sends it again. A worker that is looking the intent up
-- finds that its fence does not match. If the intent was erased meanwhile, only outcome and code are kept: see the
-- interleavings of samekey.erase_subject.
with recorded as materialized (
    select exists (select from samekey.outbox_history h
                   where h.intent_id = @id::uuid and h.attempt = @attempt::int and h.worker = @worker::int
                     and h.event in ('attempt', 'lookup', 'apply', 'late')) as already
), resolved as (
    update samekey.outbox_queue q
    set status = 'answered', due_at = clock_timestamp(), leased_by = null, lease_until = null, attempts_used = 0,
        attempt = q.attempt + 1, cause = null
    where q.id = @id::uuid and q.last_sent_attempt <= @attempt::int and q.status in ('unknown', 'parked', 'dead')
      and @outcome::text in ('delivered', 'refused')
      and not (select r.already from recorded r)
    returning q.id
), logged as (
    insert into samekey.outbox_history (intent_id, event, outcome, code, error, response_type, response, reference, endpoint, attempt, worker)
    select @id::uuid, 'late', nullif(@outcome::text, ''), nullif(@code::text, ''), case when k.kept then nullif(@error::text, '') end,
           case when k.kept then nullif(@response_type::text, '') end, case when k.kept then nullif(@response::bytea, '') end,
           case when k.kept then nullif(@reference::text, '') end, nullif(@endpoint::text, ''), @attempt::int, @worker::int
    from samekey.keeps_content(@id::uuid) k (kept)
    where k.kept is not null -- otherwise it was pruned
      and not (select r.already from recorded r)
    returning intent_id
)
select (select count(*) from resolved)::int as resolved, (select count(*) from logged)::int as logged;

-- name: OutboxQueueHoldSuccessor :one
-- After a late answer that an intent was delivered, which another intent has replaced meanwhile: holds the successor.
-- Run it after OutboxQueueSettleLate, in the same transaction and in a statement of its own. The interleavings of a late
-- answer L and a replacement R of the same intent:
--
--   L changes the row, R waits for the row      R sees an answered intent and refuses
--   R locks the row, L waits for the row        L finds no row. This statement has a new snapshot and sees the successor
--   R replaces the successor, L waits for its   L looks again and holds the successor's own successor
--   row
--   L holds the successor, R waits for its row  R refuses: the successor is held
--   R and a claim of the successor commit       the successor is leased: it is not held, and the log warns that both may
--   before L                                    have acted
--   the worker dies between the two             nothing is committed: the late answer is lost, as any answer of a process
--                                               that dies
select h.successor::uuid as successor, coalesce(h.status, '')::text as status, coalesce(h.held, false)::boolean as held,
       coalesce(h.sent, true)::boolean as sent
from (select) one left join lateral samekey.hold_successor(@id::uuid) h on true
where h.successor is not null;

-- name: OutboxQueueFinish :execrows
-- Finishes an intent, as the last statement of the transaction in which Apply ran. If it changes no row, the fence does
-- not match or Apply ended the transaction that it was given, and the transaction must roll back.
--
-- began is the transaction's id from OutboxQueueCheckClaim. `rollback; begin` and `commit and chain` start another
-- transaction, and after a `rollback` alone this statement would be a transaction of its own.
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
-- Checks that the claim is still valid, and returns the transaction's id. It takes no row lock: an Apply locks rows of
-- the application, whose own transactions may lock those rows before they write to the queue. OutboxQueueFinish
-- decides. The id costs nothing extra: a transaction that finishes an intent gets one in any case.
--
-- attention_in_us is not -1 if Apply must wait: the intent, or one that it replaces, has attention events that some
-- worker handles. They happened before the answer, and the first one is due in that many microseconds.
select pg_current_xact_id()::text as began,
       coalesce((select greatest(extract(epoch from n.due_at - clock_timestamp()) * 1000000, 0)
                 from samekey.outbox_attention n
                 where n.first_id = coalesce((select f.id
                                              from (select x.idem_key, x.scope, x.action, x.part, x.revision from samekey.outbox x
                                                    where x.id = q.id offset 0) o -- as in samekey.note_attention
                                              join samekey.outbox f on f.idem_key = o.idem_key and f.scope = o.scope
                                                                   and f.action = o.action and f.part = o.part
                                              where o.revision > 0 and f.revision = 0), q.id)
                   and (select a.attention from samekey.actions a where a.action = n.action)
                 order by n.id limit 1), -1)::bigint as attention_in_us
from samekey.outbox_queue q
where q.id = @id and q.attempt = @attempt and coalesce(q.leased_by, 0) = @worker::int and q.status = 'answered';

-- name: OutboxQueueApplyEnded :one
-- Tells whether Apply ended its transaction, and whether that transaction committed. Needed only if nothing was
-- finished.
select pg_current_xact_id()::text <> @began::text as ended,
       coalesce(pg_xact_status(cast(@began::text as xid8)), '') = 'committed' as committed;

-- name: OutboxQueueTryLockOrder :many
-- Locks those of the ordering keys whose locks are free, and returns them. A writer holds such a lock until its
-- transaction ends, and a settle must not wait for it. A lock taken without waiting cannot cause a deadlock.
select k.ordering_key::text
from (select distinct o.ordering_key from unnest(@ordering_keys::text[]) as o (ordering_key) order by 1) k
where pg_try_advisory_xact_lock(samekey.ordering_lock(k.ordering_key));

-- name: OutboxQueueLocked :many
-- Returns which of these rows another transaction has locked right now.
with free as materialized (
    select q.id from samekey.outbox_queue q where q.id = any (@ids::uuid[]) for update skip locked
)
select q.id from samekey.outbox_queue q
where q.id = any (@ids::uuid[]) and not exists (select from free f where f.id = q.id);

-- name: OutboxQueueRenew :exec
-- Extends the leases of attempts whose outcomes wait to be written, so that no other worker repeats them.
update samekey.outbox_queue q
set lease_until = greatest(q.lease_until, clock_timestamp() + @lease::interval)
from (select unnest(@ids::uuid[]) as id, unnest(@attempts::int[]) as attempt) u
where q.id = u.id and q.attempt = u.attempt and coalesce(q.leased_by, 0) = @worker::int;

-- name: OutboxQueueLockOrder :exec
-- A transaction that writes or finishes an ordered intent holds the lock of its ordering key. It takes several in
-- sorted order, so that two transactions never deadlock.
select pg_advisory_xact_lock(k.lock)
from (select distinct samekey.ordering_lock(o.ordering_key) as lock
      from unnest(@ordering_keys::text[]) as o (ordering_key)
      order by 1) k;

-- name: OutboxQueuePromote :many
-- Promotes the first blocked intent of each ordering key that has no head. It is due now, or at its own due_at if that
-- is later. Run it after OutboxQueueLockOrder, in a statement of its own.
--
-- coalesce keeps the planner away from the index of blocked rows, as in OutboxQueueSettle. The subquery counts heads
-- (there is at most one): for an EXISTS, the planner may scan the queue.
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
-- Ordering keys with blocked intents, one page at a time, and whether each lacks a head. It is the safety net of
-- OutboxQueuePromote.
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
-- One sweep, in one statement: the actions with intents due to be sent or looked up ('due') or to be applied
-- ('answered'), those with attention events that are due ('attention'), the workers that hold leases without their
-- session lock ('gone') or past their end ('expired'), and the pauses ('paused': a destination and an action, or all of
-- its actions). 'sync' asks for PausesSyncRiver and PausesExpire.
with recursive holders as (
    -- One index lookup per worker, however many leases it holds. Statistics contain no leases, so the planner expects a
    -- third of the queue past an open bound. At that cost, the server compiles the statement (JIT) for a second each
    -- time. The upper bound prevents this.
    (select q.leased_by as worker from samekey.outbox_queue q where q.leased_by is not null order by q.leased_by limit 1)
    union all
    select (select q.leased_by from samekey.outbox_queue q
            where q.leased_by > h.worker and q.leased_by <= 2147483647 order by q.leased_by limit 1)
    from holders h where h.worker is not null
)
select 'due' as kind, a.action::text as name, 0 as worker
from unnest(@actions::text[]) as a (action)
-- The first by due_at, not any: for any, the planner may scan the queue.
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
select 'attention', a.action::text, 0
from unnest(@attending::text[]) as a (action)
where (select n.id from samekey.outbox_attention n
       where n.action = a.action and n.due_at <= (select clock_timestamp())
       order by n.due_at limit 1) is not null
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
select 'sync', '', 0 -- River's pauses and their copies differ, or a pause has expired: see queries/pauses.sql
where exists (select from samekey.river_queue r
              left join samekey.pauses p on p.destination = substr(r.name, 9) and p.river_queue_created_at is not null and p.ended_at is null
              where starts_with(r.name, 'samekey_')
                and ((r.paused_at is not null) <> (p.id is not null) or p.river_queue_created_at <> r.created_at))
   or exists (select from samekey.pauses p where p.ended_at is null and p.until <= (select clock_timestamp()));

-- name: OutboxQueueRelease :many
-- Releases the leases of a worker whose session lock is gone, and leases that have expired. Lookups, Applies and
-- intents that are safe to resend are due at once. The others wait for the end of the lease, since a lost lock does not
-- mean a dead worker. Then they are unknown, and due for a lookup after the settling delay.
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
    set status            = case when q.status <> 'leased' then q.status when q.safe_to_resend then 'pending' else 'unknown' end,
        due_at            = case when q.status <> 'leased' or q.safe_to_resend then clock_timestamp()
                           else clock_timestamp() + @settling_delay::interval end,
        attempts_used     = case when q.status = 'leased' and not q.safe_to_resend then 0 else q.attempts_used + 1 end,
        last_sent_attempt = case when q.status = 'leased' then q.attempt else q.last_sent_attempt end,
        leased_by         = null,
        lease_until       = null,
        last_code         = case when q.status = 'leased' then 'orphaned' else q.last_code end
    from picked p
    where q.id = any (p.ids)
    returning q.id, q.action, q.attempt, q.status
), logged as (
    insert into samekey.outbox_history (intent_id, event, outcome, code, attempt, worker)
    select r.id, 'orphaned', 'unknown', 'orphaned', r.attempt, @holder::int from released r
)
select r.id, r.action, r.status from released r;

-- name: OutboxQueueRestore :many
-- Reconciles: inserts the queue row of an intent that has neither a queue row nor a finishing event. It reads outbox
-- one page at a time, ordered by id. It skips intents of the last minute, whose rows may be uncommitted.
with page as materialized (
    select o.id, o.action, o.due_at, o.created_at
    from samekey.outbox o
    where o.id > @after and o.created_at < clock_timestamp() - interval '1 minute'
    order by o.id
    limit @max_count
), lost as (
    select p.* from page p
    -- `offset 0` forces index lookups: a join would read the whole history for each page.
    where not exists (select from samekey.outbox_queue q where q.id = p.id offset 0)
      and not exists (select from samekey.outbox_history h where h.intent_id = p.id and h.final_status is not null offset 0)
), restored as (
    -- The intent counts as sent when it was written. So its key window starts then, and if it must not be sent twice,
    -- it is looked up or parked, never sent.
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
