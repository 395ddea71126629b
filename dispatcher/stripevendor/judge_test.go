package stripevendor_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/stripevendor"
)

// Each row of the table in the package comment, over a socket and through a drain.
func TestAnswersMatchTheTable(t *testing.T) {
	breaksOff := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(`{"id":"pi_1",`))
	}
	b := setup(t, says(200, succeeded))
	d := b.worker(pay)
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   dispatcher.Summary
		as     string // the history's outcome and code
		uses   bool
		wait   time.Duration // at least
	}{
		"200":                                  {answer: says(200, succeeded), want: delivered, as: "delivered:200"},
		"201":                                  {answer: says(201, succeeded), want: delivered, as: "delivered:201"},
		"200 that is no JSON":                  {answer: says(200, `<html>`), want: retried, as: "unknown:200", uses: true},
		"200 of another shape":                 {answer: says(200, `{"id":{"no":"string"}}`), want: retried, as: "unknown:200", uses: true},
		"200 that breaks off":                  {answer: breaksOff, want: retried, as: "unknown:200", uses: true},
		"302":                                  {answer: says(302, ``, "Location", "/v1/elsewhere"), want: stuck, as: "unknown:302"},
		"400":                                  {answer: says(400, apiError("invalid_request_error", "parameter_missing")), want: dead, as: "dead:parameter_missing", uses: true},
		"400 with other params":                {answer: says(400, apiError("idempotency_error", "")), want: dead, as: "dead:idempotency_error", uses: true},
		"409 with other params":                {answer: says(409, apiError("idempotency_error", "")), want: dead, as: "dead:idempotency_error", uses: true},
		"400 that should be retried":           {answer: says(400, apiError("invalid_request_error", ""), "Stripe-Should-Retry", "true"), want: retried, as: "retry:400"},
		"401":                                  {answer: says(401, apiError("invalid_request_error", "")), want: retried, as: "retry:401"},
		"402 declined":                         {answer: says(402, declined), want: refused, as: "refused:insufficient_funds"},
		"402 without a decline code":           {answer: says(402, apiError("card_error", "expired_card")), want: refused, as: "refused:expired_card"},
		"402 without a code":                   {answer: says(402, `{}`), want: refused, as: "refused:402"},
		"402 replayed":                         {answer: says(402, declined, "Idempotent-Replayed", "true"), want: refused, as: "refused:insufficient_funds"},
		"403":                                  {answer: says(403, apiError("invalid_request_error", "")), want: dead, as: "dead:403", uses: true},
		"404":                                  {answer: says(404, apiError("invalid_request_error", "resource_missing")), want: dead, as: "dead:resource_missing", uses: true},
		"408":                                  {answer: says(408, ``), want: retried, as: "unknown:408", uses: true},
		"409 in use":                           {answer: says(409, apiError("idempotency_error", "idempotency_key_in_use")), want: retried, as: "retry:idempotency_key_in_use"},
		"409 locked":                           {answer: says(409, apiError("invalid_request_error", "lock_timeout")), want: retried, as: "retry:lock_timeout"},
		"409 of another kind":                  {answer: says(409, `{}`), want: retried, as: "retry:409"},
		"429":                                  {answer: says(429, apiError("invalid_request_error", "rate_limit"), "Retry-After", "3000"), want: retried, as: "retry:rate_limit", wait: 3000 * time.Second},
		"429 locked":                           {answer: says(429, apiError("invalid_request_error", "lock_timeout")), want: retried, as: "retry:lock_timeout"},
		"500":                                  {answer: says(500, apiError("api_error", "")), want: retried, as: "unknown:500", uses: true},
		"500 replayed":                         {answer: says(500, apiError("api_error", ""), "Idempotent-Replayed", "true"), want: stuck, as: "unknown:replayed_500"},
		"500 without hope":                     {answer: says(500, apiError("api_error", ""), "Stripe-Should-Retry", "false"), want: stuck, as: "unknown:500"},
		"500 with hope":                        {answer: says(500, apiError("api_error", ""), "Stripe-Should-Retry", "true"), want: retried, as: "unknown:500", uses: true},
		"500 replayed, in capitals":            {answer: says(500, apiError("api_error", ""), "Idempotent-Replayed", "True"), want: stuck, as: "unknown:replayed_500"},
		"503 until later":                      {answer: says(503, ``, "Retry-After", "7000"), want: retried, as: "unknown:503", uses: true, wait: 7000 * time.Second},
		"401 until later":                      {answer: says(401, ``, "Retry-After", "7000"), want: retried, as: "retry:401", wait: 7000 * time.Second},
		"400 with other params, to be retried": {answer: says(400, apiError("idempotency_error", ""), "Stripe-Should-Retry", "true"), want: dead, as: "dead:idempotency_error", uses: true},
		"402 that should be retried":           {answer: says(402, declined, "Stripe-Should-Retry", "true"), want: retried, as: "retry:card_declined"},
		"402 that should not":                  {answer: says(402, declined, "Stripe-Should-Retry", "false"), want: refused, as: "refused:insufficient_funds"},
		"400 that should not":                  {answer: says(400, apiError("invalid_request_error", ""), "Stripe-Should-Retry", "false"), want: dead, as: "dead:400", uses: true},
		"401 that should not":                  {answer: says(401, ``, "Stripe-Should-Retry", "false"), want: retried, as: "retry:401"},
		"409 that should not":                  {answer: says(409, apiError("invalid_request_error", "lock_timeout"), "Stripe-Should-Retry", "false"), want: stuck, as: "unknown:lock_timeout"},
		"409 in use that should not":           {answer: says(409, apiError("idempotency_error", "idempotency_key_in_use"), "Stripe-Should-Retry", "false"), want: stuck, as: "unknown:idempotency_key_in_use"},
		"409 that should":                      {answer: says(409, `{}`, "Stripe-Should-Retry", "true"), want: retried, as: "retry:409"},
		"412":                                  {answer: says(412, ``), want: stuck, as: "unknown:412"},
		"412 that should be retried":           {answer: says(412, ``, "Stripe-Should-Retry", "true"), want: retried, as: "retry:412"},
		"413 until later":                      {answer: says(413, ``, "Retry-After", "7000"), want: retried, as: "retry:413", wait: 7000 * time.Second},
		"423":                                  {answer: says(423, ``), want: retried, as: "unknown:423", uses: true},
		"424":                                  {answer: says(424, apiError("api_error", "")), want: retried, as: "unknown:424", uses: true},
		"424 that should not":                  {answer: says(424, ``, "Stripe-Should-Retry", "false"), want: stuck, as: "unknown:424"},
		"424 replayed":                         {answer: says(424, ``, "Idempotent-Replayed", "true"), want: stuck, as: "unknown:replayed_424"},
		"429 that should not":                  {answer: says(429, ``, "Stripe-Should-Retry", "false"), want: retried, as: "retry:429"},
		"430":                                  {answer: says(430, ``), want: retried, as: "unknown:430", uses: true},
		"499":                                  {answer: says(499, ``), want: retried, as: "unknown:499", uses: true},
		"207":                                  {answer: says(207, `{}`), want: stuck, as: "unknown:207"},
		"processing":                           {answer: says(200, intentIs("processing")), want: stuck, as: "accepted:accepted"},
		"requires_action":                      {answer: says(200, intentIs("requires_action")), want: stuck, as: "accepted:accepted"},
		"requires_confirmation":                {answer: says(200, intentIs("requires_confirmation")), want: stuck, as: "accepted:accepted"},
		"requires_payment_method":              {answer: says(200, intentIs("requires_payment_method")), want: refused, as: "refused:requires_payment_method"},
		"requires_capture":                     {answer: says(200, intentIs("requires_capture")), want: delivered, as: "delivered:200"},
		"canceled":                             {answer: says(200, intentIs("canceled")), want: delivered, as: "delivered:200"},
		"another object":                       {answer: says(200, `{"id":"po_1","object":"payout","status":"processing"}`), want: delivered, as: "delivered:200"},
		"503":                                  {answer: says(503, ``), want: retried, as: "unknown:503", uses: true},
		"cut":                                  {answer: cuts, want: retried, as: "unknown:connection", uses: true},
	} {
		t.Run(name, func(t *testing.T) {
			b.T = t
			b.server.script(tc.answer)
			id := b.insert()
			b.expect(d, tc.want)
			defer b.postpone()
			b.wantHistory(id, "attempt:"+tc.as)
			b.wantOneKey(id, 1)
			if strings.Contains(value[string](b, "select coalesce(string_agg(error, ''), '') from samekey.outbox_history"), "quoted") {
				t.Errorf("an error quotes the answer: %s", b.dump())
			}
			if tc.want == stuck && !value[bool](b, "select status = 'unknown' and attempts_used = 0 and first_sent_at is not null from samekey.outbox_queue where id = $1", id) {
				t.Error("it does not count as sent")
			}
			if tc.want.Retried+tc.want.Dead == 0 {
				return
			}
			if used := value[int](b, "select attempts_used from samekey.outbox_queue where id = $1", id); used > 0 != tc.uses {
				t.Errorf("it used %d attempts", used)
			}
			if wait := value[float64](b, "select extract(epoch from due_at - clock_timestamp())::float8 from samekey.outbox_queue where id = $1", id); wait < tc.wait.Seconds()-patience.Seconds() {
				t.Errorf("it waits %v s", wait)
			}
		})
	}
}

