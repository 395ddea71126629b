package endpoints_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

// Go and SQL refuse the same headers, and quote no value.
func TestPutRefusesHeadersThatCannotBeSent(t *testing.T) {
	on := samekeytest.NewDB(t)
	cases := []map[string]string{
		{"X A": "s3cret"}, {"": "s3cret"}, {strings.Repeat("a", 256): "s3cret"}, {"X-A": "s3cret\n"}, {"X-A": "s3cret\x7f"},
		{"X-A": "s3cret", "x-a": "s3cret"}, {"X-A": strings.Repeat("s3cret", 1366)},
	}
	for _, name := range strings.Fields("Host Content-Length Transfer-Encoding Connection Keep-Alive TE Trailer Upgrade Expect Accept-Encoding " +
		"Proxy-Connection Proxy-Authorization Proxy-Authenticate webhook-id Webhook-Timestamp Webhook-Signature X-Hub-Signature-256 " +
		"X-Webhook-Signature Idempotency-Key X-Idempotency-Key Content-Type Traceparent Tracestate Samekey-Attempt") {
		cases = append(cases, map[string]string{name: "s3cret"})
	}
	inSQL := func(headers any) error {
		text, err := json.Marshal(headers)
		if err != nil {
			t.Fatal(err)
		}
		_, err = on.Exec(t.Context(), `select samekey.endpoint_put('webhooks', 'shop-1', 'https://h', 'ada', 'r', headers => $1)`, text)
		return err
	}
	for _, headers := range cases {
		e := shop("shop-1")
		e.Headers = headers
		for from, err := range map[string]error{"Go": endpoints.Put(t.Context(), on, e, ada), "SQL": inSQL(headers)} {
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), "headers") || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %.60v: %v", from, headers, err)
			}
			if from == "SQL" && sqlState(err) != "22023" {
				t.Errorf("%.60v: %v", headers, err)
			}
		}
	}
	for _, headers := range []any{[]string{"s3cret"}, "s3cret", map[string]any{"X-A": 1}, map[string]any{"X-A": nil}} {
		if err := inSQL(headers); sqlState(err) != "22023" || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v: %v", headers, err)
		}
		text, _ := json.Marshal(headers)
		if _, err := on.Exec(t.Context(), `insert into samekey.endpoints (destination, name, url, headers) values ('d', 'n', 'https://h', $1)`, text); sqlState(err) != "23514" {
			t.Errorf("the table takes %v: %v", headers, err)
		}
	}
}

func TestHeadersAreReplacedByEachPut(t *testing.T) {
	on := samekeytest.NewDB(t)
	e := shop("shop-1")
	for _, headers := range []map[string]string{{"Authorization": "Bearer é\t<&>\"", "X-Empty": ""}, {strings.Repeat("a", 192): strings.Repeat("v", 8000)}, nil} {
		e.Headers = headers
		put(t, on, e)
		var text []byte
		var stored map[string]string
		err := on.QueryRow(t.Context(), `select headers from samekey.endpoints`).Scan(&text)
		if err == nil {
			err = json.Unmarshal(text, &stored)
		}
		if err != nil || fmt.Sprint(stored) != fmt.Sprint(headers) {
			t.Errorf("%v, %v", stored, err)
		}
	}
	if got, err := endpoints.Get(t.Context(), on, "webhooks", "shop-1"); err != nil || got.Headers != nil {
		t.Errorf("%v", err)
	}
	e.Headers = map[string]string{"X-A": "s3cret"}
	if text := fmt.Sprintf("%v %+v %#v", e, e, e); strings.Contains(text, "s3cret") {
		t.Error(text)
	}
}
