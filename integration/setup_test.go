package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// bundle has what most tests need: a database with the application's tables, logins for the application and the worker,
// and a vendor. The embedded pool connects as the owner of the tables.
type bundle struct {
	*samekeytest.DB
	t                 testing.TB
	vendor            *samekeytest.Vendor
	appDSN, workerDSN string
}

const applicationTables = `
	create table orders (
		id bigint generated always as identity primary key,
		operation text not null, tenant text not null, item text not null, amount bigint not null);
	create table receipts (intent uuid not null, code text not null)`

func setup(t testing.TB, options *samekeytest.VendorOptions) *bundle {
	t.Helper()
	if options == nil {
		options = &samekeytest.VendorOptions{}
	}
	options.Identity = samekeytest.IdentityField("item")
	b := &bundle{DB: samekeytest.NewDB(t), t: t, vendor: samekeytest.StartVendor(t, options)}
	roles, appDSN, workerDSN := dbtest.Logins(t, b.DB)
	b.appDSN, b.workerDSN = appDSN, workerDSN
	b.exec(applicationTables)
	b.exec(`grant select, insert on orders to ` + roles.App + `; grant insert on receipts to ` + roles.Worker)
	return b
}

// noOpenTransaction is a condition: no client holds an open transaction without a running statement.
const noOpenTransaction = `not exists (select from pg_stat_activity
	where datname = current_database() and state = 'idle in transaction')`

// service starts a service and returns it with its URL.
func (b *bundle) service(configs ...serviceConfig) (*process, string) {
	b.t.Helper()
	config := append(configs, serviceConfig{})[0]
	if config.DSN == "" {
		config.DSN = b.appDSN
	}
	p := start(b.t, "service", "service", config)
	_, url, _ := strings.Cut(p.wait("ready"), " ")
	return p, url
}

// worker starts a worker and waits until it is ready.
func (b *bundle) worker(name string, config workerConfig) *process {
	b.t.Helper()
	config.Name, config.Vendor = name, b.vendor.URL
	if config.DSN == "" {
		config.DSN = b.workerDSN
	}
	return start(b.t, "worker", name, config)
}

// insert inserts an intent that charges for an item, without a service.
func (b *bundle) insert(item string) (id uuid.UUID, deliveryKey string) {
	b.t.Helper()
	key := dbtest.Key(b.t, "key-"+item, "acme", "charge")
	id = dbtest.Insert(b.t, b.Pool, outbox.Intent{
		Key: key, Action: "charge_card", Payload: order{Item: item, Amount: 9007199254740993}})
	outbox.Flush(b.Pool, "charge_card")
	return id, samekey.DeliveryKey(key, "charge_card", "").String()
}

// insertMany inserts n intents in one statement, through the SQL function for programs in other languages.
func (b *bundle) insertMany(prefix string, n int) {
	b.t.Helper()
	b.exec(`select samekey.enqueue('acme:charge', $1 || i, 'charge_card', convert_to(json_build_object('item', $1 || i)::text, 'UTF8'))
		from generate_series(1, $2::int) i`, prefix, n)
	outbox.Flush(b.Pool, "charge_card")
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	dbtest.Exec(b.t, b, sql, args...)
}

func one[T any](b *bundle, sql string, args ...any) T {
	b.t.Helper()
	return dbtest.Value[T](b.t, b, sql, args...)
}

// count checks the number of rows of a table expression, such as "orders where item = 'book'".
func (b *bundle) count(want int64, from string, args ...any) {
	b.t.Helper()
	if got := one[int64](b, `select count(*) from `+from, args...); got != want {
		b.t.Errorf("%d rows in %s, want %d", got, from, want)
	}
}

// eventually waits until a condition on the rows is true.
func (b *bundle) eventually(sql string, args ...any) {
	b.t.Helper()
	dbtest.Until(b.t, sql, func() bool { return one[bool](b, `select `+sql, args...) })
}

// settled waits until all intents are finished.
func (b *bundle) settled() {
	b.t.Helper()
	b.eventually(`not exists (select from samekey.outbox_queue)`)
}

// entry returns the intent and its history.
func (b *bundle) entry(id uuid.UUID) outbox.Entry {
	b.t.Helper()
	entry, err := outbox.Get(b.t.Context(), b.Pool, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return entry
}

// status waits until the intent has the status.
func (b *bundle) status(id uuid.UUID, want outbox.Status) (entry outbox.Entry) {
	b.t.Helper()
	defer func() {
		if entry.Status != want {
			b.t.Logf("the intent is %s\n%s", entry.Status, timeline(entry))
		}
	}()
	dbtest.Until(b.t, "the intent is "+string(want), func() bool {
		entry = b.entry(id)
		return entry.Status == want
	})
	return entry
}

// timeline formats an intent's history.
func timeline(e outbox.Entry) string {
	var lines strings.Builder
	for _, event := range e.History {
		fmt.Fprintf(&lines, "\t%s attempt %d worker %d: %s %s %s %s\n",
			event.Event, event.Attempt, event.Worker, event.Outcome, event.Code, event.FinalStatus, event.Error)
	}
	return lines.String()
}

// history checks an intent's history: see [events].
func (b *bundle) history(e outbox.Entry, want ...string) {
	b.t.Helper()
	if got := events(e); !slices.Equal(got, want) {
		b.t.Errorf("the history is %v, want %v\n%s", got, want, timeline(e))
	}
}

// events returns the history as words, such as "orphaned" and "attempt:delivered".
func events(e outbox.Entry) (words []string) {
	for _, event := range e.History {
		word := event.Event
		if event.Event != "orphaned" {
			word += ":" + event.Outcome
		}
		words = append(words, word)
	}
	return words
}

// await waits until the number of a wait, such as vendor.WaitOpen, is n.
func (b *bundle) await(wait func(ctx context.Context, n int) error, n int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := wait(ctx, n); err != nil {
		b.t.Fatal(err)
	}
}

// open waits until n calls are open at the vendor.
func (b *bundle) open(n int) { b.t.Helper(); b.await(b.vendor.WaitOpen, n) }

// effects waits until the vendor has made n effects.
func (b *bundle) effects(n int) { b.t.Helper(); b.await(b.vendor.WaitEffects, n) }

// calls checks how many calls the vendor has received.
func (b *bundle) calls(want int) {
	b.t.Helper()
	if got := b.vendor.Counts().Calls; got != want {
		b.t.Errorf("%d calls at the vendor, want %d", got, want)
	}
}

// oneEffectEach checks that each intent had one effect, and that its calls had the same bytes.
func (b *bundle) oneEffectEach() {
	b.t.Helper()
	for _, key := range one[[]string](b, `select array_agg(delivery_key::text) from samekey.outbox`) {
		samekeytest.AssertOneEffect(b.t, b.vendor, key)
		b.sameBytes(key)
	}
}

// sameBytes checks that all calls with a delivery key had the same path and the same body, byte for byte. It returns
// the number of calls.
func (b *bundle) sameBytes(key string) (calls int) {
	b.t.Helper()
	seen := map[string]bool{}
	for _, c := range b.vendor.Ledger().Calls {
		if c.Key == key {
			calls++
			seen[c.Path+" "+c.BodyHash] = true
		}
	}
	if len(seen) > 1 {
		b.t.Errorf("the calls under key %s differ: %v", key, seen)
	}
	return calls
}
