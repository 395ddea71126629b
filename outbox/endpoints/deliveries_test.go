package endpoints_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

// called writes an event into the log of an endpoint, as a worker does.
func called(t *testing.T, on *samekeytest.DB, endpoint, code string) {
	t.Helper()
	id := dbtest.Insert(t, on, outbox.Intent{Action: "notify", Part: code, Payload: map[string]int{"n": 1}})
	if _, err := on.Exec(t.Context(), `insert into samekey.outbox_history (intent_id, event, outcome, code, endpoint) values ($1, 'attempt', 'retry', $2, $3)`, id, code, endpoint); err != nil {
		t.Fatal(err)
	}
}

// A name may contain what separates it from the destination.
func TestDeliveriesOfOneEndpointInPages(t *testing.T) {
	on := samekeytest.NewDB(t)
	var want []string
	for i := range 7 {
		code := fmt.Sprint(500 + i)
		called(t, on, "webhooks/a/b", code)
		want = append(want, code)
		for _, other := range []string{"webhooks/a", "webhooks/b", "hooks/a/b", "webhooks/A/B"} {
			called(t, on, other, "other")
		}
	}
	slices.Reverse(want)
	var got []string
	for before := int64(0); ; {
		page, err := endpoints.Deliveries(t.Context(), on, "webhooks", "a/b", before, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page {
			if d.Status != outbox.StatusPending || d.Action != "notify" || d.Took != 0 {
				t.Errorf("%+v", d)
			}
			got = append(got, d.Code)
		}
		if len(page) < 3 {
			break
		}
		before = page[2].ID
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err := endpoints.Deliveries(t.Context(), on, "webhooks", "", 0, 1001)
	if err == nil || !strings.Contains(err.Error(), "Name") || !strings.Contains(err.Error(), "limit 1001") {
		t.Errorf("without a name, and with a large limit: %v", err)
	}
}
