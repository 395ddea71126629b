-- What is done to River's tables, other than through River.

-- name: RiverDrainDelete :execrows
-- Deletes a drain job that River did not begin in time: this process drains without it by then. Left where it is, such jobs
-- would pile up while River fetches none (a client whose clock is ahead schedules them in the future).
delete from samekey.river_job where id = @id and state not in ('running', 'completed');
