package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func inTx(t testing.TB, on *samekeytest.DB, do func(tx pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), on, do)
}

func TestInsertAgainReturnsTheFirstID(t *testing.T) {
	db := samekeytest.NewDB(t)
	in := outbox.Intent{Key: newKey(t, "order-1"), Action: "charge_card", Payload: map[string]int{"amount": 5}}
	first := insert(t, db, in)
	err := inTx(t, db, func(tx pgx.Tx) error {
		again, err := outbox.Insert(t.Context(), tx, in)
		if err != nil {
			return err
		}
		if again != first {
			t.Errorf("the second insert returned %s, want the first id %s", again, first)
		}
		_, err = tx.Exec(t.Context(), "select 1")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "select count(*) from samekey.outbox_queue"); n != 1 {
		t.Errorf("%d rows in the queue, want 1", n)
	}
}

func TestInsertOfAnotherPayloadUnderTheSameKeyIsRefused(t *testing.T) {
	db := samekeytest.NewDB(t)
	in := outbox.Intent{Key: newKey(t, "order-1"), Action: "charge_card", Part: "ada@example.com", Payload: map[string]int{"amount": 5}}
	insert(t, db, in)
	in.Payload = map[string]int{"amount": 6}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	_, err = outbox.Insert(t.Context(), tx, in)
	var conflict *outbox.ConflictError
	if !errors.As(err, &conflict) || conflict.Action != "charge_card" || conflict.KeyHash != in.Key.Hash() {
		t.Fatalf("got %v, want a ConflictError of charge_card", err)
	}
	const want = `outbox: insert "charge_card" intent: key:ff043d13 already has an intent with the same Part and another payload: ` +
		`roll this transaction back; a second effect of one action under one key needs another Part`
	if err.Error() != want {
		t.Errorf("the error says\n%s\nwant\n%s", err, want)
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "SK001" {
		t.Errorf("the error does not hold SQLSTATE SK001: %v", err)
	}
	// What the database says is in the server's log too.
	if said := fmt.Sprint(refused.Message, refused.Detail, refused.Hint); strings.Contains(said, in.Part) || conflict.Part != in.Part {
		t.Errorf("the database said %q; the error's Part is %q", said, conflict.Part)
	}
	_, err = outbox.Insert(t.Context(), tx, in)
	if !errors.As(err, &refused) || refused.Code != "25P02" {
		t.Errorf("the next statement got %v, want 25P02: the transaction is aborted, as the error said", err)
	}
}

func TestMustBeNewRefusesAnExistingIntent(t *testing.T) {
	on := samekeytest.NewDB(t)
	in := outbox.Intent{Key: newKey(t, "order-1"), Action: "charge_card", Part: "ada@example.com"}
	insert(t, on, in)
	_, err := on.Exec(t.Context(), `select samekey.enqueue($1, $2, $3, '{}', part => $4, must_be_new => true)`, in.Key.Scope, in.Key.Value, in.Action, in.Part)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "SK002" || strings.Contains(fmt.Sprintf("%+v", refused), in.Part) {
		t.Errorf("got %+v, want SK002 without the part", refused)
	}
}

func TestInsertWorksInEveryModeOfTheDriver(t *testing.T) {
	on := samekeytest.NewDB(t)
	for mode, name := range map[pgx.QueryExecMode]string{
		pgx.QueryExecModeCacheStatement: "cache_statement", pgx.QueryExecModeCacheDescribe: "cache_describe",
		pgx.QueryExecModeDescribeExec: "describe_exec", pgx.QueryExecModeExec: "exec", pgx.QueryExecModeSimpleProtocol: "simple_protocol",
	} {
		config, err := pgx.ParseConfig(on.DSN)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		in := outbox.Intent{
			Key: newKey(t, name), Action: "charge_card", Payload: []byte(`{"a":"\\"}`), Headers: map[string]string{"X-A": `"\`},
			OrderingKey: name, Deadline: time.Now().Add(time.Hour), DueAt: time.Now(),
		}
		two := []outbox.Intent{in, in}
		two[0].Part, two[1].Part = "1", "2"
		var id uuid.UUID
		err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) (err error) {
			if id, err = outbox.Insert(t.Context(), tx, in); err != nil {
				return err
			}
			_, err = outbox.InsertMany(t.Context(), tx, two)
			return err
		})
		_ = conn.Close(t.Context())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e := get(t, on, id); string(e.Payload) != `{"a":"\\"}` || e.Headers["X-A"] != `"\` {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestInsertManyWritesInOneBatchAndKeepsTheOrderOfIds(t *testing.T) {
	db := samekeytest.NewDB(t)
	key := newKey(t, "order-1")
	intents := []outbox.Intent{
		{Key: key, Action: "send_mail", Part: "b", Payload: 1},
		{Key: key, Action: "charge_card", OrderingKey: "o2", Payload: 2},
		{Key: key, Action: "send_mail", Part: "a", Payload: 3},
		{Key: key, Action: "capture", OrderingKey: "o1", Payload: 4},
		{Key: key, Action: "refund", OrderingKey: "o2", Payload: 5},
		{Key: key, Action: "send_mail", Part: "b", Payload: 1},
	}
	var ids []uuid.UUID
	err := inTx(t, db, func(tx pgx.Tx) (err error) {
		ids, err = outbox.InsertMany(t.Context(), tx, intents)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if ids[5] != ids[0] {
		t.Errorf("the same intent twice has two ids")
	}
	for i, in := range intents {
		var action, part string
		if err := db.QueryRow(t.Context(), "select action, part from samekey.outbox where id = $1", ids[i]).Scan(&action, &part); err != nil {
			t.Fatalf("intent %d: %v", i, err)
		}
		if action != in.Action || part != in.Part {
			t.Errorf("id %d is of %s/%s, want %s/%s", i, action, part, in.Action, in.Part)
		}
	}
	if n := count(t, db, "select count(*) from samekey.outbox_queue where ordering_key = 'o2' and status = 'pending' and action = 'charge_card'"); n != 1 {
		t.Errorf("the head of o2 is not the first that was given")
	}
}
