package endpoints_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

// A customer registers a receiver. An event goes to every receiver that is not stopped, with one intent each.
func Example() {
	ctx := context.Background()
	t, done := exampletb.New()
	defer done()
	pool := samekeytest.NewDB(t).Pool // yours

	for _, shop := range []string{"shop-17", "shop-18"} {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// ... your own rows ...
			return endpoints.Put(ctx, tx, endpoints.Endpoint{
				Destination: "webhooks", Name: shop, URL: "https://shop.example/hooks", Secrets: []string{endpoints.NewSecret()},
			}, outbox.By{Actor: shop, Reason: "registered a receiver"})
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	by := outbox.By{Actor: "ada", Reason: "the shop is closed until spring"}
	if err := endpoints.Stop(ctx, pool, "webhooks", "shop-18", by); err != nil {
		log.Fatal(err)
	}

	key, err := samekey.NewKey("order-1", "acme", "order.paid")
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		all, err := endpoints.List(ctx, tx, "webhooks", "", 1000)
		if err != nil {
			return err
		}
		var intents []outbox.Intent
		for _, e := range all {
			if !e.Stopped() {
				fmt.Println("to", e)
				intents = append(intents, outbox.Intent{Key: key, Action: "notify", Part: e.Name, Payload: []byte(`{"type": "order.paid"}`)})
			}
		}
		_, err = outbox.InsertMany(ctx, tx, intents)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	outbox.Flush(pool, "notify")
	// Output: to webhooks/shop-17
}

// A customer's portal sends a test to a receiver, and shows what was sent to it.
func Example_portal() {
	ctx := context.Background()
	t, done := exampletb.New()
	defer done()
	pool := samekeytest.NewDB(t).Pool // yours

	err := endpoints.Put(ctx, pool, endpoints.Endpoint{
		Destination: "webhooks", Name: "shop-17", URL: "https://shop.example/hooks", Secrets: []string{endpoints.NewSecret()},
	}, outbox.By{Actor: "shop-17", Reason: "registered a receiver"})
	if err != nil {
		log.Fatal(err)
	}
	id, err := endpoints.Test(ctx, pool, "webhooks", "shop-17", "notify", []byte(`{"type": "ping"}`), outbox.By{Actor: "shop-17", Reason: "asked for a test"})
	if err != nil {
		log.Fatal(err)
	}
	outbox.Flush(pool, "notify")
	entry, err := outbox.Get(ctx, pool, id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(entry.Part, entry.Status)

	var before int64
	page, err := endpoints.Deliveries(ctx, pool, "webhooks", "shop-17", before, 50) // before: 0, then the last ID of the page
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(page), "calls so far")
	// Output:
	// shop-17 pending
	// 0 calls so far
}
