package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// modes are pgx's ways to run a query, as a connection string names them.
var modes = []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"}

// Applications choose the mode for their own reasons, such as a pooler.
func TestEveryFunctionWorksInEveryExecMode(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			on := samekeytest.NewDB(t)
			dbtest.OtherWriter(t, on)
			m := &modal{T: t, DB: on, pool: openInMode(t, on, mode)}
			m.write()
			m.read("a pool", m.pool)
			m.decide(m.pool)
			m.endpoints(m.pool)
			m.remember()
			m.wakes()
			m.awaits()
			m.migrates(mode)

			tx, err := m.pool.Begin(t.Context())
			m.ok("begin", err)
			m.read("a transaction", tx)
			m.decide(tx)
			m.endpoints(tx)
			m.ok("rollback", tx.Rollback(t.Context()))

			db := stdlib.OpenDBFromPool(m.pool)
			defer db.Close()
			sqlTx, err := db.BeginTx(t.Context(), nil)
			m.ok("begin by database/sql", err)
			m.read("database/sql", samekey.SQL(sqlTx))
			m.endpoints(samekey.SQL(sqlTx))
			m.ok("roll back by database/sql", sqlTx.Rollback())
		})
	}
}

type modal struct {
	*testing.T
	*samekeytest.DB
	pool *pgxpool.Pool
	ids  []uuid.UUID
}

