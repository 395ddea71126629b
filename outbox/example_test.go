package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// exampleDB stands for the pool of your service.
func exampleDB() (*pgxpool.Pool, func()) {
	t, done := exampletb.New()
	return samekeytest.NewDB(t).Pool, done
}

// Declare each action once, in a package that the writer and the worker import.
var ChargeCard = outbox.NewAction[Charge]("charge_card")

type Charge struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

// An order and the charge for it commit together. A request that is repeated gets the first answer and writes nothing.
func ExampleAction_Insert() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	createOrder := func(key samekey.Key, body []byte) (string, error) {
		res, err := processed.Run(ctx, pool, processed.Request{Key: key, Payload: body},
			func(ctx context.Context, tx pgx.Tx) (string, error) {
				// ... insert the order's own rows ...
				_, err := ChargeCard.Insert(ctx, tx, Charge{Order: "order-1", Amount: 500})
				return "order-1", err
			})
		return res.Value, err
	}
	key, err := samekey.NewKey("0198f3a2", "acme", "orders.create") // from the request's Idempotency-Key
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		fmt.Println(createOrder(key, []byte(`{"item":"book"}`)))
	}
	page, err := outbox.List(ctx, pool, outbox.Filter{Action: ChargeCard.Name()})
	fmt.Println("intents:", len(page.Entries), err)
	// Output:
	// order-1 <nil>
	// order-1 <nil>
	// intents: 1 <nil>
}

// Intent is for what Insert has no argument for: here a key, because the transaction is not processed.Run's, and a part
// per charge, because one operation makes two.
func ExampleAction_Intent() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	key, err := samekey.NewKey("order-1", "acme", "orders.create")
	if err != nil {
		log.Fatal(err)
	}
	var intents []outbox.Intent
	for part, amount := range map[string]int64{"goods": 500, "shipping": 20} {
		in := ChargeCard.Intent(Charge{Order: "order-1", Amount: amount})
		in.Key, in.Part = key, part
		intents = append(intents, in)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		ids, err := outbox.InsertMany(ctx, tx, intents)
		fmt.Println(len(ids), "intents")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	outbox.Flush(pool, ChargeCard.Name()) // after the commit
	// Output: 2 intents
}

func ExampleInsert() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	key, err := samekey.NewKey("order-1", "acme", "orders.create")
	if err != nil {
		log.Fatal(err)
	}
	insert := func(amount int) (id uuid.UUID, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// ... the order's own rows ...
			id, err = outbox.Insert(ctx, tx, outbox.Intent{
				Key: key, Action: "charge_card", Payload: map[string]int{"amount": amount},
			})
			return err
		})
		if err == nil {
			outbox.Flush(pool, "charge_card") // after the commit
		}
		return id, err
	}
	first, err := insert(500)
	if err != nil {
		log.Fatal(err)
	}
	again, err := insert(500)
	fmt.Println("the same again:", again == first, err)

	_, err = insert(600)
	var conflict *outbox.ConflictError
	fmt.Println("another payload is a conflict:", errors.As(err, &conflict))
	// Output:
	// the same again: true <nil>
	// another payload is a conflict: true
}

func ExampleInsertMany() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	key, err := samekey.NewKey("order-1", "acme", "orders.create")
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// Two mails of one operation: the part tells them apart.
		ids, err := outbox.InsertMany(ctx, tx, []outbox.Intent{
			{Key: key, Action: "send_mail", Part: "buyer", Payload: map[string]string{"template": "receipt"}},
			{Key: key, Action: "send_mail", Part: "seller", Payload: map[string]string{"template": "sold"}},
		})
		fmt.Println(len(ids), "intents")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 2 intents
}

func ExampleGet() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()
	id := exampleIntent(ctx, pool)

	if err := outbox.Cancel(ctx, pool, id, outbox.By{Actor: "ada", Reason: "the customer called, SUP-17"}); err != nil {
		log.Fatal(err)
	}
	entry, err := outbox.Get(ctx, pool, id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(entry.Action, entry.Status, string(entry.Payload))
	for _, event := range entry.History {
		fmt.Println(event.Event, "by", event.Actor+":", event.Reason)
	}
	// Output:
	// charge_card cancelled {"amount":500}
	// cancelled by ada: the customer called, SUP-17
}

func ExampleStateError() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()
	id := exampleIntent(ctx, pool)

	err := outbox.Redrive(ctx, pool, id, outbox.By{Actor: "ada", Reason: "the vendor is up again"})
	var state *outbox.StateError
	if errors.As(err, &state) {
		fmt.Println(state.Status)
		fmt.Println(state.Do)
	}
	// Output:
	// pending
	// a worker will send it when it is due; cancel takes it back if it was never sent
}

