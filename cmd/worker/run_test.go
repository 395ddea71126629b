package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// insert writes n intents, each under a key of its own.
func insert(t *testing.T, db *samekeytest.DB, action string, n int) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for i := range n {
			key, err := samekey.NewKey(fmt.Sprintf("order-%d", i), "test", action)
			if err != nil {
				return err
			}
			if _, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: action, Payload: map[string]int{"order": i}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *samekeytest.DB, sql string) int {
	t.Helper()
	return dbtest.Value[int](t, db, sql)
}

func wait(t *testing.T, until func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := until(ctx); err != nil {
		t.Fatal(err)
	}
}

func environment(db *samekeytest.DB, more ...string) []string {
	return append([]string{"DATABASE_URL=" + db.DSN, "DEPLOYMENT=staging", "LISTEN_ADDR=127.0.0.1:0"}, more...)
}

const oneVendor = `
worker: {stop_timeout: 1s}
destinations:
  vendor: {url: "%s", key_window: 24h, concurrency: 2, allow_private: 127.0.0.0/8}
actions:
  charge_card: {destination: vendor, request: POST /v1/charges, class: idempotent_write, timeout: 20s, refused: [402]}
`

func TestWorkerDeliversTheFilesActions(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	insert(t, db, "charge_card", 20)
	vendor.Next(samekeytest.FaultLoseAnswer, "500_after", "402")
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, vendor.URL)))
	wait(t, func(ctx context.Context) error { return vendor.WaitEffects(ctx, 19) })
	if status, body := p.probe(t, "/healthz"); status != 200 {
		t.Errorf("/healthz is %d %s", status, body)
	}
	p.waitReady(t, 200)
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	ledger := vendor.Ledger()
	if len(ledger.Effects) != 19 || len(ledger.Declined) != 1 || ledger.Counts.Doubles != 0 {
		t.Errorf("the vendor's ledger: %+v", ledger.Counts)
	}
}

// A file has no decoders. Without payload_version, nothing would send the second one.
func TestFileNamesTheNewestPayloadItFits(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	for version := range 3 {
		if _, err := db.Exec(t.Context(), `select samekey.enqueue('tenant/shop', 'order-' || $1::text, 'charge_card', '{"amount":4900}'::jsonb, content_type => 'application/json; payload-version=' || $1::text)`, strconv.Itoa(version+1)); err != nil {
			t.Fatal(err)
		}
	}
	config := strings.Replace(fmt.Sprintf(oneVendor, vendor.URL), "timeout: 20s", "timeout: 20s, payload_version: 2", 1)
	start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", config))
	wait(t, func(ctx context.Context) error { return vendor.WaitEffects(ctx, 2) })
	dbtest.Until(t, "the third version to be left", func() bool {
		return count(t, db, `select count(*) from samekey.outbox_queue q join samekey.outbox o using (id) where o.idem_key = 'order-3' and q.status = 'pending' and q.first_sent_at is null and q.last_code = 'payload_version'`) == 1 &&
			count(t, db, `select count(*) from samekey.outbox_queue`) == 1
	})
}

