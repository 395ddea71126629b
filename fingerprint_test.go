package samekey_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/samekey/samekey"
)

// meanings are groups of documents: one group, one fingerprint; two groups, two.
var meanings = [][]string{
	// numbers, by exact decimal value
	{`1`, `1.0`, `1e0`, `1E+0`, `1e-0`, `10e-1`, `0.1e1`, `0.01E2`, `1.000`, ` 1 `, "\t1\r\n", `100e-2`, `1e0000000000000000000000000`},
	{`-1`, `-1.0`, `-10e-1`},
	{`0`, `-0`, `0.0`, `-0.00`, `0e9`, `0e-9`, `0E99999999999999999999`, `-0e-99999999999999999999`},
	{`9007199254740993`, `9007199254740993.0`, `9.007199254740993e15`}, {`9007199254740992`}, {`9007199254740994`},
	{`0.1`, `1e-1`, `0.10`}, {`0.10000000000000000555`}, {`0.1000000000000000055511151231257827`},
	{`10`, `1e1`, `1.0e1`, `100e-1`}, {`100`, `1e2`}, {`1e400`, `10e399`, `0.1e401`}, {`1e401`}, {`1e-400`},
	{`1e10000`, `10e9999`, `1` + strings.Repeat("0", 10000)}, {`1e-10000`, `0.1e-9999`, `0.` + strings.Repeat("0", 9999) + `1`},
	{`123456789012345678901234567890`, `1.2345678901234567890123456789e29`}, {`123456789012345678901234567891`},
	{`105e-1`, `10.5`, `10.50`}, {`15e-1`, `1.5`}, {`105`},
	// types
	{`"1"`, `"\u0031"`}, {`"1.0"`}, {`true`, ` true`}, {`"true"`}, {`false`}, {`null`}, {`"null"`}, {`""`}, {`"0"`},
	// strings, by code points
	{`"A"`, `"\u0041"`}, {`"a"`}, {`"\u00e9"`, `"é"`, `"\u00E9"`}, {`"e\u0301"`}, {`"\/"`, `"/"`, `"\u002f"`},
	{`"\n"`, `"\u000a"`, `"\u000A"`}, {`"\\n"`}, {`"\u0000"`}, {`"\\u0000"`}, {`"\""`, `"\u0022"`}, {`"😀"`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`},
	{"\"\ufffd\"", `"\ufffd"`}, {"\"\u2028\"", `"\u2028"`}, {`"<&>"`, `"\u003c\u0026\u003E"`}, {"\"\x7f\"", `"\u007f"`},
	// structure
	{`{}`, `{ }`, "{\n}"}, {`[]`, `[ ]`}, {`[[]]`}, {`[{}]`}, {`[[],[]]`}, {`[null]`}, {`[0]`, `[-0.0]`}, {`[1,2]`, "[ 1 ,\n2.0 ]"}, {`[2,1]`}, {`[12]`}, {`[1,[2]]`}, {`[[1],2]`},
	{`{"a":null}`}, {`{"a":{}}`}, {`{"a":""}`}, {`{"":null}`}, {`{"A":null}`},
	{`{"a":1,"b":2}`, `{"b":2,"a":1}`, ` { "b" : 2.0 , "\u0061" : 1 } `}, {`{"a":2,"b":1}`}, {`{"a":1,"b":2,"c":null}`, `{"c":null,"b":2,"a":1}`}, {`{"ab":12}`},
	{`{"a":1,"B":2}`, `{"B":2,"a":1}`}, {`{"a":{"x":1,"y":[{"p":1,"q":2}]},"b":0}`, `{"b":0,"a":{"y":[{"q":2,"p":1}],"x":1}}`}, {`{"a":{"x":1},"y":[{"p":1,"q":2}],"b":0}`},
	{"{\"\uffff\":1,\"\U00010000\":2}", "{\"\U00010000\":2,\"\uffff\":1}", `{"\ud800\udc00":2,"\uffff":1}`}, {"{\"\uffff\":2,\"\U00010000\":1}"},
	{`{"a":1,"a\u0000":2,"ab":3,"a\"":4}`, `{"a\"":4,"ab":3,"a\u0000":2,"a":1}`},
	{`{"a":"\",\"b\":\""}`}, {`{"a":"","b":""}`, `{"b":"","a":""}`},
}

func TestFingerprintDependsOnTheMeaningOnly(t *testing.T) {
	group := map[samekey.Fingerprint]int{}
	for i, docs := range meanings {
		for _, doc := range docs {
			f := fingerprint(t, doc)
			if other, ok := group[f]; ok && other != i {
				t.Errorf("%.60s has the fingerprint of %.60s", doc, meanings[other][0])
			} else if !ok && doc != docs[0] {
				t.Errorf("%.60s and %.60s mean the same and have two fingerprints", doc, docs[0])
			}
			group[f] = i
		}
	}
}

func TestFingerprintsAreTheSameInEveryRelease(t *testing.T) {
	for name, c := range map[string]struct {
		got     samekey.Fingerprint
		version int16
		want    string // SHA-256 of the label, a line feed and the canonical form
	}{
		// "samekey/fingerprint/json/v1\n" + `{"a":[1e0,0,1e0,"A"],"b":15e-1}`
		"json":  {fingerprint(t, `{"b":1.50,"a":[1,-0,10e-1,"\u0041"]}`), 1, "4018fabb0ffb5ed638b3bce2339d710fbf7d68fc5214f39a78d6fabb95236968"},
		"null":  {fingerprint(t, `null`), 1, "e7d1c27d6c5cdad142622e3eaadc336cd1d8b92f4232a61a147b0ba97fb118d6"},
		"raw":   {samekey.FingerprintBytes([]byte("null")), 2, "e6d3f4cb39c3fdb714e2da00d606904a709cc68cc664e2e3ec227b862bed7931"},
		"empty": {samekey.FingerprintBytes(nil), 2, "50d61debc4e1bf0157a1f719382261e2d1045fef72060dffefa9aa90142120e4"},
	} {
		if hex.EncodeToString(c.got.Hash[:]) != c.want || c.got.Version != c.version {
			t.Errorf("%s: got %x version %d: stored records would no longer be found", name, c.got.Hash, c.got.Version)
		}
		if c.got == (samekey.Fingerprint{}) {
			t.Errorf("%s: is zero", name)
		}
	}
}

func TestRawBytesAreComparedByteByByte(t *testing.T) {
	seen := map[samekey.Fingerprint]string{}
	for _, raw := range []string{"", " ", "{}", "{ }", "\x00", "\x00\x00", "\xff", "null"} {
		f := samekey.FingerprintBytes([]byte(raw))
		if other, ok := seen[f]; ok {
			t.Errorf("%q and %q share a fingerprint", raw, other)
		}
		seen[f] = raw
	}
}

func TestMatchesComparesUnderTheStoredVersion(t *testing.T) {
	payload, respelled := []byte(`{"amount":1.0}`), []byte(`{ "amount": 1 }`)
	const versionJSON = 1
	for _, stored := range []samekey.Fingerprint{fingerprint(t, string(payload)), samekey.FingerprintBytes(payload)} {
		if same, err := stored.Matches(payload); !same || err != nil {
			t.Errorf("version %d of the same payload: %v, %v", stored.Version, same, err)
		}
		if same, err := stored.Matches(respelled); same != (stored.Version == versionJSON) || err != nil {
			t.Errorf("version %d of another spelling: %v, %v", stored.Version, same, err)
		}
	}
	for _, version := range []int16{-1, 0, 3, math.MaxInt16} {
		same, err := samekey.Fingerprint{Version: version}.Matches(payload)
		if same || err == nil || !strings.Contains(err.Error(), "deploy the release that stored it") {
			t.Errorf("version %d: got %v, %v", version, same, err)
		}
	}
	same, err := samekey.Fingerprint{Version: versionJSON}.Matches([]byte("x"))
	if refused := (*samekey.FingerprintError)(nil); same || !errors.As(err, &refused) {
		t.Errorf("got %v, %v", same, err)
	}
}

func TestDocumentWithoutSingleMeaningIsRefused(t *testing.T) {
	nested := func(levels int) string { return strings.Repeat(`[`, levels) + strings.Repeat(`]`, levels) }
	objects := func(levels int) string {
		return strings.Repeat(`{"a":`, levels-1) + `{}` + strings.Repeat(`}`, levels-1)
	}
	for _, c := range []struct {
		doc    string
		offset int64
		reason string
	}{
		{``, 0, "empty"},
		{" \n", 0, "empty"},
		{`{"a":1,"a":1}`, 7, "name twice"},
		{`{"a":1,"b":2,"\u0061":1}`, 13, "name twice"},
		{`[{"\ud83d\ude00":1,"😀":1}]`, 19, "name twice"},
		{"\"\xff\"", 1, "invalid UTF-8"},
		{"{\"\xc3\":1}", 2, "invalid UTF-8"},
		{"\"\xed\xa0\x80\"", 1, "invalid UTF-8"}, // a surrogate in UTF-8
		{"\"\xc0\x80\"", 1, "invalid UTF-8"},     // an overlong NUL
		{`"ab\ud800"`, 3, "lone surrogate"},
		{`"\udc00"`, 1, "lone surrogate"},
		{`"\ud800\ud800"`, 1, "lone surrogate"},
		{`"\ud800x"`, 1, "lone surrogate"},
		{`{"\uDFFF":1}`, 2, "lone surrogate"},
		{`1 2`, 1, "after the document"},
		{`{}{}`, 2, "after the document"},
		{`{}x`, 2, "after the document"},
		{"{}\x00", 2, "after the document"},
		{"\ufeff{}", 0, "not valid JSON"}, // a byte order mark
		{`{"a":1`, 6, "incomplete"},
		{`[1,`, 3, "incomplete"},
		{`"a`, 2, "incomplete"},
		{`nul`, 3, "incomplete"},
		{`{"a":1]`, 6, "not valid JSON"},
		{`[1,]`, 2, "not valid JSON"},
		{`{"a":1,}`, 6, "not valid JSON"},
		{`{a:1}`, 1, "not valid JSON"},
		{`[1 2]`, 3, "not valid JSON"},
		{`'a'`, 0, "not valid JSON"},
		{`NaN`, 0, "not valid JSON"},
		{`True`, 0, "not valid JSON"},
		{`[01]`, 2, "not valid JSON"},
		{`[+1]`, 1, "not valid JSON"},
		{`[.5]`, 1, "not valid JSON"},
		{`[1.]`, 3, "not valid JSON"},
		{`[1e]`, 3, "not valid JSON"},
		{"\"\n\"", 1, "not valid JSON"},
		{`"\x41"`, 1, "not valid JSON"},
		{`/**/1`, 0, "not valid JSON"},
		{nested(101), 100, "more than 100 levels"},
		{objects(101), 500, "more than 100 levels"},
		{nested(1_000_000), 100, "more than 100 levels"},
		{`[1e10001]`, 1, "exponent beyond 10000"},
		{`[0, 1e-10001]`, 4, "exponent beyond 10000"},
		{`10e10000`, 0, "exponent beyond 10000"},
		{`0.1e-10000`, 0, "exponent beyond 10000"},
		{`1` + strings.Repeat("0", 10001), 0, "exponent beyond 10000"},
		{`0.` + strings.Repeat("0", 10000) + `1`, 0, "exponent beyond 10000"},
		{`1e999999999`, 0, "exponent beyond 10000"},
		{`-1e-99999999999999999999999`, 0, "exponent beyond 10000"},
		{`1e9223372036854775807`, 0, "exponent beyond 10000"},
		{`0.1e-9223372036854775808`, 0, "exponent beyond 10000"},
	} {
		f, err := samekey.FingerprintJSON([]byte(c.doc))
		var refused *samekey.FingerprintError
		if !errors.As(err, &refused) || f != (samekey.Fingerprint{}) {
			t.Errorf("%.60q: got %v, %v", c.doc, f, err)
			continue
		}
		if refused.Offset != c.offset || !strings.Contains(refused.Reason, c.reason) || refused.Do == "" {
			t.Errorf("%.60q: got %q, want offset %d and %q", c.doc, err, c.offset, c.reason)
		}
	}
	for _, doc := range []string{nested(100), objects(100), `1e10000`, `-1e-10000`, `{"a":{"b":1},"c":{"b":1}}`} {
		fingerprint(t, doc)
	}
}

func TestAHugeExponentIsNotExpanded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, doc := range []string{`1e999999999`, `1e-999999999`, `0e999999999`, `1e10000`, `1e-10000`} {
		_, _ = samekey.FingerprintJSON([]byte(doc))
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("%d bytes were allocated for five short numbers", used)
	}
}

func TestAFingerprintErrorHoldsNothingOfThePayload(t *testing.T) {
	for _, doc := range []string{
		`{"SECRET":1,"SECRET":2}`, `"SECRET`, `"SECRET\ud800"`, "\"SECRET\xff\"", `"SECRET" "SECRET"`, `SECRET`, `{"SECRET":SECRET}`, `{"SECRET":1e99999}`,
	} {
		_, err := samekey.FingerprintJSON([]byte(doc))
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "SECRET") {
			t.Errorf("%q: got %#v", doc, err)
		}
	}
	_, err := samekey.FingerprintValue(map[string]any{"SECRET": "SECRET\xff"})
	if err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("got %v", err)
	}
}

