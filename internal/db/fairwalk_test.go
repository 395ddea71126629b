package db_test

import (
	"reflect"
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
	walk := func(p db.OutboxQueueSharesParams) db.OutboxQueueSharesRow {
		row, err := q.OutboxQueueShares(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	for _, from := range []string{"", "tenant-03", "tenant-03\x01", "zzz"} {
		for _, most := range []int32{100, 4, 3, 1} {
			p := db.OutboxQueueSharesParams{Action: "charge_card", FromShare: from, DueFrom: time.Unix(0, 0), MaxSteps: most, PageSize: 1}
			want := walk(p)
			if from == "" && len(want.Shares) < int(min(most, 20)) {
				t.Fatalf("%+v: found %d shares only", p, len(want.Shares))
			}
			for _, p.PageSize = range []int32{2, 7, 30, 1000} {
				got := walk(p)
				if len(got.Shares) == 0 {
					got.FirstDue = want.FirstDue // the time of each walk
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%+v: got %v, want %v", p, got, want)
				}
			}
		}
	}
}

// The low-water mark must not hide what is committed while the first intent of all is due later.
func TestWalkTellsNoMarkAfterNow(t *testing.T) {
	database := samekeytest.NewDB(t)
	if _, err := database.Exec(t.Context(), `
		insert into samekey.outbox_queue (id, action, status, due_at, share)
		select gen_random_uuid(), 'charge_card', 'pending', now() + interval '1 hour', 'tenant-' || n from generate_series(1, 3) n`); err != nil {
		t.Fatal(err)
	}
	for _, page := range []int32{1, 10} {
		row, err := db.New(database).OutboxQueueShares(t.Context(), db.OutboxQueueSharesParams{
			Action: "charge_card", DueFrom: time.Unix(0, 0), MaxSteps: 10, PageSize: page})
		if err != nil {
			t.Fatal(err)
		}
		if len(row.Shares) != 3 || time.Until(row.FirstDue) > time.Minute || time.Since(row.FirstDue) > time.Minute {
			t.Errorf("pages of %d: %d shares, first due at %v", page, len(row.Shares), row.FirstDue)
		}
	}
}
