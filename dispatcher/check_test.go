package dispatcher_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// declare registers an action whose Send does nothing.
func declare(d *dispatcher.Dispatcher, name string, policy dispatcher.Policy, with ...func(*dispatcher.Delivery[[]byte])) {
	delivery := dispatcher.Delivery[[]byte]{Policy: policy, Send: doesNothing}
	for _, change := range with {
		change(&delivery)
	}
	dispatcher.Handle(d, outbox.NewAction[[]byte](name), delivery)
}

func doesNothing(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
	return dispatcher.Delivered(dispatcher.Response{}), nil
}

const (
	read         = dispatcher.Read
	idempotent   = dispatcher.IdempotentWrite
	once         = dispatcher.NonIdempotentWrite
	irreversible = dispatcher.IrreversibleWrite
)

// Each error lists the mistakes in the order in which to fix them, without mistakes that only follow from another one.
func TestCheckOfPolicies(t *testing.T) {
	for _, c := range []struct {
		policy dispatcher.Policy
		lookup bool
		want   []string
	}{
		{policy: dispatcher.Policy{Class: idempotent, KeyWindow: dispatcher.Forever}},
		{policy: dispatcher.Policy{}, want: []string{
			"Class: missing: say whether the vendor may be called again: Read, IdempotentWrite, NonIdempotentWrite or IrreversibleWrite"}},
		{policy: dispatcher.Policy{Class: 9, KeyWindow: dispatcher.Forever, ResendAbsent: true, Attempts: 3}, want: []string{
			"Class: missing: say whether the vendor may be called again: Read, IdempotentWrite, NonIdempotentWrite or IrreversibleWrite"}},
		{policy: dispatcher.Policy{Class: idempotent}, want: []string{
			"KeyWindow: missing: set how long the vendor remembers a key (Forever is a value), here or for its Destination"}},
		{policy: dispatcher.Policy{Class: idempotent, KeyWindow: time.Hour, Attempts: 25}, want: []string{
			"KeyWindow: 1h is shorter than the 2h49m43s that all attempts can take, with a margin of 10s: lower Attempts (25), Timeout (30s), Backoff (1s) or MaxBackoff (10m)"}},
		{policy: dispatcher.Policy{Class: idempotent, KeyWindow: time.Hour, Attempts: 25, Timeout: 2 * time.Hour}, want: []string{
			"Timeout: 2h is outside the range 100ms to 1h"}},
		{policy: dispatcher.Policy{Class: read, KeyWindow: dispatcher.Forever}, want: []string{
			"KeyWindow: not allowed for Read: only an IdempotentWrite has one"}},
		{policy: dispatcher.Policy{Class: read, Timeout: -1, Lease: -1, Attempts: -1, Backoff: -1, MaxBackoff: -2, Deadline: -1, KeyWindow: -1, CompletionTime: -1}, want: []string{
			"Timeout: -1ns is outside the range 100ms to 1h", "Attempts: -1 is outside the range 1 to 1000",
			"Backoff: -1ns is outside the range 1ms to 720h", "Deadline: -1ns is shorter than 1s",
			"CompletionTime: -1ns is outside the range 1s to 2160h", "KeyWindow: -1ns is negative"}},
		{policy: dispatcher.Policy{Class: read, Timeout: time.Hour, Lease: 24*time.Hour + 1, Attempts: 1001, ResponseCap: 1<<20 + 1, MaxBackoff: 30*24*time.Hour + 1}, want: []string{
			"Lease: 24h0m0.000000001s is longer than 24h", "Attempts: 1001 is outside the range 1 to 1000",
			"MaxBackoff: 720h0m0.000000001s is longer than 720h", "ResponseCap: 1048577 is more than 1048576 bytes"}},
		{policy: dispatcher.Policy{Class: read, Backoff: 31 * 24 * time.Hour}, want: []string{"Backoff: 744h is outside the range 1ms to 720h"}},
		{policy: dispatcher.Policy{Class: read, Backoff: time.Minute, MaxBackoff: time.Second}, want: []string{"MaxBackoff: 1s is shorter than Backoff (1m)"}},
		{policy: dispatcher.Policy{Class: read, Timeout: 30, Backoff: 1, SettlingDelay: 5, Deadline: 60, CompletionTime: 300}, want: []string{
			"Timeout: 30ns is outside the range 100ms to 1h", "Backoff: 1ns is outside the range 1ms to 720h", "Deadline: 60ns is shorter than 1s",
			"SettlingDelay: 5ns is shorter than 1ms", "CompletionTime: 300ns is outside the range 1s to 2160h"}},
		{policy: dispatcher.Policy{Class: read, Timeout: time.Minute, Lease: time.Minute}, want: []string{
			"Lease: 1m must be longer than Timeout (1m) by at least 100ms"}},
		{policy: dispatcher.Policy{Class: once, Attempts: 2}, want: []string{
			"Attempts: 2 is not allowed for NonIdempotentWrite without a Lookup: such a call is not repeated, and Attempts limits only the tries of a lookup"}},
		{policy: dispatcher.Policy{Class: irreversible, Attempts: 2}, want: []string{
			"Attempts: 2 is not allowed for IrreversibleWrite without a Lookup: such a call is not repeated, and Attempts limits only the tries of a lookup"}},
		{policy: dispatcher.Policy{Class: once, Attempts: 2}, lookup: true},
		{policy: dispatcher.Policy{Class: read, CompletionTime: 35 * time.Second}, lookup: true, want: []string{
			"CompletionTime: 35s must be longer than Timeout and SettlingDelay together (35s): an accepted call would be parked before its first lookup"}},
		{policy: dispatcher.Policy{Class: once, ResendAbsent: true}, want: []string{"ResendAbsent: needs a Lookup"}},
		{policy: dispatcher.Policy{Class: irreversible, ResendAbsent: true, CompletionTime: time.Millisecond}, want: []string{
			"CompletionTime: 1ms is outside the range 1s to 2160h",
			"ResendAbsent: not allowed for IrreversibleWrite: only a NonIdempotentWrite is sent again after lookups found nothing"}},
		{policy: dispatcher.Policy{Class: read, FairBy: dispatcher.FairByPart}},
		{policy: dispatcher.Policy{Class: read, FairBy: "endpoint"}, want: []string{`FairBy: "endpoint" is neither FairByScope nor FairByPart`}},
		{policy: dispatcher.Policy{Class: read, Destination: "nowhere", Timeout: 1}, want: []string{
			`Destination: "nowhere" is not declared: call Dispatcher.Destination, or correct the name`, "Timeout: 1ns is outside the range 100ms to 1h"}},
		{policy: dispatcher.Policy{Class: idempotent, Destination: "nowhere"}, want: []string{
			`Destination: "nowhere" is not declared: call Dispatcher.Destination, or correct the name`}},
	} {
		d := dispatcher.New(nil, nil)
		declare(d, "charge_card", c.policy, func(delivery *dispatcher.Delivery[[]byte]) {
			if c.lookup {
				delivery.Lookup = doesNothing
			}
		})
		wantMistakes(t, d, `action "charge_card": `, c.want...)
	}
}

