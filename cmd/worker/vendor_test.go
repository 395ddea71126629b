package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

func TestVendorFieldsAreRead(t *testing.T) {
	c, err := loadText(t, `
destinations:
  stripe:
    url: https://api.stripe.com
    auth: {bearer: "${env:TOKEN}"}
    rate: 600/m
    burst: 20
    break_after: 0
    rules:
      - {status: 424, outcome: unknown, reason: "a network of cards is down, $5"}
    preset: stripe
  square: {url: "https://connect.squareup.com", preset: square, key: {max_length: 30}, key_window: 12h}
  mail: {preset: stripe, url: "https://mail.example", key: none, auth: {user: api, password: "${env:TOKEN}"}}
  own:
    url: https://own.example
    key: {header: X-Key, quoted: true, max_length: 40, alphabet: 0123456789abcdef-}
    key_window: forever
    replay: state
    mismatch: ignored
    json_answers: true
    http2: true
    retry_after: /error/retry_in
    reference: /ref
    auth: {header: X-Api-Key, value: "${env:TOKEN}"}
    allow_private: [10.0.0.0/8, "fd00::/8"]
    lookup:
      request: GET /ops{{with .Response}}/{{.id}}{{else}}?key={{$.Key}}{{end}}
      rules:
        - {status: 200, outcome: delivered}
  hook: {url: "https://hook.example", preset: webhooks, webhook_secrets: ["whsec_${env:HOOK}", "${env:HOOK}"], signature: [standard, {form: hmac, header: X-Mac, encoding: base64, prefix: "v0="}]}
  hooks: {preset: webhooks, per_endpoint: 2, signature: github, stop_after: 5d}
  shops: {url: "https://shops.example", endpoint: "{{.Payload.shop}}"}
  posted: {url: "https://posted.example", key: {field: ref}, key_window: 1h, rate: 2.5, break_after: 3, break_delay: 2s, max_break_delay: 5m}
actions:
  notify: {destination: hooks, request: POST, class: idempotent_write, key_window: forever, deadline: 3d}
  charge_card:
    destination: stripe
    request: POST /v1/charges/{{.Payload.id}}
    class: idempotent_write
    body:
      format: form
      template: |
        {"amount": {{.Payload.amount}}}
      fields: {source: shop, "metadata[order]": "o-{{.Payload.id}}", zero: 0}
    rules:
      - status: [200-299, 404]
        field: /error/code
        values: [declined, 7]
        outcome: refused
      - header: X-Later
        outcome: retry
        reference: /error/id
      - {status: 200, contains: [it is ok, ok], outcome: delivered}
      - {status: 200, equals: no, outcome: dead}
    retry_after: /error/wait
    accepted: 202
    reference: /charge/id
    completion_time: 2d
    lookup:
      request: GET /v1/charges?ref={{.Key}}
      rules:
        - {status: 200, field: "/data/*/ref", values: "{{.Key}}", outcome: delivered}
        - {status: 404, outcome: absent}
  send_mail:
    destination: mail
    request: POST /send
    class: non_idempotent_write
    resend_absent: true
    lookup: {request: "GET /sent?key={{.Key}}", list: /Messages, field: /Metadata/key, reference: "/Messages/*/ID"}
  once:
    destination: own
    request: POST /ops
    class: non_idempotent_write
    resend_absent: true
`, map[string]string{"TOKEN": "sk_live_1", "HOOK": "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	if err != nil {
		t.Fatal(err)
	}
	d := dispatcher.New(nil, nil)
	c.register(d)
	if err := d.Check(); err != nil {
		t.Error(err)
	}
	stripe, square, mail, own := c.destinations[0], c.destinations[1], c.destinations[2], c.destinations[3]
	preset := httpvendor.Stripe()
	if !reflect.DeepEqual(stripe.Vendor, preset.Vendor) || len(stripe.Rules) != len(preset.Rules)+1 || stripe.Rules[0].Outcome(dispatcher.Response{}).Kind() != "unknown" ||
		stripe.Rules[0].Reason != "a network of cards is down, $5" || stripe.Auth.Bearer != "sk_live_1" {
		t.Errorf("%+v", stripe.Destination)
	}
	if square.Vendor.Key != (dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "idempotency_key", MaxLength: 30}) || square.Vendor.Window != 12*time.Hour {
		t.Errorf("%+v", square.Vendor)
	}
	if mail.Vendor != (dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, Window: 24 * time.Hour, Replay: dispatcher.ReplayNothing}) || mail.Auth != (httpvendor.Auth{User: "api", Password: "sk_live_1"}) {
		t.Errorf("%+v", mail.Destination)
	}
	want := dispatcher.Vendor{Window: dispatcher.Forever, Replay: dispatcher.ReplayState, Mismatch: dispatcher.MismatchIgnored, Key: dispatcher.KeyRules{
		Place: dispatcher.KeyInHeader, Name: "X-Key", MaxLength: 40, Alphabet: "0123456789abcdef-", Quoted: true}}
	if own.Vendor != want || !own.JSONAnswers || !stripe.JSONAnswers || c.destinations[7].JSONAnswers || fmt.Sprint(own.AllowPrivate) != "[10.0.0.0/8 fd00::/8]" || own.Auth != (httpvendor.Auth{Header: "X-Api-Key", Value: "sk_live_1"}) {
		t.Errorf("%+v", own.Destination)
	}
	if got := own.Lookup.Request + rulesOf(own.Lookup.Rules); got != "GET /ops{{with .Response}}/{{.id}}{{else}}?key={{$.Key}}{{end}}[{[[200 200]]   [] [] []} delivered]" {
		t.Error(got)
	}
	if stripe.Limits != (dispatcher.Limits{Rate: 10, Burst: 20, BreakAfter: -1}) {
		t.Errorf("%+v", stripe.Limits)
	}
	if posted := c.destinations[7].Limits; posted != (dispatcher.Limits{Rate: 2.5, BreakAfter: 3, BreakDelay: 2 * time.Second, MaxBreakDelay: 5 * time.Minute}) {
		t.Errorf("%+v", posted)
	}
	hook := c.destinations[4]
	if hook.Vendor.Key.Name != "webhook-id" || strings.Join(hook.WebhookSecrets, " ") != "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" {
		t.Errorf("%+v", hook.Destination)
	}
	forms := []httpvendor.Signature{{Form: "standard"}, {Form: "hmac", Header: "X-Mac", Encoding: "base64", Prefix: "v0="}}
	if !reflect.DeepEqual(hook.Signature, forms) || !reflect.DeepEqual(c.destinations[5].Signature, []httpvendor.Signature{{Form: "github"}}) {
		t.Errorf("%+v, %+v", hook.Signature, c.destinations[5].Signature)
	}
	if hooks, shops := c.destinations[5], c.destinations[6]; hook.Endpoint != "" || hooks.Endpoint != "{{.Part}}" || hooks.Limits.PerEndpoint != 2 || hooks.Limits.StopEndpointAfter != 5*24*time.Hour || hooks.Limits.Concurrency != 1000 || hook.Limits.Concurrency != 0 || shops.Endpoint != "{{.Payload.shop}}" {
		t.Errorf("%q, %+v, %q", hook.Endpoint, hooks.Destination, shops.Endpoint)
	}
	charge, send := c.actions[1], c.actions[2]
	if !reflect.DeepEqual(charge.Body, httpvendor.Body{Format: httpvendor.Form, Template: "{\"amount\": {{.Payload.amount}}}\n",
		Fields: []httpvendor.Field{{Name: "source", Value: "shop"}, {Name: "metadata[order]", Value: "o-{{.Payload.id}}"}, {Name: "zero", Value: "0"}}}) {
		t.Errorf("%+v", charge.Body)
	}
	if got := rulesOf(charge.Rules); got != "[{[[200 299] [404 404]]  /error/code [declined 7] [] []} refused][{[] X-Later  [] [] []} retry][{[[200 200]]   [] [it is ok ok] []} delivered][{[[200 200]]   [] [] [no]} dead]" {
		t.Error(got)
	}
	if got := charge.Lookup.Request + rulesOf(charge.Lookup.Rules); got != "GET /v1/charges?ref={{.Key}}[{[[200 200]]  /data/*/ref [{{.Key}}] [] []} delivered][{[[404 404]]   [] [] []} absent]" {
		t.Error(got)
	}
	if got := []string{stripe.Reference, own.Reference, charge.Reference, charge.Rules[1].Reference, send.Lookup.Reference}; strings.Join(got, " ") != "/id /ref /charge/id /error/id /Messages/*/ID" {
		t.Errorf("the references are %q", got)
	}
	if !own.HTTP2 || stripe.HTTP2 || own.RetryAfter != "/error/retry_in" || charge.RetryAfter != "/error/wait" {
		t.Errorf("%v %v %q %q", own.HTTP2, stripe.HTTP2, own.RetryAfter, charge.RetryAfter)
	}
	if fmt.Sprint(charge.Accepted) != "[[202 202]]" || charge.Policy.CompletionTime != 48*time.Hour || !send.Policy.ResendAbsent {
		t.Errorf("%+v %+v", charge.Action, send.Action)
	}
	if want := httpvendor.SentLog("GET /sent?key={{.Key}}", "/Messages", "/Metadata/key"); send.Lookup.Request != want.Request || rulesOf(send.Lookup.Rules) != rulesOf(want.Rules) {
		t.Errorf("%+v", send.Lookup)
	}
}

