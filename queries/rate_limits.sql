-- Rate limits per destination, shared by all workers: a leaky bucket in one row. level calls were in the bucket at
-- updated_at. Each worker counts by its own rate and burst:
--
--   current level = min(level, burst) - rate * (now - updated_at), at least 0; the worker may take burst - current level
--
--   two workers take at once            the second waits for the row of the first, and counts on from there
--   the clock is set back               updated_at is in the future: no time has passed and the level stays. The row
--                                       gets the new time at once, even if nothing is given, so a permit comes after 1/rate
--   the rate is raised, 10/h to 100/s   the level is a number of calls: 10 calls leak out in 0.1 s
--   the burst is lowered, 1000 to 10    a level above the burst counts as the burst: a permit comes after 1/rate
--   rolling deploy: two workers with    each takes at most its own burst + rate * time. It reads a level up to its own
--   different settings take in turn     burst, but writes the whole level, so a worker with a small burst cannot empty
--                                       the bucket of one with a large burst. Together they take at most the sum of both
--   the rate is lowered meanwhile       an old worker's last take counts by the old rate, the next one by the new rate
--   'infinity', far past, NaN           updated_at counts as at most 100 years old, level as 0 to the burst. The next
--                                       take writes valid values
--   the clock jumps forward             a whole burst is available, as after idle time

-- name: RateLimitsTake :one
-- Takes one permit for each intent of the action that is due since due_from and needs a call, at most max_count and at
-- most the budget. It takes none if no intent is due. wait_us is the time until the next batch of permits, at most
-- batch / rate; 0 if it gave all that was wanted. If an intent is due and found is false, call RateLimitsAdd first.
--
-- It reads the clock after locking the row, so that time does not run backwards between workers.
with wanted as materialized (
    select count(*)::int as n
    from (select from samekey.outbox_queue q
          where q.action = @action
            and q.leased_by is null
            and q.status in ('pending', 'unknown')
            and q.due_at >= @due_from
            and q.due_at <= (select clock_timestamp())
          order by q.due_at
          limit @max_count::int) d
), asked as materialized (
    select @rate::float8 as rate, @burst::int as burst, @batch::int as batch
), locked as materialized (
    select r.updated_at, r.level from samekey.rate_limits r
    where r.destination = @destination and (select w.n from wanted w) > 0
    for update
), timed as materialized (
    -- Infinite times cannot be subtracted. greatest and least treat NaN as the largest number.
    select c.now, c.updated_at > c.now as ahead, greatest(0, least(c.level, 1e6)) as level,
           extract(epoch from c.now - least(greatest(c.updated_at, c.now - interval '100 years'), c.now))::float8 as passed
    from (select l.*, clock_timestamp() as now from locked l) c
), counted as materialized (
    select t.now, t.ahead, greatest(0, t.level - t.passed * a.rate) as level,
           greatest(0, least(t.level, a.burst) - t.passed * a.rate) as current_level
    from timed t, asked a
), given as materialized (
    -- 1e-6 makes up for rounding errors in the sums.
    select c.now, c.ahead, c.level, c.current_level, greatest(0, least(w.n, floor(a.burst - c.current_level + 1e-6)))::int as n
    from counted c, asked a, wanted w
), taken as (
    update samekey.rate_limits r
    set updated_at = g.now, level = greatest(g.level, g.current_level) + g.n
    from given g
    where r.destination = @destination and (g.n > 0 or g.ahead)
)
select w.n as due, (g.n is not null)::boolean as found, coalesce(g.n, 0)::int as given,
       (case when g.n < w.n then greatest(1, ceil(1e6 * (g.current_level + g.n + a.batch - a.burst) / a.rate)) else 0 end)::bigint as wait_us
from wanted w
cross join asked a
left join given g on true;

-- name: RateLimitsAdd :exec
insert into samekey.rate_limits (destination, updated_at) values (@destination, clock_timestamp())
on conflict do nothing;
