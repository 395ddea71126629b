package samekeytest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// failing records a failure, and ends its goroutine where a test would end.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.message = fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// asserted returns what the assertion found, or how it failed.
func asserted(t *testing.T, db samekey.Tx, action string, like ...outbox.Intent) (entry outbox.Entry, failure string) {
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		entry = samekeytest.AssertInserted(f, db, action, like...)
	}()
	<-done
	return entry, f.message
}

func TestAssertInserted(t *testing.T) {
	db := samekeytest.NewDB(t)
	key := func(value string) samekey.Key {
		k, err := samekey.NewKey(value, "acme", "orders.create")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if _, failure := asserted(t, db, "charge_card"); !strings.Contains(failure, "0 intents of charge_card inserted, want 1\n\tno intent at all") {
		t.Errorf("with nothing there: %q", failure)
	}
	mail := func(part, payload string) outbox.Intent {
		return outbox.Intent{Key: key("order-1"), Action: "send_mail", Part: part, Payload: []byte(payload)}
	}
	charge := outbox.Intent{Key: key("order-1"), Action: "charge_card", Payload: []byte(`{"amount": 5, "currency": "EUR"}`),
		OrderingKey: "o", Headers: map[string]string{"X-A": "b"}}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := outbox.InsertMany(t.Context(), tx, []outbox.Intent{charge, mail("buyer", "1"), mail("seller", "2")}); err != nil {
		t.Fatal(err)
	}
	samekeytest.AssertInserted(t, tx, "charge_card") // its own transaction sees it
	if _, failure := asserted(t, db, "charge_card"); !strings.Contains(failure, "was the transaction committed?") {
		t.Errorf("before the commit: %q", failure)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	type amount struct {
		Currency string `json:"currency"`
		Amount   int    `json:"amount"`
	}
	for _, like := range []outbox.Intent{
		{}, {Key: key("order-1")}, {Payload: charge.Payload}, {Payload: amount{"EUR", 5}},
		{OrderingKey: "o", ContentType: "application/json", Headers: map[string]string{"X-A": "b"}},
	} {
		if e, failure := asserted(t, db, "charge_card", like); failure != "" || e.Action != "charge_card" || string(e.Payload) != string(charge.Payload.([]byte)) {
			t.Errorf("%+v: found %+v, %s", like, e, failure)
		}
	}
	for want, like := range map[string]outbox.Intent{
		key("order-2").String(): {Key: key("order-2")},
		`part "x"`:              {Part: "x"},
		`payload {"amount":5`:   {Payload: []byte(`{"amount":5,"currency":"EUR"}`)},
		"payload {Currency:EUR": {Payload: amount{"EUR", 6}},
		"text/plain":            {ContentType: "text/plain"},
		"other-order":           {OrderingKey: "other-order"},
		"map[X-A:c]":            {Headers: map[string]string{"X-A": "c"}},
	} {
		_, failure := asserted(t, db, "charge_card", like)
		if !strings.Contains(failure, "0 intents of charge_card inserted, ") || !strings.Contains(failure, want) ||
			!strings.Contains(failure, `"currency": "EUR"`) || strings.Contains(failure, "order-1") {
			t.Errorf("%+v: %q, want %q in it, and what is there, and no key", like, failure, want)
		}
	}
	if _, failure := asserted(t, db, "send_mail"); !strings.Contains(failure, "2 intents of send_mail") {
		t.Errorf("two of them: %q", failure)
	}
	if e, failure := asserted(t, db, "send_mail", outbox.Intent{Part: "seller"}); failure != "" || string(e.Payload) != "2" {
		t.Errorf("%+v %s", e, failure)
	}
}