// rulesOf prints rules.
func rulesOf(rules []httpvendor.Rule) (text string) {
	for _, rule := range rules {
		text += fmt.Sprintf("[%v %s]", rule.Match, rule.Outcome(dispatcher.Response{}).Kind())
	}
	return text
}

func TestMistakesAboutVendors(t *testing.T) {
	c, err := loadText(t, `
destinations:
  a:
    preset: strype
    url: https://a.example
    key: {header: "bad header"}
    replay: maybe
    auth: {bearer: s3cret, user: s3cret}
    allow_private: [10.0.0.0/8, ten]
    rules:
      - {status: 409, outcome: dead}
      - status: 409
        outcome: perhaps
      - {outcome: dead}
  b:
    url: http://127.0.0.1:9
    key: {header: X, field: y}
  c: {url: "https://c.example", mismatch: refused, key: none, key_window: 1h}
  d:
    url: https://d.example
    key: {header: X, max_length: 5}
  f: {url: "https://f.example", webhook_secrets: s3cret, rate: 5/d, burst: 3, break_delay: 2h}
  e:
    preset: generic
    url: https://e.example
    key_window: 1h
  g: {preset: webhooks, auth: {bearer: s3cret}, endpoint: "{{"}
  h: {preset: webhooks, url: "https://h.example", per_endpoint: 3}
  i: {preset: webhooks, signature: [github, gitlab, {form: hmac, header: X-A, encoding: b64}]}
actions:
  five: {destination: i, request: POST, class: idempotent_write, key_window: 1h}
  six: {destination: h, request: POST, class: idempotent_write, key_window: 1h}
  one:
    destination: c
    request: POST /{{.Payload
    class: idempotent_write
    body: {format: xml}
    rules: {status: 409}
    resend_absent: perhaps
    schedule: [5s, soon]
  two:
    destination: e
    class: non_idempotent_write
    request: POST /
    resend_absent: true
    key_window: 2h
    body:
      template: "{}"
    rules:
      - {status: 500, outcome: retry}
  three:
    destination: e
    class: idempotent_write
    request: POST /
    key_window: 2h
    lookup:
      request: GET /
      rules:
        - {status: 200, outcome: delivered}
        - {status: 200, outcome: gone}
    accepted: 200
    delivered: 200
  four:
    destination: e
    class: idempotent_write
    request: POST /
    lookup: {request: GET /, list: /a}
`, nil)
	wantMistakes(t, c, err, `
FILE:4: destinations.a.preset: "strype" is not one of adyen, checkout, generic, mail, none, paypal, resend, square, stripe, webhooks
FILE:6: destinations.a.key: "bad header" is not a valid header name
FILE:7: destinations.a.replay: "maybe" is not one of answer, nothing, state, success
FILE:8: destinations.a.auth: set only one of bearer, user, header and oauth2
FILE:9: destinations.a.allow_private[2]: "ten" is not a range of addresses such as 10.0.0.0/8 or fd00::/8
FILE:13: destinations.a.rules[2].outcome: "perhaps" is not one of accepted, dead, delivered, denied, gone, refused, retry, stuck, unknown
FILE:14: destinations.a.rules[3]: matches every answer: set status, header, field, contains or equals
FILE:16: destinations.b.url: leads to an address that is not public: add its range to allow_private if it is intended
FILE:17: destinations.b.key: has both header and field, but the key goes into one of them
FILE:18: destinations.c.mismatch: not allowed: a vendor that takes no key compares nothing with it
FILE:21: destinations.d.key.max_length: 5 is too short: the 128 bits of a key need 20 characters of this alphabet
FILE:22: destinations.f.rate: "5/d" is not a rate such as 25 (a second), 600/m or 10/h
FILE:22: destinations.f.webhook_secrets: number 1 is not whsec_ and the base64 of 24 to 64 bytes
FILE:22: destinations.f.break_delay: 2h is outside the range 1ms to 1h
FILE:27: destinations.g.endpoint: is not a template: 1: unclosed action
FILE:27: destinations.g.auth: would be sent to every endpoint: each endpoint has its own, see package outbox/endpoints
FILE:28: destinations.h.webhook_secrets: missing: a receiver accepts only what is signed
FILE:28: destinations.h.per_endpoint: 3 is not allowed: no action of the destination has endpoints
FILE:29: destinations.i.signature[2].form: "gitlab" is not one of standard, github, stripe, hmac
FILE:29: destinations.i.signature[3].encoding: "b64" is not one of hex, base64
FILE:31: actions.five.deadline: missing: calls to an endpoint that cannot be reached use up no attempts, so set when to give up
FILE:35: actions.one.request: is not a template: 1: unclosed action
FILE:36: actions.one.class: idempotent_write does not fit the vendor, which acts again when a call is repeated: use non_idempotent_write
FILE:37: actions.one.body.format: "xml" is not one of form, json
FILE:38: actions.one.rules: must be a list (each item begins with - )
FILE:39: actions.one.resend_absent: "perhaps" is not one of false, true
FILE:40: actions.one.schedule[2]: "soon" is not a duration such as 500ms, 20s, 24h or 7d
FILE:45: actions.two.resend_absent: needs a lookup
FILE:46: actions.two.key_window: not allowed for non_idempotent_write: only an idempotent_write has one
FILE:47: actions.two.body.format: missing: a body with template or fields is json or form
FILE:50: actions.two.rules[1].outcome: retry is not allowed for a class that forbids repeats: only a 429 proves that the vendor did not act
FILE:55: actions.three.key_window: 2h is longer than the vendor remembers a key, 1h
FILE:60: actions.three.lookup.rules[2].outcome: "gone" is not one of absent, accepted, dead, delivered, denied, refused, retry, stuck, unknown
FILE:61: actions.three.accepted: 200 is also in delivered
FILE:67: actions.four.lookup: has only one of list and field: list is the array in the answer, and field is where the key is in each of its elements
`)
}

