package integration

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestTwoWorkersSendEachIntentOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, name := range []string{"one", "two"} {
		b.worker(name, workerConfig{Sweep: 50 * time.Millisecond, Concurrency: 10})
	}
	const intents = 150
	b.vendor.Hold() // until both workers have open calls
	b.insertMany("book-", intents)
	b.open(20)
	b.vendor.Release()
	b.effects(intents)
	b.settled()
	samekeytest.AssertEffects(t, b.vendor, intents)
	b.calls(intents)
	b.count(2, "(select distinct worker from samekey.outbox_history) workers")
}

func TestIntentCommittedAfterNewerOnesIsDelivered(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.worker("worker", workerConfig{})
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		key := dbtest.Key(t, "older", "acme", "charge")
		if _, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: order{Item: "older"}}); err != nil {
			return err
		}
		b.insertMany("younger-", 50)
		b.effects(50)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	outbox.Flush(b.Pool, "charge_card")
	b.effects(51)
	b.settled()
	samekeytest.AssertEffects(t, b.vendor, 51)
}

func TestIntentsOfAKilledWorkerAreDeliveredByAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	took := b.killWorkers(3)
	t.Logf("from SIGKILL to the delivery of the last orphan: %v", took)
	if longest := slices.Max(took); longest > patience/2 { // it takes hundreds of milliseconds on an idle machine
		t.Errorf("the delivery of the last orphan took %v", longest)
	}
}

// BenchmarkRecoveryAfterSIGKILL measures the time from SIGKILL to the delivery of the last intent that the killed
// worker held. Another worker is running.
func BenchmarkRecoveryAfterSIGKILL(b *testing.B) {
	bundle := setup(b, nil)
	took := bundle.killWorkers(b.N)
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "max-ms")
	b.ReportMetric(0, "ns/op")
}

// killWorkers kills a worker that has ten open calls, while another worker has ten too. It does so once per kill and
// returns the time that the delivery of the orphans took each time.
func (b *bundle) killWorkers(kills int) (took []time.Duration) {
	config := workerConfig{Concurrency: 10}
	victim, heir := b.worker("worker 0", config), b.worker("worker 1", config)
	for kill := range kills {
		prefix := fmt.Sprintf("book-%d-", kill)
		b.vendor.Hold()
		b.insertMany(prefix, 20)
		b.open(20)
		at := victim.kill()
		b.vendor.Release()
		b.settled()
		took = append(took, b.lastOrphan(prefix).Sub(at))
		victim, heir = heir, b.worker(fmt.Sprintf("worker %d", kill+2), config)
	}
	samekeytest.AssertEffects(b.t, b.vendor, 20*kills)
	b.oneEffectEach()
	heir.signal(syscall.SIGKILL)
	return took
}

// lastOrphan returns the time of the last answer for an orphaned intent.
func (b *bundle) lastOrphan(prefix string) (last time.Time) {
	b.t.Helper()
	orphans := one[[]string](b, `select array_agg(distinct o.delivery_key::text) from samekey.outbox o
		join samekey.outbox_history h on h.intent_id = o.id and h.event = 'orphaned' where starts_with(o.idem_key, $1)`, prefix)
	if len(orphans) != 10 {
		b.t.Errorf("%d intents were orphaned, want 10", len(orphans))
	}
	for _, c := range b.vendor.Ledger().Calls {
		if slices.Contains(orphans, c.Key) && c.Ended != nil && c.Ended.After(last) {
			last = *c.Ended
		}
	}
	return last
}

