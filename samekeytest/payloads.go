package samekeytest

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/outbox"
)

// maxStored is how many payloads DecodeStored reads.
const maxStored = 10_000

// DecodeStored runs the stored payloads of an action through today's decoder, as a worker would, and returns what they
// became, the newest first. The test fails for each payload that does not decode, with the id and the reason, without
// the payload. Run it against a copy of production's table, or against rows that an earlier release wrote, before you
// deploy a change of T or an [outbox.Action.Version].
//
// It reads the last 10,000 intents of the action, finished ones too, as far as they are neither pruned nor
// erased. db needs the right to read samekey.outbox, as the worker's and the operator's roles have it.
func DecodeStored[T any](t testing.TB, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, action outbox.Action[T]) []T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rows, err := db.Query(ctx, `select id, content_type, payload from samekey.outbox where action = $1 and erased_at is null order by id desc limit $2`, action.Name(), maxStored)
	if err != nil {
		t.Fatalf("samekeytest: read the payloads of %s: %v", action.Name(), err)
	}
	var decoded []T
	var id uuid.UUID
	var contentType string
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &contentType, &payload}, func() error {
		value, err := action.Decode(contentType, payload)
		if err != nil {
			t.Errorf("samekeytest: intent %s of %s: %v", id, action.Name(), err)
			return nil
		}
		decoded = append(decoded, value)
		return nil
	})
	if err != nil {
		t.Fatalf("samekeytest: read the payloads of %s: %v", action.Name(), err)
	}
	return decoded
}