// Case 25.
func TestSignalFinishesTheCall(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	vendor.HoldAnswers()
	insert(t, db, "charge_card", 5)
	config := strings.Replace(fmt.Sprintf(oneVendor, vendor.URL), "stop_timeout: 1s", "stop_timeout: 15s", 1)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", config))
	wait(t, func(ctx context.Context) error { return vendor.WaitOpen(ctx, 2) })
	p.signal(t)
	if reason := p.waitReady(t, 503); !strings.Contains(reason, "stopping") {
		t.Errorf("/readyz says %q", reason)
	}
	vendor.Release()
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := vendor.Counts().Calls; n != 2 {
		t.Errorf("%d calls were made, want the 2 of before the signal", n)
	}
	if n := count(t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`); n != 2 {
		t.Errorf("%d deliveries are recorded, want 2", n)
	}
	if n := count(t, db, `select count(*) from samekey.outbox_queue where status = 'pending' and leased_by is null and attempt <= 1`); n != 3 {
		t.Errorf("%d intents are left to others, want 3", n)
	}
}

func TestCallPastTheStopTimeoutIsRecorded(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	vendor.Hold()
	insert(t, db, "charge_card", 2)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, vendor.URL)))
	wait(t, func(ctx context.Context) error { return vendor.WaitOpen(ctx, 2) })
	began := time.Now()
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %v, with a stop_timeout of 1s", took)
	}
	if n := count(t, db, `select count(*) from samekey.outbox_history where event = 'attempt' and outcome = 'unknown' and code = 'stopped'`); n != 2 {
		t.Errorf("%d stopped attempts are recorded, want 2", n)
	}
	if n := count(t, db, `select count(*) from samekey.outbox_queue where status = 'pending' and leased_by is null`); n != 2 {
		t.Errorf("%d intents are left to others, want 2", n)
	}
}

func TestSecondSignalEndsTheProcessAtOnce(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	vendor.Hold()
	insert(t, db, "charge_card", 1)
	config := strings.Replace(fmt.Sprintf(oneVendor, vendor.URL), "stop_timeout: 1s", "stop_timeout: 10m", 1)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", config))
	wait(t, func(ctx context.Context) error { return vendor.WaitOpen(ctx, 1) })
	p.signal(t)
	p.log.Wait(t, "a second signal")
	p.signal(t)
	if code := p.exit(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// A terminal that closes, or `kill -HUP` by a person who expects a reload: it stops in good order. A terminal and its
// shell may both send the signal, so another SIGHUP is no second signal.
func TestSIGHUPStopsInGoodOrder(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	vendor.HoldAnswers()
	insert(t, db, "charge_card", 2)
	config := strings.Replace(fmt.Sprintf(oneVendor, vendor.URL), "stop_timeout: 1s", "stop_timeout: 15s", 1)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", config))
	wait(t, func(ctx context.Context) error { return vendor.WaitOpen(ctx, 2) })
	p.send(t, syscall.SIGHUP)
	p.waitReady(t, 503)
	p.send(t, syscall.SIGHUP)
	p.log.Wait(t, "already stopping")
	vendor.Release()
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := count(t, db, `select count(*) from samekey.outbox_history where final_status = 'delivered'`); n != 2 {
		t.Errorf("%d deliveries are recorded, want 2", n)
	}
}

// As under nohup.
func TestIgnoredSIGHUPStaysIgnored(t *testing.T) {
	db, vendor := samekeytest.NewDB(t), samekeytest.StartVendor(t, nil)
	config := writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, vendor.URL))
	p := startCommand(t, environment(db), exec.Command("/bin/sh", "-c", `trap "" HUP; exec "$0" run -config "$1"`, binary, config))
	p.waitReady(t, 200)
	p.send(t, syscall.SIGHUP)
	insert(t, db, "charge_card", 1)
	wait(t, func(ctx context.Context) error { return vendor.WaitEffects(ctx, 1) })
	p.signal(t)
	if code := p.exit(t); code != 0 || strings.Contains(p.log.String(), "hangup") {
		t.Errorf("exit code %d", code)
	}
}

// Case 22, from end to end: the vendor echoes what it was sent, refuses, or cannot be reached.
func TestSecretsAreInNoRowAndNoLog(t *testing.T) {
	db := samekeytest.NewDB(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	vendor := samekeytest.StartVendor(t, &samekeytest.VendorOptions{Answer: func(r samekeytest.VendorRequest) samekeytest.VendorAnswer {
		status := 402
		if strings.HasPrefix(r.Path, "/own") {
			status = 403
		}
		return samekeytest.VendorAnswer{Status: status, Body: fmt.Appendf(nil, "%s %v", r.Path, r.Header)}
	}})
	secrets := map[string]string{"PASSWORD": "pass-in-url", "QUERY": "query-in-url", "TOKEN": "token-in-header",
		"OWN": "of-the-action"}
	file := writeFile(t, "secret", "secret-in-file\n")
	config := writeFile(t, "worker.yaml", fmt.Sprintf(`
destinations:
  echo:
    url: "http://user:${env:PASSWORD}@%s/?token=${env:QUERY}"
    headers: {X-Token: "${env:TOKEN}", X-File: "${file:%s}"}
    allow_private: [127.0.0.0/8]
  away:
    url: "http://user:${env:PASSWORD}@%s/?token=${env:QUERY}"
    headers: {X-Token: "${env:TOKEN}", X-File: "${file:%s}"}
    allow_private: [127.0.0.0/8]
actions:
  refuse: {destination: echo, request: POST /, class: idempotent_write, key_window: 24h, refused: 402}
  die: {destination: echo, request: POST /die, class: idempotent_write, key_window: 24h}
  fail: {destination: away, request: POST /, class: idempotent_write, key_window: 24h}
  own:
    destination: echo
    request: POST /own
    headers: {Authorization: "Bearer own ${env:OWN}", X-Own: "${env:OWN}", X-Own-File: "${file:%s}"}
    class: idempotent_write
    key_window: 24h
`, strings.TrimPrefix(vendor.URL, "http://"), file, closed.Addr(), file, writeFile(t, "own", "own-secret-in-file\n")))
	env := environment(db, "LOG_LEVEL=debug")
	for name, value := range secrets {
		env = append(env, name+"="+value)
	}
	for _, action := range []string{"refuse", "die", "fail", "own"} {
		insert(t, db, action, 1)
	}
	p := start(t, env, "run", "-config", config)
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for count(t, db, `select count(distinct (i.action, h.outcome)) from samekey.outbox_history h join samekey.outbox i on i.id = h.intent_id
		where (i.action, h.outcome) in (('refuse', 'refused'), ('die', 'dead'), ('fail', 'unsent'), ('own', 'dead'))`) < 4 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the four outcomes are not in the history")
		}
	}
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var rows string
	if err := db.QueryRow(t.Context(), `select string_agg(concat_ws(' ', h::text, convert_from(response, 'UTF8')), E'\n') from samekey.outbox_history h`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(rows, "[redacted]") || !strings.Contains(rows, "connection refused") {
		t.Errorf("the test is void: %s", rows)
	}
	secrets["FILE"] = "secret-in-file" // the action's secret contains it
	for _, secret := range secrets {
		if strings.Contains(rows, secret) {
			t.Errorf("%q is in the history: %s", secret, rows)
		}
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
}

// A vendor that acts and answers 303: the meaning of the redirect is not known, and a redrive must not send again.
func TestRedirectAfterTheVendorActedIsNotRedriven(t *testing.T) {
	db := samekeytest.NewDB(t)
	vendor := samekeytest.StartVendor(t, &samekeytest.VendorOptions{Answer: func(samekeytest.VendorRequest) samekeytest.VendorAnswer {
		return samekeytest.VendorAnswer{Status: 303, Body: []byte("see the charge")}
	}})
	insert(t, db, "charge", 1)
	p := start(t, environment(db), "run", "-config", writeFile(t, "worker.yaml", fmt.Sprintf(`
destinations: {vendor: {url: "%s", allow_private: 127.0.0.0/8}}
actions: {charge: {destination: vendor, request: POST /, class: non_idempotent_write, settling_delay: 0}}
`, vendor.URL)))
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for count(t, db, `select count(*) from samekey.outbox_queue where status in ('parked', 'dead')`) < 1 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the intent does not come to rest")
		}
	}
	var id uuid.UUID
	if err := db.QueryRow(t.Context(), `select id from samekey.outbox`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Redrive(t.Context(), db, id, outbox.By{Actor: "ada", Reason: "again"}); err == nil {
		t.Error("it is redriven")
	}
	if n := count(t, db, `select count(*) from samekey.outbox_history where outcome = 'unknown' and code = '303' and response = 'see the charge'`); n != 1 {
		t.Errorf("%d unknown outcomes with their answer are in the history, want 1", n)
	}
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := vendor.Counts().Calls; n != 1 {
		t.Errorf("the vendor saw %d requests, want 1", n)
	}
}

func TestMissingDatabaseURLReportsAllMistakes(t *testing.T) {
	config := writeFile(t, "worker.yaml", "destinations: {}\nactions: {}\nfoo: 1\n")
	for _, env := range [][]string{{"LOG_FORMAT=xml"}, {"DATABASE_URL=", "LOG_FORMAT=xml"}, {"DATABASE_URL=postgres://u:s3cret@h:port/x", "LOG_FORMAT=xml"}} {
		p := start(t, env, "run", "-config", config)
		if code := p.exit(t); code != 2 {
			t.Errorf("%v: exit code %d, want 2", env, code)
		}
		for _, want := range []string{"DATABASE_URL", "postgres://user:password@host", "LOG_FORMAT", config + ":3: foo"} {
			if !strings.Contains(p.log.String(), want) {
				t.Errorf("%v: %q is not in %s", env, want, p.log.String())
			}
		}
		if strings.Contains(p.log.String(), "s3cret") {
			t.Errorf("the password is in %s", p.log.String())
		}
	}
}

func TestOldSchemaGivesAdvice(t *testing.T) {
	db := samekeytest.NewEmptyDB(t)
	config := writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, "http://127.0.0.1:1"))
	p := start(t, environment(db), "run", "-config", config)
	if code := p.exit(t); code != 1 || !strings.Contains(p.log.String(), "worker migrate") {
		t.Errorf("exit code %d: %s", code, p.log.String())
	}
	env := map[string]string{"DATABASE_URL": db.DSN}
	for range 2 {
		if code, stdout, stderr := call(env, "migrate"); code != 0 || stderr != "" {
			t.Errorf("migrate: %d %s %s", code, stdout, stderr)
		}
	}
	p = start(t, environment(db), "run", "-config", config)
	p.waitReady(t, 200)
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// After a switchover by logical replication a worker could not record what it
// does: it does not start until `worker migrate` has run.
func TestWorkerRefusesResetSequences(t *testing.T) {
	db := samekeytest.NewDB(t)
	_, err := db.Exec(t.Context(), `insert into samekey.outbox_history (intent_id, event) values (gen_random_uuid(), 'restored')`)
	if err == nil {
		_, err = db.Exec(t.Context(), `select setval('samekey.outbox_history_id_seq', 1, false)`)
	}
	if err != nil {
		t.Fatal(err)
	}
	config := writeFile(t, "worker.yaml", fmt.Sprintf(oneVendor, "http://127.0.0.1:1"))
	p := start(t, environment(db), "run", "-config", config)
	if code := p.exit(t); code != 1 || !strings.Contains(p.log.String(), "worker migrate") {
		t.Errorf("exit code %d: %s", code, p.log.String())
	}
	if code, _, stderr := call(map[string]string{"DATABASE_URL": db.DSN}, "migrate"); code != 0 {
		t.Fatalf("migrate: %d %s", code, stderr)
	}
	p = start(t, environment(db), "run", "-config", config)
	p.waitReady(t, 200)
	p.signal(t)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestMigrateForAToolNeedsAToolAndAFolder(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"-for", "flyway", "-dir", dir}, {"-for", "goose"}, {"-dir", dir}} {
		if code, stdout, stderr := call(nil, append([]string{"migrate"}, args...)...); code != 2 || stdout != "" || !strings.Contains(stderr, "golang-migrate") {
			t.Errorf("%v: %d %s %s", args, code, stdout, stderr)
		}
	}
	if code, _, stderr := call(nil, "migrate", "-for", "goose", "-dir", filepath.Join(dir, "none")); code != 1 || stderr == "" {
		t.Errorf("no such folder: %d %s", code, stderr)
	}
	write := func() string {
		code, stdout, stderr := call(nil, "migrate", "-for", "goose", "-dir", dir)
		if code != 0 {
			t.Fatalf("%d %s", code, stderr)
		}
		return stdout
	}
	// The file is added after the existing ones, with their number of digits.
	if err := os.WriteFile(filepath.Join(dir, "20261130083000_own.sql"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(write(), "\n"); first != "20261130083001_samekey_0001.sql" {
		t.Errorf("the first file is %s", first)
	}
	if again := write(); again != "" {
		t.Errorf("wrote again: %s", again)
	}
}

func TestMigratePrintsSQL(t *testing.T) {
	code, stdout, _ := call(nil, "migrate", "-print", "-app-role", "app")
	if code != 0 || !strings.Contains(stdout, "create table samekey.outbox (") || !strings.Contains(stdout, `to "app"`) {
		t.Errorf("%d, %d bytes", code, len(stdout))
	}
	for _, url := range []string{"", "postgres://u:s3cret@h:port/x"} {
		if code, _, stderr := call(map[string]string{"DATABASE_URL": url}, "migrate"); code != 2 || strings.Contains(stderr, "s3cret") {
			t.Errorf("%d %s", code, stderr)
		}
	}
	if code, _, stderr := call(map[string]string{"DATABASE_URL": "postgres://u:s3cret@127.0.0.1:1/x"}, "migrate"); code != 1 || strings.Contains(stderr, "s3cret") {
		t.Errorf("%d %s", code, stderr)
	}
}
