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

func TestCheckReturnsEveryContradiction(t *testing.T) {
	d := dispatcher.New(nil, &dispatcher.Config{
		Name: strings.Repeat("n", 256), SweepInterval: time.Millisecond, StopTimeout: -1, Retention: -1})
	d.Destination("bank", dispatcher.Limits{Concurrency: 10_001})
	d.Destination("bank", dispatcher.Limits{Concurrency: -1})
	d.Destination("Bank!", dispatcher.Limits{})
	handle(d, "no_class", dispatcher.Policy{}, ok)
	handle(d, "no_window", dispatcher.Policy{Class: dispatcher.IdempotentWrite}, ok)
	handle(d, "short_window", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: time.Hour, Attempts: 25}, ok)
	handle(d, "needless_window", dispatcher.Policy{Class: dispatcher.Read, KeyWindow: time.Hour}, ok)
	handle(d, "negative", dispatcher.Policy{Class: dispatcher.Read, Timeout: -1, Lease: -1, Attempts: -1, Backoff: -1,
		MaxBackoff: -2, Deadline: -1, KeyWindow: -1}, ok)
	handle(d, "too_much", dispatcher.Policy{Class: dispatcher.Read, Timeout: time.Hour + 1, Lease: 24*time.Hour + 1, Attempts: 1001,
		ResponseCap: 1<<20 + 1, MaxBackoff: 30*24*time.Hour + 1}, ok)
	handle(d, "retried", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Attempts: 2}, ok)
	handle(d, "paid_twice", dispatcher.Policy{Class: dispatcher.IrreversibleWrite, Attempts: 2}, ok)
	handle(d, "short_lease", dispatcher.Policy{Class: dispatcher.Read, Timeout: time.Minute, Lease: time.Minute}, ok)
	handle(d, "no_units", dispatcher.Policy{Class: dispatcher.Read, Timeout: 30, Backoff: 1, SettlingDelay: 5, Deadline: 60, CompletionTime: 300}, ok)
	handle(d, "just_short", dispatcher.Policy{Class: dispatcher.Read, Timeout: 100*time.Millisecond - 1, Lease: 200*time.Millisecond - 2}, ok)
	handle(d, "unseen", dispatcher.Policy{Class: dispatcher.Read, CompletionTime: 35 * time.Second}, ok, withLookup(
		func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, nil
		}))
	handle(d, "nowhere", dispatcher.Policy{Class: dispatcher.Read, Destination: "nowhere"}, ok)
	handle(d, "twice", dispatcher.Policy{Class: dispatcher.Read}, ok)
	handle(d, "twice", dispatcher.Policy{Class: dispatcher.Read}, ok)
	dispatcher.Handle(d, outbox.Action[[]byte]{}, delivery{Policy: dispatcher.Policy{Class: dispatcher.Read, Destination: "bank"}})
	handle(d, "no_handler", dispatcher.Policy{Class: dispatcher.Read}, nil)
	err := d.Check()
	if err == nil {
		t.Fatal("Check found nothing")
	}
	for _, want := range []string{
		"Config.Name has 256 bytes", "Config.SweepInterval 1ms", "Config.StopTimeout -1ns", "Config.Retention -1ns",
		`"bank" is declared twice`, `"bank": Concurrency 10001`, `"bank": Concurrency -1`, `destination "Bank!"`,
		"no_class: Class is missing", "no_window: KeyWindow is missing",
		"short_window: KeyWindow 1h0m0s is shorter than the retry horizon", "needless_window: KeyWindow 1h0m0s has no meaning for read",
		"negative: Timeout -1ns", "negative: Lease -1ns", "negative: Attempts -1", "negative: Backoff -1ns is less than 1ms", "negative: MaxBackoff -2ns",
		"negative: Deadline -1ns", "negative: KeyWindow -1ns",
		"too_much: Timeout 1h0m0.000000001s", "too_much: Lease 24h0m0.000000001s", "too_much: Attempts 1001", "too_much: ResponseCap 1048577",
		"too_much: MaxBackoff 720h0m0.000000001s",
		"retried: Attempts 2 contradicts non_idempotent_write", "paid_twice: Attempts 2 contradicts irreversible_write",
		"short_lease: Lease 1m0s is not longer than Timeout 1m0s by 100ms or more",
		"no_units: Timeout 30ns is outside 100ms to 1h", "no_units: Backoff 1ns is less than 1ms", "no_units: SettlingDelay 5ns is less than 1ms",
		"no_units: Deadline 60ns is less than 1s", "no_units: CompletionTime 300ns is outside 1s",
		"just_short: Timeout 99.999999ms is outside 100ms to 1h", "just_short: Lease 199.999998ms is not longer than Timeout 99.999999ms by 100ms",
		"unseen: CompletionTime 35s is not longer than Timeout and SettlingDelay together (35s)",
		`nowhere: Destination "nowhere" is not declared`, `"twice" is registered twice`, `action "": its name must be 1 to 63`, "no_handler: Send is missing",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Check does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("it says:\n%v", err)
	}
}

