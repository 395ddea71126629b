package sqltext_test

import (
	"testing"

	"github.com/samekey/samekey/internal/sqltext"
)

func TestEndsTransaction(t *testing.T) {
	for sql, want := range map[string]bool{
		"commit":                      true,
		" /* a /* b */ */ -- c\n END": true,
		"insert into t values (1); rollback; begin":                   true,
		"start transaction":                                           true,
		"prepare transaction 'x'":                                     true,
		"select $$;$$; abort":                                         true,
		`select E'\';'; commit`:                                       true,
		"rollback to savepoint a":                                     false,
		"rollback work to a":                                          false,
		"prepare p as select 1":                                       false,
		"select '; commit'":                                           false,
		`select "; commit" from t`:                                    false,
		"select $a$; commit $$ $a$":                                   false,
		"select 1 /* ; commit */":                                     false,
		"select date'2026-01-01\\'; commit":                           true, // no escapes: the literal ends at the second quote
		"create function f() returns int begin atomic; select 1; end": false,
		"committed":                                                   false,
		"":                                                            false,
	} {
		if got := sqltext.EndsTransaction(sql); got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}

func TestBareDropsLiteralsAndComments(t *testing.T) {
	for sql, want := range map[string]string{
		"a 'b' c":         "a   c",
		"a -- b\nc":       "a  c",
		`a "b""c" d`:      "a    d",
		"a $x$ b $x$ c":   "a   c",
		"$1 + a$b$c":      "$1 + a$b$c",
		`e'\'' f`:         "e  f",
		"a /* b */ 'open": "a   ",
	} {
		if got := sqltext.Bare(sql); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}
