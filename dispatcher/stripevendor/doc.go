// Package stripevendor delivers intents to Stripe's API v1 through stripe-go. You write the SDK call; the package takes
// care of the idempotency key, of one request per attempt, of the same bytes at every attempt, and of what each answer
// means.
//
//	account, err := stripevendor.New(stripevendor.Account{Key: secretKey})
//	...
//	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
//	dispatcher.Handle(d, ChargeCard, stripevendor.Delivery(account, // outbox.NewAction[Charge]("charge_card")
//		dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", Timeout: 20 * time.Second},
//		func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
//			params := &stripe.PaymentIntentCreateParams{
//				Amount: &c.Amount, Currency: &c.Currency, Customer: &c.Customer, PaymentMethod: &c.Method,
//				Confirm: stripe.Bool(true), OffSession: stripe.Bool(true),
//			}
//			params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
//			_, err := sc.V1PaymentIntents.Create(ctx, params)
//			return dispatcher.Outcome{}, err
//		}))
//
// # Guarantees
//
// The class is dispatcher.IdempotentWrite: within the 24 hours for which Stripe promises to keep a key, all attempts of
// an intent have one effect. After that nothing is sent: the intent is looked up ([Lookup]), or parked.
//
// The idempotency key on the wire is [dispatcher.Call].CarriedKey at every attempt, whatever key the params or their
// headers hold, and whatever key the SDK would generate.
//
// An attempt is one request. The SDK's own retries are off. Each attempt has a connection of its own, so net/http has
// nothing to repeat either. Redirects are not followed. Nothing is sent after the attempt's deadline. If the answer
// does not arrive completely, the connection is reset, so that nothing that the kernel has queued arrives later.
//
// The request is the same bytes at every attempt. Your function runs once before the first attempt, with a client that
// sends nothing. The SDK's request (path, body, version of the API, account) is stored with the intent
// (dispatcher.Delivery.Render), and each attempt sends it, even if your code, the SDK or its version of the API
// changes. Then the function runs at each attempt, to read the answer. So it must make one POST of the API v1 through
// sc with the ctx that it gets, and before it do nothing that reads, waits or has an effect; and it must return the
// SDK's error. If its request does not fit, the intent is dead before anything is sent.
//
// # Outcomes
//
// The first matching line counts. The code is the response's code.
//
//	what happened                               the outcome                             code
//	no connection, or TLS failed                unsent: nothing of the request was sent  of what failed
//	no answer, or one that broke off            unknown: repeated with the same key     of what failed, or the status
//	409 with Stripe-Should-Retry: false         stuck: never repeated; looked up        error code, or 409
//	4xx of type idempotency_error, except for
//	  the code idempotency_key_in_use           dead: the key has other parameters      idempotency_error
//	2xx that is not JSON                        unknown: it may be a proxy's page       the status
//	200-205, 208-299                            delivered, or what your function says; for a
//	                                            payment intent see below                the status
//	401, 407                                    denied: repeated, uses no attempt     error code, or the status
//	429, lock_timeout too, and 403 with         retry for the account, after Retry-After;
//	  Retry-After                               uses no attempt                       error code, or the status
//	4xx with Stripe-Should-Retry: true,
//	  413 with Retry-After                      retry; uses no attempt                error code, or the status
//	402                                         refused: the intent is finished         decline code, or error code
//	any other 409                               retry: another call is still running    error code, or 409
//	408, 423-425, 500-599 and what no standard
//	  defines, such as 499:
//	  with Idempotent-Replayed: true            stuck: never repeated; looked up        replayed_500 and so on
//	  with Stripe-Should-Retry: false           stuck                                   error code, or the status
//	  otherwise                                 unknown: repeated with the same key     error code, or the status
//	206-207, 300-399, 406, 412                  stuck: Stripe may have acted            error code, or the status
//	any other                                   dead: a person must change something    error code, or the status
//
// No call starts before Retry-After, whatever the outcome is.
//
// Stripe also answers 200 for a payment that is not made, or not yet. If the call confirms or captures a payment intent
// or a setup intent (confirm=true, /confirm, /capture), the statuses processing, requires_action and
// requires_confirmation are accepted: the lookup or an event completes the intent, with outbox.Resolve.
// requires_payment_method is refused. succeeded, and requires_capture (authorized, for a later capture), are delivered.
// On a 2xx your function may return another outcome, and should for other objects, such as a refund that is pending or
// failed: dispatcher.Accepted, dispatcher.Refused, or another one. For any other answer only the table counts.
//
// A declined card is final for its intent, since Stripe stores the refusal under the key. Another attempt by the
// customer is another intent with another key. A stored 500 comes again for as long as the key lives, and Stripe states
// that after a 500 it may have acted: give the action a lookup, or a person must look. A dead intent that is redriven
// still has its key: if Stripe stored the answer, it comes again, and you need another intent.
//
// # Secrets
//
// The SDK logs nothing and sends no telemetry. Errors consist of this package's own words, a status and Stripe's error
// code; the SDK's texts, which quote answers and URLs, are not used. The API key and the values of client_secret are
// removed from stored answers; Policy.ResponseCap limits their size. A stored request contains neither the API key nor
// the SDK's description of this machine.
//
// # Limits
//
// The API v2 is refused, since it keeps keys for 30 days and repeats failed work. So are uploads, GET and DELETE, for
// which Stripe takes no key. A client has one API key: name a connected account in the params.
package stripevendor
