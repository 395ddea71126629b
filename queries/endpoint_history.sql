-- What happened to endpoints. The functions of the acts and EndpointsStopGone write it, in the transaction of the change.

-- name: EndpointHistoryList :many
-- One page, newest first.
select id, at, event, coalesce(actor, '') as actor, reason, db_user
from samekey.endpoint_history
where destination = @destination and name = @name and id < @before_id
order by id desc
limit @max_count;

-- name: EndpointHistoryPrune :exec
-- Deletes what happened more than a year ago. Few endpoints change often, so this reads the whole table.
delete from samekey.endpoint_history h where h.at < clock_timestamp() - interval '1 year';