func TestMistakesAboutHTTPDetails(t *testing.T) {
	c, err := loadText(t, `
destinations:
  a: {url: "http://a.example", http2: true, retry_after: wait}
  b: {preset: webhooks, http2: true}
  c: {url: "https://c.example", http2: perhaps}
actions:
  one:
    destination: a
    request: POST /
    class: idempotent_write
    key_window: 1h
    retry_after: error
    response_cap: 3
    rules:
      - {status: 200, contains: okay, outcome: delivered}
      - {contains: a, equals: b, outcome: dead}
      - {equals: " ok", outcome: dead}
      - {contains: "", outcome: dead}
  two: {destination: b, request: POST, class: idempotent_write, key_window: 1h, deadline: 1h}
  three:
    destination: c
    request: POST /
    class: non_idempotent_write
    response_cap: 0
    rules:
      - {status: 200, contains: ok, outcome: delivered}
`, nil)
	wantMistakes(t, c, err, `
FILE:3: destinations.a.retry_after: "wait" is not a JSON Pointer: it must begin with /, such as /error/retry_in
FILE:3: destinations.a.http2: needs a url with https://
FILE:4: destinations.b.http2: not allowed without url: each stored endpoint is a host of its own, and is called over HTTP/1.1
FILE:5: destinations.c.http2: "perhaps" is not one of false, true
FILE:12: actions.one.retry_after: "error" is not a JSON Pointer: it must begin with /, such as /error/retry_in
FILE:13: actions.one.response_cap: 3 is too short: a rule looks for a text of 4 bytes in as much of the body
FILE:16: actions.one.rules[2].contains: not allowed with equals
FILE:17: actions.one.rules[3].equals: has a text with white space around it, which is not compared: remove it
FILE:18: actions.one.rules[4].contains: empty: remove the field to get its default
FILE:24: actions.three.response_cap: 0 is too short: a rule looks for a text of 2 bytes in as much of the body
FILE:26: actions.three.rules[1]: changes nothing: an answer of its status without the text is delivered as well. Add a rule for those answers after it
`)
}

