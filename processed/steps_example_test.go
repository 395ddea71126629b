package processed_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

const seatTables = `
create table seats (id text primary key, state text not null default 'free');
insert into seats values ('12A'), ('12B')`

type booking struct {
	Seat   string
	Charge string
}

// bookSeat reserves a seat, charges the card, and confirms the seat with the
// vendor's answer. If the card is declined, it gives the seat back.
func bookSeat(ctx context.Context, pool *pgxpool.Pool, req processed.Request, seat string, charge func(context.Context, uuid.UUID) (string, error)) (processed.Result[booking], error) {
	return processed.Steps(ctx, pool, req, func(ctx context.Context, op *processed.Operation) (booking, error) {
		_, err := processed.Step(ctx, op, "reserve", func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
			return struct{}{}, setSeat(ctx, tx, seat, "free", "reserved")
		})
		if err != nil {
			return booking{}, err
		}

		id, err := processed.Call(ctx, op, "charge", processed.VendorCall[string]{
			Send:      charge,
			KeyWindow: 24 * time.Hour, // the vendor remembers keys for a day
		})
		if declined, ok := errors.AsType[*processed.Failure](err); ok {
			_, err := processed.Step(ctx, op, "release", func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
				return struct{}{}, setSeat(ctx, tx, seat, "reserved", "free")
			})
			return booking{}, cmp.Or(err, error(declined))
		}
		if err != nil {
			return booking{}, err
		}

		return processed.Step(ctx, op, "confirm", func(ctx context.Context, tx pgx.Tx) (booking, error) {
			if err := setSeat(ctx, tx, seat, "reserved", "booked"); err != nil {
				return booking{}, err
			}
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_ticket", Payload: booking{Seat: seat, Charge: id}})
			return booking{Seat: seat, Charge: id}, err
		})
	})
}

func setSeat(ctx context.Context, tx pgx.Tx, seat, from, to string) error {
	tag, err := tx.Exec(ctx, "update seats set state = $3 where id = $1 and state = $2", seat, from, to)
	if err == nil && tag.RowsAffected() == 0 {
		return processed.Fail(http.StatusConflict, "the seat is taken")
	}
	return err
}

// An operation that needs a vendor's answer between two transactions. The first
// answer is lost on its way; the next call with the same key resumes.
func ExampleSteps() {
	answers := 0
	vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answers++; answers == 1 {
			panic(http.ErrAbortHandler) // it has charged the card, and the connection breaks
		}
		_, _ = fmt.Fprint(w, "ch_1") // the same charge for the same key
	}))
	defer vendor.Close()
	charge := func(ctx context.Context, key uuid.UUID) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, vendor.URL, http.NoBody)
		if err != nil {
			return "", err
		}
		req.Header.Set("Idempotency-Key", key.String())
		req.GetBody = nil
		res, err := vendor.Client().Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = res.Body.Close() }()
		id, err := io.ReadAll(res.Body)
		if res.StatusCode == http.StatusPaymentRequired {
			return "", processed.Fail(http.StatusPaymentRequired, "the card is declined")
		}
		return string(id), err
	}

	db, done := exampletb.DB(seatTables)
	defer done()
	key, err := samekey.NewKey("5c1d3f0a", "acme", "book_seat")
	if err != nil {
		panic(err)
	}
	for range 3 {
		res, err := bookSeat(context.Background(), db.Pool, processed.Request{Key: key, Payload: []byte(`{"seat":"12A"}`)}, "12A", charge)
		fmt.Println(res.Value, res.Deduplicated, errors.Is(err, processed.ErrInDoubt))
	}
	// Output:
	// { } false true
	// {12A ch_1} false false
	// {12A ch_1} true false
}
