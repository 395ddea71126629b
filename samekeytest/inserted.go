package samekeytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
)

// AssertInserted stops the test unless exactly one intent of this action exists, and returns it with its history. It
// sees committed intents, or what a transaction sees. Finished intents count too, since a worker may be faster than the
// test.
//
// With like, only intents with the same fields count. It compares the fields that are set in like: Key, Part,
// ContentType, OrderingKey, each of the Headers, and Payload. Bytes must be equal; any other payload must be the same
// JSON value. Other fields are not compared.
//
//	charge := samekeytest.AssertInserted(t, db, "charge_card", outbox.Intent{Key: key, Payload: Charge{Amount: 500}})
//
// The failure shows the existing intents.
func AssertInserted(t testing.TB, db samekey.Tx, action string, like ...outbox.Intent) outbox.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var found []outbox.Entry
	filter := outbox.Filter{Action: action, Limit: 1000}
	for more := true; more; more = filter.After != uuid.Nil {
		page, err := outbox.List(ctx, db, filter)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range page.Entries {
			if entry, err = outbox.Get(ctx, db, entry.ID); err != nil {
				t.Fatal(err)
			}
			if isLike(entry, like) {
				found = append(found, entry)
			}
		}
		filter.After = page.Next
	}
	if len(found) != 1 {
		t.Fatalf("%d intents of %s inserted%s, want 1\n%s", len(found), action, described(like), intents(ctx, db))
		return outbox.Entry{}
	}
	return found[0]
}

func isLike(e outbox.Entry, like []outbox.Intent) bool {
	for _, in := range like {
		if !(in.Key.IsZero() || e.Key == in.Key) ||
			!(in.Part == "" || e.Part == in.Part) ||
			!(in.ContentType == "" || e.ContentType == in.ContentType) ||
			!(in.OrderingKey == "" || e.OrderingKey == in.OrderingKey) ||
			!isPayload(e.Payload, in.Payload) {
			return false
		}
		for name, value := range in.Headers {
			if e.Headers[name] != value {
				return false
			}
		}
	}
	return true
}

func isPayload(stored []byte, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case []byte:
		return bytes.Equal(stored, want)
	case json.RawMessage:
		return bytes.Equal(stored, want)
	}
	wanted, err := samekey.FingerprintValue(want)
	if err != nil {
		return false
	}
	got, err := samekey.FingerprintJSON(stored)
	return err == nil && got == wanted
}

// described prints what was expected, without the key itself.
func described(like []outbox.Intent) string {
	var b strings.Builder
	for _, in := range like {
		if !in.Key.IsZero() {
			fmt.Fprintf(&b, ", %s", in.Key)
		}
		if in.Part != "" {
			fmt.Fprintf(&b, ", part %q", in.Part)
		}
		if in.Payload != nil {
			fmt.Fprintf(&b, ", payload %.200s", text(in.Payload))
		}
		if in.ContentType+in.OrderingKey != "" || len(in.Headers) > 0 {
			fmt.Fprintf(&b, ", %s %s %v", in.ContentType, in.OrderingKey, in.Headers)
		}
	}
	return b.String()
}

func text(payload any) string {
	switch p := payload.(type) {
	case []byte:
		return string(p)
	case json.RawMessage:
		return string(p)
	}
	return fmt.Sprintf("%+v", payload)
}

// intents prints the newest intents, for a failing test.
func intents(ctx context.Context, db samekey.Tx) string {
	page, err := outbox.List(ctx, db, outbox.Filter{Limit: 50})
	if err != nil {
		return fmt.Sprintf("\tand they cannot be listed: %v\n", err)
	}
	var b strings.Builder
	for _, e := range page.Entries {
		payload := []byte("?")
		if whole, err := outbox.Get(ctx, db, e.ID); err == nil {
			payload = whole.Payload
		}
		fmt.Fprintf(&b, "\t%s %s part=%q %s payload=%.200s\n", e.Action, e.Key, e.Part, e.Status, payload)
	}
	switch {
	case len(page.Entries) == 0:
		b.WriteString("\tno intent at all: was the transaction committed?\n")
	case page.Next != uuid.Nil:
		b.WriteString("\t... and older ones\n")
	}
	return b.String()
}
