package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const tryFile = `
destinations:
  stripe:
    preset: stripe
    url: https://api.stripe.com
    auth: {bearer: "${env:TOKEN}"}
    retry_after: /error/retry_in
    rules:
      - {status: 418, outcome: dead, reason: "the shop is a teapot"}
  bank:
    url: https://bank.example
    lookup: {request: "GET /sent?key={{.Key}}", list: /data, field: /key, reference: "/data/*/id"}
  hooks: {preset: webhooks}
actions:
  charge_card:
    destination: stripe
    request: POST /v1/charges
    class: idempotent_write
    refused: 422
  ping: {destination: bank, request: GET /ping, class: read}
  wire:
    destination: bank
    request: POST /wires
    class: irreversible_write
    rules:
      - {status: 200, contains: [accepted, "OK 1"], outcome: delivered}
      - {status: 200, outcome: unknown, reason: "the bank did not say OK"}
    reference: /id
  notify: {destination: hooks, request: POST, class: idempotent_write, key_window: 1h, deadline: 1h}
  refund:
    destination: bank
    request: POST /refunds
    class: non_idempotent_write
    lookup:
      request: GET /refunds/{{.Part}}
      rules:
        - {status: 200, field: /part, values: ["{{.Part}}"], outcome: delivered}
        - {status: 200, equals: "none of {{.Payload.shop}}", outcome: absent}
`

const key = "0190d6a0-0000-8000-8000-000000000001"

// tryAnswer runs config try on the file above. DIR stands for the folder with the files.
func tryAnswer(t *testing.T, stdin string, args ...string) (code int, out string) {
	t.Helper()
	file := writeFile(t, "worker.yaml", tryFile)
	var stdout, stderr bytes.Buffer
	m := &worker{stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr, lookupEnv: inEnvironment(map[string]string{"TOKEN": "sk_live_s3cret"})}
	code = m.main(append([]string{"config", "try", "-config", file}, args...))
	out = strings.ReplaceAll(stdout.String()+stderr.String(), file, "FILE")
	if strings.Contains(out, "s3cret") {
		t.Errorf("a secret is printed: %s", out)
	}
	return code, out
}

