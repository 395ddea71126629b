-- The shop's own tables. samekey's tables are in a schema of their own in the same database, so one transaction can write
-- an order, its intents and the answer to the request.
create schema if not exists shop;

create table if not exists shop.products (
    name  text   primary key,
    price bigint not null check (price > 0) -- cents
);
insert into shop.products (name, price) values ('tea', 450), ('coffee', 690), ('cake', 1250) on conflict do nothing;

create table if not exists shop.orders (
    id         uuid        primary key default gen_random_uuid(),
    tenant     text        not null,
    product    text        not null references shop.products,
    quantity   integer     not null check (quantity > 0),
    amount     bigint      not null check (amount > 0),
    email      text        not null,
    state      text        not null default 'pending' check (state in ('pending', 'paid', 'payment_failed')),
    charge_id  text,       -- the payment vendor's id
    problem    text,       -- the charge is dead, parked, awaiting_approval or cancelled: a person looks into it, or did
    created_at timestamptz not null default now()
);
