package httpvendor

import (
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

// The Retry-After of a 429, and of a 403, is about the account, that of any other answer about its call.
func TestARetryAfterOf429HoldsForTheDestination(t *testing.T) {
	wait := map[string]string{"Retry-After": "60"}
	for name, tc := range map[string]struct {
		step  step
		calls int
	}{
		"429": {step{status: 429, header: wait}, 1}, "403": {step{status: 403, header: wait}, 1}, "429 without a time": {step{status: 429}, 20}, "409": {step{status: 409, header: wait}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t)
			if _, err := db.Exec(t.Context(), `select samekey.enqueue('many', n::text, 'charge_card', '{}') from generate_series(1, 20) n`); err != nil {
				t.Fatal(err)
			}
			v := startVendor(t, header("Idempotency-Key"), tc.step)
			drain(t, db, Destination{Limits: dispatcher.Limits{Concurrency: 1}}, v, Action{Wait: status(409, 409)})
			v.mu.Lock()
			defer v.mu.Unlock()
			if len(v.wire) < tc.calls || tc.calls == 1 && len(v.wire) > 1 {
				t.Errorf("%d calls, want %d", len(v.wire), tc.calls)
			}
		})
	}
}
