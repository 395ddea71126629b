package integration

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// crash is a worker that was killed with one intent in hand.
type crash struct {
	*bundle
	id  uuid.UUID
	key string
}

// killPoints are the places on an attempt's way at which a worker dies. Each
// function starts a worker, brings it there and kills it.
var killPoints = []struct {
	name  string
	acted bool // had the vendor acted by then
	kill  func(c *crash, config workerConfig)
}{
	{"before the call", false, func(c *crash, config workerConfig) {
		config.Stand = beforeCall
		victim := c.worker("victim", config)
		c.bring()
		victim.wait("at " + beforeCall)
		victim.kill()
	}},
	{"during the call", false, func(c *crash, config workerConfig) {
		c.vendor.Hold()
		victim := c.worker("victim", config)
		c.bring()
		c.open(1)
		victim.kill()
		c.eventuallyClosed() // the vendor has seen its client go, and does not act
		c.vendor.Release()
	}},
	{"after the vendor acted", true, func(c *crash, config workerConfig) {
		c.vendor.HoldAnswers()
		victim := c.worker("victim", config)
		c.bring()
		c.effects(1)
		victim.kill()
		c.vendor.Release()
	}},
	{"after the answer", true, func(c *crash, config workerConfig) {
		config.Stand = afterAnswer
		victim := c.worker("victim", config)
		c.bring()
		victim.wait("at " + afterAnswer)
		victim.kill()
	}},
	{"before the settle", true, func(c *crash, config workerConfig) {
		lock, settler, victim := c.heldSettle(config)
		victim.kill()
		// The connection breaks with the statement still waiting: it never happens.
		c.exec(`select pg_terminate_backend($1)`, settler)
		c.eventually(`not exists (select from pg_stat_activity where pid = $1)`, settler)
		c.unlock(lock)
	}},
}

// bring inserts the intent.
func (c *crash) bring() { c.id, c.key = c.insert("book") }

func (c *crash) eventuallyClosed() {
	c.t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); c.vendor.Counts().Open > 0; <-look.C {
		if time.Now().After(deadline) {
			c.t.Fatal("the vendor still has an open call")
		}
	}
}