// wantMistakes compares all mistakes that Check finds, in order. Each line begins with an item.
func wantMistakes(t *testing.T, d *dispatcher.Dispatcher, item string, want ...string) {
	t.Helper()
	text := "<nil>"
	if err := d.Check(); err != nil {
		text = err.Error()
	}
	lines := []string{"<nil>"}
	if len(want) > 0 {
		lines = nil
	}
	for _, line := range want {
		lines = append(lines, "samekey: "+item+line)
	}
	if text != strings.Join(lines, "\n") {
		t.Errorf("Check returns\n%s\nwant\n%s", text, strings.Join(lines, "\n"))
	}
}

func TestCheckOfTheDispatcher(t *testing.T) {
	d := dispatcher.New(nil, &dispatcher.Config{
		Name: strings.Repeat("n", 256), SweepInterval: time.Millisecond, StopTimeout: -1, Retention: -1})
	wantMistakes(t, d, "dispatcher", ".Config: Name: has 256 bytes, but at most 255 are allowed",
		".Config: SweepInterval: 1ms is outside the range 10ms to 1m", ".Config: StopTimeout: -1ns is outside the range 1ms to 24h",
		".Config: Retention: -1ns is outside the range 1m to 87600h", ": no action is registered")

	d = dispatcher.New(nil, nil)
	d.Destination("bank", dispatcher.Limits{Concurrency: 10_001})
	d.Destination("bank", dispatcher.Limits{})
	d.Destination("Bank!", dispatcher.Limits{})
	declare(d, "twice", dispatcher.Policy{})
	declare(d, "twice", dispatcher.Policy{})
	dispatcher.Handle(d, outbox.Action[[]byte]{}, dispatcher.Delivery[[]byte]{Policy: dispatcher.Policy{Class: read, Destination: "bank"}, Send: doesNothing})
	declare(d, "no_send", dispatcher.Policy{Class: read}, func(delivery *dispatcher.Delivery[[]byte]) { delivery.Send = nil })
	declare(d, "no_endpoint", dispatcher.Policy{Class: read}, func(delivery *dispatcher.Delivery[[]byte]) { delivery.StoredEndpoint = true })
	declare(d, "no_deadline", dispatcher.Policy{Class: read}, func(delivery *dispatcher.Delivery[[]byte]) {
		delivery.StoredEndpoint, delivery.Endpoint = true, func(*dispatcher.Call) string { return "" }
	})
	wantMistakes(t, d, "", `destination "bank": declared twice`,
		`destination "Bank!": the name must be 1 to 56 of a-z, 0-9, "_" and "-", and start with a letter or a digit, as in "stripe"`,
		`action "twice": registered twice`,
		`action "": the name must be 1 to 63 of a-z, 0-9, "_", "." and "-", and start with a letter, as in "charge_card": declare the action with outbox.NewAction`,
		`action "no_send": Send: missing`,
		`action "no_endpoint": StoredEndpoint: needs Endpoint, which names the endpoint`,
		`destination "bank": Concurrency: 10001 is outside the range 1 to 10000`,
		`action "twice": Class: missing: say whether the vendor may be called again: Read, IdempotentWrite, NonIdempotentWrite or IrreversibleWrite`,
		`action "no_deadline": Deadline: missing: calls to an endpoint that cannot be reached use up no attempts, so set when to give up`)
}

