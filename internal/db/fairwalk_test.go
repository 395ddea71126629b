package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/samekeytest"
)

// A walk that reads a page first finds what a walk from share to share finds.
func TestWalkOfAPageFindsTheSameShares(t *testing.T) {
	database := samekeytest.NewDB(t)
	if _, err := database.Exec(t.Context(), `
		insert into samekey.outbox_queue (id, action, status, due_at, share)
		select gen_random_uuid(), 'charge_card', case when n % 7 = 0 then 'dead' else 'pending' end,
		       now() + case when n % 5 = 0 then interval '1 hour' else -n * interval '1 s' end, 'tenant-' || to_char(n % (1 + n / 3), 'FM00')
		from generate_series(1, 90) n`); err != nil {
		t.Fatal(err)
	}
	q := db.New(database)
	walk := func(p db.OutboxQueueSharesParams) []db.OutboxQueueSharesRow {
		rows, err := q.OutboxQueueShares(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for _, from := range []string{"", "tenant-03", "tenant-03\x01", "zzz"} {
		for _, most := range [][2]int32{{100, 100}, {3, 100}, {100, 4}, {1, 1}} {
			p := db.OutboxQueueSharesParams{Action: "charge_card", FromShare: from, DueFrom: time.Unix(0, 0), MaxDue: most[0], MaxSteps: most[1], PageSize: 1}
			want := walk(p)
			if from == "" && len(want) < int(min(most[0], most[1], 20)) {
				t.Fatalf("%+v: found %d shares only", p, len(want))
			}
			for _, p.PageSize = range []int32{2, 7, 30, 1000} {
				if got := walk(p); !slices.Equal(got, want) {
					t.Errorf("%+v: got %v, want %v", p, got, want)
				}
			}
		}
	}
}
