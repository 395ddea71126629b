package httpvendor

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
)

func TestHeadersOfAReceiver(t *testing.T) {
	w := setupHooks(t)
	w.dest.Headers, w.action.Headers = map[string]string{"X-A": "destination", "X-B": "destination"}, map[string]string{"X-B": "action", "X-C": "action"}
	w.action.Policy.Class, w.action.Policy.KeyWindow, w.action.Policy.SettlingDelay = dispatcher.NonIdempotentWrite, 0, -1
	w.action.Lookup = &Lookup{Request: "GET /seen?id={{.Key}}", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	var seen []http.Header
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header)
		if r.Method == "POST" {
			rw.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = rw.Write([]byte("you sent " + r.Header.Get("Authorization") + " and " + r.Header.Get("x-c")))
	}))
	defer server.Close()
	e := endpoints.Endpoint{Destination: "webhooks", Name: "shop-1", URL: strings.Replace(server.URL, "://", "://user:pa55word@", 1),
		Secrets: []string{endpoints.NewSecret()}, Headers: map[string]string{"authorization": "Bearer t0ken-1", "x-c": "<endpoint>"}}
	if err := endpoints.Put(t.Context(), w.db, e, outbox.By{Actor: "shop-1", Reason: "registered"}); err != nil {
		t.Fatal(err)
	}
	id := w.insert("shop-1", `{}`)
	w.want(map[uuid.UUID]string{id: "delivered 200"})
	if len(seen) != 2 {
		t.Fatalf("%d requests", len(seen))
	}
	for _, h := range seen { // the attempt and the lookup
		if h.Get("Authorization") != "Bearer t0ken-1" || h.Get("X-C") != "<endpoint>" || h.Get("X-A") != "destination" {
			t.Errorf("%v", h)
		}
	}
	if got := seen[0].Get("X-B"); got != "action" {
		t.Errorf("the action's header is %q", got)
	}
	for _, event := range w.get(id).History {
		if got := string(event.Response); got != "you sent [redacted] and [redacted]" {
			t.Errorf("kept %q", got)
		}
	}
}

// A row that was written by hand, or before the destination signed in another header.
func TestReceiverHeadersThatCannotBeSent(t *testing.T) {
	w := setupHooks(t)
	w.dest.Signature = []Signature{{Form: "hmac", Header: "X-Mac"}}
	for name, want := range map[string]string{"Host": "belongs to the connection", "X-Mac": "carries the signature", "webhook-ID": "set by the worker"} {
		_, err := w.db.Exec(t.Context(), `insert into samekey.endpoints (destination, name, url, secrets, headers) values ('webhooks', $1::text, $2, '{a}', jsonb_build_object($1::text, 's3cret'))`, name, w.hooks.URL)
		if err != nil {
			t.Fatal(err)
		}
		id := w.insert(name, `{}`)
		w.want(map[uuid.UUID]string{id: "dead endpoint"})
		if says := w.get(id).History[0].Error; !strings.Contains(says, want) || strings.Contains(says, "s3cret") {
			t.Errorf("%s: %s", name, says)
		}
	}
}
