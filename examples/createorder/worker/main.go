// Command worker delivers what the order service wrote: it charges cards and
// sends receipts, each once, however often it has to try.
//
//	DATABASE_URL=postgres://... worker -payments http://... -mail http://...
//
// Run as many as you like, and kill any of them whenever you like. Probes, logs
// and signals are those of the package daemon.
package main

import (
	"context"
	"errors"
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
	flag.DurationVar(&s.timeout, "timeout", 10*time.Second, "of one call to a vendor")
	flag.IntVar(&s.concurrency, "concurrency", 32, "calls under way at each vendor at most")
	flag.Parse()
	daemon.Main(s.register)
}

// settings are what differs from one deployment to the next.
type settings struct {
	payments, mail string
	timeout        time.Duration
	concurrency    int
}

// register says which intents this worker delivers, where to, and what may be
// repeated there: both vendors remember a key for a day.
func (s settings) register(d *dispatcher.Dispatcher) error {
	policy := dispatcher.Policy{
		Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour,
		Timeout: s.timeout, Backoff: 100 * time.Millisecond,
	}
	charge := httpvendor.Action{
		Name: "charge_card", Request: "POST /v1/charges", Policy: policy,
		Refused: httpvendor.Statuses{{402, 402}}, // a declined card
		Wait:    httpvendor.Statuses{{409, 409}}, // a call with this key is still running
	}
	receipt := httpvendor.Action{
		Name: "send_receipt", Request: "POST /v1/messages", Policy: policy,
		Wait: httpvendor.Statuses{{409, 409}},
	}
	return errors.Join(
		s.deliver(d, "payments", s.payments, charge, dispatcher.WithApply(finishOrder)),
		s.deliver(d, "mail", s.mail, receipt),
	)
}

// deliver sends the intents of an action to a vendor: the payload's bytes are
// the body, the delivery key is in Idempotency-Key, the same at every attempt.
func (s settings) deliver(d *dispatcher.Dispatcher, destination, url string, action httpvendor.Action, options ...dispatcher.Option) error {
	limits := dispatcher.Limits{Concurrency: s.concurrency}
	vendor, err := httpvendor.New(httpvendor.Destination{
		Name: destination, URL: url, Limits: limits,
		AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // the demo's vendors are on this machine
	})
	if err != nil {
		return err
	}
	action.Options = options
	send, options, err := vendor.Handler(action)
	if err != nil {
		return err
	}
	action.Policy.Destination = destination
	d.Destination(destination, limits)
	d.Vendor(destination, vendor.Vendor())
	d.Handle(action.Name, action.Policy, sabotaged(send), options...)
	return nil
}

// finishOrder runs in the transaction that finishes a charge, once: the order's
// state and the receipt that follows from a payment are committed together with
// the vendor's answer.
func finishOrder(ctx context.Context, tx pgx.Tx, c createorder.Charge, outcome dispatcher.Outcome) error {
	state := createorder.Paid
	if outcome.Refused {
		state = createorder.PaymentFailed
	}
	var email string
	err := tx.QueryRow(ctx, `update shop.orders set state = $2 where id = $1 returning email`, c.OrderID, state).Scan(&email)
	if err != nil || outcome.Refused {
		return err
	}
	_, err = outbox.Insert(ctx, tx, outbox.Intent{
		Action: "send_receipt", Payload: createorder.Receipt{OrderID: c.OrderID, Amount: c.Amount, To: email},
	})
	return err
}

// sabotaged is for the demo alone, and does nothing unless CREATEORDER_BREAK is
// "key". Then each attempt carries a key of its own, as from a client that makes
// a new one whenever it tries again, and every answer that is lost on its way
// becomes a second charge. That is what the delivery key is for.
func sabotaged(send dispatcher.Handler) dispatcher.Handler {
	if os.Getenv("CREATEORDER_BREAK") != "key" {
		return send
	}
	return func(ctx context.Context, call *dispatcher.Call) (dispatcher.Answer, error) {
		fresh := *call
		fresh.CarriedKey = uuid.NewString()
		return send(ctx, &fresh)
	}
}
