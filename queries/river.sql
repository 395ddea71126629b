-- What is read of River's tables.

-- name: RiverDrainWaits :one
-- Does a drain of this queue wait to be fetched? Then another would find nothing to do.
select exists (select from samekey.river_job j
               where j.state = 'available' and j.queue = @queue and j.kind = @kind)::boolean;
