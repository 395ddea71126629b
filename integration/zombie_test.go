package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// A zombie is a worker that continues after its lease has run out and another worker, the heir, has claimed its intent.

// late waits until the history has the zombie's late answer.
func (c *crash) late() outbox.Entry {
	c.t.Helper()
	c.eventually(`exists (select from samekey.outbox_history where intent_id = $1 and event = 'late')`, c.id)
	return c.entry(c.id)
}

func TestWorkerStoppedPastItsLeaseSettlesNothing(t *testing.T) {
	t.Parallel()
	c := &crash{bundle: setup(t, nil)}
	zombie := c.worker("zombie", workerConfig{})
	c.vendor.HoldAnswers()
	c.bring()
	c.effects(1)
	zombie.stop()
	c.vendor.Release() // the answer waits in the zombie's socket
	c.worker("heir", workerConfig{})
	samekeytest.Elapse(t, c.DB, time.Minute) // the lease of 40 s runs out
	delivered := c.status(c.id, outbox.StatusDelivered)

	zombie.signal(syscall.SIGCONT)
	entry := c.late()
	c.history(entry, "orphaned", "attempt:delivered", "late:delivered")
	if late := entry.History[2]; late.Attempt != 1 || len(late.Response) == 0 || late.FinalStatus != "" {
		t.Errorf("the late answer is stored as %+v", late)
	}
	if entry.Status != outbox.StatusDelivered || !entry.FinishedAt.Equal(delivered.FinishedAt) {
		t.Errorf("the late write changed the intent: %+v", entry)
	}
	c.settled()
	if calls := c.sameBytes(c.key); calls != 2 {
		t.Errorf("%d calls at the vendor, want 2", calls)
	}
	samekeytest.AssertOneEffect(t, c.vendor, c.key)
	zombie.signal(syscall.SIGTERM)
	if code := zombie.exit(); code != 0 { // it works as before, and so stops cleanly
		t.Errorf("the zombie ended with code %d", code)
	}
}

func TestZombieDoesNotSettleAnIntentThatAnotherHolds(t *testing.T) {
	t.Parallel()
	c := &crash{bundle: setup(t, nil)}
	zombie := c.worker("zombie", workerConfig{})
	c.vendor.HoldAnswers()
	c.bring()
	c.effects(1)
	zombie.stop()
	c.vendor.Release()
	heir := c.worker("heir", workerConfig{Stand: beforeCall})
	samekeytest.Elapse(t, c.DB, time.Minute)
	heir.wait("at " + beforeCall)

	zombie.signal(syscall.SIGCONT)
	c.late()
	if held := c.status(c.id, outbox.StatusLeased); held.Attempt != 2 {
		t.Errorf("the heir's attempt is number %d, want 2", held.Attempt)
	}
	heir.release()
	c.history(c.status(c.id, outbox.StatusDelivered), "orphaned", "late:delivered", "attempt:delivered")
	samekeytest.AssertOneEffect(t, c.vendor, c.key)
}

// A process that continues may send before the timer of its context fires, so the timer alone is not enough. The second
// worker has no timer.
func TestWorkerResumedPastItsDeadlineSendsNothing(t *testing.T) {
	t.Parallel()
	for name, deaf := range map[string]bool{"with its context": false, "without its context": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &crash{bundle: setup(t, nil)}
			zombie := c.worker("zombie", workerConfig{Timeout: 300 * time.Millisecond, Lease: 400 * time.Millisecond, Stand: beforeCall, Deaf: deaf})
			c.bring()
			zombie.wait("at " + beforeCall)
			zombie.stop()
			c.worker("heir", workerConfig{})
			c.status(c.id, outbox.StatusDelivered) // after the zombie's lease, and so after its deadline

			zombie.release() // the zombie reads this when it continues
			zombie.signal(syscall.SIGCONT)
			entry := c.late()
			if late := entry.History[len(entry.History)-1]; late.Outcome != "unsent" {
				t.Errorf("the zombie's attempt ended with %+v, want unsent", late)
			}
			c.calls(1)
			samekeytest.AssertOneEffect(t, c.vendor, c.key)
		})
	}
}

func TestLateAnswerResolvesAParkedIntent(t *testing.T) {
	t.Parallel()
	c := &crash{bundle: setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})}
	config := workerConfig{Class: dispatcher.NonIdempotentWrite, Apply: true}
	zombie := c.worker("zombie", config)
	c.vendor.HoldAnswers()
	c.bring()
	c.effects(1)
	zombie.stop()
	c.vendor.Release()
	c.worker("heir", config)
	samekeytest.Elapse(t, c.DB, time.Minute)
	c.status(c.id, outbox.StatusUnknown)
	samekeytest.Elapse(t, c.DB, time.Minute)
	c.status(c.id, outbox.StatusParked)

	zombie.signal(syscall.SIGCONT)
	c.history(c.status(c.id, outbox.StatusDelivered), "orphaned", "lookup:parked", "late:delivered", "apply:delivered")
	c.count(1, "receipts")
	samekeytest.AssertEffects(t, c.vendor, 1)
}
