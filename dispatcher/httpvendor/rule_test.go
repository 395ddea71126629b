package httpvendor

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// reply starts a server that answers each request with one status, headers and body.
func replying(t *testing.T, status int, header map[string]string, body string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestFirstMatchingRuleCounts(t *testing.T) {
	conflict := Match{Status: Statuses{{409, 409}}, Field: "/error/code", Values: []string{"in_progress", "busy"}}
	rules := []Rule{
		{Match: conflict, Outcome: dispatcher.Retry},
		{Match: Match{Status: Statuses{{409, 409}}, Field: "/error/code"}, Outcome: dispatcher.Dead, Reason: "the key was used for something else"},
		{Match: Match{Status: Statuses{{200, 299}}, Field: "/errors/*/kind", Values: []string{"declined"}}, Outcome: dispatcher.Refused},
		{Match: Match{Status: Statuses{{200, 299}}, Field: "/error"}, Outcome: dispatcher.Dead},
		{Match: Match{Status: Statuses{{200, 299}}, Field: "/amount", Values: []string{"9007199254740993"}}, Outcome: dispatcher.Unknown},
		{Match: Match{Status: Statuses{{200, 299}}, Field: "/ok", Values: []string{"false"}}, Outcome: dispatcher.Stuck},
		{Match: Match{Status: Statuses{{200, 299}}, Field: "/a~1b/m~0n/1"}, Outcome: dispatcher.Accepted},
		{Match: Match{Header: "X-Auth", Values: []string{"Expired"}}, Outcome: dispatcher.Denied},
	}
	for _, tc := range []struct {
		status int
		header map[string]string
		body   string
		want   string
	}{
		{409, nil, `{"error":{"code":"busy"}}`, "retry"},
		{409, nil, `{"error":{"code":"mismatch"}}`, "dead"},
		{409, nil, `{"error":{"code":null}}`, "stuck"}, // no rule matches: the generic table
		{200, nil, `{"errors":[{"kind":"x"},{"kind":"declined"}]}`, "refused"},
		{200, nil, `{"errors":[]}`, "delivered"},
		{200, nil, `{"error":"no"}`, "dead"},
		{200, nil, `{"error":null}`, "delivered"},
		{200, nil, `{"amount":9007199254740993}`, "unknown"},
		{200, nil, `{"amount":9007199254740992}`, "delivered"},
		{200, nil, `{"ok":false}`, "stuck"},
		{200, nil, `{"a/b":{"m~n":[1,2]}}`, "accepted"},
		{200, nil, `{"a/b":{"m~n":[1]}}`, "delivered"},
		{200, nil, `not JSON`, "unknown"}, // a proxy's page, perhaps
		{200, nil, `{"error":"no"} and more`, "unknown"},
		{200, nil, "\xef\xbb\xbf" + `{"error":"no"}`, "dead"},
		{200, nil, "\xef\xbb\xbf" + `{"id":1}`, "delivered"},
		{200, nil, "", "delivered"},
		{404, nil, `<html>`, "dead"},
		{400, map[string]string{"x-auth": "expired"}, "", "denied"},
		{400, map[string]string{"x-auth": "fine"}, "", "dead"},
		{500, map[string]string{"Idempotent-Replayed": "true"}, "", "stuck"},
		{500, map[string]string{"Idempotent-Replayed": "true", "Retry-After": "1"}, "", "stuck"},
		{500, map[string]string{"Idempotent-Replayed": "false"}, "", "unknown"},
		{201, map[string]string{"Idempotent-Replayed": "true"}, "", "delivered"},
		{600, map[string]string{"Idempotent-Replayed": "true"}, "", "unknown"}, // not a server error
	} {
		t.Run(fmt.Sprint(tc.status, tc.header, tc.body), func(t *testing.T) {
			server := replying(t, tc.status, tc.header, tc.body)
			// Half of the rules belong to the action and half to the destination. Their order is the same.
			handler := testHandler(t, Destination{URL: server.URL, Rules: rules[4:]}, Action{Rules: rules[:4]})
			answer, err := attempt(t, handler, testCall("{}"), patience)
			if verdict(err) != tc.want {
				t.Fatalf("is %s (%v), want %s", verdict(err), err, tc.want)
			}
			if answer.Code != fmt.Sprint(tc.status) || string(answer.Body) != tc.body {
				t.Errorf("kept %q %q", answer.Code, answer.Body)
			}
			if strings.Contains(tc.body, "mismatch") && !strings.HasSuffix(err.Error(), "answered 409: the key was used for something else") {
				t.Error(err)
			}
		})
	}
}

// If an answer leads to another call, that call does not start before the vendor's time.
func TestRetryAfterOfUnknownAndDenied(t *testing.T) {
	conflict := []Rule{{Match: Match{Status: Statuses{{409, 409}}}, Outcome: dispatcher.Unknown}, {Match: Match{Status: Statuses{{500, 500}}}, Outcome: dispatcher.Stuck}}
	for _, tc := range []struct {
		status int
		class  dispatcher.Class
		want   string
	}{
		{409, dispatcher.IdempotentWrite, "unknown"},
		{500, dispatcher.IdempotentWrite, "stuck"},
		{503, dispatcher.NonIdempotentWrite, "unknown"},
		{401, dispatcher.IdempotentWrite, "denied"},
	} {
		server := replying(t, tc.status, map[string]string{"Retry-After": "3600"}, "{}")
		handler := testHandler(t, Destination{URL: server.URL, Rules: conflict}, Action{Policy: dispatcher.Policy{Class: tc.class}})
		_, err := attempt(t, handler, testCall("{}"), patience)
		if verdict(err) != tc.want || askedWait(err) != time.Hour {
			t.Errorf("%d: is %s and waits %v (%v), want %s and an hour", tc.status, verdict(err), askedWait(err), err, tc.want)
		}
	}
}

// A member of the body counts as the header does: seconds or a date, and the longer wait of the two.
func TestRetryAfterFromTheBody(t *testing.T) {
	in := func(header string) map[string]string { return map[string]string{"Retry-After": header} }
	date := time.Now().Add(2 * time.Hour).UTC().Format(http.TimeFormat)
	for _, tc := range []struct {
		status int
		header map[string]string
		body   string
		class  dispatcher.Class
		want   string
		wait   time.Duration
	}{
		{429, nil, `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, retry, 30 * time.Second},
		{429, nil, `{"error":{"retry_in":"30"}}`, dispatcher.IdempotentWrite, retry, 30 * time.Second},
		{429, nil, `{"error":{"retry_in":1.2}}`, dispatcher.IdempotentWrite, retry, 2 * time.Second},
		{429, in("7"), `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, retry, 30 * time.Second},
		{429, in("40"), `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, retry, 40 * time.Second},
		{429, map[string]string{"Date": "Sun, 01 Mar 2026 12:00:00 GMT"}, `{"error":{"retry_in":"Sun, 01 Mar 2026 14:00:00 GMT"}}`, dispatcher.IdempotentWrite, retry, 2 * time.Hour},
		{429, map[string]string{"Date": "not one"}, `{"error":{"retry_in":"` + date + `"}}`, dispatcher.IdempotentWrite, retry, time.Hour}, // by this clock
		{429, nil, `{"error":{"retry_in":-5}}`, dispatcher.IdempotentWrite, retry, 0},
		{429, nil, `{"error":{"retry_in":"soon"}}`, dispatcher.IdempotentWrite, retry, 0},
		{429, nil, `{"error":{"retry_in":1e3}}`, dispatcher.IdempotentWrite, retry, 0},
		{429, nil, `{"error":{}}`, dispatcher.IdempotentWrite, retry, 0},
		{429, nil, `30`, dispatcher.IdempotentWrite, retry, 0},
		{429, nil, `{"error":{"retry_in":30}} and more`, dispatcher.IdempotentWrite, retry, 0},
		{503, nil, `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, retry, 30 * time.Second},
		{503, nil, `{"error":{"retry_in":30}}`, dispatcher.NonIdempotentWrite, "unknown", 30 * time.Second},
		{403, nil, `{"error":{"retry_in":30}}`, dispatcher.NonIdempotentWrite, retry, 30 * time.Second},
		{403, nil, `{"error":{"retry_in":"soon"}}`, dispatcher.NonIdempotentWrite, "dead", 0},
		{413, nil, `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, retry, 30 * time.Second},
		{401, nil, `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, "denied", 30 * time.Second},
		{409, nil, `{"error":{"retry_in":30}}`, dispatcher.IdempotentWrite, "stuck", 30 * time.Second},
	} {
		server := replying(t, tc.status, tc.header, tc.body)
		action := Action{Policy: dispatcher.Policy{Class: tc.class, ResponseCap: 4}}
		dest := Destination{URL: server.URL, RetryAfter: "/error/retry_in"}
		for _, own := range []bool{false, true} {
			if own {
				action.RetryAfter, dest.RetryAfter = "/error/retry_in", "/other"
			}
			_, err := attempt(t, testHandler(t, dest, action), testCall("{}"), patience)
			if verdict(err) != tc.want || askedWait(err) != tc.wait {
				t.Errorf("%d %v %s: is %s and waits %v (%v), want %s and %v", tc.status, tc.header, tc.body, verdict(err), askedWait(err), err, tc.want, tc.wait)
			}
		}
	}
}

func TestOrderOfRulesAndLists(t *testing.T) {
	server := replying(t, 402, nil, `{"code":"x"}`)
	fits := func(outcome func(dispatcher.Response) dispatcher.Outcome) []Rule {
		return []Rule{{Match: Match{Status: Statuses{{402, 402}}, Field: "/code"}, Outcome: outcome}}
	}
	refused := Statuses{{402, 402}}
	for want, handler := range map[string]handler{
		"dead":    testHandler(t, Destination{URL: server.URL, Rules: fits(dispatcher.Dead)}, Action{Refused: refused}),
		"unknown": testHandler(t, Destination{URL: server.URL, Rules: fits(dispatcher.Dead)}, Action{Refused: refused, Rules: fits(dispatcher.Unknown)}),
		"refused": testHandler(t, Destination{URL: server.URL}, Action{Refused: refused}),
	} {
		if _, err := attempt(t, handler, testCall("{}"), patience); verdict(err) != want {
			t.Errorf("is %s (%v), want %s", verdict(err), err, want)
		}
	}
}

func TestRuleSeesABodyThatIsNotStored(t *testing.T) {
	body := `{"pad":"` + strings.Repeat("x", 200_000) + `","error":"no"}`
	server := replying(t, 200, nil, body)
	rules := []Rule{{Match: Match{Field: "/error"}, Outcome: dispatcher.Dead}}
	for _, limit := range []int{-1, 10, 1000} {
		handler := testHandler(t, Destination{URL: server.URL}, Action{Rules: rules, Policy: dispatcher.Policy{ResponseCap: limit}})
		answer, err := attempt(t, handler, testCall("{}"), patience)
		if verdict(err) != "dead" || len(answer.Body) != max(limit, 0) || !strings.HasPrefix(body, string(answer.Body)) {
			t.Errorf("cap %d: is %s (%v), kept %d bytes", limit, verdict(err), err, len(answer.Body))
		}
	}
}

// A rule might have matched the missing part of a body.
func TestRuleWithoutTheWholeBodyIsUnknown(t *testing.T) {
	long := replying(t, 200, nil, `{"pad":"`+strings.Repeat("x", rulesLimit)+`","error":"no"}`)
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(409)
		_, _ = io.WriteString(w, `{"error":`)
	}))
	t.Cleanup(cut.Close)
	for name, url := range map[string]string{"long": long.URL, "cut": cut.URL} {
		rules := []Rule{{Match: Match{Status: Statuses{{200, 409}}, Field: "/error"}, Outcome: dispatcher.Dead}}
		if _, err := attempt(t, testHandler(t, Destination{URL: url}, Action{Rules: rules}), testCall("{}"), patience); verdict(err) != "unknown" {
			t.Errorf("%s: is %s (%v), want unknown", name, verdict(err), err)
		}
		rules[0].Status = Statuses{{500, 599}}                             // for another status
		want := map[string]string{"long": "unknown", "cut": "stuck"}[name] // a 200 and a 409
		if _, err := attempt(t, testHandler(t, Destination{URL: url}, Action{Rules: rules}), testCall("{}"), patience); verdict(err) != want {
			t.Errorf("%s, a rule for another status: is %s (%v), want %s", name, verdict(err), err, want)
		}
	}
}

