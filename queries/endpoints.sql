-- Webhook receivers behind a destination: URL, signing secrets, stopped or not. The interleavings:
--
--   an attempt reads the row; a person changes or starts    the attempt uses the row that it read. The 410 has an old
--   the endpoint; the receiver answers 410 to the attempt   version and stops nothing: the next attempt asks again
--   the endpoint is deleted and created again meanwhile     as above: the version is a new one
--   two attempts get a 410 at once                          the second finds the endpoint stopped
--   a person stops the endpoint during attempts             they end normally; no attempt starts after it
--   two attempts fail at once, neither saw it failing        the first sets failing_since, the second finds it set
--   the endpoint is put or started during an attempt        failing_since is cleared with a new version: a failure or a
--                                                           success of the old version writes nothing
--   a failure finds it failing for too long; a success of    the stop compares failing_since again under the row's lock: it
--   the same version is written meanwhile                   is null, and nothing is stopped
--   the stop first, then the success                        the success writes nothing: the endpoint is stopped
--   a slow success that began before the first failure      it read a healthy row and writes nothing. The next success
--                                                           clears failing_since. If none comes, the first failure after
--                                                           StopEndpointAfter stops the endpoint: early, by no more than
--                                                           the wait until the intent of the first failure fails again
--   the worker is killed before failing_since is written    the next failed attempt writes it
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

-- name: EndpointsDeliveries :many
-- One page of an endpoint's log, newest first. An event without a time, a late one, took 0.
select d.id::bigint as id, d.at::timestamptz as at, d.intent_id::uuid as intent_id, coalesce(d.action, '')::text as action, d.event::text as event,
       coalesce(d.attempt, 0)::int as attempt, coalesce(d.outcome, '')::text as outcome, coalesce(d.code, '')::text as code,
       (coalesce(extract(epoch from d.took), 0) * 1000000)::bigint as took_us, coalesce(d.status, '')::text as status
from samekey.endpoint_deliveries(@destination::text, @name::text, @before_id::bigint, @max_count::int) d;

-- name: EndpointsForCalls :many
-- The endpoints that the attempts of a claim need, read right before they start. `offset 0` forces one lookup per name:
-- without statistics, the planner reads all endpoints of the destination (24 ms for 100,000).
select e.name, e.url, e.secrets, e.headers, e.version, e.stopped, e.failing_seconds
from unnest(@names::text[]) as n (name)
cross join lateral (
    select x.name, x.url, x.secrets, x.headers, x.version, (x.stopped_at is not null)::boolean as stopped,
           -- 0 if failing_since lies ahead, after a failover to a server whose clock is behind: a success clears it
           (case when x.failing_since is null then -1 else greatest(extract(epoch from clock_timestamp() - x.failing_since), 0) end)::float8 as failing_seconds
    from samekey.endpoints x
    where x.destination = @destination and x.name = n.name
    offset 0
) e;

-- name: EndpointsStop :execrows
-- An attempt stops its endpoint, if it is the version that was called: by a 410, or if it has failed since
-- failing_us ago or longer (0: a 410). The application is told once, through the intent of the attempt.
with stopped as (
    update samekey.endpoints e
    set stopped_at = clock_timestamp(), changed_at = clock_timestamp(), changed_by = session_user,
        stop_reason = case when @failing_us::bigint = 0 then @reason::text
                           else 'failing since ' || to_char(e.failing_since at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ': ' || @reason::text end
    where e.destination = @destination and e.name = @name and e.version = @version and e.stopped_at is null
      and (@failing_us::bigint = 0 or e.failing_since <= clock_timestamp() - interval '1 microsecond' * @failing_us::bigint)
    returning e.destination, e.name, e.stop_reason
), told as (
    insert into samekey.outbox_attention (intent_id, first_id, action, event, endpoint, code, reason)
    select @intent_id, @intent_id, a.action, 'endpoint_stopped', s.name, 'endpoint_stopped', s.stop_reason
    from stopped s join samekey.actions a on a.action = @action and a.attention
)
insert into samekey.endpoint_history (destination, name, event, reason)
select s.destination, s.name, 'stopped', s.stop_reason from stopped s;

-- name: EndpointsFailing :exec
-- The first failed attempt since the last success.
update samekey.endpoints e
set failing_since = clock_timestamp()
where e.destination = @destination and e.name = @name and e.version = @version and e.failing_since is null and e.stopped_at is null;

-- name: EndpointsWorks :exec
-- A success of an endpoint that was failing when the attempt read it.
update samekey.endpoints e
set failing_since = null
where e.destination = @destination and e.name = @name and e.version = @version and e.failing_since is not null and e.stopped_at is null;
