package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// parts returns n intents of one key, one for each part.
func parts(t testing.TB, key string, n int) []outbox.Intent {
	intents := make([]outbox.Intent, n)
	for i := range intents {
		intents[i] = outbox.Intent{Key: newKey(t, key), Action: "charge_card", Part: fmt.Sprint(i), Payload: i}
	}
	return intents
}

func insertMany(t testing.TB, on *samekeytest.DB, intents []outbox.Intent) (ids []uuid.UUID, err error) {
	err = pgx.BeginFunc(context.WithoutCancel(t.Context()), on, func(tx pgx.Tx) (err error) {
		ids, err = outbox.InsertMany(context.WithoutCancel(t.Context()), tx, intents)
		return err
	})
	return ids, err
}

func TestManyIntentsKeepTheFirstId(t *testing.T) {
	on := samekeytest.NewDB(t)
	dbtest.Exec(t, on, `insert into samekey.actions (action, fair_by) values ('charge_card', 'part')`)
	intents := parts(t, "order-1", 7)
	before, err := insertMany(t, on, intents[2:3])
	if err != nil {
		t.Fatal(err)
	}
	intents = append(intents, intents[5]) // twice in one call
	ids, err := insertMany(t, on, intents)
	if err != nil {
		t.Fatal(err)
	}
	if ids[2] != before[0] || ids[7] != ids[5] {
		t.Errorf("got the ids %v, want %s third and the sixth twice", ids, before[0])
	}
	for i, in := range intents {
		e := get(t, on, ids[i])
		if e.Part != in.Part || string(e.Payload) != in.Part || e.DeliveryKey != samekey.DeliveryKey(in.Key, in.Action, in.Part) {
			t.Errorf("intent %d is %+v", i, e)
		}
	}
	if n := count(t, on, `select count(*) from samekey.outbox`); n != 7 {
		t.Errorf("%d intents exist, want 7", n)
	}
	if n := count(t, on, `select count(*) from samekey.outbox_queue q join samekey.outbox o using (id) where q.status = 'pending' and q.share = o.part and q.due_at = o.due_at`); n != 7 {
		t.Errorf("%d of 7 are in the queue with their share", n)
	}
	again, err := insertMany(t, on, intents)
	if err != nil || !slices.Equal(again, ids) {
		t.Errorf("repeated: %v, %v", again, err)
	}
}

func TestManyIntentsNameTheOneInConflict(t *testing.T) {
	on := samekeytest.NewDB(t)
	intents := parts(t, "order-1", 6)
	if _, err := insertMany(t, on, intents[3:4]); err != nil {
		t.Fatal(err)
	}
	intents[3].Payload = 99
	var conflict *outbox.ConflictError
	if _, err := insertMany(t, on, intents); !errors.As(err, &conflict) || conflict.Part != "3" {
		t.Errorf("got %v, want a conflict of part 3", err)
	}
	if n := count(t, on, `select count(*) from samekey.outbox`); n != 1 {
		t.Errorf("%d intents exist, want the first", n)
	}
}

func TestManyIntentsInOppositeOrdersDoNotDeadlock(t *testing.T) {
	on := samekeytest.NewDB(t)
	for round := range 20 {
		intents := parts(t, fmt.Sprint("order-", round), 40)
		back := slices.Clone(intents)
		slices.Reverse(back)
		var all sync.WaitGroup
		for _, intents := range [][]outbox.Intent{intents, back} {
			all.Go(func() {
				if _, err := insertMany(t, on, intents); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		all.Wait()
	}
}
