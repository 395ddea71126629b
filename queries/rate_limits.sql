-- How fast a destination may be called, by all workers together: one row, a bucket of calls that were given out and not yet
-- earned back (level), as of a time (updated_at). A taker counts by its own rate and burst:
--
--   debt = min(level, burst) - rate * (now - updated_at), at least 0;    it may take burst - debt
--
--   two nodes take at once              the second waits for the first one's row, and counts on from there
--   the clock is set back               updated_at is ahead of it: no time has passed, level stays, and the row is moved to the
--                                       new time at once, also where nothing is given. So a permit comes after 1/rate
--   the rate is raised, 10/h to 100/s   level is a number of calls: 10 of them are earned back in 0.1 s
--   the burst is lowered, 1000 to 10    a debt over the own burst counts as the burst: a permit comes after 1/rate
--   a rolling deploy: two nodes with    each one's takes stay within its own burst + rate * time: it reads no more debt than
--   different settings take in turn     its burst, but what it writes is the whole debt, so that a node with a small burst
--                                       forgives a node with a large one nothing. Together: the sum of the two, at most
--   the rate is lowered meanwhile       an old node that takes for the last time counts by the old rate, the next by the new
--   'infinity', far past, NaN           updated_at is read as at most 100 years old, level as a number from 0 to the burst; the
--                                       next take writes what it has read
--   the clock jumps forward             a whole burst is there, as after an idle time

-- name: RateLimitsTake :one
-- Takes a permit for each intent of the action that is due from the mark on and needs a call, up to max_count, as far as the
-- budget goes. Where nothing is due, nothing is taken. wait_us is the time until a batch of permits will be there, at most
-- batch / rate; zero where all that was wanted was given. Where something is due and found is false, RateLimitsAdd the row
-- first.
--
-- The row is locked first, and the clock is read after that, so that it does not run back.
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
    -- Infinite times cannot be subtracted. greatest and least take NaN for the largest number.
    select c.now, c.updated_at > c.now as ahead, greatest(0, least(c.level, 1e6)) as level,
           extract(epoch from c.now - least(greatest(c.updated_at, c.now - interval '100 years'), c.now))::float8 as passed
    from (select l.*, clock_timestamp() as now from locked l) c
), counted as materialized (
    select t.now, t.ahead, greatest(0, t.level - t.passed * a.rate) as level,
           greatest(0, least(t.level, a.burst) - t.passed * a.rate) as debt
    from timed t, asked a
), given as materialized (
    -- A millionth of a call is what adding up loses.
    select c.now, c.ahead, c.level, c.debt, greatest(0, least(w.n, floor(a.burst - c.debt + 1e-6)))::int as n
    from counted c, asked a, wanted w
), taken as (
    update samekey.rate_limits r
    set updated_at = g.now, level = greatest(g.level, g.debt) + g.n
    from given g
    where r.destination = @destination and (g.n > 0 or g.ahead)
)
select w.n as due, (g.n is not null)::boolean as found, coalesce(g.n, 0)::int as given,
       (case when g.n < w.n then greatest(1, ceil(1e6 * (g.debt + g.n + a.batch - a.burst) / a.rate)) else 0 end)::bigint as wait_us
from wanted w
cross join asked a
left join given g on true;

-- name: RateLimitsAdd :exec
insert into samekey.rate_limits (destination, updated_at) values (@destination, clock_timestamp())
on conflict do nothing;
