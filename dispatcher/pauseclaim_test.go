package dispatcher

import (
	"fmt"
	"testing"
	"time"
)

// The claim reads pauses itself, so it does not depend on the last sweep.
func TestClaimReadsPauses(t *testing.T) {
	on, n, _ := settling(t)
	destination := n.destinations.list[0]
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := on.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	const pause = `insert into samekey.pauses (destination, action, paused_by, reason, until) values ($1, $2, 'ann', 'r', %s)`
	for _, c := range []struct {
		what, sql string
		args      []any
		claims    int
	}{
		{"the destination", fmt.Sprintf(pause, "null"), []any{destination.name, ""}, 0},
		{"the action", fmt.Sprintf(pause, "null"), []any{destination.name, destination.actions[0].name}, 0},
		{"until a future time", fmt.Sprintf(pause, "clock_timestamp() + interval '1 hour'"), []any{destination.name, ""}, 0},
		{"in River", `insert into samekey.river_queue (name, paused_at, updated_at) values ($1, now(), now())`, []any{destination.queue}, 0},
		{"another action", fmt.Sprintf(pause, "null"), []any{destination.name, "another"}, 1},
		{"another destination", fmt.Sprintf(pause, "null"), []any{"another", ""}, 1},
		{"until a past time", fmt.Sprintf(pause, "clock_timestamp()"), []any{destination.name, ""}, 1},
	} {
		exec(c.sql, c.args...)
		rows, err := n.q.OutboxQueueClaim(t.Context(), destination.claimParams(destination.actions[0], time.Time{}, 1))
		if err != nil || len(rows) != c.claims {
			t.Errorf("%s is paused: claimed %d, %v; want %d", c.what, len(rows), err, c.claims)
		}
		exec(`delete from samekey.pauses`)
		exec(`delete from samekey.river_queue`)
		exec(`update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null`)
	}
}