// heldSettle brings a worker to the point at which its settle waits for a lock
// that the test holds on the intent's row, and returns the lock's transaction
// and the process id of the waiting server process.
func (c *crash) heldSettle(config workerConfig) (lock pgx.Tx, settler int32, victim *process) {
	c.t.Helper()
	c.vendor.HoldAnswers()
	victim = c.worker("victim", config)
	c.bring()
	c.effects(1)
	lock, err := c.Begin(c.t.Context())
	if err == nil {
		_, err = lock.Exec(c.t.Context(), `select from samekey.outbox_queue where id = $1 for update`, c.id)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	c.vendor.Release()
	const waiting = `from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%OutboxQueueSettle %'`
	c.eventually(`exists (select ` + waiting + `)`)
	return lock, one[int32](c.bundle, `select pid `+waiting), victim
}

func (c *crash) unlock(lock pgx.Tx) {
	c.t.Helper()
	if err := lock.Rollback(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// takenOver gives the dead worker something else that it held, which may be
// repeated, and waits until somebody has taken that over.
func (c *crash) takenOver() {
	c.t.Helper()
	control := one[uuid.UUID](c.bundle, `
		insert into samekey.outbox_queue (id, action, status, due_at, leased_by, lease_until, safe_to_resend)
		select gen_random_uuid(), 'unheard_of', 'leased', due_at, leased_by, lease_until, true
		from samekey.outbox_queue where id = $1 returning id`, c.id)
	c.eventually(`status = 'pending' from samekey.outbox_queue where id = $1`, control)
}

func TestAnIdempotentWriteIsSentAgainWhereverItsWorkerDied(t *testing.T) {
	for _, point := range killPoints {
		t.Run(point.name, func(t *testing.T) {
			t.Parallel()
			c := &crash{bundle: setup(t, nil)}
			point.kill(c, workerConfig{Apply: true})
			c.worker("heir", workerConfig{Apply: true})
			entry := c.status(c.id, outbox.StatusDelivered)

			samekeytest.AssertEffects(t, c.vendor, 1)
			samekeytest.AssertOneEffect(t, c.vendor, c.key)
			calls, attempts := c.sameBytes(c.key), 2
			if point.name == "before the call" {
				attempts = 1
			}
			if calls != attempts {
				t.Errorf("%d calls at the vendor, want %d", calls, attempts)
			}
			want := []string{"orphaned", "attempt:delivered", "apply:delivered"}
			if got := events(entry); !slices.Equal(got, want) {
				t.Errorf("the history is %v, want %v\n%s", got, want, timeline(entry))
			}
			c.count(1, "receipts")
			c.settled()
		})
	}
}

func TestANonIdempotentWriteIsNeverSentAgainWhereverItsWorkerDied(t *testing.T) {
	for _, point := range killPoints {
		t.Run(point.name, func(t *testing.T) {
			t.Parallel()
			c := &crash{bundle: setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})}
			config := workerConfig{Class: dispatcher.NonIdempotentWrite, Lookup: true, Apply: true}
			point.kill(c, config)
			calls := c.vendor.Counts().Calls
			heir := c.worker("heir", config)
			c.takenOver() // what may be repeated; the lease of the other is still good: hands off
			if entry := c.status(c.id, outbox.StatusLeased); len(entry.History) > 0 {
				t.Errorf("before the lease ran out, the history is\n%s", timeline(entry))
			}
			samekeytest.Elapse(t, c.DB, time.Minute) // the lease of 40 s runs out
			c.status(c.id, outbox.StatusUnknown)
			samekeytest.Elapse(t, c.DB, time.Minute) // the settling delay

			want := []string{"orphaned", "lookup:absent", "lookup:absent"} // believed when it is said twice
			status := outbox.StatusParked                                  // for a person, with the evidence
			if point.acted {
				want = []string{"orphaned", "lookup:delivered", "apply:delivered"}
				status = outbox.StatusDelivered
			}
			entry := c.status(c.id, status)
			if got := events(entry); !slices.Equal(got, want) {
				t.Errorf("the history is %v, want %v\n%s", got, want, timeline(entry))
			}
			if got := c.vendor.Counts().Calls; got != calls {
				t.Errorf("the heir called the vendor %d times", got-calls)
			}
			if point.acted {
				samekeytest.AssertEffects(t, c.vendor, 1)
				c.count(1, "receipts")
			} else {
				samekeytest.AssertEffects(t, c.vendor, 0)
			}
			heir.signal(syscall.SIGTERM)
			if code := heir.exit(); code != 0 {
				t.Errorf("the heir ended with code %d", code)
			}
		})
	}
}

func TestANonIdempotentWriteThatCannotBeLookedUpIsParked(t *testing.T) {
	t.Parallel()
	c := &crash{bundle: setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})}
	config := workerConfig{Class: dispatcher.NonIdempotentWrite}
	killPoints[2].kill(c, config) // after the vendor acted
	c.worker("heir", config)
	samekeytest.Elapse(t, c.DB, time.Minute)
	c.status(c.id, outbox.StatusUnknown)
	samekeytest.Elapse(t, c.DB, time.Minute)
	if entry := c.status(c.id, outbox.StatusParked); entry.Code != "no_lookup" {
		t.Errorf("parked with code %q, want no_lookup", entry.Code)
	}
	samekeytest.AssertEffects(t, c.vendor, 1)
	if calls := c.vendor.Counts().Calls; calls != 1 {
		t.Errorf("%d calls at the vendor, want 1", calls)
	}
}

func TestASettleThatIsOnItsWayWhenItsWorkerDiesCounts(t *testing.T) {
	t.Parallel()
	c := &crash{bundle: setup(t, nil)}
	lock, _, victim := c.heldSettle(workerConfig{})
	victim.kill()
	c.unlock(lock) // the server goes on with the statement that it has
	entry := c.status(c.id, outbox.StatusDelivered)
	if got, want := events(entry), []string{"attempt:delivered"}; !slices.Equal(got, want) {
		t.Errorf("the history is %v, want %v", got, want)
	}
	c.worker("heir", workerConfig{})
	c.settled()
	if calls := c.vendor.Counts().Calls; calls != 1 {
		t.Errorf("%d calls at the vendor, want 1", calls)
	}
}

func TestAnAnswerIsAppliedOnceWhereItsWorkerDiedInApply(t *testing.T) {
	for name, class := range map[string]dispatcher.Class{
		"idempotent": dispatcher.IdempotentWrite, "non-idempotent": dispatcher.NonIdempotentWrite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &crash{bundle: setup(t, nil)}
			config := workerConfig{Class: class, Apply: true, Stand: inApply}
			victim := c.worker("victim", config)
			c.bring()
			victim.wait("at " + inApply)
			victim.kill()
			config.Stand = ""
			c.worker("heir", config)
			entry := c.status(c.id, outbox.StatusDelivered)
			want := []string{"attempt:delivered", "orphaned", "apply:delivered"}
			if got := events(entry); !slices.Equal(got, want) {
				t.Errorf("the history is %v, want %v\n%s", got, want, timeline(entry))
			}
			c.count(1, "receipts")
			if calls := c.vendor.Counts().Calls; calls != 1 {
				t.Errorf("%d calls at the vendor, want 1", calls)
			}
		})
	}
}
