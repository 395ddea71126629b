package dispatcher_test

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// throttle is a link from the database that carries that many bytes a second, over all connections together.
type throttle struct {
	mu        sync.Mutex
	perSecond int
	free      time.Time // when the link has carried all accepted bytes
}

func (l *throttle) take(bytes int) {
	l.mu.Lock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(bytes) * time.Second / time.Duration(l.perSecond))
	until := l.free
	l.mu.Unlock()
	time.Sleep(time.Until(until)) // the link is slow on purpose
}

// overSlowLink returns a pool on the database over a slow link, and its DSN.
func (b *bundle) overSlowLink(perSecond int) (*pgxpool.Pool, string) {
	b.Helper()
	pool, w := b.wired()
	link := &throttle{perSecond: perSecond}
	w.slow.Store(link)
	dsn, err := url.Parse(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	dsn.Host = "127.0.0.1:" + strconv.Itoa(int(pool.Config().ConnConfig.Port))
	query := dsn.Query()
	query.Set("sslmode", "disable")
	query.Set("pool_max_conns", "8")
	dsn.RawQuery = query.Encode()
	return pool, dsn.String()
}

// insertLarge commits n intents with payloads of that many bytes.
func (b *bundle) insertLarge(action string, n, bytes int) {
	b.Helper()
	b.exec(`select samekey.enqueue('tenant/large', 'k' || i, $1, convert_to('"' || repeat('x', $3::int - 2) || '"', 'UTF8')) from generate_series(1, $2::int) i`, action, n, bytes)
}

// The link takes longer to carry the payloads than a claim may take. They are loaded a few at a time, calls start in
// the first second, and no intent wrongly counts as sent.
func TestLargePayloadsOverASlowLinkAreDelivered(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.NonIdempotentWrite, dispatcher.IdempotentWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			pool, _ := b.overSlowLink(200 << 10)
			c := &counting{}
			d := b.dispatcherOn(pool, dispatcher.Config{})
			d.Destination("vendor", dispatcher.Limits{Concurrency: 100})
			handle(d, "charge_card", policyOf(class), c.handle)
			const intents = 24
			b.insertLarge("charge_card", intents, 100<<10)
			b.start(d)
			b.untilFinished()
			c.wantOnceEach(b, intents)
			if n := b.count(`select count(*) from samekey.outbox_history where outcome = 'unknown'`); n != 0 {
				t.Errorf("%d intents became unknown, although all calls succeeded", n)
			}
		})
	}
}

// An intent that is claimed but not loaded is unsent: the worker that takes it over sends it, whatever its class. A
// worker that was only stopped sends nothing when it continues.
func TestWorkerThatDiesWhileLoadingLeavesNoUnknown(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"stopped": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			_, dsn := b.overSlowLink(20 << 10)
			const intents = 5
			b.insertLarge("charge_card", intents, 200<<10)
			one := b.startWorker(workerSettings{DSN: dsn, Class: dispatcher.NonIdempotentWrite, Timeout: 25 * time.Second})
			const loading = `select count(*) from samekey.outbox_queue where status = 'leased' and safe_to_resend and first_sent_at is null`
			b.until("it loads", func() bool { return b.count(loading) > 0 })
			if err := one.cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			left := intents - b.count(loading)

			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), b.post)
			b.start(d)
			if err := b.vendor.WaitEffects(b.ctx, left); err != nil {
				t.Fatal(err)
			}
			if end == syscall.SIGSTOP { // it still holds its lock, so its leases count until they expire
				b.elapse(lease)
			}
			b.untilFinished()
			b.wantCalls(intents)
			if n := b.count(`select count(*) from samekey.outbox_history where event not in ('attempt', 'orphaned') or event = 'attempt' and outcome <> 'delivered'`); n != 0 {
				t.Errorf("%d events are not deliveries", n)
			}
			if end == syscall.SIGSTOP {
				if err := one.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				b.until("it has given its claim back", func() bool {
					return b.count(`select count(*) from samekey.outbox_history where event = 'late'`) > 0 || b.count(`select count(*) from samekey.workers`) == 2
				})
				b.sweeps(d, time.Second)
				b.wantCalls(intents)
			}
		})
	}
}

