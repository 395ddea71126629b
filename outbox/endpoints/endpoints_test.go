package endpoints_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

var ada = outbox.By{Actor: "ada", Reason: "the receiver asked for it"}

func shop(name string) endpoints.Endpoint {
	return endpoints.Endpoint{Destination: "webhooks", Name: name, URL: "https://shop.example/hooks?token=t0ken", Secrets: []string{endpoints.NewSecret()}}
}

func put(t *testing.T, on samekey.Tx, e endpoints.Endpoint) {
	t.Helper()
	if err := endpoints.Put(t.Context(), on, e, ada); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, on samekey.Tx, name string) endpoints.Endpoint {
	t.Helper()
	e, err := endpoints.Get(t.Context(), on, "webhooks", name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEndpointLifecycle(t *testing.T) {
	on := samekeytest.NewDB(t)
	put(t, on, shop("shop-1"))
	if e := get(t, on, "shop-1"); e.URL != shop("").URL || e.Stopped() || e.Secrets != nil || e.CreatedAt.IsZero() {
		t.Errorf("after Put: %+v, stopped %v, secrets %d", e, e.Stopped(), len(e.Secrets))
	}

	if err := endpoints.Stop(t.Context(), on, "webhooks", "shop-1", ada); err != nil {
		t.Fatal(err)
	}
	changed := shop("shop-1")
	changed.URL, changed.Secrets = "http://other.example", nil
	put(t, on, changed)
	again := outbox.By{Actor: "bob", Reason: "me too"}
	if err := endpoints.Stop(t.Context(), on, "webhooks", "shop-1", again); err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, "shop-1"); e.URL != changed.URL || !e.Stopped() || e.StoppedBy != ada.Actor || e.StopReason != ada.Reason {
		t.Errorf("changed while it is stopped, and stopped again: %q %v %q %q", e.URL, e.StoppedAt, e.StoppedBy, e.StopReason)
	}

	for range 2 { // the second changes nothing
		if err := endpoints.Start(t.Context(), on, "webhooks", "shop-1", ada); err != nil {
			t.Fatal(err)
		}
	}
	if e := get(t, on, "shop-1"); e.Stopped() || e.StoppedBy != "" || e.StopReason != "" {
		t.Errorf("started: %v %q %q", e.StoppedAt, e.StoppedBy, e.StopReason)
	}
	if err := endpoints.Delete(t.Context(), on, "webhooks", "shop-1", ada); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"get":    second(endpoints.Get(t.Context(), on, "webhooks", "shop-1")),
		"stop":   endpoints.Stop(t.Context(), on, "webhooks", "shop-1", ada),
		"start":  endpoints.Start(t.Context(), on, "webhooks", "shop-1", ada),
		"delete": endpoints.Delete(t.Context(), on, "webhooks", "shop-1", ada),
	} {
		if !errors.Is(err, endpoints.ErrNotFound) {
			t.Errorf("%s of one that is not there: %v", what, err)
		}
	}
}

