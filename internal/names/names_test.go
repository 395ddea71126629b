package names_test

import (
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/names"
)

func TestNames(t *testing.T) {
	for _, c := range []struct {
		name                       string
		action, destination, token bool
	}{
		{"charge_card", true, true, true},
		{"a.b-c_1", true, false, true},
		{"1st", false, true, true},
		{"_a", false, false, true},
		{"Charge", false, false, true},
		{"a\n", false, false, false},
		{"", false, false, false},
		{"a b", false, false, false},
		{"ü", false, false, false},
		{"!#$%&'*+-.^_`|~", false, false, true},
		{"a:b", false, false, false},
		{strings.Repeat("a", 56), true, true, true},
		{strings.Repeat("a", 57), true, false, true},
		{strings.Repeat("a", 63), true, false, true},
		{strings.Repeat("a", 64), false, false, true},
	} {
		if got := names.CheckAction(c.name) == nil; got != c.action {
			t.Errorf("%q as an action: %v", c.name, got)
		}
		if got := names.CheckDestination(c.name) == nil; got != c.destination {
			t.Errorf("%q as a destination: %v", c.name, got)
		}
		if got := names.IsToken(c.name); got != c.token {
			t.Errorf("%q as a token: %v", c.name, got)
		}
	}
}
