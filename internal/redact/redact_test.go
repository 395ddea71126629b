package redact_test

import (
	"testing"

	"github.com/samekey/samekey/internal/redact"
)

func TestSecretsThatOverlapOrAreCutShort(t *testing.T) {
	s := redact.Secrets{Shortest: 6}.With("abcdef123", "123456789xyz", "abcdef123456789")
	for body, want := range map[string]string{
		"- abcdef123 -":               "- [redacted] -",
		"- abcdef123456789xyz -":      "- [redacted] -",
		"abcdef123abcdef123":          "[redacted][redacted]",
		"- abcdef12":                  "- [redacted]", // broken off
		"- abcde":                     "- abcde",
		"":                            "",
		"a":                           "a",
		"- abcdef123 - 123456789xyz.": "- [redacted] - [redacted].",
	} {
		if got := string(s.Strike([]byte(body), 100)); got != want {
			t.Errorf("%q is %q, want %q", body, got, want)
		}
	}
}
