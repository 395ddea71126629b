package stripemock

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v85"
	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/stripevendor"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

const (
	patience  = 2 * time.Minute
	secretKey = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
)

// mock is stripe-mock behind a listener that records the calls and their statuses.
type mock struct {
	*httptest.Server
	mu    sync.Mutex
	lose  int // the number of POST answers to lose
	calls []call
}

type call struct {
	method, path, key, body string
	status                  int
}

// api is the handler of stripe-mock. Loading it takes a second.
var api = sync.OnceValues(func() (*server.StubServer, error) {
	description, err := server.LoadSpec(embedded.OpenAPISpec, "")
	if err != nil {
		return nil, err
	}
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	if err != nil {
		return nil, err
	}
	return server.NewStubServer(fixtures, description, false, false)
})

func startMock(t *testing.T) *mock {
	t.Helper()
	stub, err := api()
	if err != nil {
		t.Fatal(err)
	}
	m := &mock{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		stub.HandleRequest(answer, r)
		m.mu.Lock()
		m.calls = append(m.calls, call{r.Method, r.URL.RequestURI(), r.Header.Get("Idempotency-Key"), string(body), answer.Code})
		lost := r.Method == http.MethodPost && m.lose > 0
		if lost {
			m.lose--
		}
		m.mu.Unlock()
		if lost {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = c.Close()
			}
			return
		}
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *mock) seen() []call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]call(nil), m.calls...)
}

func insert(t *testing.T, db *samekeytest.DB, payload any) uuid.UUID {
	t.Helper()
	return dbtest.Insert(t, db, outbox.Intent{Action: "charge_card", Payload: payload})
}

func get(t *testing.T, db *samekeytest.DB, id uuid.UUID) outbox.Entry {
	t.Helper()
	entry, err := outbox.Get(t.Context(), db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// built is the folder of the worker's binary, or "".
var built string

// worker builds the worker once and returns the path of its binary.
var worker = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "stripemock")
	if err != nil {
		return "", err
	}
	built = dir
	binary := filepath.Join(dir, "worker")
	out, err := exec.Command("go", "build", "-C", filepath.Join("..", ".."), "-o", binary, "./cmd/worker").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return binary, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// shipped returns the configuration from a file in docs, changed to call the mock.
func shipped(t *testing.T, file, at string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", file))
	if err != nil {
		t.Fatal(err)
	}
	config := string(text)
	if file == "kubernetes.yaml" {
		_, config, _ = strings.Cut(config, "  worker.yaml: |\n")
		config, _, _ = strings.Cut(config, "\n---")
		config = strings.TrimPrefix(strings.ReplaceAll("\n"+config, "\n    ", "\n"), "\n")
	} else {
		_, config, _ = strings.Cut(config, "```yaml\n")
		config, _, _ = strings.Cut(config, "```")
	}
	if !strings.Contains(config, "preset: stripe") {
		t.Fatalf("docs/%s starts with another configuration:\n%s", file, config)
	}
	config = regexp.MustCompile(`\$\{file:[^}]*/stripe\}`).ReplaceAllLiteralString(config, "${env:STRIPE_KEY}")
	for old, with := range map[string]string{
		"url: https://api.stripe.com": "url: " + at + "\n    allow_private: [127.0.0.0/8]",
		"    timeout: 20s\n":          "    timeout: 20s\n    backoff: 50ms\n    settling_delay: 50ms\n",
	} {
		if !strings.Contains(config, old) {
			t.Fatalf("the configuration has no %q", old)
		}
		config = strings.Replace(config, old, with, 1)
	}
	return config
}

// run starts a worker with the configuration and stops it when the intent is finished or parked.
func run(t *testing.T, db *samekeytest.DB, id uuid.UUID, config string) outbox.Entry {
	t.Helper()
	binary, err := worker()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "worker.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	process := exec.CommandContext(ctx, binary, "run", "-config", path)
	process.Env = append(os.Environ(), "DATABASE_URL="+db.DSN, "LISTEN_ADDR=off", "STRIPE_KEY="+secretKey)
	process.Stdout, process.Stderr = t.Output(), t.Output()
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		switch entry := get(t, db, id); entry.Status {
		case outbox.StatusDelivered, outbox.StatusRefused, outbox.StatusDead, outbox.StatusParked:
			cancel()
			<-ended
			return entry
		}
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("the worker ended: %v", err)
		}
	}
}