func intentIs(status string) string {
	return fmt.Sprintf(`{"id":"pi_1","object":"payment_intent","status":%q}`, status)
}

// A call that creates a PaymentIntent for a customer to confirm is delivered with any status.
func TestStatusOfAConfirmedIntentCounts(t *testing.T) {
	create := func(confirm *bool) call {
		return func(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
			return sc.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{Amount: &c.Amount, Currency: stripe.String("eur"), Confirm: confirm})
		}
	}
	for name, tc := range map[string]struct {
		fn     call
		status string
		want   dispatcher.Summary
	}{
		"created":           {create(nil), "requires_payment_method", delivered},
		"created unconfirm": {create(stripe.Bool(false)), "requires_confirmation", delivered},
		"created confirmed": {create(stripe.Bool(true)), "requires_payment_method", refused},
		"confirmed": {func(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, _ Charge) (*stripe.PaymentIntent, error) {
			return sc.V1PaymentIntents.Confirm(ctx, "pi_1", &stripe.PaymentIntentConfirmParams{})
		}, "requires_action", stuck},
		"captured": {func(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, _ Charge) (*stripe.PaymentIntent, error) {
			return sc.V1PaymentIntents.Capture(ctx, "pi_1", &stripe.PaymentIntentCaptureParams{})
		}, "processing", stuck},
		"canceled": {func(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, _ Charge) (*stripe.PaymentIntent, error) {
			return sc.V1PaymentIntents.Cancel(ctx, "pi_1", &stripe.PaymentIntentCancelParams{})
		}, "canceled", delivered},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, says(200, intentIs(tc.status)))
			b.insert()
			b.expect(b.worker(tc.fn), tc.want)
		})
	}
}

