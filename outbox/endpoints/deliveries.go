package endpoints

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/outbox"
)

// Delivery is a call to an endpoint, or an attempt that made none because the endpoint was stopped or the call failed
// before it was sent. It has no URL, payload, answer or secret.
type Delivery struct {
	ID int64     // newer ones have higher ids
	At time.Time // when the attempt ended

	IntentID uuid.UUID
	Action   string

	// Event is "attempt"; "lookup", of an action that looks up what it sent; or "late", an answer that came after
	// another worker had taken the intent over.
	Event   string
	Attempt int // grows with each attempt and lookup of the intent, starting at 1, and may skip numbers

	// Outcome is what the answer meant, as in outbox.Event: "delivered", "retry", "unsent", ..
	Outcome string
	Code    string        // the status of the answer, such as "503"; or why there was none, such as "timeout"
	Took    time.Duration // how long the attempt took; 0 for a late answer

	// Status is the intent's present status, not the one after this attempt.
	Status outbox.Status
}

// Deliveries returns a page of an endpoint's log, newest first: also of a stopped or deleted one. The page ends before
// the id before, or starts with the newest if it is 0. Limit is 1 to 1000. The last page has fewer than limit, and a
// name that was never called has none. Show it to the receiver's owner, whom the caller must have identified.
//
// An attempt is in the log once it is over and its outcome is written. An attempt whose worker died is not in it; that
// the intent was attempted again is. The log is kept as long as the intents are (dispatcher.Retention).
func Deliveries(ctx context.Context, on samekey.Tx, destination, name string, before int64, limit int) ([]Delivery, error) {
	err := checkPage(destination, name, limit)
	if before == 0 {
		before = math.MaxInt64
	}
	var rows []db.EndpointsDeliveriesRow
	if err == nil {
		rows, err = db.New(on).EndpointsDeliveries(ctx, db.EndpointsDeliveriesParams{
			Destination: destination, Name: name, BeforeID: before, MaxCount: int32(limit)})
	}
	if err != nil {
		return nil, fmt.Errorf("endpoints: deliveries to %s/%s: %w", destination, name, err)
	}
	out := make([]Delivery, len(rows))
	for i, row := range rows {
		out[i] = Delivery{ID: row.ID, At: row.At, IntentID: row.IntentID, Action: row.Action, Event: row.Event, Attempt: int(row.Attempt),
			Outcome: row.Outcome, Code: row.Code, Took: time.Duration(row.TookUs) * time.Microsecond, Status: outbox.Status(row.Status)}
	}
	return out, nil
}

func checkPage(destination, name string, limit int) error {
	err := checkName(destination, name)
	if limit < 1 || limit > 1000 {
		err = errors.Join(err, fmt.Errorf("limit %d is outside 1 to 1000", limit))
	}
	return err
}
