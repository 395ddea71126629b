package dispatcher_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
)

// tracedBy returns a pool whose statements are counted.
func (b *bundle) tracedBy(s *dbtest.Statements) *pgxpool.Pool {
	b.Helper()
	return dbtest.Pool(b, b.db.DSN, func(config *pgxpool.Config) { config.ConnConfig.Tracer = s })
}

// metered is a vendor that records when each call arrived.
type metered struct {
	*httptest.Server
	mu   sync.Mutex
	came []time.Time
}

func meter(b *bundle) *metered {
	m := &metered{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.came = append(m.came, time.Now())
	}))
	b.Cleanup(m.Close)
	return m
}

// wantWithin compares each call with the permits given out by then: Burst, and Rate since before the first call. The
// database runs on this machine and has the same clock.
func (m *metered) wantWithin(b *bundle, since time.Time, limits dispatcher.Limits, calls int) {
	b.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.came) != calls {
		b.Errorf("the vendor saw %d calls, want %d", len(m.came), calls)
	}
	for i, at := range m.came {
		if given := float64(limits.Burst) + limits.Rate*at.Sub(since).Seconds(); float64(i+1) > given+0.01 {
			b.Fatalf("call %d came after %v, when %.1f permits were given out", i+1, at.Sub(since), given)
		}
	}
	b.Logf("%d calls in %v", calls, m.came[len(m.came)-1].Sub(since))
}

func TestTwoWorkersShareTheRate(t *testing.T) {
	b := setup(t)
	m, limits := meter(b), dispatcher.Limits{Concurrency: 16, Rate: 100, Burst: 10}
	b.insertMany("charge_card", 80)
	since := value[time.Time](b, `select clock_timestamp()`)
	for range 2 {
		b.start(b.breaking(dispatcher.IdempotentWrite, limits, postTo(b.client, m.URL)))
	}
	b.untilFinished()
	m.wantWithin(b, since, limits, 80)
	if n := b.count(`select count(*) from samekey.outbox_history where outcome <> 'delivered'`); n != 0 {
		t.Errorf("%d attempts were used while waiting", n)
	}
}

func TestLookupsCountTowardsTheRate(t *testing.T) {
	b := setup(t)
	m, limits := meter(b), dispatcher.Limits{Rate: 10, Burst: 2}
	ask := postTo(b.client, m.URL)
	d := b.breaking(dispatcher.NonIdempotentWrite, limits, b.post,
		withLookup(func(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			return ask(ctx, call)
		}))
	b.insertMany("charge_card", 12)
	b.exec(`update samekey.outbox_queue set status = 'unknown', first_sent_at = now()`)
	since := value[time.Time](b, `select clock_timestamp()`)
	b.expect(d, dispatcher.Summary{Delivered: 12}) // a drain waits for the rate
	m.wantWithin(b, since, limits, 12)
}

func TestIdleActionTakesNoPermits(t *testing.T) {
	b := setup(t)
	d := b.breaking(dispatcher.IdempotentWrite, dispatcher.Limits{Rate: 1}, b.post)
	b.insert("charge_card", func(in *outbox.Intent) { in.DueAt = time.Now().Add(time.Hour) })
	b.start(d)
	outbox.Flush(b.db.Pool, "charge_card")
	b.sweeps(d, 300*time.Millisecond)
	if n := b.count(`select count(*) from samekey.rate_limits`); n != 0 {
		t.Error("permits were taken")
	}
	id := b.insert("charge_card")
	outbox.Flush(b.db.Pool, "charge_card")
	b.untilStatus(id, "delivered")
	if left := value[float64](b, `select level from samekey.rate_limits`); left > 1 {
		t.Errorf("%v permits were taken for one intent", left)
	}
}