func TestTheDocumentIsNotChangedByFingerprinting(t *testing.T) {
	const text = `{"b":[3,2,1],"a":"\u0041","c":{"z":1,"y":2}}`
	doc := []byte(text)
	_, err := samekey.FingerprintJSON(doc)
	must(t, err)
	if string(doc) != text {
		t.Errorf("became %s", doc)
	}
}

func TestAGoValueHasTheFingerprintOfItsJSON(t *testing.T) {
	type charge struct {
		Amount int64  `json:"amount"`
		Note   string `json:"note,omitempty"`
	}
	for doc, value := range map[string]any{
		`{"amount":9007199254740993}`:          charge{Amount: 9007199254740993},
		`{"amount":1,"note":"a<b\u2028"}`:      &charge{Amount: 1, Note: "a<b\u2028"},
		`{"amount":2,"note":"\ufffd"}`:         charge{Amount: 2, Note: "\ufffd"}, // a true U+FFFD
		`{"amount":1.0}`:                       map[string]any{"amount": 1},
		`[0.1,"AAE=",null]`:                    []any{0.1, []byte{0, 1}, nil},
		`"\ufffd"`:                             rawJSON(`"\ufffd"`),
		`{"n":123456789012345678901234567890}`: map[string]any{"n": rawJSON(`123456789012345678901234567890`)},
		`null`:                                 nil,
	} {
		got, err := samekey.FingerprintValue(value)
		must(t, err)
		if got != fingerprint(t, doc) {
			t.Errorf("%#v has not the fingerprint of %s", value, doc)
		}
	}
}

