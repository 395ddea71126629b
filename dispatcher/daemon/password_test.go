package daemon

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// The password of the worker's login changes, its file follows, and every connection is lost. The worker goes on.
func TestChangedPasswordFileIsUsed(t *testing.T) {
	db := samekeytest.NewDB(t)
	role := "rotates_" + strings.ToLower(samekey.Mint())
	role = strings.ReplaceAll(role, "-", "")
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("create role " + role + " login superuser password 'first'")
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	dsn, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "passfile")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("*:*:*:"+role+":"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dsn.User = url.UserPassword(role, "wrong")
	if conn, err := pgx.Connect(t.Context(), dsn.String()); err == nil {
		_ = conn.Close(t.Context())
		t.Skip("the server asks for no password")
	}
	dsn.User = url.User(role)
	query := dsn.Query()
	query.Set("passfile", file)
	dsn.RawQuery = query.Encode()

	write("first")
	o, out := options(map[string]string{"DATABASE_URL": dsn.String(), "LISTEN_ADDR": "off", "DEPLOYMENT": "test"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	deliver := func(n int) {
		t.Helper()
		key, err := samekey.NewKey(fmt.Sprint("look-", n), "test", "look")
		if err == nil {
			err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "look", Payload: []byte("{}")})
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		dbtest.Until(t, "the intent is delivered", func() bool {
			return dbtest.Value[int](t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`) == n
		})
	}
	deliver(1)
	exec("alter role " + role + " password 'n3xt-passw0rd'")
	write("n3xt-passw0rd")
	if n := dbtest.Value[int](t, db, `select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = '`+role+`'`); n < 2 {
		t.Errorf("%d connections were ended", n)
	}
	deliver(2)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if strings.Contains(out.String(), "n3xt-passw0rd") {
		t.Error("the password is in the log")
	}
	dbtest.Until(t, "the worker's connections are closed", func() bool {
		return dbtest.Value[int](t, db, `select count(*) from pg_stat_activity where usename = '`+role+`'`) == 0
	})
}

// The certificate authority of the server is replaced in its file. Each new connection trusts what the file has then.
func TestChangedAuthoritiesAreUsed(t *testing.T) {
	authority := func(n int64) (text []byte, pool *x509.CertPool) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: fmt.Sprint("authority ", n)}, IsCA: true, BasicConstraintsValid: true,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		text = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		pool = x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		return text, pool
	}
	file := filepath.Join(t.TempDir(), "root.crt")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, firstPool := authority(1)
	second, secondPool := authority(2)
	for mode, verifies := range map[string]bool{"verify-full": false, "verify-ca": true} { // by a function of pgx's
		write(first)
		o, _ := options(map[string]string{"DATABASE_URL": "postgres://u@one.example,two.example/db?sslmode=" + mode + "&sslrootcert=" + file})
		config, err := databaseConfig(o)
		if err != nil {
			t.Fatal(err)
		}
		want := func(pool *x509.CertPool) {
			t.Helper()
			c := config.ConnConfig.Copy()
			if err := config.BeforeConnect(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			for _, of := range []*tls.Config{c.TLSConfig, c.Fallbacks[0].TLSConfig} {
				if !of.RootCAs.Equal(pool) {
					t.Errorf("%s: a connection trusts another authority", mode)
				}
				if verifies {
					block, _ := pem.Decode(bytes.Clone(second))
					if err := of.VerifyPeerCertificate([][]byte{block.Bytes}, nil); (err == nil) != pool.Equal(secondPool) {
						t.Errorf("%s: the second authority: %v", mode, err)
					}
				}
			}
		}
		want(firstPool)
		write(second)
		want(secondPool)
		write(nil)
		want(secondPool)
	}
}

func TestMissingPasswordFileKeepsItsLastPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passfile")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("*:*:*:u:first\n")
	o, _ := options(map[string]string{"DATABASE_URL": "postgres://u@db.example/db?passfile=" + file})
	config, err := databaseConfig(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"*:*:*:u:second\n", "", "*:*:*:another:third\n"} {
		write(text)
		c := config.ConnConfig.Copy()
		if err := config.BeforeConnect(t.Context(), c); err != nil || c.Password != "second" {
			t.Errorf("with the file %q the password is %q, %v", text, c.Password, err)
		}
	}
}