func TestCheckOfLimits(t *testing.T) {
	for _, c := range []struct {
		limits    dispatcher.Limits
		endpoints bool
		want      []string
	}{
		{limits: dispatcher.Limits{}},
		{limits: dispatcher.Limits{Rate: 1.0 / 86400}},
		{limits: dispatcher.Limits{Rate: 100_000, Burst: 1_000_000}},
		{limits: dispatcher.Limits{BreakAfter: -1}},
		{limits: dispatcher.Limits{BreakDelay: time.Hour}},
		{limits: dispatcher.Limits{MaxBreakDelay: time.Millisecond}},
		{limits: dispatcher.Limits{Concurrency: 1}},
		{limits: dispatcher.Limits{PerEndpoint: 32}, endpoints: true},
		{limits: dispatcher.Limits{Concurrency: 10_001}, want: []string{"Concurrency: 10001 is outside the range 1 to 10000"}},
		{limits: dispatcher.Limits{Concurrency: -1, PerEndpoint: 9}, want: []string{"Concurrency: -1 is outside the range 1 to 10000"}},
		{limits: dispatcher.Limits{Rate: -1}, want: []string{"Rate: -1 calls a second is outside the range of one a day to 100000 a second"}},
		{limits: dispatcher.Limits{Rate: math.NaN()}, want: []string{"Rate: NaN calls a second is outside the range of one a day to 100000 a second"}},
		{limits: dispatcher.Limits{Rate: math.Inf(1), Burst: -1}, want: []string{
			"Rate: +Inf calls a second is outside the range of one a day to 100000 a second", "Burst: -1 is outside the range 1 to 1000000"}},
		{limits: dispatcher.Limits{Rate: 100_000.5}, want: []string{"Rate: 100000.5 calls a second is outside the range of one a day to 100000 a second"}},
		{limits: dispatcher.Limits{Rate: 1e-5}, want: []string{"Rate: 1e-05 calls a second is outside the range of one a day to 100000 a second"}},
		{limits: dispatcher.Limits{Rate: 1, Burst: 1_000_001}, want: []string{"Burst: 1000001 is outside the range 1 to 1000000"}},
		{limits: dispatcher.Limits{Burst: 5}, want: []string{"Burst: 5 is not allowed without a Rate"}},
		{limits: dispatcher.Limits{BreakAfter: -1, BreakDelay: time.Second, MaxBreakDelay: 1}, want: []string{
			"BreakDelay: not allowed without a breaker: BreakAfter switches it off", "MaxBreakDelay: not allowed without a breaker: BreakAfter switches it off"}},
		{limits: dispatcher.Limits{BreakDelay: 2 * time.Second, MaxBreakDelay: time.Second}, want: []string{"MaxBreakDelay: 1s is shorter than BreakDelay (2s)"}},
		{limits: dispatcher.Limits{BreakDelay: -1}, want: []string{"BreakDelay: -1ns is outside the range 1ms to 1h"}},
		{limits: dispatcher.Limits{BreakDelay: 2 * time.Hour}, want: []string{"BreakDelay: 2h is outside the range 1ms to 1h"}},
		{limits: dispatcher.Limits{MaxBreakDelay: time.Hour + 1}, want: []string{"MaxBreakDelay: 1h0m0.000000001s is longer than 1h"}},
		{limits: dispatcher.Limits{Concurrency: 8, PerEndpoint: 9}, want: []string{"PerEndpoint: 9 is outside the range 1 to Concurrency (8)"}},
		{limits: dispatcher.Limits{PerEndpoint: -1}, want: []string{"PerEndpoint: -1 is outside the range 1 to Concurrency (32)"}},
		{limits: dispatcher.Limits{PerEndpoint: 2}, want: []string{"PerEndpoint: 2 is not allowed: no action of the destination has endpoints"}},
	} {
		d := dispatcher.New(nil, nil)
		d.Destination("bank", c.limits)
		declare(d, "charge_card", dispatcher.Policy{Class: read, Destination: "bank"}, func(delivery *dispatcher.Delivery[[]byte]) {
			if c.endpoints {
				delivery.Endpoint = func(*dispatcher.Call) string { return "" }
			}
		})
		wantMistakes(t, d, `destination "bank": `, c.want...)
	}
}