func TestConfigTrySaysWhatDecided(t *testing.T) {
	say := func(lines ...string) (text string) {
		for i, name := range []string{"outcome:", "code:", "reference:", "wait:", "decided by:", "reason:"} {
			text += fmt.Sprintf("%-11s %s\n", name, lines[i])
		}
		return text
	}
	for name, tc := range map[string]struct {
		args   string
		answer string
		want   string
	}{
		"a rule of the destination": {"-action charge_card", "HTTP/1.1 418 I'm a teapot\r\n\r\n",
			say("dead", "418", "none", "none", "FILE:9: destinations.stripe.rules[1]", "the shop is a teapot")},
		"a rule of the preset": {"-action charge_card", "HTTP/2 402 \r\ncontent-type: application/json\r\n\r\n{\"error\":{\"payment_intent\":{\"id\":\"pi_1\"}}}",
			say("refused", "402", "pi_1", "none", "rule 6 of the preset stripe (status 402)", "none")},
		"a rule of the preset on a field": {"-action charge_card", `HTTP/2 409
content-type: application/json

{"error":{"code":"idempotency_key_in_use"}}`,
			say("retry", "409", "none", "none", "rule 2 of the preset stripe (status 409, field /error/code, values idempotency_key_in_use)", "a call with this key is still running")},
		"a default of the preset": {"-action charge_card", "HTTP/1.1 200 OK\n\n<html>",
			say("unknown", "200", "none", "none", "json_answers of the preset stripe: its body is not JSON, as it should be: it may be a proxy's page", "its body is not JSON, as it should be: it may be a proxy's page")},
		"a secret as reference": {"-action charge_card", "HTTP/1.1 200 OK\n\n{\"id\":\"sk_live_s3cret\"}",
			say("delivered", "200", "[redacted]", "none", "the default of delivered", "none")},
		"a list": {"-action charge_card", "HTTP/1.1 422 No\n\n", say("refused", "422", "none", "none", "FILE:19: actions.charge_card.refused", "none")},
		"the table, and a wait in the body": {"-action charge_card", "HTTP/1.1 429 Slow down\nRetry-After: 7\n\n{\"error\":{\"retry_in\":30}}",
			say("retry", "429", "none", "30s, for all calls of the destination", "the table of answers in the documentation: too many requests", "the vendor asks to retry later")},
		"of an endpoint": {"-action notify", "HTTP/1.1 429 Slow down\nRetry-After: 7\n\n",
			say("retry", "429", "none", "7s, for all calls of the destination's endpoint", "rule 2 of the preset webhooks (status 429)", "the vendor asks to retry later")},
		"a text": {"-action wire", "HTTP/1.1 200 OK\n\nOK 1", say("delivered", "200", "none", "none", "FILE:26: actions.wire.rules[1]", "none")},
		"without the text": {"-action wire", "HTTP/1.1 200 OK\n\nOK 2",
			say("unknown", "200", "none", "none", "FILE:27: actions.wire.rules[2]", "the bank did not say OK")},
		"a text that breaks off": {"-action wire -broken-off", "HTTP/1.1 200 OK\n\nOK",
			say("unknown", "200", "none", "none", "FILE:26: actions.wire.rules[1]: its body broke off or is too long, and a rule looks into it", "its body broke off or is too long, and a rule looks into it")},
		"of flags":      {"-action charge_card -status 503 -header Retry-After:5", "", say("retry", "503", "none", "5s", "the table of answers in the documentation: a server or a gateway failed; 501, 505 and 511 prove no more; with a time to wait for, a call that may be repeated is postponed", "the vendor asks to retry later")},
		"flags and -":   {"-action wire -status 200 -body -", "accepted", say("delivered", "200", "none", "none", "FILE:26: actions.wire.rules[1]", "none")},
		"a read":        {"-action ping -status 404", "", say("dead", "404", "none", "none", "the table of answers in the documentation: refused before anything was done", "correct the action or the payload, then redrive")},
		"a lookup":      {"-action wire -lookup -key " + key, "HTTP/1.1 200 OK\n\n{\"data\":[{\"id\":\"w1\",\"key\":\"" + key + "\"}]}", say("delivered", "200", "w1", "none", "FILE:12: destinations.bank.lookup.list", "none")},
		"no such key":   {"-action wire -lookup -key " + key, "HTTP/1.1 200 OK\n\n{\"data\":[]}", say("absent", "200", "none", "none", "FILE:12: destinations.bank.lookup.list", "none")},
		"asked again":   {"-action wire -lookup -key x", "HTTP/1.1 500 No\n\n", say("unknown: the lookup is made again", "500", "none", "none", "the table of answers in the documentation: a server or a gateway failed; 501, 505 and 511 prove no more", "none")},
		"a part":        {"-action refund -lookup -part 7", "HTTP/1.1 200 OK\n\n{\"part\":7}", say("delivered", "200", "none", "none", "FILE:37: actions.refund.lookup.rules[1]", "none")},
		"the payload":   {"-action refund -lookup -part 7 -payload DIR/payload", "HTTP/1.1 200 OK\n\nnone of a\n", say("absent", "200", "none", "none", "FILE:38: actions.refund.lookup.rules[2]", "none")},
		"it says later": {"-action refund -lookup -part 7 -payload DIR/payload", "HTTP/1.1 503 No\nRetry-After: 9\n\n", say("retry", "503", "none", "9s", "the table of answers in the documentation: a server or a gateway failed; 501, 505 and 511 prove no more", "none")},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "payload"), []byte(`{"shop":"a"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		args := strings.Fields(strings.ReplaceAll(tc.args, "DIR", dir))
		if !strings.Contains(tc.args, "-status") {
			args = append(args, "-answer", "-")
		}
		if code, out := tryAnswer(t, tc.answer, args...); code != 0 || out != tc.want {
			t.Errorf("%s: %d\n%swant\n%s", name, code, out, tc.want)
		}
	}
}

func TestConfigTryReadsWhatCurlSaves(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write([]byte(`{"id":"ch_1"}`))
	_ = w.Close()
	for name, answer := range map[string]string{
		"100 before":     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n{\"id\":\"ch_1\"}",
		"a proxy":        "HTTP/1.1 200 Connection established\r\n\r\nHTTP/2 200 \r\n\r\n{\"id\":\"ch_1\"}",
		"a redirect":     "HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n{\"id\":\"ch_1\"}",
		"chunks decoded": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{\"id\":\"ch_1\"}",
		"chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"id\":\"ch_1\"}\r\n0\r\n\r\n",
		"gzip decoded":   "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 37\r\n\r\n{\"id\":\"ch_1\"}",
		"gzip":           "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + zipped.String(),
		"a newline":      "HTTP/1.0 200\n\n{\"id\":\"ch_1\"}\n",
		"the length":     "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"id\":\"ch_1\"}",
	} {
		if code, out := tryAnswer(t, answer, "-action", "charge_card", "-answer", "-"); code != 0 || strings.Contains(out, "warning") || !strings.HasPrefix(out, "outcome:    delivered\ncode:       200\nreference:  ch_1\n") {
			t.Errorf("%s: %d\n%s", name, code, out)
		}
	}
	code, out := tryAnswer(t, "HTTP/1.1 200 OK\nContent-Length: 20\n\n{}", "-action", "charge_card", "-answer", "-")
	if code != 0 || !strings.Contains(out, "warning: the body has 2 bytes, not 20 as Content-Length says: give -broken-off") {
		t.Errorf("a part: %d\n%s", code, out)
	}
	if code, out := tryAnswer(t, "HTTP/1.1 204 No Content", "-action", "charge_card", "-answer", "-"); code != 0 || !strings.Contains(out, "delivered") {
		t.Errorf("a status line: %d\n%s", code, out)
	}
}

func TestConfigTryExitCodes(t *testing.T) {
	empty := writeFile(t, "answer", "")
	for _, tc := range []struct {
		args  string
		stdin string
		code  int
		says  string
	}{
		{"-answer -", "", mistaken, "-action is missing"},
		{"-action charge_card", "", mistaken, "give the answer with -answer, or with -status"},
		{"-action charge_card -answer - -status 200", "", mistaken, "give the answer with -answer, or with -status"},
		{"-action charge_card -answer - -header A:b", "", mistaken, "-header and -body go with -status"},
		{"-action charge_card -status 200 -header A", "", mistaken, `must be "Name: value"`},
		{"-action charge_card -status 99", "", mistaken, "-status 99 is not the status of an answer"},
		{"-action charge_card -status 200 -key x", "", mistaken, "go with -lookup"},
		{"-action charge -status 200", "", mistaken, `"charge" is not one of the actions (charge_card, ping, wire, notify, refund)`},
		{"-action charge_card -status 200 -lookup", "", mistaken, `the action "charge_card" has no lookup`},
		{"-action ping -status 200 -lookup", "", mistaken, `the action "ping" has no lookup`},
		{"-action wire -status 200 -lookup", "", mistaken, "-key is missing"},
		{"-action refund -status 200 -lookup -part 1", "", mistaken, "the lookup's rules: "},
		{"-action wire -status 200 more", "", mistaken, `unexpected argument "more"`},
		{"-h", "", 0, "usage: worker config try"},
		{"-action wire -answer /no/such", "", failed, "/no/such: no such file"},
		{"-action wire -status 200 -body /no/such", "", failed, "/no/such: no such file"},
		{"-action wire -answer " + empty, "", failed, empty + ": is empty: it must begin with a status line"},
		{"-action wire -answer -", "<html>", failed, "-: does not begin with a status line such as HTTP/1.1 200 OK: save the answer with curl -i"},
		{"-action wire -answer -", "HTTP/1.1 200 OK\nno header\n\nbody", failed, "has a line in its headers that is not a header"},
		{"-action wire -answer -", "HTTP/1.1 100 Continue\n\n", failed, "has no answer after the status 100"},
		{"-action wire -answer -", "HTTP/1.1 200 OK\n\n" + strings.Repeat("x", 16<<20), failed, "has more than 16 MiB"},
	} {
		if code, out := tryAnswer(t, tc.stdin, strings.Fields(tc.args)...); code != tc.code || !strings.Contains(out, tc.says) {
			t.Errorf("%s: %d, %.300s", tc.args, code, out)
		}
	}
	bad := writeFile(t, "worker.yaml", "destinations: {}\n")
	if code, _, errs := call(nil, "config", "try", "-config", bad, "-action", "a", "-status", "200"); code != mistaken || !strings.Contains(errs, bad+":1: actions: missing") {
		t.Errorf("a mistaken file: %d, %s", code, errs)
	}
}
