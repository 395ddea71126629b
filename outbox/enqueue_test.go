package outbox_test

import (
	"errors"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// psql runs a statement as a person or a script would, and returns what it
// printed. Where psql is not installed a plain connection does the same.
func psql(t *testing.T, on *samekeytest.DB, statement string) (out string, err error) {
	t.Helper()
	if path, found := exec.LookPath("psql"); found == nil {
		cmd := exec.CommandContext(t.Context(), path, "-X", "-w", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-d", on.DSN, "-c", statement)
		printed, err := cmd.CombinedOutput()
		if err != nil {
			return "", errors.New(string(printed))
		}
		return strings.TrimSpace(string(printed)), nil
	}
	conn, err := pgx.Connect(t.Context(), on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	results, err := conn.PgConn().Exec(t.Context(), statement).ReadAll()
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		return "", errors.New(refused.Code + ": " + refused.Message + " HINT: " + refused.Hint)
	}
	if err != nil {
		return "", err
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}

func TestAnIntentWrittenFromPsqlIsTheSameAsOneWrittenInGo(t *testing.T) {
	on := newGuardedDB(t)
	const statement = `select samekey.enqueue('acme/orders.create', 'order-1', 'charge_card', convert_to('{"amount": 5}', 'UTF8'))`
	first, err := psql(t, on, statement)
	if err != nil {
		t.Fatal(err)
	}
	id, err := uuid.Parse(first)
	if err != nil || id.Version() != 7 {
		t.Fatalf("psql printed %q, want an id of version 7", first)
	}
	key := newKey(t, "order-1")
	in := outbox.Intent{Key: key, Action: "charge_card", Payload: []byte(`{"amount": 5}`)}
	if again := insert(t, on, in); again != id {
		t.Errorf("Go got another id: %s, want %s", again, id)
	}
	if e := get(t, on, id); e.DeliveryKey != samekey.DeliveryKey(key, "charge_card", "") || e.ContentType != "application/json" || e.Status != outbox.StatusPending {
		t.Errorf("%+v", e)
	}
	if again, err := psql(t, on, statement); err != nil || again != first {
		t.Errorf("again: %s, %v; want the first id", again, err)
	}
	_, err = psql(t, on, strings.Replace(statement, "5", "6", 1))
	for _, want := range []string{"SK001", "another payload", "must roll back"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("another payload: %v, want %q in it", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "order-1") {
		t.Errorf("the error tells the key: %v", err)
	}
	_, err = psql(t, on, strings.Replace(statement, "charge_card", "Charge", 1))
	if err == nil || !strings.Contains(err.Error(), "22023: samekey: enqueue: action must match") {
		t.Errorf("a bad action: %v", err)
	}
}

// Its owner may have written rows past samekey.enqueue.
func TestHeadersOfOtherTypesCanBeRead(t *testing.T) {
	on := newGuardedDB(t)
	id := insert(t, on, outbox.Intent{Action: "a", Payload: []byte("\x00\xff"), ContentType: "application/octet-stream"})
	mustExec(t, on, `update samekey.outbox set headers = '{"n": 1, "s": "t", "o": {"x": [null]}}'`)
	e := get(t, on, id)
	if e.Headers["n"] != "1" || e.Headers["s"] != "t" || e.Headers["o"] != `{"x": [null]}` || string(e.Payload) != "\x00\xff" {
		t.Errorf("%+v", e)
	}
}

func TestTheDeliveryKeyInSQLIsTheOneInGo(t *testing.T) {
	on := samekeytest.NewDB(t)
	text := func(alphabet []rune, most int) string {
		var b strings.Builder
		for range rand.IntN(most + 1) {
			b.WriteRune(alphabet[rand.IntN(len(alphabet))])
		}
		return b.String()
	}
	ascii, wide := []rune("ab/%.:~ 019"), []rune("aé漢😀\u2028.")
	for range 500 {
		key := samekey.Key{Scope: text(ascii, 40), Value: text(ascii, 255)}
		action, part := text([]rune("ab._-"), 63), text(wide, 60)
		var got uuid.UUID
		if err := on.QueryRow(t.Context(), "select samekey.delivery_key($1, $2, $3, $4)", key.Scope, key.Value, action, part).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if want := samekey.DeliveryKey(key, action, part); got != want {
			t.Fatalf("SQL makes %s of %q %q %q %q, Go %s", got, key.Scope, key.Value, action, part, want)
		}
	}
}

func TestIdsAreOfVersionSevenAndHoldTheTimeOfTheirWriter(t *testing.T) {
	on := samekeytest.NewDB(t)
	before := time.Now().Add(-time.Second)
	goID := insert(t, on, outbox.Intent{Action: "a"})
	var sqlID uuid.UUID
	if err := on.QueryRow(t.Context(), "select samekey.uuidv7()").Scan(&sqlID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uuid.UUID{goID, sqlID} {
		sec, nsec := id.Time().UnixTime()
		if at := time.Unix(sec, nsec); id.Version() != 7 || id.Variant() != uuid.RFC4122 || at.Before(before) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("%s: version %d, time %s", id, id.Version(), at)
		}
	}
}

func TestIntentIsDueWhenWrittenNotWhenTransactionBegan(t *testing.T) {
	on := samekeytest.NewDB(t)
	err := inTx(t, on, func(tx pgx.Tx) error {
		id, err := outbox.Insert(t.Context(), tx, valid(t))
		if err != nil {
			return err
		}
		var later bool
		err = tx.QueryRow(t.Context(), "select due_at > now() from samekey.outbox_queue where id = $1", id).Scan(&later)
		if !later {
			t.Error("it is due at the start of its transaction: below every mark once that commits")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
