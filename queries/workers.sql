-- Who drains, and what they handle. Whether a worker lives is told by its session's advisory lock, not by its row.
--
-- Who holds the lock of an id owns the id; the row only describes the owner. An id is drawn at random, so that a database
-- that was restored to an earlier point does not give a running worker's id to a new one, as a sequence does. Two workers
-- can meet at one id all the same (a copied database, a draw in two billion). The interleavings:
--
--   a worker starts, the id has a row              it draws another id: WorkersRegister returns no row
--   a worker starts, another session has the lock  the holder's row was deleted: it removes its own and draws again
--   it comes back, its former session has the lock the server has not noticed the lost connection: WorkersEndSession ends
--                                                  exactly that session (process id and start), and it tries again
--   it comes back, a stranger has the lock         it leaves lock and row to the stranger and draws another id. What it
--                                                  claimed under the old id is settled under the old id
--   it comes back, nobody has the lock             it takes the lock and the row, whatever the row says. A stranger that
--                                                  lost its connection comes back later, and is then the one that draws
--   somebody looks whether it lives                the look holds a shared lock for a moment: it tries again
--   its row is deleted while it works              its next sign of life writes the row again (WorkersHeartbeat)

-- name: WorkersRegister :execrows
-- An id that leases still name, left behind by a dead worker without a row, is not taken either.
insert into samekey.workers (id, name, actions)
select @id::int, @name::text, @actions::text[]
where not exists (select from samekey.outbox_queue q where q.leased_by = @id::int)
on conflict (id) do nothing;

-- name: WorkersHeartbeat :exec
-- The sign of life of the session that holds the lock. The row may have been deleted meanwhile, or describe a worker
-- that had the id before.
insert into samekey.workers as w (id, name, actions) values (@id, @name, @actions::text[])
on conflict (id) do update set seen_at = clock_timestamp(), name = excluded.name, actions = excluded.actions;

-- name: WorkersSession :one
-- Names a session for as long as the server runs: process ids are used again.
select pg_backend_pid()::int as pid,
       coalesce((select extract(epoch from a.backend_start) from pg_catalog.pg_stat_activity as a where a.pid = pg_backend_pid()), 0)::text as started;

-- name: WorkersLock :one
select pg_try_advisory_lock(samekey.worker_class(), @id::int)::boolean;

-- name: WorkersHoldsLock :one
-- In a statement after WorkersLock: behind a pooler in transaction mode it may run in another session, and then neither
-- the lock nor LISTEN is worth anything.
select exists (select from pg_catalog.pg_locks as held
               where held.locktype = 'advisory' and held.classid::bigint = samekey.worker_class()
                 and held.objid::bigint = @id::int and held.objsubid = 2 and held.granted
                 and held.pid = pg_backend_pid())::boolean;

-- name: WorkersEndSession :one
-- A worker that came back ends its own former sessions, whose connections may look alive to the server for long, and no
-- other. The shared locks of those who look whether it lives are neither its own nor a stranger's.
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
-- Removes the rows of workers that were killed, once nothing is leased to them.
delete from samekey.workers w
where w.seen_at < clock_timestamp() - interval '10 minutes'
  and pg_try_advisory_xact_lock_shared(samekey.worker_class(), w.id)
  and not exists (select from samekey.outbox_queue q where q.leased_by = w.id);
