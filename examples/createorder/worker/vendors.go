package main

import (
	"context"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/outbox"
)

// settings are what differs from one deployment to the next.
type settings struct {
	paymentsURL string
	mailURL     string
	timeout     time.Duration // of one call
	concurrency int           // calls under way at each vendor, in this process
}

// register says which intents this worker delivers, where to, and what may be
// repeated there.
func register(d *dispatcher.Dispatcher, s settings) error {
	payments, err := httpvendor.New(httpvendor.Destination{Name: "payments", URL: s.paymentsURL, Limits: dispatcher.Limits{Concurrency: s.concurrency}})
	if err != nil {
		return err
	}
	mail, err := httpvendor.New(httpvendor.Destination{Name: "mail", URL: s.mailURL, Limits: dispatcher.Limits{Concurrency: s.concurrency}})
	if err != nil {
		return err
	}
	d.Destination("payments", dispatcher.Limits{Concurrency: s.concurrency})
	d.Destination("mail", dispatcher.Limits{Concurrency: s.concurrency})

	stillRunning := httpvendor.Statuses{{409, 409}} // both vendors' word for "under this key, ask again"
	charge := httpvendor.Action{
		Name: "charge_card", Request: "POST /v1/charges", Refused: httpvendor.Statuses{{402, 402}}, Wait: stillRunning,
		Policy: dispatcher.Policy{
			Class: dispatcher.IdempotentWrite, Destination: "payments", KeyWindow: 24 * time.Hour,
			Timeout: s.timeout, Backoff: 100 * time.Millisecond,
		},
	}
	receipt := httpvendor.Action{
		Name: "send_receipt", Request: "POST /v1/messages", Wait: stillRunning,
		Policy: dispatcher.Policy{
			Class: dispatcher.IdempotentWrite, Destination: "mail", KeyWindow: 24 * time.Hour,
			Timeout: s.timeout, Backoff: 100 * time.Millisecond,
		},
	}
	sendCharge, err := payments.Handler(charge)
	if err != nil {
		return err
	}
	sendReceipt, err := mail.Handler(receipt)
	if err != nil {
		return err
	}
	d.Handle(charge.Name, charge.Policy, withoutStableKey(sendCharge), dispatcher.WithApply(settleOrder))
	d.Handle(receipt.Name, receipt.Policy, withoutStableKey(sendReceipt))
	return nil
}

// settleOrder runs in the transaction that finishes the charge, once, whatever
// was tried again before: the order's state, and the receipt that follows from
// a payment, are committed together with the vendor's answer.
func settleOrder(ctx context.Context, tx pgx.Tx, c createorder.Charge, outcome dispatcher.Outcome) error {
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

// withoutStableKey is sabotage. CREATEORDER_BREAK=key gives each attempt a key
// of its own, as a client does that makes a new one whenever it tries again.
// Then every answer that is lost on its way is a second charge: that is what
// the delivery key is for. Leave it out of what you copy.
func withoutStableKey(send dispatcher.Handler) dispatcher.Handler {
	if os.Getenv("CREATEORDER_BREAK") != "key" {
		return send
	}
	return func(ctx context.Context, call *dispatcher.Call) (dispatcher.Answer, error) {
		sabotaged := *call
		sabotaged.DeliveryKey = uuid.New()
		return send(ctx, &sabotaged)
	}
}
