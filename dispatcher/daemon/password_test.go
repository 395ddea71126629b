package daemon

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