// Actions of a destination whose lookup has a mistake are not told that they have no lookup.
func TestFollowingMistakesAreNotReported(t *testing.T) {
	c, err := loadText(t, `
destinations:
  a:
    url: https://a.example
    lookup:
      request: GET /
      rules:
        - {status: 200, outcome: delivered}
        - {status: 200, outcome: done}
  b: {url: "https://b.example", per_endpoint: many, rate: fast, burst: 3, break_delay: 1, max_break_delay: 1s, key: {name: X}, replay: state}
actions:
  one: {destination: a, class: non_idempotent_write, request: POST /, resend_absent: true}
  two: {destination: a, class: non_idempotent_write, request: POST /}
  window: {destination: b, class: once, key_window: forever, request: POST /, resend_absent: true, attempts: 4, rules: [{status: 409, outcome: retry}]}
  lease: {destination: b, class: read, request: GET /, timeout: long, lease: 20s, completion_time: 2s, lookup: {list: /a}}
  window2: {destination: b, class: idempotent_write, request: POST /, key_window: 1, attempts: 1000}
  nowhere: {destination: c, class: idempotent_write, request: POST /}
`, nil)
	wantMistakes(t, c, err, `
FILE:9: destinations.a.lookup.rules[2].outcome: "done" is not one of absent, accepted, dead, delivered, denied, refused, retry, stuck, unknown
FILE:10: destinations.b.per_endpoint: "many" is not a whole number from 1 to 10000
FILE:10: destinations.b.rate: "fast" is not a rate such as 25 (a second), 600/m or 10/h
FILE:10: destinations.b.break_delay: "1" is not a duration such as 500ms, 20s, 24h or 7d
FILE:10: destinations.b.key.name: unknown field: use one of alphabet, field, header, max_length, quoted
FILE:14: actions.window.class: "once" is not one of idempotent_write, irreversible_write, non_idempotent_write, read
FILE:15: actions.lease.timeout: "long" is not a duration such as 500ms, 20s, 24h or 7d
FILE:15: actions.lease.lookup: has only one of list and field: list is the array in the answer, and field is where the key is in each of its elements
FILE:16: actions.window2.key_window: "1" is not a duration such as 500ms, 20s, 24h or 7d
FILE:17: actions.nowhere.destination: "c" is not one of the destinations (a, b)
`)
}