func TestRetryRuleNeedsAClassThatAllowsRepeats(t *testing.T) {
	rule := Rule{Match: Match{Status: Statuses{{409, 409}}}, Outcome: dispatcher.Retry}
	server := replying(t, 409, nil, "")
	for class, want := range map[dispatcher.Class]string{
		dispatcher.IdempotentWrite: "retry", dispatcher.NonIdempotentWrite: "unknown", dispatcher.IrreversibleWrite: "unknown",
	} {
		handler := testHandler(t, Destination{URL: server.URL, Rules: []Rule{rule}}, Action{Policy: dispatcher.Policy{Class: class}})
		if _, err := attempt(t, handler, testCall("{}"), patience); verdict(err) != want {
			t.Errorf("%v: is %s (%v), want %s", class, verdict(err), err, want)
		}
	}
	client := testClient(t, Destination{URL: "https://a.example"})
	action := Action{Request: "POST /", Rules: []Rule{rule}, Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}}
	if _, _, err := client.handler(action); err == nil || !strings.Contains(err.Error(), "Rules[1].Outcome: retry is not allowed for a class that forbids repeats") {
		t.Errorf("an action's own: %v", err)
	}
	action.Rules[0].Status = Statuses{{429, 429}}
	if _, _, err := client.handler(action); err != nil {
		t.Error(err)
	}
}