func TestCheckAcceptsWhatIsJustInsideEachLimit(t *testing.T) {
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

func TestCheckOfADispatcherWithoutActionsSaysSo(t *testing.T) {
	if err := dispatcher.New(nil, nil).Check(); err == nil || !strings.Contains(err.Error(), "no action is registered") {
		t.Fatalf("got %v", err)
	}
}

// With the shortest timeout, what the claim takes of it leaves time for the calls.
func TestTheShortestTimeoutDelivers(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, func(p *dispatcher.Policy) { p.Timeout, p.Backoff, p.MaxBackoff = 100*time.Millisecond, 0, 0 })
	b.insertMany("charge_card", 50)
	b.start(d)
	b.untilFinished()
}

// A claim that takes longer than the attempt may is told of, and is not made in a tight loop.
func TestAClaimLongerThanTheTimeoutIsLogged(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, func(p *dispatcher.Policy) { p.Timeout = 100 * time.Millisecond })
	id := b.insert("charge_card")
	holder := b.holdTable("samekey.outbox_sends")
	b.start(d)
	b.until("the claim has waited for longer than the timeout", func() bool {
		return b.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '200 ms'`) > 0
	})
	holder()
	b.untilLogged("the claim alone took as long as the policy's Timeout")
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

// The horizon of 3 attempts: 3 timeouts of 10 s, waits of 1 s and 2 s, and the margin of 10 s.
func TestTheRetryHorizonMayFillTheKeyWindowAndNotExceedIt(t *testing.T) {
	const horizon = 43 * time.Second
	policy := dispatcher.Policy{Class: dispatcher.IdempotentWrite, Timeout: 10 * time.Second, Attempts: 3}
	for window, fits := range map[time.Duration]bool{horizon: true, horizon - time.Nanosecond: false} {
		d := dispatcher.New(nil, nil)
		policy.KeyWindow = window
		handle(d, "charge_card", policy, ok)
		if err := d.Check(); (err == nil) != fits {
			t.Errorf("window %v: Check says %v", window, err)
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
		t.Error("a window that is shorter than one attempt was accepted")
	}
}

func TestARetentionThatPruneWouldRefuseIsRefusedAtTheStart(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	for retention, ok := range map[time.Duration]bool{0: true, time.Minute - 1: false, time.Minute: true, years: true, years + 1: false, -1: false} {
		err := dispatcher.New(nil, &dispatcher.Config{Retention: retention}).Check()
		if refused := err != nil && strings.Contains(err.Error(), "Config.Retention"); refused == ok {
			t.Errorf("%v: %v", retention, err)
		}
	}
}

func TestClassesAreReadBackFromTheirNames(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.Read, dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		if got, ok := dispatcher.ParseClass(class.String()); !ok || got != class {
			t.Errorf("%v is read back as %v", class, got)
		}
	}
	if _, ok := dispatcher.ParseClass("no class"); ok {
		t.Error("the text of no class was accepted as one")
	}
}

func TestNumbersOfAPayloadReachTheHandlerToTheLastDigit(t *testing.T) {
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
