package outbox_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

const writeSet = `with given as (
		select * from unnest($1::uuid[], $2::text[], $3::bytea[]) as g (id, idem_key, payload)
	), intent as (
		insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, headers, due_at)
		select g.id, 'acme/bench', g.idem_key, 'charge_card', gen_random_uuid(), g.payload, 'application/json', '{}', clock_timestamp() from given g
		returning id, action, due_at
	)
	insert into samekey.outbox_queue (id, action, status, due_at) select id, action, 'pending', due_at from intent`

// What intents of 1 KB cost beside the same rows written by one statement of raw SQL: one in a transaction of its own
// (begin, insert, commit), and 1,000.
//
//	go test -run '^$' -bench 'Insert' -benchtime 1x ./outbox
func BenchmarkInsert(b *testing.B) {
	for _, n := range []int{1, 4, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				benchInsert(b, n)
			}
		})
	}
}

func benchInsert(b *testing.B, n int) {
	db := samekeytest.NewDB(b)
	var serial atomic.Int64
	payload := []byte(`"` + strings.Repeat("x", 1022) + `"`)
	raw := func(ctx context.Context, tx pgx.Tx, keys []string) error {
		ids, payloads := make([]uuid.UUID, n), make([][]byte, n)
		for i := range ids {
			ids[i], payloads[i] = uuid.Must(uuid.NewV7()), payload
		}
		_, err := tx.Exec(ctx, writeSet, ids, keys, payloads)
		return err
	}
	ours := func(ctx context.Context, tx pgx.Tx, keys []string) (err error) {
		intents := make([]outbox.Intent, n)
		for i, key := range keys {
			intents[i] = outbox.Intent{Key: samekey.Key{Scope: "acme/bench", Value: key}, Action: "charge_card", Payload: payload}
		}
		if n == 1 {
			_, err = outbox.Insert(ctx, tx, intents[0])
		} else {
			_, err = outbox.InsertMany(ctx, tx, intents)
		}
		return err
	}
	variant := func(name string, write func(context.Context, pgx.Tx, []string) error) dbtest.Variant {
		return dbtest.Variant{Name: name, Do: func(ctx context.Context) error {
			keys := make([]string, n)
			for i := range keys {
				keys[i] = strconv.FormatInt(serial.Add(1), 10)
			}
			return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return write(ctx, tx, keys) })
		}}
	}
	dbtest.Rounds(b, 7, 4, 2*time.Second, variant("raw", raw), variant("samekey", ours))
}
