// Command worker delivers the order service's intents: it charges cards and sends receipts, each once, however often it
// has to try.
//
//	DATABASE_URL=postgres://... DEPLOYMENT=production worker -payments http://... -mail http://...
//
// You can run any number of workers, and kill any of them at any moment. Package daemon provides probes, logs and
// signals.
package main

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/daemon"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/outbox"
)

func main() {
	var s settings
	flag.StringVar(&s.payments, "payments", "", "URL of the payment vendor")
	flag.StringVar(&s.mail, "mail", "", "URL of the mail vendor")
	flag.DurationVar(&s.timeout, "timeout", 10*time.Second, "timeout of one call to a vendor")
	flag.IntVar(&s.concurrency, "concurrency", 32, "maximum number of calls in flight at each vendor")
	flag.Parse()
	daemon.Main(s.register)
}

// settings differ between deployments.
type settings struct {
	payments, mail string
	timeout        time.Duration
	concurrency    int
}

// register declares which intents this worker delivers, to which vendor, and what may be repeated there. Both vendors
// remember a key for a day.
func (s settings) register(d *dispatcher.Dispatcher) error {
	policy := dispatcher.Policy{
		Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour,
		Timeout: s.timeout, Backoff: 100 * time.Millisecond,
	}
	payments, err := s.vendor(d, "payments", s.payments)
	if err != nil {
		return err
	}
	mail, err := s.vendor(d, "mail", s.mail)
	if err != nil {
		return err
	}
	// The payload's bytes are the body. The delivery key is in the header Idempotency-Key, the same at every attempt.
	charge := httpvendor.Delivery[createorder.Charge](payments, httpvendor.Action{
		Request: "POST /v1/charges", Policy: policy,
		Refused:   httpvendor.Statuses{{402, 402}}, // a declined card
		Retry:     httpvendor.Statuses{{409, 409}}, // a call with this key is still running
		Reference: "/id",
	})
	charge.Apply, charge.Attention = finishOrder, noteProblem
	receipt := httpvendor.Delivery[createorder.Receipt](mail, httpvendor.Action{
		Request: "POST /v1/messages", Policy: policy,
		Retry: httpvendor.Statuses{{409, 409}},
	})
	dispatcher.Handle(d, createorder.ChargeCard, sabotaged(charge))
	dispatcher.Handle(d, createorder.SendReceipt, sabotaged(receipt))
	return nil
}

// vendor declares a destination, and returns its client.
func (s settings) vendor(d *dispatcher.Dispatcher, destination, url string) (*httpvendor.Client, error) {
	client, err := httpvendor.New(httpvendor.Destination{
		Name: destination, URL: url, Limits: dispatcher.Limits{Concurrency: s.concurrency},
		AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // the demo's vendors are on this machine
	})
	if err != nil {
		return nil, err
	}
	client.Register(d)
	return client, nil
}

// finishOrder is the Apply (completion callback) of a charge. It runs once, in the transaction that finishes the
// intent: the order's state and the intent to send a receipt are committed together with the vendor's answer.
func finishOrder(ctx context.Context, tx pgx.Tx, c createorder.Charge, settled dispatcher.Settled) error {
	state := createorder.Paid
	if settled.Status == outbox.StatusRefused {
		state = createorder.PaymentFailed
	}
	var email string
	err := tx.QueryRow(ctx, `
		update shop.orders set state = $2, charge_id = nullif($3, ''), problem = null where id = $1 returning email`,
		c.OrderID, state, settled.Reference).Scan(&email)
	if err != nil || settled.Status == outbox.StatusRefused {
		return err
	}
	_, err = createorder.SendReceipt.Insert(ctx, tx, createorder.Receipt{OrderID: c.OrderID, Amount: c.Amount, To: email})
	return err
}

// noteProblem is the Attention of a charge: the order shows that its charge needs a person, or that a person cancelled
// it.
func noteProblem(ctx context.Context, tx pgx.Tx, c createorder.Charge, at dispatcher.Attention) error {
	_, err := tx.Exec(ctx, `
		update shop.orders
		set problem = $2, state = case $2 when 'cancelled' then 'payment_failed' else state end
		where id = $1`, c.OrderID, string(at.Status))
	return err
}

// sabotaged is for the demo only, and does nothing unless CREATEORDER_BREAK is "key". Then each attempt carries a new
// key, like a client that makes a new key for each retry, and every lost answer becomes a second charge. The delivery
// key prevents this.
func sabotaged[T any](delivery dispatcher.Delivery[T]) dispatcher.Delivery[T] {
	if os.Getenv("CREATEORDER_BREAK") != "key" {
		return delivery
	}
	send := delivery.Send
	delivery.Send = func(ctx context.Context, call *dispatcher.Call, payload T) (dispatcher.Outcome, error) {
		fresh := *call
		fresh.CarriedKey = uuid.NewString()
		return send(ctx, &fresh, payload)
	}
	return delivery
}
