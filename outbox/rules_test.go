package outbox_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// rule is one intent, and which of its fields breaks a rule, in SQL's words; ""
// is none. "s3cret" stands for what must be in no error.
type rule struct {
	name   string
	change func(*outbox.Intent)
	field  string
}

func payload(contentType, text string) func(*outbox.Intent) {
	return func(in *outbox.Intent) { in.ContentType, in.Payload = contentType, []byte(text) }
}

func header(name, value string) func(*outbox.Intent) {
	return func(in *outbox.Intent) { in.Headers = map[string]string{name: value} }
}

func utc(year int, month time.Month, day, hour, minute, sec, nsec int) time.Time {
	return time.Date(year, month, day, hour, minute, sec, nsec, time.UTC)
}

func rules() []rule {
	const plain = "text/plain"
	all := []rule{
		{"nothing special", func(*outbox.Intent) {}, ""},

		{"scope of one part", func(in *outbox.Intent) { in.Key.Scope = "acme" }, ""},
		{"scope with escapes", func(in *outbox.Intent) { in.Key.Scope = "a%2Fb/c d/e" }, ""},
		{"scope, empty", func(in *outbox.Intent) { in.Key.Scope = "" }, "scope"},
		{"scope, first part empty", func(in *outbox.Intent) { in.Key.Scope = "/s3cret" }, "scope"},
		{"scope, last part empty", func(in *outbox.Intent) { in.Key.Scope = "s3cret/" }, "scope"},
		{"scope, middle part empty", func(in *outbox.Intent) { in.Key.Scope = "s3cret//b" }, "scope"},
		{"scope of a slash", func(in *outbox.Intent) { in.Key.Scope = "/" }, "scope"},
		{"scope, space at its end", func(in *outbox.Intent) { in.Key.Scope = "s3cret " }, "scope"},
		{"scope, line feed", func(in *outbox.Intent) { in.Key.Scope = "s3cret\n" }, "scope"},
		{"scope, not ASCII", func(in *outbox.Intent) { in.Key.Scope = "s3crét" }, "scope"},
		{"scope of 255 bytes", func(in *outbox.Intent) { in.Key.Scope = strings.Repeat("s", 255) }, ""},
		{"scope of 256 bytes", func(in *outbox.Intent) { in.Key.Scope = strings.Repeat("s", 256) }, "scope"},

		{"key with a space inside", func(in *outbox.Intent) { in.Key.Value = "a b/%" }, ""},
		{"key, empty", func(in *outbox.Intent) { in.Key.Value = "" }, "idem_key"},
		{"key, space before it", func(in *outbox.Intent) { in.Key.Value = " s3cret" }, "idem_key"},
		{"key, tab", func(in *outbox.Intent) { in.Key.Value = "s3cret\tb" }, "idem_key"},
		{"key, delete", func(in *outbox.Intent) { in.Key.Value = "s3cret\x7f" }, "idem_key"},
		{"key of 255 bytes", func(in *outbox.Intent) { in.Key.Value = strings.Repeat("k", 255) }, ""},
		{"key of 256 bytes", func(in *outbox.Intent) { in.Key.Value = strings.Repeat("k", 256) }, "idem_key"},

		{"action of 63 bytes", func(in *outbox.Intent) { in.Action = strings.Repeat("a", 63) }, ""},
		{"action of 64 bytes", func(in *outbox.Intent) { in.Action = strings.Repeat("a", 64) }, "action"},
		{"action, empty", func(in *outbox.Intent) { in.Action = "" }, "action"},
		{"action, capital", func(in *outbox.Intent) { in.Action = "Charge" }, "action"},
		{"action, line feed", func(in *outbox.Intent) { in.Action = "charge\n" }, "action"},
		{"action, digit first", func(in *outbox.Intent) { in.Action = "1a" }, "action"},

		{"part in any script", func(in *outbox.Intent) { in.Part = "é漢😀\u00a0\ue000 " }, ""},
		{"part of 255 bytes", func(in *outbox.Intent) { in.Part = strings.Repeat("é", 127) + "p" }, ""},
		{"part of 256 bytes", func(in *outbox.Intent) { in.Part = strings.Repeat("é", 128) }, "part"},
		{"ordering key of 255 bytes", func(in *outbox.Intent) { in.OrderingKey = strings.Repeat("o", 255) }, ""},
		{"ordering key of 256 bytes", func(in *outbox.Intent) { in.OrderingKey = strings.Repeat("o", 256) }, "ordering_key"},
		{"requested by 255 bytes", func(in *outbox.Intent) { in.RequestedBy = strings.Repeat("o", 255) }, ""},
		{"subject of 255 bytes", func(in *outbox.Intent) { in.Subject = strings.Repeat("o", 255) }, ""},
		{"subject of 256 bytes", func(in *outbox.Intent) { in.Subject = strings.Repeat("o", 256) }, "subject"},
		{"requested by 256 bytes", func(in *outbox.Intent) { in.RequestedBy = strings.Repeat("o", 256) }, "requested_by"},

		{"trace context", func(in *outbox.Intent) { in.TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }, ""},
		{"trace context of 513 bytes", func(in *outbox.Intent) { in.TraceContext = strings.Repeat("0", 513) }, "trace_context"},
		{"trace context, line feed", func(in *outbox.Intent) { in.TraceContext = "s3cret\n" }, "trace_context"},
		{"trace context, space at its end", func(in *outbox.Intent) { in.TraceContext = "s3cret " }, "trace_context"},

		{"payload of 1 MiB", payload("application/octet-stream", strings.Repeat("\x00", 1<<20)), ""},
		{"payload above 1 MiB", payload("application/octet-stream", strings.Repeat("\x00", 1<<20+1)), "payload"},
		{"payload, empty, not JSON", payload(plain, ""), ""},

		{"content type, parameter", payload("text/plain; charset=utf-8", "s3cret"), ""},
		{"content type, quoted", payload(`multipart/form-data; boundary="a [b] \" c";x=y`, "s3cret"), ""},
		{"content type that only starts as JSON", payload("application/jsonl", "{}\n{}"), ""},
		{"content type of 255 bytes", payload("text/plain; a="+strings.Repeat("b", 241), ""), ""},
		{"content type of 256 bytes", payload("text/plain; a="+strings.Repeat("b", 242), ""), "content_type"},
		{"content type, JSON in capitals", payload("APPLICATION/JSON", "s3cret"), "payload"},
		{"content type, JSON with a parameter", payload("application/json ;\tcharset=utf-8", "s3cret"), "payload"},
		{"content type, suffix +json", payload("application/problem+JSON", "s3cret"), "payload"},

		{"headers", func(in *outbox.Intent) {
			in.Headers = map[string]string{"X-A": `a "b" \ c`, "x_b!#": "tab\tinside", "Empty": ""}
		}, ""},
		{"headers at their limit", header("x", strings.Repeat("v", 16375)), ""},
		{"headers above it", header("x", strings.Repeat("v", 16376)), "headers"},
		{"headers above it by escapes", header("x", "v"+strings.Repeat("\\\"\t", 2728)+"vvvvvvv"), "headers"},
		{"headers, name twice", func(in *outbox.Intent) { in.Headers = map[string]string{"x-a": "1", "X-A": "2"} }, "headers"},

		{"due in 1970", func(in *outbox.Intent) { in.DueAt = time.Unix(0, 0) }, ""},
		{"due in 1969", func(in *outbox.Intent) { in.DueAt = time.Unix(0, -1000) }, "due_at"},
		{"due before Christ", func(in *outbox.Intent) { in.DueAt = utc(-44, 3, 15, 0, 0, 0, 0) }, "due_at"},
		{"due at the end of 9999", func(in *outbox.Intent) { in.DueAt = utc(9999, 12, 31, 23, 59, 59, 999999000) }, ""},
		{"due in 10000", func(in *outbox.Intent) { in.DueAt = utc(10000, 1, 1, 0, 0, 0, 0) }, "due_at"},
		{"due in 9999 in its own zone only", func(in *outbox.Intent) {
			in.DueAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -5*3600))
		}, "due_at"},
		{"deadline in 1969", func(in *outbox.Intent) { in.Deadline = time.Unix(-1, 0) }, "deadline"},
		{"deadline in 10000", func(in *outbox.Intent) { in.Deadline = utc(10000, 1, 1, 0, 0, 0, 0) }, "deadline"},
		{"deadline that is over", func(in *outbox.Intent) { in.Deadline = time.Unix(9, 0) }, ""},
		{"deadline when due", func(in *outbox.Intent) { in.DueAt, in.Deadline = time.Unix(9, 0), time.Unix(9, 0) }, "deadline"},
		{"deadline 100 ns after due", func(in *outbox.Intent) { in.DueAt, in.Deadline = time.Unix(9, 0), time.Unix(9, 100) }, "deadline"},
		{"deadline 1 us after due", func(in *outbox.Intent) { in.DueAt, in.Deadline = time.Unix(9, 0), time.Unix(9, 1000) }, ""},
	}
	for _, r := range []rune{0x01, '\t', '\n', '\r', 0x1f, 0x7f, 0x80, 0x85, 0x9f, 0x200b, 0x200f, 0x2028, 0x2029, 0x202e, 0x2060, 0x2066, 0x206f, 0xfeff} {
		text := "s3cret" + string(r)
		all = append(all, rule{fmt.Sprintf("part with %U", r), func(in *outbox.Intent) { in.Part = text }, "part"})
		all = append(all, rule{fmt.Sprintf("ordering key with %U", r), func(in *outbox.Intent) { in.OrderingKey = text }, "ordering_key"})
		all = append(all, rule{fmt.Sprintf("requested by with %U", r), func(in *outbox.Intent) { in.RequestedBy = text }, "requested_by"})
		all = append(all, rule{fmt.Sprintf("subject with %U", r), func(in *outbox.Intent) { in.Subject = text }, "subject"})
	}
	for _, r := range []rune{' ', 0xa0, 0xad, 0x2010, 0x202f, 0x205f, 0x2070, 0xfffd} {
		all = append(all, rule{fmt.Sprintf("part and others with %U", r), func(in *outbox.Intent) {
			in.Part, in.OrderingKey, in.RequestedBy, in.Subject = "a"+string(r), "a"+string(r), "a"+string(r), "a"+string(r)
		}, ""})
	}
	for _, text := range []string{`{"a":1,"a":2}`, `"\u0000"`, `["\ud800"]`, `1e400`, `-0`, `1.50E-7`, `null`, " {} \n\t\r", "\"\x7f\"", `"\ud83d\ude00"`,
		strings.Repeat("[", 10000) + strings.Repeat("]", 10000), "[" + strings.Repeat(`{"a":"[[\"["},`, 30000) + "1]", `{"": 9007199254740993.000}`, `{"p": "C:\\temp"}`} {
		all = append(all, rule{fmt.Sprintf("JSON %.20q", text), payload("", text), ""})
	}
	for _, text := range []string{"", " ", `{"s3cret":`, `{"s3cret":1,}`, `["s3cret"] []`, `s3cret`, `'s3cret'`, `{s3cret:1}`, `01`, `1.`, `.5`, `+1`, `NaN`, `tru`, `"\x"`, `"\u12"`,
		"\"s3cret\n\"", "\"s3cret\x00\"", "\x00", "\"s3cret\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\xf4\x90\x80\x80\"", "\ufeff{}", "\f{}", "\u00a0{}", `//s3cret`,
		strings.Repeat("[", 10001) + strings.Repeat("]", 10001), strings.Repeat(`{"[":`, 10001) + "1" + strings.Repeat("}", 10001)} {
		all = append(all, rule{fmt.Sprintf("no JSON %.20q", text), payload("", text), "payload"})
	}
	for _, mediaType := range []string{"s3cret", "text/", "/s3cret", "text/plain;", "text/plain; s3cret", "text/plain; a=", " text/plain", "text/plain ", "text/plain\r\nX: s3cret",
		"text/plain; a=\"s3cret\n\"", "text/s3crét", "text/plain; a=s3crét", "text/plain, text/html", `text/plain; a="`} {
		all = append(all, rule{fmt.Sprintf("content type %q", mediaType), payload(mediaType, "s3cret"), "content_type"})
	}
	for _, name := range append(outbox.ReservedHeaders(), "X s3cret", "", "X-s3cret:", "X-s3crét", "x\r\ns3cret") {
		all = append(all, rule{fmt.Sprintf("header %q", name), header(strings.ToUpper(name), "s3cret"), "headers"})
	}
	for _, value := range []string{" s3cret", "s3cret\t", "s3cret\r\nEvil: 1", "s3cret\x00", "s3crét", "\x7f"} {
		all = append(all, rule{fmt.Sprintf("header's value %q", value), header("X-A", value), "headers"})
	}
	return all
}

