-- Operations in several transactions (samekey.operations, samekey.operation_steps): processed.Steps.
--
-- A call makes these statements, each a transaction of its own except those of a step in the database:
--
--   start     record in progress and row of operations, or the takeover of both; reads the finished steps
--   lock ..   BEGIN and the row lock, the application's rows and intents, the step's result and COMMIT
--   mark      a step that calls a vendor is in flight; then it is sent
--   put, end  the vendor's answer; or that there was none
--   complete  the record gets the answer, the row of operations goes
--   release   after an error: the next call may take over at once
--
-- The rule: operations.fence names the one call that may write, and every write compares it under the row's lock. A
-- takeover changes the fence. It needs an expired lease and the row's lock. Between two statements, and while a vendor
-- is called, the lease keeps others away; in a step's transaction, its row lock does.
--
-- How calls A (the first), B (a later one), a person P, Run and prune interleave:
--
--  * A and B start at once. Both try the key's lock; the loser is held. Without the lock, the second insert of the
--    record waits for the first to end and does nothing: held.
--  * Run or Do works on the key. It has the key's lock, so A is held. Once A has started, Run finds a record in
--    progress: ErrInFlight. If Run has looked before A's commit, it had the key's lock, so A was held.
--  * B starts while A works. The lease has not expired: held, with the time that is left. If A is in a step's
--    transaction, B skips the locked row: held, also after the lease. If A's process is dead, its row lock went with its
--    connection, and its lease expires.
--  * B and C take over at once. One locks the row and changes the fence; the other skips the row, or sees the new lease.
--  * A was taken over while it was between two statements or at a vendor. lock reports false, and mark, put, end and
--    complete raise SK020: A stores nothing more. What A's send did at the vendor is the step's doubt, which B resolves
--    by the step's class.
--  * A was taken over while its COMMIT was on the way. It cannot be: COMMIT ends the row's lock, and B reads the steps
--    in a statement after the one that locked the row. So B sees the step, or A's transaction rolled back.
--  * A's connection is lost during a step's COMMIT. A waits for the row's lock in another session, and then reads the
--    step: it is there, or never will be.
--  * The answer to start is lost. A repeats it with the same fence, which changes nothing.
--  * The answer to mark is lost. A has sent nothing. It reports the send as unsent under its number. If mark arrives
--    even later, the step stays in flight: in doubt, although it was not sent.
--  * A's process dies after mark, before or during the send: in flight. B takes over when the lease has expired, which
--    covers the call's timeout, and resolves the doubt.
--  * The answer to put or end is lost. A repeats it: put finds the step done, end finds another status or number.
--  * The answer to complete is lost. A repeats it, finds no row (SK020), and reads the record, as any replay does.
--  * release deletes an operation without steps, and B starts. B sees the record, then no row of operations: held. Its
--    next try starts afresh.
--  * P resolves a step or abandons the operation. P takes the row's lock and skips a locked row; the lease must have
--    expired. Then B either waits for P's commit or has taken over before.
--  * Prune deletes completed records only, with their steps. An operation in progress is kept however old it is.

-- name: OperationsStart :one
select outcome::text as outcome, retry_us::bigint as retry_us
from samekey.operation_start(@scope::text, @idem_key::text, @payload_hash::bytea, @hash_version::smallint, @retain_us::bigint, @subject::text,
                             @fence::bigint, @lease_us::bigint);

-- name: OperationsRelease :exec
select samekey.operation_release(@scope::text, @idem_key::text, @fence::bigint);

-- name: OperationsComplete :exec
select samekey.operation_complete(@scope::text, @idem_key::text, @fence::bigint, @retain_us::bigint, @failed::boolean,
                                  sqlc.narg('code')::int, sqlc.narg('headers')::bytea, sqlc.narg('body')::bytea);

-- name: OperationsAbandoned :one
-- How many operations in progress are past their retention, and no call works on them: the worker reports them. The
-- table holds unfinished operations only.
select count(*)::bigint as operations
from samekey.operations o
join samekey.processed_events p on p.idem_key = o.idem_key and p.scope = o.scope
where p.expires_at < clock_timestamp() and o.lease_until < clock_timestamp();
