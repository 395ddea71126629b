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

// A payment through the SDK: the key, the bytes and what each answer means are seen to. Where Stripe may have forgotten the
// key, the payment is looked for among the customer's.
func Example() {
	account, err := stripevendor.New(stripevendor.Account{Key: "sk_test_..."}) // from your secrets
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(pool, nil)
	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
	stripevendor.Handle(d, account, "charge_card",
		dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", Timeout: 20 * time.Second},
		func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
			params := &stripe.PaymentIntentCreateParams{
				Amount: &c.Amount, Currency: stripe.String("eur"), Customer: &c.Customer,
				Confirm: stripe.Bool(true), OffSession: stripe.Bool(true),
			}
			params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
			return sc.V1PaymentIntents.Create(ctx, params)
		},
		stripevendor.WithLookup(account,
			func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) stripe.Seq2[*stripe.PaymentIntent, error] {
				return sc.V1PaymentIntents.List(ctx, &stripe.PaymentIntentListParams{
					Customer:     &c.Customer,
					CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: call.CreatedAt.Add(-time.Hour).Unix()},
				}).All(ctx)
			},
			func(call *dispatcher.Call, p *stripe.PaymentIntent) (f dispatcher.Finding, mine bool) {
				answer := dispatcher.Answer{Code: string(p.Status), Body: []byte(p.ID)}
				switch p.Status {
				case stripe.PaymentIntentStatusSucceeded:
					f = dispatcher.Found(answer)
				case stripe.PaymentIntentStatusProcessing:
					f = dispatcher.Pending(answer, time.Minute)
				case stripe.PaymentIntentStatusRequiresPaymentMethod, stripe.PaymentIntentStatusCanceled:
					f = dispatcher.FoundRefused(answer)
				default:
					f = dispatcher.Inconclusive(answer)
				}
				return f, p.Metadata[stripevendor.MetadataKey] == call.CarriedKey
			}))
	fmt.Println(d.Check())
	// In main: err := d.Run(ctx)

	// Output: <nil>
}