func TestCheckOfVendors(t *testing.T) {
	inHeader := dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k"}
	for _, c := range []struct {
		vendor dispatcher.Vendor
		want   []string
	}{
		{vendor: dispatcher.Vendor{Key: inHeader, Replay: dispatcher.ReplayAnswer, Mismatch: dispatcher.MismatchIgnored}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Name: "k"}, Replay: 9, Mismatch: 9}, want: []string{
			"Vendor.Key.Place: missing: say where the vendor takes the key: KeyInHeader, KeyInBody, KeyInMessageID or KeyNowhere"}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInBody, MaxLength: 10, Quoted: true, Alphabet: "aabc"}, Window: -1}, want: []string{
			"Vendor.Key.Name: missing: name the header or the field", "Vendor.Key.Quoted: only allowed for a key in a header",
			"Vendor.Replay: missing: say what the vendor answers to the same key: ReplayAnswer, ReplaySuccess, ReplayState or ReplayNothing",
			"Vendor.Window: -1ns is negative", "Vendor.Key.Alphabet: must have visible ASCII characters, each once"}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k", Alphabet: "abc"}, Replay: dispatcher.ReplayState}, want: []string{
			"Vendor.Key.Alphabet: has 3 characters, but needs at least 10"}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k", MaxLength: 256}, Replay: dispatcher.ReplayState}, want: []string{
			"Vendor.Key.MaxLength: 256 is outside the range 1 to 255"}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k", MaxLength: 10}, Replay: dispatcher.ReplayState}, want: []string{
			"Vendor.Key.MaxLength: 10 is too short: the 128 bits of a key need 20 characters of this alphabet"}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, Replay: dispatcher.ReplayAnswer, Mismatch: dispatcher.MismatchRefused}, want: []string{
			"Vendor.Replay: not allowed: a vendor that takes no key replays nothing",
			"Vendor.Mismatch: not allowed: a vendor that takes no key compares nothing with it"}},
		{vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInMessageID}, Mismatch: dispatcher.MismatchIgnored}, want: []string{
			"Vendor.Mismatch: not allowed: a vendor that takes no key compares nothing with it"}},
		{vendor: dispatcher.Vendor{Key: inHeader, Replay: dispatcher.ReplayNothing, Mismatch: dispatcher.MismatchIgnored}, want: []string{
			"Vendor.Mismatch: not allowed with ReplayNothing: a vendor that acts again compares nothing with the first call"}},
		{vendor: dispatcher.Vendor{Key: inHeader, Replay: dispatcher.ReplayAnswer, Mismatch: 3}, want: []string{
			"Vendor.Mismatch: 3 is not one of MismatchRefused and MismatchIgnored"}},
	} {
		d := dispatcher.New(nil, nil)
		d.Destination("bank", dispatcher.Limits{})
		d.Vendor("bank", c.vendor)
		declare(d, "look", dispatcher.Policy{Class: read, Destination: "bank"})
		wantMistakes(t, d, `destination "bank": `, c.want...)
	}
}

