package httpvendor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

// wantMistakes compares all mistakes, in order.
func wantMistakes(t *testing.T, err error, item string, want ...string) {
	t.Helper()
	text := ""
	if err != nil {
		text = err.Error()
	}
	var lines []string
	for _, line := range want {
		lines = append(lines, "samekey: "+item+line)
	}
	if text != strings.Join(lines, "\n") {
		t.Errorf("the mistakes are\n%s\nwant\n%s", text, strings.Join(lines, "\n"))
	}
	if strings.Contains(text, "s3cret") {
		t.Error("a value is printed")
	}
}

func TestMistakesInDestinations(t *testing.T) {
	const public = "https://api.example.com"
	hooks := func(change func(*Destination)) Destination {
		dest := StandardWebhooks()
		change(&dest)
		return dest
	}
	const each = "each endpoint has its own, see package outbox/endpoints"
	for _, c := range []struct {
		dest Destination
		want []string
	}{
		{Destination{URL: public}, nil},
		{Destination{
			URL: "ftp://user:s3cret@host", Vendor: keyIn("bad header"), AllowPrivate: make([]netip.Prefix, 1), Rules: []Rule{{}},
			Auth: Auth{Bearer: "s3cret", User: "s3cret"}, CAFile: "/no/such/file", Proxy: "socks5://u:s3cret@h",
			Headers: map[string]string{"Host": "s3cret", "A\nB": "s3cret", "X": "s3cret\n", "x": "s3cret", "Y": "s3cret", "y": "s3cret"},
		}, []string{
			"URL: must begin with https:// or http://", `Vendor.Key.Name: "bad header" is not a valid header name`,
			`Headers["A\nB"]: "A\nB" is not a valid header name`, `Headers["Host"]: "Host" belongs to the connection and cannot be set`,
			`Headers["X"]: the value of "X" has a control character at byte 6`, `Headers["x"]: set twice`, `Headers["y"]: set twice`,
			"Auth: set only one of Bearer, User, Header and OAuth2",
			"Rules[1].Outcome: missing: use one of delivered, refused, accepted, retry, denied, dead, unknown, stuck, gone",
			"AllowPrivate[1]: not a valid range: use a range such as 10.0.0.0/8 or fd00::/8",
			"CAFile: open /no/such/file: no such file or directory", "Proxy: must begin with https:// or http://"}},
		{Destination{}, []string{"URL: is missing"}},
		{Destination{URL: "http://127.0.0.1:9", Proxy: "http://10.0.0.1"}, []string{
			"URL: leads to an address that is not public: add its range to AllowPrivate if it is intended", "Proxy: leads to an address that is not public"}},
		{Destination{URL: public, Auth: Auth{Header: "X"}}, []string{"Auth.Value: missing: Header needs a value"}},
		{Destination{URL: public, Auth: Auth{Value: "s3cret"}}, []string{`Auth: "" is not a valid header name`}},
		{Destination{URL: public, Reference: "id"}, []string{`Reference: "id" is not a JSON Pointer: it must begin with /, such as /id`}},
		{Destination{URL: public, Auth: Auth{Bearer: "s3cret\n"}}, []string{`Auth: the value of "Authorization" has a control character at byte 13`}},
		{Destination{URL: public, Auth: Auth{Header: "idempotency-key", Value: "s3cret"}}, []string{"Auth.Header: carries the delivery key and cannot be set"}},
		{Destination{URL: public, Auth: Auth{Bearer: "s3cret"}, Headers: map[string]string{"authorization": "x"}}, []string{"Auth: sets a header that Headers also sets"}},
		{Destination{URL: public, Headers: map[string]string{"idempotency-key": "x"}}, []string{`Headers["idempotency-key"]: carries the delivery key and cannot be set`}},
		{Destination{URL: public, Vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInMessageID}}}, []string{
			"Vendor.Key.Place: not KeyInMessageID: an HTTP request has no Message-ID"}},
		{Destination{URL: public, WebhookSecrets: []string{webhookSecret, "s3cret"}}, []string{"WebhookSecrets: number 2 is not whsec_ and the base64 of 24 to 64 bytes"}},
		{Destination{URL: public, WebhookSecrets: []string{webhookSecret}, Vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}}}, []string{
			"WebhookSecrets: needs the key in a header, by which the receiver recognizes a repeated webhook: see Vendor.Key"}},
		{StandardWebhooks(), nil},
		{StandardWebhooks(webhookSecret), []string{"URL: is missing"}},
		{hooks(func(dest *Destination) { dest.URL, dest.Endpoint = public, "" }), []string{
			"WebhookSecrets: missing: a receiver accepts only what is signed"}},
		{hooks(func(dest *Destination) {
			dest.Endpoint, dest.Auth.Bearer, dest.WebhookSecrets = "{{.Part", "s3cret", []string{webhookSecret}
		}), []string{
			"Endpoint: is not a template: 1: unclosed action", "Auth: would be sent to every endpoint: " + each,
			"WebhookSecrets: would sign for every endpoint, so each could impersonate the sender to the others: " + each}},
		{hooks(func(dest *Destination) { dest.Headers = map[string]string{"authorization": "Bearer s3cret"} }), []string{
			`Headers["Authorization"]: would be sent to every endpoint: ` + each}},
	} {
		c.dest.Name = "bank"
		client, err := New(c.dest)
		wantMistakes(t, err, `destination "bank": `, c.want...)
		client.Close()
		d := dispatcher.New(nil, nil)
		client.register(d, "look", Action{Request: "GET /", Policy: dispatcher.Policy{Class: dispatcher.Read, Deadline: patience}})
		if got := d.Check(); (got == nil) != (err == nil) {
			t.Errorf("New returns %v, but Check %v", err, got)
		}
	}
	_, err := New(Destination{URL: public})
	wantMistakes(t, err, `destination "": `, "Name: missing")
}

