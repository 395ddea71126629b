package dispatcher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
)

// tenants is a vendor whose calls last until they are released. It counts the calls in progress of each tenant.
type tenants struct {
	*bundle
	mu      sync.Mutex
	open    map[string]int
	order   []string
	started chan string
	release chan string // a tenant, one of whose calls ends
	ends    map[string]chan struct{}
}

func newTenants(b *bundle) *tenants {
	v := &tenants{bundle: b, open: map[string]int{}, started: make(chan string, 10_000), ends: map[string]chan struct{}{}}
	return v
}

func tenantOf(call *dispatcher.Call) string {
	tenant, _, _ := strings.Cut(call.Key.Scope, "/")
	return tenant
}

func (v *tenants) end(tenant string) chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ends[tenant] == nil {
		v.ends[tenant] = make(chan struct{})
	}
	return v.ends[tenant]
}

func (v *tenants) add(tenant string, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open[tenant] += n
}

func (v *tenants) inProgress(tenant string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open[tenant]
}

func (v *tenants) send(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	tenant := tenantOf(call)
	v.add(tenant, 1)
	defer v.add(tenant, -1)
	v.started <- tenant
	select {
	case <-v.end(tenant):
		return dispatcher.Delivered(dispatcher.Response{}), nil
	case <-ctx.Done():
		return dispatcher.Outcome{}, ctx.Err()
	}
}

// next returns the tenant of the next call that begins.
func (v *tenants) next() string {
	v.Helper()
	return wait(v.bundle, "a call begins", v.started)
}

// endOne ends one call of a tenant.
func (v *tenants) endOne(tenant string) {
	v.Helper()
	select {
	case v.end(tenant) <- struct{}{}:
	case <-time.After(patience):
		v.Fatalf("no call of %s is in progress", tenant)
	}
}

// fair is a dispatcher that shares the slots of one destination by scope.
func (b *bundle) fair(concurrency int, send handler, by dispatcher.FairBy) *dispatcher.Dispatcher {
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: concurrency})
	policy := policyOf(dispatcher.IdempotentWrite)
	policy.FairBy, policy.Timeout = by, time.Minute
	handle(d, "charge_card", policy, send)
	return d
}

// insertFor commits n intents of a tenant with one statement.
func (b *bundle) insertFor(tenant string, n int) {
	b.Helper()
	b.keys++
	b.exec(`select samekey.enqueue($1 || '/orders', $2 || '-' || g, 'charge_card', '{}') from generate_series(1, $3::int) g`, tenant, fmt.Sprint(b.keys), n)
}

// registered writes the setting, as the start of a worker does.
func (b *bundle) registered(by dispatcher.FairBy) {
	b.Helper()
	b.drain(b.fair(1, b.post, by))
}

// A tenant's burst of 400 slow calls fills all slots. Another tenant's intent gets the next slot that is free.
func TestOneIntentWaitsForOneCallOfABurst(t *testing.T) {
	b := setup(t)
	v := newTenants(b)
	b.start(b.fair(4, v.send, dispatcher.FairByScope))
	b.insertFor("big", 400)
	for range 4 {
		if got := v.next(); got != "big" {
			t.Fatalf("a call of %s begins", got)
		}
	}
	b.insertFor("small", 1)
	first := 0 // calls of big that begin before; on a busy machine a walk rests for half a second
	for v.endOne("big"); v.next() == "big"; v.endOne("big") {
		if first++; first == 200 {
			t.Fatal("200 calls of big begin before the one of small, of 400")
		}
	}
	v.endOne("small") // work-conserving: its slot goes to the others
	if got := v.next(); got != "big" {
		t.Errorf("the next call is of %s", got)
	}
}

func TestSlotsAreSharedWhileBothHaveIntents(t *testing.T) {
	b := setup(t)
	v := newTenants(b)
	b.insertFor("big", 300)
	b.insertFor("small", 40)
	b.start(b.fair(8, v.send, dispatcher.FairByScope)) // they are from before the setting
	for range 8 {
		v.next()
	}
	if big, small := v.inProgress("big"), v.inProgress("small"); big != 4 || small != 4 {
		t.Errorf("%d and %d calls are in progress, want 4 and 4", big, small)
	}
	for i := range 60 {
		of := []string{"big", "small", "small"}[i%3]
		if v.inProgress(of) == 0 {
			of = "big"
		}
		v.endOne(of)
		v.next()
		if left := 40 - i; left > 20 {
			if big, small := v.inProgress("big"), v.inProgress("small"); big-small > 2 || small-big > 2 {
				t.Fatalf("after %d calls, %d and %d are in progress", i, big, small)
			}
		}
	}
}

