package httpvendor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// found names a finding, by the word of the history.
func found(f dispatcher.Finding) string { return reflect.ValueOf(f).FieldByName("outcome").String() }

func ask(t *testing.T, e *operation, call *dispatcher.Call) (dispatcher.Finding, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return e.ask(ctx, call, call.Payload)
}

func TestALookupAsksForTheKeyAndItsRulesSayWhatTheAnswerMeans(t *testing.T) {
	lookup := &Lookup{Request: "GET /v1/charges?ref={{.Key}}&amount={{.Payload.amount}}", Rules: []LookupRule{
		{Match{Status: Statuses{{200, 200}}, Field: "/data/*/state", Values: []string{"running"}}, Pending},
		{Match{Status: Statuses{{200, 200}}, Field: "/data/*/state", Values: []string{"declined"}}, FoundRefused},
		{Match{Status: Statuses{{200, 200}}, Field: "/data/*/ref", Values: []string{"{{.Key}}"}}, Found},
		{Match{Status: Statuses{{200, 200}}, Field: "/data"}, Absent},
		{Match{Status: Statuses{{410, 410}}}, Inconclusive},
	}}
	for _, tc := range []struct {
		status int
		body   string
		want   string // and whether it could be asked
	}{
		{200, `{"data":[{"ref":"other"},{"ref":"KEY"}]}`, "delivered true"},
		{200, `{"data":[{"ref":"KEY","state":"declined"}]}`, "refused true"},
		{200, `{"data":[{"ref":"KEY","state":"running"}]}`, "pending true"},
		{200, `{"data":[{"ref":"other"}]}`, "absent true"},
		{200, `{"data":[]}`, "absent true"},
		{200, `{"data":null}`, "inconclusive true"},
		{200, `<html>log in</html>`, "inconclusive true"},
		{200, `{"data":[],"pad":"` + strings.Repeat("x", 1<<20) + `"}`, "inconclusive true"},
		{404, `{"data":[]}`, "inconclusive true"},
		{410, ``, "inconclusive true"},
		{302, ``, "inconclusive true"},
		{401, ``, "inconclusive false"},
		{403, ``, "inconclusive false"},
		{407, ``, "inconclusive false"},
		{423, ``, "inconclusive false"},
		{424, ``, "inconclusive false"},
		{499, ``, "inconclusive false"},
		{409, ``, "inconclusive true"},
		{429, ``, "inconclusive false"},
		{503, ``, "inconclusive false"},
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
			finding, err := ask(t, e, testCall(`{"amount":9007199254740993}`))
			if got := fmt.Sprintf("%s %t", found(finding), err == nil); got != tc.want {
				t.Errorf("is %s (%v), want %s", got, err, tc.want)
			}
			if got, want := <-seen, `GET /base/v1/charges?ref=`+deliveryKey.String()+`&amount=9007199254740993 Bearer sk_live_51Hx ""`; got != want {
				t.Errorf("asked %s\nwant  %s", got, want)
			}
		})
	}
}

// A proxy's page is a 200, or a 404, too: it neither proves that the vendor acted nor lets anything be sent again.
func TestALookupBelievesNoPageOfAVendorThatAnswersInJSON(t *testing.T) {
	lookup := &Lookup{Request: "GET /orders/{{.Key}}", Rules: []LookupRule{{Match{Status: status(200, 200)}, Found}, {Match{Status: status(404, 404)}, Absent}}}
	for _, tc := range []struct {
		json   bool
		status int
		body   string
		want   string // and whether it could be asked
	}{
		{true, 200, "<html>", "inconclusive true"}, {true, 404, "<html>", "inconclusive true"}, {true, 503, "<html>", "inconclusive false"},
		{true, 200, "{}", "delivered true"}, {true, 404, "{}", "absent true"}, {true, 404, "", "absent true"},
		{false, 200, "<html>", "delivered true"}, {false, 404, "<html>", "absent true"},
	} {
		o := testOperation(t, Destination{URL: replying(t, tc.status, nil, tc.body).URL, JSONAnswers: tc.json}, Action{Request: "POST /", Lookup: lookup})
		finding, err := ask(t, o, testCall(`{}`))
		if got := fmt.Sprintf("%s %t", found(finding), err == nil); got != tc.want {
			t.Errorf("%+v: is %s", tc, got)
		}
	}
}

