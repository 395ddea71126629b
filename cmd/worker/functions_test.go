package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

func TestFunctionNamesInTheFile(t *testing.T) {
	c, err := loadText(t, `worker: {archive: archive}
destinations: {vendor: {url: "https://vendor.example", key_window: 24h}}
actions:
  charge_card:
    destination: vendor
    request: POST /
    class: idempotent_write
    apply: charge_settled
    attention: shop.Charge
  refund:
    destination: vendor
    request: POST /
    class: idempotent_write
    apply:
    atention: shop.refund_needs_attention
`, nil)
	wantMistakes(t, c, err, `
FILE:1: worker.archive: "archive" is not the name of an SQL function with its schema, in small letters, such as shop.charge_settled
FILE:8: actions.charge_card.apply: "charge_settled" is not the name of an SQL function with its schema, in small letters, such as shop.charge_settled
FILE:9: actions.charge_card.attention: "shop.Charge" is not the name of an SQL function with its schema, in small letters, such as shop.charge_settled
FILE:14: actions.refund.apply: empty: remove the field to get its default
FILE:15: actions.refund.atention: unknown field: did you mean "attention"?
`)
}

// A worker whose functions could run with its rights does not start, and says which lines of the file are wrong.
func TestWorkerRefusesFunctionsWithItsRights(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	roles, _, workerDSN := dbtest.Logins(t, db)
	dbtest.Exec(t, db, `create schema shop`)
	dbtest.Exec(t, db, `create function shop.settled(event jsonb) returns void language sql as ''`)
	archiving := strings.Replace(oneVendor, "stop_timeout: 1s", "stop_timeout: 1s, archive: shop.settled", 1)
	config := writeFile(t, "worker.yaml", fmt.Sprintf(archiving, vendor.URL)+`  refund:
    {destination: vendor, request: POST /v1/refunds, class: idempotent_write, timeout: 20s,
     apply: shop.settled,
     attention: shop.nobody}
`)
	insert(t, db, "charge_card", 1)
	env := []string{"DATABASE_URL=" + workerDSN, "LISTEN_ADDR=127.0.0.1:0", "DEPLOYMENT=test"}
	p := start(t, env, "run", "-config", config)
	if code := p.exit(t); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	for _, want := range []string{
		config + `:9: actions.refund.apply: shop.settled would run with the rights of the worker: alter function shop.settled(jsonb) security definer`,
		config + `:9: actions.refund.apply: shop.settled has no search_path of its own: alter function shop.settled(jsonb) set search_path = shop, pg_temp`,
		config + `:9: actions.refund.apply: shop.settled belongs to "postgres", a superuser: alter function shop.settled(jsonb) owner to a role of the application`,
		config + `:9: actions.refund.apply: the worker may not call shop.settled: grant usage on schema shop to "` + roles.Worker + `"; grant execute on function shop.settled(jsonb) to "` + roles.Worker + `"`,
		config + `:9: actions.refund.apply: every role may call shop.settled`,
		config + `:2: worker.archive: shop.settled would run with the rights of the worker: alter function shop.settled(jsonb) security definer`,
		config + `:10: actions.refund.attention: there is no function shop.nobody(jsonb): create it`,
	} {
		if !strings.Contains(p.log.String(), want+"\n") && !strings.Contains(p.log.String(), want+",") {
			t.Errorf("%q is not in\n%s", want, p.log.String())
		}
	}
	if n := vendor.Counts().Calls; n != 0 {
		t.Errorf("%d calls of a worker that did not start", n)
	}

	// Each mistake says what to do. With all of it done, the worker starts.
	for _, sql := range []string{
		`alter function shop.settled(jsonb) security definer`,
		`alter function shop.settled(jsonb) set search_path = shop, pg_temp`,
		`grant usage, create on schema shop to "` + roles.App + `"`,
		`alter function shop.settled(jsonb) owner to "` + roles.App + `"`,
		`grant usage on schema shop to "` + roles.Worker + `"`,
		`grant execute on function shop.settled(jsonb) to "` + roles.Worker + `"`,
		`revoke execute on function shop.settled(jsonb) from public`,
	} {
		dbtest.Exec(t, db, sql)
	}
	p = start(t, env, "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(archiving, vendor.URL)+`  refund:
    {destination: vendor, request: POST /v1/refunds, class: idempotent_write, timeout: 20s, apply: shop.settled}
`))
	p.waitReady(t, 200)
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The function on the page works as it stands, but for the name of the worker's role.
func TestFunctionOnThePageWorks(t *testing.T) {
	page, err := os.ReadFile("../../docs/worker.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```sql\n(create function shop.charge_settled.*?)```").FindSubmatch(page)
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	roles, appDSN, workerDSN := dbtest.Logins(t, db)
	dbtest.Exec(t, db, `create schema shop authorization "`+roles.App+`"`)
	app := dbtest.Pool(t, appDSN)
	dbtest.Exec(t, app, `create table shop.orders (id uuid primary key, state text, charge_id text, email text)`)
	dbtest.Exec(t, app, `insert into shop.orders values ('7e57ed00-0000-4000-8000-000000000042', 'pending', null, 'ada@example.com')`)
	if _, err := app.Exec(t.Context(), strings.ReplaceAll(string(shown[1]), " to worker;", ` to "`+roles.Worker+`";`)); err != nil {
		t.Fatal(err)
	}
	dbtest.Exec(t, app, `select samekey.enqueue('acme/orders.create', 'order-42', 'charge_card', '{"order_id": "7e57ed00-0000-4000-8000-000000000042"}')`)
	start(t, []string{"DATABASE_URL=" + workerDSN, "LISTEN_ADDR=127.0.0.1:0", "DEPLOYMENT=test"}, "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(`
destinations:
  vendor: {url: "%s", key_window: 24h, allow_private: 127.0.0.0/8}
actions:
  charge_card: {destination: vendor, request: POST /v1/charges, class: idempotent_write, apply: shop.charge_settled}
`, vendor.URL)))
	dbtest.Until(t, "the order is paid", func() bool {
		return count(t, db, `select count(*) from shop.orders where state = 'paid'`) == 1
	})
	if receipt := dbtest.Value[string](t, db, `select convert_from(payload, 'UTF8') from samekey.outbox where action = 'send_receipt' and idem_key = 'order-42'`); !strings.Contains(receipt, "ada@example.com") {
		t.Errorf("the receipt is %s", receipt)
	}
}
