package processed_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// Intents that are written in one statement meet one that exists. Run rolls back and runs again, so that the caller
// stores the true ids.
func TestManyQueuedIntentsMeetOneThatExists(t *testing.T) {
	b := setup(t)
	k := key(t, "order-1")
	part := func(i int) outbox.Intent {
		return outbox.Intent{Key: k, Action: "charge_card", Part: strconv.Itoa(i), Payload: i}
	}
	var first uuid.UUID
	if err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) (err error) {
		first, err = outbox.Insert(t.Context(), tx, part(3))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	calls := 0
	var ids []uuid.UUID
	_, err := processed.Run(t.Context(), b.db.Pool, processed.Request{Key: k, Payload: []byte("{}")}, func(ctx context.Context, tx pgx.Tx) (int, error) {
		calls, ids = calls+1, nil
		for i := range 2 * keyed.Many {
			id, err := outbox.Insert(ctx, tx, part(i))
			if err != nil {
				return 0, err
			}
			ids = append(ids, id)
		}
		return 1, nil
	})
	if err != nil || calls != 2 || ids[3] != first {
		t.Fatalf("%d calls, ids %v, %v; want 2 calls and %s fourth", calls, ids, err, first)
	}
	for i, id := range ids {
		e, err := outbox.Get(t.Context(), b.db.Pool, id)
		if err != nil || e.Part != strconv.Itoa(i) || e.Status != outbox.StatusPending {
			t.Errorf("intent %d is %+v, %v", i, e, err)
		}
	}
}
