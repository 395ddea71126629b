package redact_test

import (
	"errors"
	"fmt"
	"io"
	"net/url"
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

func TestTextIsWholeAndNotCutShort(t *testing.T) {
	s := redact.Secrets{}.With("E1", "user").With("a/b c")
	s.Shortest = 6
	s = s.With("short", "long-secret")
	for text, want := range map[string]string{
		"EOF":                         "EOF",
		"unexpected E":                "unexpected E", // the beginning of a secret
		"E1 is user":                  "[redacted] is [redacted]",
		"a/b c, a%2Fb+c":              "[redacted], [redacted]",
		"short long-secret long-secr": "short [redacted] long-secr",
		"userE1 redacted, uses":       "[redacted][redacted] redacted, uses",
		"":                            "",
	} {
		if got := s.Text(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestURLsOfErrorsAreHidden(t *testing.T) {
	one := &url.Error{Op: "Post", URL: "http://u:pass@one.example/?token=s3cret", Err: io.ErrUnexpectedEOF}
	two := &url.Error{Op: "Get", URL: "http://two.example/a\"b", Err: one}
	for err, want := range map[error]string{
		io.EOF:                                "EOF",
		one:                                   "Post [URL]: unexpected EOF",
		fmt.Errorf("at %s: %w", one.URL, two): "at [URL]: Get [URL]: Post [URL]: unexpected EOF",
		errors.Join(io.EOF, two, fmt.Errorf("%w, %w", io.EOF, one)): "EOF\nGet [URL]: Post [URL]: unexpected EOF\nEOF, Post [URL]: unexpected EOF",
		&url.Error{Op: "Get", Err: io.EOF}:                          `Get "": EOF`,
	} {
		if got := redact.WithoutURLs(err); got != want {
			t.Errorf("%q is %q, want %q", err, got, want)
		}
	}
}