// written is what is in the tables of an intent.
type written struct {
	scope, key, action, part string
	deliveryKey              uuid.UUID
	payload                  []byte
	contentType              string
	headers                  map[string]string
	ordering, trace, by      *string
	subject                  *string
	due, deadline            *time.Time
}

const enqueueByName = `select samekey.enqueue(scope => $1::text, idem_key => $2::text, action => $3::text, payload => $4::%s, part => $5::text,
	content_type => $6::text, headers => $7::text::jsonb, ordering_key => $8::text, due_at => $9::timestamptz, deadline => $10::timestamptz,
	trace_context => $11::text, requested_by => $12::text, subject => $13::text)`

func bySQL(kind string) func(ctx context.Context, tx pgx.Tx, in outbox.Intent) error {
	return func(ctx context.Context, tx pgx.Tx, in outbox.Intent) error {
		headers, err := json.Marshal(in.Headers)
		if err != nil {
			return err
		}
		at := func(t time.Time) *time.Time {
			if t.IsZero() {
				return nil
			}
			return &t
		}
		bytes := in.Payload.([]byte)
		var value any = bytes
		if kind == "text" {
			value = string(bytes)
		}
		_, err = tx.Exec(ctx, fmt.Sprintf(enqueueByName, kind), in.Key.Scope, in.Key.Value, in.Action, value, in.Part, in.ContentType,
			strings.Replace(string(headers), "null", "{}", 1), in.OrderingKey, at(in.DueAt), at(in.Deadline), in.TraceContext, in.RequestedBy, in.Subject)
		return err
	}
}

