package httpvendor

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// Cases 19 and 20, with an intent: each recorded attempt is one request on the wire, with the same key and bytes. The
// wire has no other request.
func TestRecordedAttemptsMatchTheWire(t *testing.T) {
	db := database(t)
	const idempotent, once = dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite
	ok, lost := step{act: true, status: 200}, step{act: true, lose: true}
	times := func(n int, s step, then ...step) []step { return append(slices.Repeat([]step{s}, n), then...) }
	moved := func(status int) []step {
		return []step{{status: status, header: map[string]string{"Location": "/elsewhere"}}}
	}
	for _, tc := range []struct {
		name     string
		class    dispatcher.Class
		attempts int
		action   Action
		script   []step
		want     outbox.Status
		calls    int
	}{
		{"reads and closes", idempotent, 5, Action{}, []step{lost, lost, ok}, "delivered", 3},
		{"reads and closes, once", once, 1, Action{}, []step{lost, ok}, "parked", 1},
		{"reads and closes to the end", idempotent, 3, Action{}, []step{lost}, "dead", 3},
		{"409 three times", idempotent, 1, Action{Retry: status(409, 409)}, times(3, step{status: 409}, ok), "delivered", 4},
		{"409", idempotent, 5, Action{}, []step{{status: 409}}, "parked", 1},
		{"424, once", once, 1, Action{}, []step{{status: 424}}, "parked", 1},
		{"423 twice", idempotent, 3, Action{}, times(2, step{status: 423}, ok), "delivered", 3},
		{"409, once", once, 1, Action{}, []step{{status: 409}}, "parked", 1},
		{"429 thirty times", idempotent, 1, Action{}, times(30, step{status: 429}, ok), "delivered", 31},
		{"429, once", once, 1, Action{}, times(3, step{status: 429}, ok), "delivered", 4},
		{"401 in a burst", idempotent, 1, Action{}, times(5, step{status: 401}, ok), "delivered", 6},
		{"401 in a burst, once", once, 1, Action{}, times(5, step{status: 401}, ok), "delivered", 6},
		{"202 is a success", idempotent, 1, Action{}, []step{{act: true, status: 202}}, "delivered", 1},
		{"503 with Retry-After", idempotent, 1, Action{}, times(3, step{status: 503, header: map[string]string{"Retry-After": "1"}}, ok), "delivered", 4},
		{"503 with Retry-After, once", once, 1, Action{}, []step{{status: 503, header: map[string]string{"Retry-After": "1"}}}, "parked", 1},
		{"200 with an error", idempotent, 5, Action{Rules: []Rule{{Match: Match{Field: "/error"}, Outcome: dispatcher.Refused}}}, []step{{status: 200, body: `{"error":"no"}`}}, "refused", 1},
		{"301", idempotent, 5, Action{}, moved(301), "parked", 1}, {"302", idempotent, 5, Action{}, moved(302), "parked", 1},
		{"303", idempotent, 5, Action{}, moved(303), "parked", 1}, {"307", idempotent, 5, Action{}, moved(307), "parked", 1},
		{"308", idempotent, 5, Action{}, moved(308), "parked", 1}, {"303, once", once, 1, Action{}, moved(303), "parked", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := startVendor(t, header("Idempotency-Key"), tc.script...)
			tc.action.Policy = dispatcher.Policy{Class: tc.class, Attempts: tc.attempts, SettlingDelay: -1}
			entry := played(t, db, Destination{}, v, tc.action)
			if entry.Status != tc.want || len(v.wire) != tc.calls || v.wire[0].key != entry.DeliveryKey.String() {
				t.Errorf("is %s after %d calls, want %s after %d", entry.Status, len(v.wire), tc.want, tc.calls)
			}
			for key, n := range v.effects {
				if n != 1 {
					t.Errorf("%d effects for %s", n, key)
				}
			}
		})
	}
}

// Case 21: no call starts before the time that the vendor asked for, up to a day.
func TestNoCallBeforeTheVendorsTime(t *testing.T) {
	db := database(t)
	for _, tc := range []struct{ says, waits time.Duration }{
		{2 * time.Hour, 2 * time.Hour}, {23 * time.Hour, 23 * time.Hour}, {30 * time.Hour, 24 * time.Hour},
	} {
		t.Run(fmt.Sprint(tc.says), func(t *testing.T) {
			later := map[string]string{"Retry-After": strconv.Itoa(int(tc.says.Seconds()))}
			v := startVendor(t, header("Idempotency-Key"), step{status: 429, header: later}, step{act: true, status: 200})
			id := inserted(t, db)
			action := Action{Policy: dispatcher.Policy{KeyWindow: dispatcher.Forever}}
			for i, then := range []time.Duration{tc.waits - time.Minute, 2 * time.Minute, 0} {
				drain(t, db, Destination{Vendor: dispatcher.Vendor{Window: dispatcher.Forever}}, v, action)
				if want := []int{1, 1, 2}[i]; len(v.wire) != want {
					t.Fatalf("look %d: %d calls, want %d", i+1, len(v.wire), want)
				}
				samekeytest.Elapse(t, db, then)
			}
			entry, err := outbox.Get(t.Context(), db.Pool, id)
			if err != nil || entry.Status != "delivered" {
				t.Errorf("is %s, %v", entry.Status, err)
			}
			v.compare(t, entry)
		})
	}
}