func TestAccepted(t *testing.T) {
	server := replying(t, 202, map[string]string{"Retry-After": "7"}, `{"state":"queued"}`)
	action := Action{Accepted: Statuses{{202, 202}}}
	for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		action.Policy.Class = class
		_, err := attempt(t, testHandler(t, Destination{URL: server.URL}, action), testCall("{}"), patience)
		if verdict(err) != "accepted" || askedWait(err) != 7*time.Second || !bytes.Contains(answerOf(err).Body, []byte("queued")) {
			t.Errorf("%v: is %s of %v (%v), want accepted", class, verdict(err), askedWait(err), err)
		}
	}
	if got := fmt.Sprint(defaultDelivered(Statuses{{202, 202}, {299, 299}})); got != "[[200 201] [203 205] [208 298]]" {
		t.Error(got)
	}
}

// Case 21: no call starts earlier than the vendor asked for, up to a day.
func TestLongerRetryAfterOfARuleCounts(t *testing.T) {
	server := replying(t, 409, map[string]string{"Retry-After": "7200"}, "")
	rule := Rule{Match: Match{Status: Statuses{{409, 409}}}, Outcome: dispatcher.Retry}
	_, err := attempt(t, testHandler(t, Destination{URL: server.URL, Rules: []Rule{rule}}, Action{}), testCall("{}"), patience)
	if verdict(err) != "retry" || askedWait(err) != 2*time.Hour {
		t.Errorf("is %s of %v (%v)", verdict(err), askedWait(err), err)
	}
}

