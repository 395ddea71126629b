package main

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/samekeytest"
)

// collect reads the evidence: the database, and the ledgers on disk.
func (d *demo) collect(ctx context.Context) (e evidence, err error) {
	e.replies = d.traffic.replies
	if e.orders, err = d.readOrders(ctx); err != nil {
		return e, err
	}
	if e.intents, err = d.readIntents(ctx); err != nil {
		return e, err
	}
	if e.payments, err = samekeytest.ReadLedger(d.payments.ledger); err != nil {
		return e, err
	}
	if e.mails, err = samekeytest.ReadLedger(d.mail.ledger); err != nil {
		return e, err
	}
	for _, k := range d.kills {
		if err := d.readHeld(ctx, &k); err != nil {
			return e, err
		}
		e.kills = append(e.kills, k)
	}
	return e, nil
}

func (d *demo) readOrders(ctx context.Context) (map[uuid.UUID]order, error) {
	rows, err := d.pool.Query(ctx, `select id, state, amount from shop.orders`)
	if err != nil {
		return nil, err
	}
	orders := map[uuid.UUID]order{}
	var id uuid.UUID
	var o order
	_, err = pgx.ForEachRow(rows, []any{&id, &o.state, &o.amount}, func() error {
		orders[id] = o
		return nil
	})
	return orders, err
}

func (d *demo) readIntents(ctx context.Context) ([]intent, error) {
	rows, err := d.pool.Query(ctx, `
		select o.action, o.delivery_key::text, (convert_from(o.payload, 'UTF8')::jsonb ->> 'order_id')::uuid,
		       coalesce(h.final_status, '')
		from samekey.outbox o
		left join samekey.outbox_history h on h.intent_id = o.id and h.final_status is not null`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (in intent, err error) {
		return in, row.Scan(&in.action, &in.deliveryKey, &in.order, &in.finished)
	})
}

// readHeld reads which intents a killed worker had claimed (the sweep of another worker recorded them), and when each
// was delivered or refused after that.
func (d *demo) readHeld(ctx context.Context, k *kill) error {
	rows, err := d.pool.Query(ctx, `
		select o.action, (convert_from(o.payload, 'UTF8')::jsonb ->> 'order_id')::uuid,
		       (select min(h.at) from samekey.outbox_history h
		        where h.intent_id = o.id and h.at > $2 and h.outcome in ('delivered', 'refused'))
		from (select distinct intent_id from samekey.outbox_history where worker = $1 and event = 'orphaned') held
		join samekey.outbox o on o.id = held.intent_id`, k.worker, k.at)
	if err != nil {
		return err
	}
	k.held = map[uuid.UUID]bool{}
	var action string
	var order uuid.UUID
	var delivered *time.Time
	_, err = pgx.ForEachRow(rows, []any{&action, &order, &delivered}, func() error {
		k.intents++
		if action == k.action {
			k.held[order] = true
		}
		if delivered != nil && delivered.After(k.last) {
			k.last = *delivered
		}
		return nil
	})
	return err
}