const enqueueMany = `select samekey.enqueue_many(array[$1], array[$2], array[$3], array[$4::bytea], array[$5], array[$6], array[$7],
	array[$8::timestamptz], array[$9::timestamptz], array[$10], array[samekey.uuidv7()], false, array[$11], array[$12])`

// byMany calls enqueue_many, and enqueue for an intent that it did not write, to learn why.
func byMany(ctx context.Context, tx pgx.Tx, in outbox.Intent) error {
	headers, err := json.Marshal(in.Headers)
	if err != nil {
		return err
	}
	var rest []int
	if err := tx.QueryRow(ctx, enqueueMany, in.Key.Scope, in.Key.Value, in.Action, in.Payload, in.Part, cmp.Or(in.ContentType, "application/json"),
		strings.Replace(string(headers), "null", "{}", 1), in.DueAt, in.Deadline, in.TraceContext, in.RequestedBy, in.Subject).Scan(&rest); err != nil || len(rest) == 0 {
		return err
	}
	if err := bySQL("bytea")(ctx, tx, in); err != nil {
		return err
	}
	return errors.New("enqueue wrote what enqueue_many did not")
}

// Every way in has the same verdict on an intent, and writes the same.
func TestEveryWayInHasTheSameRules(t *testing.T) {
	on := samekeytest.NewDB(t)
	undo := errors.New("undo")
	ways := map[string]func(context.Context, pgx.Tx, outbox.Intent) error{
		"Insert": func(ctx context.Context, tx pgx.Tx, in outbox.Intent) error {
			_, err := outbox.Insert(ctx, tx, in)
			return err
		},
		"InsertMany": func(ctx context.Context, tx pgx.Tx, in outbox.Intent) error {
			_, err := outbox.InsertMany(ctx, tx, []outbox.Intent{in})
			return err
		},
		"InsertMany with others": func(ctx context.Context, tx pgx.Tx, in outbox.Intent) error {
			others := parts(t, "other", 5)
			if _, err := outbox.InsertMany(ctx, tx, append(others, in)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `with o as (delete from samekey.outbox where idem_key = 'other' returning id) delete from samekey.outbox_queue q using o where q.id = o.id`)
			return err
		},
		"SQL bytea": bySQL("bytea"),
		"SQL text":  bySQL("text"),
		"SQL many":  byMany,
	}
	inTx := func(way func(context.Context, pgx.Tx, outbox.Intent) error, in outbox.Intent) (have written, err error) {
		err = pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
			if err := way(t.Context(), tx, in); err != nil {
				return err
			}
			if have, err = readWritten(t.Context(), tx); err != nil {
				return err
			}
			return undo
		})
		if errors.Is(err, undo) {
			err = nil
		}
		return have, err
	}
	for _, r := range rules() {
		in := outbox.Intent{Key: newKey(t, "order-1"), Action: "charge_card", Payload: []byte("{}")}
		r.change(&in)
		verdicts, wrote := map[string]error{}, map[string]written{}
		for name, way := range ways {
			if text := in.Payload.([]byte); name == "SQL text" && (!utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0) {
				continue // text cannot hold it
			}
			if name == "SQL many" && (r.field == "payload" && len(in.Payload.([]byte)) <= 1<<20 || in.OrderingKey != "") {
				continue // it does not parse payloads, and takes no ordering key
			}
			if headers := fmt.Sprint(in.Headers); strings.HasPrefix(name, "SQL") && strings.Contains(headers, "\x00") {
				continue // jsonb cannot hold it
			}
			wrote[name], verdicts[name] = inTx(way, in)
		}
		wrote["Run"], verdicts["Run"] = inRun(t, on, in)
		for name, err := range verdicts {
			switch {
			case (err == nil) != (r.field == ""):
				t.Errorf("%s: %s: %v, want the field %q refused", r.name, name, err, r.field)
			case err != nil && strings.Contains(fmt.Sprint(everything(err)), "s3cr"):
				t.Errorf("%s: %s: the error holds a value: %v", r.name, name, everything(err))
			case err != nil && !strings.HasPrefix(name, "SQL"):
				if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
					t.Errorf("%s: %s: refused by the database only: %v", r.name, name, err)
				}
			case err != nil:
				if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) || refused.Code != "22023" || refused.ColumnName != r.field {
					t.Errorf("%s: %s: %v of column %q, want 22023 of %q", r.name, name, err, refused.ColumnName, r.field)
				}
			case err == nil && !reflect.DeepEqual(wrote[name], wrote["Insert"]):
				t.Errorf("%s: %s wrote %.500v, Insert %.500v", r.name, name, wrote[name], wrote["Insert"])
			}
		}
		if have := wrote["Insert"]; r.field == "" && (!bytes.Equal(have.payload, in.Payload.([]byte)) || have.deliveryKey != samekey.DeliveryKey(in.Key, in.Action, in.Part)) {
			t.Errorf("%s: wrote the payload %.100q under %s", r.name, have.payload, have.deliveryKey)
		}
	}
}

