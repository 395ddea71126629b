package httpvendor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

func ask(t *testing.T, e *operation, call *dispatcher.Call) (dispatcher.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return e.ask(ctx, call)
}

func TestLookupRules(t *testing.T) {
	lookup := &Lookup{Request: "GET /v1/charges?ref={{.Key}}&amount={{.Payload.amount}}", Rules: []Rule{
		{Match: Match{Status: Statuses{{200, 200}}, Field: "/data/*/state", Values: []string{"running"}}, Outcome: dispatcher.Accepted},
		{Match: Match{Status: Statuses{{200, 200}}, Field: "/data/*/state", Values: []string{"declined"}}, Outcome: dispatcher.Refused},
		{Match: Match{Status: Statuses{{200, 200}}, Field: "/data/*/ref", Values: []string{"{{.Key}}"}}, Outcome: dispatcher.Delivered},
		{Match: Match{Status: Statuses{{200, 200}}, Field: "/data"}, Outcome: dispatcher.Absent},
		{Match: Match{Status: Statuses{{410, 410}}}, Outcome: dispatcher.Unknown},
	}}
	for _, tc := range []struct {
		status int
		body   string
		want   string // and whether the vendor could be asked
	}{
		{200, `{"data":[{"ref":"other"},{"ref":"KEY"}]}`, "delivered true"},
		{200, `{"data":[{"ref":"KEY","state":"declined"}]}`, "refused true"},
		{200, `{"data":[{"ref":"KEY","state":"running"}]}`, "accepted true"},
		{200, `{"data":[{"ref":"other"}]}`, "absent true"},
		{200, `{"data":[]}`, "absent true"},
		{200, `{"data":null}`, "unknown true"},
		{200, `<html>log in</html>`, "unknown true"},
		{200, `{"data":[],"pad":"` + strings.Repeat("x", 1<<20) + `"}`, "unknown true"},
		{404, `{"data":[]}`, "unknown true"},
		{410, ``, "unknown true"},
		{302, ``, "unknown true"},
		{401, ``, "denied false"},
		{403, ``, "unknown false"},
		{407, ``, "denied false"},
		{423, ``, "unknown false"},
		{424, ``, "unknown false"},
		{499, ``, "unknown false"},
		{409, ``, "unknown true"},
		{429, ``, "retry false"},
		{503, ``, "unknown false"},
	} {
		t.Run(fmt.Sprintf("%d %.40s", tc.status, tc.body), func(t *testing.T) {
			seen := make(chan string, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				seen <- fmt.Sprintf("%s %s %s %q%s", r.Method, r.RequestURI, r.Header.Get("Authorization"), body, r.Header.Get("Idempotency-Key"))
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, strings.ReplaceAll(tc.body, "KEY", deliveryKey.String()))
			}))
			t.Cleanup(server.Close)
			e := testOperation(t, Destination{URL: server.URL + "/base", Auth: Auth{Bearer: "sk_live_51Hx"}}, Action{Request: "POST /v1/charges", Lookup: lookup})
			outcome, err := ask(t, e, testCall(`{"amount":9007199254740993}`))
			if got := fmt.Sprintf("%s %t", outcome.Kind(), err == nil && outcome.Kind() != "denied" && outcome.Kind() != "retry"); got != tc.want {
				t.Errorf("is %s (%v), want %s", got, err, tc.want)
			}
			if got, want := <-seen, `GET /base/v1/charges?ref=`+deliveryKey.String()+`&amount=9007199254740993 Bearer sk_live_51Hx ""`; got != want {
				t.Errorf("asked %s\nwant  %s", got, want)
			}
		})
	}
}

// A proxy's page can have status 200 or 404. It neither proves that the vendor acted nor allows another send.
func TestLookupIgnoresPagesOfAJSONVendor(t *testing.T) {
	lookup := &Lookup{Request: "GET /orders/{{.Key}}", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}, {Match: Match{Status: status(404, 404)}, Outcome: dispatcher.Absent}}}
	for _, tc := range []struct {
		json   bool
		status int
		body   string
		want   string // and whether the vendor could be asked
	}{
		{true, 200, "<html>", "unknown true"}, {true, 404, "<html>", "unknown true"}, {true, 503, "<html>", "unknown false"},
		{true, 200, "{}", "delivered true"}, {true, 404, "{}", "absent true"}, {true, 404, "", "absent true"},
		{false, 200, "<html>", "delivered true"}, {false, 404, "<html>", "absent true"},
	} {
		o := testOperation(t, Destination{URL: replying(t, tc.status, nil, tc.body).URL, JSONAnswers: tc.json}, Action{Request: "POST /", Lookup: lookup})
		outcome, err := ask(t, o, testCall(`{}`))
		if got := fmt.Sprintf("%s %t", outcome.Kind(), err == nil && outcome.Kind() != "denied" && outcome.Kind() != "retry"); got != tc.want {
			t.Errorf("%+v: is %s", tc, got)
		}
	}
}

