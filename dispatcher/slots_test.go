package dispatcher

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Calls end faster than a slow database takes outcomes. Then claims stop, and the alarm knows why.
func TestSlotsBoundClaimsThatWaitForTheirSettle(t *testing.T) {
	const calls = 3
	s := newSlots(calls)
	open := 0
	for range 10_000 {
		n := s.reserve()
		if n == 0 {
			break
		}
		for open += n; n > 0; n-- {
			s.callEnded()
		}
	}
	if want := 2*calls + openClaims; open != want {
		t.Fatalf("%d claims are open, want %d", open, want)
	}
	if !s.allTaken() {
		t.Error("a call can begin")
	}
	if s.wait(t.Context(), time.After(time.Millisecond)) {
		t.Error("a slot is free")
	}
	s.settled()
	if s.allTaken() || !s.wait(t.Context(), nil) || s.reserve() != 1 {
		t.Error("no slot is free after a settle")
	}
}

// A stop that waits no longer leaves nothing behind: each settle returns, whether the settler has taken it or not.
func TestSettlesReturnWhenTheSettlerIsCutOff(t *testing.T) {
	for name, key := range map[string]*string{"ordered": new("order-1"), "not ordered": nil} {
		t.Run(name, func(t *testing.T) {
			_, n, s := settling(t)
			first := claimOne(t, n)
			var settles sync.WaitGroup
			var began, written atomic.Int32
			const many = 3*settleBatch + 1
			for range many {
				row := first.OutboxQueueClaimRow
				row.OrderingKey = key
				row.Attempt += 100 // it is not the claim's: if the settler takes it, it is late
				c := newClaim(row, first.action, time.Now(), first.worker)
				settles.Go(func() {
					began.Add(1)
					if s.settle(c, resultOf(c, Delivered(Response{})).settlement) {
						written.Add(1)
					}
				})
			}
			eventually(t, "all settle", func() bool { return began.Load() == many })
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			s.stop()
			s.run(ctx)
			settles.Wait()
			if written.Load() != 0 {
				t.Errorf("%d settles count as written", written.Load())
			}
			c := newClaim(first.OutboxQueueClaimRow, first.action, time.Now(), first.worker)
			if s.settle(c, resultOf(c, Delivered(Response{})).settlement) {
				t.Error("a settle after the end counts as written")
			}
		})
	}
}
