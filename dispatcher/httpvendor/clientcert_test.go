package httpvendor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
)

// pemPair makes a certificate with its key.
func pemPair(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

func TestClientCertificateIsReadAgain(t *testing.T) {
	log, before := &dbtest.Log{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	defer slog.SetDefault(before)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := pemPair(t, "first")
	dest := Destination{URL: server.URL, CAFile: file("ca", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
		ClientCertFile: file("cert", cert), ClientKeyFile: file("key", key)}
	c := testClient(t, dest)
	handlerOf := func(class dispatcher.Class) handler {
		h, _, err := c.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: class}})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	once, repeatable := handlerOf(dispatcher.NonIdempotentWrite), handlerOf(dispatcher.IdempotentWrite)
	want := func(h handler, name string) {
		t.Helper()
		answer, err := attempt(t, h, testCall("{}"), patience)
		if err != nil || string(answer.Body) != name {
			t.Errorf("the vendor saw %q, %v, want %q", answer.Body, err, name)
		}
	}
	want(once, "first")
	want(repeatable, "first")
	cert, key = pemPair(t, "second")
	file("cert", cert) // its key follows later
	want(once, "first")
	want(once, "first")
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "cert="+dest.ClientCertFile) || strings.Contains(said, "BEGIN") {
		t.Errorf("the log has %q", said)
	}
	file("key", key)
	want(once, "second")
	want(repeatable, "first") // on its connection
	if err := os.Remove(dest.ClientKeyFile); err != nil {
		t.Fatal(err)
	}
	want(once, "second")
}

func TestClientCertificateMistakes(t *testing.T) {
	cert, _ := pemPair(t, "one")
	_, key := pemPair(t, "two")
	dir := t.TempDir()
	for name, text := range map[string][]byte{"cert": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ url, cert, key, want string }{
		{"https://a.example", "cert", "key", "ClientCertFile: tls: private key does not match"},
		{"https://a.example", "cert", "none", "ClientCertFile: open "},
		{"https://a.example", "cert", "", "ClientKeyFile: missing"},
		{"https://a.example", "", "key", "ClientCertFile: missing"},
		{"http://a.example", "cert", "key", "ClientCertFile: needs a URL with https"},
	} {
		path := func(name string) string {
			if name == "" {
				return ""
			}
			return filepath.Join(dir, name)
		}
		_, err := New(Destination{Name: "a", URL: tc.url, ClientCertFile: path(tc.cert), ClientKeyFile: path(tc.key)})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
