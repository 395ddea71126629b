package httpvendor

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

// A success must contain "ok".
func TestRulesOnTheTextOfTheBody(t *testing.T) {
	contains := []Rule{
		{Match: Match{Status: status(200, 200), Contains: []string{"ok", "fine"}}, Outcome: dispatcher.Delivered},
		{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Refused},
	}
	equals := []Rule{
		{Match: Match{Status: status(200, 200), Equals: []string{"ok", "okay"}}, Outcome: dispatcher.Delivered},
		{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Refused},
	}
	for _, tc := range []struct {
		rules []Rule
		body  string
		want  string
	}{
		{contains, "ok", delivered},
		{contains, "it is fine", delivered},
		{contains, "<a>ok</a>", delivered},
		{contains, `{"a":"ok"}`, delivered},
		{contains, "OK", refused},
		{contains, "", refused},
		{contains, "error", refused},
		{contains, strings.Repeat("x", 18) + "ok", delivered},
		{contains, strings.Repeat("x", 20), refused},
		{contains, "ok" + strings.Repeat("x", 100), delivered},
		{contains, strings.Repeat("x", 21), "unknown"}, // the rest would decide
		{contains, strings.Repeat("x", 19) + "ok", "unknown"},
		{contains, strings.Repeat("x", 100_000) + "ok", "unknown"},
		{equals, "ok", delivered},
		{equals, " \tok\r\n", delivered},
		{equals, "\xef\xbb\xbfokay", delivered},
		{equals, "ok.", refused},
		{equals, "", refused},
		{equals, strings.Repeat("x", 100), refused}, // whatever the rest is
		{equals, "ok" + strings.Repeat("x", 100), refused},
		{equals, strings.Repeat(" ", 18) + "ok", delivered},
		{equals, strings.Repeat(" ", 18) + "okay", "unknown"},
		{equals, strings.Repeat(" ", 21), "unknown"},
		{equals, "ok" + strings.Repeat(" ", 100), "unknown"},
	} {
		t.Run(fmt.Sprintf("%.30q in %q", tc.body, tc.rules[0].Contains), func(t *testing.T) {
			server := replying(t, 200, nil, tc.body)
			for _, rest := range [][]Rule{nil, {{Match: Match{Status: status(400, 400), Field: "/a"}, Outcome: dispatcher.Dead}}} { // which reads further
				handler := testHandler(t, Destination{URL: server.URL, Rules: rest}, Action{Rules: tc.rules, Policy: dispatcher.Policy{ResponseCap: 20}})
				answer, err := attempt(t, handler, testCall("{}"), patience)
				if verdict(err) != tc.want || string(answer.Body) != tc.body[:min(len(tc.body), 20)] {
					t.Errorf("is %s (%v) %q, want %s", verdict(err), err, answer.Body, tc.want)
				}
			}
		})
	}
}

func TestAllConditionsOfARuleCount(t *testing.T) {
	rules := []Rule{
		{Match: Match{Status: status(400, 499), Header: "X-Kind", Values: []string{"soft"}, Contains: []string{"busy"}}, Outcome: dispatcher.Retry},
		{Match: Match{Field: "/code", Values: []string{"7"}, Contains: []string{"declined"}}, Outcome: dispatcher.Refused},
	}
	for _, tc := range []struct {
		status     int
		kind, body string
		want       string
	}{
		{409, "soft", "busy", retry}, {409, "hard", "busy", "stuck"}, {409, "soft", "idle", "stuck"}, {500, "soft", "busy", "unknown"},
		{400, "", `{"code":7,"text":"declined"}`, refused}, {400, "", `{"code":8,"text":"declined"}`, "dead"}, {400, "", `{"code":7}`, "dead"}, {400, "", "declined", "dead"},
	} {
		server := replying(t, tc.status, map[string]string{"X-Kind": tc.kind}, tc.body)
		_, err := attempt(t, testHandler(t, Destination{URL: server.URL}, Action{Rules: rules}), testCall("{}"), patience)
		if verdict(err) != tc.want {
			t.Errorf("%d %s %s: is %s (%v), want %s", tc.status, tc.kind, tc.body, verdict(err), err, tc.want)
		}
	}
}

// The text is that after decompression, before secrets are removed, and not that of an answer that broke off.
func TestTextOfZippedSecretAndBrokenBodies(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write([]byte("status: ok"))
	_ = w.Close()
	rules := []Rule{
		{Match: Match{Status: status(200, 200), Contains: []string{"status: ok", "sk_live_1"}}, Outcome: dispatcher.Delivered},
		{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Dead},
	}
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"gzip": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped.Bytes())
		}, delivered},
		"a secret": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("for sk_live_1")) }, delivered},
		"broken before it": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("status"))
		}, "unknown"},
		"broken after it": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("status: ok"))
		}, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := secureServer(t, false, tc.serve)
			answer, err := attempt(t, testHandler(t, Destination{URL: server.URL, CAFile: caFile(t, server), Secrets: []string{"sk_live_1"}}, Action{Rules: rules}), testCall("{}"), patience)
			if verdict(err) != tc.want || strings.Contains(string(answer.Body), "sk_live") {
				t.Errorf("is %s (%v) %q, want %s", verdict(err), err, answer.Body, tc.want)
			}
		})
	}
}

