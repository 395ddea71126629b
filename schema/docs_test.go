package schema_test

import (
	"os"
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
