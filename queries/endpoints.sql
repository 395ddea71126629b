-- Receivers behind a destination: where each is, what signs for it, whether it is stopped.
--
--   a call has read its row, then people change or start     the call goes out by the row it read; a 410 to it has an old
--   the endpoint, then the receiver answers 410              version and stops nothing: the next call will tell
--   deleted and put again meanwhile                          another version too
--   two calls at once are answered 410                       the second finds it stopped
--   a person stops it while calls are under way              they end as they do; no call begins after it
--   killed between the stop and the settle                   the intent is taken over, and finds its endpoint stopped

-- name: EndpointsPut :exec
-- It does not name `excluded`: that would need the right to read secrets, which the application's role does not have.
insert into samekey.endpoints (destination, name, url, secrets)
values (@destination, @name, @url, coalesce(@secrets::text[], '{}'))
on conflict (destination, name) do update
set url = @url, secrets = coalesce(@secrets::text[], '{}'), version = gen_random_uuid(), changed_at = clock_timestamp();

-- name: EndpointsStop :execrows
-- By a person. One that is stopped already keeps its reason.
update samekey.endpoints
set stopped_by  = case when stopped_at is null then @actor::text else stopped_by end,
    stop_reason = coalesce(stop_reason, @reason::text),
    stopped_at  = coalesce(stopped_at, clock_timestamp()),
    version     = gen_random_uuid(),
    changed_at  = clock_timestamp()
where destination = @destination and name = @name;

-- name: EndpointsStart :execrows
update samekey.endpoints
set stopped_at = null, stopped_by = null, stop_reason = null, version = gen_random_uuid(), changed_at = clock_timestamp()
where destination = @destination and name = @name;

-- name: EndpointsDelete :execrows
delete from samekey.endpoints where destination = @destination and name = @name;

-- name: EndpointsList :many
-- A page, in the order of names.
select destination, name, url, stopped_at, stopped_by, stop_reason, created_at, changed_at
from samekey.endpoints
where destination = @destination and name > @behind
order by name
limit @max_count;

-- name: EndpointsGet :one
select destination, name, url, stopped_at, stopped_by, stop_reason, created_at, changed_at
from samekey.endpoints
where destination = @destination and name = @name;

-- name: EndpointsForCalls :many
-- What the calls of a claim need, right before them. `offset 0` keeps it a look-up for each name: without statistics the
-- planner reads all that a destination has, 24 ms for 100,000.
select e.name, e.url, e.secrets, e.version, e.stopped
from unnest(@names::text[]) as n (name)
cross join lateral (
    select x.name, x.url, x.secrets, x.version, (x.stopped_at is not null)::boolean as stopped
    from samekey.endpoints x
    where x.destination = @destination and x.name = n.name
    offset 0
) e;

-- name: EndpointsStopGone :execrows
-- By the receiver itself, in its answer to a call that was made by this version.
update samekey.endpoints
set stopped_at = clock_timestamp(), stop_reason = @reason, changed_at = clock_timestamp()
where destination = @destination and name = @name and version = @version and stopped_at is null;
