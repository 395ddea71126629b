package schema_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/samekeytest"
)

// A later migration adds columns while writers and workers of this release use prepared statements. None of the
// statements fails, since each names its columns.
func TestAddColumnWhileIntentsAreWrittenAndClaimed(t *testing.T) {
	database := samekeytest.NewDB(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	liveness, err := database.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer liveness.Release()
	execSQL(t, liveness, `select pg_advisory_lock(samekey.worker_class(), 1)`)
	defer execSQL(t, liveness, `select pg_advisory_unlock_all()`)

	var mu sync.Mutex
	written, claimed := map[uuid.UUID]bool{}, map[uuid.UUID]int{}
	claim := func(ctx context.Context) (int, error) {
		rows, err := db.New(database).OutboxQueueClaim(ctx, db.OutboxQueueClaimParams{
			Action: "charge_card", DueFrom: time.Unix(0, 0), Worker: 1, Destination: "stripe", MaxBytes: 1 << 22, InlineBytes: 1 << 15, MaxCount: 10, Lease: time.Hour,
		})
		mu.Lock()
		defer mu.Unlock()
		for _, row := range rows {
			claimed[row.ID]++
		}
		return len(rows), err
	}

	altered := make(chan struct{})
	busy := func(work func(ctx context.Context, i int) error) func() error {
		return func() error {
			for i := 0; ; i++ {
				if err := work(ctx, i); err != nil {
					return err
				}
				select {
				case <-altered:
					return nil
				default:
				}
			}
		}
	}
	var group errgroup.Group
	for w := range 3 {
		group.Go(busy(func(ctx context.Context, i int) error {
			var id uuid.UUID
			err := database.QueryRow(ctx, `select samekey.enqueue('s', $1, 'charge_card', '{}', ordering_key => $2)`,
				fmt.Sprintf("key %d %d", w, i), fmt.Sprintf("order %d %d", w, i)).Scan(&id)
			mu.Lock()
			defer mu.Unlock()
			written[id] = true
			return err
		}))
	}
	for range 2 {
		group.Go(busy(func(ctx context.Context, _ int) error {
			_, err := claim(ctx)
			return err
		}))
	}
	for i := range 5 {
		for _, table := range []string{"outbox", "outbox_queue", "outbox_history", "processed_events"} {
			execSQL(t, database, fmt.Sprintf(`alter table samekey.%s add column added_%d text not null default ''`, table, i))
		}
	}
	close(altered)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}

	for {
		n, err := claim(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	if len(written) == 0 || len(claimed) != len(written) {
		t.Errorf("%d intents were written, %d claimed", len(written), len(claimed))
	}
	for id, times := range claimed {
		if times != 1 || !written[id] {
			t.Errorf("intent %s was claimed %d times, written: %v", id, times, written[id])
		}
	}
	t.Logf("%d intents", len(written))
}
