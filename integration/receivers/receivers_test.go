package receivers

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-github/v66/github"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stripe/stripe-go/v85/webhook"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

// One call carries all forms. Each library accepts its own, with the new secret, and with the old one where the form
// has a signature for each.
func TestLibrariesOfReceiversAcceptSignatures(t *testing.T) {
	newer, older := endpoints.NewSecret(), endpoints.NewSecret()
	header, body := deliver(t, newer, older)
	for _, secret := range []string{newer, older} {
		hook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := hook.Verify(body, header); err != nil {
			t.Errorf("standard-webhooks: %v", err)
		}
		event, at := body, time.Minute
		if _, err := webhook.ConstructEventWithOptions(event, header.Get("X-Webhook-Signature"), secret,
			webhook.ConstructEventOptions{Tolerance: at, IgnoreAPIVersionMismatch: true}); err != nil {
			t.Errorf("stripe-go: %v", err)
		}
	}
	if err := github.ValidateSignature(header.Get("X-Hub-Signature-256"), body, []byte(newer)); err != nil {
		t.Errorf("go-github: %v", err)
	}
	if err := github.ValidateSignature(header.Get("X-Hub-Signature-256"), body, []byte(older)); err == nil {
		t.Error("go-github accepts the old secret, which the form has no room for")
	}
}

func deliver(t *testing.T, secrets ...string) (header http.Header, body []byte) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	dest := httpvendor.StandardWebhooks(secrets...)
	dest.Name, dest.URL, dest.AllowPrivate = "hooks", server.URL, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	dest.Signature = []httpvendor.Signature{{Form: "standard"}, {Form: "github"}, {Form: "stripe"}}
	client, err := httpvendor.New(dest)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	db := samekeytest.NewDB(t)
	d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	client.Register(d)
	dispatcher.Handle(d, outbox.NewAction[[]byte]("notify"), httpvendor.Delivery[[]byte](client, httpvendor.Action{
		Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever}}))
	dbtest.Insert(t, db, outbox.Intent{Action: "notify", Payload: map[string]any{"id": "evt_1", "object": "event"}})
	if _, err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if header == nil {
		t.Fatal("nothing was sent")
	}
	return header, body
}
