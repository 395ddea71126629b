package httpvendor

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

const (
	webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	olderSecret   = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

var standardForm = []Signature{{Form: "standard"}}

// Libraries of several languages are tested with this vector.
func TestSignatureMatchesTheStandardVector(t *testing.T) {
	s, _, err := newSigner(standardForm, []string{webhookSecret})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	s.sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got := header.Get("Webhook-Signature"); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || header.Get("Webhook-Timestamp") != "1614265330" {
		t.Errorf("%v", header)
	}
}

func TestWebhookIsSignedAtEachAttempt(t *testing.T) {
	db := database(t)
	var signed []string
	v := startVendor(t, func(r *http.Request, body []byte) string {
		id, stamp, got := r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), r.Header.Get("Webhook-Signature")
		at, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
			t.Errorf("the time is %q", stamp)
		}
		s, _, _ := newSigner(standardForm, []string{webhookSecret, olderSecret})
		want := http.Header{}
		s.sign(want, id, time.Unix(at, 0), body)
		if got != want.Get("Webhook-Signature") || strings.Count(got, "v1,") != 2 {
			t.Errorf("the signature is %q", got)
		}
		signed = append(signed, got)
		return id
	}, step{act: true, lose: true}, step{status: 404}, step{status: 401}, step{status: 302}, step{status: 503, header: map[string]string{"Idempotent-Replayed": "true"}}, step{status: 204})
	entry := played(t, db, StandardWebhooks(webhookSecret, olderSecret), v, Action{Request: "POST /hook"})
	if entry.Status != "delivered" || len(v.wire) != 6 || len(v.effects) != 1 || v.wire[0].key != entry.DeliveryKey.String() || v.wire[0].body != charge {
		t.Errorf("is %s, on the wire %+v", entry.Status, v.wire)
	}
}

func TestGoneReceiverIsCalledOnce(t *testing.T) {
	db := database(t)
	v := startVendor(t, header("Webhook-Id"), step{status: 410})
	entry := played(t, db, StandardWebhooks(webhookSecret), v, Action{Request: "POST /hook"})
	if says := entry.History[len(entry.History)-1].Error; entry.Status != "dead" || len(v.wire) != 1 || !strings.Contains(says, "wants no more webhooks") {
		t.Errorf("is %s after %d calls: %s", entry.Status, len(v.wire), says)
	}
}

func TestInvalidWebhookSecrets(t *testing.T) {
	for _, secret := range []string{"", "whsec_", "whsec_c2VjcmV0", "whsec_*** not base64 ***", strings.Repeat("QUFB", 22)} {
		dest := StandardWebhooks(webhookSecret, secret)
		dest.Name, dest.URL = "a", "https://a.example"
		if _, err := New(dest); err == nil || !strings.Contains(err.Error(), "WebhookSecrets: number 2 ") || secret != "" && strings.Contains(err.Error(), strings.TrimPrefix(secret, "whsec_")) && secret != "whsec_" {
			t.Errorf("%q: %v", secret, err)
		}
	}
	dest := Mail()
	dest.Name, dest.URL, dest.WebhookSecrets = "a", "https://a.example", []string{webhookSecret}
	if _, err := New(dest); err == nil || !strings.Contains(err.Error(), ": WebhookSecrets: needs") {
		t.Error(err)
	}
	echo := replying(t, 200, nil, webhookSecret+" "+strings.TrimPrefix(webhookSecret, "whsec_"))
	dest = StandardWebhooks(webhookSecret)
	dest.URL = echo.URL
	answer, err := attempt(t, testHandler(t, dest, Action{Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}}), testCall("{}"), patience)
	if err != nil || string(answer.Body) != "whsec_[redacted] [redacted]" {
		t.Errorf("kept %s, %v", answer.Body, err)
	}
}
