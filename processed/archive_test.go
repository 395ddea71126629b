package processed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// setupArchive has a function of the application's that keeps what it gets.
func setupArchive(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	b.exec(`create schema shop`)
	b.exec(`create table shop.archive (n bigint generated always as identity, got jsonb not null, who text not null default current_user)`)
	role, _ := dbtest.Login(t, b.db)
	b.exec(`create function shop.archive(got jsonb) returns void language plpgsql security definer set search_path = shop, pg_temp as
		$$ begin insert into archive (got) values (got); end $$`)
	name := pgx.Identifier{role}.Sanitize()
	b.exec(`grant usage on schema shop to ` + name)
	b.exec(`grant insert on shop.archive to ` + name)
	b.exec(`alter function shop.archive(jsonb) owner to ` + name)
	b.exec(`revoke execute on function shop.archive(jsonb) from public`)
	return b
}

var archiving = processed.Pruning{ArchiveFunction: "shop.archive"}

// past makes all records and intents old enough to be pruned.
func (b *bundle) past() {
	b.t.Helper()
	b.exec(`update samekey.processed_events set expires_at = clock_timestamp() - interval '1 second'`)
	b.exec(`update samekey.outbox_history set at = clock_timestamp() - interval '80 hours'`)
}

type archived struct {
	Intents []map[string]any `json:"intents"`
	Records []map[string]any `json:"records"`
}

