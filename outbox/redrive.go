package outbox

import (
	"context"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
)

// Redrive makes a dead or parked intent due now. It has all its attempts again, and the same delivery key and bytes. An
// irreversible action needs approval again. If its ordering key moved on without it, the intent stays out of the order.
//
// If its deadline has passed, the intent becomes dead again: insert a new one. If the vendor refused the bytes, a
// redrive sends the same bytes: [Replace] the intent.
//
// Any other state is a [*StateError], and so is an intent that may have been sent and must not be sent twice. Find out
// what happened and [Resolve] it; an intent that is resolved as not sent can be redriven.
func Redrive(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return act(ctx, on, "redrive", id, by, func(q *db.Queries) ([]string, error) {
		return q.ActRedrive(ctx, db.ActRedriveParams{ID: id, Actor: by.Actor, Reason: by.Reason})
	})
}
