package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

type charge struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

var (
	chargeCard = outbox.NewAction[charge]("charge_card")
	webhook    = outbox.NewAction[[]byte]("webhook")
)

func TestActionInsertTakesTheRequestsKey(t *testing.T) {
	on := samekeytest.NewDB(t)
	key := newKey(t, "order-1")
	res, err := processed.Run(t.Context(), on.Pool, processed.Request{Key: key, Payload: []byte("{}")},
		func(ctx context.Context, tx pgx.Tx) (string, error) {
			id, err := chargeCard.Insert(ctx, tx, charge{"order-1", 1999})
			return id.String(), err
		})
	if err != nil {
		t.Fatal(err)
	}
	page, err := outbox.List(t.Context(), on, outbox.Filter{Key: key.Value})
	if err != nil || len(page.Entries) != 1 {
		t.Fatal(page.Entries, err)
	}
	e := get(t, on, page.Entries[0].ID)
	if e.ID.String() != res.Value || e.Action != chargeCard.Name() || e.Key != key || string(e.Payload) != `{"order":"order-1","amount":1999}` {
		t.Errorf("stored %v %q %v %s", e.ID, e.Action, e.Key, e.Payload)
	}
}

func TestActionIntentTakesTheOtherFields(t *testing.T) {
	on := samekeytest.NewDB(t)
	in := chargeCard.Intent(charge{"order-1", 5})
	in.Key, in.Part, in.OrderingKey = newKey(t, "order-1"), "line-1", "order-1"
	e := get(t, on, insert(t, on, in))
	if e.Part != "line-1" || e.OrderingKey != "order-1" || string(e.Payload) != `{"order":"order-1","amount":5}` {
		t.Errorf("stored %q %q %s", e.Part, e.OrderingKey, e.Payload)
	}
}

func TestUntypedActionKeepsItsBytes(t *testing.T) {
	on := samekeytest.NewDB(t)
	in := webhook.Intent([]byte(`{"b":1,  "a":2}`))
	if e := get(t, on, insert(t, on, in)); string(e.Payload) != `{"b":1,  "a":2}` || e.ContentType != "application/json" {
		t.Errorf("stored %s as %s", e.Payload, e.ContentType)
	}
	in = webhook.Intent([]byte("\xff\x00"))
	in.ContentType = "application/octet-stream"
	if e := get(t, on, insert(t, on, in)); string(e.Payload) != "\xff\x00" || e.ContentType != "application/octet-stream" {
		t.Errorf("stored %q as %s", e.Payload, e.ContentType)
	}
}

func TestActionWithoutNewActionInsertsNothing(t *testing.T) {
	on := samekeytest.NewDB(t)
	in := outbox.Action[charge]{}.Intent(charge{})
	in.Key = newKey(t, "order-1")
	err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
		_, err := outbox.Insert(t.Context(), tx, in)
		return err
	})
	if refused, ok := errors.AsType[*outbox.IntentError](err); !ok || refused.Field != "Action" {
		t.Errorf("got %v", err)
	}
}

func TestNewActionPanics(t *testing.T) {
	type named string
	for what, declare := range map[string]func(){
		`[outbox_test.charge](""): Action must be`:           func() { outbox.NewAction[charge]("") },
		`("Charge"): Action must be`:                         func() { outbox.NewAction[charge]("Charge") },
		`must be 1 to 63`:                                    func() { outbox.NewAction[charge](strings.Repeat("a", 64)) },
		`NewAction[string]("mail"): Payload is a string`:     func() { outbox.NewAction[string]("mail") },
		`Payload is a outbox_test.named`:                     func() { outbox.NewAction[named]("mail") },
		`NewAction[*os.File]("mail"): Payload is a *os.File`: func() { outbox.NewAction[*os.File]("mail") },
		`NewAction[func()]("mail"): Payload is a func()`:     func() { outbox.NewAction[func()]("mail") },
		`NewAction[chan int]("mail"): Payload is a chan int`: func() { outbox.NewAction[chan int]("mail") },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "outbox: NewAction") || !strings.Contains(got, what) {
					t.Errorf("got %q, want %q", got, what)
				}
			}()
			declare()
		}()
	}
	// These have values that can be stored.
	outbox.NewAction[any]("a")
	outbox.NewAction[io.Reader]("a") // a reader that is a json.Marshaler
	outbox.NewAction[json.RawMessage](strings.Repeat("a", 63))
	outbox.NewAction[*charge]("a.b-c_1")
	outbox.NewAction[struct{}]("a")
}
