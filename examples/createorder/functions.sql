-- What the worker of worker.yaml does in the shop's tables. worker/main.go has the same functions in Go.
--
-- Run it as the role that owns the shop's tables, which is not a superuser. That role then owns the functions, and they
-- have its rights, whoever calls them (security definer). It needs EXECUTE on samekey.enqueue for the receipt: `worker
-- migrate -app-role ROLE` grants that. Only the worker's role may call them:
--
--   grant usage on schema shop to WORKER;
--   grant execute on function shop.charge_settled(jsonb), shop.charge_needs_attention(jsonb) to WORKER;

-- Called once, in the transaction that finishes a charge (Apply, the completion callback): the order's state and the
-- intent to send a receipt are committed together with the vendor's answer.
create or replace function shop.charge_settled(event jsonb) returns void
    language plpgsql security definer
    set search_path = shop, pg_temp
as $$
declare
    v_order orders;
begin
    update orders
    set state     = case event->>'outcome' when 'delivered' then 'paid' else 'payment_failed' end,
        charge_id = event->>'reference',
        problem   = null
    where id = (event->'payload'->>'order_id')::uuid
    returning * into strict v_order;
    if event->>'outcome' = 'delivered' then
        perform samekey.enqueue(scope => event->>'scope', idem_key => event->>'key', subject => event->>'subject',
            action => 'send_receipt',
            payload => jsonb_build_object('order_id', v_order.id, 'amount', v_order.amount, 'to', v_order.email));
    end if;
end
$$;
revoke execute on function shop.charge_settled(jsonb) from public;

-- Called if a charge needs a person (dead, parked, awaiting_approval), or if a person cancelled it.
create or replace function shop.charge_needs_attention(event jsonb) returns void
    language plpgsql security definer
    set search_path = shop, pg_temp
as $$
begin
    update orders
    set problem = event->>'status',
        state   = case event->>'status' when 'cancelled' then 'payment_failed' else state end
    where id = (event->'payload'->>'order_id')::uuid;
end
$$;
revoke execute on function shop.charge_needs_attention(jsonb) from public;