// Each of many tenants with two intents gets its first before any gets its second, but for a few at the seams.
func TestManyTenantsTakeTurns(t *testing.T) {
	b := setup(t)
	many := dbtest.Size(20_000, 2_000)
	b.registered(dispatcher.FairByScope)
	b.exec(`select count(samekey.enqueue('tenant-' || t || '/orders', t || '-' || g, 'charge_card', '{}')) from generate_series(1, $1::int) t, generate_series(1, 2) g`, many)
	var mu sync.Mutex
	var order []string
	d := b.fair(200, func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, tenantOf(call))
		return dispatcher.Delivered(dispatcher.Response{}), nil
	}, dispatcher.FairByScope)
	if sum := b.drain(d); sum.Delivered != 2*many {
		t.Fatalf("%+v", sum)
	}
	seen := map[string]bool{}
	for _, tenant := range order[:many] {
		seen[tenant] = true
	}
	if len(seen) < many*99/100 {
		t.Errorf("the first %d calls are of %d tenants", many, len(seen))
	}
}

func TestTwoFairWorkersDeliverOnce(t *testing.T) {
	b := setup(t)
	b.registered(dispatcher.FairByScope)
	b.exec(`select count(samekey.enqueue('tenant-' || g % 50 || '/orders', 'k' || g, 'charge_card', '{}')) from generate_series(1, 1500) g`)
	for range 2 {
		b.start(b.fair(20, b.post, dispatcher.FairByScope))
	}
	b.untilFinished()
	if counts := b.vendor.Counts(); counts.Calls != 1500 || counts.Doubles != 0 {
		t.Errorf("%+v", counts)
	}
}

func (b *bundle) shares() string {
	b.Helper()
	return value[string](b, `select coalesce(string_agg(distinct coalesce(share, 'none'), ' '), '') from samekey.outbox_queue`)
}

// The setting changes while workers run. Intents of each kind are delivered, and those without a share get one.
func TestSettingChangesWhileWorkersRun(t *testing.T) {
	b := setup(t)
	b.vendor.Hold()
	b.start(b.fair(1, b.post, ""))
	b.insertFor("a", 20)
	b.until("a call is in progress", func() bool { return b.vendor.Counts().Open == 1 })
	if got := b.shares(); got != "none" {
		t.Errorf("without the setting, the shares are %q", got)
	}
	b.start(b.fair(1, b.post, dispatcher.FairByScope))
	b.insertFor("b", 20)
	b.until("intents without a share have got one", func() bool {
		return b.count(`select count(*) from samekey.outbox_queue where share is null and leased_by is null`) == 0
	})
	if got := b.shares(); !strings.Contains(got, "a/orders b/orders") {
		t.Errorf("the shares are %q", got)
	}
	b.start(b.fair(1, b.post, dispatcher.FairByPart))
	b.insertFor("c", 20)
	b.start(b.fair(1, b.post, ""))
	b.insertFor("d", 20)
	if got := b.shares(); !strings.Contains(got, "none") {
		t.Errorf("the shares are %q", got)
	}
	b.vendor.Release()
	b.untilFinished()
	if counts := b.vendor.Counts(); counts.Calls != 80 || counts.Doubles != 0 {
		t.Errorf("%+v", counts)
	}
}

func TestPartsShareToo(t *testing.T) {
	b := setup(t)
	b.registered(dispatcher.FairByPart)
	b.insert("charge_card", func(in *outbox.Intent) { in.Part = "shop-1" })
	b.insert("charge_card")
	b.insert("charge_card", ordered("o"), func(in *outbox.Intent) { in.Part = "shop-2" })
	b.insert("charge_card", ordered("o"), func(in *outbox.Intent) { in.Part = "shop-3" })
	if got := value[string](b, `select string_agg('<' || share || '>', ' ' order by share) from samekey.outbox_queue`); got != "<> <shop-1> <shop-2> <shop-3>" {
		t.Errorf("the shares are %s", got)
	}
	b.expect(b.fair(2, b.post, dispatcher.FairByPart), dispatcher.Summary{Delivered: 4})
}
