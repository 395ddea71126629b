package httpvendor

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/redact"
)

func TestReferenceIsTakenFromAnswers(t *testing.T) {
	db := database(t)
	long := `{"pad":"` + strings.Repeat("x", 70<<10) + `","id":"ch_9"}`
	for name, c := range map[string]struct {
		action Action
		answer step
		want   string
	}{
		"text":                     {Action{Reference: "/id"}, step{status: 200, body: `{"id":"ch_1"}`}, "ch_1"},
		"number":                   {Action{Reference: "/data/id"}, step{status: 200, body: `{"data":{"id":9007199254740993}}`}, "9007199254740993"},
		"any member":               {Action{Reference: "/*/id"}, step{status: 200, body: `{"errors":[],"payment":{"id":"p_1"}}`}, "p_1"},
		"missing":                  {Action{Reference: "/id"}, step{status: 200, body: `{}`}, ""},
		"null":                     {Action{Reference: "/id"}, step{status: 200, body: `{"id":null}`}, ""},
		"an object":                {Action{Reference: "/id"}, step{status: 200, body: `{"id":{"a":1}}`}, ""},
		"not JSON":                 {Action{Reference: "/id"}, step{status: 200, body: `ch_1`}, ""},
		"beyond the response cap":  {Action{Reference: "/id"}, step{status: 200, body: long}, "ch_9"},
		"refused":                  {Action{Reference: "/id", Refused: Statuses{{402, 402}}}, step{status: 402, body: `{"id":"ch_2"}`}, "ch_2"},
		"the vendor did not act":   {Action{Reference: "/id"}, step{status: 404, body: `{"id":"err_1"}`}, ""},
		"a rule's":                 {Action{Reference: "/id", Rules: []Rule{{Match: Match{Status: status(404, 404)}, Outcome: dispatcher.Refused, Reference: "/error/charge"}}}, step{status: 404, body: `{"id":"err_1","error":{"charge":"ch_3"}}`}, "ch_3"},
		"a rule without it":        {Action{Reference: "/id", Rules: []Rule{{Match: Match{Status: status(404, 404)}, Outcome: dispatcher.Refused}}}, step{status: 404, body: `{"id":"ch_4"}`}, "ch_4"},
		"a rule's, whose it is":    {Action{Rules: []Rule{{Match: Match{Field: "/error/code", Values: []string{"exists"}}, Outcome: dispatcher.Dead, Reference: "/error/charge"}}}, step{status: 404, body: `{"error":{"code":"exists","charge":"ch_5"}}`}, "ch_5"},
		"not printable":            {Action{Reference: "/id"}, step{status: 200, body: `{"id":"ch\n\u0000"}`}, "ch\uFFFD\uFFFD"},
		"a secret of ours":         {Action{Reference: "/id", Headers: map[string]string{"Authorization": "Bearer secret-token"}}, step{status: 200, body: `{"id":"secret-token"}`}, redact.Mark},
		"nothing is looked for":    {Action{}, step{status: 200, body: `{"id":"ch_1"}`}, ""},
		"longer than what is read": {Action{Reference: "/id"}, step{status: 200, body: `{"pad":"` + strings.Repeat("x", 1<<20) + `","id":"ch_9"}`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header("Idempotency-Key"), c.answer)
			entry := played(t, db, Destination{}, v, c.action)
			if entry.Reference != c.want {
				t.Errorf("is %s with the reference %q, want %q", entry.Status, entry.Reference, c.want)
			}
			if c.answer.status == 200 && entry.Status != "delivered" {
				t.Errorf("is %s", entry.Status)
			}
		})
	}
}

