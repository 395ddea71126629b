package schema_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// Readers copy the grants from the page.
func TestGrantsInDocsMatchCode(t *testing.T) {
	const page, head, tail = "../docs/schema.md", "schema.Grants -->\n```sql\n", "```\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), head)
	got, after, closed := strings.Cut(rest, tail)
	if !found || !closed {
		t.Fatalf("%s has no block of grants", page)
	}
	want := schema.Grants(schema.Roles{App: "orders", Worker: "orders_worker", Operator: "orders_operator", Approver: "orders_approver"})
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("%s: go test ./schema -update\n%s", page, firstDifference(got, want))
	}
	if err := os.WriteFile(page, []byte(before+head+want+tail+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Readers copy the calls of samekey.enqueue from the page.
func TestEnqueueCallsInDocsRun(t *testing.T) {
	text, err := os.ReadFile("../docs/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "## Write an intent from SQL")
	_, rest, block := strings.Cut(rest, "```sql\n")
	calls, _, closed := strings.Cut(rest, "```")
	if !found || !block || !closed {
		t.Fatal("the page has no calls of samekey.enqueue")
	}
	db := samekeytest.NewDB(t)
	execSQL(t, db, calls)
	if n := one[int](t, db.Pool, `select count(*)::int from samekey.outbox`); n != strings.Count(calls, "samekey.enqueue(") {
		t.Errorf("%d intents of %d calls", n, strings.Count(calls, "samekey.enqueue("))
	}
}

// Readers copy the acts from the page.
func TestActsInDocsRun(t *testing.T) {
	text, err := os.ReadFile("../docs/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "## What people do, in SQL")
	_, rest, block := strings.Cut(rest, "```sql\n")
	acts, rest, closed := strings.Cut(rest, "```")
	_, rest, many := strings.Cut(rest, "```sql\n")
	bulk, _, ended := strings.Cut(rest, "```")
	if !found || !block || !closed || !many || !ended {
		t.Fatal("the page has no acts in SQL")
	}
	db := samekeytest.NewDB(t)
	for _, id := range regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).FindAllString(acts, -1) {
		execSQL(t, db, `select samekey.enqueue('t', $1::text, 'charge_card', '{}', id => $1::uuid)`, id)
	}
	execSQL(t, db, `update samekey.outbox_queue set status = 'dead'`)
	execSQL(t, db, acts)
	execSQL(t, db, bulk)
	if n := one[int](t, db.Pool, `select count(*)::int from samekey.outbox_history where db_user = session_user and actor = 'ada'`); n != 2 {
		t.Errorf("%d acts of intents in the history, want 2", n)
	}
	if n := one[int](t, db.Pool, `select count(*)::int from samekey.pauses where paused_db_user = session_user`); n != 1 {
		t.Errorf("%d pauses, want 1", n)
	}
	// The table of functions on the page has all acts, with their arguments.
	for _, f := range functions(t, db.Pool) {
		if who := functionRights[f.name]; !strings.Contains(who, "operator") && who != "approver" || strings.HasPrefix(who, "app worker") {
			continue
		}
		if want := "`" + f.name + "(" + f.arguments + ")`"; !strings.Contains(string(text), want) {
			t.Errorf("the page does not have %s", want)
		}
	}
}
