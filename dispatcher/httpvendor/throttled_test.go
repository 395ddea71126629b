package httpvendor

import (
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

// The Retry-After of a 429 or 403 is about the account. That of any other answer is about its call, until ten in a row
// have one. A 429 without Retry-After holds too, at first for so short a time that it can end within a drain.
func TestRetryAfterOf429HoldsTheDestination(t *testing.T) {
	wait := map[string]string{"Retry-After": "60"}
	for name, tc := range map[string]struct {
		step        step
		least, most int
	}{
		"429": {step{status: 429, header: wait}, 1, 1}, "403": {step{status: 403, header: wait}, 1, 1}, "429 without a time": {step{status: 429}, 1, 8}, "429 with 0": {step{status: 429, header: map[string]string{"Retry-After": "0"}}, 1, 8},
		"409": {step{status: 409, header: wait}, 10, 17},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t)
			if _, err := db.Exec(t.Context(), `select samekey.enqueue('many', n::text, 'charge_card', '{}') from generate_series(1, 20) n`); err != nil {
				t.Fatal(err)
			}
			v := startVendor(t, header("Idempotency-Key"), tc.step)
			drain(t, db, Destination{Limits: dispatcher.Limits{Concurrency: 1}}, v, Action{Retry: status(409, 409)})
			v.mu.Lock()
			defer v.mu.Unlock()
			if n := len(v.wire); n < tc.least || n > tc.most {
				t.Errorf("%d calls, want %d to %d", n, tc.least, tc.most)
			}
		})
	}
}
