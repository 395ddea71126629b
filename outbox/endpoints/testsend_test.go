package endpoints_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

var ping = []byte(`{"type": "ping"}`)

// tests returns the scopes, parts, requesters and payloads of all intents, and how many lines "tested" there are.
func tests(t *testing.T, on *samekeytest.DB) (intents []string, lines int) {
	t.Helper()
	rows, err := on.Query(t.Context(), `select concat_ws(' ', scope, action, part, requested_by, convert_from(payload, 'UTF8')) from samekey.outbox order by id`)
	if err == nil {
		intents, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err == nil {
		err = on.QueryRow(t.Context(), `select count(*) from samekey.endpoint_history where event = 'tested' and actor = 'ada' and name = 'shop-1'`).Scan(&lines)
	}
	if err != nil {
		t.Fatal(err)
	}
	return intents, lines
}

func TestEachTestIsAnIntentOfItsOwn(t *testing.T) {
	on := samekeytest.NewDB(t)
	put(t, on, shop("shop-1"))
	put(t, on, shop("shop-2"))
	seen := map[uuid.UUID]bool{}
	for range 2 {
		id, err := endpoints.Test(t.Context(), on, "webhooks", "shop-1", "notify", ping, ada)
		if err != nil || seen[id] {
			t.Fatal(id, err)
		}
		seen[id] = true
	}
	for name, want := range map[string]error{"shop-3": endpoints.ErrNotFound, "shop-2": endpoints.ErrStopped} {
		if want == endpoints.ErrStopped {
			if err := endpoints.Stop(t.Context(), on, "webhooks", name, ada); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := endpoints.Test(t.Context(), on, "webhooks", name, "notify", ping, ada); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	one := `endpoint_test/webhooks notify shop-1 ada {"type": "ping"}`
	if intents, lines := tests(t, on); !slices.Equal(intents, []string{one, one}) || lines != 2 {
		t.Errorf("%q, %d lines", intents, lines)
	}
	for what, payload := range map[string][]byte{"no payload": nil, "no JSON": []byte("{")} {
		if id, err := endpoints.Test(t.Context(), on, "webhooks", "shop-1", "notify", payload, ada); err == nil {
			t.Errorf("%s: %v", what, id)
		}
	}
}

// With samekey.service, a connection may write only scopes that begin with its service.
func TestTestOfAServiceHasItsScope(t *testing.T) {
	on := samekeytest.NewDB(t)
	put(t, on, shop("shop-1"))
	for _, service := range []string{"orders", "/", ""} {
		err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), fmt.Sprintf(`set local samekey.service = '%s'`, service))
			if err == nil {
				_, err = endpoints.Test(t.Context(), tx, "webhooks", "shop-1", "notify", []byte(`1`), ada)
			}
			return err
		})
		if err != nil {
			t.Errorf("%q: %v", service, err)
		}
	}
	rest := `endpoint_test/webhooks notify shop-1 ada 1`
	if intents, _ := tests(t, on); !slices.Equal(intents, []string{"orders/" + rest, rest, rest}) {
		t.Errorf("%q", intents)
	}
}