// A misspelled field is not reported as missing too. A bad name is reported although the rest cannot be read.
func TestMisspelledFieldIsOneMistake(t *testing.T) {
	c, err := loadText(t, `
destinations:
  a: {presett: none, url: "https://a.example"}
  B b: {preset: nothing, url: "https://b.example"}
actions:
  one: {destinatio: a, clss: read, request: GET /, key_windw: 1h, xx: 1}
`, nil)
	wantMistakes(t, c, err, `
FILE:3: destinations.a.presett: unknown field: did you mean "preset"?
FILE:4: destinations.B b.preset: "nothing" is not one of adyen, checkout, generic, mail, none, paypal, resend, square, stripe, webhooks
FILE:4: destinations.B b: the name must be 1 to 56 of a-z, 0-9, "_" and "-", and start with a letter or a digit, as in "stripe"
FILE:6: actions.one.destinatio: unknown field: did you mean "destination"?
FILE:6: actions.one.clss: unknown field: did you mean "class"?
FILE:6: actions.one.key_windw: unknown field: did you mean "key_window"?
FILE:6: actions.one.xx: unknown field: use one of accepted, apply, attempts, attention, backoff, body, class, completion_time, deadline, delivered, destination, fair_by, headers, key_window, lease, lookup, max_backoff, ordering, payload_version, reference, refused, request, resend_absent, response_cap, retry, retry_after, rules, schedule, settling_delay, timeout
`)
}

