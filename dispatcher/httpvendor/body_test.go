package httpvendor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// rendered runs the action's Render.
func rendered(t *testing.T, dest Destination, action Action, call *dispatcher.Call) (*dispatcher.Call, handler, error) {
	t.Helper()
	e := testOperation(t, dest, action)
	if !e.renders() {
		t.Fatal("the action has no Render")
	}
	made, err := e.render(call)
	again := *call
	again.Rendered = &made
	return &again, e.send, err
}

func testOperation(t *testing.T, dest Destination, action Action) *operation {
	t.Helper()
	if action.Policy.Class == 0 {
		action.Policy.Class = dispatcher.IdempotentWrite
	}
	o := testClient(t, dest).operation(action)
	if err := o.mistakes.Err(); err != nil {
		t.Fatal(err)
	}
	return o
}

const order = `{"id":"a b/../c?d","amount":9007199254740993,"rate":0.10,"big":1e400,"paid":false,"note":"He said \"é<\u2028\"","to":["x","y"],"metadata":{"order":1,"deep":{"k":"v"}},"none":null}`

func TestPlacesOfTheKey(t *testing.T) {
	server, requests := recorder(t)
	for name, tc := range map[string]struct {
		key  dispatcher.KeyRules
		body Body
		want string // of the header and the body
	}{
		"header": {dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "x-key"}, Body{}, `KEY {"a":1}`},
		"quoted": {dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "x-key", Quoted: true}, Body{}, `"KEY" {"a":1}`},
		"body":   {dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "idempotency_key"}, Body{}, ` {"a":1,"idempotency_key":"KEY"}`},
		"json":   {dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "k"}, Body{Format: JSON, Template: `{}`}, ` {"k":"KEY"}`},
		"form":   {dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "k"}, Body{Format: Form}, ` a=1&k=KEY`},
		"none":   {dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, Body{}, ` {"a":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			call := testCall(`{"a":1}`)
			call.CarriedKey = "projected0key"
			dest := Destination{URL: server.URL, Vendor: dispatcher.Vendor{Key: tc.key}}
			handler := testHandler(t, dest, Action{Body: tc.body})
			if tc.key.Place == dispatcher.KeyInBody {
				var err error
				if call, handler, err = rendered(t, dest, Action{Request: "POST /", Body: tc.body}, call); err != nil {
					t.Fatal(err)
				}
			}
			call.Headers["X-Key"] = ""
			if _, err := attempt(t, handler, call, patience); err != nil {
				t.Fatal(err)
			}
			r := <-requests
			if got := r.Header.Get("X-Key") + " " + r.body; got != strings.ReplaceAll(tc.want, "KEY", "projected0key") {
				t.Errorf("sent %s", got)
			}
			if all := fmt.Sprint(r.Header, r.body); strings.Contains(all, "projected0key") == (tc.key.Place == dispatcher.KeyNowhere) || strings.Contains(all, deliveryKey.String()) {
				t.Errorf("sent %s", all)
			}
		})
	}
}

func TestBodyKeepsDigitsAndOrder(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"template": {`{"amount": {{.Payload.amount}}, "rate": {{.Payload.rate}}, "big": {{.Payload.big}}, "who": {{printf "order %s" .Payload.id}}, "meta": {{.Payload.metadata}}, "none": {{.Payload.none}}, "ref": {{.Key}}}`,
			`{"amount": 9007199254740993, "rate": 0.10, "big": 1e400, "who": "order a b/../c?d", "meta": {"deep":{"k":"v"},"order":1}, "none": null, "ref": "KEY"}`},
		"text":  {`{"note": {{.Payload.note}}}`, `{"note": "He said \"é<\u2028\""}`},
		"loop":  {`{"to": [{{range $i, $to := .Payload.to}}{{if $i}}, {{end}}{"mail": {{$to}}}{{end}}]}`, `{"to": [{"mail": "x"}, {"mail": "y"}]}`},
		"maybe": {`{"a": 1{{with index .Payload "gone"}}, "gone": {{.}}{{end}}{{if .Payload.paid}}, "paid": true{{end}}}`, `{"a": 1}`},
		"once":  {`{"note": {{json .Payload.paid}}}`, `{"note": false}`},
	} {
		t.Run(name, func(t *testing.T) {
			server, requests := recorder(t)
			call, handler, err := rendered(t, Destination{URL: server.URL}, Action{Request: "POST /", Body: Body{Format: JSON, Template: tc.body}}, testCall(order))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := attempt(t, handler, call, patience); err != nil {
				t.Fatal(err)
			}
			r := <-requests
			if want := strings.ReplaceAll(tc.want, "KEY", deliveryKey.String()); r.body != want || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("sent %s as %s", r.body, r.Header.Get("Content-Type"))
			}
		})
	}
}

func TestFormKeepsOrder(t *testing.T) {
	server, requests := recorder(t)
	payload := `{"z":9007199254740993,"a":{"b":{"c":0.10},"l":[{"p":"ä &="},true],"e":{},"n":[]},"m b":""}`
	action := Action{Request: "POST /", Body: Body{Format: Form, Fields: []Field{{"source", "shop"}, {"ref", "o-{{.Payload.z}}"}, {"a[x]", "1"}}}}
	call, handler, err := rendered(t, Destination{URL: server.URL}, action, testCall(payload))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attempt(t, handler, call, patience); err != nil {
		t.Fatal(err)
	}
	r := <-requests
	want := "z=9007199254740993&a%5Bb%5D%5Bc%5D=0.10&a%5Bl%5D%5B0%5D%5Bp%5D=%C3%A4+%26%3D&a%5Bl%5D%5B1%5D=true&m+b=&source=shop&ref=o-9007199254740993&a%5Bx%5D=1"
	if r.body != want || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		t.Errorf("sent %s\nwant %s", r.body, want)
	}
}

// Many servers unescape a path and resolve its dots. A value must stay one part of the path for them too.
func TestValueCannotChangeThePath(t *testing.T) {
	for _, tc := range []struct{ request, value string }{
		{"DELETE /v1/customers/{{.Payload.id}}", ""},
		{"DELETE /v1/customers/{{.Payload.id}}?force=1", ""},
		{"DELETE /v1/customers/{{.Payload.id}}/", ""},
		{"DELETE /{{.Payload.id}}", ""},
		{"DELETE /{{.Payload.id}}/cards", ""},
		{"POST /v1/orders/{{.Payload.id}}/capture", "x/../../refunds/7"},
		{"POST /v1/orders/{{.Payload.id}}/capture", `x\\..\\7`},
		{"POST /v1/orders/{{.Payload.id}}/capture", "7/."},
		{"POST /v1/orders/{{.Payload.id}}", "../refunds"},
		{"POST /v1/orders/{{.Payload.id}}", "7/"},
	} {
		call, _, err := rendered(t, Destination{URL: "https://a.example"}, Action{Request: tc.request}, testCall(`{"id":"`+tc.value+`"}`))
		if err == nil || !strings.Contains(err.Error(), "a part of the path") {
			t.Errorf("%s with %q: %v, %s", tc.request, tc.value, err, call.Rendered.Request)
		}
	}
}

// A value never changes the path, the parameters or the host.
func TestValuesInPathsAreEscaped(t *testing.T) {
	server, requests := recorder(t)
	for _, tc := range []struct{ request, payload, want string }{
		{"PUT /v1/orders/{{.Payload.id}}/capture?ref={{.Payload.id}}&x=1", `{"id":"a b/..c?d#e&f=g"}`,
			"PUT /base/v1/orders/a%20b%2F..c%3Fd%23e&f=g/capture?token=t&ref=a+b%2F..c%3Fd%23e%26f%3Dg&x=1"},
		{"POST /x/?to={{.Payload.id}}", `{"id":"../a"}`, "POST /base/x/?token=t&to=..%2Fa"},
		{"GET /n/{{.Payload.id}}", `{"id":9007199254740993}`, "GET /base/n/9007199254740993?token=t"},
		{"POST /{{if .Payload.id}}x?{{end}}a={{.Payload.id}}", `{"id":"?&"}`, "POST /base/x?token=t&a=%3F%26"},
	} {
		call, handler, err := rendered(t, Destination{URL: server.URL + "/base?token=t"}, Action{Request: tc.request}, testCall(tc.payload))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(call.Rendered.Request), "token=t") {
			t.Errorf("the destination's query is stored: %s", call.Rendered.Request)
		}
		if _, err := attempt(t, handler, call, patience); err != nil {
			t.Fatal(err)
		}
		if r := <-requests; r.Method+" "+r.RequestURI != tc.want {
			t.Errorf("asked for %s %s\nwant %s", r.Method, r.RequestURI, tc.want)
		}
	}
}

func TestRenderErrorsQuoteNoValue(t *testing.T) {
	json := func(template string) Action {
		return Action{Request: "POST /", Body: Body{Format: JSON, Template: template}}
	}
	for says, tc := range map[string]struct {
		action  Action
		payload string
	}{
		`no entry for key "gone"`:   {json(`{"a": {{.Payload.gone}}}`), `{"a":"s3cret"}`},
		`key "deep"`:                {json(`{"a": {{.Payload.deep.er}}}`), `{"a":"s3cret"}`},
		`{}.a (its parent`:          {json(`{"a": {{.Payload.a}}}`), `s3cret`},
		`{}.b (its parent`:          {json(`{"a": {{.Payload.b}}}`), "{\"b\":1,\"b\":\"s3cret\"}"},
		"not a JSON object":         {json(`["a"]`), `{}`},
		"has a member twice":        {json(`{"a": {{.Payload.a}}, {{.Payload.a}}: 1}`), `{"a":"a"}`},
		"failed at":                 {json(`{"a": {{index .Payload.a 7}}}`), `{"a":"s3cret"}`},
		"has no text":               {Action{Request: "POST /{{.Payload.a}}"}, `{"a":{"b":"s3cret"}}`},
		"is null, an object":        {Action{Request: "POST /{{.Payload.a}}"}, `{"a":null}`},
		`".." `:                     {Action{Request: "POST /x/{{.Payload.a}}/y"}, `{"a":".."}`},
		"part of the path is empty": {Action{Request: "POST /x/{{.Payload.a}}/y"}, `{"a":""}`},
		"a form has a field twice":  {Action{Request: "POST /", Body: Body{Format: Form, Fields: []Field{{"metadata[order]", "7"}}}}, `{"metadata":{"order":"s3cret"}}`},
		"cannot contain null":       {Action{Request: "POST /", Body: Body{Format: Form}}, `{"a":null,"b":"s3cret"}`},
		"an added field exists":     {Action{Request: "POST /", Body: Body{Format: JSON, Fields: []Field{{"a", "b"}}}}, `{"\u0061":"s3cret"}`},
		"longer than 2 MiB":         {json(`{"a": {{printf "%03000000d" 1}}}`), `{}`},
	} {
		_, _, err := rendered(t, Destination{URL: "https://a.example"}, tc.action, testCall(tc.payload))
		if says == `".." ` {
			says = `"." or ".."`
		}
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "stripe: ") {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// Case 5: the template, the destination's headers and the release change between attempts.
func TestRenderedRequestSurvivesChanges(t *testing.T) {
	server, requests := recorder(t)
	dest := Destination{URL: server.URL, Auth: Auth{Bearer: "sk_live_51Hx"}}
	call, send, err := rendered(t, dest, Action{Request: "POST /v1/{{.Payload.id}}", Body: Body{Format: Form}}, testCall(`{"id":"1","b":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(call.Rendered.Request), "sk_live") {
		t.Errorf("credentials are stored: %s", call.Rendered.Request)
	}
	var first string
	for i, handler := range []handler{send,
		testHandler(t, dest, Action{Request: "PUT /v2/{{.Payload.gone}}", Body: Body{Format: JSON, Template: `{}`}}),
		testHandler(t, dest, Action{Request: "GET /plain"}),
		testHandler(t, dest, Action{Headers: map[string]string{"Content-Type": "text/plain"}}),
	} {
		if _, err := attempt(t, handler, call, patience); err != nil {
			t.Fatal(err)
		}
		r := <-requests
		got := fmt.Sprint(r.Method, r.RequestURI, r.Header, r.body)
		if first == "" {
			first = got
		}
		if got != first || !strings.Contains(got, "Bearer sk_live_51Hx") || !strings.Contains(got, "POST/v1/1") {
			t.Errorf("number %d sent %s\nfirst %s", i, got, first)
		}
	}
}

func TestUnrenderedRequestIsStuck(t *testing.T) {
	action := Action{Request: "POST /{{.Payload.id}}"}
	call := testCall(`{"id":1}`) // not rendered: an older release may have sent it
	for class, want := range map[dispatcher.Class]string{dispatcher.IdempotentWrite: "stuck", dispatcher.NonIdempotentWrite: "stuck", dispatcher.Read: "delivered"} {
		server, _ := recorder(t)
		action.Policy.Class = class
		if _, err := attempt(t, testHandler(t, Destination{URL: server.URL}, action), call, patience); verdict(err) != want {
			t.Errorf("%v: is %s (%v), want %s", class, verdict(err), err, want)
		}
	}
	for _, made := range []dispatcher.Rendered{{Type: "other", Request: []byte("x")}, {Type: renderedType, Request: []byte("FETCH /\r\n\r\n")}, {Type: renderedType}} {
		call.Rendered = &made
		_, err := attempt(t, testHandler(t, Destination{URL: "https://a.example"}, action), call, time.Second)
		if verdict(err) != "stuck" {
			t.Errorf("%q: is %s (%v), want stuck", made.Type, verdict(err), err)
		}
	}
}

func TestAuthIsSentAndRedacted(t *testing.T) {
	for name, tc := range map[string]struct {
		auth         Auth
		header, want string
	}{
		"bearer":  {Auth{Bearer: "sk_live_51Hx"}, "Authorization", "Bearer sk_live_51Hx"},
		"basic":   {Auth{User: "user", Password: "pass:word"}, "Authorization", "Basic dXNlcjpwYXNzOndvcmQ="},
		"user":    {Auth{User: "sk_live_51Hx"}, "Authorization", "Basic c2tfbGl2ZV81MUh4Og=="},
		"header":  {Auth{Header: "x-api-key", Value: "sk_live_51Hx"}, "X-Api-Key", "sk_live_51Hx"},
		"nothing": {Auth{}, "Authorization", ""},
	} {
		t.Run(name, func(t *testing.T) {
			echo := replying(t, 200, nil, "sk_live_51Hx pass:word dXNlcjpwYXNzOndvcmQ= c2tfbGl2ZV81MUh4Og==")
			answer, err := attempt(t, testHandler(t, Destination{URL: echo.URL, Auth: tc.auth}, Action{}), testCall("{}"), patience)
			if err != nil || name != "nothing" && !strings.Contains(string(answer.Body), "[redacted]") {
				t.Errorf("kept %s, %v", answer.Body, err)
			}
			for _, secret := range []string{tc.auth.Bearer, tc.auth.Password, tc.auth.Value} {
				if secret != "" && strings.Contains(string(answer.Body), secret) {
					t.Errorf("kept %s", answer.Body)
				}
			}
			server, requests := recorder(t)
			if _, err := attempt(t, testHandler(t, Destination{URL: server.URL, Auth: tc.auth}, Action{}), testCall("{}"), patience); err != nil {
				t.Fatal(err)
			}
			if got := (<-requests).Header.Get(tc.header); got != tc.want {
				t.Errorf("%s: %s", tc.header, got)
			}
		})
	}
}
