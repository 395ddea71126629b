package processed_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// The database defines which subjects are the same: one function, used by the
// column in the constraint and by every lookup.
const ticketTables = `
create function normal_subject(subject text) returns text immutable strict parallel safe
	language sql return lower(btrim(regexp_replace(subject, '\s+', ' ', 'g')));

create table tickets (
	id           bigint generated always as identity primary key,
	customer     text not null,
	subject      text not null,
	subject_norm text not null generated always as (normal_subject(subject)) stored,
	day          date not null,
	constraint tickets_once_a_day unique (customer, subject_norm, day)
)`

// findOrCreateTicket returns the id of the customer's ticket with that subject and
// day. The day comes from the request: by the server's clock, a retry after
// midnight would create another ticket.
func findOrCreateTicket(ctx context.Context, tx samekey.Tx, customer, subject string, day time.Time) (processed.Result[int64], error) {
	return processed.FindOrCreate(ctx, tx,
		processed.Statement{SQL: `
			insert into tickets (customer, subject, day) values ($1, $2, $3)
			on conflict (customer, subject_norm, day) do nothing
			returning id`, Args: []any{customer, subject, day}},
		processed.Statement{SQL: `
			select id from tickets
			where customer = $1 and subject_norm = normal_subject($2) and day = $3`, Args: []any{customer, subject, day}},
		pgx.RowTo[int64])
}

// Ticket is the answer. New is false if an earlier request created the ticket.
type Ticket struct {
	ID  int64 `json:"id"`
	New bool  `json:"new"`
}

// openTicket is a request with its own key. The customer gets one mail, when the
// ticket is created.
func openTicket(ctx context.Context, pool *pgxpool.Pool, req processed.Request, customer, subject string, day time.Time) (processed.Result[Ticket], error) {
	return processed.Run(ctx, pool, req, func(ctx context.Context, tx pgx.Tx) (Ticket, error) {
		found, err := findOrCreateTicket(ctx, tx, customer, subject, day)
		if err != nil {
			return Ticket{}, err
		}
		ticket := Ticket{ID: found.Value, New: !found.Deduplicated}
		if ticket.New {
			_, err = outbox.Insert(ctx, tx, outbox.Intent{Action: "confirm_ticket", Payload: ticket})
		}
		return ticket, err
	})
}

// Two people of one customer report the same problem, each with their own key:
// one ticket, one mail.
func ExampleFindOrCreate() {
	report := func(ctx context.Context, pool *pgxpool.Pool, first, second processed.Request) error {
		day := time.Date(2026, time.March, 2, 0, 0, 0, 0, time.UTC)
		opened, err := openTicket(ctx, pool, first, "acme", "Printer on fire", day)
		if err != nil {
			return err
		}
		joined, err := openTicket(ctx, pool, second, "acme", " printer  ON FIRE ", day)
		if err != nil {
			return err
		}
		fmt.Println(opened.Value.New, joined.Value.New, opened.Value.ID == joined.Value.ID)
		return nil
	}

	db, done := exampletb.DB(ticketTables)
	defer done()
	request := func(value string) processed.Request {
		return processed.Request{Key: samekey.Key{Scope: "acme/tickets.open", Value: value}, Payload: []byte(`{}`)}
	}
	if err := report(context.Background(), db.Pool, request("first"), request("second")); err != nil {
		fmt.Println(err)
	}
	// Output: true false true
}
