-- What the queries of this folder read of River's tables, for sqlc alone: River's own migrations make them.
create schema samekey;

create table samekey.river_queue (
    name       text primary key,
    created_at timestamptz not null default now(),
    paused_at  timestamptz,
    updated_at timestamptz not null
);
create table samekey.river_job (
    id    bigint primary key,
    kind  text not null,
    queue text not null,
    state text not null
);
