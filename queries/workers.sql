-- Who drains, and what they handle. Whether a worker lives is told by its session's advisory lock, not by its row.

-- name: WorkersRegister :one
insert into samekey.workers (name, actions) values (@name, @actions::text[])
returning id;

-- name: WorkersReturn :exec
-- After a lost connection: the row may have been tidied away meanwhile.
insert into samekey.workers (id, name, actions) values (@id, @name, @actions::text[])
on conflict (id) do update set seen_at = clock_timestamp();

-- name: WorkersLock :one
select pg_try_advisory_lock(samekey.worker_class(), @id::int)::boolean;

-- name: WorkersLockIsOurs :one
-- In a statement after WorkersLock: behind a pooler in transaction mode it may run in another session, and then neither
-- the lock nor LISTEN is worth anything.
select exists (select from pg_catalog.pg_locks as held
               where held.locktype = 'advisory' and held.classid::bigint = samekey.worker_class()
                 and held.objid::bigint = @id::int and held.objsubid = 2 and held.granted
                 and held.pid = pg_backend_pid())::boolean;

-- name: WorkersEndSession :exec
-- A worker that came back ends its own former session, whose connection may look alive to the server for long. Shared
-- locks are those of others who look whether it is there.
select pg_terminate_backend(held.pid)
from pg_catalog.pg_locks as held
where held.locktype = 'advisory' and held.classid::bigint = samekey.worker_class() and held.objid::bigint = @id::int
  and held.objsubid = 2 and held.granted and held.mode = 'ExclusiveLock' and held.pid <> pg_backend_pid()
  and held.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database());

-- name: WorkersSeen :exec
update samekey.workers set seen_at = clock_timestamp() where id = @id;

-- name: WorkersRemove :exec
delete from samekey.workers where id = @id;

-- name: WorkersTidy :exec
-- Removes the rows of workers that were killed, once nothing is leased to them.
delete from samekey.workers w
where w.seen_at < clock_timestamp() - interval '10 minutes'
  and pg_try_advisory_xact_lock_shared(samekey.worker_class(), w.id)
  and not exists (select from samekey.outbox_queue q where q.leased_by = w.id);
