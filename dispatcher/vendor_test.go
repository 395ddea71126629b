package dispatcher_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
)

const digits = "0123456789"

func TestAKeyThatDoesNotFitIsProjected(t *testing.T) {
	key := uuid.MustParse("19ff97c1-7f6e-8cca-a424-270c1111580a")
	for _, c := range []struct {
		rules dispatcher.KeyRules
		want  string
	}{
		{dispatcher.KeyRules{}, "19ff97c1-7f6e-8cca-a424-270c1111580a"},
		{dispatcher.KeyRules{MaxLength: 36}, "19ff97c1-7f6e-8cca-a424-270c1111580a"},
		{dispatcher.KeyRules{MaxLength: 35}, "19ff97c17f6e8ccaa424270c1111580a"},
		{dispatcher.KeyRules{MaxLength: 32}, "19ff97c17f6e8ccaa424270c1111580a"},
		{dispatcher.KeyRules{Alphabet: "0123456789abcdefghijklmnopqrstuvwxyz"}, "19ff97c17f6e8ccaa424270c1111580a"},
		{dispatcher.KeyRules{MaxLength: 31}, "1jerggwh9wbca9vf8l2n17vgq"},
		{dispatcher.KeyRules{MaxLength: 25}, "1jerggwh9wbca9vf8l2n17vgq"},
		{dispatcher.KeyRules{Alphabet: digits}, "034557813567873037479967583690971764746"},
	} {
		got, err := c.rules.Project(key)
		if err != nil || got != c.want {
			t.Errorf("%+v: %s, %v, want %s", c.rules, got, err, c.want)
		}
	}
	for _, rules := range []dispatcher.KeyRules{{MaxLength: 24}, {MaxLength: 20}, {MaxLength: 25, Alphabet: "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"}} {
		lowest, err := rules.Project(uuid.Nil)
		highest, err2 := rules.Project(uuid.Max)
		limit := rules.MaxLength
		if err != nil || err2 != nil || len(lowest) != len(highest) || len(highest) > limit || strings.Trim(highest, lowest) == "" {
			t.Errorf("%+v: %q and %q, %v %v", rules, lowest, highest, err, err2)
		}
	}
	for _, rules := range []dispatcher.KeyRules{{MaxLength: 19}, {MaxLength: 38, Alphabet: digits}, {MaxLength: 24, Alphabet: "0123456789abcdefghijklmnopqrstuvwxyz"}} {
		if got, err := rules.Project(key); err == nil {
			t.Errorf("%+v: %s", rules, got)
		}
	}
}

func FuzzProject(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), []byte("0123456789abcdeg"), 25)
	f.Fuzz(func(t *testing.T, a, b []byte, limit int) {
		x, errX := uuid.FromBytes(a)
		y, errY := uuid.FromBytes(b)
		if errX != nil || errY != nil || limit < 1 || limit > 255 {
			return
		}
		rules := dispatcher.KeyRules{MaxLength: limit}
		p, errP := rules.Project(x)
		q, errQ := rules.Project(y)
		if (errP == nil) != (errQ == nil) || len(p) != len(q) || len(p) > limit {
			t.Errorf("%v %v: %q %v, %q %v", x, y, p, errP, q, errQ)
		}
		if errP == nil && (p == q) != (x == y) {
			t.Errorf("%v and %v project to %q and %q", x, y, p, q)
		}
	})
}

func TestCheckNamesEverythingThatContradictsTheVendor(t *testing.T) {
	nothing := func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{}), nil
	}
	d := dispatcher.New(nil, nil)
	d.Destination("keyless", dispatcher.Limits{})
	d.Vendor("keyless", dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}})
	d.Destination("short", dispatcher.Limits{})
	d.Vendor("short", dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k"}, Window: 5 * time.Minute, Replay: dispatcher.ReplaySuccess})
	d.Destination("odd", dispatcher.Limits{})
	d.Vendor("odd", dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInBody, MaxLength: 10, Quoted: true, Alphabet: "aabc"}, Window: -1})
	inHeader := dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "k"}
	for name, vendor := range map[string]dispatcher.Vendor{
		"compares":    {Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, Mismatch: dispatcher.MismatchRefused},
		"by_mail":     {Key: dispatcher.KeyRules{Place: dispatcher.KeyInMessageID}, Mismatch: dispatcher.MismatchIgnored},
		"does_it":     {Key: inHeader, Replay: dispatcher.ReplayNothing, Mismatch: dispatcher.MismatchIgnored},
		"other_words": {Key: inHeader, Replay: dispatcher.ReplayAnswer, Mismatch: 3},
	} {
		d.Destination(name, dispatcher.Limits{})
		d.Vendor(name, vendor)
	}
	handle(d, "to_keyless", dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "keyless", KeyWindow: time.Hour}, nothing)
	handle(d, "too_long", dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "short", KeyWindow: time.Hour}, nothing)
	handle(d, "resends", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Destination: "short", ResendAbsent: true}, nothing)
	handle(d, "resends_too", dispatcher.Policy{Class: dispatcher.IrreversibleWrite, Destination: "short", ResendAbsent: true, CompletionTime: time.Millisecond}, nothing)
	handle(d, "odd", dispatcher.Policy{Class: dispatcher.Read, Destination: "odd"}, nothing)
	err := d.Check()
	for _, want := range []string{
		"to_keyless: Class idempotent_write contradicts", "too_long: KeyWindow 1h0m0s is longer", "resends: ResendAbsent needs a lookup",
		"resends_too: ResendAbsent has no meaning", "resends_too: CompletionTime",
		`"odd": Vendor.Key.Name`, "Vendor.Key.Quoted", "Vendor.Window", "Vendor.Replay", "Vendor.Key.Alphabet",
		`"compares": Vendor.Mismatch contradicts Key.Place`, `"by_mail": Vendor.Mismatch contradicts Key.Place`,
		`"does_it": Vendor.Mismatch contradicts Replay`, `"other_words": Vendor.Mismatch 3 is not known`,
	} {
		if err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}

	fits := dispatcher.New(nil, nil)
	handle(fits, "pay", dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "short"}, nothing) // before its vendor is known
	fits.Destination("short", dispatcher.Limits{})
	fits.Vendor("short", dispatcher.Vendor{Key: inHeader, Window: 5 * time.Minute, Replay: dispatcher.ReplaySuccess, Mismatch: dispatcher.MismatchIgnored})
	if err := fits.Check(); err != nil {
		t.Errorf("the window is the vendor's: %v", err)
	}
}
