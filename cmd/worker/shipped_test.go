package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

// fakeStripe answers as Stripe v1 does, as far as the shipped files use it: a bearer token, forms only, one stored
// answer for each key, and a list of charges by transfer group.
type fakeStripe struct {
	mu      sync.Mutex
	charges map[string]url.Values // by key
	refused []string              // why a call was refused
	lose    int                   // how many answers to charges are cut off
}

func startFakeStripe(t *testing.T) (*fakeStripe, *httptest.Server) {
	s := &fakeStripe{charges: map[string]url.Values{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server
}

func (s *fakeStripe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refuse := func(status int, reason string) {
		s.refused = append(s.refused, reason)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"type": "invalid_request_error", "message": reason}})
	}
	if r.Header.Get("Authorization") != "Bearer sk_live_1" {
		refuse(http.StatusUnauthorized, "no API key")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet && r.URL.Path == "/v1/charges" {
		list := []any{}
		for key, form := range s.charges {
			if form.Get("transfer_group") == r.URL.Query().Get("transfer_group") {
				list = append(list, map[string]string{"id": "ch_" + key, "transfer_group": form.Get("transfer_group")})
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
		return
	}
	body, _ := io.ReadAll(r.Body)
	form, err := url.ParseQuery(string(body))
	key := r.Header.Get("Idempotency-Key")
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/v1/charges":
		refuse(http.StatusNotFound, "unknown URL "+r.Method+" "+r.URL.Path)
		return
	case r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || err != nil || form.Get("amount") == "":
		refuse(http.StatusBadRequest, "the body must be a form with an amount: "+r.Header.Get("Content-Type"))
		return
	case key == "":
		refuse(http.StatusBadRequest, "no key")
		return
	}
	s.charges[key] = form
	if s.lose > 0 {
		s.lose--
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"id": "ch_" + key, "object": "charge"})
}

// Every file that the documents show is run as it stands, but for the vendor's address and the secret's path.
func TestShippedFilesDeliver(t *testing.T) {
	kubernetes, err := os.ReadFile("../../docs/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, deployed, _ := strings.Cut(string(kubernetes), "  worker.yaml: |\n")
	deployed, _, _ = strings.Cut(deployed, "\n---")
	page, err := os.ReadFile("../../docs/worker.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```yaml\n(worker:.*?)```").FindSubmatch(page)
	for name, text := range map[string]string{
		"kubernetes.yaml": strings.TrimPrefix(strings.ReplaceAll("\n"+deployed, "\n    ", "\n"), "\n"),
		"worker.md":       string(shown[1]),
	} {
		t.Run(name, func(t *testing.T) {
			stripe, server := startFakeStripe(t)
			stripe.lose = 1
			secret := regexp.MustCompile(`\$\{file:[^}]*/stripe\}`)
			if !secret.MatchString(text) || !strings.Contains(text, "https://api.stripe.com\n") {
				t.Fatalf("the test is void: %s", text)
			}
			text := secret.ReplaceAllLiteralString(text, "${file:"+writeFile(t, "stripe", "sk_live_1")+"}")
			text = strings.Replace(text, "https://api.stripe.com\n", server.URL+"\n    allow_private: 127.0.0.0/8\n", 1)

			db := samekeytest.NewDB(t)
			const enqueue = `select samekey.enqueue('shop/orders.create', 'order-' || n, 'charge_card', convert_to('{"amount": 1900, "currency": "eur", "source": "tok_visa"}', 'UTF8')) from generate_series(1, 3) n`
			if _, err := db.Exec(t.Context(), enqueue); err != nil {
				t.Fatal(err)
			}
			p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", text))
			deadline := time.After(patience)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for count(t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`) < 3 {
				select {
				case <-tick.C:
				case <-deadline:
					stripe.mu.Lock()
					defer stripe.mu.Unlock()
					t.Fatalf("they are not delivered; the vendor refused %q", stripe.refused)
				}
			}
			p.signal(t)
			_ = p.exit(t)
			stripe.mu.Lock()
			defer stripe.mu.Unlock()
			if len(stripe.charges) != 3 || len(stripe.refused) != 0 {
				t.Errorf("%d charges, refused %q", len(stripe.charges), stripe.refused)
			}
			for key, form := range stripe.charges {
				if form.Get("transfer_group") != key || form.Get("amount") != "1900" {
					t.Errorf("charged %v under %s", form, key)
				}
			}
		})
	}
}

func TestWindowLongerThanThePresetsIsAWarning(t *testing.T) {
	for window, warned := range map[string]bool{"30d": true, "forever": true, "24h": false, "1h": false} {
		file := writeFile(t, "worker.yaml", "destinations:\n  pay:\n    preset: stripe\n    url: https://api.stripe.com\n    key_window: "+window+
			"\nactions:\n  ask: {destination: pay, request: GET /, class: read}\n")
		code, _, stderr := call(nil, "config", "check", "-config", file)
		if want := "warning: " + file + ":5: destinations.pay.key_window is longer than the 24 h of the preset"; code != 0 || strings.HasPrefix(stderr, want) != warned {
			t.Errorf("%s: %d %q", window, code, stderr)
		}
	}
}

func TestKnownHostWithoutPresetIsAWarning(t *testing.T) {
	file := func(destination string) string {
		return writeFile(t, "worker.yaml", "destinations:\n  pay:\n"+destination+
			"    key_window: 5m\nactions:\n  ask: {destination: pay, request: GET /, class: read}\n")
	}
	for host, preset := range map[string]string{
		"https://api.stripe.com": "stripe", "https://API.Stripe.com:443": "stripe", "https://checkout-test.adyen.com": "adyen", "https://api-m.sandbox.paypal.com": "paypal",
		"https://connect.squareup.com": "square", "https://abcd.api.checkout.com": "checkout", "https://api.resend.com": "resend", "https://api.postmarkapp.com": "mail",
	} {
		bad := file("    url: " + host + "\n")
		code, stdout, stderr := call(nil, "config", "check", "-config", bad)
		if want := "warning: " + bad + ":3: destinations.pay.url is a known host, and the destination does not have `preset: " + preset + "`"; code != 0 || stdout == "" || !strings.HasPrefix(stderr, want) {
			t.Errorf("%s: %d %q %q", host, code, stdout, stderr)
		}
	}
	for _, good := range []string{"    preset: stripe\n    url: https://api.stripe.com\n", "    url: https://api.stripe.com\n    preset: none\n", "    url: https://stripe.com.shop.example\n", "    url: https://notadyen.com\n"} {
		if code, _, stderr := call(nil, "config", "check", "-config", file(good)); code != 0 || stderr != "" {
			t.Errorf("%s: %d %q", good, code, stderr)
		}
	}
}
