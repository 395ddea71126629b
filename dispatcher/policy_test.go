package dispatcher_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

func ok(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
	return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
}

func TestCheckAcceptsTheLimits(t *testing.T) {
	d := dispatcher.New(nil, &dispatcher.Config{Name: strings.Repeat("n", 255), SweepInterval: 10 * time.Millisecond})
	d.Destination(strings.Repeat("d", 56), dispatcher.Limits{Concurrency: 10_000})
	handle(d, strings.Repeat("a", 63), dispatcher.Policy{Class: dispatcher.Read, Timeout: time.Hour, Lease: 24 * time.Hour, Attempts: 1000,
		ResponseCap: 1 << 20, MaxBackoff: 30 * 24 * time.Hour, Destination: strings.Repeat("d", 56)}, ok)
	handle(d, "short", dispatcher.Policy{Class: dispatcher.Read, Timeout: 100 * time.Millisecond, Lease: 200 * time.Millisecond, Attempts: 1,
		Backoff: time.Millisecond, SettlingDelay: time.Millisecond, Deadline: time.Second}, ok)
	handle(d, "forever", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever}, ok)
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
}

// The shortest timeout leaves time for the call after the claim.
func TestShortestTimeoutDelivers(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, func(p *dispatcher.Policy) { p.Timeout, p.Backoff, p.MaxBackoff = 100*time.Millisecond, 0, 0 })
	b.insertMany("charge_card", 50)
	b.start(d)
	b.untilFinished()
}

// A claim that takes longer than the timeout is logged, and is not repeated in a tight loop.
func TestClaimLongerThanTimeoutIsLogged(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, func(p *dispatcher.Policy) { p.Timeout = time.Second })
	id := b.insert("charge_card")
	holder := b.holdTable("samekey.outbox_sends")
	b.start(d)
	b.until("the claim has waited for longer than the timeout", func() bool {
		return b.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '1200 ms'`) > 0
	})
	holder()
	b.logs.Wait(b, "the claim alone took as long as the policy's Timeout")
	b.untilStatus(id, "delivered")
	b.wantHistory(id, "attempt:unsent:given_back attempt:delivered:201")
}

// holdTable locks a table until release.
func (b *bundle) holdTable(name string) (release func()) {
	b.Helper()
	tx, err := b.db.Begin(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := tx.Exec(b.ctx, "lock table "+name+" in access exclusive mode"); err != nil {
		b.Fatal(err)
	}
	release = func() { _ = tx.Rollback(context.WithoutCancel(b.ctx)) }
	b.Cleanup(release)
	return release
}

// The retry horizon of 3 attempts: 3 timeouts of 10 s, waits of 1 s and 2 s, and the margin of 10 s.
func TestRetryHorizonMayFillTheKeyWindow(t *testing.T) {
	const horizon = 43 * time.Second
	policy := dispatcher.Policy{Class: dispatcher.IdempotentWrite, Timeout: 10 * time.Second, Attempts: 3}
	for window, fits := range map[time.Duration]bool{horizon: true, horizon - time.Nanosecond: false} {
		d := dispatcher.New(nil, nil)
		policy.KeyWindow = window
		handle(d, "charge_card", policy, ok)
		if err := d.Check(); (err == nil) != fits {
			t.Errorf("window %v: Check returns %v", window, err)
		}
	}
}

func TestDefaultAttemptsFitTheKeyWindow(t *testing.T) {
	for _, window := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, dispatcher.Forever} {
		d := dispatcher.New(nil, nil)
		handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: window}, ok)
		if err := d.Check(); err != nil {
			t.Errorf("window %v: %v", window, err)
		}
	}
	// One attempt alone does not fit.
	d := dispatcher.New(nil, nil)
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 39 * time.Second}, ok)
	if d.Check() == nil {
		t.Error("a window shorter than one attempt was accepted")
	}
}

func TestRetentionHasTheBoundsOfPruning(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	for retention, ok := range map[time.Duration]bool{0: true, time.Minute - 1: false, time.Minute: true, years: true, years + 1: false, -1: false} {
		err := dispatcher.New(nil, &dispatcher.Config{Retention: retention}).Check()
		if refused := err != nil && strings.Contains(err.Error(), "Config: Retention"); refused == ok {
			t.Errorf("%v: %v", retention, err)
		}
	}
}

func TestParseClass(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.Read, dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		if got, ok := dispatcher.ParseClass(class.String()); !ok || got != class {
			t.Errorf("%v is parsed as %v", class, got)
		}
	}
	if _, ok := dispatcher.ParseClass("no class"); ok {
		t.Error("an unknown class was accepted")
	}
}

func TestPayloadNumbersKeepEveryDigit(t *testing.T) {
	b := setup(t)
	type amounts struct {
		A int64       `json:"a"`
		N json.Number `json:"n"`
	}
	got := make(chan amounts, 1)
	d := b.dispatcher()
	dispatcher.Handle(d, outbox.NewAction[amounts]("charge_card"), dispatcher.Delivery[amounts]{
		Policy: dispatcher.Policy{Class: dispatcher.Read},
		Send: func(_ context.Context, _ *dispatcher.Call, a amounts) (dispatcher.Outcome, error) {
			got <- a
			return dispatcher.Delivered(dispatcher.Response{}), nil
		},
	})
	b.exec(`select samekey.enqueue('tenant/orders', 'k', 'charge_card', '{"a":9007199254740993,"n":0.10000000000000000555}')`)
	b.expect(d, delivered)
	if a := wait(b, "the handler ran", got); a.A != 9007199254740993 || a.N != "0.10000000000000000555" {
		t.Fatalf("got %+v", a)
	}
}
