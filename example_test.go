package samekey_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
)

// The scope says whose key it is and for which operation, the value is what the caller sent. Printing shows a hash
// only.
func ExampleNewKey() {
	key, err := samekey.NewKey("order-1", "acme", "orders.create")
	fmt.Println(key.Scope, key.Value, key, err)

	_, err = samekey.NewKey("order-1 ", "acme", "orders.create")
	fmt.Println(err)

	var invalid *samekey.KeyError
	_, err = samekey.NewKey("order-1", "acme", "")
	fmt.Println(errors.As(err, &invalid), invalid.Field, invalid.Reason)
	// Output:
	// acme/orders.create order-1 key:ff043d13 <nil>
	// samekey: key: value starts or ends with a space: send 1 to 255 bytes of printable ASCII without spaces at the ends, such as a UUID, and send the same with every attempt
	// true scope part 2 is empty
}

// A client mints once for each operation, and sends the same with every attempt at it.
func ExampleMint() {
	value := samekey.Mint()
	for range 2 {
		key, err := samekey.NewKey(value, "acme", "orders.create")
		fmt.Println(len(value), key.Value == value, err)
	}
	// Output:
	// 36 true <nil>
	// 36 true <nil>
}

// Spelling does not matter, meaning does.
func ExampleFingerprintJSON() {
	first, _ := samekey.FingerprintJSON([]byte(`{"amount": 1.0, "currency": "EUR"}`))
	again, _ := samekey.FingerprintJSON([]byte(`{"currency":"\u0045UR","amount":1}`))
	other, _ := samekey.FingerprintJSON([]byte(`{"amount":1.0000000000000000000001,"currency":"EUR"}`))
	fmt.Println(first == again, first == other)

	_, err := samekey.FingerprintJSON([]byte(`{"amount": 1, "amount": 2}`))
	fmt.Println(err)
	// Output:
	// true false
	// samekey: fingerprint: an object has a member name twice at offset 14: send each name once: parsers disagree on which one counts
}

// A stored fingerprint is compared under the version that it was stored with.
func ExampleFingerprint_Matches() {
	stored := samekey.FingerprintBytes([]byte("first request"))
	same, err := stored.Matches([]byte("first request"))
	fmt.Println(same, err)
	// Output:
	// true <nil>
}

func ExampleDeliveryKey() {
	key := samekey.Key{Scope: "acme/orders.create", Value: "order-1"}
	fmt.Println(samekey.DeliveryKey(key, "charge_card", ""))
	fmt.Println(samekey.DeliveryKey(key, "send_receipt", ""))
	// Output:
	// 19ff97c1-7f6e-8cca-a424-270c1111580a
	// 29c4aaca-b363-8cad-8482-47197c7ce4d9
}

// With database/sql, and what is built on it, the transaction stays yours: begin it, hand it to samekey, commit it.
func ExampleSQL() {
	createOrder := func(ctx context.Context, db *sql.DB) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, "insert into orders (id) values ($1)", 1); err != nil {
			return err
		}
		if err := writeIntents(ctx, samekey.SQL(tx)); err != nil {
			return err
		}
		return tx.Commit()
	}

	database, done := exampletb.DB("create table orders (id int)")
	defer done()
	db, err := sql.Open("pgx", database.DSN)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	fmt.Println(createOrder(context.Background(), db))
	// Output: <nil>
}

// writeIntents stands for what takes a samekey.Tx, such as outbox.Insert.
func writeIntents(context.Context, samekey.Tx) error { return nil }
