// Package createorder is an order service that charges each order once, even if requests are repeated, answers are lost
// or processes are killed. Read create in service.go first, then worker/main.go.
//
// The service imports processed/httpkey and outbox, and therefore pgx. It knows neither the vendors nor the worker that
// calls them.
package createorder

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/outbox"
)

// An order is pending until the payment vendor has answered.
const (
	Pending       = "pending"
	Paid          = "paid"
	PaymentFailed = "payment_failed"
)

// Order is the service's answer.
type Order struct {
	ID       uuid.UUID `json:"id"`
	Product  string    `json:"product"`
	Quantity int       `json:"quantity"`
	Amount   int64     `json:"amount"` // cents
	State    string    `json:"state"`
}

// The actions of an order. The service inserts intents (outbox messages) of these actions, and the worker delivers
// them.
var (
	ChargeCard  = outbox.NewAction[Charge]("charge_card")
	SendReceipt = outbox.NewAction[Receipt]("send_receipt")
)

// Charge is the payload of a ChargeCard intent, and the body of the call.
type Charge struct {
	OrderID uuid.UUID `json:"order_id"`
	Amount  int64     `json:"amount"`
	Card    Card      `json:"card"`
}

// Receipt is the payload of a SendReceipt intent.
type Receipt struct {
	OrderID uuid.UUID `json:"order_id"`
	Amount  int64     `json:"amount"`
	To      string    `json:"to"`
}

// Card identifies a card at the payment vendor. It never contains the number.
type Card struct {
	Token    string `json:"token"`
	Declined bool   `json:"declined,omitempty"` // a test card that the vendor declines
}

// newOrder is the body of POST /orders.
type newOrder struct {
	Product  string `json:"product"`
	Quantity int    `json:"quantity"`
	Email    string `json:"email"`
	Card     Card   `json:"card"`
}

func (o newOrder) validate() error {
	switch {
	case o.Product == "":
		return errors.New("product is missing")
	case o.Quantity < 1 || o.Quantity > 1000:
		return errors.New("quantity must be from 1 to 1000")
	case o.Email == "":
		return errors.New("email is missing")
	case o.Card.Token == "":
		return errors.New("card.token is missing")
	}
	return nil
}

var errUnknownProduct = errors.New("the product does not exist")

// insertOrder writes the order at the current price.
func insertOrder(ctx context.Context, tx pgx.Tx, tenant string, o newOrder) (Order, error) {
	rows, err := tx.Query(ctx, `
		insert into shop.orders (tenant, product, quantity, amount, email)
		select $1, name, $3::int, price * $3::int, $4 from shop.products where name = $2
		returning id, product, quantity, amount, state`, tenant, o.Product, o.Quantity, o.Email)
	if err != nil {
		return Order{}, err
	}
	order, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Order])
	if errors.Is(err, pgx.ErrNoRows) {
		return Order{}, errUnknownProduct
	}
	return order, err
}

// findOrder also returns pgx.ErrNoRows for another tenant's order.
func findOrder(ctx context.Context, pool *pgxpool.Pool, tenant string, id uuid.UUID) (Order, error) {
	rows, err := pool.Query(ctx, `
		select id, product, quantity, amount, state from shop.orders where id = $1 and tenant = $2`, id, tenant)
	if err != nil {
		return Order{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Order])
}

//go:embed schema.sql
var tables string

// Migrate creates the shop's tables if they do not exist. Several processes can call it at once. `worker migrate`
// creates samekey's own tables.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('shop'))`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, tables)
		return err
	})
	if err != nil {
		return fmt.Errorf("createorder: create the shop's tables: %w", err)
	}
	return nil
}
