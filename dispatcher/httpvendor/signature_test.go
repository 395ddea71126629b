package httpvendor

import (
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
)

var seed = []byte("0123456789abcdef0123456789abcdef")

func privateSecret(key []byte) string { return "whsk_" + base64.StdEncoding.EncodeToString(key) }

// Integration/receivers has the receivers' libraries check the same headers.
func TestEachFormOfASignature(t *testing.T) {
	forms := []Signature{{}, {Form: "github"}, {Form: "stripe", Header: "shop-signature"}, {Form: "hmac", Header: "X-Mac", Encoding: "base64", Prefix: "v0="}}
	for i := range forms {
		forms[i] = forms[i].normal()
	}
	s, secret, err := newSigner(forms, []string{"plain text", webhookSecret, privateSecret(seed)})
	if err != nil || strings.Join(secret, " ") != "plain text "+webhookSecret[6:]+" "+privateSecret(seed)[5:] {
		t.Fatal(secret, err)
	}
	header := http.Header{}
	s.sign(header, "msg_1", time.Unix(1614265330, 0), []byte(`{"a": 1}`))
	for name, want := range map[string]string{
		"Webhook-Timestamp":   "1614265330",
		"X-Hub-Signature-256": "sha256=",
		"Shop-Signature":      "t=1614265330,v1=",
		"X-Mac":               "v0=",
	} {
		if got := header.Get(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q", name, got)
		}
	}
	got := strings.Fields(header.Get("Webhook-Signature"))
	if len(got) != 2 || !strings.HasPrefix(got[0], "v1,") || !strings.HasPrefix(got[1], "v1a,") {
		t.Fatal(got)
	}
	signature, _ := base64.StdEncoding.DecodeString(got[1][4:])
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	if !ed25519.Verify(public, []byte(`msg_1.1614265330.{"a": 1}`), signature) {
		t.Error("the ed25519 signature is not valid")
	}
	if stripe := header.Get("Shop-Signature"); strings.Count(stripe, ",v1=") != 2 {
		t.Errorf("%q does not have a signature for each of two texts", stripe)
	}
}

// The vector is that of GitHub's documentation.
func TestGitHubSignatureMatchesItsVector(t *testing.T) {
	s, _, err := newSigner([]Signature{Signature{Form: "github"}.normal()}, []string{"It's a Secret to Everybody", "an older one"})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	s.sign(header, "", time.Time{}, []byte("Hello, World!"))
	if got := header.Get("X-Hub-Signature-256"); got != "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17" {
		t.Error(got)
	}
}

func TestSecretsThatFitNoForm(t *testing.T) {
	whole := ed25519.NewKeyFromSeed(seed)
	other := append(append([]byte{}, seed...), seed...)
	for _, c := range []struct{ forms, secrets, want string }{
		{"standard", webhookSecret, ""},
		{"standard", privateSecret(whole), ""},
		{"standard", "plain", "number 1 is not whsec_"},
		{"standard", privateSecret(other), "its public key"},
		{"standard", privateSecret(seed[:31]), "32 or 64 bytes"},
		{"standard", "whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "public key"},
		{"github", "plain", ""},
		{"github", "whsec_any text", ""},
		{"github", "v1,whsec_any", "remove it"},
		{"github", privateSecret(seed), "form standard only"},
		{"github", "whpk_any", "public key"},
		{"standard github", "plain " + webhookSecret, ""},
		{"standard github", privateSecret(seed) + " plain", ""},
		{"standard github", "plain", "none signs in the form standard"},
		{"standard github", privateSecret(seed), "add a secret for the other forms"},
		{"standard github", webhookSecret + " whsec_any", "number 2 is not whsec_"},
	} {
		var forms []Signature
		for form := range strings.FieldsSeq(c.forms) {
			forms = append(forms, Signature{Form: form}.normal())
		}
		_, _, err := newSigner(forms, strings.Fields(strings.ReplaceAll(c.secrets, "any text", "any-text")))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %v, want %q", c.forms, c.secrets, err, c.want)
		}
	}
	if _, _, err := newSigner([]Signature{Signature{Form: "github"}.normal()}, []string{""}); err == nil {
		t.Error("an empty secret signs")
	}
}