func ExampleList() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()
	exampleIntent(ctx, pool)

	filter := outbox.Filter{Status: outbox.StatusPending, Action: "charge_card"}
	for {
		page, err := outbox.List(ctx, pool, filter)
		if err != nil {
			log.Fatal(err)
		}
		for _, entry := range page.Entries {
			fmt.Println(entry.Action, entry.Status)
		}
		if page.Next == uuid.Nil {
			break
		}
		filter.After = page.Next
	}
	// Output: charge_card pending
}

func ExampleRedriveAll() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	// The vendor was down, and is up again.
	redrive := outbox.RedriveAll(
		outbox.Filter{Status: outbox.StatusDead, Action: "charge_card", Code: "503"},
		outbox.By{Actor: "ada", Reason: "the vendor is up again, INC-4"})
	plan, err := redrive.Plan(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Intents, "intents to redrive, and", plan.MayHaveBeenSent, "to resolve first")
	for batch, err := range redrive.Batches(ctx, pool) {
		if err != nil {
			log.Fatal(err) // run it again to continue
		}
		fmt.Println(batch.Total, "redriven")
	}
	// Output: 0 intents to redrive, and 0 to resolve first
}

func exampleIntent(ctx context.Context, pool *pgxpool.Pool) (id uuid.UUID) {
	key, err := samekey.NewKey(samekey.Mint(), "acme", "orders.create")
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		id, err = outbox.Insert(ctx, tx, outbox.Intent{Key: key, Action: "charge_card", Payload: map[string]int{"amount": 500}})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	return id
}

// An intent as JSON, for a page or a support tool. JSON payloads and answers are shown as JSON, and fields that are not
// set are left out.
func ExampleEntry_MarshalJSON() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	key, err := samekey.NewKey("order-1", "acme", "orders.create")
	if err != nil {
		log.Fatal(err)
	}
	in := ChargeCard.Intent(Charge{Order: "order-1", Amount: 500})
	in.Key, in.Subject = key, "booking/42"
	var id uuid.UUID
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		id, err = outbox.Insert(ctx, tx, in)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	entry, err := outbox.Get(ctx, pool, id)
	if err != nil {
		log.Fatal(err)
	}
	// These differ from run to run.
	entry.ID, entry.WrittenBy, entry.CreatedAt, entry.DueAt = uuid.Nil, "", time.Time{}, time.Time{}
	text, err := json.MarshalIndent(entry, "", "  ")
	fmt.Println(string(text), err)
	// Output:
	// {
	//   "scope": "acme/orders.create",
	//   "key": "order-1",
	//   "action": "charge_card",
	//   "delivery_key": "19ff97c1-7f6e-8cca-a424-270c1111580a",
	//   "content_type": "application/json",
	//   "subject": "booking/42",
	//   "status": "pending",
	//   "payload": {
	//     "order": "order-1",
	//     "amount": 500
	//   }
	// } <nil>
}

// A person's data is deleted before its retention is over. The intent's key stays, so that a repeated request is not
// executed again.
func ExampleErase() {
	ctx := context.Background()
	pool, done := exampleDB()
	defer done()

	key, err := samekey.NewKey("order-1", "acme", "orders.create")
	if err != nil {
		log.Fatal(err)
	}
	in := ChargeCard.Intent(Charge{Order: "order-1", Amount: 500})
	in.Key, in.Subject = key, "customer/42"
	by := outbox.By{Actor: "dpo", Reason: "request 7"}
	var id uuid.UUID
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		id, err = outbox.Insert(ctx, tx, in)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	subject := outbox.Content{Subject: "customer/42"}
	erased, err := outbox.Erase(ctx, pool, subject, by)
	if unfinished, ok := errors.AsType[*outbox.UnfinishedError](err); ok {
		fmt.Println("not finished:", unfinished.Intents)
	}
	if err := outbox.Cancel(ctx, pool, id, by); err != nil {
		log.Fatal(err)
	}
	erased, err = outbox.Erase(ctx, pool, subject, by)
	fmt.Println("erased:", erased.Intents, err)
	entry, err := outbox.Get(ctx, pool, id)
	fmt.Println(entry.Status, len(entry.Payload), entry.ErasedAt.IsZero(), err)
	// Output:
	// not finished: 1
	// erased: 1 <nil>
	// cancelled 0 false <nil>
}
