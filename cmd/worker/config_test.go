package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

func loadText(t *testing.T, text string, env map[string]string) (*config, error) {
	t.Helper()
	return load(writeFile(t, "worker.yaml", text), inEnvironment(env))
}

// inEnvironment looks names up. The deployment is named, unless env has it.
func inEnvironment(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := env[name]
		if name == "DEPLOYMENT" && !ok {
			return "staging", true
		}
		return value, ok
	}
}

// wantMistakes compares all mistakes. In want, FILE is the file and DIR its folder.
func wantMistakes(t *testing.T, c *config, err error, want string) {
	t.Helper()
	text := ""
	if err != nil {
		text = err.Error() + "\n"
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, c.file, "FILE"), filepath.Dir(c.file), "DIR")
	if text != strings.TrimPrefix(want, "\n") {
		t.Errorf("the mistakes are\n%s\nwant%s", text, want)
	}
	if strings.Contains(text, "s3cret") {
		t.Error("a secret is printed")
	}
}

func TestDesignFileIsRead(t *testing.T) {
	token := writeFile(t, "stripe", "sk_live_1\n")
	c, err := loadText(t, `
destinations:
  stripe: {url: "https://api.stripe.com", key: {header: Idempotency-Key}, key_window: 24h, concurrency: 32,
           headers: {Authorization: "Bearer ${file:`+token+`}"}}
actions:
  charge_card: {destination: stripe, request: POST /v1/charges, class: idempotent_write,
                timeout: 20s, delivered: 200-299, refused: [402]}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	stripe, charge := c.destinations[0], c.actions[0]
	if stripe.Headers["Authorization"] != "Bearer sk_live_1" || strings.Join(stripe.Secrets, ",") != "sk_live_1" ||
		stripe.Vendor.Window != 24*time.Hour || stripe.Limits.Concurrency != 32 {
		t.Errorf("%+v", stripe.Destination)
	}
	if charge.Request != "POST /v1/charges" || charge.Policy.Class != dispatcher.IdempotentWrite || charge.Policy.Timeout != 20*time.Second ||
		fmt.Sprint(charge.Delivered, charge.Refused) != "[[200 299]] [[402 402]]" {
		t.Errorf("%+v", charge.Action)
	}
	d := dispatcher.New(nil, &c.worker)
	c.register(d)
	if err := d.Check(); err != nil {
		t.Error(err)
	}
}

func TestFieldsAreRead(t *testing.T) {
	c, err := loadText(t, `
worker: {name: "w-${env:POD}", sweep_interval: 1s, stop_timeout: 10s, retention: 7d, archive: shop.archive}
destinations:
  bank:
    url: "https://${env:BANK_USER}:${env:BANK_PASSWORD}@bank.example/api?cost=$$5"
    key: {header: X-Request-Id}
    key_window: forever
    proxy: http://proxy.example:3128
    headers:
      X-Literal: |-
        as it is
actions:
  pay:
    destination: bank
    request: PUT /pay
    headers: {X-A: 7}
    class: idempotent_write
    timeout: 1m
    lease: 90s
    attempts: 5
    backoff: 2s
    max_backoff: 1m30s
    deadline: 2d
    key_window: 30d
    settling_delay: 0
    response_cap: 0
    ordering: pass_failed
    delivered: [200, 201-202]
    retry: 409
  pay_on:
    destination: bank
    request: POST /pay
    class: idempotent_write
    schedule: [5s, 5m, 1d]
    response_cap: 1000
    settling_delay: 1s
    ordering: wait
`, map[string]string{"POD": "7", "BANK_USER": "u", "BANK_PASSWORD": "p/w"})
	if err == nil || !strings.Contains(err.Error(), "destinations.bank.url: is not a valid URL") || strings.Contains(err.Error(), "p/w") {
		t.Fatalf("a slash in a password does not belong into a URL as it is: %v", err)
	}
	c, err = loadTextAgain(t, c, map[string]string{"POD": "7", "BANK_USER": "u", "BANK_PASSWORD": "p%2Fw"})
	if err != nil {
		t.Fatal(err)
	}
	if w := c.worker; w.Name != "w-7" || w.SweepInterval != time.Second || w.StopTimeout != 10*time.Second || w.Retention != 168*time.Hour {
		t.Errorf("%+v", w)
	}
	bank, pay, payOn := c.destinations[0], c.actions[0], c.actions[1]
	if bank.URL != "https://u:p%2Fw@bank.example/api?cost=$5" || bank.Vendor.Key.Name != "X-Request-Id" || bank.Vendor.Window != dispatcher.Forever ||
		bank.Proxy != "http://proxy.example:3128" || bank.Headers["X-Literal"] != "as it is" {
		t.Errorf("%+v", bank.Destination)
	}
	want := dispatcher.Policy{
		Class: dispatcher.IdempotentWrite, Timeout: time.Minute, Lease: 90 * time.Second, Attempts: 5, Backoff: 2 * time.Second,
		MaxBackoff: 90 * time.Second, Deadline: 48 * time.Hour, KeyWindow: 30 * 24 * time.Hour, SettlingDelay: -1, ResponseCap: -1, PassFailed: true,
	}
	if !reflect.DeepEqual(pay.Policy, want) || pay.Headers["X-A"] != "7" || fmt.Sprint(pay.Delivered, pay.Retry) != "[[200 200] [201 202]] [[409 409]]" {
		t.Errorf("%+v", pay.Action)
	}
	want = dispatcher.Policy{Class: dispatcher.IdempotentWrite, ResponseCap: 1000, SettlingDelay: time.Second,
		Schedule: []time.Duration{5 * time.Second, 5 * time.Minute, 24 * time.Hour}}
	if !reflect.DeepEqual(payOn.Policy, want) {
		t.Errorf("%+v", payOn.Policy)
	}
}

// loadTextAgain reads the file of c with another environment.
func loadTextAgain(t *testing.T, c *config, env map[string]string) (*config, error) {
	t.Helper()
	return load(c.file, inEnvironment(env))
}

func TestMistakesInAFile(t *testing.T) {
	c, err := loadText(t, `worker: {stop_timeout: 5, sweep_interval: 2h}
destinations:
  stripe:
    url: "ftp://u:s3cret@api.stripe.com"
    key: {heder: x}
    headers: {Authorization: "Bearer ${env:NOPE}", Host: s3cret, A: "$HOME", B: "${file:no/such}", C: "${file:/dev/null}"}
    concurrency: many
  Stripe: {url: "https://x:${env:SECRET}"}
  stripe: {}
actions:
  charge_card:
    destination: strip
    request: POST v1
    class: idempotent
    timeout: 2h
    lease: 3
    refused: [402,
      4xx]
    delivered: 200-499
    colour: red
  a: {destination: stripe, request: GET /, class: idempotent_write, timeout: 1h}
  b:
  c: {destination: stripe, request: GET /, class: read, key_window: 4h, lease: 1s}
extra: 1
`, map[string]string{"SECRET": "s3cret"})
	wantMistakes(t, c, err, `
FILE:1: worker.stop_timeout: "5" is not a duration such as 500ms, 20s, 24h or 7d
FILE:1: worker.sweep_interval: 2h is outside the range 10ms to 1m
FILE:4: destinations.stripe.url: must begin with https:// or http://
FILE:5: destinations.stripe.key.heder: unknown field: did you mean "header"?
FILE:6: destinations.stripe.headers.Authorization: environment variable NOPE is not set or empty
FILE:6: destinations.stripe.headers.A: a $ must be ${env:NAME}, ${file:/path}, or $$ for a $
FILE:6: destinations.stripe.headers.B: open DIR/no/such: no such file or directory
FILE:6: destinations.stripe.headers.C: file /dev/null is empty
FILE:6: destinations.stripe.headers.Host: "Host" belongs to the connection and cannot be set
FILE:7: destinations.stripe.concurrency: "many" is not a whole number from 1 to 10000
FILE:8: destinations.Stripe.url: is not a valid URL
FILE:8: destinations.Stripe: the name must be 1 to 56 of a-z, 0-9, "_" and "-", and start with a letter or a digit, as in "stripe"
FILE:9: destinations.stripe: defined twice, first in line 3
FILE:12: actions.charge_card.destination: "strip" is not one of the destinations (Stripe, stripe)
FILE:13: actions.charge_card.request: must be a method and a path, such as "POST /v1/charges"
FILE:14: actions.charge_card.class: "idempotent" is not one of idempotent_write, irreversible_write, non_idempotent_write, read
FILE:15: actions.charge_card.timeout: 2h is outside the range 100ms to 1h
FILE:16: actions.charge_card.lease: "3" is not a duration such as 500ms, 20s, 24h or 7d
FILE:18: actions.charge_card.refused[2]: use statuses and ranges of them, such as 200-299, 404
FILE:20: actions.charge_card.colour: unknown field: use one of accepted, apply, attempts, attention, backoff, body, class, completion_time, deadline, delivered, destination, fair_by, headers, key_window, lease, lookup, max_backoff, ordering, payload_version, reference, refused, request, resend_absent, response_cap, retry, retry_after, rules, schedule, settling_delay, timeout
FILE:21: actions.a.key_window: missing: set how long the vendor remembers a key (forever is a value), here or for its destination
FILE:22: actions.b: empty
FILE:23: actions.c.lease: 1s must be longer than timeout (30s) by at least 100ms
FILE:23: actions.c.key_window: not allowed for read: only an idempotent_write has one
FILE:24: extra: unknown field: use one of actions, destinations, worker
`)
}

func TestFilesThatAreNotConfigurations(t *testing.T) {
	for text, want := range map[string]string{
		"":                             ":1: the file is empty",
		"# nothing\n":                  ":1: the file is empty",
		"a: [1\nb: 2":                  ":2: is not valid YAML: ",
		"just text":                    "must be a mapping",
		"[1, 2]":                       "must be a mapping",
		"destinations: {}\n---\na: 1":  ":3: a second document",
		"destinations:\n":              ":1: destinations: empty",
		"destinations: {}\n":           ":1: actions: missing",
		"a:\n\tb: 1\n":                 ":2: is not valid YAML: indent with spaces, not with tabs",
		"x: &a 1\n":                    ":1: x: unknown field",
		"destinations: &a {}\n":        ":1: destinations: must be a mapping",
		"destinations: {s: {<<: {}}}":  "<< is not supported",
		"destinations: {s: {url: []}}": "destinations.s.url: must be a single value",
		"destinations: {s: {url: }}":   "destinations.s.url: empty",
		"destinations: {s: [a]}":       "destinations.s: must be a mapping",
	} {
		if _, err := loadText(t, text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := load(filepath.Join(t.TempDir(), "none.yaml"), os.LookupEnv); err == nil {
		t.Error("a file that is not there is read")
	}
}

func TestSecretsOfActionsAreTheDestinationsToo(t *testing.T) {
	c, err := loadText(t, `
actions:
  a: {destination: one, request: GET /, class: read, headers: {X-Token: "t ${env:A}"}}
  b: {destination: two, request: GET /, class: read, headers: {X-Token: "${env:B}"}}
destinations:
  one: {url: "https://one.example"}
  two: {url: "https://two.example/?t=${env:TWO}"}
`, map[string]string{"A": "secret-a", "B": "secret-b", "TWO": "secret-two"})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.destinations[0].Secrets, c.destinations[1].Secrets); got != "[secret-a] [secret-two secret-b]" {
		t.Error(got)
	}
}

func TestRetryNeedsAClassThatAllowsRepeats(t *testing.T) {
	_, err := loadText(t, `
destinations: {bank: {url: "https://bank.example"}}
actions:
  wire:
    destination: bank
    request: POST /wires
    class: irreversible_write
    retry: [409]
`, nil)
	if err == nil || !strings.Contains(err.Error(), ":8: actions.wire.retry: not allowed for irreversible_write") {
		t.Error(err)
	}
}

func TestKubernetesFileLoadsAndHasTimeToStop(t *testing.T) {
	data, err := os.ReadFile("../../docs/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "  worker.yaml: |\n")
	text, _, ended := strings.Cut(text, "\n---")
	if !found || !ended {
		t.Fatal("the test is void: there is no worker.yaml")
	}
	token := writeFile(t, "stripe", "sk_live_1")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\n    ", "\n"), "/etc/samekey/secrets/stripe", token)
	if _, err := loadText(t, strings.TrimPrefix(text, "    "), nil); err != nil {
		t.Error(err)
	}
	var grace int
	_, after, _ := strings.Cut(string(data), "\n      terminationGracePeriodSeconds: ")
	if _, err := fmt.Sscan(after, &grace); err != nil {
		t.Fatal(err)
	}
	// The default StopTimeout, a running claim, River's end, cancelled calls, and the last settles.
	if want := 20 + 10 + 3*5; grace < want {
		t.Errorf("terminationGracePeriodSeconds is %d, want %d", grace, want)
	}
}

func TestConfigCheck(t *testing.T) {
	good := writeFile(t, "worker.yaml", "destinations: {a: {url: \"https://a.example\"}}\nactions: {ask: {destination: a, request: GET /, class: read}}\n")
	if code, stdout, stderr := call(nil, "config", "check", "-config", good); code != 0 || !strings.Contains(stdout, "1 destinations and 1 actions, no mistakes") || stderr != "" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	bad := writeFile(t, "worker.yaml", "destinations: {}\n")
	if code, stdout, stderr := call(map[string]string{"WORKER_CONFIG": bad}, "config", "check"); code != 2 || stdout != "" || !strings.Contains(stderr, bad+":1: actions: missing") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

func TestDeploymentIsInTheFileOrInTheEnvironment(t *testing.T) {
	const rest = `
destinations: {pay: {preset: stripe, url: "https://api.stripe.com"}}
actions:
  ask: {destination: pay, request: GET /, class: read}
`
	for _, tc := range []struct {
		worker, env string
		want        string
		mistake     string
	}{
		{"", "production", "production", ""},
		{"worker: {deployment: staging}", "production", "staging", ""},
		{`worker: {deployment: "${env:DEPLOYMENT}"}`, "production", "production", ""},
		{"", "", "", "FILE:1: worker.deployment: missing: name the deployment whose intents this worker delivers, such as production, here or in the environment variable DEPLOYMENT\n"},
		{"worker: {deployment: Production}", "", "", "FILE:1: worker.deployment: must be 1 to 56 of a-z, 0-9, \"_\" and \"-\", and start with a letter or a digit, as in \"production\"\n"},
		{"", "Production", "", "FILE:1: worker.deployment: must be 1 to 56 of a-z, 0-9, \"_\" and \"-\", and start with a letter or a digit, as in \"production\"\n"},
	} {
		c, err := loadText(t, tc.worker+rest, map[string]string{"DEPLOYMENT": tc.env})
		wantMistakes(t, c, err, tc.mistake)
		if err == nil && c.worker.Deployment != tc.want {
			t.Errorf("%q, %q: the deployment is %q", tc.worker, tc.env, c.worker.Deployment)
		}
	}
}

func TestFairByInTheFile(t *testing.T) {
	const text = `
destinations:
  pay: {preset: stripe, url: "https://api.stripe.com"}
  hooks: {preset: webhooks}
  shops: {key_window: 1h, endpoint: "{{.Payload.shop}}"}
actions:
  charge: {destination: pay, request: POST /, class: idempotent_write, fair_by: scope}
  notify: {destination: hooks, request: POST /, class: idempotent_write, key_window: 1h, deadline: 1h, fair_by: endpoint}
`
	c, err := loadText(t, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if charge, notify := c.actions[0].Policy.FairBy, c.actions[1].Policy.FairBy; charge != dispatcher.FairByScope || notify != dispatcher.FairByPart {
		t.Errorf("fair by %q and %q", charge, notify)
	}
	c, err = loadText(t, text+`  refund: {destination: pay, request: POST /, class: idempotent_write, fair_by: endpoint}
  order: {destination: shops, request: POST /, class: idempotent_write, deadline: 1h, fair_by: endpoint}
  other: {destination: pay, request: POST /, class: idempotent_write, fair_by: tenant}
`, nil)
	const needs = "endpoint needs a destination with `endpoint: \"{{.Part}}\"`: share by scope, or name the endpoint by the intent's part\n"
	wantMistakes(t, c, err, "FILE:9: actions.refund.fair_by: "+needs+"FILE:10: actions.order.fair_by: "+needs+
		"FILE:11: actions.other.fair_by: \"tenant\" is not one of endpoint, scope\n")
}
