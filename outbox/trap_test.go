package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

type (
	blob   []byte
	octet  uint8
	octets []octet
	label  string
	money  struct{ Cents int }
)

func (m money) String() string { return "EUR" }

// What is bytes goes out as it is, whatever its type is called; what may be meant
// in two ways is refused.
func TestPayloadTraps(t *testing.T) {
	const doc = `{"a":  [1, 2] }`
	raw, text := json.RawMessage(doc), doc
	plain := []byte(doc)
	pointer := &raw
	for name, c := range map[string]struct {
		payload any
		want    string // "" where it is refused
	}{
		"[]byte":                  {plain, doc},
		"json.RawMessage":         {raw, doc},
		"sql.RawBytes":            {sql.RawBytes(doc), doc},
		"a type of bytes":         {blob(doc), doc},
		"a type of its own bytes": {octets(doc), doc},
		"a pointer to []byte":     {&plain, doc},
		"to a json.RawMessage":    {&raw, doc},
		"to a pointer":            {&pointer, doc},
		"a nil pointer to bytes":  {(*json.RawMessage)(nil), ""},
		"a string":                {doc, ""},
		"a type of string":        {label(doc), ""},
		"a pointer to a string":   {&text, ""},
		"bytes that are no JSON":  {blob("x"), ""},
		"json.Number":             {json.Number("9007199254740993"), "9007199254740993"},
		"bytes with a text form":  {net.IPv4(10, 0, 0, 1), `"10.0.0.1"`},
		"a Stringer":              {money{5}, `{"Cents":5}`},
		"a time":                  {time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), `"2026-01-02T03:04:05Z"`},
		"bytes inside":            {map[string]any{"b": []byte("x")}, `{"b":"eA=="}`},
		"a number":                {7, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			db := samekeytest.NewDB(t)
			key, err := samekey.NewKey("k", "acme", "traps")
			if err != nil {
				t.Fatal(err)
			}
			err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "a", Payload: c.payload})
				return err
			})
			if c.want == "" {
				invalid := (*outbox.IntentError)(nil)
				if !errors.As(err, &invalid) || invalid.Field != "Payload" || strings.Contains(err.Error(), "[1, 2]") {
					t.Fatalf("want an IntentError about Payload without the payload: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			if err := db.QueryRow(t.Context(), "select payload from samekey.outbox").Scan(&got); err != nil || string(got) != c.want {
				t.Errorf("got %s, want %s, %v", got, c.want, err)
			}
		})
	}
}

// The caller's bytes may be used for something else before the commit.
func TestAPayloadIsCopied(t *testing.T) {
	tx := &keepingTx{}
	payload := blob(`{"a":1}`)
	_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Action: "a", Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	copy(payload, `garbage`)
	if !bytes.Equal(tx.kept.Payload, []byte(`{"a":1}`)) {
		t.Errorf("the queue holds %s", tx.kept.Payload)
	}
}

func TestEveryErrorAboutAnIntentNamesItsField(t *testing.T) {
	tx := &keepingTx{}
	good := outbox.Intent{Action: "a", Payload: 1}
	for field, spoil := range map[string]func(*outbox.Intent){
		"Action":       func(in *outbox.Intent) { in.Action = "A" },
		"Payload":      func(in *outbox.Intent) { in.Payload = nil },
		"ContentType":  func(in *outbox.Intent) { in.ContentType = "x" },
		"Headers":      func(in *outbox.Intent) { in.Headers = map[string]string{"Host": "x"} },
		"Part":         func(in *outbox.Intent) { in.Part = "\x00" },
		"OrderingKey":  func(in *outbox.Intent) { in.OrderingKey = "\xff" },
		"DueAt":        func(in *outbox.Intent) { in.DueAt = time.Date(1, 2, 3, 0, 0, 0, 0, time.UTC) },
		"Deadline":     func(in *outbox.Intent) { in.Deadline = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"TraceContext": func(in *outbox.Intent) { in.TraceContext = "\n" },
		"RequestedBy":  func(in *outbox.Intent) { in.RequestedBy = strings.Repeat("x", 256) },
		"Subject":      func(in *outbox.Intent) { in.Subject = strings.Repeat("x", 256) },
		"Key":          func(in *outbox.Intent) { in.Key = samekey.Key{Scope: "other", Value: "k"} },
	} {
		in := good
		spoil(&in)
		_, one := outbox.Insert(t.Context(), tx, in)
		_, many := outbox.InsertMany(t.Context(), tx, []outbox.Intent{good, in})
		for _, err := range []error{one, many} {
			invalid := (*outbox.IntentError)(nil)
			if !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
}

// With database/sql alone, and whatever its driver.
func TestFlushSQLWakesTheWorkers(t *testing.T) {
	on := samekeytest.NewDB(t)
	listener, err := pgx.Connect(t.Context(), on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close(context.Background()) }()
	if _, err := listener.Exec(t.Context(), "listen "+wake.Channel); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	outbox.FlushSQL(db, "charge_card", "send_mail", "charge_card")
	outbox.FlushSQL(nil, "nothing")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, want := range []string{"charge_card", "send_mail"} {
		n, err := listener.WaitForNotification(ctx)
		if err != nil || n.Payload != want {
			t.Fatalf("heard %+v, want %s, %v", n, want, err)
		}
	}
}

// keepingTx is a request's transaction that queues everything and keeps the last.
type keepingTx struct {
	samekey.Tx
	kept keyed.Intent
}

func (t *keepingTx) RequestKey() samekey.Key { return samekey.Key{Scope: "acme/traps", Value: "k"} }

func (t *keepingTx) RequestSubject() string { return "" }

func (t *keepingTx) Enqueue(in keyed.Intent) (uuid.UUID, bool, error) {
	t.kept = in
	return in.ID, true, nil
}

func (t *keepingTx) Wrote(string) {}
