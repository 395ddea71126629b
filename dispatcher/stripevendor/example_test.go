package stripevendor_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/stripevendor"
)

var pool *pgxpool.Pool

func chargeThroughSDK(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
	params := &stripe.PaymentIntentCreateParams{
		Amount: &c.Amount, Currency: stripe.String("eur"), Customer: &c.Customer,
		Confirm: stripe.Bool(true), OffSession: stripe.Bool(true),
	}
	params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
	_, err := sc.V1PaymentIntents.Create(ctx, params)
	return dispatcher.Outcome{}, err // the package decides what Stripe's answer means
}

func listOfCustomer(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) stripe.Seq2[*stripe.PaymentIntent, error] {
	return sc.V1PaymentIntents.List(ctx, &stripe.PaymentIntentListParams{
		Customer:     &c.Customer,
		CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: call.CreatedAt.Add(-time.Hour).Unix()},
	}).All(ctx)
}

func isOurs(call *dispatcher.Call, p *stripe.PaymentIntent) (outcome dispatcher.Outcome, mine bool) {
	response := dispatcher.Response{Code: string(p.Status), Body: []byte(p.ID)}
	switch p.Status {
	case stripe.PaymentIntentStatusSucceeded:
		outcome = dispatcher.Delivered(response)
	case stripe.PaymentIntentStatusProcessing:
		outcome = dispatcher.Accepted(response).After(time.Minute)
	case stripe.PaymentIntentStatusRequiresPaymentMethod, stripe.PaymentIntentStatusCanceled:
		outcome = dispatcher.Refused(response)
	default:
		outcome = dispatcher.Unknown(response)
	}
	return outcome.Reference(p.ID), p.Metadata[stripevendor.MetadataKey] == call.CarriedKey
}

// A payment through the SDK. The package handles the key, the bytes and the meaning of each answer. If Stripe may have
// forgotten the key, the lookup searches the customer's list.
func Example() {
	account, err := stripevendor.New(stripevendor.Account{Key: "sk_test_..."}) // from your secrets
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(pool, nil)
	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
	delivery := stripevendor.Delivery(account,
		dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", Timeout: 20 * time.Second}, chargeThroughSDK)
	delivery.Lookup = stripevendor.Lookup(account, listOfCustomer, isOurs)
	dispatcher.Handle(d, chargeCard, delivery)
	fmt.Println(d.Check())
	// In main: err := d.Run(ctx)

	// Output: <nil>
}
