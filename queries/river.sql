-- Changes to River's tables that River's API does not offer.

-- name: RiverDrainDelete :execrows
-- Deletes a drain job that River did not start in time; this process drains without River then. Otherwise such jobs
-- would pile up while River fetches none, as when a client whose clock is ahead schedules them in the future.
delete from samekey.river_job where id = @id and state not in ('running', 'completed');