var charge = map[string]any{"amount": 1999, "currency": "eur", "source": "tok_visa"}

// Stripe's API accepts the preset's requests: a form, with the delivery key in a header and in a field that lists can
// filter by.
func TestShippedConfigurationFitsStripesAPI(t *testing.T) {
	for _, file := range []string{"worker.md", "kubernetes.yaml"} {
		t.Run(file, func(t *testing.T) {
			m, db := startMock(t), samekeytest.NewDB(t)
			m.lose = 1
			id := insert(t, db, charge)
			entry := run(t, db, id, shipped(t, file, m.URL))
			calls := m.seen()
			if entry.Status != outbox.StatusDelivered || len(calls) != 2 {
				t.Fatalf("the intent is %s after %+v", entry.Status, calls)
			}
			for _, c := range calls {
				form, err := url.ParseQuery(c.body)
				if c.status != 200 || c.key != entry.DeliveryKey.String() || c != calls[0] || err != nil || form.Get("transfer_group") != c.key {
					t.Errorf("the API got %+v (%v)", c, err)
				}
			}
			var made struct{ Object string }
			last := entry.History[len(entry.History)-1]
			if err := json.Unmarshal(last.Response, &made); err != nil || made.Object != "charge" {
				t.Errorf("the answer is %s", last.Response)
			}
		})
	}
}

// After a lost answer, a non-idempotent write is looked up. Stripe's API accepts the query. The fixture is another
// charge, so the intent is parked.
func TestShippedLookupFitsStripesAPI(t *testing.T) {
	m, db := startMock(t), samekeytest.NewDB(t)
	id := insert(t, db, charge)
	m.lose = 1
	config := strings.Replace(shipped(t, "worker.md", m.URL), "class: idempotent_write", "class: non_idempotent_write", 1)
	entry := run(t, db, id, config)
	calls := m.seen()
	if entry.Status != outbox.StatusParked || len(calls) != 2 || calls[1].method != "GET" || calls[1].status != 200 ||
		calls[1].path != "/v1/charges?transfer_group="+entry.DeliveryKey.String() {
		t.Errorf("the intent is %s after %+v", entry.Status, calls)
	}
}

// The mock refuses invalid requests, so the tests above mean something. A refused intent is dead, with Stripe's answer.
func TestRequestThatStripesAPIRefusesIsDead(t *testing.T) {
	for name, tc := range map[string]struct {
		payload  map[string]any
		old, new string
	}{
		"a JSON body":     {charge, "body: {format: form", "body: {format: json"},
		"another field":   {map[string]any{"amount": 1999, "currency": "eur", "sauce": "tok_visa"}, "", ""},
		"not a number":    {map[string]any{"amount": "much", "currency": "eur"}, "", ""},
		"another path":    {charge, "POST /v1/charges", "POST /v1/charge"},
		"a missing field": {map[string]any{"description": "no customer"}, "POST /v1/charges", "POST /v1/subscriptions"},
	} {
		t.Run(name, func(t *testing.T) {
			m, db := startMock(t), samekeytest.NewDB(t)
			id := insert(t, db, tc.payload)
			entry := run(t, db, id, strings.Replace(shipped(t, "worker.md", m.URL), tc.old, tc.new, 1))
			last := entry.History[len(entry.History)-1]
			if calls := m.seen(); entry.Status != outbox.StatusDead || len(calls) != 1 || calls[0].status < 400 || !strings.Contains(string(last.Response), "invalid_request_error") {
				t.Errorf("the intent is %s after %+v with %s", entry.Status, calls, last.Response)
			}
		})
	}
}

type order struct {
	Amount   int64  `json:"amount"`
	Customer string `json:"customer"`
	Currency string `json:"currency"`
}

