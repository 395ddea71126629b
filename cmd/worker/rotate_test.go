package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// secretsFolder is a folder of secrets as Kubernetes mounts it: a new version is another folder, and one link is
// swapped.
type secretsFolder struct {
	*testing.T
	path    string
	version int
}

func (f *secretsFolder) write(texts map[string]string) {
	f.Helper()
	f.version++
	dir := fmt.Sprintf("..%d", f.version)
	err := os.Mkdir(filepath.Join(f.path, dir), 0o700)
	for name, text := range texts {
		if err == nil {
			err = os.WriteFile(filepath.Join(f.path, dir, name), []byte(text), 0o600)
		}
		if _, missing := os.Lstat(filepath.Join(f.path, name)); err == nil && missing != nil {
			err = os.Symlink(filepath.Join("..data", name), filepath.Join(f.path, name))
		}
	}
	next := filepath.Join(f.path, "..data_tmp")
	if err == nil {
		err = os.Symlink(dir, next)
	}
	if err == nil {
		err = os.Rename(next, filepath.Join(f.path, "..data"))
	}
	if err != nil {
		f.Fatal(err)
	}
}

// logged captures the default logger for a test.
func logged(t *testing.T) *dbtest.Log {
	log, before := &dbtest.Log{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return log
}

const rotatingFile = `
worker: {deployment: test}
destinations:
  all:
    url: "https://user:${file:DIR/password}@all.example/${file:DIR/path}"
    auth: {bearer: "${file:DIR/token}"}
    headers: {X-Api-Key: "${file:DIR/token}"}
    webhook_secrets: ["${file:DIR/hook}"]
    proxy: "http://u:${file:DIR/proxy}@proxy.example:3128"
  fixed: {url: "https://fixed.example", auth: {bearer: fixed-token}}
actions:
  one: {destination: all, request: POST, class: idempotent_write, key_window: 1h, headers: {X-Own: "${file:DIR/own}"}}
  two: {destination: fixed, request: POST, class: idempotent_write, key_window: 1h}
`

func TestSecretsFilesAreReadAgain(t *testing.T) {
	log := logged(t)
	folder := &secretsFolder{T: t, path: t.TempDir()}
	texts := map[string]string{"password": "first-password", "path": "first", "token": "first-token\n", "proxy": "first-proxy", "own": "first-own",
		"hook": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
	folder.write(texts)
	c, err := load(writeFile(t, "worker.yaml", strings.ReplaceAll(rotatingFile, "DIR", folder.path)), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	if c.destination("fixed").Credentials != nil {
		t.Error("a destination without files reads them again")
	}
	want := func(password, token, hook string, lines ...string) {
		t.Helper()
		before := len(log.String())
		for range 2 { // a line is logged once
			got, err := c.destination("all").Credentials(t.Context())
			if err != nil || got.Auth != (httpvendor.Auth{Bearer: token}) || got.Headers["X-Api-Key"] != token || got.WebhookSecrets[0] != hook ||
				got.ActionHeaders["one"]["X-Own"] != texts["own"] || !strings.Contains(strings.Join(got.Secrets, " "), texts["own"]) ||
				!strings.HasPrefix(got.URL, "https://user:"+password+"@all.example/") || !strings.Contains(strings.Join(got.Secrets, " "), token) || got.Until.IsZero() {
				t.Errorf("the credentials are %+v, %v", got, err)
			}
		}
		said := log.String()[before:]
		if strings.Count(said, "\n") != len(lines) {
			t.Errorf("%d lines are logged, want %d:\n%s", strings.Count(said, "\n"), len(lines), said)
		}
		for _, line := range lines {
			if !strings.Contains(said, line) {
				t.Errorf("%q is not in %s", line, said)
			}
		}
		for _, secret := range []string{"first-", "second-", "third-", "MfKQ", "C2FV", "@all"} {
			if strings.Contains(said, secret) {
				t.Errorf("%q is in %s", secret, said)
			}
		}
	}
	hook := texts["hook"]
	want("first-password", "first-token", hook)
	texts["token"], texts["password"], texts["own"], texts["hook"] = "second-token", "second-password\r\n", "second-own", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	second := texts["hook"]
	folder.write(texts)
	want("second-password", "second-token", second)

	texts["password"] = ""
	delete(texts, "token")
	folder.write(texts)
	want("second-password", "second-token", second, "path="+folder.path+"/token", "path="+folder.path+"/password")
	want("second-password", "second-token", second)

	texts["password"], texts["token"], texts["hook"] = "third-password", "third-token", "third-and-not-a-key"
	folder.write(texts)
	want("second-password", "second-token", second, "worker.yaml:8: destinations.all.webhook_secrets: number 1 is not whsec_")

	texts["hook"], texts["token"] = hook, "third-token\x00"
	folder.write(texts)
	want("second-password", "second-token", second, "control character")

	texts["token"], texts["own"] = "third-token", "third-own\n\n" // one newline too many
	folder.write(texts)
	texts["own"] = "second-own"
	want("second-password", "second-token", second, "worker.yaml:12: actions.one.headers.X-Own: the value of")

	texts["token"], texts["proxy"], texts["own"], texts["password"] = "third-token", "second-proxy", "third-own", "third-password@other.example/"
	folder.write(texts)
	want("second-password", "third-token", hook, "destinations.all.url has another host now: restart", "destinations.all.proxy is another one now: restart")

	texts["password"], texts["proxy"] = "third-password", "first-proxy"
	folder.write(texts)
	want("third-password", "third-token", hook)
	texts["token"] = ""
	folder.write(texts)
	want("third-password", "third-token", hook, "path="+folder.path+"/token") // again, since it was good in between
}

func TestSecretsFileMissingAtTheStartIsAMistake(t *testing.T) {
	folder := &secretsFolder{T: t, path: t.TempDir()}
	folder.write(map[string]string{"password": "p"})
	_, err := load(writeFile(t, "worker.yaml", strings.ReplaceAll(rotatingFile, "DIR", folder.path)), os.LookupEnv)
	if err == nil || !strings.Contains(err.Error(), "worker.yaml:6: destinations.all.auth.bearer: ") {
		t.Errorf("is %v", err)
	}
}

// A running worker: the vendor revokes the token before the file has the new one. The intent is denied until then, uses
// no attempt, and is delivered without a restart. Neither token is in a row or in the log.
func TestWorkerUsesARotatedToken(t *testing.T) {
	db := samekeytest.NewDB(t)
	var mu sync.Mutex
	token, denied := "first-token", make(chan struct{}, 1000)
	vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			denied <- struct{}{}
		}
		_, _ = io.WriteString(w, "first-token "+r.Header.Get("Authorization"))
	}))
	t.Cleanup(vendor.Close)
	folder := &secretsFolder{T: t, path: t.TempDir()}
	folder.write(map[string]string{"token": "first-token"})
	config := fmt.Sprintf(oneVendor, vendor.URL)
	config = strings.Replace(config, "concurrency: 2", `concurrency: 2, break_after: 0, auth: {bearer: "${file:`+folder.path+`/token}"}`, 1)
	config = strings.Replace(config, "timeout: 20s", "timeout: 20s, backoff: 100ms, max_backoff: 100ms", 1)
	delivered := func(n int) {
		t.Helper()
		dbtest.Until(t, fmt.Sprintf("%d intents are delivered", n), func() bool {
			return count(t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`) == n
		})
	}
	insert(t, db, "charge_card", 1)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", config))
	delivered(1)
	mu.Lock()
	token = "second-token"
	mu.Unlock()
	insert(t, db, "charge_card", 3)
	for range 5 {
		<-denied
	}
	folder.write(map[string]string{"token": "second-token"})
	delivered(3) // the first key is the same intent
	if n := count(t, db, `select count(*) from samekey.outbox_history where encode(response, 'escape') like '%-token%' or error like '%-token%'`); n != 0 {
		t.Errorf("a token is in %d rows", n)
	}
	if n := count(t, db, `select count(*) from samekey.outbox_history where outcome = 'unknown' or final_status is null and code <> '401'`); n != 0 {
		t.Errorf("%d attempts were neither denied nor delivered", n)
	}
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := p.log.String(); strings.Contains(log, "-token") {
		t.Error("a token is in the log")
	}
}

func TestClientCertificateOfTheFile(t *testing.T) {
	_, err := loadText(t, `
worker: {deployment: test}
destinations:
  a: {url: "https://a.example", client_cert: /no/such/cert, client_key: /no/such/key}
  b: {url: "https://b.example", client_cert: /no/such/cert}
actions:
  one: {destination: a, request: POST, class: non_idempotent_write}
  two: {destination: b, request: POST, class: non_idempotent_write}
`, nil)
	for _, want := range []string{":4: destinations.a.client_cert: open /no/such/cert", ":5: destinations.b.client_key: missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestOAuth2OfTheFile(t *testing.T) {
	const file = `
worker: {deployment: test}
destinations:
  paypal:
    preset: paypal
    url: https://api-m.paypal.com
    auth:
      oauth2: {token_url: "https://api-m.paypal.com/v1/oauth2/token", client_id: "${env:ID}", client_secret: "${env:SECRET}", scopes: [a, b], audience: c, auth_style: body}
actions:
  capture: {destination: paypal, request: "POST /v2/checkout/orders/{{.Payload.order}}/capture", class: idempotent_write}
`
	env := map[string]string{"ID": "shop", "SECRET": "s3cret-of-client"}
	c, err := loadText(t, file, env)
	if err != nil {
		t.Fatal(err)
	}
	want := httpvendor.OAuth2{TokenURL: "https://api-m.paypal.com/v1/oauth2/token", ClientID: "shop", ClientSecret: "s3cret-of-client", Scopes: []string{"a", "b"}, Audience: "c", AuthStyle: "body"}
	if got := c.destination("paypal").Auth.OAuth2; !reflect.DeepEqual(*got, want) {
		t.Errorf("is %+v", got)
	}
	bad := strings.NewReplacer(`"https://api-m.paypal.com/v1/oauth2/token"`, "ftp://a", `, auth_style: body`, `, auth_style: digest`, `"${env:ID}"`, `""`).Replace(file)
	_, err = loadText(t, bad, env)
	for _, want := range []string{":8: destinations.paypal.auth.oauth2.token_url: must begin with", `:8: destinations.paypal.auth.oauth2.auth_style: "digest" is not one of basic, body`, ":8: destinations.paypal.auth.oauth2.client_id: empty"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
