package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// bundle is a database with the application's tables, the logins of the
// application and of the worker, and a vendor. The embedded pool is the owner's.
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

// worker starts a worker that takes work.
func (b *bundle) worker(name string, config workerConfig) *process {
	b.t.Helper()
	config.Name, config.Vendor = name, b.vendor.URL
	if config.DSN == "" {
		config.DSN = b.workerDSN
	}
	return start(b.t, "worker", name, config)
}

// insert writes an intent to charge for an item, without a service.
func (b *bundle) insert(item string) (id uuid.UUID, deliveryKey string) {
	b.t.Helper()
	key, err := samekey.NewKey("key-"+item, "acme", "charge")
	if err == nil {
		err = pgx.BeginFunc(b.t.Context(), b.Pool, func(tx pgx.Tx) error {
			id, err = outbox.Insert(b.t.Context(), tx, outbox.Intent{
				Key: key, Action: "charge_card", Payload: order{Item: item, Amount: 9007199254740993}})
			return err
		})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	outbox.Flush(b.Pool, "charge_card")
	return id, samekey.DeliveryKey(key, "charge_card", "").String()
}

// insertMany writes n intents in one transaction, as SQL of any language does.
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

// count checks how many rows a query finds, such as "orders where item = 'book'".
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

// settled waits until no intent is unfinished.
func (b *bundle) settled() {
	b.t.Helper()
	b.eventually(`not exists (select from samekey.outbox_queue)`)
}

// status waits until the intent has the status.
func (b *bundle) status(id uuid.UUID, want outbox.Status) outbox.Entry {
	b.t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); ; <-look.C {
		entry, err := outbox.Get(b.t.Context(), b.Pool, id)
		if err != nil {
			b.t.Fatal(err)
		}
		if entry.Status == want {
			return entry
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the intent is %q and not %q within %v\n%s", entry.Status, want, patience, timeline(entry))
		}
	}
}

// timeline prints an intent's history.
func timeline(e outbox.Entry) string {
	var lines strings.Builder
	for _, event := range e.History {
		fmt.Fprintf(&lines, "\t%s attempt %d worker %d: %s %s %s %s\n",
			event.Event, event.Attempt, event.Worker, event.Outcome, event.Code, event.Finished, event.Error)
	}
	return lines.String()
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

// open waits until the vendor has n calls in hand.
func (b *bundle) open(n int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := b.vendor.WaitOpen(ctx, n); err != nil {
		b.t.Fatal(err)
	}
}

// effects waits until the vendor has made n effects.
func (b *bundle) effects(n int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := b.vendor.WaitEffects(ctx, n); err != nil {
		b.t.Fatal(err)
	}
}

// sameBytes checks that every call under a delivery key had the same path and
// the same body, byte for byte, and returns how many there were.
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
