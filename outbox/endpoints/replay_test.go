package endpoints_test

import (
	"testing"
	"time"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// docs/vendors/webhooks.md shows these lines: what one receiver has missed since a time is redriven, and nothing else.
func TestReplayOfWhatAReceiverMissed(t *testing.T) {
	on := samekeytest.NewDB(t)
	ctx, pool := t.Context(), on.Pool
	dead := func(part, age string) string {
		id := dbtest.Insert(t, on, outbox.Intent{Action: "notify", Part: part, Payload: map[string]int{"n": 1}})
		for _, sql := range []string{
			`update samekey.outbox_queue set status = 'dead', last_code = '503' where id = $1 and $2 <> ''`,
			`update samekey.outbox set created_at = clock_timestamp() - $2::interval where id = $1`,
		} {
			if _, err := on.Exec(t.Context(), sql, id, age); err != nil {
				t.Fatal(err)
			}
		}
		return id.String()
	}
	missed := dead("shop-17", "47 hours")
	dead("shop-17", "49 hours")
	dead("shop-18", "1 hour")

	filter := outbox.Filter{Action: "notify", Part: "shop-17", From: time.Now().Add(-48 * time.Hour)}
	replay := outbox.RedriveAll(filter, outbox.By{Actor: "ada", Reason: "shop-17 asked for it"})
	plan, err := replay.Plan(ctx, pool)
	if err != nil || plan.Intents != 1 || plan.Sample[0].String() != missed {
		t.Fatalf("%+v, %v", plan, err)
	}
	for _, want := range []int{1, 0} { // a second run finds no dead intent
		if n, err := replay.Run(ctx, pool); err != nil || n != want {
			t.Fatal(n, err)
		}
	}
	var id string
	if err := on.QueryRow(t.Context(), `select id::text from samekey.outbox_queue where status = 'pending'`).Scan(&id); err != nil || id != missed {
		t.Errorf("redriven %s, %v", id, err)
	}
}
