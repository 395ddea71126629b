package integration

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// late waits for the event that keeps a zombie's answer.
func (c *crash) late() outbox.Entry {
	c.t.Helper()
	c.eventually(`exists (select from samekey.outbox_history where intent_id = $1 and event = 'late')`, c.id)
	entry, err := outbox.Get(c.t.Context(), c.Pool, c.id)
	if err != nil {
		c.t.Fatal(err)
	}
	return entry
}

func TestAWorkerStoppedPastItsLeaseSettlesNothingAndItsAnswerIsKept(t *testing.T) {
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
	want := []string{"orphaned", "attempt:delivered", "late:delivered"}
	if got := events(entry); !slices.Equal(got, want) {
		t.Errorf("the history is %v, want %v\n%s", got, want, timeline(entry))
	}
	if late := entry.History[2]; late.Attempt != 1 || len(late.Response) == 0 || late.Finished != "" {
		t.Errorf("what is kept of the late answer is %+v", late)
	}
	if entry.Status != outbox.StatusDelivered || !entry.FinishedAt.Equal(delivered.FinishedAt) {
		t.Errorf("the late write changed the intent: %+v", entry)
	}
	c.settled()
	if calls := c.sameBytes(c.key); calls != 2 {
		t.Errorf("%d calls at the vendor, want 2", calls)
	}
	samekeytest.AssertOneEffect(t, c.vendor, c.key)
	// It is of use again.
	zombie.wait("somebody else had taken its intent over")
}

func TestAZombieDoesNotSettleWhatAnotherHolds(t *testing.T) {
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
	want := []string{"orphaned", "late:delivered", "attempt:delivered"}
	if entry := c.status(c.id, outbox.StatusDelivered); !slices.Equal(events(entry), want) {
		t.Errorf("the history is %v, want %v\n%s", events(entry), want, timeline(entry))
	}
	samekeytest.AssertOneEffect(t, c.vendor, c.key)
}

// A context's timer fires some time after the process has continued, so it is not what holds: the second worker has none.
func TestAWorkerThatGoesOnPastItsDeadlineSendsNothing(t *testing.T) {
	t.Parallel()
	for name, deaf := range map[string]bool{"with its context": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &crash{bundle: setup(t, nil)}
			zombie := c.worker("zombie", workerConfig{Timeout: 300 * time.Millisecond, Lease: 400 * time.Millisecond, Stand: beforeCall, Deaf: deaf})
			c.bring()
			zombie.wait("at " + beforeCall)
			zombie.stop()
			c.worker("heir", workerConfig{})
			c.status(c.id, outbox.StatusDelivered) // after the zombie's lease, and so after its deadline

			zombie.release() // it reads this in the moment in which it continues
			zombie.signal(syscall.SIGCONT)
			entry := c.late()
			if late := entry.History[len(entry.History)-1]; late.Outcome != "unsent" {
				t.Errorf("the zombie's attempt ended with %+v, want that nothing was sent", late)
			}
			if calls := c.vendor.Counts().Calls; calls != 1 {
				t.Errorf("%d calls at the vendor, want 1", calls)
			}
			samekeytest.AssertOneEffect(t, c.vendor, c.key)
		})
	}
}

func TestALateAnswerResolvesAnIntentThatWasParkedMeanwhile(t *testing.T) {
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
	entry := c.status(c.id, outbox.StatusDelivered)
	want := []string{"orphaned", "lookup:parked", "late:delivered", "apply:delivered"}
	if got := events(entry); !slices.Equal(got, want) {
		t.Errorf("the history is %v, want %v\n%s", got, want, timeline(entry))
	}
	c.count(1, "receipts")
	samekeytest.AssertEffects(t, c.vendor, 1)
}