func TestALookupThatCannotBeAskedIsAnErrorAndSaysNothing(t *testing.T) {
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"data":[`)
	}))
	t.Cleanup(cut.Close)
	lookup := SentLog("GET /log?ref={{.Key}}", "/data", "/ref")
	for name, url := range map[string]string{"cut": cut.URL, "down": "http://127.0.0.1:1"} {
		finding, err := ask(t, testOperation(t, Destination{URL: url}, Action{Request: "POST /", Lookup: lookup}), testCall(`{}`))
		if err == nil || found(finding) != "" {
			t.Errorf("%s: is %s, %v", name, found(finding), err)
		}
	}
	e := testOperation(t, Destination{URL: cut.URL}, Action{Request: "POST /", Lookup: SentLog("GET /log/{{.Payload.gone}}", "/data", "/ref")})
	if finding, err := ask(t, e, testCall(`{}`)); err == nil || found(finding) != "inconclusive" {
		t.Errorf("without what it asks for: is %s, %v", found(finding), err)
	}
}

func TestALookupIsNotMadeAgainBeforeTheVendorSaid(t *testing.T) {
	for status, want := range map[int]string{401: "denied", 407: "denied", 429: "wait", 503: "wait", 403: "wait", 413: "wait", 424: "wait", 499: "wait"} {
		server := replying(t, status, map[string]string{"Retry-After": "3600"}, "{}")
		e := testOperation(t, Destination{URL: server.URL}, Action{Request: "POST /", Lookup: SentLog("GET /log?ref={{.Key}}", "/data", "/ref")})
		finding, err := ask(t, e, testCall(`{}`))
		if found(finding) != "inconclusive" || err == nil || verdict(err) != want || askedWait(err) != time.Hour {
			t.Errorf("%d: is %s, %v", status, found(finding), err)
		}
	}
}

func TestALookupMayUseWhatWasRendered(t *testing.T) {
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
			Rules: []LookupRule{{Match{Status: Statuses{{200, 200}}}, Found}},
		}}
		call, _, err := rendered(t, Destination{URL: server.URL}, action, testCall(`{"mail":"a@b.example"}`))
		if err != nil {
			t.Fatal(err)
		}
		if finding, err := ask(t, testOperation(t, Destination{URL: server.URL}, action), call); err != nil || found(finding) != "delivered" {
			t.Errorf("%s: is %s, %v", name, found(finding), err)
		}
		if r := <-requests; r.RequestURI != "/search?to=a%40b.example" || r.body != `{"both": "`+tc.want+`"}` || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: asked %s with %s", name, r.RequestURI, r.body)
		}
	}
}

func TestLookupsThatCannotBeMeantAreRefused(t *testing.T) {
	fine := []LookupRule{{Match{Status: Statuses{{200, 200}}}, Found}}
	for says, lookup := range map[string]Lookup{
		"Request that is missing":   {Rules: fine},
		"neither GET nor POST":      {Request: "PUT /", Rules: fine},
		"Request is a GET":          {Request: "GET /", Body: "{}", Rules: fine},
		"no rule that means found":  {Request: "GET /", Rules: []LookupRule{{Match{Field: "/a"}, Absent}}},
		"rule number 1: fits every": {Request: "GET /", Rules: []LookupRule{{Match{}, Found}}},
		`Means "delivered" is none`: {Request: "GET /", Rules: []LookupRule{{Match{Field: "/a"}, "delivered"}}},
		"is no template":            {Request: "GET /", Rules: []LookupRule{{Match{Field: "/a", Values: []string{"{{"}}, Found}}},
	} {
		_, _, err := testClient(t, Destination{URL: "https://a.example"}).Handler(Action{Name: "a", Request: "POST /", Lookup: &lookup, Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}})
		if err == nil || !strings.Contains(err.Error(), "a: Lookup has ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", says, err)
		}
		_, err = New(Destination{Name: "d", URL: "https://a.example", Lookup: &lookup})
		if err == nil || !strings.Contains(err.Error(), "d: Lookup has ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, of a destination: %v", says, err)
		}
	}
}

// What the action has goes before what its destination has; a read is made again, and has none of the destination's.
func TestAnActionWithoutALookupOfItsOwnHasTheDestinations(t *testing.T) {
	db := database(t)
	by := func(path string) *Lookup {
		return &Lookup{Request: "GET " + path, Rules: []LookupRule{{Match{Status: status(200, 200)}, Found}}}
	}
	inGo := dispatcher.WithLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Finding, error) {
		return dispatcher.Found(dispatcher.Answer{Code: "in Go"}), nil
	})
	for name, tc := range map[string]struct {
		class  dispatcher.Class
		action Action
		asked  string
		code   string
		calls  int
	}{
		"none":     {dispatcher.NonIdempotentWrite, Action{}, "[/destination]", "200", 1},
		"its own":  {dispatcher.NonIdempotentWrite, Action{Lookup: by("/action")}, "[/action]", "200", 1},
		"in Go":    {dispatcher.NonIdempotentWrite, Action{Options: []dispatcher.Option{inGo}}, "[]", "in Go", 1},
		"a stored": {dispatcher.IdempotentWrite, Action{Rules: []Rule{{Match: Match{Status: status(500, 500)}, Means: Stuck}}}, "[/destination]", "200", 1},
		"a read":   {dispatcher.Read, Action{}, "[]", "200", 2},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header("Idempotency-Key"), step{act: true, status: 500}, step{status: 200})
			v.log = func(*http.Request) (int, string) { return 200, "{}" }
			tc.action.Policy.Class = tc.class
			entry := played(t, db, Destination{Lookup: by("/destination")}, v, tc.action)
			if entry.Status != "delivered" || entry.Code != tc.code || fmt.Sprint(v.asked) != tc.asked || len(v.wire) != tc.calls {
				t.Errorf("is %s with %s after %d calls and the look-ups %v", entry.Status, entry.Code, len(v.wire), v.asked)
			}
			_, options, err := testClient(t, Destination{URL: v.URL, Lookup: by("/destination")}).Handler(Action{Name: "a", Request: "POST /", Policy: dispatcher.Policy{Class: tc.class}})
			if has := len(options) > 0; err != nil || has != (tc.class != dispatcher.Read) {
				t.Errorf("it is registered with a look-up: %t, %v", has, err)
			}
		})
	}
}
