package processed_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// What Run with an order row and intents of 1 KB costs beside the same rows written by hand in a pipeline, with the same
// three round trips, lock and lookup, 16 clients at once:
//
//	go test -run '^$' -bench RunWithIntents -benchtime 1x ./processed
//
// By hand there are no rules, no check of duplicates, and the delivery key is a random UUID.
func BenchmarkRunWithIntents(b *testing.B) {
	for _, n := range []int{0, 1, 3, 5} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				benchRunWithIntents(b, n)
			}
		})
	}
}

const insertOrderRow = "insert into orders (id, amount) values ($1, 7)"

func benchRunWithIntents(b *testing.B, n int) {
	db := samekeytest.NewDB(b)
	dbtest.Exec(b, db, "create table orders (id text primary key, amount bigint not null)")
	var serial atomic.Int64
	next := func() string { return strconv.FormatInt(serial.Add(1), 10) }
	answer, payload := []byte(`{"id":"o1","amount":7}`), []byte(`"`+strings.Repeat("x", 1022)+`"`)

	byHand := func(ctx context.Context) error {
		id := next()
		return db.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return writeByHand(ctx, conn.Conn(), id, n, answer, payload) })
	}
	run := func(ctx context.Context) error {
		id := next()
		_, err := processed.Run(ctx, db.Pool, processed.Request{Key: key(b, id), Payload: answer}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			if _, err := tx.Exec(ctx, insertOrderRow, id); err != nil {
				return nil, err
			}
			for i := range n {
				if _, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Part: strconv.Itoa(i), Payload: payload}); err != nil {
					return nil, err
				}
			}
			return answer, nil
		})
		return err
	}
	dbtest.Rounds(b, 7, 16, 2*time.Second, dbtest.Variant{Name: "by-hand", Do: byHand}, dbtest.Variant{Name: "run", Do: run})
}

// writeByHand is what a careful service writes without samekey.
func writeByHand(ctx context.Context, conn *pgx.Conn, id string, n int, answer, payload []byte) error {
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue("select pg_try_advisory_xact_lock(hashtextextended($1, 0)), now()", id)
	batch.Queue("select payload_hash, response_body from samekey.processed_events where idem_key = $1 and scope = $2", id, "acme/bench")
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, insertOrderRow, id); err != nil {
		return err
	}
	batch = &pgx.Batch{}
	for i := range n {
		intent := uuid.Must(uuid.NewV7())
		batch.Queue(`insert into samekey.outbox (id, scope, idem_key, action, part, delivery_key, payload, content_type, headers, due_at)
			values ($1, 'acme/bench', $2, 'charge_card', $3, $4, $5, 'application/json', '{}', clock_timestamp())`,
			intent, id, strconv.Itoa(i), uuid.New(), payload)
		batch.Queue(`insert into samekey.outbox_queue (id, action, status, due_at) values ($1, 'charge_card', 'pending', clock_timestamp())`, intent)
	}
	batch.Queue(`insert into samekey.processed_events (idem_key, scope, payload_hash, hash_version, completed_at, expires_at, failed, response_body)
		values ($1, 'acme/bench', $2, 1, clock_timestamp(), clock_timestamp() + interval '30 days', false, $3)`, id, make([]byte, 32), answer)
	batch.Queue("commit")
	return conn.SendBatch(ctx, batch).Close()
}
