package stripevendor_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/stripevendor"
	"github.com/samekey/samekey/outbox"
)

var (
	delivered = dispatcher.Summary{Delivered: 1}
	refused   = dispatcher.Summary{Refused: 1}
	retried   = dispatcher.Summary{Retried: 1}
	dead      = dispatcher.Summary{Dead: 1}
	stuck     = dispatcher.Summary{Unknown: 1}
)

func TestChargeCarriesTheIntentsKey(t *testing.T) {
	b := setup(t, says(200, succeeded))
	id := b.insert()
	b.expect(b.worker(pay), delivered)
	b.wantOneKey(id, 1)
	b.wantHistory(id, "attempt:delivered:200")
	b.wantReference(id, "pi_1")
	got := b.server.seen()[0]
	for _, want := range []string{"amount=1999", "customer=cus_1", "confirm=true", "metadata[samekey_key]=" + got.key, "metadata[order]=order-1"} {
		if !strings.Contains(got.body, want) && !strings.Contains(got.body, strings.NewReplacer("[", "%5B", "]", "%5D").Replace(want)) {
			t.Errorf("%s is not in the body %s", want, got.body)
		}
	}
	if got.path != "/v1/payment_intents" || got.header.Get("Authorization") != "Bearer "+secretKey || got.header.Get("Stripe-Version") != stripe.APIVersion || !got.closes {
		t.Errorf("sent %+v", got)
	}
}

func Test500IsRepeatedByAnotherRelease(t *testing.T) {
	b := setup(t, says(500, apiError("api_error", "")), says(200, succeeded))
	id := b.insert()
	b.expect(b.worker(pay), retried)
	b.wantOneKey(id, 1) // not by the SDK
	b.elapse(time.Hour)
	b.expect(b.worker(func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
		return sc.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{ // the next release's request
			Amount: stripe.Int64(1), Currency: stripe.String("usd"), Params: stripe.Params{Headers: http.Header{"Stripe-Version": {"2099-01-01.other"}}},
		})
	}), delivered)
	b.wantOneKey(id, 2)
	b.wantHistory(id, "attempt:unknown:500 attempt:delivered:200")
}

func TestStored500IsLookedUp(t *testing.T) {
	none := says(200, `{"object":"list","has_more":false,"url":"/v1/payment_intents","data":[]}`)
	b := setup(t, says(500, apiError("api_error", "")), says(500, apiError("api_error", ""), "Idempotent-Replayed", "true"), none)
	id := b.insert()
	c := b.account()
	d := b.workerOf(c, bare(pay), looksIn(c, listOf))
	b.expect(d, retried)
	for _, want := range []dispatcher.Summary{{Unknown: 1}, {Unknown: 1}, {Parked: 1}, {}} {
		b.elapse(time.Hour)
		b.expect(d, want)
	}
	b.wantHistory(id, "attempt:unknown:500 attempt:unknown:replayed_500 lookup:absent:absent lookup:absent:absent")
	posts := 0
	for _, call := range b.server.seen() {
		if call.method == "POST" {
			posts++
		}
	}
	if posts != 2 {
		t.Errorf("%d were sent", posts)
	}
}

func TestCutConnectionIsRepeatedOnceWithTheSameKey(t *testing.T) {
	b := setup(t, cuts, says(200, succeeded))
	id := b.insert()
	b.expect(b.worker(pay), retried)
	b.wantOneKey(id, 1)
	b.elapse(time.Hour)
	b.expect(b.worker(pay), delivered)
	b.wantOneKey(id, 2)
	b.wantHistory(id, "attempt:unknown:connection attempt:delivered:200")
}

func TestDeclineIsRefusedWithItsCode(t *testing.T) {
	b := setup(t, says(402, declined))
	id := b.insert()
	var told dispatcher.Settled
	b.expect(b.worker(pay, func(delivery *dispatcher.Delivery[Charge]) {
		delivery.Apply = func(_ context.Context, _ pgx.Tx, c Charge, settled dispatcher.Settled) error {
			told = settled
			return nil
		}
	}), refused)
	b.wantOneKey(id, 1)
	b.wantReference(id, "pi_1")
	if told.Status != outbox.StatusRefused || told.Response.Code != "insufficient_funds" || !strings.Contains(string(told.Response.Body), "card_declined") {
		t.Errorf("Apply got %+v", told)
	}
}

func TestRevokedKeyUsesNoAttempt(t *testing.T) {
	b := setup(t, says(401, apiError("invalid_request_error", "")), says(200, succeeded))
	id := b.insert()
	b.expect(b.worker(pay), retried)
	if used := value[int](b, "select attempts_used from samekey.outbox_queue where id = $1", id); used != 0 {
		t.Errorf("it used %d attempts", used)
	}
	b.elapse(time.Hour)
	b.expect(b.worker(pay), delivered)
	b.wantOneKey(id, 2)
}

