package dispatcher_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
)

const digits = "0123456789"

func TestKeyThatDoesNotFitIsProjected(t *testing.T) {
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
