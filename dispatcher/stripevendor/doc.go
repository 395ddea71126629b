// Package stripevendor delivers intents to Stripe's API v1 through stripe-go: you write the SDK call, the package sees to
// the key, to one request per attempt, to the bytes, and to what each answer means.
//
//	account, err := stripevendor.New(stripevendor.Account{Key: secretKey})
//	...
//	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
//	stripevendor.Handle(d, account, "charge_card",
//		dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", Timeout: 20 * time.Second},
//		func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
//			params := &stripe.PaymentIntentCreateParams{
//				Amount: &c.Amount, Currency: &c.Currency, Customer: &c.Customer, PaymentMethod: &c.Method,
//				Confirm: stripe.Bool(true), OffSession: stripe.Bool(true),
//			}
//			params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
//			return sc.V1PaymentIntents.Create(ctx, params)
//		})
//
// # What is guaranteed
//
// The class is dispatcher.IdempotentWrite: inside the 24 hours for which Stripe promises to keep a key, attempts of one
// intent have one effect. Past that nothing is sent: the intent is looked up, see [WithLookup], else parked.
//
// The idempotency key on the wire is [dispatcher.Call].CarriedKey at every attempt, whatever key the params or their
// headers hold, and whatever the SDK would make up.
//
// An attempt is one request. The SDK's own retries are off, each attempt has a connection of its own, so that net/http has
// nothing to send again either, redirects are not followed, and nothing of it leaves once the attempt's deadline is past.
//
// The request is the same bytes at every attempt. Your function is run once before the first attempt, with a client that
// sends nothing: what the SDK makes of it (path, body, version of the API, account) is stored with the intent
// (dispatcher.WithRender) and is what each attempt sends, also where your code, the SDK or its version of the API changed
// in between. Then it is run at each attempt, to read the answer. So it must make one POST of the API v1 through sc with the
// ctx that it is given, and nothing before it that reads, waits or has an effect; it must return the SDK's error. A request
// that does not fit makes the intent dead before anything is sent.
//
// # What an answer means
//
// The first line that fits counts. Code is the Answer's.
//
//	what happened                               the attempt is                          code
//	no connection, or TLS failed                unsent: nothing of the request was written  of what failed
//	no answer, or one that broke off            unknown: sent again with the same key   of what failed, or the status
//	409 with Stripe-Should-Retry: false         stuck: never sent again; looked up      error code, else 409
//	4xx of type idempotency_error, but for the
//	  code idempotency_key_in_use               dead: the key was used with other params  idempotency_error
//	2xx that is no JSON                         unknown: it may be a proxy's page       the status
//	200-205, 208-299                            delivered, or what your function says; for a
//	                                            payment intent see below                the status
//	401, 407                                    denied: made again, spends nothing      error code, else the status
//	429, lock_timeout too, and 403 with         put off, by Retry-After, and with it all
//	  Retry-After                               calls; spends nothing                   error code, else the status
//	4xx with Stripe-Should-Retry: true,
//	  413 with Retry-After                      put off; spends nothing                 error code, else the status
//	402                                         refused, and the intent is finished     decline code, else error code
//	any other 409                               put off: another call is still running  error code, else 409
//	408, 423-425, 500-599 and what no standard
//	  defines, such as 499:
//	  with Idempotent-Replayed: true            stuck: never sent again; looked up      replayed_500 and so on
//	  with Stripe-Should-Retry: false           stuck likewise                          error code, else the status
//	  else                                      unknown: sent again with the same key   error code, else the status
//	206-207, 300-399, 406, 412                  stuck: it may have been done            error code, else the status
//	any other                                   dead: a person must correct something   error code, else the status
//
// Nothing comes before Retry-After, whatever the attempt is.
//
// Stripe answers 200 also where a payment is not yet, or not, made. Where the call confirms or captures a payment intent or
// a setup intent (confirm=true, /confirm, /capture), processing, requires_action and requires_confirmation are accepted:
// the look-up or an event completes the intent, with outbox.Resolve. requires_payment_method is refused. succeeded, and
// requires_capture (authorized, for a capture by hand), are delivered. On a 2xx your function may say otherwise, and should
// for other objects, such as a refund that is pending or failed: return dispatcher.Accepted, dispatcher.Refused or another
// of the dispatcher's verdicts. On any other answer the table counts.
//
// A declined card is final for its intent, since Stripe stores the refusal under the key; another attempt of the customer is
// another intent with another key. A stored 500 comes again for as long as the key lives, and Stripe says of a 500 that it
// may have acted: give the action a look-up, or a person has to look. A dead intent that is redriven carries its key still:
// where Stripe stored its answer, it comes again, and it is another intent that is needed.
//
// # Secrets
//
// The SDK logs nothing and sends no telemetry. Errors are made of words of this package's own, a status and Stripe's error
// code: none of the SDK's texts, which quote answers and URLs. The answer is kept with the API key and the values of
// client_secret struck out; Policy.ResponseCap says how much of it. What is stored of a request holds neither the API key
// nor the SDK's description of this machine.
//
// # Limits
//
// The API v2 is refused, which keeps keys for 30 days and does failed work again; so are uploads, GET and DELETE, with which
// Stripe takes no key. One client is one API key: a connected account is named in the params.
package stripevendor