func TestOutcomeOfTheFunctionCountsOnA2xx(t *testing.T) {
	for status, want := range map[int]dispatcher.Summary{200: refused, 500: retried} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			b := setup(t, says(status, intentIs("processing")))
			b.insert()
			b.expect(b.workerOf(b.account(), func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
				_, _ = pay(ctx, sc, call, c)
				return dispatcher.Refused(dispatcher.Response{Code: "too slow for us"}), nil
			}), want)
		})
	}
}

// A function that fails elsewhere after Stripe has answered does not make the call unsent.
func TestErrorAfterA2xxIsNeverUnsent(t *testing.T) {
	unsent := fmt.Errorf("note it: %w", dispatcher.ErrUnsent)
	for name, result := range map[string]func() (dispatcher.Outcome, error){
		"error":   func() (dispatcher.Outcome, error) { return dispatcher.Outcome{}, unsent },
		"outcome": func() (dispatcher.Outcome, error) { return dispatcher.Unsent(unsent), nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, says(200, succeeded))
			id := b.insert()
			b.expect(b.workerOf(b.account(), func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
				_, _ = pay(ctx, sc, call, c)
				return result()
			}), retried)
			b.wantHistory(id, "attempt:unknown:200")
			if !value[bool](b, "select attempts_used = 1 and first_sent_at is not null from samekey.outbox_queue where id = $1", id) {
				t.Error("it counts as unsent")
			}
		})
	}
}

func TestUnreachableStripeIsUnsent(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	plain := startServer(t, says(200, succeeded))
	for name, tc := range map[string]struct{ url, code string }{
		"connection refused": {"http://" + free.Addr().String(), "connection"},
		"no TLS":             {strings.Replace(plain.URL, "http:", "https:", 1), "tls"},
		"no such name":       {"http://stripe.invalid", "dns"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, says(200, succeeded))
			id := b.insert()
			c, err := stripevendor.New(stripevendor.Account{Key: secretKey, URL: tc.url})
			if err != nil {
				t.Fatal(err)
			}
			b.expect(b.workerOf(c, bare(pay)), retried)
			b.wantHistory(id, "attempt:unsent:"+tc.code)
			if !value[bool](b, "select attempts_used = 0 and first_sent_at is null and key_window_until is null from samekey.outbox_queue where id = $1", id) {
				t.Error("it counts as sent")
			}
			b.elapse(25 * time.Hour) // longer than the window
			b.expect(b.worker(pay), delivered)
		})
	}
}

func TestHangingCallIsUnknown(t *testing.T) {
	b := setup(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, says(200, succeeded))
	id := b.insert()
	hurry := func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		return pay(ctx, sc, call, c)
	}
	b.expect(b.worker(hurry), retried)
	b.wantHistory(id, "attempt:unknown:timeout")
	b.elapse(time.Hour)
	b.expect(b.worker(pay), delivered)
	b.wantOneKey(id, 2)
}

// A goroutine that a function leaves behind must not send during the next attempt.
func TestNothingIsSentAfterTheFunctionReturned(t *testing.T) {
	b := setup(t, says(200, succeeded))
	b.insert()
	returned, late := make(chan struct{}), make(chan error, 2)
	b.expect(b.worker(func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
		go func() {
			<-returned
			_, err := pay(context.WithoutCancel(ctx), sc, call, c)
			late <- err
		}()
		return pay(ctx, sc, call, c)
	}), delivered)
	close(returned)
	for range 2 { // one for Render and one for the attempt
		select {
		case err := <-late:
			if !strings.Contains(fmt.Sprint(err), "nothing more is sent") {
				t.Errorf("it returned %v", err)
			}
		case <-time.After(patience):
			t.Fatal("it did not end")
		}
	}
	if calls := b.server.seen(); len(calls) != 1 {
		t.Errorf("the server saw %+v", calls)
	}
}
