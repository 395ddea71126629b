package processed_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/processed"
)

const lineTables = `
create table lines (id text primary key, quantity int not null, version int not null default 1);
create table accounts (id text primary key, balance bigint not null)`

var errChanged = errors.New("another caller changed it: read it again and decide again")

// setQuantity writes an absolute value, so it can be repeated without a key. The
// version keeps a late repetition from undoing later changes.
func setQuantity(ctx context.Context, tx samekey.Tx, line string, quantity, version int) error {
	tag, err := tx.Exec(ctx, `
		update lines set quantity = $2, version = $3 + 1
		where id = $1 and (version = $3 or (version = $3 + 1 and quantity = $2))`, line, quantity, version)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return errChanged
	}
	return nil
}

// addCredit adds an amount. Each repetition would add it again, so it needs a key.
func addCredit(ctx context.Context, pool *pgxpool.Pool, req processed.Request, account string, amount int64) (processed.Result[int64], error) {
	return processed.Run(ctx, pool, req, func(ctx context.Context, tx pgx.Tx) (balance int64, err error) {
		err = tx.QueryRow(ctx, `
			update accounts set balance = balance + $2 where id = $1
			returning balance`, account, amount).Scan(&balance)
		return balance, err
	})
}

// An absolute change needs no key; a relative one does.
func Example_absoluteState() {
	change := func(ctx context.Context, pool *pgxpool.Pool, req processed.Request) error {
		for range 3 { // a client that is not sure, three times
			if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return setQuantity(ctx, tx, "line-1", 3, 1) }); err != nil {
				return err
			}
			credited, err := addCredit(ctx, pool, req, "account-1", 10)
			if err != nil {
				return err
			}
			fmt.Println(credited.Value, credited.Deduplicated)
		}
		return nil
	}

	db, done := exampletb.DB(lineTables, `insert into lines values ('line-1', 1)`, `insert into accounts values ('account-1', 0)`)
	defer done()
	key := samekey.Key{Scope: "acme/add_credit", Value: "call-1"}
	if err := change(context.Background(), db.Pool, processed.Request{Key: key, Payload: []byte(`{"credit":10}`)}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 10 false
	// 10 true
	// 10 true
}
