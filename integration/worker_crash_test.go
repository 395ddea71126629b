package integration

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// crash is a test that kills a worker that holds one intent.
type crash struct {
	*bundle
	id  uuid.UUID
	key string
}

// killPoints are the stages of an attempt at which a worker is killed. Each function starts a worker, waits until it
// has reached the stage, and kills it.
var killPoints = []struct {
	name  string
	acted bool // the vendor has acted by then
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
		dbtest.Until(c.t, "the vendor has seen the disconnect", func() bool { return c.vendor.Counts().Open == 0 }) // so it does not act
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
		// The connection breaks while the statement still waits, so the statement has no effect.
		c.exec(`select pg_terminate_backend($1)`, settler)
		c.eventually(`not exists (select from pg_stat_activity where pid = $1)`, settler)
		c.unlock(lock)
	}},
}

// bring inserts the intent.
func (c *crash) bring() { c.id, c.key = c.insert("book") }

// heldSettle starts a worker and waits until its settle statement waits for a lock that the test holds on the intent's
// row. It returns the lock's transaction and the process id of the waiting backend.
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

// takenOver gives the dead worker a second leased intent, one that is safe to resend, and waits until another worker
// has taken it over.
func (c *crash) takenOver() {
	c.t.Helper()
	control := one[uuid.UUID](c.bundle, `
		insert into samekey.outbox_queue (id, action, status, due_at, leased_by, lease_until, safe_to_resend)
		select gen_random_uuid(), 'unheard_of', 'leased', due_at, leased_by, lease_until, true
		from samekey.outbox_queue where id = $1 returning id`, c.id)
	c.eventually(`status = 'pending' from samekey.outbox_queue where id = $1`, control)
}

func TestIdempotentWriteIsSentAgainWhereverItsWorkerDied(t *testing.T) {
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
			c.history(entry, "orphaned", "attempt:delivered", "apply:delivered")
			c.count(1, "receipts")
			c.settled()
		})
	}
}

func TestNonIdempotentWriteIsNotSentAgainWhereverItsWorkerDied(t *testing.T) {
	for _, point := range killPoints {
		t.Run(point.name, func(t *testing.T) {
			t.Parallel()
			c := &crash{bundle: setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})}
			config := workerConfig{Class: dispatcher.NonIdempotentWrite, Lookup: true, Apply: true}
			point.kill(c, config)
			calls := c.vendor.Counts().Calls
			heir := c.worker("heir", config)
			c.takenOver() // only the intent that is safe to resend; the lease of the other is still valid
			if entry := c.status(c.id, outbox.StatusLeased); len(entry.History) > 0 {
				t.Errorf("before the lease ran out, the history is\n%s", timeline(entry))
			}
			samekeytest.Elapse(t, c.DB, time.Minute) // the lease of 40 s runs out
			c.status(c.id, outbox.StatusUnknown)
			samekeytest.Elapse(t, c.DB, time.Minute) // the settling delay

			if point.acted {
				c.history(c.status(c.id, outbox.StatusDelivered), "orphaned", "lookup:delivered", "apply:delivered")
				samekeytest.AssertEffects(t, c.vendor, 1)
				c.count(1, "receipts")
			} else { // parked after two lookups that found nothing
				c.history(c.status(c.id, outbox.StatusParked), "orphaned", "lookup:absent", "lookup:absent")
				samekeytest.AssertEffects(t, c.vendor, 0)
			}
			c.calls(calls) // the heir made none
			heir.signal(syscall.SIGTERM)
			if code := heir.exit(); code != 0 {
				t.Errorf("the heir ended with code %d", code)
			}
		})
	}
}

func TestNonIdempotentWriteWithoutLookupIsParked(t *testing.T) {
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
	c.calls(1)
}

func TestSettleInFlightAtItsWorkersDeathCounts(t *testing.T) {
	t.Parallel()
	c := &crash{bundle: setup(t, nil)}
	lock, _, victim := c.heldSettle(workerConfig{})
	victim.kill()
	c.unlock(lock) // the server finishes the statement without its client
	c.history(c.status(c.id, outbox.StatusDelivered), "attempt:delivered")
	c.worker("heir", workerConfig{})
	c.settled()
	c.calls(1)
}

func TestAnswerIsAppliedOnceIfItsWorkerDiesInApply(t *testing.T) {
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
			c.history(c.status(c.id, outbox.StatusDelivered), "attempt:delivered", "orphaned", "apply:delivered")
			c.count(1, "receipts")
			c.calls(1)
		})
	}
}