func openInMode(t *testing.T, on *samekeytest.DB, mode string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = map[string]pgx.QueryExecMode{
		"cache_statement": pgx.QueryExecModeCacheStatement, "cache_describe": pgx.QueryExecModeCacheDescribe,
		"describe_exec": pgx.QueryExecModeDescribeExec, "exec": pgx.QueryExecModeExec, "simple_protocol": pgx.QueryExecModeSimpleProtocol,
	}[mode]
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (m *modal) ok(what string, err error) {
	m.Helper()
	if err != nil {
		m.Errorf("%s: %v", what, err)
	}
}

func (m *modal) write() {
	in := outbox.Intent{
		Action: "charge_card", Payload: map[string]any{"amount": 1}, Headers: map[string]string{"Trace": "1"}, TraceContext: "00-1",
		RequestedBy: "bob", OrderingKey: "order-1", DueAt: time.Now(), Deadline: time.Now().Add(time.Hour),
	}
	m.ok("insert", pgx.BeginFunc(m.Context(), m.pool, func(tx pgx.Tx) error {
		in.Key = newKey(m.T, "one")
		id, err := outbox.Insert(m.Context(), tx, in)
		m.ids = append(m.ids, id)
		return err
	}))
	m.ok("insert many", pgx.BeginFunc(m.Context(), m.pool, func(tx pgx.Tx) error {
		in.Key = newKey(m.T, "many")
		other := in
		other.Part, other.OrderingKey, other.Headers, other.RequestedBy = "b", "", nil, ""
		ids, err := outbox.InsertMany(m.Context(), tx, []outbox.Intent{in, other})
		m.ids = append(m.ids, ids...)
		return err
	}))
	m.ok("insert in one statement", pgx.BeginFunc(m.Context(), m.pool, func(tx pgx.Tx) error {
		intents := make([]outbox.Intent, keyed.Many)
		for i := range intents {
			intents[i] = in
			intents[i].Key, intents[i].Part, intents[i].OrderingKey = newKey(m.T, "statement"), fmt.Sprint(i), ""
		}
		ids, err := outbox.InsertMany(m.Context(), tx, intents)
		if err == nil {
			m.ids = append(m.ids, ids[0])
		}
		return err
	}))
	in.Key = samekey.Key{}
	_, err := processed.Run(m.Context(), m.pool, processed.Request{Key: newKey(m.T, "run"), Payload: []byte(`{"a":1}`)},
		func(ctx context.Context, tx pgx.Tx) (string, error) {
			id, err := outbox.Insert(ctx, tx, in)
			m.ids = append(m.ids, id)
			return "done", err
		})
	m.ok("run", err)
	if len(m.ids) != 5 {
		m.Fatalf("%d intents were written", len(m.ids))
	}
}

func (m *modal) read(how string, on samekey.Tx) {
	for name, f := range map[string]outbox.Filter{
		"all": {}, "by key": {Key: "one"}, "resting": {Status: outbox.StatusDead}, "working": {Status: outbox.StatusPending},
		"finished": {Status: outbox.StatusDelivered}, "old": {OlderThan: time.Hour},
	} {
		_, err := outbox.List(m.Context(), on, f)
		m.ok(how+": list "+name, err)
	}
	for _, id := range m.ids {
		e, err := outbox.Get(m.Context(), on, id)
		m.ok(how+": get", err)
		if err == nil && (e.ID != id || e.Action != "charge_card" || string(e.Payload) != `{"amount":1}` || e.CreatedAt.IsZero()) {
			m.Errorf("%s: got %+v", how, e)
		}
		if id == m.ids[0] && e.Headers["Trace"] != "1" {
			m.Errorf("%s: the headers are %v", how, e.Headers)
		}
	}
}

func (m *modal) decide(on outbox.DB) {
	set := func(id uuid.UUID, status string) {
		m.Helper()
		if _, err := m.DB.Exec(m.Context(), `update samekey.outbox_queue set status = $2, ordering_key = null where id = $1`, id, status); err != nil {
			m.Fatal(err)
		}
	}
	if _, inTx := on.(pgx.Tx); inTx { // more would wait for its locks
		set(m.ids[2], "dead")
		m.ok("redrive in a transaction", outbox.Redrive(m.Context(), on, m.ids[2], ada))
		return
	}
	id := m.ids[1]
	set(id, "dead")
	m.ok("redrive", outbox.Redrive(m.Context(), on, id, ada))
	set(id, "awaiting_approval")
	if _, err := m.DB.Exec(m.Context(), `update samekey.outbox_history set db_user = 'another login' where event = 'redriven'`); err != nil {
		m.Fatal(err)
	}
	m.ok("approve", outbox.Approve(m.Context(), on, id, ada))
	set(id, "dead")
	if n, err := outbox.RedriveAll(outbox.Filter{}, ada).Run(m.Context(), on); err != nil || n != 1 {
		m.Errorf("redrive all: %d, %v", n, err)
	}
	set(id, "dead")
	resolve := outbox.ResolveAll(outbox.Filter{Actions: []string{"charge_card"}, From: time.Now().Add(-time.Hour), OlderThan: time.Nanosecond},
		outbox.Resolution{Outcome: outbox.NotSent, Response: []byte("nothing")}, ada)
	if plan, err := resolve.Plan(m.Context(), on.(samekey.Tx)); err != nil || plan.Intents != 1 || !slices.Equal(plan.Sample, []uuid.UUID{id}) {
		m.Errorf("plan: %+v, %v", plan, err)
	}
	if n, err := resolve.Run(m.Context(), on); err != nil || n != 1 {
		m.Errorf("resolve all: %d, %v", n, err)
	}
	if groups, err := outbox.Groups(m.Context(), on.(samekey.Tx), "charge_card"); err != nil || len(groups) != 1 || groups[0].Cause != "resolved as not sent" {
		m.Errorf("groups: %+v, %v", groups, err)
	}
	if n, err := outbox.CancelAll(outbox.Filter{Status: outbox.StatusDead, Part: "none"}, ada).Run(m.Context(), on); err != nil || n != 0 {
		m.Errorf("cancel all: %d, %v", n, err)
	}
	replace := outbox.ReplaceAll(outbox.Filter{Status: outbox.StatusDead, Key: "none"},
		outbox.Replacements{Patch: json.RawMessage(`{"amount": 2}`), Deadline: time.Now().Add(time.Hour)}, ada)
	if plan, err := replace.Plan(m.Context(), on.(samekey.Tx)); err != nil || plan.Intents != 0 {
		m.Errorf("plan of replacements: %+v, %v", plan, err)
	}
	if n, err := replace.Run(m.Context(), on); err != nil || n != 0 {
		m.Errorf("replace all: %d, %v", n, err)
	}
	set(id, "parked")
	m.ok("resolve", outbox.Resolve(m.Context(), on, id, outbox.Resolution{Outcome: outbox.Delivered, Code: "200", Response: []byte("ok")}, ada))
	set(id, "awaiting_approval")
	m.ok("reject", outbox.Reject(m.Context(), on, id, ada))
	m.ok("cancel", outbox.Cancel(m.Context(), on, m.ids[0], ada))
}

func (m *modal) endpoints(on samekey.Tx) {
	ctx, by := m.Context(), ada
	m.ok("put", endpoints.Put(ctx, on, endpoints.Endpoint{
		Destination: "webhooks", Name: "shop", URL: "https://shop.example", Secrets: []string{endpoints.NewSecret()}}, by))
	if _, err := endpoints.Test(ctx, on, "webhooks", "none", "notify", []byte(`{}`), by); !errors.Is(err, endpoints.ErrNotFound) {
		m.Errorf("test of an endpoint that is not there: %v", err)
	}
	if log, err := endpoints.Deliveries(ctx, on, "webhooks", "shop", 0, 10); err != nil || len(log) != 0 {
		m.Errorf("deliveries: %v, %v", log, err)
	}
	m.ok("stop", endpoints.Stop(ctx, on, "webhooks", "shop", by))
	_, err := endpoints.Get(ctx, on, "webhooks", "shop")
	m.ok("get endpoint", err)
	all, err := endpoints.List(ctx, on, "webhooks", "", 10)
	if err != nil || len(all) != 1 {
		m.Errorf("list endpoints: %d, %v", len(all), err)
	}
	m.ok("start", endpoints.Start(ctx, on, "webhooks", "shop", ada))
	m.ok("delete", endpoints.Delete(ctx, on, "webhooks", "shop", ada))
	events, err := endpoints.History(ctx, on, "webhooks", "shop", 0, 4)
	if err != nil || len(events) != 4 || events[0].Event != "deleted" || events[3].Event != "created" {
		m.Errorf("history of an endpoint: %v, %v", events, err)
	}
}

// wakes: a notification that cannot be encoded would be lost without a word.
func (m *modal) wakes() {
	conn, err := pgx.Connect(m.Context(), m.DSN)
	m.ok("connect", err)
	defer conn.Close(context.WithoutCancel(m.Context()))
	_, err = conn.Exec(m.Context(), "listen samekey_outbox")
	m.ok("listen", err)
	outbox.Flush(m.pool, "charge_card")
	ctx, cancel := context.WithTimeout(m.Context(), 30*time.Second)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			m.Errorf("no notification came: %v", err)
			return
		}
		if n.Payload == "charge_card" {
			return
		}
	}
}

