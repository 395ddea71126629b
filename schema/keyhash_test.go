package schema_test

import (
	"testing"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/framed"
	"github.com/samekey/samekey/samekeytest"
)

func TestKeyHashIsTheSameInGoAndSQL(t *testing.T) {
	db := samekeytest.NewDB(t)
	for _, key := range []samekey.Key{{Scope: "acme/orders.create", Value: "order-1"}, {Scope: "a b", Value: "c"}, {Scope: "a", Value: "b c"}} {
		var hash string
		err := db.QueryRow(t.Context(), `select samekey.key_hash($1, $2)`, key.Scope, key.Value).Scan(&hash)
		if err != nil || hash != key.Hash() {
			t.Errorf("SQL has %q, Go has %q, error %v", hash, key.Hash(), err)
		}
	}
}

func TestTextHashIsTheSameInGoAndSQL(t *testing.T) {
	db := samekeytest.NewDB(t)
	for _, text := range []string{"booking/42", "Buchung é", ""} {
		var hash string
		err := db.QueryRow(t.Context(), `select samekey.text_hash($1)`, text).Scan(&hash)
		if err != nil || hash != framed.LogHash(text) {
			t.Errorf("SQL has %q, Go has %q, error %v", hash, framed.LogHash(text), err)
		}
	}
}
