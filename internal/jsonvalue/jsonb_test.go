package jsonvalue_test

import (
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/samekeytest"
)

// Whatever FitsJSONB accepts, Postgres accepts. What Postgres refuses, FitsJSONB refuses.
func TestFitsJSONBAgreesWithPostgres(t *testing.T) {
	db := samekeytest.NewDB(t)
	for _, c := range []struct {
		doc  string
		fits bool
	}{
		{`{"id":"ch_1","amount":1050,"list":[1,2.50,-3e4,null,true],"nested":{"a":{}}}`, true},
		{` 7 `, true}, {`"text"`, true}, {`null`, true}, {`"\u00e9\ud83d\ude00"`, true}, {`{"a":1,"a":2}`, true},
		{`1e1000`, true}, {`1E-1000`, true}, {"1" + strings.Repeat("0", 999), true}, {strings.Repeat("[", 1000) + strings.Repeat("]", 1000), true},
		{``, false}, {` `, false}, {`{`, false}, {`{} {}`, false}, {`{}x`, false}, {`not json`, false}, {`<html>`, false},
		{`"\u0000"`, false}, {`{"\u0000":1}`, false}, {`"\ud800"`, false}, {"\"\xff\"", false},
		{`1e1001`, false}, {`1e-200000`, false}, {`1e200000`, false}, {`1e99999999999999999999`, false}, {"1" + strings.Repeat("0", 200_000), false},
		{strings.Repeat("[", 1001) + strings.Repeat("]", 1001), false}, {strings.Repeat("[", 100_000), false},
	} {
		if got := jsonvalue.FitsJSONB([]byte(c.doc)); got != c.fits {
			t.Errorf("%.40q fits: %v, want %v", c.doc, got, c.fits)
		}
		if !c.fits {
			continue
		}
		if _, err := db.Exec(t.Context(), `select $1::jsonb::text`, c.doc); err != nil {
			t.Errorf("Postgres refuses %.40q: %v", c.doc, err)
		}
	}
}