func TestPresetsHaveTheVendorsID(t *testing.T) {
	db := database(t)
	for name, c := range map[string]struct {
		dest   func() Destination
		key    string
		answer step
		want   string
	}{
		"stripe":                {Stripe, "Idempotency-Key", step{status: 200, body: `{"id":"pi_1","object":"payment_intent","status":"succeeded"}`}, "pi_1"},
		"stripe, card declined": {Stripe, "Idempotency-Key", step{status: 402, body: `{"error":{"type":"card_error","payment_intent":{"id":"pi_2"}}}`}, "pi_2"},
		"adyen":                 {Adyen, "Idempotency-Key", step{status: 200, body: `{"pspReference":"993617895204576J","resultCode":"Authorised"}`}, "993617895204576J"},
		"paypal":                {PayPal, "PayPal-Request-Id", step{status: 201, body: `{"id":"5O190127TN364715T","status":"COMPLETED"}`}, "5O190127TN364715T"},
		"checkout":              {Checkout, "Cko-Idempotency-Key", step{status: 201, body: `{"id":"pay_1","approved":true}`}, "pay_1"},
		"resend":                {Resend, "Idempotency-Key", step{status: 200, body: `{"id":"49a3999c"}`}, "49a3999c"},
		"square":                {Square, "", step{status: 200, body: `{"payment":{"id":"GQTF","status":"COMPLETED"}}`}, "GQTF"},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header(c.key), c.answer)
			if entry := played(t, db, c.dest(), v, Action{}); entry.Reference != c.want {
				t.Errorf("is %s with the reference %q, want %q", entry.Status, entry.Reference, c.want)
			}
		})
	}
}

// A vendor answers 202 with an id, is asked for the id, and answers with the id of the charge.
func TestLookupAsksByTheReference(t *testing.T) {
	db := database(t)
	v := startVendor(t, header("Idempotency-Key"), step{act: true, status: 202, body: `{"operation":"op/1"}`})
	v.log = func(*http.Request) (int, string) { return 200, `{"charge":"ch_1"}` }
	entry := played(t, db, Destination{}, v, Action{
		Reference: "/operation", Accepted: status(202, 202), Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, CompletionTime: time.Hour, ResponseCap: -1},
		Lookup: &Lookup{Request: "GET /ops{{with .Reference}}/{{.}}{{end}}", Reference: "/charge", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}},
	})
	if len(v.asked) != 1 || v.asked[0] != "/ops/op%2F1" || entry.Status != "delivered" || entry.Reference != "ch_1" {
		t.Errorf("asked %v; is %s with %q", v.asked, entry.Status, entry.Reference)
	}
}

// The id in a list is that of the element with the key, and not of the first one. Without such an element there is none.
func TestReferenceInAListIsOfTheMatch(t *testing.T) {
	body, err := decodeJSON([]byte(`{"data":[{"id":"a","key":"1","refs":[{"n":"x"}]},{"id":"b","key":"2","refs":[{"n":"y"},{"n":"z"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	where, ok := find(body, strings.Split("data/*/key", "/"), func(at any) bool { return at == "2" })
	if !ok {
		t.Fatal("no match")
	}
	for pointer, want := range map[string]string{"/data/*/id": "b", "/data/*/refs/*/n": "y", "/data/0/id": "a", "/data/*/none": "", "/*/*/id": "b"} {
		if got, _ := textAt(body, pointer, where); got != want {
			t.Errorf("%s: %q, want %q", pointer, got, want)
		}
	}
	out := reply{json: body}.referring(finding{outcome: dispatcher.Unknown(dispatcher.Response{})}, "", "/data/0/id", namedByLookup, nil, redact.Secrets{})
	if got := out.outcome.String(); out.reference != "" || got != dispatcher.Unknown(dispatcher.Response{}).String() {
		t.Errorf("a list of others became %s", got)
	}
}

// The subject is escaped for its place, as every value.
func TestTemplatesUseTheSubject(t *testing.T) {
	call := testCall(`{"amount":1}`)
	call.Subject = "booking/4 2"
	made, _, err := rendered(t, Destination{URL: "https://api.example.com"}, Action{Request: "POST /v1/{{.Subject}}?about={{.Subject}}", Body: Body{Format: JSON, Fields: []Field{{Name: "subject", Value: "{{.Subject}}"}}}}, call)
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseSending(made.Rendered.Request)
	if err != nil || s.path != "/v1/booking%2F4%202?about=booking%2F4+2" || !strings.Contains(string(s.body), `"subject":"booking/4 2"`) {
		t.Errorf("renders %s with %s, %v", s.path, s.body, err)
	}
}
