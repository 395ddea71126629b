package httpvendor

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/vendors.md shows what each preset's rules are, as they are here.
func TestThePageOfVendorsHasTheRulesOfEachPreset(t *testing.T) {
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
			fmt.Fprintf(&want, "| `%s` | %s | %s |\n", p.name, described(rule.Match), rule.Means)
		}
	}
	if !strings.Contains(string(page), want.String()) {
		t.Errorf("docs/vendors.md does not hold this table:\n%s", want.String())
	}
}

// described writes a match as the page does.
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