// A proxy's page can have status 200 too.
func TestSuccessOfAJSONVendorIsJSON(t *testing.T) {
	const page = "<html>Welcome to the hotel's network</html>"
	for name, tc := range map[string]struct {
		dest Destination
		body string
		want string
	}{
		"stripe": {Stripe(), page, "unknown"}, "adyen": {Adyen(), page, "unknown"}, "paypal": {PayPal(), page, "unknown"},
		"square": {Square(), page, "unknown"}, "checkout": {Checkout(), page, "unknown"}, "resend": {Resend(), page, "unknown"},
		"any other": {Generic(), page, "delivered"}, "no body": {Stripe(), "", "delivered"}, "JSON": {Stripe(), `{"id":"ch_1"}`, "delivered"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.dest.URL = replying(t, 200, nil, tc.body).URL
			call := testCall(`{}`)
			call.Rendered = &dispatcher.Rendered{Type: renderedType, Request: sending{method: "POST", path: "/v1/charges", body: []byte("{}")}.bytes()}
			if _, err := attempt(t, testHandler(t, tc.dest, Action{}), call, patience); verdict(err) != tc.want {
				t.Errorf("it is %s, want %s", verdict(err), tc.want)
			}
			no := Action{Delivered: status(299, 299), Refused: status(200, 200)} // a proxy can refuse too
			want := strings.Replace(tc.want, "delivered", "refused", 1)
			if _, err := attempt(t, testHandler(t, tc.dest, no), call, patience); verdict(err) != want {
				t.Errorf("as a refusal it is %s, want %s", verdict(err), want)
			}
		})
	}
}