func TestMistakesInSignatureForms(t *testing.T) {
	for want, forms := range map[string][]Signature{
		`Signature[1].Form: "gitlab" is not one of`:                                          {{Form: "gitlab"}},
		"Signature[1].Header: missing":                                                       {{Form: "hmac"}},
		"Signature[1].Header: not allowed":                                                   {{Header: "X-A"}},
		`Signature[1].Header: "Host" belongs`:                                                {{Form: "hmac", Header: "Host"}},
		`Signature[1].Encoding: "b64" is not`:                                                {{Form: "hmac", Header: "X-A", Encoding: "b64"}},
		"Signature[1].Encoding: not allowed":                                                 {{Form: "github", Encoding: "hex"}},
		"Signature[1].Prefix: not allowed":                                                   {{Form: "stripe", Prefix: "a"}},
		"Signature[1].Prefix: has a control":                                                 {{Form: "hmac", Header: "X-A", Prefix: "a\n"}},
		"Signature[2].Header: X-Hub-Signature-256":                                           {{Form: "github"}, {Form: "hmac", Header: "x-hub-signature-256"}},
		"Signature[1].Header: Webhook-Id carries the delivery key":                           {{Form: "hmac", Header: "Webhook-Id"}},
		`Headers["X-Mac"]: carries the signature`:                                            {{Form: "hmac", Header: "X-Mac"}},
		"WebhookSecrets: number 1 starts with whsk_, which is an ed25519 private key: it si": {{Form: "github"}},
	} {
		dest := StandardWebhooks(privateSecret(seed))
		if strings.HasPrefix(want, "Headers") {
			dest.Headers, dest.WebhookSecrets = map[string]string{"X-Mac": "1"}, []string{"plain"}
		}
		dest.Name, dest.URL, dest.Signature = "a", "https://a.example", forms
		if _, err := New(dest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	dest := Destination{Name: "a", URL: "https://a.example", Signature: []Signature{{Form: "github"}}}
	if _, err := New(dest); err == nil || !strings.Contains(err.Error(), "WebhookSecrets: missing") {
		t.Errorf("without secrets: %v", err)
	}
}

// A receiver moves from GitHub's form with a raw text to Standard Webhooks.
func TestAReceiverMovesFromOneFormToAnother(t *testing.T) {
	w := setupHooks(t)
	w.dest.Signature = []Signature{{Form: "standard"}, {Form: "github"}}
	seen := http.Header{}
	v := startVendor(t, func(r *http.Request, _ []byte) string { seen = r.Header; return r.Header.Get("Webhook-Id") }, step{status: 200}, step{status: 200})
	newer := endpoints.NewSecret()
	put := func(secrets ...string) {
		t.Helper()
		e := endpoints.Endpoint{Destination: "webhooks", Name: "shop-1", URL: v.URL, Secrets: secrets, OtherSecrets: true}
		if err := endpoints.Put(t.Context(), w.db, e, outbox.By{Actor: "shop-1", Reason: "moves"}); err != nil {
			t.Fatal(err)
		}
	}
	put("the old text", newer)
	w.want(map[uuid.UUID]string{w.insert("shop-1", `{"n": 1}`): "delivered 200"})
	forms := []Signature{Signature{}.normal(), Signature{Form: "github"}.normal()}
	s, _, _ := newSigner(forms, []string{"the old text", newer})
	want := http.Header{}
	s.sign(want, seen.Get("Webhook-Id"), time.Now(), []byte(`{"n": 1}`))
	if got := seen.Get("X-Hub-Signature-256"); got != want.Get("X-Hub-Signature-256") || !strings.HasPrefix(seen.Get("Webhook-Signature"), "v1,") {
		t.Errorf("%v", seen)
	}
	put("the old text") // no secret for the form standard
	w.want(map[uuid.UUID]string{w.insert("shop-1", `{}`): "dead endpoint"})
	w.dest.Signature = w.dest.Signature[1:]
	w.want(map[uuid.UUID]string{w.insert("shop-1", `{}`): "delivered 200"})
	if seen.Get("Webhook-Signature") != "" || seen.Get("X-Hub-Signature-256") == "" {
		t.Errorf("%v", seen)
	}
}
