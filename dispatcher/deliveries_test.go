package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox/endpoints"
)

// wantDeliveries checks the log of an endpoint of the destination "vendor", oldest first.
func (b *bundle) wantDeliveries(name string, want ...string) []endpoints.Delivery {
	b.Helper()
	page, err := endpoints.Deliveries(b.ctx, b.db, "vendor", name, 0, 100)
	if err != nil {
		b.Fatal(err)
	}
	slices.Reverse(page)
	var got []string
	for _, d := range page {
		got = append(got, fmt.Sprintf("%s:%s:%s %s", d.Event, d.Outcome, d.Code, d.Status))
	}
	if !slices.Equal(got, want) {
		b.Errorf("the log of %s: %q, want %q", name, got, want)
	}
	return page
}

// Each call is in the log of its endpoint: attempts, lookups, and what was not sent. An Apply is none, and neither is a
// call of an action without stored endpoints.
func TestEachCallIsInTheLogOfItsEndpoint(t *testing.T) {
	answers := map[string][]dispatcher.Outcome{
		"to-1": {dispatcher.Retry(dispatcher.Response{Code: "429"}), dispatcher.Unknown(dispatcher.Response{Code: "500"})},
		"to-2": {dispatcher.Delivered(dispatcher.Response{Code: "200"})},
	}
	failed := false
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1})
	handle(d, "send_receipt", policyOf(dispatcher.IdempotentWrite), ok)
	handle(d, "charge_card", storedPolicy(dispatcher.NonIdempotentWrite), func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		o := answers[call.Part][0]
		answers[call.Part] = answers[call.Part][1:]
		return o, nil
	}, storedByPart, withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{Code: "found"}), nil
	}), withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error {
		if failed {
			return nil
		}
		failed = true
		return errors.New("the first Apply fails")
	}))
	for _, name := range []string{"to-1", "to-2", "to-3"} {
		b.putEndpoint(name, "https://one.example")
	}
	b.stopEndpoint("to-3")

	b.insert("send_receipt")
	id := b.insert("charge_card", to("to-1"))
	b.drain(d)
	b.wantDeliveries("to-1", "attempt:retry:429 pending")
	for range 4 {
		b.elapse(backoff)
		b.drain(d)
	}
	b.wantStatus(id, "delivered")
	page := b.wantDeliveries("to-1", "attempt:retry:429 delivered", "attempt:unknown:500 delivered", "lookup:delivered:found delivered")
	for i, at := range page {
		if at.IntentID != id || at.Action != "charge_card" || at.Attempt != i+1 || at.Took <= 0 || at.Took > time.Minute || at.At.IsZero() {
			t.Errorf("%+v", at)
		}
	}
	b.insert("charge_card", to("to-2"))
	b.insert("charge_card", to("to-3"))
	b.insert("charge_card", to("to-4"))
	b.drain(d)
	b.wantDeliveries("to-2", "attempt:delivered:200 delivered")
	b.wantDeliveries("to-3", "attempt:dead:endpoint_stopped dead")
	b.wantDeliveries("to-4") // there is no such endpoint
	if n := b.count(`select count(*) from samekey.outbox_history where endpoint is not null`); n != 5 {
		t.Errorf("%d events have an endpoint, want 5", n)
	}
}

// The application's own test of a receiver goes the way of all calls.
func TestTestOfAnEndpointIsSent(t *testing.T) {
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.IdempotentWrite), storedByPart)
	b.putEndpoint("to-1", "https://one.example")
	if _, err := endpoints.Test(b.ctx, b.db, "vendor", "to-1", "charge_card", []byte(`{"type": "ping"}`), by); err != nil {
		t.Fatal(err)
	}
	seen := ""
	s.next = func(call *dispatcher.Call) (dispatcher.Outcome, error) {
		seen = call.Endpoint.URL
		return succeeding(call)
	}
	b.expect(d, delivered)
	if seen != "https://one.example" {
		t.Error(seen)
	}
	b.wantDeliveries("to-1", "attempt:delivered:201 delivered")
}

func TestLateAnswerIsInTheLogOfItsEndpoint(t *testing.T) {
	b, d, s := scriptedSetup(t, storedPolicy(dispatcher.NonIdempotentWrite), storedByPart)
	b.putEndpoint("to-1", "https://one.example")
	s.next = func(call *dispatcher.Call) (dispatcher.Outcome, error) {
		// Another worker takes the intent over, and finds no lookup.
		_, err := b.db.Exec(b.ctx, `update samekey.outbox_queue set status = 'parked', leased_by = null, lease_until = null,
			last_sent_attempt = attempt, attempt = attempt + 1 where id = $1`, call.ID)
		return dispatcher.Unknown(dispatcher.Response{Code: "504"}), err
	}
	b.insert("charge_card", to("to-1"))
	b.drain(d)
	page := b.wantDeliveries("to-1", "late:unknown:504 parked")
	if len(page) == 1 && page[0].Took != 0 {
		t.Errorf("%+v", page[0])
	}
}