func TestLostRiverJobsLoseNoIntent(t *testing.T) {
	for name, sql := range map[string]string{
		"deleted":   `delete from samekey.river_job`,
		"truncated": `truncate samekey.river_job`,
		"discarded": `update samekey.river_job set state = 'discarded', finalized_at = now()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.worker("worker", workerConfig{Concurrency: 10})
			b.vendor.Hold()
			b.insertMany("book-", 100)
			b.open(10) // the other 90 intents are due
			// On a slow machine River was late, and the worker drains without it. This job ends that.
			b.exec(`insert into samekey.river_job (args, kind, max_attempts, queue)
				values ('{"destination":"payments"}', 'samekey.drain', 1, 'samekey_payments')`)
			b.eventually(`exists (select from samekey.river_job where kind = 'samekey.drain' and state = 'running')`)
			b.exec(sql)
			b.vendor.Release()
			b.effects(100)
			b.settled()
			b.exec(sql) // again, now that no intent is due
			b.insertMany("pen-", 10)
			b.effects(110)
			b.settled()
			samekeytest.AssertEffects(t, b.vendor, 110)
			b.calls(110)
		})
	}
}

func TestDrainsLostBeforeTheyRunBlockNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(`
		create sequence lost;
		create function lose() returns trigger language plpgsql security definer as $$
		begin
			if new.kind = 'samekey.drain' and nextval('lost') < 3 then
				delete from samekey.river_job where id = new.id;
			end if;
			return null;
		end $$;
		create trigger lose after insert on samekey.river_job for each row execute function lose()`)
	b.worker("worker", workerConfig{})
	b.insertMany("book-", 10)
	b.effects(10)
	b.settled()
	samekeytest.AssertEffects(t, b.vendor, 10)
	if !one[bool](b, `select is_called from lost`) {
		t.Error("no drain was inserted, so the test lost none")
	}
}

func TestStoppingWorkerFinishesItsCallsAndStartsNone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	worker := b.worker("worker", workerConfig{Apply: true})
	b.vendor.HoldAnswers()
	first, _ := b.insert("book")
	b.effects(1)
	worker.signal(syscall.SIGTERM)
	worker.wait("stopping")
	second, _ := b.insert("pen")
	b.vendor.Release()
	if code := worker.exit(); code != 0 {
		t.Errorf("the worker ended with code %d", code)
	}
	b.history(b.status(first, outbox.StatusDelivered), "attempt:delivered", "apply:delivered")
	b.count(1, "receipts")
	b.status(second, outbox.StatusPending)
	b.calls(1)
	b.worker("next", workerConfig{Apply: true})
	b.status(second, outbox.StatusDelivered)
	samekeytest.AssertEffects(t, b.vendor, 2)
}

func TestHangingVendorCostsOneTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.worker("worker", workerConfig{Timeout: time.Second})
	b.vendor.Next(samekeytest.FaultHang)
	id, key := b.insert("book")
	entry := b.status(id, outbox.StatusDelivered)
	if first := entry.History[0]; first.Code != "timeout" {
		t.Errorf("the first attempt ended with %+v, want a timeout", first)
	}
	b.sameBytes(key)
	samekeytest.AssertOneEffect(t, b.vendor, key)
}

func TestUnhandledActionBlocksNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(`select samekey.enqueue('acme', 'k' || i, 'unheard_of', '{}') from generate_series(1, 3) i`)
	b.worker("worker", workerConfig{Concurrency: 1})
	b.insertMany("book-", 10)
	b.effects(10)
	b.eventually(`not exists (select from samekey.outbox_queue where action = 'charge_card')`)
	b.count(3, "samekey.outbox_queue where action = 'unheard_of' and status = 'pending' and attempt = 0")
	// The statistics show the unhandled intents.
	b.eventually(`exists (select from samekey.outbox_stats where action = 'unheard_of' and not handled and intents = 3)`)
}

func TestRedriveRunsOnceWithTheSameKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.worker("worker", workerConfig{})
	b.vendor.Next("404")
	id, key := b.insert("book")
	b.status(id, outbox.StatusDead)
	by := outbox.By{Actor: "ann", Reason: "the account exists now"}
	if err := outbox.Redrive(context.Background(), b.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.status(id, outbox.StatusDelivered)
	if err := outbox.Redrive(context.Background(), b.Pool, id, by); err == nil {
		t.Error("a delivered intent was redriven")
	}
	if calls := b.sameBytes(key); calls != 2 {
		t.Errorf("%d calls at the vendor, want 2", calls)
	}
	samekeytest.AssertOneEffect(t, b.vendor, key)
}
