package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// Arguments come from columns of any text type, each with a collation of its
// own.
func TestArgumentsOfAnyTextTypeAndCollation(t *testing.T) {
	on := newGuardedDB(t)
	mustExec(t, on, `
		create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		create extension if not exists citext;
		create domain short_text as text collate "de-x-icu" check (length(value) < 100);
		create domain short_varchar as varchar(50) collate "fr-x-icu"`)
	types := []string{`text collate "de-x-icu"`, `text collate anycase`, `citext`, `citext collate "de-x-icu"`, `short_text`, `short_varchar`,
		`varchar(80) collate "de-x-icu"`, `varchar`, `char(40)`, `name`, `text`}
	for i, kind := range types {
		table := fmt.Sprint("arguments_", i)
		mustExec(t, on, fmt.Sprintf(`create table %s (scope %[2]s, key %[2]s, action %[2]s, part %[2]s, payload %[2]s, type %[2]s, ord %[2]s, trace %[2]s, by %[2]s, subject %[2]s)`, table, kind))
		mustExec(t, on, fmt.Sprintf(`insert into %s values ('acme/orders', 'Order-%d', 'charge_card', 'line 1', '{"n": 1}', 'application/json', 'order-%[2]d', '00-1-2-01', 'ada', 'booking/%[2]d')`, table, i))
		first := uuid.Nil
		for _, ordering := range []string{"null", "ord"} {
			// Twice each: the second time meets the first's row.
			for _, payload := range []string{"payload", "payload::text", "payload", "convert_to(payload::text, 'UTF8')"} {
				if ordering == "ord" && payload != "payload" {
					continue
				}
				statement := fmt.Sprintf(`select samekey.enqueue(scope, key, action, %s, part || %s, type, '{}', %s, trace_context => trace, requested_by => by, subject => subject) from %s`,
					payload, map[string]string{"null": "''", "ord": "' ordered'"}[ordering], ordering, table)
				var id uuid.UUID
				if err := on.QueryRow(t.Context(), statement).Scan(&id); err != nil {
					t.Errorf("%s: ordering key %s, payload %s: %v", kind, ordering, payload, err)
					continue
				}
				if ordering == "null" && first == uuid.Nil {
					first = id
				}
				if ordering == "null" && id != first {
					t.Errorf("%s: payload %s: another intent at the repetition", kind, payload)
				}
			}
		}
		// A second intent of the same ordering key stands behind the first.
		var id uuid.UUID
		if err := on.QueryRow(t.Context(), fmt.Sprintf(`select samekey.enqueue(scope, 'second-' || key, action, payload, ordering_key => ord) from %s`, table)).Scan(&id); err != nil {
			t.Errorf("%s: a second ordered intent: %v", kind, err)
		} else if status := get(t, on, id).Status; status != outbox.StatusBlocked {
			t.Errorf("%s: the second ordered intent is %s", kind, status)
		}
		if n := count(t, on, `select count(*) from samekey.outbox where idem_key = $1`, fmt.Sprint("Order-", i)); n != 2 {
			t.Errorf("%s: %d intents, want 2", kind, n)
		}
	}
	// Two columns whose collations contradict each other.
	mustExec(t, on, `create table mixed (a text collate "de-x-icu", b text collate "fr-x-icu"); insert into mixed values ('acme', 'mixed')`)
	for range 2 {
		mustExec(t, on, `select samekey.enqueue(a, b, b, '{}'), samekey.enqueue(a, b, b, '{}', part => a, ordering_key => b) from mixed`)
	}
}

// Keys that differ in case only are two keys, whatever the collation of the
// column that they come from says.
func TestKeysAreBytesUnderEveryCollation(t *testing.T) {
	on := newGuardedDB(t)
	mustExec(t, on, `
		create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		create table keys (key text collate anycase);
		insert into keys values ('order-1'), ('ORDER-1')`)
	if n := count(t, on, `select count(distinct id) from (select samekey.enqueue('acme', key, 'charge_card', '{}') as id from keys) e`); n != 2 {
		t.Errorf("%d intents, want 2", n)
	}
	for _, function := range []string{"ordering_lock(key)", "key_lock(key, 'k')", "key_lock('s', key)"} {
		if n := count(t, on, `select count(distinct l) from (select samekey.`+function+` as l from keys) l`); n != 2 {
			t.Errorf("%s: %d locks, want 2", function, n)
		}
	}
}

