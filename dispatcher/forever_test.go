package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestKeyWindowForever(t *testing.T) {
	db := samekeytest.NewDB(t)
	mustExec(t, db.Pool, `select samekey.enqueue('t', 'k', 'charge_card', '1')`)
	d := dispatcher.New(db.Pool, nil)
	fail := true
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever, Backoff: 24 * time.Hour},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			if fail {
				return dispatcher.Outcome{}, errors.New("reset")
			}
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		})
	if sum, err := d.Drain(t.Context()); err != nil || sum.Retried != 1 {
		t.Fatalf("%+v, %v", sum, err)
	}
	page, err := outbox.List(t.Context(), db.Pool, outbox.Filter{})
	if err != nil || len(page.Entries) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	if entry := page.Entries[0]; entry.FirstSentAt.IsZero() || !entry.KeyWindowUntil.IsZero() {
		t.Errorf("first sent %v, window ends %v: want a send, and no end", entry.FirstSentAt, entry.KeyWindowUntil)
	}
	fail = false
	samekeytest.Elapse(t, db, 365*24*time.Hour)
	if sum, err := d.Drain(t.Context()); err != nil || sum.Delivered != 1 {
		t.Fatalf("a year later: %+v, %v", sum, err)
	}
}
