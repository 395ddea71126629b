package schema_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
)

// keepEndpoints calls each function of outbox/endpoints as an application does.
func keepEndpoints(t *testing.T, on samekey.Tx, name string) {
	t.Helper()
	ctx, by := t.Context(), outbox.By{Actor: "ada", Reason: "closed until spring"}
	e := endpoints.Endpoint{Destination: "webhooks", Name: name, URL: "https://shop.example", Secrets: []string{endpoints.NewSecret()}}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"put", func() error { return endpoints.Put(ctx, on, e, by) }},
		{"put again", func() error { return endpoints.Put(ctx, on, e, by) }},
		{"stop", func() error { return endpoints.Stop(ctx, on, "webhooks", name, by) }},
		{"get", func() error {
			e, err := endpoints.Get(ctx, on, "webhooks", name)
			if err == nil && (!e.Stopped() || e.StoppedBy != "ada" || e.URL != "https://shop.example") {
				err = errors.New("not as it was put")
			}
			return err
		}},
		{"start", func() error { return endpoints.Start(ctx, on, "webhooks", name, by) }},
		{"list", func() error {
			all, err := endpoints.List(ctx, on, "webhooks", "", 10)
			if err == nil && (len(all) != 1 || all[0].Stopped()) {
				err = errors.New("not as it was started")
			}
			return err
		}},
		{"deliveries", func() error { _, err := endpoints.Deliveries(ctx, on, "webhooks", name, 0, 10); return err }},
		{"delete", func() error { return endpoints.Delete(ctx, on, "webhooks", name, by) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
	}
	if err := endpoints.Start(ctx, on, "webhooks", name, by); !errors.Is(err, endpoints.ErrNotFound) {
		t.Errorf("get a deleted endpoint: %v", err)
	}
}

func TestEachRoleManagesEndpoints(t *testing.T) {
	b := setupGrants(t)
	for name, pool := range map[string]*pgxpool.Pool{"app": b.app, "operator": b.operator} {
		keepEndpoints(t, pool, name)
		db := stdlib.OpenDBFromPool(pool)
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		keepEndpoints(t, samekey.SQL(tx), name)
		_ = tx.Rollback()
		_ = db.Close()
	}
	// They may change the secrets, but must not be able to read them.
	for _, text := range []string{
		`insert into samekey.endpoints as e (destination, name, url) values ('d', 'n', 'https://h') on conflict (destination, name) do update set url = e.secrets[1]`,
		`insert into samekey.endpoints (destination, name, url, secrets) values ('d', 'n', 'https://h', '{s3cret}') returning secrets`,
		`update samekey.endpoints set url = 'https://h/' || secrets[1]`,
		`update samekey.endpoints set url = 'https://h' where secrets[1] like 'a%'`,
		`delete from samekey.endpoints where secrets[1] like 'a%'`,
		`copy samekey.endpoints to stdout`,
		`create trigger t before update on samekey.endpoints for each row execute function suppress_redundant_updates_trigger()`,
	} {
		if _, err := b.app.Exec(t.Context(), text); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Programs in other languages call the functions. The statements on the page work for the application's role and change
// the version.
func TestEndpointSQLInDocsRunsAsApplication(t *testing.T) {
	b := setupGrants(t)
	page, err := os.ReadFile("../docs/vendors/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```sql\n")
	block, _, _ = strings.Cut(block, "```")
	put, rest, _ := strings.Cut(block, "-- stop it")
	stop, start, ok := strings.Cut(rest, "-- start it")
	if !ok {
		t.Fatal("the page has no such SQL")
	}
	versions := map[string]bool{}
	for i, step := range []struct {
		text    string
		stopped bool
	}{{put, false}, {put, false}, {stop, true}, {start, false}} {
		if _, err := b.app.Exec(t.Context(), step.text); err != nil {
			t.Fatalf("%s: %v", step.text, err)
		}
		var version string
		err := b.app.QueryRow(t.Context(), `select version from samekey.endpoints where name = 'shop-17'`).Scan(&version)
		if err != nil {
			t.Fatal(err)
		}
		versions[version] = true
		e, err := endpoints.Get(t.Context(), b.app, "webhooks", "shop-17")
		if err != nil || e.Stopped() != step.stopped || len(versions) != i+1 {
			t.Errorf("after %s: stopped %v, %d versions, %v", step.text, e.Stopped(), len(versions), err)
		}
	}
}
