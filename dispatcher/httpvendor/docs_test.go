package httpvendor

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/httpstatus"
)

// docs/vendors.md shows the rules of each preset.
func TestDocsHaveTheRulesOfPresets(t *testing.T) {
	page, err := os.ReadFile("../../docs/vendors.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| preset | answer | the attempt is |\n| --- | --- | --- |\n")
	for _, p := range []struct {
		name string
		dest Destination
	}{
		{"stripe", Stripe()}, {"adyen", Adyen()}, {"paypal", PayPal()}, {"square", Square()}, {"checkout", Checkout()},
		{"resend", Resend()}, {"generic", Generic()}, {"mail", Mail()}, {"webhooks", StandardWebhooks()},
	} {
		if p.dest.JSONAnswers {
			fmt.Fprintf(&want, "| `%s` | a success whose body is not JSON | unknown |\n", p.name)
		}
		for _, rule := range p.dest.Rules {
			fmt.Fprintf(&want, "| `%s` | %s | %s |\n", p.name, described(rule.Match), kind(rule.Outcome))
		}
	}
	if !strings.Contains(string(page), want.String()) {
		t.Errorf("docs/vendors.md does not hold this table:\n%s", want.String())
	}
}

// described formats a match as the page does.
func described(m Match) string {
	var parts []string
	for _, s := range m.Status {
		if s[0] == s[1] {
			parts = append(parts, fmt.Sprint(s[0]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", s[0], s[1]))
		}
	}
	text := strings.Join(parts, ", ")
	if name := m.Header + m.Field; name != "" {
		text += fmt.Sprintf(" with `%s`", name)
	}
	if len(m.Values) > 0 {
		text += " " + strings.Join(m.Values, " or ")
	}
	return text
}

// The package comment and docs/worker.md list the statuses as the code's table does.
func TestDocsHaveTheStatuses(t *testing.T) {
	lists := map[httpstatus.Effect][]string{}
	for _, row := range httpstatus.Table {
		text := fmt.Sprint(row.From)
		if row.To != row.From {
			text = fmt.Sprintf("%d-%d", row.From, row.To)
		}
		lists[row.Effect] = append(lists[row.Effect], text)
	}
	for _, file := range []string{"doc.go", "../../docs/worker.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for effect, list := range lists {
			want := regexp.MustCompile(`(?m)(^//\t|\| |[a-z] )` + strings.Join(list, ", ") + `( |\)|$)`)
			if !want.Match(text) {
				t.Errorf("%s does not list what is %s: %s", file, effect, strings.Join(list, ", "))
			}
		}
	}
}