func TestResendThroughAProxyIsRefused(t *testing.T) {
	c, err := loadText(t, `
destinations:
  a: {url: "https://a.example", proxy: "http://user:s3cret@proxy.example:3128"}
actions:
  one:
    destination: a
    class: non_idempotent_write
    request: POST /
    lookup: {request: "GET /?key={{.Key}}", list: /data, field: /key}
    resend_absent: true
`, nil)
	wantMistakes(t, c, err, `
FILE:10: actions.one.resend_absent: not allowed with a proxy, which can deliver a request late, after lookups have found nothing: call the vendor directly, or leave resend_absent out
`)
}

// What the page shows is a file that can be used.
func TestFilesOfTheDocsAreRead(t *testing.T) {
	page, err := os.ReadFile("../../docs/worker.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 4 {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	webhooks, err := os.ReadFile("../../docs/vendors/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	ofWebhooks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(webhooks)
	whole := strings.ReplaceAll(string(blocks[0][1]), "/run/secrets/stripe", writeFile(t, "stripe", "sk_live_1"))
	for _, text := range []string{whole, whole + "  capture:\n    destination: stripe\n    class: idempotent_write\n" + string(blocks[1][1]) + string(blocks[3][1]), string(blocks[2][1]), string(ofWebhooks[1])} {
		c, err := loadText(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := dispatcher.New(nil, nil)
		c.register(d)
		if err := d.Check(); err != nil {
			t.Error(err)
		}
	}
}

// The whole of it from a file: the key in a form, an answer that is lost, a stored 500, and the lookup that finds it.
func TestWorkerRendersAndLooksUp(t *testing.T) {
	var mu sync.Mutex
	var bodies, asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer sk_live_1" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if r.Method == http.MethodGet {
			asked = append(asked, r.RequestURI)
			_ = json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]string{"ref": r.URL.Query().Get("ref")}}})
			return
		}
		if bodies = append(bodies, r.RequestURI+" "+string(body)); len(bodies) > 1 {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(server.Close)
	db := samekeytest.NewDB(t)
	insert(t, db, "charge_card", 1)
	p := start(t, environment(db, "TOKEN=sk_live_1"), "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(`
destinations:
  vendor:
    url: %s
    preset: stripe
    key: {field: ref, max_length: 25}
    auth: {bearer: "${env:TOKEN}"}
    allow_private: 127.0.0.0/8
actions:
  charge_card:
    destination: vendor
    request: POST /v1/charges/{{.Payload.order}}
    class: idempotent_write
    backoff: 1ms
    settling_delay: 0
    body: {format: form, fields: {source: shop}}
    lookup: {request: "GET /v1/charges?ref={{.Key}}", list: /data, field: /ref}
`, server.URL)))
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for count(t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`) < 1 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it is not delivered")
		}
	}
	p.signal(t)
	_ = p.exit(t)
	mu.Lock()
	defer mu.Unlock()
	if len(bodies) != 2 || bodies[0] != bodies[1] || !strings.HasPrefix(bodies[0], "/v1/charges/0 order=0&source=shop&ref=") || len(asked) != 1 {
		t.Errorf("sent %q, asked %q", bodies, asked)
	}
	if _, key, _ := strings.Cut(bodies[0], "ref="); len(key) != 25 || asked[0] != "/v1/charges?ref="+key {
		t.Errorf("sent %q, asked %q", bodies, asked)
	}
	var stored []byte
	if err := db.QueryRow(t.Context(), `select request from samekey.outbox_sends`).Scan(&stored); err != nil || bytes.Contains(stored, []byte("sk_live")) {
		t.Errorf("stored %s, %v", stored, err)
	}
}

