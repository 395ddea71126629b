-- How fast a destination may be called, by all workers together: one row, until when its budget is given out (GCRA).

-- name: RateLimitsTake :one
-- Takes a permit for each intent of the action that is due from the mark on, up to max_count, as far as the budget goes:
-- given_until may run ahead of the clock by the burst, and each permit moves it by the time that the rate gives it. Where
-- nothing is due, nothing is taken. wait_us is the time until a batch of permits will be there; zero where all that was
-- wanted was given. Where something is due and found is false, RateLimitsAdd the row first.
--
-- The row is locked first, and the clock is read after that, so that it does not run back. What runs further ahead than the
-- burst and a minute is of a clock that was set back, or of another configuration, and is forgotten.
with wanted as materialized (
    select count(*)::int as n
    from (select from samekey.outbox_queue q
          where q.action = @action
            and q.leased_by is null
            and q.status in ('pending', 'unknown', 'answered')
            and q.due_at >= @mark
            and q.due_at <= (select clock_timestamp())
          order by q.due_at
          limit @max_count::int) d
), asked as materialized (
    select @rate::float8 as rate, @burst::int as burst, @batch::int as batch
), locked as materialized (
    select r.given_until from samekey.rate_limits r
    where r.destination = @destination and (select w.n from wanted w) > 0
    for update
), based as materialized (
    select c.now, least(greatest(c.given_until, c.now), c.now + interval '1 second' * (a.burst / a.rate + 60)) as base
    from (select l.given_until, clock_timestamp() as now from locked l) c, asked a
), given as materialized (
    select b.now, b.base, greatest(0, least(w.n,
           floor(extract(epoch from b.now - b.base)::float8 * a.rate + a.burst)))::int as n
    from based b, asked a, wanted w
), taken as (
    update samekey.rate_limits r
    set given_until = g.base + interval '1 second' * (g.n / a.rate)
    from given g, asked a
    where r.destination = @destination and g.n > 0
)
select w.n as due, (g.n is not null)::boolean as found, coalesce(g.n, 0)::int as given,
       (case when g.n < w.n
        then greatest(1, ceil(1e6 * (extract(epoch from g.base - g.now)::float8 + (g.n + a.batch - a.burst) / a.rate)))
        else 0 end)::bigint as wait_us
from wanted w
cross join asked a
left join given g on true;

-- name: RateLimitsAdd :exec
insert into samekey.rate_limits (destination, given_until) values (@destination, clock_timestamp())
on conflict do nothing;
