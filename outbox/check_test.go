package outbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// quoting is an encoder whose error holds what it was to encode.
type quoting string

func (q quoting) MarshalJSON() ([]byte, error) { return nil, errors.New(string(q)) }

// noSQL is a transaction in which every statement panics.
type noSQL struct{ pgx.Tx }

func valid(t testing.TB) outbox.Intent {
	return outbox.Intent{Key: newKey(t, "order-1"), Action: "charge_card", Payload: struct{}{}}
}

func TestInvalidIntentIsRefusedBeforeAnySQL(t *testing.T) {
	// The text "s3cret" is in every value: it must be in no error.
	for want, change := range map[string]func(*outbox.Intent){
		"Action must be":                               func(in *outbox.Intent) { in.Action = "" },
		"Action must be ":                              func(in *outbox.Intent) { in.Action = "Charge" },
		"Action must be  ":                             func(in *outbox.Intent) { in.Action = "a\n" },
		"Action must be   ":                            func(in *outbox.Intent) { in.Action = strings.Repeat("a", 64) },
		"Part is 256 bytes long":                       func(in *outbox.Intent) { in.Part = strings.Repeat("p", 256) },
		"Part must be printable":                       func(in *outbox.Intent) { in.Part = "s3cret\x00" },
		"Part must be printable ":                      func(in *outbox.Intent) { in.Part = "s3cret\xff" },
		"Part must be printable  ":                     func(in *outbox.Intent) { in.Part = "s3cret\n" },
		"OrderingKey is 256":                           func(in *outbox.Intent) { in.OrderingKey = strings.Repeat("p", 256) },
		"OrderingKey must be":                          func(in *outbox.Intent) { in.OrderingKey = "s3cret\u0085" },
		"Payload is nil":                               func(in *outbox.Intent) { in.Payload = nil },
		"encodes to null":                              func(in *outbox.Intent) { in.Payload = (*int)(nil) },
		"Payload is a float64 that cannot be encoded":  func(in *outbox.Intent) { in.Payload = math.NaN() },
		"Payload is a outbox_test.quoting that cannot": func(in *outbox.Intent) { in.Payload = quoting("s3cret") },
		"Payload is a chan int, whose content JSON":    func(in *outbox.Intent) { in.Payload = make(chan int) },
		"Payload is a *bytes.Buffer, whose content":    func(in *outbox.Intent) { in.Payload = bytes.NewBufferString("s3cret") },
		"Payload is a *struct { id string }, whose":    func(in *outbox.Intent) { in.Payload = &struct{ id string }{"s3cret"} },
		"Payload has a string that is not valid UTF-8": func(in *outbox.Intent) { in.Payload = []string{"s3cret\xff"} },
		"Payload is 1048577 bytes long":                func(in *outbox.Intent) { in.Payload = []byte(`"` + strings.Repeat("a", 1<<20-1) + `"`) },
		"Payload is 1048577 bytes long ":               func(in *outbox.Intent) { in.Payload = []string{strings.Repeat("a", 1<<20-3)} },
		"Payload is not valid JSON in UTF-8":           func(in *outbox.Intent) { in.Payload = []byte(`{"s3cret":`) },
		"Payload is not valid JSON in UTF-8 ":          func(in *outbox.Intent) { in.Payload = []byte("\"s3cret\xff\"") },
		"Payload is not valid JSON in UTF-8  ":         func(in *outbox.Intent) { in.Payload = []byte{} },
		"Payload is not valid JSON in UTF-8   ":        func(in *outbox.Intent) { in.Payload, in.ContentType = []byte("s3cret"), "application/problem+json" },
		"Payload is a string, which is encoded as":     func(in *outbox.Intent) { in.Payload, in.ContentType = "s3cret", "text/plain" },
		"ContentType must be a media type":             func(in *outbox.Intent) { in.ContentType = "s3cret" },
		"ContentType must be a media type ":            func(in *outbox.Intent) { in.ContentType = "text/plain\r\nX: s3cret" },
		"ContentType must be a media type  ":           func(in *outbox.Intent) { in.ContentType = "text/plain; a=" + strings.Repeat("b", 255) },
		"name that is not an HTTP token":               func(in *outbox.Intent) { in.Headers = map[string]string{"X s3cret": "a"} },
		"name that is not an HTTP token ":              func(in *outbox.Intent) { in.Headers = map[string]string{"": "a"} },
		`value of "X-A" must be visible`:               func(in *outbox.Intent) { in.Headers = map[string]string{"X-A": "s3cret\r\nEvil: 1"} },
		`value of "X-B" must be visible`:               func(in *outbox.Intent) { in.Headers = map[string]string{"X-B": " s3cret"} },
		`value of "X-C" must be visible`:               func(in *outbox.Intent) { in.Headers = map[string]string{"X-C": "s3crét"} },
		`Headers has "Idempotency-KEY"`:                func(in *outbox.Intent) { in.Headers = map[string]string{"Idempotency-KEY": "s3cret"} },
		`Headers has "Host"`:                           func(in *outbox.Intent) { in.Headers = map[string]string{"Host": "s3cret"} },
		`Headers has "Content-Length"`:                 func(in *outbox.Intent) { in.Headers = map[string]string{"Content-Length": "1"} },
		`Headers has "Authorization", which carries`:   func(in *outbox.Intent) { in.Headers = map[string]string{"Authorization": "Bearer s3cret"} },
		`Headers has "x-a" twice`:                      func(in *outbox.Intent) { in.Headers = map[string]string{"x-a": "1", "x-A": "2"} },
		"Headers are 16385 bytes long":                 func(in *outbox.Intent) { in.Headers = map[string]string{"x": strings.Repeat("v", 16376)} },
		"Headers are 16385 bytes long ": func(in *outbox.Intent) {
			in.Headers = map[string]string{"x": "v" + strings.Repeat("\\\"\t", 2728) + "vvvvvvv"}
		},
		"Deadline is not after DueAt":                  func(in *outbox.Intent) { in.DueAt, in.Deadline = time.Unix(9, 0), time.Unix(9, 0) },
		"DueAt is in the year 10000":                   func(in *outbox.Intent) { in.DueAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"Deadline is in the year 1969":                 func(in *outbox.Intent) { in.Deadline = time.Unix(-1, 0).UTC() },
		"TraceContext must be":                         func(in *outbox.Intent) { in.TraceContext = strings.Repeat("0", 513) },
		"TraceContext must be ":                        func(in *outbox.Intent) { in.TraceContext = "s3cret\n" },
		"Key is required outside processed.Run":        func(in *outbox.Intent) { in.Key = samekey.Key{} },
		"key: value starts or ends with a space":       func(in *outbox.Intent) { in.Key.Value = "s3cret " },
		"key: value has a byte that is not printable":  func(in *outbox.Intent) { in.Key.Value = "s3cret\x00" },
		"key: value is 8192 bytes long, more than 255": func(in *outbox.Intent) { in.Key.Value = strings.Repeat("k", 8192) },
		"key: scope is empty":                          func(in *outbox.Intent) { in.Key.Scope = "" },
	} {
		in := valid(t)
		change(&in)
		want = strings.TrimRight(want, " ")
		_, err := outbox.Insert(t.Context(), noSQL{}, in)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "outbox: insert ") {
			t.Errorf("got %v, want %q", err, want)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error tells what was in the intent: %v", err)
		}
		_, err = outbox.InsertMany(t.Context(), noSQL{}, []outbox.Intent{valid(t), in})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "intent 2 of 2") {
			t.Errorf("InsertMany: got %v, want %q", err, want)
		}
	}
	bad := valid(t)
	bad.Key.Value = ""
	if _, err := outbox.Insert(t.Context(), noSQL{}, bad); !strings.Contains(err.Error(), "samekey: key: value is empty") {
		t.Errorf("got %v, want the KeyError", err)
	}
}