// HTTP/2 for what may be repeated, a success that must contain "ok", and a wait in the body.
func TestWorkerUsesHTTP2TextRulesAndWaits(t *testing.T) {
	var mu sync.Mutex
	protos := map[string]string{}
	var charges []time.Time
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		protos[r.URL.Path] = r.Proto
		if r.URL.Path == "/charges" {
			if charges = append(charges, time.Now()); len(charges) == 1 {
				_, _ = io.WriteString(w, `{"error": {"retry_in": 1}}`)
				return
			}
		}
		_, _ = io.WriteString(w, "status: ok")
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := writeFile(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	db := samekeytest.NewDB(t)
	insert(t, db, "charge", 1)
	insert(t, db, "wire", 1)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(`
destinations:
  vendor:
    url: %s
    http2: true
    ca_file: %s
    key_window: 1h
    retry_after: /error/retry_in
    allow_private: 127.0.0.0/8
    rules:
      - {status: 200, contains: ok, outcome: delivered}
      - {status: 200, outcome: retry}
actions:
  charge: {destination: vendor, request: POST /charges, class: idempotent_write, backoff: 1ms}
  wire: {destination: vendor, request: POST /wires, class: non_idempotent_write}
`, server.URL, ca)))
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for count(t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`) < 2 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("they are not delivered")
		}
	}
	p.signal(t)
	_ = p.exit(t)
	mu.Lock()
	defer mu.Unlock()
	if protos["/charges"] != "HTTP/2.0" || protos["/wires"] != "HTTP/1.1" {
		t.Errorf("sent over %v", protos)
	}
	if len(charges) != 2 || charges[1].Sub(charges[0]) < time.Second {
		t.Errorf("charged at %v", charges)
	}
}

// Two receivers behind one destination: each is called at its URL, and the one that wants no more is stopped.
func TestWorkerSendsWebhooksToStoredEndpoints(t *testing.T) {
	var mu sync.Mutex
	signatures := map[string][]string{} // by path
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		signatures[r.RequestURI] = append(signatures[r.RequestURI], r.Header.Get("Webhook-Signature"))
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusGone)
		}
	}))
	t.Cleanup(server.Close)
	db := samekeytest.NewDB(t)
	for _, name := range []string{"here", "gone"} {
		err := endpoints.Put(t.Context(), db, endpoints.Endpoint{Destination: "hooks", Name: name, URL: server.URL + "/" + name + "?t=1", Secrets: []string{endpoints.NewSecret()}},
			outbox.By{Actor: name, Reason: "registered"})
		if err != nil {
			t.Fatal(err)
		}
	}
	const enqueue = `select samekey.enqueue('tenant', 'event-' || n, 'notify', '{}', part => part) from unnest(array['here', 'gone']) part, generate_series(1, 3) n`
	if _, err := db.Exec(t.Context(), enqueue); err != nil {
		t.Fatal(err)
	}
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", `
destinations:
  hooks: {preset: webhooks, per_endpoint: 1, allow_private: 127.0.0.0/8}
actions:
  notify: {destination: hooks, request: POST, class: idempotent_write, key_window: forever, deadline: 3d}
`))
	const rest = `select count(*) from samekey.outbox_queue where status = 'dead' and last_code in ('410', 'endpoint_stopped')`
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for count(t, db, rest) < 3 || count(t, db, `select count(*) from samekey.outbox_queue`) > 3 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("they do not come to rest")
		}
	}
	p.signal(t)
	_ = p.exit(t)
	mu.Lock()
	defer mu.Unlock()
	here, gone := signatures["/here?t=1"], signatures["/gone?t=1"]
	if len(here) != 3 || len(gone) != 1 || !strings.HasPrefix(here[0], "v1,") || here[0] == gone[0] {
		t.Errorf("got %q", signatures)
	}
	e, err := endpoints.Get(t.Context(), db, "hooks", "gone")
	if err != nil || !e.Stopped() {
		t.Errorf("%v is not stopped, %v", e, err)
	}
}
