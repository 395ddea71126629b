package httpvendor

import (
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/samekey/samekey/dispatcher"
)

// With any payload, the path keeps its parts, the query its names, the object its members and the form its fields. The
// rendered request is read back unchanged.
func FuzzAValueStaysWhereItStands(f *testing.F) {
	for _, value := range []string{"", ".", "..", "a/../b", "?x=1", "#", "%2F", "a b", "\"}", "{{.Key}}", "\r\nX: y\r\n\r\n", "é\u2028<&", "\x00", "0", "//host/", `\u0022`} {
		f.Add(value)
	}
	c, err := New(Destination{Name: "a", URL: "https://a.example/base?token=t"})
	if err != nil {
		f.Fatal(err)
	}
	action := Action{Request: "POST /v1/{{.Payload.v}}/end?q={{.Payload.v}}&last=1", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}}
	action.Body = Body{Format: JSON, Template: `{"v": {{.Payload.v}}, "last": 1}`, Fields: []Field{{"w", "{{.Payload.v}}"}}}
	asJSON := c.operation(action)
	action.Body.Format = Form
	asForm := c.operation(action)
	if err := errors.Join(asJSON.mistakes.Err(), asForm.mistakes.Err()); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value string) {
		payload, err := json.Marshal(map[string]string{"v": value})
		if err != nil || !utf8.ValidString(value) {
			t.Skip()
		}
		call := testCall(string(payload))
		for _, e := range []*operation{asJSON, asForm} {
			made, err := e.render(call)
			parts := strings.Split(value, "/")
			between := strings.FieldsFunc(value, func(r rune) bool { return r == '/' || r == '\\' })
			if slices.Contains(parts, "") || slices.Contains(between, ".") || slices.Contains(between, "..") {
				if err == nil {
					t.Fatalf("%q makes %s", value, made.Request)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := parseSending(made.Request)
			if err != nil {
				t.Fatal(err)
			}
			to, err := e.receiver(call, &e.client.account)
			if err != nil {
				t.Fatal(err)
			}
			at, err := to.url(s.path)
			if err != nil {
				t.Fatal(err)
			}
			parts = strings.Split(at.EscapedPath(), "/")
			if len(parts) != 5 || parts[1] != "base" || parts[2] != "v1" || parts[4] != "end" || at.Host != "a.example" {
				t.Fatalf("%q asks for %s", value, at)
			}
			if got, err := url.PathUnescape(parts[3]); err != nil || got != value {
				t.Fatalf("%q is %q in the path (%v)", value, got, err)
			}
			query, err := url.ParseQuery(at.RawQuery)
			if err != nil || len(query) != 3 || query.Get("q") != value || query.Get("last") != "1" || query.Get("token") != "t" {
				t.Fatalf("%q asks with %q (%v)", value, at.RawQuery, err)
			}
			v, w, last := "", "", ""
			if e == asJSON {
				var body struct {
					V, W string
					Last json.Number
				}
				if err := json.Unmarshal(s.body, &body); err != nil {
					t.Fatal(err)
				}
				v, w, last = body.V, body.W, body.Last.String()
			} else {
				fields, err := url.ParseQuery(string(s.body))
				if err != nil || len(fields) != 3 {
					t.Fatalf("%q is the form %q (%v)", value, s.body, err)
				}
				v, w, last = fields.Get("v"), fields.Get("w"), fields.Get("last")
			}
			if v != value || w != value || last != "1" {
				t.Fatalf("%q makes %s", value, s.body)
			}
		}
	})
}