// The test runs the package's example against the same API: the payment, a lost answer, and the lookup through a list.
func TestStripevendorFitsStripesAPI(t *testing.T) {
	pay := func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, o order) (*stripe.PaymentIntent, error) {
		params := &stripe.PaymentIntentCreateParams{
			Amount: &o.Amount, Currency: &o.Currency, Customer: &o.Customer, Confirm: stripe.Bool(true), OffSession: stripe.Bool(true),
		}
		params.AddMetadata(stripevendor.MetadataKey, call.CarriedKey)
		return sc.V1PaymentIntents.Create(ctx, params)
	}
	for name, tc := range map[string]struct {
		lose    int
		elapse  time.Duration
		call    func(context.Context, *stripe.Client, *dispatcher.Call, order) (*stripe.PaymentIntent, error)
		want    outbox.Status
		methods string
	}{
		// The fixture is a payment intent that requires a payment method. The call confirmed it, so it was refused.
		"confirmed":     {0, 0, pay, outbox.StatusRefused, "POST"},
		"a lost answer": {1, 0, pay, outbox.StatusRefused, "POST POST"},
		"looked up":     {1, 25 * time.Hour, pay, outbox.StatusParked, "POST GET GET"},
		"created": {0, 0, func(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, o order) (*stripe.PaymentIntent, error) {
			return sc.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{Amount: &o.Amount, Currency: &o.Currency})
		}, outbox.StatusDelivered, "POST"},
		"no currency": {0, 0, func(ctx context.Context, sc *stripe.Client, _ *dispatcher.Call, o order) (*stripe.PaymentIntent, error) {
			return sc.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{Amount: &o.Amount})
		}, outbox.StatusDead, "POST"},
	} {
		t.Run(name, func(t *testing.T) {
			m, db := startMock(t), samekeytest.NewDB(t)
			m.lose = tc.lose
			account, err := stripevendor.New(stripevendor.Account{Key: secretKey, URL: m.URL})
			if err != nil {
				t.Fatal(err)
			}
			id := insert(t, db, order{1999, "cus_1", "eur"})
			for range 10 {
				d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
				d.Destination("stripe", dispatcher.Limits{})
				// The next attempt is never due in the same Drain, however slow the machine is.
				policy := dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", Timeout: 10 * time.Second, Backoff: 10 * time.Minute}
				delivery := stripevendor.Delivery(account, policy, func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, o order) (dispatcher.Outcome, error) {
					_, err := tc.call(ctx, sc, call, o)
					return dispatcher.Outcome{}, err
				})
				delivery.Lookup = stripevendor.Lookup(account,
					func(ctx context.Context, sc *stripe.Client, call *dispatcher.Call, o order) stripe.Seq2[*stripe.PaymentIntent, error] {
						return sc.V1PaymentIntents.List(ctx, &stripe.PaymentIntentListParams{
							Customer: &o.Customer, CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: call.CreatedAt.Add(-time.Hour).Unix()},
						}).All(ctx)
					},
					func(call *dispatcher.Call, p *stripe.PaymentIntent) (dispatcher.Outcome, bool) {
						return dispatcher.Delivered(dispatcher.Response{Code: string(p.Status)}), p.Metadata[stripevendor.MetadataKey] == call.CarriedKey
					})
				dispatcher.Handle(d, outbox.NewAction[order]("charge_card"), delivery)
				if _, err := d.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				samekeytest.Elapse(t, db, max(tc.elapse, time.Hour))
			}
			entry := get(t, db, id)
			var methods []string
			for _, c := range m.seen() {
				methods = append(methods, c.method)
				if c.status != 200 && tc.want != outbox.StatusDead || c.method == "POST" && c.key != entry.DeliveryKey.String() {
					t.Errorf("the API got %+v", c)
				}
			}
			if entry.Status != tc.want || strings.Join(methods, " ") != tc.methods {
				t.Errorf("the intent is %s %s after %v, want %s after %s", entry.Status, entry.Code, methods, tc.want, tc.methods)
			}
		})
	}
}
