-- Webhook receivers behind a destination: URL, signing secrets, stopped or not. The interleavings:
--
--   an attempt reads the row; a person changes or starts    the attempt uses the row that it read. The 410 has an old
--   the endpoint; the receiver answers 410 to the attempt   version and stops nothing: the next attempt asks again
--   the endpoint is deleted and created again meanwhile     as above: the version is a new one
--   two attempts get a 410 at once                          the second finds the endpoint stopped
--   a person stops the endpoint during attempts             they end normally; no attempt starts after it
--   the worker is killed between the stop and the settle    another worker takes the intent over and finds the endpoint
--                                                           stopped

-- name: EndpointsList :many
-- One page, ordered by name.
select destination, name, url, stopped_at, stopped_by, stop_reason, created_at, changed_at
from samekey.endpoints
where destination = @destination and name > @after_name
order by name
limit @max_count;

-- name: EndpointsGet :one
select destination, name, url, stopped_at, stopped_by, stop_reason, created_at, changed_at
from samekey.endpoints
where destination = @destination and name = @name;

-- name: EndpointsForCalls :many
-- The endpoints that the attempts of a claim need, read right before they start. `offset 0` forces one lookup per name:
-- without statistics, the planner reads all endpoints of the destination (24 ms for 100,000).
select e.name, e.url, e.secrets, e.headers, e.version, e.stopped
from unnest(@names::text[]) as n (name)
cross join lateral (
    select x.name, x.url, x.secrets, x.headers, x.version, (x.stopped_at is not null)::boolean as stopped
    from samekey.endpoints x
    where x.destination = @destination and x.name = n.name
    offset 0
) e;

-- name: EndpointsStopGone :execrows
-- The receiver stops itself with a 410 to a request that was made from this version.
with stopped as (
    update samekey.endpoints e
    set stopped_at = clock_timestamp(), stop_reason = @reason, changed_at = clock_timestamp(), changed_by = session_user
    where e.destination = @destination and e.name = @name and e.version = @version and e.stopped_at is null
    returning e.destination, e.name, e.stop_reason
)
insert into samekey.endpoint_history (destination, name, event, reason)
select s.destination, s.name, 'stopped', s.stop_reason from stopped s;
