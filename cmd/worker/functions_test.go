package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

func TestFunctionNamesInTheFile(t *testing.T) {
	c, err := loadText(t, `
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
	config := writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, vendor.URL)+`  refund:
    {destination: vendor, request: POST /v1/refunds, class: idempotent_write, timeout: 20s,
     apply: shop.settled,
     attention: shop.nobody}
`)
	insert(t, db, "charge_card", 1)
	env := []string{"DATABASE_URL=" + workerDSN, "LISTEN_ADDR=127.0.0.1:0"}
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
	p = start(t, env, "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, vendor.URL)+`  refund:
    {destination: vendor, request: POST /v1/refunds, class: idempotent_write, timeout: 20s, apply: shop.settled}
`))
	p.waitReady(t, 200)
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
