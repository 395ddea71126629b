package httpvendor

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// byAnswer looks a call up by the id that the vendor assigned, or else by the key.
var byAnswer = &Lookup{Request: "GET /ops{{with .Response}}/{{.id}}{{else}}?key={{$.Key}}{{end}}", Rules: []Rule{
	{Match: Match{Status: status(200, 200), Field: "/state", Values: []string{"running"}}, Outcome: dispatcher.Accepted},
	{Match: Match{Status: status(200, 200), Field: "/of", Values: []string{"{{with .Response}}{{.id}}{{else}}{{$.Key}}{{end}}"}}, Outcome: dispatcher.Delivered},
}}

func TestLookupTemplateUsesTheLastAnswer(t *testing.T) {
	with := `{{with .Response}}%s{{.id}}{{else}}%s{{$.Key}}{{end}}`
	lookup := &Lookup{
		Request: "POST /" + fmt.Sprintf(with, "ops/", "search?key=") + "&then={{.Payload.then}}",
		Body:    `{"id": ` + fmt.Sprintf(with, "", "") + `, "either": {{if and .Response (index .Response "gone")}}1{{else}}{{.Key}}{{end}}}`,
		Rules:   []Rule{{Match: Match{Status: status(200, 200), Header: "Location", Values: []string{fmt.Sprintf(with, "of ", "of ")}}, Outcome: dispatcher.Delivered}},
	}
	byID, byKey := `/ops/op%201%2F..%3F&%22&then=a+b {"id": "op 1/..?&\"", "either": "KEY"}`, `/search?key=KEY&then=a+b {"id": "KEY", "either": "KEY"}`
	for name, tc := range map[string]struct {
		last *dispatcher.Response
		id   string
		asks string
	}{
		"an id":          {&dispatcher.Response{Code: "202", Body: []byte(`{"id":"op 1/..?&\""}`)}, `op 1/..?&"`, byID},
		"no answer":      {nil, "KEY", byKey},
		"nothing in it":  {&dispatcher.Response{Body: []byte(`{}`)}, "KEY", byKey},
		"not JSON":       {&dispatcher.Response{Body: []byte(`<html>`)}, "KEY", byKey},
		"cut":            {&dispatcher.Response{Body: []byte(`{"id":"op 1`)}, "KEY", byKey},
		"a number, cut":  {&dispatcher.Response{Body: []byte(`12`)}, "KEY", byKey},
		"a member twice": {&dispatcher.Response{Body: []byte(`{"id":"a","id":"b"}`)}, "KEY", byKey},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(tc.id, "KEY", deliveryKey.String())
			seen := make(chan string, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				seen <- r.RequestURI + " " + string(body)
				w.Header().Set("Location", "of "+id)
			}))
			t.Cleanup(server.Close)
			call := testCall(`{"then":"a b"}`)
			call.LastResponse = tc.last
			outcome, err := ask(t, testOperation(t, Destination{URL: server.URL}, Action{Request: "POST /", Lookup: lookup}), call)
			if err != nil {
				t.Fatal(err)
			}
			if outcome.Kind() != "delivered" {
				t.Errorf("is %s", outcome.Kind())
			}
			if got, want := <-seen, strings.ReplaceAll(tc.asks, "KEY", deliveryKey.String()); got != want {
				t.Errorf("asks %s\nwant %s", got, want)
			}
		})
	}
}

// Each drain is another worker, so the answer is still known after a restart.
func TestLookupByTheAnsweredIDOrTheKey(t *testing.T) {
	db := database(t)
	for name, tc := range map[string]struct {
		class  dispatcher.Class
		answer step
		cap    int
		byKey  bool
	}{
		"202":                {dispatcher.IdempotentWrite, step{act: true, status: 202, body: `{"id":"op_1"}`}, 0, false},
		"202, cut":           {dispatcher.IdempotentWrite, step{act: true, status: 202, body: `{"id":"op_1"}`}, 8, true},
		"202, nothing kept":  {dispatcher.IdempotentWrite, step{act: true, status: 202, body: `{"id":"op_1"}`}, -1, true},
		"500, once":          {dispatcher.NonIdempotentWrite, step{act: true, status: 500, body: `{"id":"op_1"}`}, 0, false},
		"500, no body, once": {dispatcher.NonIdempotentWrite, step{act: true, status: 500}, 0, true},
		"no answer, once":    {dispatcher.NonIdempotentWrite, step{act: true, lose: true}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header("Idempotency-Key"), tc.answer)
			v.log = func(r *http.Request) (int, string) {
				if len(v.asked) < 3 {
					return 200, `{"state":"running"}`
				}
				of := strings.TrimPrefix(strings.TrimPrefix(r.RequestURI, "/ops/"), "/ops?key=")
				return 200, fmt.Sprintf(`{"state":"done","of":%q}`, of)
			}
			want := "/ops/op_1"
			entry := played(t, db, Destination{}, v, Action{Accepted: status(202, 202), Lookup: byAnswer,
				Policy: dispatcher.Policy{Class: tc.class, ResponseCap: tc.cap}})
			if tc.byKey {
				want = "/ops?key=" + entry.DeliveryKey.String()
			}
			if entry.Status != "delivered" || len(v.wire) != 1 || fmt.Sprint(v.asked) != fmt.Sprint([]string{want, want, want}) {
				t.Errorf("is %s after %d calls and the lookups %v, want three of %s", entry.Status, len(v.wire), v.asked, want)
			}
		})
	}
}

// A person resolved the first attempt as not sent, so its answer is no longer used.
func TestLookupForgetsAnswersOfUnsentCalls(t *testing.T) {
	db := database(t)
	v := startVendor(t, header("Idempotency-Key"), step{status: 500, body: `{"id":"op_1"}`}, step{act: true, lose: true})
	v.log = func(r *http.Request) (int, string) {
		return 200, fmt.Sprintf(`{"of":%q}`, r.URL.Query().Get("key")) // op_1 is unknown
	}
	action := Action{Lookup: byAnswer, Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, SettlingDelay: -1}}
	entry := played(t, db, Destination{}, v, action)
	by := outbox.By{Actor: "ann", Reason: "the vendor has nothing"}
	if err := outbox.Resolve(t.Context(), db.Pool, entry.ID, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Redrive(t.Context(), db.Pool, entry.ID, by); err != nil {
		t.Fatal(err)
	}
	drain(t, db, Destination{}, v, action)
	again, err := outbox.Get(t.Context(), db.Pool, entry.ID)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/ops/op_1", "/ops?key=" + entry.DeliveryKey.String()}; entry.Status != "parked" || again.Status != "delivered" || fmt.Sprint(v.asked) != fmt.Sprint(want) {
		t.Errorf("is %s, then %s after the lookups %v, want %v", entry.Status, again.Status, v.asked, want)
	}
}
