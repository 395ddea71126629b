-- Acts: what people do. Each act is one SQL function, so that Go, the command line, pages and psql do the same. The
-- migration has the functions, their errors and the interleavings. An act of an intent returns the actions to wake.

-- name: ActApprove :one
select samekey.approve(@id::uuid, @actor::text, @reason::text)::text[];

-- name: ActReject :one
select samekey.reject(@id::uuid, @actor::text, @reason::text)::text[];

-- name: ActCancel :one
select samekey.cancel(@id::uuid, @actor::text, @reason::text)::text[];

-- name: ActRedrive :one
select samekey.redrive(@id::uuid, @actor::text, @reason::text)::text[];

-- name: ActResolve :one
select samekey.resolve(@id::uuid, @outcome::text, @actor::text, @reason::text, @code::text, @response_type::text, @response::bytea, @reference::text)::text[];

-- name: ActPause :exec
select samekey.pause(@destination::text, @actor::text, @reason::text, @action::text, sqlc.narg('until')::timestamptz);

-- name: ActResume :exec
select samekey.resume(@destination::text, @actor::text, @reason::text, @action::text);

-- name: ActEndpointPut :exec
select samekey.endpoint_put(@destination::text, @name::text, @url::text, @secrets::text[]);

-- name: ActEndpointStop :one
select samekey.endpoint_stop(@destination::text, @name::text, @actor::text, @reason::text)::boolean;

-- name: ActEndpointStart :one
select samekey.endpoint_start(@destination::text, @name::text)::boolean;

-- name: ActEndpointDelete :one
select samekey.endpoint_delete(@destination::text, @name::text)::boolean;

-- name: ActResolveStep :exec
select samekey.resolve_step(@scope::text, @idem_key::text, @step::text, @outcome::text, @actor::text, @reason::text,
                            sqlc.narg('code')::int, sqlc.narg('result')::bytea);

-- name: ActAbandonOperation :exec
select samekey.abandon_operation(@scope::text, @idem_key::text, @actor::text, @reason::text, @code::int, @body::bytea);

-- name: ActRedriveAll :many
-- Redrives dead and parked intents, the oldest first. It leaves out those that may have been sent and must not be sent
-- twice, and skips rows that another transaction has locked. attempts_used starts at 0 again, and an approval is needed
-- again. An intent that left its order stays out of it.
with picked as materialized (
    select array(
        select q.id
        from samekey.outbox_queue q
        cross join lateral (select o.scope, o.idem_key, o.part, o.subject, o.created_at from samekey.outbox o where o.id = q.id offset 0) o
        where q.status in ('parked', 'dead') and q.status = any (@statuses::text[])
          and (q.safe_to_resend or q.first_sent_at is null)
          and (@action::text = '' or q.action = @action)
          and (@code::text = '' or q.last_code = @code)
          and (@scope::text = '' or o.scope = @scope)
          and (@part::text = '' or o.part = @part)
          and (@idem_key::text = '' or o.idem_key = @idem_key)
          and (@subject::text = '' or o.subject = @subject)
          and (@reference::text = '' or q.id in (select r.intent_id from samekey.outbox_history r where r.reference = @reference::text and r.reference is not null))
          and (@age_us::bigint = 0 or o.created_at < clock_timestamp() - (@age_us::bigint) * interval '1 microsecond')
        order by q.id
        limit @max_count
        for update of q skip locked) as ids
), redriven as (
    update samekey.outbox_queue q
    set status = 'pending', due_at = clock_timestamp(), attempts_used = 0, approved_at = null, attempt = q.attempt + 1
    from picked p
    where q.id = any (p.ids)
    returning q.id, q.action
), logged as (
    insert into samekey.outbox_history (intent_id, event, actor, reason, db_user)
    select r.id, 'redriven', @actor::text, @reason::text, session_user from redriven r
)
select r.action from redriven r;