func TestFunctionWithoutASinglePOSTIsDead(t *testing.T) {
	b := setup(t, says(200, succeeded))
	for name, tc := range map[string]struct {
		fn   call
		want string
	}{
		"nothing": {func(context.Context, *stripe.Client, *dispatcher.Call, Charge) (*stripe.PaymentIntent, error) {
			return nil, nil
		}, "made no request"},
		"a read first": {func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
			if _, err := sc.V1Customers.Retrieve(ctx, c.Customer, nil); err != nil {
				return nil, err
			}
			return pay(ctx, sc, call, c)
		}, "not a POST"},
		"a DELETE": {func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
			_, err := sc.V1Customers.Delete(ctx, c.Customer, nil)
			return nil, err
		}, "not a POST"},
		"another context": {func(_ context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
			return pay(context.Background(), sc, call, c)
		}, "pass its ctx"},
		"the API v2": {func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
			_, err := sc.V2CoreEventDestinations.Create(ctx, &stripe.V2CoreEventDestinationCreateParams{Name: stripe.String("x")})
			return nil, err
		}, "API v1"},
	} {
		t.Run(name, func(t *testing.T) {
			b.T = t
			id := b.insert()
			b.expect(b.worker(tc.fn), dead)
			b.wantHistory(id, "attempt:dead:render")
			if n := len(b.server.seen()); n != 0 || !strings.Contains(b.dump(), tc.want) {
				t.Errorf("%d requests; %s", n, b.dump())
			}
		})
	}
}

func TestSecondRequestIsRefused(t *testing.T) {
	b := setup(t, says(200, succeeded))
	id := b.insert()
	b.expect(b.worker(func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
		made, err := pay(ctx, sc, call, c)
		if err != nil {
			return nil, err
		}
		return sc.V1PaymentIntents.Capture(ctx, made.ID, nil)
	}), retried)
	b.wantOneKey(id, 1)
	if !strings.Contains(b.dump(), "more than one request") {
		t.Error(b.dump())
	}
}

func TestFunctionMayRefuseOnA200(t *testing.T) {
	b := setup(t, says(200, `{"id":"pi_1","object":"payment_intent","status":"requires_payment_method"}`))
	id := b.insert()
	b.expect(b.workerOf(b.account(), func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (outcome dispatcher.Outcome, err error) {
		made, err := pay(ctx, sc, call, c)
		if err == nil && made.Status == stripe.PaymentIntentStatusRequiresPaymentMethod {
			outcome = dispatcher.Refused(dispatcher.Response{Code: string(made.Status)})
		}
		return outcome, err
	}), refused)
	b.wantHistory(id, "attempt:refused:requires_payment_method")
}

func TestPastTheWindowTheIntentIsLookedUp(t *testing.T) {
	b := setup(t, cuts, says(200, `{"object":"list","has_more":true,"url":"/v1/payment_intents","data":[{"id":"pi_7","object":"payment_intent"}]}`))
	id := b.insert()
	d := func() *dispatcher.Dispatcher {
		c := b.account()
		return b.workerOf(c, bare(pay), looksIn(c, listOf))
	}
	b.server.answers = append(b.server.answers, says(200, `{"object":"list","has_more":false,"url":"/v1/payment_intents","data":[
		{"id":"pi_8","object":"payment_intent","status":"succeeded","metadata":{"samekey_key":"`+value[string](b, "select delivery_key::text from samekey.outbox")+`"}}]}`))
	b.expect(d(), retried)
	b.elapse(25 * time.Hour)
	b.expect(d(), dispatcher.Summary{Unknown: 1, Delivered: 1})
	b.wantHistory(id, "attempt:unknown:connection attempt:unknown:key_window lookup:delivered:succeeded")
	calls := b.server.seen()
	if len(calls) != 3 || calls[1].method != "GET" || calls[2].method != "GET" || !strings.Contains(calls[2].path, "starting_after=pi_7") || calls[1].key != "" {
		t.Errorf("the calls were %+v", calls)
	}
}

func TestAbsentPaymentIsParkedNotSent(t *testing.T) {
	b := setup(t, cuts, says(200, `{"object":"list","has_more":false,"url":"/v1/payment_intents","data":[]}`))
	id := b.insert()
	c := b.account()
	d := b.workerOf(c, bare(pay), looksIn(c, listOf))
	b.expect(d, retried)
	b.elapse(25 * time.Hour)
	b.expect(d, dispatcher.Summary{Unknown: 2})
	b.elapse(time.Minute)
	b.expect(d, dispatcher.Summary{Parked: 1})
	b.wantHistory(id, "attempt:unknown:connection attempt:unknown:key_window lookup:absent:absent lookup:absent:absent")
	if n := len(b.server.seen()); n != 3 {
		t.Errorf("%d requests", n)
	}
}