func TestRateLimitedDestinationWaitsAlone(t *testing.T) {
	b := setup(t)
	takes := &dbtest.Statements{Like: "RateLimitsTake :"}
	d := b.dispatcherOn(b.tracedBy(takes), dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{})
	d.Destination("slow", dispatcher.Limits{Rate: 1.0 / 3600})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), b.post)
	p := policyOf(dispatcher.IdempotentWrite)
	p.Destination = "slow"
	handle(d, "send_receipt", p, b.post)
	b.insertMany("send_receipt", 10)
	b.start(d)
	b.until("one is sent", func() bool { return b.unspent("send_receipt") == 9 })
	b.sweeps(d, 120*time.Millisecond)
	before := takes.Count()
	b.insertMany("charge_card", 100)
	b.until("the others are delivered", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where action = 'charge_card'`) == 0
	})
	b.sweeps(d, 300*time.Millisecond)
	if n := takes.Count() - before; n != 0 {
		t.Errorf("it asked for permits %d times in the hour", n)
	}
	if n := b.unspent("send_receipt"); n != 9 {
		t.Errorf("%d intents look unclaimed", n)
	}
}

// taking runs the statement alone.
type taking struct {
	*bundle
	q *db.Queries
	p db.RateLimitsTakeParams
}

func newTaking(b *bundle, rate float64, burst int) *taking {
	b.Helper()
	b.exec(`delete from samekey.rate_limits`)
	b.exec(`delete from samekey.outbox_queue`)
	b.insertManyMore("charge_card", 100)
	tk := &taking{bundle: b, q: db.New(b.db.Pool), p: db.RateLimitsTakeParams{
		Destination: "vendor", Action: "charge_card", MaxCount: 1000, Rate: rate, Burst: int32(burst), Batch: 1}}
	if err := tk.q.RateLimitsAdd(b.ctx, "vendor"); err != nil {
		b.Fatal(err)
	}
	return tk
}

func (tk *taking) take() db.RateLimitsTakeRow {
	tk.Helper()
	row, err := tk.q.RateLimitsTake(tk.ctx, tk.p)
	if err != nil || !row.Found {
		tk.Fatal(row, err)
	}
	return row
}

func (tk *taking) wantGiven(want int32) (wait time.Duration) {
	tk.Helper()
	row := tk.take()
	if row.Given != want {
		tk.Fatalf("%d permits were given, want %d: %+v", row.Given, want, row)
	}
	return time.Duration(row.WaitUs) * time.Microsecond
}

func TestOddRates(t *testing.T) {
	b := setup(t)
	for _, rate := range []float64{1.0 / 86400, 1.0 / 700, 0.0123} {
		for _, burst := range []int{1, 3} {
			tk := newTaking(b, rate, burst)
			tk.wantGiven(int32(burst))
			each := time.Duration(float64(time.Second) / rate)
			for range 5 {
				if wait := tk.wantGiven(0); wait > each || wait < each-30*time.Second {
					t.Fatalf("rate %v: the wait is %v, want about %v", rate, wait, each)
				}
				tk.elapse(each)
				tk.wantGiven(1)
			}
			tk.elapse(time.Duration(10*burst) * each)
			tk.wantGiven(int32(burst)) // an idle time holds no more than the burst
		}
	}
}

func TestBurstIsWholeAtAnyRate(t *testing.T) {
	b := setup(t)
	for _, rate := range []float64{3, 7, 333, 70_000, 100_000} {
		for _, burst := range []int{1, 7} {
			newTaking(b, rate, burst).wantGiven(int32(burst))
		}
	}
}

// The database's clock is set back two hours. Permits given out before do not count longer than they would have. The
// test checks the wait each time, also while no permit is given.
func TestClockSetBackDelaysOnePermit(t *testing.T) {
	const each = time.Minute // so that a busy machine does not add a permit
	tk := newTaking(setup(t), 1/each.Seconds(), 10)
	tk.wantGiven(10)
	tk.exec(`update samekey.rate_limits set updated_at = updated_at + interval '2 hours'`)
	if wait := tk.wantGiven(0); wait > each {
		t.Fatalf("the wait is %v", wait)
	}
	tk.elapse(each)
	tk.wantGiven(1)
	tk.elapse(9 * each)
	tk.wantGiven(9)
}

func TestRateChangesApplyAtOnce(t *testing.T) {
	tk := newTaking(setup(t), 10.0/3600, 10)
	tk.wantGiven(10)
	tk.p.Rate = 0.1 // slow enough for a busy machine
	if wait := tk.wantGiven(0); wait > 10*time.Second {
		t.Fatalf("the wait is %v", wait)
	}
	tk.elapse(100 * time.Second)
	tk.wantGiven(10)
	tk.p.Rate = 10.0 / 3600
	tk.elapse(time.Minute)
	if wait := tk.wantGiven(0); wait > 6*time.Minute || wait < 4*time.Minute {
		t.Fatalf("the wait is %v", wait)
	}
}

func TestSmallerBurstForgivesDebt(t *testing.T) {
	tk := newTaking(setup(t), 0.1, 90)
	tk.wantGiven(90)
	tk.p.Burst = 5
	if wait := tk.wantGiven(0); wait > 10*time.Second {
		t.Fatalf("the wait is %v", wait)
	}
	tk.elapse(20 * time.Second)
	tk.wantGiven(2)
	tk.p.Burst = 90 // a worker of the old release: it still counts the whole debt
	tk.wantGiven(0)
}

// Two workers with different settings take in turn, as during a deploy. Each stays within its own rate, and neither
// stops. A worker with a high rate leaves a fraction of a permit that it earned, and the other may complete it: on a busy
// machine, one or two in 200 turns.
func TestWorkersWithDifferentRates(t *testing.T) {
	for name, test := range map[string]struct{ old, new dispatcher.Limits }{
		"raised":         {dispatcher.Limits{Rate: 10.0 / 3600, Burst: 10}, dispatcher.Limits{Rate: 100, Burst: 10}},
		"lowered":        {dispatcher.Limits{Rate: 100, Burst: 10}, dispatcher.Limits{Rate: 1, Burst: 1}},
		"a larger burst": {dispatcher.Limits{Rate: 10, Burst: 2}, dispatcher.Limits{Rate: 10, Burst: 50}},
	} {
		t.Run(name, func(t *testing.T) {
			tk := newTaking(setup(t), 0, 0)
			began := value[time.Time](tk.bundle, `select clock_timestamp()`)
			given, passed := map[string]int32{}, time.Duration(0)
			for range 200 {
				for who, limits := range map[string]dispatcher.Limits{"old": test.old, "new": test.new} {
					tk.p.Rate, tk.p.Burst = limits.Rate, int32(limits.Burst)
					given[who] += tk.take().Given
				}
				passed += 50 * time.Millisecond
				tk.elapse(50 * time.Millisecond)
			}
			passed += value[time.Time](tk.bundle, `select clock_timestamp()`).Sub(began)
			sum := int32(0)
			for who, limits := range map[string]dispatcher.Limits{"old": test.old, "new": test.new} {
				sum += given[who]
				if most := float64(limits.Burst) + limits.Rate*passed.Seconds(); float64(given[who]) > most+3 {
					t.Errorf("the %s worker got %d permits in %v, more than %.1f", who, given[who], passed, most)
				}
			}
			if most := float64(test.old.Burst+test.new.Burst) + (test.old.Rate+test.new.Rate)*passed.Seconds(); float64(sum) > most+0.01 {
				t.Errorf("the workers got %v permits in %v, more than %.1f together", given, passed, most)
			}
			if least := max(test.old.Rate, test.new.Rate) * 10 * 0.9; float64(sum) < least {
				t.Errorf("the workers got %v permits in %v, want at least %.1f", given, passed, least)
			}
		})
	}
}

// With any values in the row, a permit comes after 1/rate, and the row is valid afterwards.
func TestInvalidRateRowIsRepaired(t *testing.T) {
	b := setup(t)
	for _, at := range []string{"'infinity'", "'-infinity'", "'4000-01-01'", "'4000-01-01 BC'", "clock_timestamp()", "clock_timestamp() + interval '1 hour'"} {
		for _, owed := range []string{"'Infinity'", "'NaN'", "'-Infinity'", "-5", "1e300", "1e-300"} {
			tk := newTaking(b, 100, 10)
			tk.exec(`update samekey.rate_limits set updated_at = ` + at + `, level = ` + owed)
			if row := tk.take(); row.Given == 0 && row.WaitUs > 10_000 {
				t.Fatalf("updated_at %s, level %s: the wait is %d us", at, owed, row.WaitUs)
			}
			tk.elapse(100 * time.Millisecond)
			if row := tk.take(); row.Given == 0 || row.Given > 10 {
				t.Fatalf("updated_at %s, level %s: got %d permits", at, owed, row.Given)
			}
			if n := b.count(`select count(*) from samekey.rate_limits where updated_at between now() - interval '1 minute' and now() and level between 0 and 2e6`); n != 1 {
				t.Fatalf("updated_at %s, level %s: the row is still invalid", at, owed)
			}
		}
	}
}

// The takes meet at the row, which is locked until all of them wait for it.
func TestConcurrentTakesShareTheBudget(t *testing.T) {
	const burst, takers = 20, 3
	tk := newTaking(setup(t), 0.01, burst)
	holder, err := tk.db.Begin(tk.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(tk.ctx))
	if _, err := holder.Exec(tk.ctx, `update samekey.rate_limits set level = level`); err != nil {
		t.Fatal(err)
	}
	tk.p.MaxCount = 15
	given := make(chan int32, takers)
	for range takers {
		go func() {
			row, err := tk.q.RateLimitsTake(tk.ctx, tk.p)
			if err != nil {
				t.Error(err)
			}
			given <- row.Given
		}()
	}
	watch, err := pgx.Connect(tk.ctx, tk.db.DSN) // the pool may be small
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close(context.WithoutCancel(tk.ctx))
	tk.until("all wait for the row", func() (all bool) {
		if err := watch.QueryRow(tk.ctx, `select count(*) = $1 from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`, takers).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	})
	if err := holder.Commit(tk.ctx); err != nil {
		t.Fatal(err)
	}
	sum := int32(0)
	for range takers {
		sum += wait(tk.bundle, "a take", given)
	}
	if sum != burst {
		t.Errorf("%d permits were given, want %d", sum, burst)
	}
}