func TestMistakesInActions(t *testing.T) {
	inBody := dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "k"}}
	once, idempotent, read := dispatcher.NonIdempotentWrite, dispatcher.IdempotentWrite, dispatcher.Read
	json := func(template string) Body { return Body{Format: JSON, Template: template} }
	found := Rule{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}
	for _, c := range []struct {
		class  dispatcher.Class
		vendor dispatcher.Vendor
		action Action
		want   []string
	}{
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /"}, nil},
		{idempotent, dispatcher.Vendor{}, Action{
			Request: "FETCH /x", Headers: map[string]string{"Idempotency-Key": "mine"},
			Delivered: Statuses{{100, 299}}, Refused: Statuses{{402, 402}, {299, 299}}, Retry: Statuses{{402, 400}},
		}, []string{"Request: must begin with one of DELETE, GET, HEAD, PATCH, POST, PUT",
			`Headers["Idempotency-Key"]: carries the delivery key and cannot be set`,
			"Delivered: 100-299 is not a range within 200-599", "Retry: 402-400 is not a range within 200-599"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Refused: status(402, 402), Accepted: status(402, 402)}, []string{
			"Accepted: 402 is also in Refused"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Refused: Statuses{{200, 201}, {402, 402}}}, []string{
			"Refused: 200 is also in Delivered by default: set Delivered too"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Retry: status(409, 409)}, []string{
			"Retry: not allowed for NonIdempotentWrite: only a 429 proves that the vendor did not act"}},
		{read, dispatcher.Vendor{}, Action{Request: "PUT /"}, []string{"Request: PUT is not allowed for Read: use the class of a write"}},
		{idempotent, dispatcher.Vendor{}, Action{}, []string{"Request: is missing"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /{{.Payload"}, []string{"Request: is not a template: 1: unclosed action"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: `POST /{{define "x"}}{{end}}`}, []string{"Request: must not define templates"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: `POST /{{template "x"}}`}, []string{"Request: must not call templates"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Body: Body{Template: "{}"}}, []string{
			"Body.Format: missing: a body with Template or Fields is json or form"}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Body: json("{{exec}}")}, []string{
			`Body.Template: is not a template: 1: function "exec" not defined`}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Body: json(`{"a\"b": {{.Key}}, "c": "order {{.Payload.id}}"}`)}, []string{
			`Body.Template: has a value inside quotes: a value is written as JSON with its own quotes; join texts with {{printf "%s" ..}}`}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Body: json(`{"a": "x{{if .Key}}"}{{else}}{{.Key}}"}{{end}}`)}, []string{
			`Body.Template: has a value inside quotes: a value is written as JSON with its own quotes; join texts with {{printf "%s" ..}}`}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "POST /", Body: Body{Format: "xml"}}, []string{`Body.Format: "xml" is not one of json and form`}},
		{idempotent, dispatcher.Vendor{}, Action{Request: "GET /", Body: Body{Format: JSON}}, []string{"Body: not allowed: a GET has no body"}},
		{idempotent, inBody, Action{Request: "GET /"}, []string{"Request: a GET has no body for the vendor's key"}},
		{idempotent, inBody, Action{Request: "POST /", Body: Body{Format: JSON, Fields: []Field{{"k", "v"}, {"x", "v"}, {"x", "v"}, {"", "v"}, {"y", "{{"}}}}, []string{
			`Body.Fields["k"]: carries the delivery key and cannot be set`, `Body.Fields["x"]: set twice`, "Body.Fields[4]: has no name",
			`Body.Fields["y"]: is not a template: 1: unclosed action`}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Rules: []Rule{
			{Match: Match{Status: status(409, 409)}, Outcome: dispatcher.Retry}, {Outcome: dispatcher.Dead}, {Match: Match{Status: status(1, 2)}, Outcome: dispatcher.Absent},
			{Match: Match{Header: "X", Field: "/a"}, Outcome: dispatcher.Dead}, {Match: Match{Values: []string{"x"}, Status: status(400, 400)}, Outcome: dispatcher.Dead},
			{Match: Match{Field: "a"}, Outcome: dispatcher.Dead}, {Match: Match{Header: "a b"}, Outcome: dispatcher.Dead},
			{Match: Match{Status: status(409, 409)}, Outcome: func(r dispatcher.Response) dispatcher.Outcome {
				if r.Code == "" {
					return dispatcher.Unknown(r)
				}
				return dispatcher.Retry(r)
			}},
		}}, []string{
			"Rules[1].Outcome: retry is not allowed for a class that forbids repeats: only a 429 proves that the vendor did not act",
			"Rules[2]: matches every answer: set Status, Header, Field, Contains or Equals",
			"Rules[3].Outcome: absent is not allowed here: use one of delivered, refused, accepted, retry, denied, dead, unknown, stuck, gone",
			"Rules[3].Status: 1-2 is not a range within 200-599",
			"Rules[4].Header: not allowed with Field: Values belong to one of them", "Rules[5].Values: not allowed without Header or Field",
			`Rules[6].Field: "a" is not a JSON Pointer: it must begin with /, such as /error/code`, `Rules[7].Header: "a b" is not a valid header name`,
			"Rules[8].Outcome: not a constructor of package dispatcher: use one of delivered, refused, accepted, retry, denied, dead, unknown, stuck, gone"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", RetryAfter: "error", Rules: []Rule{
			{Match: Match{Contains: []string{"a"}, Equals: []string{"b"}}, Outcome: dispatcher.Dead}, {Match: Match{Contains: []string{"a", ""}}, Outcome: dispatcher.Dead},
			{Match: Match{Equals: []string{""}}, Outcome: dispatcher.Dead}, {Match: Match{Equals: []string{"ok\n"}}, Outcome: dispatcher.Dead},
			{Match: Match{Status: status(200, 205), Contains: []string{"ok"}}, Outcome: dispatcher.Delivered},
		}}, []string{
			"Rules[1].Contains: not allowed with Equals", "Rules[2].Contains: has an empty text, which every body contains",
			"Rules[3].Equals: has an empty text: a rule without it matches every other body", "Rules[4].Equals: has a text with white space around it, which is not compared: remove it",
			`RetryAfter: "error" is not a JSON Pointer: it must begin with /, such as /error/retry_in`,
			"Rules[5]: changes nothing: an answer of its status without the text is delivered as well. Add a rule for those answers after it"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Policy: dispatcher.Policy{ResponseCap: 4}, Rules: []Rule{
			{Match: Match{Contains: []string{"okay", "fine!"}}, Outcome: dispatcher.Refused}}}, []string{
			"ResponseCap: 4 is too short: a rule looks for a text of 5 bytes in as much of the body"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Policy: dispatcher.Policy{ResponseCap: -1}, Lookup: &Lookup{Request: "GET /", Rules: []Rule{
			{Match: Match{Contains: []string{"{{.Key}}"}}, Outcome: dispatcher.Delivered}}}}, []string{
			"ResponseCap: 0 is too short: a rule looks for a text of 1 bytes in as much of the body"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Lookup: &Lookup{Request: "GET /", Rules: []Rule{
			{Match: Match{Equals: []string{"{{"}}, Outcome: dispatcher.Delivered}}}}, []string{"Lookup.Rules[1].Equals: is not a template: 1: unclosed action"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Lookup: &Lookup{Rules: []Rule{found}}}, []string{"Lookup.Request: is missing"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Lookup: &Lookup{Request: "PUT /", Rules: []Rule{found}}}, []string{"Lookup.Request: must be a GET or a POST"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Lookup: &Lookup{Request: "GET /", Body: "{}", Rules: []Rule{found}}}, []string{"Lookup.Body: not allowed for a GET"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Lookup: &Lookup{Request: "GET /", Rules: []Rule{{Match: Match{Field: "/a"}, Outcome: dispatcher.Absent}}}}, []string{
			"Lookup.Rules: no rule has the outcome delivered"}},
		{once, dispatcher.Vendor{}, Action{Request: "POST /", Lookup: &Lookup{Request: "GET /", Rules: []Rule{
			found, {Match: Match{Field: "/a"}, Outcome: dispatcher.Gone}, {Match: Match{Field: "/a"}}, {Match: Match{Field: "/a", Values: []string{"{{"}}, Outcome: dispatcher.Dead},
		}}}, []string{
			"Lookup.Rules[2].Outcome: gone is not allowed here: use one of delivered, refused, accepted, retry, denied, dead, unknown, stuck, absent",
			"Lookup.Rules[3].Outcome: missing: use one of delivered, refused, accepted, retry, denied, dead, unknown, stuck, absent",
			"Lookup.Rules[4].Values: is not a template: 1: unclosed action"}},
	} {
		client := testClient(t, Destination{Name: "bank", URL: "https://api.example.com", Vendor: c.vendor})
		c.action.Policy.Class, c.action.Policy.Deadline = c.class, patience
		if c.class == idempotent {
			c.action.Policy.KeyWindow = dispatcher.Forever
		}
		d := dispatcher.New(nil, nil)
		client.register(d, "pay", c.action)
		wantMistakes(t, d.Check(), `action "pay": `, c.want...)
	}
	stored := StandardWebhooks()
	stored.Name = "webhooks"
	_, _, err := testClient(t, stored).handler(Action{Request: "POST", Headers: map[string]string{"Authorization": "Bearer s3cret"}, Policy: dispatcher.Policy{Class: idempotent}})
	wantMistakes(t, err, ": ", `Headers["Authorization"]: would be sent to every endpoint`)
}
