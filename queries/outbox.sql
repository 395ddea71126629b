-- The intent: written once, never changed.

-- name: OutboxEnqueue :one
-- Every semantic is in the SQL function, so that psql, triggers and other languages have the same.
select samekey.enqueue(@scope::text, @idem_key::text, @action::text, @payload::bytea, @part::text, @content_type::text,
                       @headers::jsonb, sqlc.narg('ordering_key')::text, sqlc.narg('due_at')::timestamptz,
                       sqlc.narg('deadline')::timestamptz, sqlc.narg('trace_context')::text, @id::uuid,
                       @must_be_new::boolean)::uuid;
