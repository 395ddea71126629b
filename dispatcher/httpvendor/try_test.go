package httpvendor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// Each answer is given by a server, and tried: both mean the same.
func TestTriedAnswerMeansWhatASentOneMeans(t *testing.T) {
	preset := Stripe()
	preset.RetryAfter, preset.Secrets = "/error/retry_in", []string{"s3cret-id"}
	lookup := &Lookup{Request: "GET /", Rules: []Rule{
		{Match: Match{Status: status(200, 200), Field: "/data/*/key", Values: []string{"{{.Key}}"}}, Outcome: dispatcher.Delivered, Reference: "/data/*/id"},
		{Match: Match{Status: status(200, 200), Contains: []string{"{{.Key}}"}}, Outcome: dispatcher.Refused},
		{Match: Match{Status: status(200, 200), Field: "/data"}, Outcome: dispatcher.Absent},
	}}
	bodies := []string{
		"", "ok", `{"id":"ch_1"}`, `{"id":"s3cret-id"}`, `{"status":"processing","id":"pi_1"}`, `{"error":{"type":"idempotency_error"}}`,
		`{"error":{"retry_in":30}}`, `{"error":{"code":"idempotency_key_in_use"}}`, `{"data":[]}`, `{"data":[{"id":"x","key":"other"}]}`,
		`{"data":[{"id":"ch_2","key":"` + deliveryKey.String() + `"}]}`, strings.Repeat("x", 70<<10), strings.Repeat(" ", 1<<20) + "{}",
	}
	headers := []map[string]string{nil, {"Retry-After": "7"}, {"Stripe-Should-Retry": "true"}, {"Idempotent-Replayed": "true"}}
	var answer Answer // of the server
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		if answer.BrokenOff {
			w.Header().Set("Content-Length", fmt.Sprint(len(answer.Body)+1))
		}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
	}))
	t.Cleanup(server.Close)
	preset.URL = server.URL
	vendor, plain := testClient(t, preset), testClient(t, Destination{URL: server.URL})
	text := Rule{Match: Match{Status: status(200, 299), Equals: []string{"ok"}}, Outcome: dispatcher.Delivered}
	for _, at := range []struct {
		client *Client
		class  dispatcher.Class
	}{{plain, dispatcher.IdempotentWrite}, {vendor, dispatcher.Read}, {vendor, dispatcher.IdempotentWrite}, {vendor, dispatcher.NonIdempotentWrite}} {
		client, class := at.client, at.class
		action := Action{Request: "POST /", Rules: []Rule{text}, Refused: status(422, 422), Accepted: status(202, 202), Lookup: lookup, Policy: dispatcher.Policy{Class: class}}
		_, delivery, err := client.handler(action)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range []int{200, 201, 202, 206, 301, 400, 401, 402, 403, 409, 413, 422, 429, 500, 503, 600} {
			for i, body := range bodies {
				if len(body) > 60<<10 && code != 200 && code != 409 {
					continue
				}
				for _, header := range headers {
					for _, brokenOff := range []bool{false, i < 3} {
						answer = Answer{Status: code, Body: []byte(body), BrokenOff: brokenOff, Header: http.Header{}}
						for name, value := range header {
							answer.Header.Set(name, value)
						}
						for _, inLookup := range []bool{false, true} {
							do, call := delivery.Send, testCall("{}")
							tried := answer
							if inLookup {
								do, tried.Lookup = delivery.Lookup, call
							}
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							want, failed := do(ctx, call, call.Payload)
							cancel()
							got, err := client.Try(action, tried)
							at := fmt.Sprintf("%v %d %.40q %v broken off %v lookup %v", class, code, body, header, brokenOff, inLookup)
							switch {
							case err != nil:
								t.Fatalf("%s: %v", at, err)
							case got.AskAgain != (failed != nil):
								t.Errorf("%s: asked again %v, but %v", at, got.AskAgain, failed)
							case failed == nil && fmt.Sprintf("%+v", got.Outcome) != fmt.Sprintf("%+v", want):
								t.Errorf("%s: is %+v, want %+v", at, got.Outcome, want)
							case got.By == "" && got.Why == "":
								t.Errorf("%s: nothing decided", at)
							case strings.Contains(fmt.Sprintf("%+v", got), "s3cret"):
								t.Errorf("%s: a secret is in %+v", at, got)
							}
						}
					}
				}
			}
		}
	}
}

