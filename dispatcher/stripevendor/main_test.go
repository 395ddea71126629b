package stripevendor_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v85"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/stripevendor"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience  = dbtest.Patience
	secretKey = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
)

// seen is a request as it arrived.
type seen struct {
	method, path, key, body string
	header                  http.Header
	closes                  bool // the connection is closed after this request
}

// server stands for Stripe: it records requests and sends scripted answers.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	calls   []seen
	answers []http.HandlerFunc // one per call; the last one repeats
}

func startServer(t *testing.T, answers ...http.HandlerFunc) *server {
	t.Helper()
	s := &server{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.calls = append(s.calls, seen{r.Method, r.URL.RequestURI(), r.Header.Get("Idempotency-Key"), string(body), r.Header.Clone(), r.Close})
		answer := s.answers[min(len(s.calls), len(s.answers))-1]
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// script starts again with other answers.
func (s *server) script(answers ...http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.answers = nil, answers
}

func (s *server) seen() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// says returns a handler that answers with a status, a body, and headers in pairs.
func says(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Request-Id", "req_1")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// cuts closes the connection without an answer.
func cuts(w http.ResponseWriter, _ *http.Request) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

const (
	succeeded = `{"id":"pi_1","object":"payment_intent","status":"succeeded","client_secret":"pi_1_secret_xyz","amount":1999}`
	declined  = `{"error":{"type":"card_error","code":"card_declined","decline_code":"insufficient_funds","payment_intent":{"id":"pi_1"},"message":"Your card has insufficient funds."}}`
)

func apiError(kind, code string) string {
	return fmt.Sprintf(`{"error":{"type":%q,"code":%q,"message":"quoted by the SDK alone"}}`, kind, code)
}

// Charge is the payload that the order service inserted.
type Charge struct {
	Order    string `json:"order"`
	Amount   int64  `json:"amount"`
	Customer string `json:"customer"`
}

type (
	call    = func(context.Context, *stripe.Client, *dispatcher.Call, Charge) (*stripe.PaymentIntent, error)
	decided = func(context.Context, *stripe.Client, *dispatcher.Call, Charge) (dispatcher.Outcome, error)
	change  = func(*dispatcher.Delivery[Charge])
)

var chargeCard = outbox.NewAction[Charge]("charge_card")

// pay is a user's function. It sets its own key, which must have no effect.
func pay(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (*stripe.PaymentIntent, error) {
	params := &stripe.PaymentIntentCreateParams{
		Amount: &c.Amount, Currency: stripe.String("eur"), Customer: &c.Customer, Confirm: stripe.Bool(true),
	}
	for _, name := range []string{"order", "zone", "a", "b", "c"} {
		params.AddMetadata(name, c.Order)
	}
	params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
	params.SetIdempotencyKey("the user's own")
	params.Headers = http.Header{"Idempotency-Key": {"in a header, too"}}
	return sc.V1PaymentIntents.Create(ctx, params)
}

// bundle is a test's environment.
type bundle struct {
	*testing.T
	db     *samekeytest.DB
	server *server
	ctx    context.Context //nolint:containedctx // of the test
	keys   int
}

func setup(t *testing.T, answers ...http.HandlerFunc) *bundle {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return &bundle{T: t, db: samekeytest.NewDB(t), server: startServer(t, answers...), ctx: ctx}
}

func (b *bundle) account() *stripevendor.Client {
	b.Helper()
	c, err := stripevendor.New(stripevendor.Account{Key: secretKey, URL: b.server.URL})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// bare makes a function that leaves the outcome to the package.
func bare(fn call) decided {
	return func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
		_, err := fn(ctx, sc, call, c)
		return dispatcher.Outcome{}, err
	}
}

// worker is a process of one release, with its own dispatcher and client.
func (b *bundle) worker(fn call, with ...change) *dispatcher.Dispatcher {
	b.Helper()
	return b.workerOf(b.account(), bare(fn), with...)
}

func (b *bundle) workerOf(c *stripevendor.Client, fn decided, with ...change) *dispatcher.Dispatcher {
	d := dispatcher.New(b.db.Pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	d.Destination("stripe", dispatcher.Limits{})
	delivery := stripevendor.Delivery(c, dispatcher.Policy{
		Class: dispatcher.IdempotentWrite, Destination: "stripe", Timeout: 5 * time.Second, Backoff: time.Hour, MaxBackoff: time.Hour,
	}, fn)
	for _, change := range with {
		change(&delivery)
	}
	dispatcher.Handle(d, chargeCard, delivery)
	return d
}

func (b *bundle) insert() uuid.UUID {
	b.Helper()
	b.keys++
	key := dbtest.Key(b, fmt.Sprintf("order-%d", b.keys))
	return dbtest.Insert(b, b.db, outbox.Intent{Key: key, Action: "charge_card", Payload: Charge{key.Value, 1999, "cus_1"}})
}

// expect drains and compares the counts.
func (b *bundle) expect(d *dispatcher.Dispatcher, want dispatcher.Summary) {
	b.Helper()
	got, err := d.Drain(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	if got != want {
		b.Fatalf("the drain returned %+v, want %+v; %s", got, want, b.dump())
	}
}

func (b *bundle) elapse(d time.Duration) { b.Helper(); samekeytest.Elapse(b, b.db, d) }

// postpone keeps retries, which come due at random times, out of the next row's drain.
func (b *bundle) postpone() {
	b.Helper()
	dbtest.Exec(b, b.db, "update samekey.outbox_queue set due_at = due_at + interval '1 day'")
}

func value[T any](b *bundle, sql string, args ...any) T {
	b.Helper()
	return dbtest.Value[T](b, b.db, sql, args...)
}

// history returns an intent's timeline, each event as "event:outcome:code".
func (b *bundle) history(id uuid.UUID) string {
	b.Helper()
	return dbtest.History(b, b.db, id)
}

// wantReference compares what outbox.List finds an intent by.
func (b *bundle) wantReference(id uuid.UUID, want string) {
	b.Helper()
	page, err := outbox.List(b.Context(), b.db, outbox.Filter{Reference: want})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].ID != id {
		b.Errorf("the reference %s finds %+v, %v", want, page.Entries, err)
	}
}

func (b *bundle) wantHistory(id uuid.UUID, want string) {
	b.Helper()
	if got := b.history(id); got != want {
		b.Fatalf("the intent's history is\n\t%s\nwant\n\t%s\n%s", got, want, b.dump())
	}
}

// dump returns everything that is stored about attempts.
func (b *bundle) dump() string {
	b.Helper()
	return value[string](b, `select coalesce(string_agg(concat_ws(' | ', event, outcome, code, error, convert_from(response, 'UTF8')), E'\n' order by id), '')
		from samekey.outbox_history`)
}

// wantOneKey fails unless there were n requests, all with the intent's key and the same bytes.
func (b *bundle) wantOneKey(id uuid.UUID, n int) {
	b.Helper()
	calls, key := b.server.seen(), value[string](b, `select delivery_key::text from samekey.outbox where id = $1`, id)
	if len(calls) != n {
		b.Fatalf("there were %d requests, want %d: %+v", len(calls), n, calls)
	}
	for _, c := range calls {
		if c.key != key || len(c.header["Idempotency-Key"]) != 1 {
			b.Errorf("the key on the wire is %q, want %s", c.header["Idempotency-Key"], key)
		}
		if c.body != calls[0].body || c.path != calls[0].path || c.header.Get("Stripe-Version") != calls[0].header.Get("Stripe-Version") {
			b.Errorf("an attempt sent\n%s %s\nthe first\n%s %s", c.path, c.body, calls[0].path, calls[0].body)
		}
	}
}