// inRun inserts the intent in processed.Run and takes back what that wrote.
func inRun(t *testing.T, on *samekeytest.DB, in outbox.Intent) (have written, err error) {
	t.Helper()
	request := processed.Request{Key: in.Key, Payload: []byte("{}")}
	_, err = processed.Run(t.Context(), on.Pool, request, func(ctx context.Context, tx pgx.Tx) (int, error) {
		in.Key = samekey.Key{}
		_, err := outbox.Insert(ctx, tx, in)
		return 1, err
	})
	if err != nil {
		return have, err
	}
	if have, err = readWritten(t.Context(), on); err != nil {
		t.Fatal(err)
	}
	if _, err := on.Exec(t.Context(), `truncate samekey.outbox, samekey.outbox_queue, samekey.processed_events`); err != nil {
		t.Fatal(err)
	}
	return have, nil
}

// readWritten reads the one intent that there is. When it is due is left out
// where that is now.
func readWritten(ctx context.Context, on samekey.Tx) (w written, err error) {
	var headers []byte
	err = on.QueryRow(ctx, `select o.scope, o.idem_key, o.action, o.part, o.delivery_key, o.payload, o.content_type, o.headers::text, o.ordering_key,
			o.trace_context, o.requested_by, o.subject, case when abs(extract(epoch from clock_timestamp() - o.due_at)) > 3600 then o.due_at end, o.deadline
		from samekey.outbox o join samekey.outbox_queue q on q.id = o.id and q.due_at = o.due_at and q.action = o.action and q.status = 'pending'
			and q.ordering_key is not distinct from o.ordering_key`).Scan(
		&w.scope, &w.key, &w.action, &w.part, &w.deliveryKey, &w.payload, &w.contentType, &headers, &w.ordering, &w.trace, &w.by, &w.subject, &w.due, &w.deadline)
	if err == nil {
		err = json.Unmarshal(headers, &w.headers)
	}
	return w, err
}

// everything is all that the server says of an error, and so all that is in
// its log.
func everything(err error) []string {
	said := []string{err.Error()}
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		said = append(said, refused.Message, refused.Detail, refused.Hint, refused.Where, refused.InternalQuery)
	}
	return said
}