func TestFailedLookupIsAnError(t *testing.T) {
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"data":[`)
	}))
	t.Cleanup(cut.Close)
	lookup := SentLog("GET /log?ref={{.Key}}", "/data", "/ref")
	for name, url := range map[string]string{"cut": cut.URL, "down": "http://127.0.0.1:1"} {
		outcome, err := ask(t, testOperation(t, Destination{URL: url}, Action{Request: "POST /", Lookup: lookup}), testCall(`{}`))
		if err == nil || outcome.Kind() != "" {
			t.Errorf("%s: is %s, %v", name, outcome.Kind(), err)
		}
	}
	e := testOperation(t, Destination{URL: cut.URL}, Action{Request: "POST /", Lookup: SentLog("GET /log/{{.Payload.gone}}", "/data", "/ref")})
	if outcome, err := ask(t, e, testCall(`{}`)); err == nil || outcome.Kind() != "unknown" {
		t.Errorf("with a missing field: is %s, %v", outcome.Kind(), err)
	}
}

func TestLookupWaitsForRetryAfter(t *testing.T) {
	for status, want := range map[int]string{401: "denied", 407: "denied", 429: "retry", 503: "retry", 403: "retry", 413: "retry", 424: "retry", 499: "retry"} {
		server := replying(t, status, map[string]string{"Retry-After": "3600"}, "{}")
		e := testOperation(t, Destination{URL: server.URL}, Action{Request: "POST /", Lookup: SentLog("GET /log?ref={{.Key}}", "/data", "/ref")})
		outcome, err := ask(t, e, testCall(`{}`))
		if _, failed := result(outcome, err); err != nil || outcome.Kind() != want || askedWait(failed) != time.Hour {
			t.Errorf("%d: is %v, %v", status, outcome, err)
		}
	}
}

func TestLookupUsesTheRenderedBody(t *testing.T) {
	for name, tc := range map[string]struct {
		body Body
		want string
	}{
		"json": {Body{Format: JSON, Template: `{"to": {{.Payload.mail}}, "ref": {{.Key}}}`}, "a@b.example " + deliveryKey.String()},
		"form": {Body{Format: Form, Template: `{"to": {{.Payload.mail}}, "ref": {{.Key}}}`}, "a@b.example " + deliveryKey.String()},
	} {
		server, requests := recorder(t)
		action := Action{Request: "POST /", Body: tc.body, Lookup: &Lookup{
			Request: "POST /search?to={{.Rendered.to}}", Body: `{"both": {{printf "%s %s" .Rendered.to .Rendered.ref}}}`,
			Rules: []Rule{{Match: Match{Status: Statuses{{200, 200}}}, Outcome: dispatcher.Delivered}},
		}}
		call, _, err := rendered(t, Destination{URL: server.URL}, action, testCall(`{"mail":"a@b.example"}`))
		if err != nil {
			t.Fatal(err)
		}
		if outcome, err := ask(t, testOperation(t, Destination{URL: server.URL}, action), call); err != nil || outcome.Kind() != "delivered" {
			t.Errorf("%s: is %s, %v", name, outcome.Kind(), err)
		}
		if r := <-requests; r.RequestURI != "/search?to=a%40b.example" || r.body != `{"both": "`+tc.want+`"}` || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: asked %s with %s", name, r.RequestURI, r.body)
		}
	}
}

// The action's lookup wins over the destination's. A read is sent again, so it has no lookup of the destination.
func TestActionsLookupWinsOverTheDestinations(t *testing.T) {
	db := database(t)
	by := func(path string) *Lookup {
		return &Lookup{Request: "GET " + path, Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	}
	for name, tc := range map[string]struct {
		class  dispatcher.Class
		action Action
		asked  string
		code   string
		calls  int
	}{
		"none":     {dispatcher.NonIdempotentWrite, Action{}, "[/destination]", "200", 1},
		"its own":  {dispatcher.NonIdempotentWrite, Action{Lookup: by("/action")}, "[/action]", "200", 1},
		"a stored": {dispatcher.IdempotentWrite, Action{Rules: []Rule{{Match: Match{Status: status(500, 500)}, Outcome: dispatcher.Stuck}}}, "[/destination]", "200", 1},
		"a read":   {dispatcher.Read, Action{}, "[]", "200", 2},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header("Idempotency-Key"), step{act: true, status: 500}, step{status: 200})
			v.log = func(*http.Request) (int, string) { return 200, "{}" }
			tc.action.Policy.Class = tc.class
			entry := played(t, db, Destination{Lookup: by("/destination")}, v, tc.action)
			if entry.Status != "delivered" || entry.Code != tc.code || fmt.Sprint(v.asked) != tc.asked || len(v.wire) != tc.calls {
				t.Errorf("is %s with %s after %d calls and the lookups %v", entry.Status, entry.Code, len(v.wire), v.asked)
			}
			_, delivery, err := testClient(t, Destination{URL: v.URL, Lookup: by("/destination")}).handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: tc.class}})
			if has := delivery.Lookup != nil; err != nil || has != (tc.class != dispatcher.Read) {
				t.Errorf("it is registered with a lookup: %t, %v", has, err)
			}
		})
	}
}

func TestRetryAfterFromTheBodyOfALookup(t *testing.T) {
	server := replying(t, 503, nil, `{"retry_in":30}`)
	action := Action{Request: "POST /", Lookup: SentLog("GET /", "/data", "/key"), Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}}
	_, delivery, err := testClient(t, Destination{URL: server.URL, RetryAfter: "/retry_in"}).handler(action)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	call := testCall("{}")
	if outcome, err := result(delivery.Lookup(ctx, call, call.Payload)); verdict(err) != retry || askedWait(err) != 30*time.Second {
		t.Errorf("%v, %v", outcome, err)
	}
}
