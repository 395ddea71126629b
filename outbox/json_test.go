package outbox_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
)

var update = flag.Bool("update", false, "rewrite testdata/entry.json")

// oslo is a time zone other than UTC.
var oslo = time.FixedZone("Oslo", 7200)

// fullEntry has a value in each field, and answers of each kind.
func fullEntry() outbox.Entry {
	at := func(second int) time.Time { return time.Date(2026, 5, 1, 12, 30, second, 250_000_000, oslo) }
	id := func(last byte) uuid.UUID { return uuid.UUID{0x01, 0x98, 0xc7, 0xa2, 0x5a, 0x44, 0x7c, 0x2e, 15: last} }
	return outbox.Entry{
		ID: id(1), Key: samekey.Key{Scope: "acme/orders.create", Value: "order-1"}, Action: "charge_card", Part: "line-1", DeliveryKey: id(2),
		Payload:     []byte(`{"order": "order-1", "amount": 12345678901234567890, "limit": 1e400, "note": "A&B <é>", "note": "\ud83d"}`),
		ContentType: "application/json", Headers: map[string]string{"X-Shop": "17", "Accept": "*/*"}, OrderingKey: "order-1",
		Deadline: at(50), CreatedAt: at(0), TraceContext: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", RequestedBy: "ann",
		WrittenBy: "orders", Subject: "booking/42", Reference: "ch_123",
		Sent:   outbox.Sent{CarriedKey: "k25", Request: []byte("amount=5&currency=eur"), RequestType: "application/x-www-form-urlencoded", MessageID: "<m@example.com>", CreatedAt: at(1)},
		Status: outbox.StatusDead, DueAt: at(2), Code: "503", Cause: "overloaded", Attempt: 4, AttemptsUsed: 3, FirstSentAt: at(1),
		KeyWindowUntil: at(59), LeasedBy: 7, LeaseUntil: at(40), ApprovedAt: at(3), FinishedAt: at(4), Replaces: id(3), ReplacedBy: id(4), Revision: 1,
		History: []outbox.Event{
			{At: at(5), Event: "attempt", Attempt: 1, Worker: 7, StartedAt: at(4), Outcome: "unknown", Code: "503", Error: "overloaded <503>",
				Response: []byte("{\n  \"error\": {\"retry\": true}\n}"), ResponseType: "application/problem+json", Reference: "ch_123"},
			{At: at(6), Event: "attempt", Attempt: 2, Worker: 7, StartedAt: at(6), Outcome: "unknown", Code: "502", Response: []byte("<html>Bad Gateway</html>\n"), ResponseType: "text/html"},
			{At: at(7), Event: "lookup", Attempt: 3, Worker: 7, StartedAt: at(7), Outcome: "unknown", Code: "200", Response: []byte{0xff, 0x00, 0x01}, ResponseType: "application/protobuf"},
			{At: at(8), Event: "resolved", Outcome: "delivered", Code: "200", Actor: "ada", Reason: "seen in the dashboard", DBUser: "operator", FinalStatus: outbox.StatusDelivered},
		},
	}
}

func TestEntryAsJSONIsTheGoldenFile(t *testing.T) {
	const file = "testdata/entry.json"
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	page := outbox.Page{Entries: []outbox.Entry{fullEntry(), {ID: uuid.UUID{1}}}, Next: uuid.UUID{1}}
	if err := encoder.Encode(page); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("%s has other JSON. A member is an interface: do not rename it. After an addition, go test ./outbox -run GoldenFile -update\n%s", file, got.String())
	}
	var back outbox.Page
	if err := json.Unmarshal(want, &back); err != nil {
		t.Fatal(err)
	}
	got.Reset()
	if err := encoder.Encode(back); err != nil || got.String() != string(want) {
		t.Errorf("decoded and encoded again (%v):\n%s", err, got.String())
	}
	if entry := back.Entries[0]; !entry.CreatedAt.Equal(fullEntry().CreatedAt) || entry.Key != fullEntry().Key || len(entry.History) != 4 ||
		!bytes.Equal(entry.History[2].Response, []byte{0xff, 0x00, 0x01}) {
		t.Errorf("decoded: %+v", entry)
	}
}