func TestGoValueWithoutSingleMeaningIsRefused(t *testing.T) {
	type loop struct{ Next *loop }
	cycle := &loop{}
	cycle.Next = cycle
	for name, value := range map[string]any{
		"channel": make(chan int), "NaN": math.NaN(), "cycle": cycle, "raw duplicate": rawJSON(`{"a":1,"a":2}`), "raw surrogate": rawJSON(`"\ud800"`),
		"invalid UTF-8": "a\xff", "invalid UTF-8 in a name": map[string]int{"a\xff": 1}, "invalid UTF-8 beside U+FFFD": []string{"\ufffd", "\xff"},
	} {
		if f, err := samekey.FingerprintValue(value); !isA[*samekey.FingerprintError](err) || f != (samekey.Fingerprint{}) {
			t.Errorf("%s: got %v, %v", name, f, err)
		}
	}
}

func TestAStructWithANewFieldIsANewRequest(t *testing.T) {
	before, err := samekey.FingerprintValue(struct{ A int }{1})
	must(t, err)
	after, err := samekey.FingerprintValue(struct{ A, B int }{A: 1})
	must(t, err)
	omitted, err := samekey.FingerprintValue(struct {
		A int
		B int `json:",omitempty"`
	}{A: 1})
	must(t, err)
	if before == after || before != omitted {
		t.Error("a new field must change the fingerprint unless it is omitted when empty, as the page warns")
	}
}

func BenchmarkFingerprintJSON(b *testing.B) {
	for _, size := range []int{10, 10_000} {
		var doc strings.Builder
		doc.WriteString(`{"lines":[{}`)
		for i := range size {
			fmt.Fprintf(&doc, `,{"sku":"sku-%d","quantity":%d,"price":%d.50,"note":null}`, i, i, i)
		}
		doc.WriteString(`]}`)
		b.Run(fmt.Sprintf("%dB", doc.Len()), func(b *testing.B) {
			b.SetBytes(int64(doc.Len()))
			b.ReportAllocs()
			for b.Loop() {
				_, err := samekey.FingerprintJSON([]byte(doc.String()))
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func fingerprint(t *testing.T, doc string) samekey.Fingerprint {
	t.Helper()
	f, err := samekey.FingerprintJSON([]byte(doc))
	if err != nil {
		t.Fatalf("%.60s: %v", doc, err)
	}
	return f
}
