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

-- name: ActReplace :one
select samekey.replace(@id::uuid, @actor::text, @reason::text, sqlc.narg('deadline')::timestamptz)::uuid as successor,
       coalesce((select o.action from samekey.outbox o where o.id = @id), '')::text as action;

-- name: ActReplacePayload :one
select samekey.replace_payload(@id::uuid, @payload::bytea, @actor::text, @reason::text, @content_type::text, sqlc.narg('deadline')::timestamptz)::uuid as successor,
       coalesce((select o.action from samekey.outbox o where o.id = @id), '')::text as action;

-- name: ActPause :exec
select samekey.pause(@destination::text, @actor::text, @reason::text, @action::text, sqlc.narg('until')::timestamptz);

-- name: ActResume :exec
select samekey.resume(@destination::text, @actor::text, @reason::text, @action::text);

-- name: ActEndpointPut :exec
select samekey.endpoint_put(@destination::text, @name::text, @url::text, @actor::text, @reason::text, @secrets::text[], (@headers::text)::jsonb);

-- name: ActEndpointStop :one
select samekey.endpoint_stop(@destination::text, @name::text, @actor::text, @reason::text)::boolean;

-- name: ActEndpointStart :one
select samekey.endpoint_start(@destination::text, @name::text, @actor::text, @reason::text)::boolean;

-- name: ActEndpointTest :one
select t.id::uuid as id
from (select samekey.endpoint_test(@destination::text, @name::text, @action::text, @payload::bytea, @actor::text, @reason::text) as id) t
where t.id is not null;

-- name: ActEndpointDelete :one
select samekey.endpoint_delete(@destination::text, @name::text, @actor::text, @reason::text)::boolean;

-- name: ActResolveStep :exec
select samekey.resolve_step(@scope::text, @idem_key::text, @step::text, @outcome::text, @actor::text, @reason::text,
                            sqlc.narg('code')::int, sqlc.narg('result')::bytea);

-- name: ActAbandonOperation :exec
select samekey.abandon_operation(@scope::text, @idem_key::text, @actor::text, @reason::text, @code::int, @body::bytea);

-- Many intents, one batch per statement.

-- name: ActRedriveAll :one
select a.changed::int as changed, a.last_id, a.actions::text[] as actions
from samekey.redrive_all((@filter::text)::jsonb, @actor::text, @reason::text, @max_count::int, sqlc.narg('after_id')::uuid) a;

-- name: ActCancelAll :one
select a.changed::int as changed, a.last_id, a.actions::text[] as actions
from samekey.cancel_all((@filter::text)::jsonb, @actor::text, @reason::text, @max_count::int, sqlc.narg('after_id')::uuid) a;

-- name: ActResolveAll :one
select a.changed::int as changed, a.last_id, a.actions::text[] as actions
from samekey.resolve_all((@filter::text)::jsonb, @outcome::text, @actor::text, @reason::text, @code::text, @response_type::text, @response::bytea,
                         @reference::text, @max_count::int, sqlc.narg('after_id')::uuid) a;

-- name: ActReplaceAll :one
select a.changed::int as changed, a.last_id, a.actions::text[] as actions
from samekey.replace_all((@filter::text)::jsonb, @actor::text, @reason::text, sqlc.narg('deadline')::timestamptz, @max_count::int,
                         sqlc.narg('after_id')::uuid) a;

-- name: ActReplacePayloadAll :one
select a.changed::int as changed, a.last_id, a.actions::text[] as actions
from samekey.replace_payload_all((@filter::text)::jsonb, (@patch::text)::jsonb, @actor::text, @reason::text, sqlc.narg('deadline')::timestamptz,
                                 @max_count::int, sqlc.narg('after_id')::uuid) a;

-- name: ActBulkPlan :one
select p.intents::bigint as intents, p.sample::uuid[] as sample, p.may_have_been_sent::bigint as may_have_been_sent,
       p.past_deadline::bigint as past_deadline, p.not_patchable::bigint as not_patchable
from samekey.bulk_plan(@act::text, (@filter::text)::jsonb, @outcome::text, (sqlc.narg('patch')::text)::jsonb, sqlc.narg('deadline')::timestamptz) p;

-- name: ActEraseSubject :one
select e.intents::int as intents, e.records::int as records, e.skipped::int as skipped, coalesce(e.next::text, '')::text as next
from samekey.erase_subject(@subject::text, @actor::text, @reason::text, @max_count::int, (sqlc.narg('after')::text)::jsonb) e;

-- name: ActEraseScope :one
select e.intents::int as intents, e.records::int as records, e.skipped::int as skipped, coalesce(e.next::text, '')::text as next
from samekey.erase_scope(@scope::text, @actor::text, @reason::text, @max_count::int, (sqlc.narg('after')::text)::jsonb) e;

-- name: ActErasePlan :one
select p.intents::bigint as intents, p.records::bigint as records, p.unfinished::bigint as unfinished, p.sample::uuid[] as sample,
       p.requests::bigint as requests
from samekey.erase_plan(@subject::text, @scope::text) p;

-- name: CauseGroups :many
select g.status::text as status, g.action::text as action, coalesce(g.code, '')::text as code, coalesce(g.cause, '')::text as cause,
       g.intents::bigint as intents
from samekey.cause_groups(sqlc.narg('actions')::text[], @max_count::int) g;
