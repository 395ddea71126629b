package outbox_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// keyedTx is a request's transaction that does not queue, as an Apply's.
type keyedTx struct {
	pgx.Tx
	key samekey.Key
}

func (t *keyedTx) RequestKey() samekey.Key { return t.key }

func (t *keyedTx) RequestSubject() string { return "booking/42" }

// queueTx is one that queues the first `room` intents.
type queueTx struct {
	keyedTx
	room   int
	queued []keyed.Intent
	wrote  []string
}

func (t *queueTx) Enqueue(in keyed.Intent) (uuid.UUID, bool, error) {
	if in.Action == "conflict" {
		return uuid.Nil, false, &outbox.ConflictError{Action: in.Action}
	}
	if len(t.queued) == t.room {
		return uuid.Nil, false, nil
	}
	t.queued = append(t.queued, in)
	return in.ID, true, nil
}

func (t *queueTx) Wrote(action string) { t.wrote = append(t.wrote, action) }

func TestIntentTakesTheRequestsKey(t *testing.T) {
	on := newGuardedDB(t)
	tx := &keyedTx{begin(t, on), newKey(t, "order-1")}
	in := outbox.Intent{Action: "charge_card", Payload: 1}
	id, err := outbox.Insert(t.Context(), tx, in)
	if err != nil {
		t.Fatal(err)
	}
	in.Key = tx.key
	if again, err := outbox.Insert(t.Context(), tx, in); err != nil || again != id {
		t.Errorf("with the request's own key: %s, %v; want %s", again, err, id)
	}
	in.Key = newKey(t, "order-2")
	if _, err := outbox.Insert(t.Context(), tx, in); err == nil || !strings.Contains(err.Error(), "Key differs from the request's key") {
		t.Errorf("with another key: %v", err)
	}
	e, err := outbox.Get(t.Context(), tx, id)
	if err != nil || e.Key != tx.key || e.DeliveryKey != samekey.DeliveryKey(tx.key, "charge_card", "") {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestQueuedIntentsSendNoSQL(t *testing.T) {
	tx := &queueTx{keyedTx: keyedTx{noSQL{}, newKey(t, "order-1")}, room: 3}
	id, err := outbox.Insert(t.Context(), tx, outbox.Intent{Action: "charge_card", Payload: 1})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := outbox.InsertMany(t.Context(), tx, []outbox.Intent{{Action: "b", Payload: 2}, {Action: "a", Payload: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range append([]uuid.UUID{id}, ids...) {
		if in := tx.queued[i]; in.ID != want || in.Key != tx.key || want == uuid.Nil {
			t.Errorf("queued %+v, returned id %s", in, want)
		}
	}
	var conflict *outbox.ConflictError
	if _, err := outbox.Insert(t.Context(), tx, outbox.Intent{Action: "conflict", Payload: 1}); !errors.As(err, &conflict) {
		t.Errorf("got %v, want the queue's ConflictError", err)
	}
}

func TestIntentIsWrittenAtOnceWhenTheQueueIsClosed(t *testing.T) {
	on := newGuardedDB(t)
	tx := &queueTx{keyedTx: keyedTx{begin(t, on), newKey(t, "order-1")}, room: 1}
	ids, err := outbox.InsertMany(t.Context(), tx, []outbox.Intent{{Action: "a", Payload: 1}, {Action: "b", Payload: 2}})
	if err != nil {
		t.Fatal(err)
	}
	id, err := outbox.Insert(t.Context(), tx, outbox.Intent{Action: "c", Payload: 3})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(tx.wrote, " ") != "b c" || len(tx.queued) != 1 {
		t.Errorf("noted %v, queued %d", tx.wrote, len(tx.queued))
	}
	for _, id := range []uuid.UUID{ids[1], id} {
		if _, err := outbox.Get(t.Context(), tx, id); err != nil {
			t.Error(err)
		}
	}
}

func TestInsertRefusesPoolConnectionAndNil(t *testing.T) {
	on := samekeytest.NewDB(t)
	conn, err := on.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, tx := range []samekey.Tx{on.Pool, conn, conn.Conn(), nil} {
		_, err := outbox.Insert(t.Context(), tx, valid(t))
		if err == nil || !strings.Contains(err.Error(), "transaction") {
			t.Errorf("%T: %v", tx, err)
		}
	}
}

func TestSameKeyValueOfAnotherActionOrTenant(t *testing.T) {
	on := samekeytest.NewDB(t)
	keys := map[uuid.UUID]bool{}
	for _, in := range []outbox.Intent{
		{Key: newKey(t, "k", "a", "x"), Action: "charge_card"},
		{Key: newKey(t, "k", "a", "x"), Action: "refund_card"},
		{Key: newKey(t, "k", "b", "x"), Action: "charge_card"},
		{Key: newKey(t, "k", "a", "y"), Action: "charge_card"},
		{Key: newKey(t, "k", "a/x", "x"), Action: "charge_card"},
		{Key: newKey(t, "k", "a", "x"), Action: "charge_card", Part: "2"},
	} {
		in.Payload = []string{in.Action, in.Part, in.Key.Scope}
		keys[get(t, on, insert(t, on, in)).DeliveryKey] = true
	}
	if len(keys) != 6 {
		t.Errorf("%d delivery keys, want 6", len(keys))
	}
}

func TestARolledBackSavepointTakesItsIntentWithIt(t *testing.T) {
	on := newGuardedDB(t)
	kept, dropped := valid(t), valid(t)
	dropped.Action = "send_mail"
	err := inTx(t, on, func(tx pgx.Tx) error {
		if _, err := outbox.Insert(t.Context(), tx, kept); err != nil {
			return err
		}
		failed := errors.New("no")
		err := pgx.BeginFunc(t.Context(), tx, func(inner pgx.Tx) error {
			if _, err := outbox.Insert(t.Context(), inner, dropped); err != nil {
				return err
			}
			return failed
		})
		if errors.Is(err, failed) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := outbox.List(t.Context(), on, outbox.Filter{})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].Action != kept.Action {
		t.Errorf("%+v, %v", page, err)
	}
}

func TestDatabaseSQLUsersGetTheSame(t *testing.T) {
	on := newGuardedDB(t)
	std, err := sql.Open("pgx", on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer std.Close()
	in := valid(t)
	in.Headers, in.OrderingKey, in.Payload = map[string]string{"X-A": "b"}, "order-1", []byte(`{"a": 1}`)
	tx, err := std.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	id, err := outbox.Insert(t.Context(), samekey.SQL(tx), in)
	if err != nil {
		t.Fatal(err)
	}
	second := in
	second.Part = "2"
	ids, err := outbox.InsertMany(t.Context(), samekey.SQL(tx), []outbox.Intent{second, in})
	if err != nil || ids[1] != id {
		t.Fatalf("%v, %v; want the first id %s", ids, err, id)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, id); string(e.Payload) != `{"a": 1}` || e.Headers["X-A"] != "b" || e.OrderingKey != "order-1" || e.Status != outbox.StatusPending {
		t.Errorf("%+v", e)
	}
	if e := get(t, on, ids[0]); e.Status != outbox.StatusBlocked {
		t.Errorf("the second of the ordering key is %s", e.Status)
	}

	tx, err = std.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	in.Payload = 2
	var conflict *outbox.ConflictError
	if _, err := outbox.Insert(t.Context(), samekey.SQL(tx), in); !errors.As(err, &conflict) {
		t.Errorf("got %v, want a ConflictError", err)
	}
}

func TestInvisibleIntentIsARetryableError(t *testing.T) {
	on := newGuardedDB(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, amount := range []int{1, 2} { // the same payload as the other's, and another
			in := outbox.Intent{Key: newKey(t, string(level)+string(rune('0'+amount))), Action: "charge_card", Payload: 1}
			tx, err := on.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "select count(*) from samekey.outbox"); err != nil {
				t.Fatal(err)
			}
			insert(t, on, in)
			in.Payload = amount
			_, err = outbox.Insert(t.Context(), tx, in)
			_ = tx.Rollback(t.Context())
			isRetryable(t, err)
		}
	}
}

func isRetryable(t *testing.T, err error) {
	t.Helper()
	var refused *pgconn.PgError
	var conflict *outbox.ConflictError
	if !errors.As(err, &refused) || refused.Code != "40001" || errors.As(err, &conflict) {
		t.Errorf("got %v, want SQLSTATE 40001", err)
	} else if !strings.Contains(err.Error(), "run the transaction again") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}
