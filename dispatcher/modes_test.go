package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
)

// modes are pgx's query execution modes.
var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

// The application's pool may use any of these modes. A worker that cannot record its outcomes sends again and again.
func TestWorkerRunsInEveryExecMode(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			b := setup(t)
			b.applied()
			config, err := pgxpool.ParseConfig(b.db.DSN)
			if err != nil {
				b.Fatal(err)
			}
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(b.ctx, config)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(pool.Close)

			var mu sync.Mutex
			asked := map[uuid.UUID]int{}
			d := b.dispatcherOn(pool, dispatcher.Config{})
			d.Destination("vendor", dispatcher.Limits{})
			d.Destination("slow", dispatcher.Limits{Rate: 1000, Burst: 10})
			handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), b.post, withApply(
				func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
					_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_receipt", Payload: c, OrderingKey: "receipts"})
					return errors.Join(err, recordPayment(ctx, tx, c, o))
				}))
			receipts := policyOf(dispatcher.IdempotentWrite)
			receipts.Destination = "slow"
			handle(d, "send_receipt", receipts, b.post, withRender(func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Rendered, error) {
				return dispatcher.Rendered{Request: call.Payload, Type: "application/json", MessageID: "m@shop.example"}, nil
			}))
			lost := policyOf(dispatcher.NonIdempotentWrite)
			handle(d, "lose", lost, func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
				return dispatcher.Unknown(dispatcher.Response{Code: "504", Body: []byte("late")}).Because(errors.New("504")), nil
			}, withLookup(func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
				mu.Lock()
				defer mu.Unlock()
				asked[call.ID]++
				return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
			}))
			hook := policyOf(dispatcher.IdempotentWrite)
			hook.Deadline, hook.Destination = time.Hour, "hooks"
			d.Destination("hooks", dispatcher.Limits{})
			handle(d, "hook", hook, b.post, storedByPart)
			if err := endpoints.Put(b.ctx, pool, endpoints.Endpoint{Destination: "hooks", Name: "shop", URL: b.vendor.URL}, by); err != nil {
				b.Fatal(err)
			}

			insert := func() {
				for range 3 {
					b.insert("charge_card", ordered("order-1"))
					b.insert("charge_card")
					b.insert("lose")
					b.insert("hook", func(in *outbox.Intent) { in.Part = "shop" })
				}
			}
			insert()
			b.drain(d)
			b.elapse(time.Minute)
			b.drain(d) // the lookups
			if n := b.count(`select count(*) from samekey.outbox_queue`); n != 0 {
				t.Fatalf("%d intents are left by the drain: %s", n, b.rest())
			}
			insert()
			// The sweep takes an orphan over.
			b.exec(`update samekey.outbox_queue set status = 'leased', attempt = 1, leased_by = 77, safe_to_resend = true, lease_until = now() + interval '1 hour'
				where action = 'hook'`)
			r := b.start(d)
			b.until("all intents are delivered, orphans too", func() bool {
				// In another order, this could deadlock with the worker's settles.
				b.exec(`update samekey.outbox_queue set due_at = now() where id in
					(select id from samekey.outbox_queue where status = 'unknown' for update skip locked)`)
				return b.count(`select count(*) from samekey.outbox_queue`) == 0
			})
			for _, task := range []string{"statistics", "prune", "forget", "reconcile"} {
				if err := d.Upkeep(b.ctx, task); err != nil {
					t.Errorf("%s: %v", task, err)
				}
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			if n := b.count(`select count(*) from payments`); n != 12 {
				t.Errorf("%d payments are written, want 12", n)
			}
			if n := b.count(`select count(*) from samekey.outbox_history where event = 'attempt'`); n != 36 {
				t.Errorf("%d attempts were made, want one for each of 36 intents", n)
			}
			for _, line := range strings.Split(b.logs.String(), "\n") {
				if strings.Contains(line, "level=ERROR") {
					t.Errorf("logged: %s", line)
				}
			}
		})
	}
}

func (b *bundle) rest() string {
	return value[string](b, `select coalesce(string_agg(concat_ws(' ', action, status, last_code), ', '), '') from samekey.outbox_queue`)
}
