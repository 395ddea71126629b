-- Which destinations, and which of their actions, are paused, by whom and why.
--
-- A destination is paused while a reason is in force here (not ended, and its "until" has not come), or while River's queue
-- of it is paused, which is what River UI and River's QueuePause do. The claim reads both, in the statement that takes the
-- leases. River deletes a queue's row once no client has worked it for a day, and a new row is not paused: so each sweep
-- copies River's pauses here (PausesSyncRiver), with river_row, which tells one row of River's from the next. Against each
-- other, and against the claim, they stand like this:
--
--   a claim, then a pause commits                what was claimed is called; later claims see the pause
--   two people pause the same                    one reason is kept, the first; the second is told so
--   a person pauses what River's pause holds     two reasons; each ends by itself
--   a person resumes                             their reason, River's copy and River's own pause end in one statement
--   deleted here by SQL, River's is not paused   it goes on; the next sweep of each worker sees it
--   deleted here by SQL, River's is paused       it stays paused, and is copied again: resume it in River, or with Resume
--   resumed in River                             its row is there, the same one, and not paused: the copy ends
--   River's row is gone                          the copy stays in force, and the claim sees it
--   River makes the row again, not paused        it is another row than the one that was copied: it is paused again
--   a sweep copies River's pause while a person  the copy may be written after all else ended: the next sweep finds River's
--   resumes                                      row not paused, and ends it
--   two sweeps copy at once                      the unique index keeps one
--   nothing runs for a day, then a worker starts it copies before its River client runs, which deletes old rows

-- name: PausesAdd :one
-- A reason of a person's, after PausesExpire. No row: one of the same is in force already.
insert into samekey.pauses (destination, action, paused_by, reason, until)
values (@destination::text, @action::text, @actor::text, @reason::text, sqlc.narg('until')::timestamptz)
on conflict do nothing
returning id, coalesce(until <= clock_timestamp(), false)::boolean as past;

-- name: PausesEnd :one
-- Resumes: ends every reason of this destination and action, and River's own pause where all actions are meant.
with ended as (
    update samekey.pauses p
    set ended_at = clock_timestamp(), ended_by = @actor::text, end_reason = @reason::text
    where p.destination = @destination::text and p.action = @action::text and p.ended_at is null
    returning p.id
), river as (
    update samekey.river_queue r
    set paused_at = null, updated_at = clock_timestamp()
    where @action::text = '' and r.name = 'samekey_' || @destination::text and r.paused_at is not null
    returning r.name
)
select ((select count(*) from ended) + (select count(*) from river))::int as ended;

-- name: PausesExpire :exec
-- Ends what was paused until a time that has come. The claim needs no such end; a new reason of the same does.
update samekey.pauses p
set ended_at = p.until, ended_by = 'samekey', end_reason = 'its time was over'
where p.ended_at is null and p.until <= clock_timestamp();

-- name: PausesList :many
-- Those in force first, then what ended, the latest first.
select p.destination, p.action, p.paused_at, p.paused_by, p.reason, p.until, (p.river_queue_created_at is not null)::boolean as by_river,
       p.ended_at, p.ended_by, p.end_reason
from samekey.pauses p
where @destination::text in ('', p.destination)
order by p.ended_at desc nulls first, p.id desc
limit @max_count;

-- name: PausesSyncRiver :many
-- Holds River's pauses and their copies to each other, as the table above says, and returns what changed.
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
), renamed as ( -- paused in a row that River made since
    update samekey.pauses p set river_queue_created_at = v.created_at
    from river v, copies c
    where p.id = c.id and c.destination = v.destination and v.paused_at is not null and c.river_queue_created_at <> v.created_at
    returning p.id
), ended as (
    update samekey.pauses p set ended_at = clock_timestamp(), ended_by = 'river', end_reason = 'the queue was resumed in River'
    from river v, copies c
    where p.id = c.id and p.ended_at is null and c.destination = v.destination and v.paused_at is null and c.river_queue_created_at = v.created_at
    returning p.destination
), again as ( -- not paused, in a row that River made since
    update samekey.river_queue r set paused_at = c.paused_at
    from river v, copies c
    where r.name = v.name and c.destination = v.destination and v.paused_at is null and c.river_queue_created_at <> v.created_at
    returning c.destination, v.created_at, c.id
), known as (
    update samekey.pauses p set river_queue_created_at = a.created_at from again a where p.id = a.id
)
select destination::text, 'copied' as change from copied
union all select destination, 'ended' from ended
union all select destination, 'restored' from again;

-- name: PausesPrune :exec
-- What ended long ago is of no use to anybody.
delete from samekey.pauses p where p.ended_at < clock_timestamp() - interval '1 year';