// A field that someone adds has a member with its name, and survives.
func TestEachFieldIsAMemberOfTheJSON(t *testing.T) {
	for _, zero := range []any{outbox.Entry{}, outbox.Sent{}, outbox.Event{}} {
		of := reflect.TypeOf(zero)
		for i := range of.NumField() {
			field := of.Field(i)
			value := reflect.New(of)
			fillField(t, value.Elem().Field(i), field.Name)
			encoded, err := json.Marshal(value.Interface())
			if err != nil {
				t.Fatal(err)
			}
			members := map[string]json.RawMessage{}
			if err := json.Unmarshal(encoded, &members); err != nil {
				t.Fatal(err)
			}
			want := []string{snake(field.Name)}
			switch field.Type {
			case reflect.TypeFor[samekey.Key]():
				want = []string{"key", "scope"}
			case reflect.TypeFor[[]byte]():
				want = []string{snake(field.Name) + "_base64"}
			}
			if got := slices.Sorted(maps.Keys(members)); !slices.Equal(got, want) {
				t.Errorf("%s.%s has the members %q, want %q", of.Name(), field.Name, got, want)
			}
			back := reflect.New(of)
			if err := json.Unmarshal(encoded, back.Interface()); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(back.Interface(), value.Interface()) {
				t.Errorf("%s.%s: %s decodes to %+v", of.Name(), field.Name, encoded, back.Elem())
			}
		}
		if encoded, err := json.Marshal(zero); err != nil || string(encoded) != "{}" {
			t.Errorf("an empty %s is %s, %v", of.Name(), encoded, err)
		}
	}
}