func TestAtEachLimitTheTablesTakeWhatInsertTakes(t *testing.T) {
	on := newGuardedDB(t)
	for name, change := range map[string]func(*outbox.Intent){
		"action":       func(in *outbox.Intent) { in.Action = strings.Repeat("a", 63) },
		"part":         func(in *outbox.Intent) { in.Part = strings.Repeat("é", 127) + "p" },
		"ordering key": func(in *outbox.Intent) { in.OrderingKey = strings.Repeat("o", 255) },
		"payload":      func(in *outbox.Intent) { in.Payload = []byte(`"` + strings.Repeat("a", 1<<20-2) + `"`) },
		"value":        func(in *outbox.Intent) { in.Payload = []string{strings.Repeat("a", 1<<20-4)} },
		"content type": func(in *outbox.Intent) {
			in.ContentType = "text/plain; a=" + strings.Repeat("b", 241)
			in.Payload = []byte{}
		},
		"headers": func(in *outbox.Intent) { in.Headers = map[string]string{"x": strings.Repeat("v", 16375)} },
		"escapes": func(in *outbox.Intent) {
			in.Headers = map[string]string{"x": "v" + strings.Repeat("\\\"\t", 2728) + "vvvvvv"}
		},
		"due":   func(in *outbox.Intent) { in.DueAt = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) },
		"trace": func(in *outbox.Intent) { in.TraceContext = strings.Repeat("0", 512) },
		"key": func(in *outbox.Intent) {
			in.Key = samekey.Key{Scope: strings.Repeat("s", 255), Value: strings.Repeat("~", 255)}
		},
	} {
		in := valid(t)
		in.Key = newKey(t, "limit of "+name)
		change(&in)
		e := get(t, on, insert(t, on, in))
		if e.Action != in.Action || e.Part != in.Part || e.OrderingKey != in.OrderingKey || e.TraceContext != in.TraceContext ||
			len(e.Headers) != len(in.Headers) || e.Headers["x"] != in.Headers["x"] {
			t.Errorf("%s: it reads differently", name)
		}
		if !in.DueAt.IsZero() && !e.DueAt.Equal(in.DueAt) {
			t.Errorf("%s: due at %s", name, e.DueAt)
		}
	}
}