// A payload is kept as it was written: to the byte, whatever type it has.
func TestPayloadsKeepWhatWasWritten(t *testing.T) {
	on := newGuardedDB(t)
	mustExec(t, on, `
		create table payloads (id int, as_text text, as_json json, as_jsonb jsonb, as_bytes bytea, as_varchar varchar);
		insert into payloads values (1, '{"p": "C:\\temp",  "n": 1.0}', '{"p": "C:\\temp",  "n": 1.0}', '{"p": "C:\\temp",  "n": 1.0}',
			convert_to('{"p": "C:\\temp",  "n": 1.0}', 'UTF8'), '{"p": "C:\\temp",  "n": 1.0}')`)
	const exact, canonical = `{"p": "C:\\temp",  "n": 1.0}`, `{"n": 1.0, "p": "C:\\temp"}`
	for expression, want := range map[string]string{
		`'{"p": "C:\\temp",  "n": 1.0}'`:        exact, // a literal without a type
		`'{"p": "C:\\temp",  "n": 1.0}'::text`:  exact,
		`'{"p": "C:\\temp",  "n": 1.0}'::json`:  exact,
		`'{"p": "C:\\temp",  "n": 1.0}'::jsonb`: canonical,
		`E'{"p": "C:\\\\temp",  "n": 1.0}'`:     exact,
		`$p${"p": "C:\\temp",  "n": 1.0}$p$`:    exact,
		`as_text`:                               exact,
		`as_json`:                               exact,
		`as_jsonb`:                              canonical,
		`as_bytes`:                              exact,
		`as_varchar`:                            exact,
		`jsonb_build_object('b', 9007199254740993, 'a', E'\u00e9')`: `{"a": "é", "b": 9007199254740993}`,
		`json_build_object('b', 9007199254740993)`:                  `{"b" : 9007199254740993}`,
		`to_jsonb(row(1, 'x'))`:                                     `{"f1": 1, "f2": "x"}`,
		`'\x7b7d'::bytea`:                                           `{}`,
		`'null'`:                                                    `null`,
		`'[]', part => 'p', due_at => now(), headers => '{"X-A": "b"}'`: `[]`,
		`payload => '{"p": "C:\\temp",  "n": 1.0}'`:                     exact,
		`'\x00ff'::bytea, content_type => 'application/octet-stream'`:   "\x00\xff",
		`'C:\temp', content_type => 'text/plain'`:                       `C:\temp`,
		`'{"a":"\u0000"}'`:       `{"a":"\u0000"}`,
		`'{"a":"\u0000"}'::json`: `{"a":"\u0000"}`,
		`E'a\nb', content_type => 'text/plain; charset=utf-8'`:               "a\nb",
		`payload => as_bytes, part => 'named', id => gen_random_uuid()`:      exact,
		`payload => as_jsonb, part => 'named', must_be_new => true`:          canonical,
		`format('{"id": %s}', id), part => id::text, requested_by => 'cron'`: `{"id": 1}`,
	} {
		key := uuid.NewString()
		var id uuid.UUID
		statement := fmt.Sprintf(`select samekey.enqueue('acme', '%s', 'charge_card', %s) from payloads`, key, expression)
		if err := on.QueryRow(t.Context(), statement).Scan(&id); err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got := string(get(t, on, id).Payload); got != want {
			t.Errorf("%s: stored %q, want %q", expression, got, want)
		}
	}
	// A parameter whose type the driver leaves to the server is text too.
	var id uuid.UUID
	if err := on.QueryRow(t.Context(), `select samekey.enqueue($1, $2, $3, $4)`, "acme", "untyped", "charge_card", exact).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if got := string(get(t, on, id).Payload); got != exact {
		t.Errorf("a parameter without a type: stored %q", got)
	}
}

