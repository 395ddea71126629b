-- Pauses of destinations and of single actions, with the person and the reason.
--
-- A destination is paused while a row here is in force (not ended, and before its "until"), or while its queue is
-- paused in River (River UI, or River's QueuePause). The claim reads both in the statement that takes the leases. River
-- deletes the row of a queue that no client has used for a day, and a new row is not paused. So each sweep copies
-- River's pauses here (PausesSyncRiver); river_queue_created_at tells one row of River's from the next. The
-- interleavings:
--
--   a claim commits, then a pause                 its intents are called; later claims see the pause
--   two people pause the same                     the first reason stays; the second person gets an error
--   a person pauses what is paused in River       both are in force; each ends by itself
--   a person resumes                              one statement ends the person's pause, the copy and River's pause
--   deleted here by SQL, not paused in River      it is resumed; each worker's next sweep notices
--   deleted here by SQL, paused in River          it stays paused and is copied again. To end it, resume
--   resumed in River                              the same row is there and not paused: the copy ends
--   River's row is deleted                        the copy stays in force, and the claim sees it
--   River creates the row again, not paused       it is not the row that was copied: it is paused again
--   a sweep copies River's pause while a person   the copy may be written last: the next sweep finds River's row not
--   resumes                                       paused and ends the copy
--   two sweeps copy at once                       the unique index keeps one copy
--   no worker runs for a day, then one starts     it syncs before its River client starts, which deletes old rows

-- name: PausesExpire :exec
-- Ends pauses whose "until" has passed. The claim ignores them anyway.
update samekey.pauses p
set ended_at = p.until, ended_by = 'samekey', end_reason = 'the pause expired'
where p.ended_at is null and p.until <= clock_timestamp();

-- name: PausesList :many
-- Pauses in force first, then ended ones, the latest first.
select p.destination, p.action, p.paused_at, p.paused_by, p.reason, p.until, (p.river_queue_created_at is not null)::boolean as by_river,
       p.ended_at, p.ended_by, p.end_reason
from samekey.pauses p
where @destination::text in ('', p.destination)
order by p.ended_at desc nulls first, p.id desc
limit @max_count;

-- name: PausesSyncRiver :many
-- Syncs River's pauses and their copies, as the table above says, and returns the changes.
with river as materialized (
    select r.name, substr(r.name, 9) as destination, r.paused_at, r.created_at
    from samekey.river_queue r
    where starts_with(r.name, 'samekey_') and substr(r.name, 9) ~ '^[a-z0-9][a-z0-9_-]{0,55}$'
    for update
), copies as materialized (
    select p.id, p.destination, p.paused_at, p.river_queue_created_at from samekey.pauses p where p.river_queue_created_at is not null and p.ended_at is null
), copied as (
    insert into samekey.pauses (destination, paused_at, paused_by, reason, river_queue_created_at)
    select v.destination, v.paused_at, 'river', 'the queue was paused in River', v.created_at
    from river v
    where v.paused_at is not null and not exists (select from copies c where c.destination = v.destination)
    on conflict do nothing
    returning destination
), recopied as ( -- paused, in a row that River has created since
    update samekey.pauses p set river_queue_created_at = v.created_at
    from river v, copies c
    where p.id = c.id and c.destination = v.destination and v.paused_at is not null and c.river_queue_created_at <> v.created_at
    returning p.id
), ended as (
    update samekey.pauses p set ended_at = clock_timestamp(), ended_by = 'river', end_reason = 'the queue was resumed in River'
    from river v, copies c
    where p.id = c.id and p.ended_at is null and c.destination = v.destination and v.paused_at is null and c.river_queue_created_at = v.created_at
    returning p.destination
), repaused as ( -- not paused, in a row that River has created since
    update samekey.river_queue r set paused_at = c.paused_at
    from river v, copies c
    where r.name = v.name and c.destination = v.destination and v.paused_at is null and c.river_queue_created_at <> v.created_at
    returning c.destination, v.created_at, c.id
), known as (
    update samekey.pauses p set river_queue_created_at = a.created_at from repaused a where p.id = a.id
)
select destination::text, 'copied' as change from copied
union all select destination, 'ended' from ended
union all select destination, 'restored' from repaused;

-- name: PausesPrune :exec
-- Deletes pauses that ended more than a year ago.
delete from samekey.pauses p where p.ended_at < clock_timestamp() - interval '1 year';