func TestLookupRepeatsAndMayNotWrite(t *testing.T) {
	b := setup(t, cuts, says(503, `{}`))
	id := b.insert()
	c := b.account()
	d := func(list listing) *dispatcher.Dispatcher {
		return b.workerOf(c, bare(pay), looksIn(c, list))
	}
	b.expect(d(listOf), retried)
	b.elapse(25 * time.Hour)
	b.expect(d(listOf), dispatcher.Summary{Unknown: 2})
	b.elapse(time.Hour)
	b.expect(d(func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, payload Charge) stripe.Seq2[*stripe.PaymentIntent, error] {
		return func(yield func(*stripe.PaymentIntent, error) bool) {
			made, err := pay(ctx, sc, call, payload)
			yield(made, err)
		}
	}), dispatcher.Summary{Unknown: 1})
	b.wantHistory(id, "attempt:unknown:connection attempt:unknown:key_window lookup:retry:lookup_failed lookup:retry:lookup_failed")
	if calls := b.server.seen(); len(calls) != 2 || calls[1].method != "GET" || !strings.Contains(b.dump(), "may only read") {
		t.Errorf("the calls were %+v; %s", calls, b.dump())
	}
}

func TestLookupWaitsForRetryAfter(t *testing.T) {
	for status, as := range map[int]string{401: "0", 429: "0", 503: "1"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			b := setup(t, cuts, says(status, `{}`, "Retry-After", "7000"))
			id := b.insert()
			c := b.account()
			d := b.workerOf(c, bare(pay), looksIn(c, listOf))
			b.expect(d, retried)
			b.elapse(25 * time.Hour)
			b.expect(d, dispatcher.Summary{Unknown: 2})
			if got := value[string](b, "select attempts_used || ' ' || (due_at > clock_timestamp() + interval '6900 s') from samekey.outbox_queue where id = $1", id); got != as+" true" {
				t.Errorf("it used an attempt, and waits: %s", got)
			}
		})
	}
}

type listing = func(context.Context, *stripe.Client, *dispatcher.Call, Charge) stripe.Seq2[*stripe.PaymentIntent, error]

func listOf(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, c Charge) stripe.Seq2[*stripe.PaymentIntent, error] {
	return sc.V1PaymentIntents.List(ctx, &stripe.PaymentIntentListParams{Customer: &c.Customer}).All(ctx)
}

// looksIn makes a Lookup that searches a list.
func looksIn(c *stripevendor.Client, list listing) change {
	return func(delivery *dispatcher.Delivery[Charge]) { delivery.Lookup = stripevendor.Lookup(c, list, ours) }
}

func ours(call *dispatcher.Call, p *stripe.PaymentIntent) (dispatcher.Outcome, bool) {
	return dispatcher.Delivered(dispatcher.Response{Code: string(p.Status)}), p.Metadata[stripevendor.MetadataKey] == call.CarriedKey
}

func TestNothingStoredHasASecret(t *testing.T) {
	echo := strings.ReplaceAll(apiError("invalid_request_error", ""), "quoted by", secretKey+" quoted by")
	b := setup(t, says(500, echo), says(200, `{"id":"pi_1", "client_secret" : "pi_1_secret_\"xyz"}`))
	b.insert()
	b.expect(b.worker(pay), retried)
	b.elapse(time.Hour)
	b.expect(b.worker(pay), delivered)
	kept := b.dump() + value[string](b, `select string_agg(convert_from(request, 'UTF8'), '') from samekey.outbox_sends`)
	for _, secret := range []string{secretKey, "pi_1_secret", "xyz"} {
		if strings.Contains(kept, secret) {
			t.Errorf("%s is kept:\n%s", secret, kept)
		}
	}
	if n := strings.Count(kept, "[redacted]"); n != 2 {
		t.Errorf("%d redactions:\n%s", n, kept)
	}
}

func TestMistakesInAccounts(t *testing.T) {
	const key = "samekey: stripevendor.Account: Key: missing, or has a character that no API key has"
	const url = "samekey: stripevendor.Account: URL: must be https:// or http:// and a host, without a path"
	for want, account := range map[string]stripevendor.Account{
		key: {}, key + "\n" + url: {Key: "sk\nlive", URL: "ftp://secret.example"}, url: {Key: secretKey, URL: "https://secret.example/v1"}, "<nil>": {Key: secretKey},
	} {
		if _, err := stripevendor.New(account); fmt.Sprint(err) != want {
			t.Errorf("New returns\n%v\nwant\n%s", err, want)
		}
	}
}

func TestResendThroughAProxyIsRefused(t *testing.T) {
	account, err := stripevendor.New(stripevendor.Account{Key: "sk_test_1", Proxy: &url.URL{Scheme: "http", Host: "proxy.example"}})
	if err != nil {
		t.Fatal(err)
	}
	d := dispatcher.New(nil, nil)
	delivery := stripevendor.Delivery(account, dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, ResendAbsent: true}, bare(pay))
	delivery.Lookup = stripevendor.Lookup(account, listOf, ours)
	dispatcher.Handle(d, chargeCard, delivery)
	if err := d.Check(); err == nil || !strings.Contains(err.Error(), `"charge_card": ResendAbsent: not allowed with a proxy`) {
		t.Error(err)
	}
}