func TestCheckOfAPolicyForItsVendor(t *testing.T) {
	d := dispatcher.New(nil, nil)
	declare(d, "fits", dispatcher.Policy{Class: idempotent, Destination: "short"}) // before its vendor is known: its window
	declare(d, "to_keyless", dispatcher.Policy{Class: idempotent, Destination: "keyless", KeyWindow: time.Hour})
	declare(d, "too_long", dispatcher.Policy{Class: idempotent, Destination: "short", KeyWindow: time.Hour})
	d.Destination("keyless", dispatcher.Limits{})
	d.Vendor("keyless", dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}})
	d.Destination("short", dispatcher.Limits{})
	d.Vendor("short", dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k"}, Window: 5 * time.Minute, Replay: dispatcher.ReplaySuccess})
	wantMistakes(t, d, "",
		`action "to_keyless": Class: IdempotentWrite does not fit the vendor, which acts again when a call is repeated: use NonIdempotentWrite`,
		`action "too_long": KeyWindow: 1h is longer than the vendor remembers a key, 5m`)
}

func TestCheckOfResendsThroughAProxy(t *testing.T) {
	d := dispatcher.New(nil, nil)
	declare(d, "send_mail", dispatcher.Policy{Class: once, ResendAbsent: true}, func(delivery *dispatcher.Delivery[[]byte]) {
		delivery.Lookup, delivery.Proxied = doesNothing, true
	})
	wantMistakes(t, d, `action "send_mail": `, "ResendAbsent: not allowed with a proxy, which can deliver a request late, after lookups have found nothing: "+
		"call the vendor directly, or leave ResendAbsent out")
}

func TestCheckReturnsConfigErrors(t *testing.T) {
	d := dispatcher.New(nil, nil)
	declare(d, "charge_card", dispatcher.Policy{Class: idempotent, Timeout: time.Minute, Lease: time.Minute})
	err := d.Check()
	var all dispatcher.ConfigErrors
	var first *dispatcher.ConfigError
	if !errors.As(err, &all) || !errors.As(err, &first) || len(all) != 2 || first != all[0] {
		t.Fatalf("%v", err)
	}
	if first.Item != `action "charge_card"` || first.Field != "Lease" || first.Reason != "1m must be longer than Timeout (1m) by at least 100ms" {
		t.Errorf("%q %q %q", first.Item, first.Field, first.Reason)
	}
	yaml := all[1].ReasonIn(func(goName string) string { return "<" + goName + ">" })
	if yaml != "missing: set how long the vendor remembers a key (<Forever> is a value), here or for its <Destination>" {
		t.Error(yaml)
	}
}
