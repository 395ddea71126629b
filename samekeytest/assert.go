package samekeytest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// AssertOneEffect fails the test unless the vendor acted exactly once for this key: the delivery key, as sent. The
// failure shows the ledger of the key.
func AssertOneEffect(t testing.TB, vendor interface{ Ledger() Ledger }, key string) {
	t.Helper()
	ledger := vendor.Ledger()
	if n := ledger.ByKey()[key].Effects; n != 1 {
		t.Errorf("key %s has %d effects at the vendor, want 1\n%s", key, n, ledger.describe(key))
	}
}

// AssertEffects fails the test unless the vendor acted exactly n times in all. The failure shows the ledger, and the
// operations that had several effects.
func AssertEffects(t testing.TB, vendor interface{ Ledger() Ledger }, n int) {
	t.Helper()
	ledger := vendor.Ledger()
	if have := len(ledger.Effects); have != n {
		t.Errorf("the vendor made %d effects, want %d\n%s", have, n, ledger.describe(""))
	}
}

// describe prints the calls of a key, or of all keys, for a failing test. It prints at most 50.
func (l Ledger) describe(key string) string {
	const most = 50
	var b strings.Builder
	shown := 0
	for _, c := range l.Calls {
		if key != "" && c.Key != key {
			continue
		}
		if shown++; shown > most {
			continue
		}
		fmt.Fprintf(&b, "\tcall %d: %s key=%s nth=%d attempt=%d body=%.8s %s\n",
			c.Call, c.Path, c.Key, c.Nth, c.Attempt, c.BodyHash, c.outcome())
	}
	switch {
	case shown == 0:
		b.WriteString("\tno call on the wire\n")
	case shown > most:
		fmt.Fprintf(&b, "\t... and %d more calls\n", shown-most)
	}
	for _, d := range l.Doubles() {
		if key != "" && !slices.ContainsFunc(d.Effects, func(e VendorRecord) bool { return e.Key == key }) {
			continue
		}
		fmt.Fprintf(&b, "\t%s %s has %d effects\n", d.Path, d.Identity, len(d.Effects))
	}
	return b.String()
}

func (c VendorCall) outcome() string {
	var words []string
	if c.Fault != "" {
		words = append(words, "fault="+string(c.Fault))
	}
	if c.Effect {
		words = append(words, "EFFECT")
	}
	if c.Replayed {
		words = append(words, "replay")
	}
	if c.ClientGone {
		words = append(words, "client gone")
	}
	switch {
	case c.Ended == nil:
		words = append(words, "open")
	case c.Status == 0:
		words = append(words, "no answer")
	default:
		words = append(words, fmt.Sprintf("answered %d", c.Status))
	}
	if c.Ended != nil {
		words = append(words, "in "+c.Ended.Sub(c.Arrived).Round(time.Millisecond).String())
	}
	return strings.Join(words, " ")
}
