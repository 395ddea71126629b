package cause_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/samekey/samekey/internal/cause"
)

func TestShapeLeavesOutValues(t *testing.T) {
	for message, want := range map[string]string{
		"":                   "",
		"connection refused": "connection refused",
		"dial tcp 10.0.0.1:443: connect: connection refused":     "dial tcp #: connect: connection refused",
		"dial tcp [2001:db8::1]:443: i/o timeout":                "dial tcp [#]#: i/o timeout",
		`Post "https://api.example/v1/charges?key=s3cret": EOF`:  "Post *: EOF",
		"customer cus_9f8Hk2 has no card ending in 4242":         "customer # has no card ending in #",
		"no such customer: 'Jane Doe'":                           "no such customer: *",
		"the vendor doesn't know ann.lee@example.com, don't ask": "the vendor doesn't know #, don't ask",
		"order 0190b3a1-7c44-7e6b-9d2f-3f6a1c5e8b70 exists":      "order # exists",
		"checksum deadbeefcafe differs":                          "checksum # differs",
		"ids 1, 2, 3 are locked":                                 "ids # are locked",
		"ids 1 are locked":                                       "ids # are locked",
		"amount=500 currency=EUR":                                "amount=# currency=EUR",
		"at 2026-11-30T15:07:50Z\n\tretry in 30s.":               "at # retry in #.",
		"see https://docs.example/errors and /var/lib/x":         "see # and #",
		"token AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh is not valid":  "token # is not valid",
		"call +49 30 1234567 or (030) 12-34":                     "call # or (#) #",
		"nul\x00 and broken \xff utf-8":                          "nul and broken #",
		"nicht verfügbar für “Müller GmbH”":                      "nicht verfügbar für *",
		"a \"quote without its end":                              "a \"quote without its end",
	} {
		if got := cause.Shape(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func TestShapeIsShortAndValidText(t *testing.T) {
	for _, message := range []string{strings.Repeat("ä", 300), strings.Repeat("wort ", 300), strings.Repeat("é ", 119), "x" + strings.Repeat("漢字 ", 100), "\xff\xfe"} {
		got := cause.Shape(message)
		if len(got) > cause.Limit || !utf8.ValidString(got) || strings.TrimSpace(got) != got {
			t.Errorf("%q: %q", message, got)
		}
	}
}

func FuzzShape(f *testing.F) {
	f.Add("dial tcp 10.0.0.1:443: connect: connection refused")
	f.Add("'\x00\xff` “")
	f.Fuzz(func(t *testing.T, message string) {
		got := cause.Shape(message)
		if len(got) > cause.Limit || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n@0123456789") {
			t.Errorf("%q: %q", message, got)
		}
	})
}

func TestMessageOfAnAnswer(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"code":"card_declined","message":"Your card was declined."}}`: "Your card was declined.",
		`{"message":"no such shop"}`:                                       "no such shop",
		`{"title":"Bad request","detail":"amount is too small"}`:           "amount is too small",
		`{"error":"invalid_grant","error_description":"the code expired"}`: "the code expired",
		`{"error":"invalid_grant"}`:                                        "invalid_grant",
		`{"error":{"error":{"message":"too deep"}}}`:                       "",
		`{"message":5}`: "", `[]`: "", `<html>`: "", ``: "", `null`: "",
	} {
		if got := cause.Message([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