func TestLookupRulesOnTheTextOfTheBody(t *testing.T) {
	lookup := &Lookup{Request: "GET /log?key={{.Key}}", Rules: []Rule{
		{Match: Match{Status: status(200, 200), Contains: []string{"<key>{{.Key}}</key>"}}, Outcome: dispatcher.Delivered},
		{Match: Match{Status: status(200, 200), Contains: []string{"{{.Reference}}"}}, Outcome: dispatcher.Refused}, // empty: matches nothing
		{Match: Match{Status: status(200, 200), Equals: []string{"<log/>"}}, Outcome: dispatcher.Absent},
	}}
	for _, tc := range []struct{ body, want string }{
		{"<log><key>" + deliveryKey.String() + "</key></log>", delivered}, {"<log/>\n", "absent"}, {"<log><key>x</key></log>", "unknown"},
		{strings.Repeat("x", 100_000), "unknown"},
	} {
		server := replying(t, 200, nil, tc.body)
		_, delivery, err := testClient(t, Destination{URL: server.URL}).handler(Action{Request: "POST /", Lookup: lookup, Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		call := testCall("{}")
		outcome, err := delivery.Lookup(ctx, call, call.Payload)
		cancel()
		if err != nil || outcome.Kind() != tc.want {
			t.Errorf("%.30q is %v, %v, want %s", tc.body, outcome, err, tc.want)
		}
	}
}

// A rule for a part of what is delivered in any case would be a check that checks nothing.
func TestTextRuleThatChangesNothingIsRefused(t *testing.T) {
	ok := Rule{Match: Match{Status: status(200, 201), Contains: []string{"ok"}}, Outcome: dispatcher.Delivered}
	other := func(low, high int) Rule {
		return Rule{Match: Match{Status: status(low, high)}, Outcome: dispatcher.Dead}
	}
	const says = "changes nothing: an answer of its status without the text is delivered as well"
	for name, tc := range map[string]struct {
		dest      Destination
		rules     []Rule
		delivered Statuses
		want      string
	}{
		"alone":                     {rules: []Rule{ok}, want: "Rules[1]: " + says},
		"of the destination":        {dest: Destination{Rules: []Rule{other(400, 400), ok}}, rules: []Rule{other(500, 500)}, want: "rule 2 of its destination " + says},
		"a rule for others before":  {rules: []Rule{other(200, 200), ok}, want: "Rules[2]: " + says},
		"a rule for others after":   {rules: []Rule{ok, other(200, 299)}},
		"of the destination, after": {dest: Destination{Rules: []Rule{other(201, 201)}}, rules: []Rule{ok}},
		"a rule for other statuses": {rules: []Rule{ok, other(202, 299)}, want: "Rules[1]: " + says},
		"not delivered otherwise":   {rules: []Rule{ok}, delivered: status(202, 202)},
		"delivered in part":         {rules: []Rule{ok}, delivered: status(200, 200)},
		"of any status":             {rules: []Rule{{Match: Match{Contains: []string{"ok"}}, Outcome: dispatcher.Delivered}}, want: "Rules[1].Status: missing: a text alone would deliver any answer"},
		"of any status, with field": {rules: []Rule{{Match: Match{Field: "/a", Contains: []string{"ok"}}, Outcome: dispatcher.Refused}}},
		"must be JSON otherwise":    {dest: Destination{JSONAnswers: true}, rules: []Rule{ok}},
		"a field of its status":     {dest: Destination{Rules: []Rule{{Match: Match{Status: status(201, 201), Field: "/a"}, Outcome: dispatcher.Dead}}}, rules: []Rule{ok}},
		"a field of another status": {dest: Destination{Rules: []Rule{{Match: Match{Status: status(400, 400), Field: "/a"}, Outcome: dispatcher.Dead}}}, rules: []Rule{ok}, want: "Rules[1]: " + says},
		"refused":                   {rules: []Rule{{Match: ok.Match, Outcome: dispatcher.Refused}}},
		"no text":                   {rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}},
	} {
		tc.dest.URL = "https://api.example.com"
		_, _, err := testClient(t, tc.dest).handler(Action{Request: "POST /", Rules: tc.rules, Delivered: tc.delivered, Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
		if got := fmt.Sprint(err); tc.want == "" && err != nil || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}