// archived are the arguments of the calls of the function.
func (b *bundle) archived() (calls []archived) {
	b.t.Helper()
	rows, err := b.db.Query(b.t.Context(), `select got::text from shop.archive order by n`)
	if err != nil {
		b.t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	for _, text := range texts {
		var call archived
		if err := json.Unmarshal([]byte(text), &call); err != nil {
			b.t.Fatal(err)
		}
		calls = append(calls, call)
	}
	return calls
}

func TestArchiveGetsWhatIsPruned(t *testing.T) {
	b := setupArchive(t)
	req := request(t, "k1", `1`)
	req.Subject = "customer/1"
	b.mustPlace(req, order{ID: "a", Amount: 5})
	b.finish("k1", "", "null")
	b.exec(`update samekey.outbox_history set response = '{"id":"ch_1"}', response_type = 'application/json', reference = 'ch_1', code = '201'`)
	b.exec(`update samekey.outbox_sends set request = '\xff00'`)
	if _, err := processed.Steps(t.Context(), b.db.Pool, request(t, "k2", `2`), func(ctx context.Context, op *processed.Operation) (string, error) {
		return processed.Step(ctx, op, "note", func(context.Context, pgx.Tx) (string, error) { return "noted", nil })
	}); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error { // without a record
		_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key(t, "k3"), Action: "send_mail", Payload: []byte("no JSON"), ContentType: "text/plain"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.finish("k3", "", "null")
	b.past()
	want := fmt.Sprint(b.count("samekey.outbox"), b.count("samekey.processed_events"))
	if done := b.prune(archiving); done != (processed.Pruned{Records: 2, Intents: 2}) || want != "2 2" {
		t.Fatalf("pruned %+v", done)
	}
	if records, intents := b.left(); records+intents != "" {
		t.Errorf("left: records %q, intents %q", records, intents)
	}
	calls := b.archived()
	if len(calls) != 2 || len(calls[0].Intents) != 1 || len(calls[0].Records) != 2 || len(calls[1].Intents) != 1 || len(calls[1].Records) != 0 {
		t.Fatalf("the function got %+v", calls)
	}
	text, _ := json.Marshal(calls)
	for _, part := range []string{`"key":"k1"`, `"subject":"customer/1"`, `"status":"delivered"`, `"action":"charge_card"`, `"payload":{"amount":5,"id":"a"}`,
		`"payload_base64":null`, `"response":{"id":"ch_1"}`, `"reference":"ch_1"`, `"code":"201"`, `"request_base64":"/wA="`, `"event":"attempt"`,
		`"name":"note"`, `"result":"noted"`, `"payload_base64":"bm8gSlNPTg=="`, `"erased_at":null`, `"payload_hash":"`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
}

func TestFailedArchiveKeepsItsRows(t *testing.T) {
	b := setupArchive(t)
	b.mustPlace(request(t, "k1", `1`), order{ID: "a", Amount: 5})
	b.finish("k1", "", "null")
	b.past()
	b.exec(`create function shop.refuse() returns trigger language plpgsql as $$ begin raise 'the archive is full'; end $$`)
	b.exec(`create constraint trigger refuse after insert on shop.archive deferrable initially immediate for each row execute function shop.refuse()`)
	for _, when := range []string{"immediate", "deferred"} { // in the function, and at the COMMIT
		b.exec(`drop trigger refuse on shop.archive`)
		b.exec(`create constraint trigger refuse after insert on shop.archive deferrable initially ` + when + ` for each row execute function shop.refuse()`)
		done, err := processed.Prune(t.Context(), b.db.Pool, archiving)
		failed := (*processed.ArchiveError)(nil)
		if err == nil || errors.As(err, &failed) != (when == "immediate") || done != (processed.Pruned{}) {
			t.Errorf("%s: %+v, %v", when, done, err)
		}
		if records, intents := b.left(); records != "k1" || intents != "k1" || len(b.archived()) != 0 {
			t.Errorf("%s: left: records %q, intents %q", when, records, intents)
		}
	}
	b.exec(`drop trigger refuse on shop.archive`)
	if done := b.prune(archiving); done != (processed.Pruned{Records: 1, Intents: 1}) || len(b.archived()) != 1 {
		t.Errorf("corrected: %+v, %d calls", done, len(b.archived()))
	}
}

func TestArchiveIsCalledInBoundedParts(t *testing.T) {
	b := setupArchive(t)
	large := strings.Repeat("x", 1_000_000)
	_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k1", `1`), func(ctx context.Context, tx pgx.Tx) (int, error) {
		for i := range 6 {
			if _, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Part: fmt.Sprint("large ", i), Payload: []byte(large), ContentType: "text/plain"}); err != nil {
				return 0, err
			}
		}
		for i := range 1001 {
			if _, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Part: fmt.Sprint("small ", i), Payload: []byte("x"), ContentType: "text/plain"}); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.exec(`delete from samekey.outbox_queue`)
	b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, final_status) select id, 'attempt', 'delivered', 'delivered' from samekey.outbox`)
	b.past()
	if done := b.prune(archiving); done != (processed.Pruned{Records: 1, Intents: 1007}) {
		t.Fatalf("pruned %+v", done)
	}
	rows, seen := 0, map[any]bool{}
	for i, call := range b.archived() {
		bytes := 0
		for _, in := range call.Intents {
			seen[in["id"]] = true
			bytes += len(in["payload_base64"].(string)) * 3 / 4
		}
		n := len(call.Intents) + len(call.Records)
		rows += n
		if n > 500 || bytes > 4<<20 {
			t.Errorf("call %d has %d rows, %d bytes", i, n, bytes)
		}
	}
	if rows != 1008 || len(seen) != 1007 {
		t.Errorf("%d rows were handed over, %d intents", rows, len(seen))
	}
}

// A number can be short as text and very long as jsonb.
func TestArchiveKeepsBytesThatJSONBCannotHold(t *testing.T) {
	b := setupArchive(t)
	for content, want := range map[string]string{
		`{"a":1.50}`: `{"a": 1.50}`, `"text"`: `"text"`, `{"a":1e5}`: `{"a": 100000}`,
		`{"a":1e5000}`: "", `{"a":"\u0000"}`: "", `{"a":"\ud800"}`: "", "\xff": "", ``: "", `{"a":1e999999999}`: "",
		strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000): "",
	} {
		got := dbtest.Value[*string](t, b.db, `select samekey.archive_json($1::bytea)::text`, []byte(content))
		if want == "" && got != nil || want != "" && (got == nil || *got != want) {
			t.Errorf("%.40q is %v, want %q", content, got, want)
		}
	}
}

func TestArchiveOfAnErasedIntentHasNoContent(t *testing.T) {
	b := setupArchive(t)
	b.mustPlace(request(t, "k1", `1`), order{ID: "a", Amount: 5})
	b.finish("k1", "", "null")
	if _, err := outbox.Erase(t.Context(), b.db.Pool, outbox.Content{Scope: key(t, "k1").Scope}, outbox.By{Actor: "dpo", Reason: "request 7"}); err != nil {
		t.Fatal(err)
	}
	b.past()
	b.prune(archiving)
	calls := b.archived()
	if len(calls) != 1 || len(calls[0].Intents) != 1 {
		t.Fatalf("the function got %+v", calls)
	}
	in, record := calls[0].Intents[0], calls[0].Records[0]
	if in["erased_at"] == nil || in["payload"] != nil || in["payload_base64"] != nil || record["erased_at"] == nil || record["response"] != nil || record["response_base64"] != nil {
		t.Errorf("the function got %+v", calls)
	}
}

func TestArchiveFunctionThatRunsWithForeignRightsIsRefused(t *testing.T) {
	b := setupArchive(t)
	b.mustPlace(request(t, "k1", `1`), order{ID: "a", Amount: 5})
	b.finish("k1", "", "null")
	b.past()
	for change, want := range map[string]string{
		"alter function shop.archive(jsonb) security invoker":          "security definer",
		"alter function shop.archive(jsonb) reset search_path":         "search_path",
		"alter function shop.archive(jsonb) owner to current_user":     "a superuser",
		"alter function shop.archive(jsonb) rename to archive_no_more": "create it",
		"grant execute on function shop.archive(jsonb) to public":      "every role may call",
		"select 1": "",
	} {
		how := archiving
		if want == "" {
			how.ArchiveFunction, want = "archive; drop table orders", "not the name of an SQL function"
		}
		undo := dbtest.Value[string](t, b.db, `select pg_get_functiondef(oid) from pg_proc where pronamespace = 'shop'::regnamespace and proname = 'archive'`)
		owner := dbtest.Value[string](t, b.db, `select quote_ident(pg_get_userbyid(proowner)) from pg_proc where pronamespace = 'shop'::regnamespace and proname = 'archive'`)
		b.exec(change)
		done, err := processed.Prune(t.Context(), b.db.Pool, how)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Pruning.ArchiveFunction") || done != (processed.Pruned{}) {
			t.Errorf("%s: %+v, %v, want %q", change, done, err, want)
		}
		b.exec(`drop function if exists shop.archive(jsonb), shop.archive_no_more(jsonb)`)
		b.exec(undo)
		b.exec(`alter function shop.archive(jsonb) owner to ` + owner)
		b.exec(`revoke execute on function shop.archive(jsonb) from public`)
	}
	if done := b.prune(archiving); done.Records != 1 {
		t.Errorf("pruned %+v", done)
	}
}

// The function on the page works as it stands, but for the role's name and the owner.
func TestArchiveFunctionOnThePageWorks(t *testing.T) {
	page, err := os.ReadFile("../docs/retention.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```sql\n(create function shop.archive.*?)```").FindSubmatch(page)
	b := setupArchive(t)
	owner := dbtest.Value[string](t, b.db, `select quote_ident(pg_get_userbyid(proowner)) from pg_proc where pronamespace = 'shop'::regnamespace and proname = 'archive'`)
	b.exec(`drop function shop.archive(jsonb)`)
	b.exec(`create table shop.archived_intents (id uuid primary key, body jsonb)`)
	b.exec(`create table shop.archived_records (scope text, key text, body jsonb)`)
	b.exec(`grant select, insert on shop.archived_intents, shop.archived_records to ` + owner)
	if _, err := b.db.Exec(t.Context(), strings.ReplaceAll(string(shown[1]), " to worker;", " to "+owner+";"), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	b.exec(`alter function shop.archive(jsonb) owner to ` + owner)
	b.mustPlace(request(t, "k1", `1`), order{ID: "a", Amount: 5})
	b.finish("k1", "", "null")
	b.past()
	if done := b.prune(archiving); done != (processed.Pruned{Records: 1, Intents: 1}) {
		t.Errorf("pruned %+v", done)
	}
	if intents, records := b.count("shop.archived_intents"), b.count("shop.archived_records where key = 'k1'"); intents != 1 || records != 1 {
		t.Errorf("archived %d intents, %d records", intents, records)
	}
}
