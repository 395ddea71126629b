package schema_test

import (
	"os"
	"strings"
	"testing"

	"github.com/samekey/samekey/schema"
)

// People copy the grants from the page.
func TestTheGrantsOnTheDocsPageAreThose(t *testing.T) {
	const page, head, tail = "../docs/schema.md", "\"orders_worker\") -->\n```sql\n", "```\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), head)
	got, after, closed := strings.Cut(rest, tail)
	if !found || !closed {
		t.Fatalf("%s has no block of grants", page)
	}
	want := schema.Grants("orders", "orders_worker")
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