func TestTryNamesWhatDecided(t *testing.T) {
	dest := Stripe()
	dest.Name, dest.URL, dest.RetryAfter = "stripe", "https://api.stripe.com", "/retry_in"
	dest.Lookup = SentLog("GET /", "/data", "/key")
	dest.Rules = append([]Rule{{Match: Match{Header: "X-Own"}, Outcome: dispatcher.Dead, Reason: "our own"}}, dest.Rules...)
	client, err := New(dest)
	if err != nil {
		t.Fatal(err)
	}
	rules := []Rule{
		{Match: Match{Status: status(418, 418)}, Outcome: dispatcher.Refused, Reference: "/ref"},
		{Match: Match{Status: status(423, 423)}, Outcome: dispatcher.Retry},
		{Match: Match{Status: status(424, 424), Contains: []string{"busy"}}, Outcome: dispatcher.Denied},
	}
	action := Action{Request: "POST /", Rules: rules, Refused: status(422, 422), Accepted: status(202, 202), Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, ResponseCap: 10}}
	once := action
	once.Policy.Class, once.Rules = dispatcher.NonIdempotentWrite, rules[:1]
	own := action
	own.Lookup = SentLog("GET /", "/data", "/key")
	header := func(name, value string) http.Header { return http.Header{name: {value}} }
	lookup := testCall("{}")
	for _, tc := range []struct {
		action Action
		answer Answer
		want   string // outcome, reference, wait, what decided, why, reason
	}{
		{action, Answer{Status: 418, Body: []byte(`{"ref":7}`)}, "refused 7 0s Action.Rules[1] () ()"},
		{action, Answer{Status: 418, BrokenOff: true}, "unknown  0s Action.Rules[1] (and the answer broke off: the other side closed the connection before the answer's end) (and the answer broke off: the other side closed the connection before the answer's end)"},
		{action, Answer{Status: 424, Body: []byte("not now: busy")}, "unknown  0s Action.Rules[3] (its body broke off or is too long, and a rule looks into it) (its body broke off or is too long, and a rule looks into it)"},
		{action, Answer{Status: 400, Header: header("X-Own", "1")}, "dead  0s Destination.Rules[1] () (our own)"},
		{action, Answer{Status: 402, Body: []byte(`{"error":{"payment_intent":{"id":"pi_1"}}}`)}, "refused pi_1 0s Destination.Rules[7] () ()"},
		{action, Answer{Status: 200, Body: []byte("page")}, "unknown  0s Destination.JSONAnswers (its body is not JSON, as it should be: it may be a proxy's page) (its body is not JSON, as it should be: it may be a proxy's page)"},
		{action, Answer{Status: 200, Body: []byte(`{"id":"ch_1"}`)}, "delivered ch_1 0s Action.Delivered () ()"},
		{action, Answer{Status: 202}, "accepted  0s Action.Accepted () ()"},
		{action, Answer{Status: 422}, "refused  0s Action.Refused () ()"},
		{action, Answer{Status: 429, Body: []byte(`{"retry_in":90}`)}, "retry  1m30s for the account  (too many requests) (the vendor asks to retry later)"},
		{action, Answer{Status: 429, Header: header("Retry-After", "99999999")}, "retry  24h0m0s for the account  (too many requests) (the vendor asks to retry later)"},
		{action, Answer{Status: 503, Header: header("Retry-After", "5")}, "retry  5s  (a server or a gateway failed; 501, 505 and 511 prove no more; with a time to wait for, a call that may be repeated is postponed) (the vendor asks to retry later)"},
		{once, Answer{Status: 503, Header: header("Retry-After", "5")}, "unknown  5s  (a server or a gateway failed; 501, 505 and 511 prove no more) (the vendor may have acted)"},
		{once, Answer{Status: 409}, "unknown  0s Destination.Rules[6] (the rule means retry, but the call may not be repeated, and only a 429 proves that the vendor did not act) (it conflicts with a call that is still running)"},
		{action, Answer{Status: 499}, "unknown  0s  (no standard defines the status) (the vendor may have acted)"},
		{action, Answer{Status: 200, Lookup: lookup, Body: []byte(`{"data":[]}`)}, "absent  0s Destination.Lookup.Rules[3] () ()"},
		{own, Answer{Status: 200, Lookup: lookup, Body: []byte(`{"data":[]}`)}, "absent  0s Action.Lookup.Rules[3] () ()"},
		{own, Answer{Status: 200, Lookup: lookup, Body: []byte("page")}, "unknown  0s Destination.JSONAnswers (its body is not JSON, as it should be, so no rule counts) ()"},
		{own, Answer{Status: 503, Lookup: lookup}, "again unknown  0s  (a server or a gateway failed; 501, 505 and 511 prove no more) ()"},
	} {
		v, err := client.Try(tc.action, tc.answer)
		got := fmt.Sprintf("%s %s %v", v.Outcome.Kind(), v.Reference, v.Wait)
		if v.AskAgain {
			got = "again " + got
		}
		if v.ForAccount {
			got += " for the account"
		}
		if got += fmt.Sprintf(" %s (%s) (%s)", v.By, v.Why, v.Reason); err != nil || got != tc.want {
			t.Errorf("%d %s: %v\nis   %s\nwant %s", tc.answer.Status, tc.answer.Body, err, got, tc.want)
		}
	}
}

func TestTryRefusesWhatCannotBeJudged(t *testing.T) {
	client, err := New(Destination{Name: "bank", URL: "https://bank.example"})
	if err != nil {
		t.Fatal(err)
	}
	action := Action{Request: "GET /", Policy: dispatcher.Policy{Class: dispatcher.Read, Timeout: time.Minute}}
	asked := action
	asked.Lookup = &Lookup{Request: "GET /", Rules: []Rule{{Match: Match{Field: "/id", Values: []string{"{{.Payload.id}}"}}, Outcome: dispatcher.Delivered}}}
	var errs dispatcher.ConfigErrors
	if _, err := client.Try(Action{}, Answer{Status: 200}); !errors.As(err, &errs) || !strings.Contains(err.Error(), "Request: is missing") {
		t.Errorf("a mistaken action: %v", err)
	}
	for _, tc := range []struct {
		action Action
		answer Answer
		want   string
	}{
		{action, Answer{}, "0 is not the status of an answer"}, {action, Answer{Status: 100}, "100 is not the status of an answer"},
		{action, Answer{Status: 200, Lookup: testCall("{}")}, "the action has no lookup"},
		{asked, Answer{Status: 200, Lookup: testCall("{}"), Body: []byte(`{"id":1}`)}, "the lookup's rules: "},
	} {
		if _, err := client.Try(tc.action, tc.answer); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
}
