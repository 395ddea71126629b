package dispatcher

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/wake"
)

// Nothing is announced for an action that is no longer awaited, and what waits to be announced is bounded.
func TestAnnouncementsAreBounded(t *testing.T) {
	a := newAnnouncer(nil)
	a.sending = true // nothing is sent
	a.add("charge_card")
	c := &claim{OutboxQueueClaimRow: db.OutboxQueueClaimRow{ID: uuid.New()}, action: &action{name: "charge_card"}}
	for _, since := range []time.Duration{wake.AwaitedFor + time.Second, 0} {
		a.awaited["charge_card"] = time.Now().Add(-since)
		for range announceMost + 1 {
			a.settled(c, statusDelivered)
		}
		want := 0
		if since < wake.AwaitedFor {
			want = announceMost
		}
		if len(a.ended) != want {
			t.Errorf("awaited %v ago: %d ends are announced, want %d", since, len(a.ended), want)
		}
	}
	a.hear("of another worker")
	if len(a.awaited) != 1 {
		t.Errorf("the actions are %v", a.awaited)
	}
}