// fillField sets a field to a value that is not zero.
func fillField(t *testing.T, field reflect.Value, name string) {
	t.Helper()
	values := []any{"text", 7, outbox.StatusDead, uuid.UUID{1}, []byte{0xff}, time.Unix(1, 0).UTC(), map[string]string{"X": "y"}, samekey.Key{Scope: "s", Value: "v"},
		outbox.Sent{CarriedKey: "k"}, []outbox.Event{{Event: "attempt"}}}
	for _, value := range values {
		if v := reflect.ValueOf(value); v.Type() == field.Type() {
			field.Set(v)
			return
		}
	}
	t.Fatalf("%s is a %s: add a value of that type to this test", name, field.Type())
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		lower := func(i int) bool { return i >= 0 && i < len(name) && unicode.IsLower(rune(name[i])) }
		if unicode.IsUpper(r) && i > 0 && (lower(i-1) || lower(i+1)) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func TestPayloadIsJSONTextOrBase64(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	const anyType, jsonType = "application/octet-stream", "application/vnd.shop+json; charset=utf-8"
	for _, c := range []struct{ payload, mediaType, want string }{
		{`{"a":1}`, anyType, `{"payload":{"a":1}}`},
		{" [1, 2]\n", anyType, `{"payload":[1,2]}`},
		{`{"n":1e400,"m":12345678901234567890,"x":1.10,"y":-0}`, jsonType, `{"payload":{"n":1e400,"m":12345678901234567890,"x":1.10,"y":-0}}`},
		{`{"a":1,"a":2}`, jsonType, `{"payload":{"a":1,"a":2}}`},
		{`{"a":"\u0000 \ud800 \"[{"}`, jsonType, `{"payload":{"a":"\u0000 \ud800 \"[{"}}`},
		{`{"a":"<&> é"}`, jsonType, `{"payload":{"a":"<&> é"}}`},
		{`null`, jsonType, `{"payload":null}`},
		{`"text"`, jsonType, `{"payload":"text"}`},
		{`5`, jsonType, `{"payload":5}`},
		{` 5`, "text/plain", `{"payload_text":" 5"}`},
		{`true`, "", `{"payload_text":"true"}`},
		{``, anyType, `{"payload_text":""}`},
		{"a=1&b=\x00é", anyType, `{"payload_text":"a=1&b=\u0000é"}`},
		{`{"a":1}}`, jsonType, `{"payload_text":"{\"a\":1}}"}`},
		{`{"a":"\"` + strings.Repeat("[", 1500) + `"}`, anyType, `{"payload":{"a":"\"` + strings.Repeat("[", 1500) + `"}}`},
		{deep(1000), jsonType, `{"payload":` + deep(1000) + `}`},
		{deep(1001), jsonType, `{"payload_text":"` + deep(1001) + `"}`},
		{deep(100_000), jsonType, `{"payload_text":"` + deep(100_000) + `"}`},
		{"\xff", jsonType, `{"payload_base64":"/w=="}`},
		{"{\"a\":\"\xff\"}", jsonType, `{"payload_base64":"eyJhIjoi/yJ9"}`},
	} {
		e := outbox.Entry{Payload: []byte(c.payload), ContentType: c.mediaType}
		got := encodeEntry(t, e)
		want := c.want
		if c.mediaType != "" {
			want = fmt.Sprintf(`{"content_type":%q,%s`, c.mediaType, c.want[1:])
		}
		if got != want {
			t.Errorf("%.60q as %s:\n%.200s, want\n%.200s", c.payload, c.mediaType, got, want)
		}
		var back outbox.Entry
		if err := json.Unmarshal([]byte(got), &back); err != nil {
			t.Fatal(err)
		}
		if again := encodeEntry(t, back); again != got {
			t.Errorf("%.60q: encoded again:\n%.200s, want\n%.200s", c.payload, again, got)
		}
		if !strings.HasPrefix(c.want, `{"payload":`) && string(back.Payload) != c.payload {
			t.Errorf("%.60q comes back as %.60q", c.payload, back.Payload)
		}
	}
	for _, bad := range []string{`{"payload":1,"payload_text":"1"}`, `{"payload_text":"1","payload_base64":"MQ=="}`, `{"sent":{"request":1,"request_base64":"MQ=="}}`,
		`{"history":[{"response":null,"response_text":"1"}]}`} {
		if err := json.Unmarshal([]byte(bad), new(outbox.Entry)); err == nil || !strings.Contains(err.Error(), "more than one form") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// encodeEntry encodes without the escaping of <, > and & that json.Marshal adds.
func encodeEntry(t testing.TB, e outbox.Entry) string {
	t.Helper()
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Whatever the bytes are, the JSON is valid, holds their value, and is the same after a round trip.
func FuzzEntryJSON(f *testing.F) {
	f.Add([]byte(`{"a": [1e400, "\ud800"]}`), "application/json", true)
	f.Add([]byte("\xff"), "text/plain", false)
	f.Fuzz(func(t *testing.T, b []byte, mediaType string, answer bool) {
		if !jsonText(mediaType) {
			return
		}
		e := outbox.Entry{Payload: b, ContentType: mediaType}
		if answer {
			e = outbox.Entry{History: []outbox.Event{{Response: b, ResponseType: mediaType}}}
		}
		first := encodeEntry(t, e)
		var back outbox.Entry
		if err := json.Unmarshal([]byte(first), &back); err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if second := encodeEntry(t, back); second != first {
			t.Fatalf("%s\n%s", first, second)
		}
		held := back.Payload
		if answer {
			held = back.History[0].Response
		}
		var compact bytes.Buffer
		if !bytes.Equal(held, b) && (json.Compact(&compact, b) != nil || !bytes.Equal(held, compact.Bytes())) {
			t.Fatalf("%q became %q", b, held)
		}
	})
}

// jsonText reports whether JSON keeps a string.
func jsonText(text string) bool {
	var back string
	encoded, err := json.Marshal(text)
	return err == nil && json.Unmarshal(encoded, &back) == nil && back == text
}

// One word for one thing: what a view and the JSON of Get both have, they call by one name, and it has one value.
func TestJSONHasTheWordsOfTheViews(t *testing.T) {
	on := newGuardedDB(t)
	for i, status := range outbox.Statuses() {
		in := outbox.Intent{Action: "charge_card", Key: newKey(t, fmt.Sprint("order-", i)), Part: "p", Subject: "booking/42", RequestedBy: "ann",
			TraceContext: "00-1-2-3", Deadline: time.Now().Add(time.Hour), Payload: json.RawMessage(`{"n": 1e400, "m": 12345678901234567890}`)}
		if status == outbox.StatusBlocked {
			in.OrderingKey = "o"
			insert(t, on, outbox.Intent{Action: "charge_card", OrderingKey: "o"})
		}
		id := insert(t, on, in)
		dbtest.Exec(t, on, `insert into samekey.outbox_history (intent_id, event, outcome, attempt, worker, started_at, code, error, response, response_type, reference)
			values ($1, 'attempt', 'unknown', 3, 7, now(), '503', 'overloaded', '{"id":"ch_1"}', 'application/json', 'ch_1')`, id)
		force(t, on, id, status, true, true)
		dbtest.Exec(t, on, `update samekey.outbox_queue set cause = 'overloaded', approved_at = now(), key_window_until = 'infinity' where id = $1`, id)
		if status == outbox.StatusDead {
			dbtest.Exec(t, on, `update samekey.outbox_queue set first_sent_at = null, key_window_until = null where id = $1`, id)
			if _, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada); err != nil {
				t.Fatal(err)
			}
		}

		members := func(text string) (m map[string]any) {
			decoder := json.NewDecoder(strings.NewReader(text))
			decoder.UseNumber()
			if err := decoder.Decode(&m); err != nil {
				t.Fatal(err)
			}
			return m
		}
		row := func(sql string, args ...any) map[string]any {
			return members(dbtest.Value[string](t, on, sql, args...))
		}
		entry := members(encodeEntry(t, get(t, on, id)))
		if payload := fmt.Sprint(entry["payload"]); payload != "map[m:12345678901234567890 n:1e400]" {
			t.Errorf("the payload is shown as %v", payload)
		}
		sameWords(t, string(status), entry, row(`select to_jsonb(i)::text from samekey.intents i where id = $1`, id),
			[]string{"payload", "content_type", "history", "attempt", "leased_by", "lease_until"}, []string{"attempts"})
		events, _ := entry["history"].([]any)
		for n, event := range events {
			sameWords(t, fmt.Sprintf("%s: event %d", status, n), event.(map[string]any), row(`select to_jsonb(e)::text from samekey.timeline e where intent_id = $1 order by id offset $2 limit 1`, id, n),
				[]string{"response", "response_type"}, []string{"id", "intent_id", "scope", "key", "action", "part", "subject"})
		}
		if len(events) == 0 {
			t.Errorf("%s: no history", status)
		}
	}
	for view, of := range map[string]reflect.Type{"intents": reflect.TypeFor[outbox.Entry](), "timeline": reflect.TypeFor[outbox.Event]()} {
		if n := count(t, on, `select count(*)::int from samekey.`+view); n < 11 {
			t.Errorf("%s has %d rows of %s", view, n, of)
		}
	}
}

// sameWords compares members that are not zero with columns. Each list names what the other side does not have.
func sameWords(t *testing.T, name string, members, columns map[string]any, onlyJSON, onlySQL []string) {
	t.Helper()
	for column, value := range columns {
		if slices.Contains(onlySQL, column) {
			continue
		}
		member := members[column]
		if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(value)); err == nil {
			value = at.UTC().Format(time.RFC3339Nano)
		}
		if empty := value == nil || value == "" || fmt.Sprint(value) == "0"; empty && member != nil || !empty && fmt.Sprint(member) != fmt.Sprint(value) {
			t.Errorf("%s: the column %s is %v, the member %v", name, column, value, member)
		}
	}
	for member := range members {
		if _, known := columns[member]; !known && !slices.Contains(onlyJSON, member) {
			t.Errorf("%s: the view has no column for the member %s", name, member)
		}
	}
}

func TestLogOfAnEntryHasNoContent(t *testing.T) {
	var b bytes.Buffer
	for _, log := range []*slog.Logger{slog.New(slog.NewJSONHandler(&b, nil)), slog.New(slog.NewTextHandler(&b, nil))} {
		e := fullEntry()
		log.Info("look", "intent", e, "sent", e.Sent, "page", outbox.Page{Entries: []outbox.Entry{e}})
		for _, event := range e.History {
			log.Info("look", "event", event)
		}
	}
	for _, content := range []string{"order-1", "acme", "12345678901234567890", "overloaded", "booking", "ann", "Gateway", "retry", "amount", "97 109 111 117", "60 104 116 109", "dashboard", "k25"} {
		if strings.Contains(b.String(), content) {
			t.Errorf("the log line has %q:\n%s", content, b.String())
		}
	}
	if !strings.Contains(b.String(), `"action":"charge_card","status":"dead","code":"503","key":"key:`) || !strings.Contains(b.String(), "event.event=lookup event.outcome=unknown event.code=200") {
		t.Errorf("the log line is\n%s", b.String())
	}
}
