package outbox

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
)

// DB is where people's decisions are written: a *pgxpool.Pool, a *pgx.Conn, or a pgx.Tx, where the decision is part of
// the caller's transaction. With a pool, the workers are woken at once. With the others, call [Flush] after the commit;
// otherwise the workers find the intent within half a second.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// By names who decided, and why. Both are required and stay in the history. Write them for the next person who looks: a
// name or a service in at most 255 bytes, and a sentence or a ticket in at most 4096. The history also keeps the login
// of the database connection, which a caller cannot choose ([Event].DBUser).
type By struct {
	Actor  string
	Reason string
}

// Approve allows an intent that awaits approval to be sent, once. It becomes due now, or when the vendor's Retry-After
// has passed. Any other state is a [*StateError]: of two people who approve or reject at the same time, one gets the
// error.
//
// Two-person rule: the database login that wrote the intent, and the login that redrove it last, cannot approve it. So
// the application, the operators and the approvers need logins of their own (schema.Roles). The actor in the intent's
// RequestedBy cannot approve it either. Each of them gets a [*StateError].
func Approve(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return act(ctx, on, "approve", id, by, func(q *db.Queries) ([]string, error) {
		return q.ActApprove(ctx, db.ActApproveParams{ID: id, Actor: by.Actor, Reason: by.Reason})
	})
}

// Reject finishes an intent that awaits approval as cancelled. It is not sent, and the next intent with its ordering
// key follows. Any other state is a [*StateError].
func Reject(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return act(ctx, on, "reject", id, by, func(q *db.Queries) ([]string, error) {
		return q.ActReject(ctx, db.ActRejectParams{ID: id, Actor: by.Actor, Reason: by.Reason})
	})
}

// Cancel finishes an intent as cancelled. It is not sent, and the next intent with its ordering key follows. The
// application learns it by dispatcher.Delivery.Attention, if the action has that; or undo its rows yourself, in the same
// transaction if on is a pgx.Tx.
//
// An intent that may have been sent is a [*StateError]: a worker is sending it, it waits for another attempt, or it is
// dead or parked after an attempt that the vendor may have received. Find out what the vendor did and [Resolve] it; an
// intent that is resolved as not sent can be cancelled. [ErrNotFound] means that there is no such intent.
func Cancel(ctx context.Context, on DB, id uuid.UUID, by By) error {
	return act(ctx, on, "cancel", id, by, func(q *db.Queries) ([]string, error) {
		return q.ActCancel(ctx, db.ActCancelParams{ID: id, Actor: by.Actor, Reason: by.Reason})
	})
}

// Validate returns an error if a field is missing or too long. Each function that takes a By calls it.
func (b By) Validate() error {
	if err := checkNote("Actor", b.Actor, 255); err != nil {
		return err
	}
	return checkNote("Reason", b.Reason, 4096)
}

// checkNote checks text that a person wrote.
func checkNote(field, text string, limit int) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("%s is empty: the next person who looks at the history needs it", field)
	case len(text) > limit:
		return fmt.Errorf("%s is %d bytes long, more than %d: shorten it", field, len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Errorf("%s must be text in valid UTF-8, without NUL", field)
	}
	return nil
}
