package createorder_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/samekeytest"
)

// deployed is the service, both vendors and worker.yaml, each with a login of its own.
type deployed struct {
	*shop
	payments, mail *samekeytest.Vendor
	worker         []string // its environment
}

func setupDeployed(t *testing.T) *deployed {
	s := &deployed{shop: &shop{t: t, db: samekeytest.NewDB(t)}}
	roles, appDSN, workerDSN := dbtest.Logins(t, s.db)
	app := dbtest.Pool(t, appDSN)
	dbtest.Exec(t, s.db, `do $$ begin execute format('grant create on database %I to %I', current_database(), '`+roles.App+`'); end $$`)
	if err := createorder.Migrate(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	functions, err := os.ReadFile("functions.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := app.Exec(t.Context(), string(functions)); err != nil {
		t.Fatal(err)
	}
	worker := pgx.Identifier{roles.Worker}.Sanitize()
	for _, line := range strings.Split(string(functions), "\n") { // the grants that the head of the file names
		if grant, ok := strings.CutPrefix(line, "--   grant"); ok {
			dbtest.Exec(t, app, "grant"+strings.ReplaceAll(grant, "WORKER", worker))
		}
	}
	orders, err := createorder.NewService(app, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(orders)
	t.Cleanup(server.Close)
	s.url = server.URL

	identity := samekeytest.IdentityField("order_id")
	s.payments = samekeytest.StartVendor(t, &samekeytest.VendorOptions{Identity: identity, Answer: chargeOrDecline})
	s.mail = samekeytest.StartVendor(t, &samekeytest.VendorOptions{Identity: identity})
	s.worker = []string{"DATABASE_URL=" + workerDSN, "LISTEN_ADDR=off", "PAYMENTS_URL=" + s.payments.URL, "MAIL_URL=" + s.mail.URL}
	return s
}

func chargeOrDecline(r samekeytest.VendorRequest) samekeytest.VendorAnswer {
	if bytes.Contains(r.Body, []byte(`"declined":true`)) {
		return samekeytest.VendorAnswer{Status: 402, Body: []byte(`{"error":{"code":"card_declined"}}`)}
	}
	return samekeytest.VendorAnswer{Status: 201, Body: []byte(`{"id":"ch_1"}`)}
}

// run runs the worker program with worker.yaml until the test ends.
func (s *deployed) run() *exec.Cmd {
	s.t.Helper()
	binary := filepath.Join(s.t.TempDir(), "worker")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/worker").CombinedOutput(); err != nil {
		s.t.Fatalf("build the worker: %v: %s", err, out)
	}
	log := &dbtest.Log{}
	worker := exec.Command(binary, "run", "-config", "worker.yaml")
	worker.Env, worker.Stdout, worker.Stderr = s.worker, log, log
	if err := worker.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = worker.Process.Kill()
		_ = worker.Wait()
		if s.t.Failed() {
			s.t.Logf("the worker said:\n%s", log)
		}
	})
	return worker
}

// until waits for all orders to be in this state, with nothing left to do.
func (s *deployed) until(state string, orders int) {
	s.t.Helper()
	dbtest.Until(s.t, fmt.Sprintf("%d orders are %s", orders, state), func() bool {
		return dbtest.Value[int](s.t, s.db, `select count(*) from shop.orders where state = $1`, state) == orders &&
			dbtest.Value[int](s.t, s.db, `select (select count(*) from samekey.outbox_queue) + (select count(*) from samekey.outbox_attention)`) == 0
	})
}

// The same as TestPaidOrderHasOneChargeAndOneReceipt in worker, without Go code.
func TestYAMLWorkerChargesAndSendsReceipts(t *testing.T) {
	s := setupDeployed(t)
	faults := []samekeytest.Fault{
		samekeytest.FaultLoseAnswer, samekeytest.FaultResetBefore, samekeytest.FaultResetAfter, samekeytest.FaultTruncate,
		"500", "500_after", "429", "409",
	}
	s.payments.Next(faults...)
	s.mail.Next(faults...)
	for i := range len(faults) + 1 {
		s.want(s.post(fmt.Sprintf("k%d", i), tea), 201, "pending")
	}
	s.run()
	s.until("paid", len(faults)+1)
	for _, vendor := range []*samekeytest.Vendor{s.payments, s.mail} {
		samekeytest.AssertEffects(t, vendor, len(faults)+1)
		if n := vendor.Counts(); n.Doubles != 0 || n.Calls != 2*len(faults)+1 {
			t.Errorf("%d doubles, %d calls; want one call, and another for each fault", n.Doubles, n.Calls)
		}
	}
	if n := dbtest.Value[int](t, s.db, `select count(*) from shop.orders where charge_id = 'ch_1' and problem is null`); n != len(faults)+1 {
		t.Errorf("%d orders have the charge's id", n)
	}
	receipt := dbtest.Value[string](t, s.db, `select convert_from(o.payload, 'UTF8') from samekey.outbox o where o.action = 'send_receipt' limit 1`)
	if !strings.Contains(receipt, `"to": "ada@example.com"`) {
		t.Errorf("the receipt is %s", receipt)
	}
}

func TestYAMLWorkerFailsADeclinedPayment(t *testing.T) {
	s := setupDeployed(t)
	s.payments.Next(samekeytest.FaultLoseAnswer)
	s.post("k1", strings.Replace(tea, `"token":"tok_1"`, `"token":"tok_1","declined":true`, 1))
	s.run()
	s.until("payment_failed", 1)
	samekeytest.AssertEffects(t, s.payments, 0)
	if n := s.mail.Counts().Calls; n != 0 {
		t.Errorf("the mail vendor had %d calls", n)
	}
}

// An operator cancels the charge in psql: the order shows it.
func TestYAMLWorkerTellsOfACancelledCharge(t *testing.T) {
	s := setupDeployed(t)
	worker := s.run() // registers that the action has a function
	dbtest.Until(t, "the worker is there", func() bool {
		return dbtest.Value[int](t, s.db, `select count(*) from samekey.actions where attention`) == 1
	})
	_ = worker.Process.Kill()
	_ = worker.Wait()
	s.post("k1", tea)
	dbtest.Exec(t, s.db, `select samekey.cancel(id, 'ann', 'the customer called') from samekey.outbox`)
	s.run()
	s.until("payment_failed", 1)
	if problem := dbtest.Value[string](t, s.db, `select problem from shop.orders`); problem != "cancelled" {
		t.Errorf("the order's problem is %s", problem)
	}
	if n := s.payments.Counts().Calls; n != 0 {
		t.Errorf("the payment vendor had %d calls", n)
	}
}
