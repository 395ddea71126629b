package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/samekeytest"
)

// stage is the service, both vendors and a worker, on their own database.
type stage struct {
	t              *testing.T
	db             *samekeytest.DB
	payments, mail *samekeytest.Vendor
	dispatcher     *dispatcher.Dispatcher
	url            string
}

func setup(t *testing.T) *stage {
	s := &stage{t: t, db: samekeytest.NewDB(t)}
	if err := createorder.Migrate(t.Context(), s.db.Pool); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	orders, err := createorder.NewService(s.db.Pool, log)
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(orders)
	t.Cleanup(service.Close)
	s.url = service.URL

	identity := samekeytest.IdentityField("order_id")
	s.payments = samekeytest.StartVendor(t, &samekeytest.VendorOptions{Identity: identity, Answer: chargeOrDecline})
	s.mail = samekeytest.StartVendor(t, &samekeytest.VendorOptions{Identity: identity})
	s.dispatcher = dispatcher.New(s.db.Pool, &dispatcher.Config{Logger: log})
	deployed := settings{payments: s.payments.URL, mail: s.mail.URL, timeout: 10 * time.Second, concurrency: 4}
	if err := deployed.register(s.dispatcher); err != nil {
		t.Fatal(err)
	}
	return s
}

func chargeOrDecline(r samekeytest.VendorRequest) samekeytest.VendorAnswer {
	if bytes.Contains(r.Body, []byte(`"declined":true`)) {
		return samekeytest.VendorAnswer{Status: 402, Body: []byte(`{"error":{"code":"card_declined"}}`)}
	}
	return samekeytest.VendorAnswer{Status: 201, Body: []byte(`{"id":"ch_1"}`)}
}

func (s *stage) order(key, card string) {
	s.t.Helper()
	body := `{"product":"tea","quantity":1,"email":"ada@example.com","card":` + card + `}`
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", s.url+"/orders", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Tenant", "acme")
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		s.t.Fatalf("the order was answered %s", res.Status)
	}
}

// deliver drains the due intents, lets a minute pass, and drains the postponed ones.
func (s *stage) deliver() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for range 4 {
		if _, err := s.dispatcher.Drain(ctx); err != nil {
			s.t.Fatal(err)
		}
		samekeytest.Elapse(s.t, s.db, time.Minute)
	}
	var unfinished int
	if err := s.db.QueryRow(ctx, `select count(*) from samekey.outbox_queue`).Scan(&unfinished); err != nil || unfinished > 0 {
		s.t.Errorf("%d intents are unfinished, error %v", unfinished, err)
	}
}

// wantStates checks the number of orders, and that all are in this state.
func (s *stage) wantStates(state string, orders int) {
	s.t.Helper()
	var have, all int
	err := s.db.QueryRow(s.t.Context(), `select count(*) filter (where state = $1), count(*) from shop.orders`, state).Scan(&have, &all)
	if err != nil || have != orders || all != orders {
		s.t.Errorf("%d of %d orders are %s, want %d, error %v", have, all, state, orders, err)
	}
}

func TestPaidOrderHasOneChargeAndOneReceipt(t *testing.T) {
	s := setup(t)
	faults := []samekeytest.Fault{
		samekeytest.FaultLoseAnswer, samekeytest.FaultResetBefore, samekeytest.FaultResetAfter, samekeytest.FaultTruncate,
		"500", "500_after", "429", "409",
	}
	s.payments.Next(faults...)
	s.mail.Next(faults...)
	for i := range len(faults) + 1 {
		s.order(fmt.Sprintf("k%d", i), `{"token":"tok_1"}`)
	}
	s.deliver()
	s.wantStates("paid", len(faults)+1)
	for _, vendor := range []*samekeytest.Vendor{s.payments, s.mail} {
		samekeytest.AssertEffects(t, vendor, len(faults)+1)
		if n := vendor.Counts(); n.Doubles != 0 || n.Calls != 2*len(faults)+1 {
			t.Errorf("%d doubles, %d calls; want one call, and another for each fault", n.Doubles, n.Calls)
		}
	}
	var noted int
	err := s.db.QueryRow(t.Context(), `select count(*) from shop.orders where charge_id = 'ch_1' and problem is null`).Scan(&noted)
	if err != nil || noted != len(faults)+1 {
		t.Errorf("%d orders have the charge's id, %v", noted, err)
	}
}

// An operator cancels the charge in psql: the order shows it.
func TestCancelledChargeShowsInTheOrder(t *testing.T) {
	s := setup(t)
	s.deliver() // registers that the action has an Attention
	s.order("k1", `{"token":"tok_1"}`)
	if _, err := s.db.Exec(t.Context(), `select samekey.cancel(id, 'ann', 'the customer called') from samekey.outbox`); err != nil {
		t.Fatal(err)
	}
	s.deliver()
	s.wantStates("payment_failed", 1)
	var problem string
	if err := s.db.QueryRow(t.Context(), `select problem from shop.orders`).Scan(&problem); err != nil || problem != "cancelled" {
		t.Errorf("the order's problem is %q, %v", problem, err)
	}
}

func TestDeclinedCardFailsThePayment(t *testing.T) {
	s := setup(t)
	s.payments.Next(samekeytest.FaultLoseAnswer)
	s.order("k1", `{"token":"tok_1","declined":true}`)
	s.deliver()
	s.wantStates("payment_failed", 1)
	samekeytest.AssertEffects(t, s.payments, 0)
	samekeytest.AssertEffects(t, s.mail, 0)
	if n := s.mail.Counts().Calls; n != 0 {
		t.Errorf("the mail vendor had %d calls", n)
	}
}

func TestUnstableKeyChargesTwice(t *testing.T) {
	t.Setenv("CREATEORDER_BREAK", "key")
	s := setup(t)
	s.payments.Next(samekeytest.FaultLoseAnswer)
	s.order("k1", `{"token":"tok_1"}`)
	s.deliver()
	samekeytest.AssertEffects(t, s.payments, 2)
	if doubles := s.payments.Ledger().Doubles(); len(doubles) != 1 {
		t.Errorf("doubles: %+v", doubles)
	}
}
