package samekeytest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// fakeTB catches what an assertion would have said.
type fakeTB struct {
	testing.TB
	failures []string
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Errorf(format string, args ...any) {
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}

type fixedLedger Ledger

func (l fixedLedger) Ledger() Ledger { return Ledger(l) }

func TestAssertOneEffectFailsOnNoneAndOnTwo(t *testing.T) {
	v := StartVendor(t, &VendorOptions{IgnoreKeys: true})
	for _, key := range []string{"one", "two", "two"} {
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", key, "{}"), 201)
	}
	v.Next(FaultResetBefore)
	post(testContext(t), v.URL+"/v1/charges", "none", "{}")
	for key, want := range map[string][]string{
		"one":    nil,
		"two":    {"key two has 2 effects at the vendor, want 1", "call 2: /v1/charges key=two nth=1", "call 3:", "EFFECT answered 201", "two has 2 effects"},
		"none":   {"key none has 0 effects", "call 4:", "fault=reset_before no answer"},
		"absent": {"key absent has 0 effects", "no call on the wire"},
	} {
		tb := &fakeTB{}
		AssertOneEffect(tb, v, key)
		wantFailure(t, tb, want)
		said := strings.Join(tb.failures, "")
		if strings.Contains(said, "key=one") || key != "two" && strings.Contains(said, "two has 2") {
			t.Errorf("%s: what belongs to another key was shown: %s", key, said)
		}
	}
}

func TestAssertEffectsFailsOnFewerAndOnMore(t *testing.T) {
	v := StartVendor(t, nil)
	for _, key := range []string{"a", "b", "b"} {
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", key, "{}"), 201)
	}
	for n, want := range map[int][]string{
		2: nil,
		1: {"the vendor made 2 effects, want 1", "key=a", "key=b nth=2", "replay answered 201"},
		3: {"the vendor made 2 effects, want 3"},
	} {
		tb := &fakeTB{}
		AssertEffects(tb, v, n)
		wantFailure(t, tb, want)
	}
}

func TestAFailingAssertionShowsOpenCallsAndAtMostFiftyCalls(t *testing.T) {
	l := fixedLedger{Calls: []VendorCall{{Call: 1, Key: "k", ClientGone: true, Ended: ptr(time.Time{})}}}
	for i := range 52 {
		l.Calls = append(l.Calls, VendorCall{Call: int64(i + 2), Key: "k"})
	}
	tb := &fakeTB{}
	AssertEffects(tb, l, 1)
	wantFailure(t, tb, []string{"client gone no answer", "call 50:", "open\n", "and 3 more calls"})
	if strings.Contains(tb.failures[0], "call 51:") {
		t.Error("more than fifty calls were shown")
	}
}

func wantFailure(t *testing.T, tb *fakeTB, want []string) {
	t.Helper()
	if len(want) == 0 {
		if len(tb.failures) > 0 {
			t.Errorf("failed without a reason: %v", tb.failures)
		}
		return
	}
	if len(tb.failures) != 1 {
		t.Fatalf("%d failures, want 1: %v", len(tb.failures), tb.failures)
	}
	for _, w := range want {
		if !strings.Contains(tb.failures[0], w) {
			t.Errorf("the failure lacks %q:\n%s", w, tb.failures[0])
		}
	}
}