// What only SQL can say has SQL's verdict: the field is named, and nothing is
// stored.
func TestSQLRefusesWhatGoCannotSay(t *testing.T) {
	on := newGuardedDB(t)
	for _, c := range []struct{ arguments, field string }{
		{`'s', 'k', 'a', '{}', due_at => '-infinity'`, "due_at"},
		{`'s', 'k', 'a', '{}', due_at => 'infinity'`, "due_at"},
		{`'s', 'k', 'a', '{}', due_at => '0044-03-15 BC'`, "due_at"},
		{`'s', 'k', 'a', '{}', due_at => '1969-12-31 23:59:59+00'`, "due_at"},
		{`'s', 'k', 'a', '{}', due_at => '10000-01-01 00:00:00+00'`, "due_at"},
		{`'s', 'k', 'a', '{}', deadline => 'infinity'`, "deadline"},
		{`'s', 'k', 'a', '{}', deadline => '-infinity'`, "deadline"},
		{`'s', 'k', 'a', '{}', due_at => now(), deadline => now()`, "deadline"},
		{`null, 'k', 'a', '{}'`, "scope"},
		{`'s', null, 'a', '{}'`, "idem_key"},
		{`'s', 'k', null, '{}'`, "action"},
		{`'s', 'k', 'a', null`, "payload"},
		{`'s', 'k', 'a', null::jsonb`, "payload"},
		{`'s', 'k', 'a', null::bytea`, "payload"},
		{`'s', 'k', 'a', '\x00ff'`, "payload"}, // bytes without a type are text
		{`'s', 'k', 'a', '{}', headers => '[]'`, "headers"},
		{`'s', 'k', 'a', '{}', headers => 'null'`, "headers"},
		{`'s', 'k', 'a', '{}', headers => '{"X-A": 1}'`, "headers"},
		{`'s', 'k', 'a', '{}', headers => '{"X-A": {"s3cret": [null]}}'`, "headers"},
		{`'s', 'k', 'a', '{}', headers => '{"X-A": null}'`, "headers"},
		{`'s', 'k', 'a', '{}', id => '00000000-0000-0000-0000-000000000000'`, "id"},
		{`'s', 'k', 'a', '{}', id => 'ffffffff-ffff-ffff-ffff-ffffffffffff'`, "id"},
	} {
		_, err := on.Exec(t.Context(), `select samekey.enqueue(`+c.arguments+`)`)
		refused := (*pgconn.PgError)(nil)
		if !errors.As(err, &refused) || refused.Code != "22023" || refused.ColumnName != c.field {
			t.Errorf("%s: %v, want 22023 of column %s", c.arguments, err, c.field)
		}
		if err != nil && strings.Contains(fmt.Sprint(everything(err)), "s3cret") {
			t.Errorf("%s: the error holds a value: %v", c.arguments, everything(err))
		}
	}
	if n := count(t, on, `select count(*) from samekey.outbox`); n != 0 {
		t.Errorf("%d intents were stored", n)
	}
	// What is absent has its default, as the zero value has in Go.
	for _, arguments := range []string{
		`'s', 'k', 'a', '{}', null, null, null, null, null, null, null, null, null, null, null`,
		`'s', 'k', 'a', '{}', '', '', '{}', '', null, null, '', null, false, '', ''`,
	} {
		mustExec(t, on, `select samekey.enqueue(`+arguments+`)`)
	}
	if n := count(t, on, `select count(*) from samekey.outbox join samekey.outbox_queue q using (id) where part = '' and content_type = 'application/json'
		and headers = '{}' and q.ordering_key is null and trace_context is null and requested_by is null and subject is null and q.status = 'pending'`); n != 1 {
		t.Errorf("%d intents, want 1 with the defaults", n)
	}
}

// One row with a time that Go lacks must not hide the page that it is on.
func TestInfiniteTimesDoNotBreakAPage(t *testing.T) {
	on := samekeytest.NewDB(t)
	id, other := insert(t, on, outbox.Intent{Action: "charge_card"}), insert(t, on, outbox.Intent{Action: "charge_card", Deadline: time.Now().Add(time.Hour)})
	for _, at := range []string{"infinity", "-infinity", "0044-03-15 BC", "20000-01-01"} {
		mustExec(t, on, `update samekey.outbox set due_at = '`+at+`', deadline = '`+at+`' where id = '`+id.String()+`'`)
		mustExec(t, on, `update samekey.outbox_queue set due_at = '`+at+`' where id = '`+id.String()+`'`)
		for _, f := range []outbox.Filter{{}, {Status: outbox.StatusPending}, {Action: "charge_card"}} {
			page, err := outbox.List(t.Context(), on, f)
			if err != nil || len(page.Entries) != 2 {
				t.Errorf("%s: %+v: %d entries, %v", at, f, len(page.Entries), err)
			}
		}
		e, err := outbox.Get(t.Context(), on, id)
		if err != nil || e.DueAt.Year() < 1969 || e.DueAt.Year() > 10000 {
			t.Errorf("%s: due at %s, %v", at, e.DueAt, err)
		}
		if strings.HasSuffix(at, "infinity") && e.Deadline != (time.Time{}) {
			t.Errorf("%s: deadline %s, want none", at, e.Deadline)
		}
		if e := get(t, on, other); e.Deadline.IsZero() {
			t.Error("the other's deadline is gone")
		}
	}
	if e := get(t, on, insert(t, on, outbox.Intent{Action: "charge_card"})); e.Deadline != (time.Time{}) {
		t.Errorf("without a deadline: %s", e.Deadline)
	}
}

func mustExec(t testing.TB, on *samekeytest.DB, sql string) {
	t.Helper()
	// Without arguments it is sent as it is, and may hold several statements.
	if _, err := on.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