// Each change is one line, also of a deleted endpoint and of one that has its name again.
func TestHistoryOfAnEndpointOutlivesIt(t *testing.T) {
	on := samekeytest.NewDB(t)
	by := func(reason string) outbox.By { return outbox.By{Actor: "ada", Reason: reason} }
	steps := []func() error{
		func() error { return endpoints.Put(t.Context(), on, shop("shop-1"), by("registered")) },
		func() error { return endpoints.Put(t.Context(), on, shop("shop-1"), by("a new secret")) },
		func() error { return endpoints.Start(t.Context(), on, "webhooks", "shop-1", by("it is not stopped")) },
		func() error { return endpoints.Stop(t.Context(), on, "webhooks", "shop-1", by("closed")) },
		func() error { return endpoints.Stop(t.Context(), on, "webhooks", "shop-1", by("closed again")) },
		func() error { return endpoints.Start(t.Context(), on, "webhooks", "shop-1", by("open")) },
		func() error { return endpoints.Delete(t.Context(), on, "webhooks", "shop-1", by("gone")) },
		func() error { return endpoints.Put(t.Context(), on, shop("shop-1"), by("back")) },
		func() error { return endpoints.Put(t.Context(), on, shop("shop-2"), by("another")) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	for name, missing := range map[string]error{
		"stop":   endpoints.Stop(t.Context(), on, "webhooks", "shop-3", ada),
		"delete": endpoints.Delete(t.Context(), on, "webhooks", "shop-3", ada),
	} {
		if !errors.Is(missing, endpoints.ErrNotFound) {
			t.Errorf("%s: %v", name, missing)
		}
	}
	var got []string
	for before := int64(0); ; {
		page, err := endpoints.History(t.Context(), on, "webhooks", "shop-1", before, 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			if e.Actor != "ada" || e.DBUser == "" || e.At.IsZero() {
				t.Errorf("%+v", e)
			}
			got = append(got, e.Event+": "+e.Reason)
		}
		if len(page) < 4 {
			break
		}
		before = page[len(page)-1].ID
	}
	want := []string{"created: back", "deleted: gone", "started: open", "stopped: closed", "started: it is not stopped", "changed: a new secret", "created: registered"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if page, err := endpoints.History(t.Context(), on, "webhooks", "shop-3", 0, 1); err != nil || len(page) != 0 {
		t.Errorf("the history of an endpoint that never was: %v, %v", page, err)
	}
	if _, err := endpoints.History(t.Context(), on, "webhooks", "", 0, 0); err == nil || !strings.Contains(err.Error(), "Name") || !strings.Contains(err.Error(), "limit 0") {
		t.Errorf("without a name and a limit: %v", err)
	}
}

func TestAnActOnAnEndpointNeedsAnActorAndAReason(t *testing.T) {
	on := samekeytest.NewDB(t)
	put(t, on, shop("shop-1"))
	for verb, act := range map[string]func(outbox.By) error{
		"put":   func(by outbox.By) error { return endpoints.Put(t.Context(), on, shop("shop-1"), by) },
		"stop":  func(by outbox.By) error { return endpoints.Stop(t.Context(), on, "webhooks", "shop-1", by) },
		"start": func(by outbox.By) error { return endpoints.Start(t.Context(), on, "webhooks", "shop-1", by) },
		"test": func(by outbox.By) error {
			return second(endpoints.Test(t.Context(), on, "webhooks", "shop-1", "notify", ping, by))
		},
		"delete": func(by outbox.By) error { return endpoints.Delete(t.Context(), on, "webhooks", "shop-1", by) },
	} {
		for _, by := range []outbox.By{{Actor: "ada"}, {Reason: "r"}} {
			if err := act(by); err == nil {
				t.Errorf("%s by %+v is taken", verb, by)
			}
		}
	}
	for _, sql := range []string{
		`select samekey.endpoint_put('webhooks', 'shop-1', 'https://h', '', 'r')`, `select samekey.endpoint_stop('webhooks', 'shop-1', 'a', ' ')`,
		`select samekey.endpoint_start('webhooks', 'shop-1', null, 'r')`, `select samekey.endpoint_delete('webhooks', 'shop-1', 'a', null)`,
		`select samekey.endpoint_test('webhooks', 'shop-1', 'notify', '{}', ' ', 'r')`,
	} {
		if _, err := on.Exec(t.Context(), sql); sqlState(err) != "22023" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func sqlState(err error) string {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func second[T any](_ T, err error) error { return err }

func TestPutIsPartOfTheTransaction(t *testing.T) {
	on := samekeytest.NewDB(t)
	undo := errors.New("undo")
	err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
		put(t, tx, shop("shop-1"))
		return undo
	})
	if _, missing := endpoints.Get(t.Context(), on, "webhooks", "shop-1"); !errors.Is(err, undo) || !errors.Is(missing, endpoints.ErrNotFound) {
		t.Errorf("rolled back: %v, %v", err, missing)
	}
}

func TestTheListIsPagedByName(t *testing.T) {
	on := samekeytest.NewDB(t)
	for _, name := range []string{"b", "a", "Z", "c"} {
		put(t, on, shop(name))
	}
	other := shop("a")
	other.Destination = "others"
	put(t, on, other)
	var names []string
	for behind := ""; ; {
		page, err := endpoints.List(t.Context(), on, "webhooks", behind, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			names = append(names, e.Name)
		}
		if len(page) < 3 {
			break
		}
		behind = page[len(page)-1].Name
	}
	if got := strings.Join(names, " "); got != "Z a b c" {
		t.Errorf("got %q", got)
	}
	if _, err := endpoints.List(t.Context(), on, "webhooks", "", 0); err == nil {
		t.Error("a limit of 0 is taken")
	}
	err := pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
		for destination, after := range map[string]string{"web\x00": "", "webhooks": "a\xff"} {
			if _, err := endpoints.List(t.Context(), tx, destination, after, 3); err == nil {
				t.Errorf("%q after %q is taken", destination, after)
			}
		}
		put(t, tx, shop("d")) // the transaction goes on
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPutReportsAllMistakesAndNoSecret(t *testing.T) {
	on := samekeytest.NewDB(t)
	bad := endpoints.Endpoint{Destination: "Web hooks", URL: "ftp://user:pa55word@shop.example/t0ken", Secrets: []string{"whsec_dG9vIHNob3J0", ""}}
	err := endpoints.Put(t.Context(), on, bad, outbox.By{})
	if err == nil {
		t.Fatal("it is taken")
	}
	for _, word := range []string{"Destination", "Name", "URL must begin", "base64 of 24 to 64 bytes", "not empty"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v: want %q", err, word)
		}
	}
	for _, secret := range []string{"pa55word", "t0ken", "dG9vIHNob3J0"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%v: shows %q", err, secret)
		}
	}
	err = pgx.BeginFunc(t.Context(), on, func(tx pgx.Tx) error {
		if _, err := endpoints.Get(t.Context(), tx, "webhooks", "shop\x00"); err == nil || !strings.Contains(err.Error(), "Name must be text") {
			t.Errorf("get: %v", err)
		}
		put(t, tx, shop("shop-1")) // the transaction goes on
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := endpoints.Stop(t.Context(), on, "webhooks", "", outbox.By{}); err == nil || !strings.Contains(err.Error(), "Name") || !strings.Contains(err.Error(), "Actor") {
		t.Errorf("stop: %v", err)
	}
}

// Other libraries and services issue secrets in these forms. With one, every intent for its receiver would become dead.
func TestPutRefusesASecretThatCannotSign(t *testing.T) {
	on := samekeytest.NewDB(t)
	good := endpoints.NewSecret()
	bare := strings.TrimPrefix(good, "whsec_")
	for secret, want := range map[string]string{
		"v1," + good:              "kind of signature: remove it",
		"v1a," + bare:             "kind of signature: remove it",
		"whsk_" + bare[:20]:       "32 or 64 bytes",
		"whpk_" + bare:            "public key",
		"plain-text-secret":       "OtherSecrets",
		" " + good:                "base64 of 24 to 64 bytes",
		"whsec_" + bare[:20]:      "base64 of 24 to 64 bytes",
		"whsec_" + good:           "base64 of 24 to 64 bytes",
		strings.ToUpper(good[:7]): "base64 of 24 to 64 bytes",
	} {
		e := shop("shop-1")
		e.Secrets = []string{good, secret}
		err := endpoints.Put(t.Context(), on, e, ada)
		if err == nil || !strings.Contains(err.Error(), "Secrets[1]") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), bare[:20]) {
			t.Errorf("%q: %v, want %q", secret, err, want)
		}
	}
	for _, secret := range []string{good, bare, "whsk_" + bare} {
		e := shop("shop-1")
		e.Secrets = []string{secret}
		put(t, on, e)
	}
	other := shop("shop-2")
	other.Secrets, other.OtherSecrets = []string{"plain-text-secret", "k"}, true
	put(t, on, other)
	other.Secrets = []string{"whsec_dG9vIHNob3J0"} // it claims the form of Standard Webhooks
	if err := endpoints.Put(t.Context(), on, other, ada); err == nil {
		t.Error("a broken whsec_ is taken")
	}
	other.Secrets = []string{"whpk_" + bare}
	if err := endpoints.Put(t.Context(), on, other, ada); err == nil || !strings.Contains(err.Error(), "public key") {
		t.Errorf("a public key as another secret: %v", err)
	}
}

func TestPutRefusesUnusableURLs(t *testing.T) {
	on := samekeytest.NewDB(t)
	for url, want := range map[string]string{
		"https://shop.example/hooks?t0ken=a b":               "query with a space",
		"https://shop.example/hooks?t0ken=ü":                 "not ASCII",
		"https://shop.example/hooks?t0ken HTTP/1.1":          "query with a space",
		"https://shop.example:0/t0ken":                       "outside of 1 to 65535",
		"https://shop.example:65536/t0ken":                   "outside of 1 to 65535",
		"https://shop.example/t0ken#part":                    "fragment",
		"https://shop.example/t0ken\r\nHost: inside.example": "not valid",
		"https://:443/t0ken":                                 "no host",
		"HTTPS://shop.example/t0ken":                         "begin with https://",
	} {
		e := shop("shop-1")
		e.URL = url
		if err := endpoints.Put(t.Context(), on, e, ada); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "t0ken") {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, url := range []string{"https://shop.example:65535?a=%20b+c", "http://[2001:db8::1]:1/a b", "https://bücher.example/ü"} { // the path is escaped when it is sent
		e := shop("shop-1")
		e.URL = url
		put(t, on, e)
	}
}

// The table takes what Put takes, and refuses what Put refuses as far as a CHECK can.
func TestTheTableHoldsWhatPutHolds(t *testing.T) {
	on := samekeytest.NewDB(t)
	limit := shop(strings.Repeat("n", 255))
	limit.Destination, limit.URL = strings.Repeat("d", 56), "https://h/"+strings.Repeat("p", 2038)
	limit.OtherSecrets = true
	limit.Secrets = []string{"1", "2", "3", "4", "5", "6", "7", strings.Repeat("s", 4096-7)}
	put(t, on, limit)
	for what, change := range map[string]func(*endpoints.Endpoint){
		"no destination":      func(e *endpoints.Endpoint) { e.Destination = "" },
		"a long destination":  func(e *endpoints.Endpoint) { e.Destination = strings.Repeat("d", 57) },
		"no name":             func(e *endpoints.Endpoint) { e.Name = "" },
		"a long name":         func(e *endpoints.Endpoint) { e.Name += "n" },
		"no URL":              func(e *endpoints.Endpoint) { e.URL = "" },
		"another scheme":      func(e *endpoints.Endpoint) { e.URL = "gopher://h/" },
		"a long URL":          func(e *endpoints.Endpoint) { e.URL += "p" },
		"nine secrets":        func(e *endpoints.Endpoint) { e.Secrets = strings.Split("123456789", "") },
		"a private key":       func(e *endpoints.Endpoint) { e.Secrets, e.OtherSecrets = []string{"whsk_1"}, false },
		"a marked secret":     func(e *endpoints.Endpoint) { e.Secrets, e.OtherSecrets = []string{"s", "v1,whsec_1"}, false },
		"secrets of too much": func(e *endpoints.Endpoint) { e.Secrets = append(e.Secrets[:7:7], e.Secrets[7]+"s") },
	} {
		e := limit
		change(&e)
		if err := endpoints.Put(t.Context(), on, e, ada); err == nil || strings.Contains(err.Error(), "SQLSTATE") {
			t.Errorf("%s: Put: %v, want a refusal of its own", what, err)
		}
		_, err := on.Exec(t.Context(), `insert into samekey.endpoints (destination, name, url, secrets) values ($1, $2, $3, $4)`, e.Destination, e.Name, e.URL, e.Secrets)
		if err == nil || !strings.Contains(err.Error(), "check constraint") {
			t.Errorf("%s: the table: %v", what, err)
		}
	}
}

func TestEndpointPrintsNoURLAndNoSecrets(t *testing.T) {
	e := shop("shop-1")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("put", "endpoint", e)
	for _, text := range []string{fmt.Sprint(e), fmt.Sprintf("%+v %#v %s", e, e, e), log.String()} {
		if strings.Contains(text, "t0ken") || strings.Contains(text, "whsec_") || !strings.Contains(text, "webhooks/shop-1") {
			t.Errorf("%s", text)
		}
	}
}
