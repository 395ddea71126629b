package integration

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
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
	b.vendor.Hold() // until both have work in hand
	b.insertMany("book-", intents)
	b.open(20)
	b.vendor.Release()
	b.effects(intents)
	b.settled()
	samekeytest.AssertEffects(t, b.vendor, intents)
	if calls := b.vendor.Counts().Calls; calls != intents {
		t.Errorf("%d calls at the vendor, want %d", calls, intents)
	}
	b.count(2, "(select distinct worker from samekey.outbox_history) workers")
}

func TestAnIntentThatCommitsAfterAYoungerOneIsDelivered(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.worker("worker", workerConfig{})
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		key, err := samekey.NewKey("older", "acme", "charge")
		if err == nil {
			_, err = outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: order{Item: "older"}})
		}
		if err != nil {
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

func TestWhatAKilledWorkerHeldIsDeliveredByAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	took := b.killWorkers(3)
	t.Logf("from SIGKILL to the last orphan's delivery: %v", took)
	if longest := slices.Max(took); longest > patience/2 {
		t.Errorf("it took %v", longest) // hundreds of milliseconds on an idle machine
	}
}

// BenchmarkRecoveryAfterSIGKILL measures the time from SIGKILL to the delivery
// of the last intent that the killed worker held, with another at work.
func BenchmarkRecoveryAfterSIGKILL(b *testing.B) {
	bundle := setup(b, nil)
	took := bundle.killWorkers(b.N)
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "max-ms")
	b.ReportMetric(0, "ns/op")
}

// killWorkers kills a worker with ten calls in the air, so many times, while
// another has ten as well, and returns how long the orphans took each time.
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
	for _, id := range one[[]string](b, `select array_agg(delivery_key::text) from samekey.outbox`) {
		samekeytest.AssertOneEffect(b.t, b.vendor, id)
		b.sameBytes(id)
	}
	heir.signal(syscall.SIGKILL)
	return took
}

// lastOrphan is when the last intent that was orphaned had its answer.
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

func TestALostRiverTableLosesNoIntent(t *testing.T) {
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
			b.open(10) // ten run, the others are due
			b.eventually(`exists (select from samekey.river_job where kind = 'samekey.drain' and state = 'running')`)
			b.exec(sql)
			b.vendor.Release()
			b.effects(100)
			b.settled()
			b.exec(sql) // and again while nothing is due
			b.insertMany("pen-", 10)
			b.effects(110)
			b.settled()
			samekeytest.AssertEffects(t, b.vendor, 110)
			if calls := b.vendor.Counts().Calls; calls != 110 {
				t.Errorf("%d calls at the vendor, want 110", calls)
			}
		})
	}
}

func TestDrainsThatAreLostBeforeTheyRunHoldUpNothing(t *testing.T) {
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
		t.Error("no drain was inserted, and so none was lost")
	}
}

func TestAWorkerThatIsToldToStopEndsItsCallsAndBeginsNone(t *testing.T) {
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
	if got := events(b.status(first, outbox.StatusDelivered)); !slices.Equal(got, []string{"attempt:delivered", "apply:delivered"}) {
		t.Errorf("the history of the call under way is %v", got)
	}
	b.count(1, "receipts")
	b.status(second, outbox.StatusPending)
	if calls := b.vendor.Counts().Calls; calls != 1 {
		t.Errorf("%d calls at the vendor, want 1", calls)
	}
	b.worker("next", workerConfig{Apply: true})
	b.status(second, outbox.StatusDelivered)
	samekeytest.AssertEffects(t, b.vendor, 2)
}

func TestAVendorThatNeverAnswersCostsOneTimeout(t *testing.T) {
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

func TestAnActionThatNobodyHandlesHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(`select samekey.enqueue('acme', 'k' || i, 'unheard_of', '{}') from generate_series(1, 3) i`)
	b.worker("worker", workerConfig{Concurrency: 1})
	b.insertMany("book-", 10)
	b.effects(10)
	b.eventually(`not exists (select from samekey.outbox_queue where action = 'charge_card')`)
	b.count(3, "samekey.outbox_queue where action = 'unheard_of' and status = 'pending' and attempt = 0")
	// It is visible.
	b.eventually(`exists (select from samekey.outbox_stats where action = 'unheard_of' and not handled and intents = 3)`)
}

func TestARedriveRunsOnceWithTheSameKey(t *testing.T) {
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
		t.Error("what is delivered was redriven")
	}
	if calls := b.sameBytes(key); calls != 2 {
		t.Errorf("%d calls at the vendor, want 2", calls)
	}
	samekeytest.AssertOneEffect(t, b.vendor, key)
}