func (m *modal) awaits() {
	key := newKey(m, "awaited in "+m.Name())
	id := insert(m, m.DB, outbox.Intent{Key: key, Action: "charge_card", Payload: 1})
	ended := make(chan error, 1)
	go func() {
		got, err := outbox.Await(m.Context(), m.pool, key, id)
		if err == nil && got.Status != outbox.StatusCancelled {
			err = fmt.Errorf("the intent is %s", got.Status)
		}
		ended <- err
	}()
	eventually(m, "a connection listens", func() bool { _, quiet := outbox.Waiters(m.pool); return quiet })
	m.ok("cancel", outbox.Cancel(m.Context(), m.DB, id, ada))
	m.ok("await", <-ended)
}

func (m *modal) migrates(mode string) {
	pool := openInMode(m.T, samekeytest.NewEmptyDB(m.T), mode)
	m.ok("migrate", schema.Migrate(m.Context(), pool))
	m.ok("migrate again", schema.Migrate(m.Context(), pool))
	m.ok("check", schema.Check(m.Context(), pool))
	_, err := schema.CheckSettings(m.Context(), pool)
	m.ok("check settings", err)
}

// remember calls what processed offers beside Run.
func (m *modal) remember() {
	ctx, payload := m.Context(), []byte(`{"a":1}`)
	replay, err := processed.Run(ctx, m.pool, processed.Request{Key: newKey(m.T, "run"), Payload: payload},
		func(context.Context, pgx.Tx) (string, error) { return "", errors.New("called twice") })
	if err != nil || !replay.Deduplicated || replay.Value != "done" {
		m.Errorf("replay: %+v, %v", replay, err)
	}
	_, err = processed.Run(ctx, m.pool, processed.Request{Key: newKey(m.T, "fail"), Payload: payload},
		func(context.Context, pgx.Tx) (string, error) { return "", processed.Fail(409, "no") })
	if failed := (*processed.Failure)(nil); !errors.As(err, &failed) || failed.Code != 409 {
		m.Errorf("fail: %v", err)
	}
	m.ok("do", pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		_, err := processed.Do(ctx, tx, processed.Request{Key: newKey(m.T, "do"), Payload: payload},
			func(ctx context.Context, tx samekey.Tx) (string, error) { return "done", nil })
		return err
	}))
	_, err = processed.Once(ctx, m.pool, processed.Request{Key: newKey(m.T, "once")}, func(context.Context, pgx.Tx) error { return nil })
	m.ok("once", err)
	_, err = m.pool.Exec(ctx, `create table if not exists customers (email text primary key, id int generated always as identity)`)
	m.ok("create a table", err)
	m.ok("find or create", pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		_, err := processed.FindOrCreate(ctx, tx,
			processed.Statement{SQL: `insert into customers (email) values ($1) on conflict do nothing returning id`, Args: []any{"a@shop.example"}},
			processed.Statement{SQL: `select id from customers where email = $1`, Args: []any{"a@shop.example"}}, pgx.RowTo[int])
		return err
	}))
	_, err = processed.Prune(ctx, m.pool, processed.Pruning{IntentRetain: time.Hour})
	m.ok("prune", err)
}

// Bytes without a type: some clients send their text form (pgx in the simple protocol),
// which must not become the payload.
func TestUntypedPayloadsKeepTheirBytesOrAreRefused(t *testing.T) {
	on := samekeytest.NewDB(t)
	for _, mode := range modes {
		pool := openInMode(t, on, mode)
		for i, payload := range []any{"{\"p\": \"C:\\\\temp\"}", []byte(`{"n": 1}`), []byte("hello"), []byte("\x00\xff\\"), []byte{}, `\x`, `\xAb01`, `\x0`, `\xyz`} {
			want := []byte(fmt.Sprintf("%s", payload))
			var id uuid.UUID
			err := pool.QueryRow(t.Context(), "select samekey.enqueue($1, $2, $3, $4, content_type => 'text/plain')",
				"acme/x", fmt.Sprint(mode, i), "charge_card", payload).Scan(&id)
			var refused *pgconn.PgError
			switch {
			case err == nil && !bytes.Equal(get(t, on, id).Payload, want):
				t.Errorf("%s: %q arrived as %q", mode, want, get(t, on, id).Payload)
			case err != nil && (!errors.As(err, &refused) || refused.Code != "22023" && refused.Code != "22021"):
				t.Errorf("%s: %q: %v", mode, want, err)
			case err != nil && utf8.Valid(want) && mode == "cache_statement" && i < 3:
				t.Errorf("%s: %q: %v", mode, want, err)
			}
		}
	}
}
