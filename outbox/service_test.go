package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// as is a pool of a service that has set its name.
func as(t *testing.T, on *samekeytest.DB, service string) *pgxpool.Pool {
	t.Helper()
	config := on.Config()
	config.ConnConfig.RuntimeParams["samekey.service"] = service
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Two services that share a database and have two names cannot get each other's
// answers, also where both use the same scope and key for the same request.
func TestServicesAreSeparate(t *testing.T) {
	on := samekeytest.NewDB(t)
	orders, billing, unnamed := as(t, on, "orders"), as(t, on, "billing"), as(t, on, "")
	run := func(pool *pgxpool.Pool, key samekey.Key) (processed.Result[string], error) {
		return processed.Run(t.Context(), pool, processed.Request{Key: key, Payload: 1}, func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: 1})
			return "of orders", err
		})
	}
	do := func(pool *pgxpool.Pool, key samekey.Key) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := processed.Do(t.Context(), tx, processed.Request{Key: key, Payload: 1}, func(context.Context, samekey.Tx) (string, error) { return "", nil })
			return err
		})
	}
	insert := func(pool *pgxpool.Pool, key samekey.Key) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: 1})
			return err
		})
	}
	mine := newKey(t, "order-1", "orders", "acme", "create")
	if _, err := run(orders, mine); err != nil {
		t.Fatal(err)
	}
	if again, err := run(orders, mine); err != nil || !again.Deduplicated {
		t.Errorf("its own answer: %+v, %v", again, err)
	}
	for name, key := range map[string]samekey.Key{
		"the other's":                            mine,
		"a scope that says nothing of a service": newKey(t, "order-1", "acme", "create"),
		"a longer name":                          newKey(t, "order-1", "billing2", "create"),
		"its name as one of two":                 newKey(t, "order-1", "billing/acme", "create"),
	} {
		result, err := run(billing, key)
		for way, err := range map[string]error{"Run": err, "Do": do(billing, key), "Insert": insert(billing, key)} {
			if !errors.Is(err, samekey.ErrOtherService) || !strings.Contains(err.Error(), `"billing"`) {
				t.Errorf("%s: %s: %v, want ErrOtherService that names the service", name, way, err)
			}
			if err != nil && strings.Contains(err.Error(), "acme") {
				t.Errorf("%s: %s: the error holds the scope: %v", name, way, err)
			}
		}
		if result.Value != "" {
			t.Errorf("%s: got the answer %q", name, result.Value)
		}
	}
	if _, err := run(billing, newKey(t, "order-1", "billing", "acme", "create")); err != nil {
		t.Errorf("its own scope: %v", err)
	}
	if err := insert(billing, samekey.Key{Scope: "billing", Value: "order-2"}); err != nil {
		t.Errorf("its own scope of one part: %v", err)
	}
	// Without the setting, as a worker: every scope.
	if again, err := run(unnamed, mine); err != nil || !again.Deduplicated {
		t.Errorf("without a name: %+v, %v", again, err)
	}
	if n := count(t, on, `select count(*) from samekey.processed_events`); n != 2 {
		t.Errorf("%d records, want 2", n)
	}
}