// A payload that did not fit into the claim's answer is sent unchanged, with its headers.
func TestLoadedPayloadIsUnchanged(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.Read} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			got := make(chan *dispatcher.Call, 10)
			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(class), func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
				got <- call
				return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
			})
			sizes := map[string]int{"small": 10, "large": 1 << 20}
			for key, size := range sizes {
				b.exec(`select samekey.enqueue('tenant', $1, 'charge_card', convert_to(repeat('x', $2::int), 'UTF8'), content_type => 'text/plain', headers => jsonb_build_object('Key', $1::text))`, key, size)
			}
			b.expect(d, dispatcher.Summary{Delivered: 2})
			for range sizes {
				call := <-got
				if key := call.Key.Value; len(call.Payload) != sizes[key] || call.Headers["Key"] != key {
					t.Errorf("%s came with %d bytes and headers %v", key, len(call.Payload), call.Headers)
				}
			}
			if n := b.count(`select count(*) from samekey.outbox_history where event <> 'attempt' or outcome <> 'delivered'`); n != 0 {
				t.Errorf("%d events are not deliveries", n)
			}
		})
	}
}

// A stop does not wait for a load. Intents that are loading are given back unsent.
func TestStopDoesNotWaitForALoad(t *testing.T) {
	b := setup(t)
	pool, _ := b.overSlowLink(20 << 10)
	c := &counting{}
	d := b.dispatcherOn(pool, dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{})
	p := policyOf(dispatcher.NonIdempotentWrite)
	p.Timeout, p.Lease = 2*patience, 3*patience
	handle(d, "charge_card", p, c.handle)
	b.insertLarge("charge_card", 1, 800<<10) // 40 s
	r := b.start(d)
	b.until("it loads", func() bool { return b.count(`select count(*) from samekey.outbox_queue where status = 'leased'`) == 1 })
	began := time.Now()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if n := b.count(`select count(*) from samekey.outbox_queue where status = 'pending' and leased_by is null and first_sent_at is null and due_at <= clock_timestamp()`); n != 1 {
		t.Error("it was not given back at once")
	}
	if n := b.count(`select count(*) from samekey.outbox_history`); n != 0 {
		t.Errorf("%d events are about it", n)
	}
}

// If loaded intents cannot be marked as sent, they are given back with a delay, so that claims do not loop.
func TestFailedMarkDoesNotLoop(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), c.handle)
	b.exec(`create function refuse() returns trigger language plpgsql as $$ begin
		if old.safe_to_resend and not new.safe_to_resend then raise 'not now'; end if; return new; end $$`)
	b.exec(`create trigger refuse before update on samekey.outbox_queue for each row execute function refuse()`)
	b.insertLarge("charge_card", 1, 100<<10)
	b.start(d)
	attempts := func() int { return b.count(`select attempt from samekey.outbox_queue`) }
	b.until("it was claimed twice", func() bool { return attempts() >= 2 })
	began, before := time.Now(), attempts()
	b.sweeps(d, 3*time.Second)
	if n, most := attempts()-before, 2+int(time.Since(began)/time.Second); n > most {
		t.Errorf("it was claimed %d times in %v", n, time.Since(began))
	}
	b.exec(`drop trigger refuse on samekey.outbox_queue`)
	b.untilFinished()
	c.wantOnceEach(b, 1)
}

// The link takes longer to carry the payloads than a claim may take. A claim of answered intents carries no payload.
func TestLargePayloadsAreApplied(t *testing.T) {
	b := setup(t)
	pool, _ := b.overSlowLink(190 << 10)
	d := b.dispatcherOn(pool, dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{})
	c := &counting{}
	p := policyOf(dispatcher.IdempotentWrite)
	p.Timeout, p.Backoff = patience, 10*time.Millisecond
	var applied atomic.Int32
	handle(d, "charge_card", p, c.handle, withApply(func(_ context.Context, _ pgx.Tx, payload []byte, _ dispatcher.Settled) error {
		if len(payload) == 1<<20 {
			applied.Add(1)
		}
		return nil
	}))
	const intents = 2 // claimed at once, 11 s
	b.insertLarge("charge_card", intents, 1<<20)
	b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, code) select id, 'attempt', 'delivered', '200' from samekey.outbox_queue`)
	b.exec(`update samekey.outbox_queue set status = 'answered', first_sent_at = now()`)
	b.start(d)
	b.until("it was claimed", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where leased_by is not null or attempt > 0`) == intents
	})
	b.untilFinished()
	if n := applied.Load(); n != intents {
		t.Errorf("%d Applies had their payloads", n)
	}
}