func TestPayloadBytesAndDigitsAreKept(t *testing.T) {
	on := newGuardedDB(t)
	for i, c := range []struct {
		payload     any
		contentType string
		want        string
	}{
		{[]byte(`{"a":"\u0000"}`), "", `{"a":"\u0000"}`},
		{[]byte(`["\ud800"]`), "", `["\ud800"]`},
		{json.RawMessage(`1e400`), "", `1e400`},
		{[]byte(`{"a":1,"a":2}`), "", `{"a":1,"a":2}`},
		{[]byte(` {"b" : 1.0, "a": 1}` + "\n"), "", ` {"b" : 1.0, "a": 1}` + "\n"},
		{[]byte(`null`), "", `null`},
		{[]byte("\x00\xff\xfe"), "application/octet-stream", "\x00\xff\xfe"},
		{[]byte(nil), "text/plain", ""},
		{bytes.Repeat([]byte{0}, 1<<20), "application/octet-stream", strings.Repeat("\x00", 1<<20)},
		{json.Number("9007199254740993"), "", `9007199254740993`},
		{int64(math.MaxInt64), "", `9223372036854775807`},
		{map[string]string{"url": "https://x/?a=1&b=<2>"}, "", `{"url":"https://x/?a=1&b=<2>"}`},
		{struct{}{}, "", `{}`},
		{[]string{"a\x00b \ufffd \u2028"}, "", `["a\u0000b ` + "\ufffd" + ` \u2028"]`},
		{[]string{`\ufffd`}, "", `["\\ufffd"]`},
		{map[string]int{"n": 1}, "application/vnd.api+json; charset=utf-8", `{"n":1}`},
	} {
		id := insert(t, on, outbox.Intent{Action: "charge_card", Payload: c.payload, ContentType: c.contentType})
		e := get(t, on, id)
		if string(e.Payload) != c.want {
			t.Errorf("case %d: stored %.60q, want %.60q", i, e.Payload, c.want)
		}
		want := c.contentType
		if want == "" {
			want = "application/json"
		}
		if e.ContentType != want {
			t.Errorf("case %d: content type %q, want %q", i, e.ContentType, want)
		}
	}
}

func TestAmountsThatDifferInTheLastDigitAreAConflict(t *testing.T) {
	on := samekeytest.NewDB(t)
	in := valid(t)
	in.Payload = map[string]any{"amount": int64(9007199254740993)}
	insert(t, on, in)
	in.Payload = map[string]any{"amount": int64(9007199254740992)}
	err := inTx(t, on, func(tx pgx.Tx) error {
		_, err := outbox.Insert(t.Context(), tx, in)
		return err
	})
	var conflict *outbox.ConflictError
	if !errors.As(err, &conflict) {
		t.Errorf("got %v, want a ConflictError", err)
	}
}
