package samekey_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
)

// The vectors for implementations in other languages. They never change: an intent that is written again after a
// failover must get the key that it had.
var deliveryKeys = []struct {
	scope, value, action, part string
	want                       string
}{
	{"acme/orders.create", "order-1", "charge_card", "", "19ff97c1-7f6e-8cca-a424-270c1111580a"},
	{"acme/orders.create", "order-1", "charge_card", "1", "91284517-69ac-859d-b614-5635425094d1"},
	{"acme/orders.create", "order-1", "send_receipt", "", "29c4aaca-b363-8cad-8482-47197c7ce4d9"},
	{"acme/orders.refund", "order-1", "charge_card", "", "59be316e-802d-8d2e-893c-869968539584"},
	{"acme/orders.create", "order-2", "charge_card", "", "1cdc5a8a-d36b-893b-93bf-48a42dbbac71"},
	{"zo%C3%AB", "a b", "a.b", "c", "b8955dc9-8db4-803a-98ac-1b171052ca17"},
	{"zo%C3%AB", "a b", "a", "b.c", "8df1bbb4-f92b-84e7-97d5-4147f3b325b8"},
	{"", "", "", "", "c892390c-575e-8187-8dcb-c21a30373a95"},
}

func TestDeliveryKeysAreTheSameInEveryRelease(t *testing.T) {
	for _, c := range deliveryKeys {
		got := samekey.DeliveryKey(samekey.Key{Scope: c.scope, Value: c.value}, c.action, c.part)
		if got.String() != c.want {
			t.Errorf("%q: got %s, want %s", []string{c.scope, c.value, c.action, c.part}, got, c.want)
		}
		if got.Version() != 8 || got.Variant() != uuid.RFC4122 {
			t.Errorf("%s has version %d and variant %s, want 8 and RFC 9562's", got, got.Version(), got.Variant())
		}
	}
}

// The steps of DeliveryKey's comment, written in SQL by themselves.
func TestDeliveryKeyMatchesItsComment(t *testing.T) {
	const steps = `
		select overlay(overlay(d placing set_byte('\x00', 0, get_byte(d, 6) & 15 | 128) from 7 for 1)
		               placing set_byte('\x00', 0, get_byte(d, 8) & 63 | 128) from 9 for 1)
		from (select substring(sha256('samekey/delivery/v1'::bytea ||
		        int4send(octet_length($1)) || convert_to($1, 'UTF8') || int4send(octet_length($2)) || convert_to($2, 'UTF8') ||
		        int4send(octet_length($3)) || convert_to($3, 'UTF8') || int4send(octet_length($4)) || convert_to($4, 'UTF8')
		      ) for 16) as d) as digest`
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		for _, c := range deliveryKeys {
			var bytes []byte
			must(t, tx.QueryRow(ctx, strings.NewReplacer("$1", "$1::text", "$2", "$2::text", "$3", "$3::text", "$4", "$4::text").Replace(steps),
				c.scope, c.value, c.action, c.part).Scan(&bytes))
			if got := uuid.UUID(bytes); got.String() != c.want {
				t.Errorf("%q: SQL says %s, want %s", []string{c.scope, c.value, c.action, c.part}, got, c.want)
			}
		}
	})
}

func TestDeliveryKeyFieldsDoNotRunTogether(t *testing.T) {
	seen := map[uuid.UUID][4]string{}
	texts := []string{"", "a", "b", "ab", "a.b", "b.c", "c", "a/b", "\x00", "\x00\x00\x00\x01"}
	for _, scope := range texts {
		for _, value := range texts {
			for _, action := range texts {
				for _, part := range texts {
					id := samekey.DeliveryKey(samekey.Key{Scope: scope, Value: value}, action, part)
					fields := [4]string{scope, value, action, part}
					if other, ok := seen[id]; ok {
						t.Fatalf("%q and %q share a delivery key", fields, other)
					}
					seen[id] = fields
				}
			}
		}
	}
}
