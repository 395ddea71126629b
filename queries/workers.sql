-- The running workers and the actions that they handle. A worker is alive while its session holds its advisory lock;
-- the row does not tell.
--
-- The session that holds the lock of an id owns the id; the row only describes the owner. Ids are random, so a database
-- restored to an earlier point does not give a running worker's id to a new one, as a sequence would. Two workers can
-- still meet at one id (a copied database, or one chance in two billion). The interleavings:
--
--   a worker starts; the id has a row              it chooses another id: WorkersRegister changes no row
--   a worker starts; another session has the       the row of the holder was deleted. The worker removes its own row and
--   lock                                           chooses another id
--   a worker reconnects; its old session has the   the server has not noticed the lost connection. WorkersEndSession
--   lock                                           ends exactly that session (process id and start time), and the worker
--                                                  tries again
--   a worker reconnects; a stranger has the lock   it leaves lock and row to the stranger and chooses another id. Claims
--                                                  made under the old id are settled under the old id
--   a worker reconnects; the lock is free          it takes the lock and overwrites the row. A stranger that
--                                                  lost its connection reconnects later and then chooses another id
--   another worker checks whether it is alive      the check holds a shared lock for a moment: the worker tries again
--   its row is deleted while it works              its next heartbeat writes the row again

-- name: WorkersRegister :execrows
-- It also refuses an id that leases still name: a dead worker left them without a row.
insert into samekey.workers (id, name, actions)
select @id::int, @name::text, @actions::text[]
where not exists (select from samekey.outbox_queue q where q.leased_by = @id::int)
on conflict (id) do nothing;

-- name: WorkersHeartbeat :exec
-- The heartbeat of the session that holds the lock. It inserts the row if it was deleted, and overwrites a row of a
-- worker that had the id before.
--
-- It also reports which actions have an Attention function in this worker. An action's events end when no worker has
-- reported one for 10 minutes, so a rollout loses no event:
--
--   a worker without the function restarts while     the others report: events go on
--   others have it
--   all with it stop, and start within 10 minutes    events go on, and wait
--   the last with it is gone for 10 minutes          a worker without it, which has run for as long, ends the events
--   all workers were down; one without it starts     its own 10 minutes have to pass first
--   first
--   one ends the events, another has the function    its next heartbeat, 5 seconds later, starts them again
--   (it could not report for 10 minutes)
--   two heartbeats meet at a row                     skip locked: the second leaves it to its next heartbeat
with mine as (
    select unnest(@actions::text[]) as action, unnest(@attention::boolean[]) as attention
), reported as (
    update samekey.actions a
    set attention = m.attention, attention_seen_at = case when m.attention then clock_timestamp() else a.attention_seen_at end
    from mine m
    where a.action = m.action and a.action = any (array(
        select x.action
        from samekey.actions x
        join mine y on y.action = x.action
        where case when y.attention then not x.attention or x.attention_seen_at < clock_timestamp() - interval '1 minute'
                   else x.attention and x.attention_seen_at < clock_timestamp() - interval '10 minutes'
                        and exists (select from samekey.workers w where w.id = @id and w.started_at < clock_timestamp() - interval '10 minutes') end
        for update of x skip locked))
)
insert into samekey.workers as w (id, name, actions) values (@id, @name, @actions::text[])
on conflict (id) do update set seen_at = clock_timestamp(), name = excluded.name, actions = excluded.actions;

-- name: WorkersSession :one
-- Identifies a session while the server runs. The process id alone is not enough: the system uses it again.
select pg_backend_pid()::int as pid,
       coalesce((select extract(epoch from a.backend_start) from pg_catalog.pg_stat_activity as a where a.pid = pg_backend_pid()), 0)::text as started;

-- name: WorkersLock :one
select pg_try_advisory_lock(samekey.worker_class(), @id::int)::boolean;

-- name: WorkersHoldsLock :one
-- A statement after WorkersLock. A pooler in transaction mode may run it in another session; then neither the lock nor
-- LISTEN works.
select exists (select from pg_catalog.pg_locks as held
               where held.locktype = 'advisory' and held.classid::bigint = samekey.worker_class()
                 and held.objid::bigint = @id::int and held.objsubid = 2 and held.granted
                 and held.pid = pg_backend_pid())::boolean;

-- name: WorkersEndSession :one
-- A worker that reconnects ends its own old sessions, whose connections may look alive to the server for long, and no
-- others. Shared locks do not count: another worker holds them while it checks whether this one is alive.
select count(*) filter (where mine and pg_terminate_backend(h.pid))::int as ended,
       count(*) filter (where not mine)::int as strangers
from (
    select held.pid, exists (
        select from (select unnest(@pids::int[]) as pid, unnest(@starts::text[]) as started) as f
        join pg_catalog.pg_stat_activity as a on a.pid = f.pid and extract(epoch from a.backend_start)::text = f.started
        where f.pid = held.pid) as mine
    from pg_catalog.pg_locks as held
    where held.locktype = 'advisory' and held.classid::bigint = samekey.worker_class() and held.objid::bigint = @id::int
      and held.objsubid = 2 and held.granted and held.mode = 'ExclusiveLock' and held.pid <> pg_backend_pid()
      and held.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
) as h;

-- name: WorkersRemove :exec
delete from samekey.workers where id = @id;

-- name: WorkersPrune :exec
-- Deletes the rows of dead workers once they hold no lease.
delete from samekey.workers w
where w.seen_at < clock_timestamp() - interval '10 minutes'
  and pg_try_advisory_xact_lock_shared(samekey.worker_class(), w.id)
  and not exists (select from samekey.outbox_queue q where q.leased_by = w.id);
