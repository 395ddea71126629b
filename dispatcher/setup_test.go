package dispatcher_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		workerMain()
		return
	}
	dbtest.Parallel("10") // these tests wait more than they work
	goleak.VerifyTestMain(unhurried{m})
}

// unhurried gives River time to give up its leadership in a database that is gone. goleak waits only a second or two.
type unhurried struct{ *testing.M }

func (m unhurried) Run() int {
	code := m.M.Run()
	for deadline := time.Now().Add(patience); goleak.Find() != nil && time.Now().Before(deadline); {
	}
	return code
}

// patience bounds every wait in these tests. Most conditions are true within milliseconds.
const patience = dbtest.Patience

// bundle is a test's environment: a database, a vendor over sockets, and the log of the dispatchers.
type bundle struct {
	*testing.T
	db     *samekeytest.DB
	vendor *samekeytest.Vendor
	ctx    context.Context //nolint:containedctx // of the test
	logs   *dbtest.Log
	client *http.Client
	keys   int
	gates  []*gate // released before a dispatcher is stopped

	approver *pgxpool.Pool // since the first approve
}

func setup(t *testing.T) *bundle { return setupVendor(t, nil) }

func setupVendor(t *testing.T, options *samekeytest.VendorOptions) *bundle {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	b := &bundle{T: t, db: samekeytest.NewDB(t), vendor: samekeytest.StartVendor(t, options), ctx: ctx, logs: &dbtest.Log{}}
	b.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the dispatchers:\n%s", b.logs)
		}
	})
	return b
}

// dispatcher makes a dispatcher with a short sweep interval.
func (b *bundle) dispatcher() *dispatcher.Dispatcher {
	return b.dispatcherOn(b.db.Pool, dispatcher.Config{})
}

func (b *bundle) dispatcherOn(pool *pgxpool.Pool, config dispatcher.Config) *dispatcher.Dispatcher {
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	if config.SweepInterval == 0 {
		config.SweepInterval = 50 * time.Millisecond
	}
	d := dispatcher.New(pool, &config)
	d.SetShift(20 * time.Second)
	return d
}

// running is a dispatcher whose Run has begun.
type running struct {
	b    *bundle
	d    *dispatcher.Dispatcher
	end  context.CancelFunc
	done chan error
	once sync.Once
	err  error
}

// start runs d until the test ends or stop is called, and returns once it takes work.
func (b *bundle) start(d *dispatcher.Dispatcher) *running {
	b.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.ctx))
	r := &running{b: b, d: d, end: cancel, done: make(chan error, 1)}
	go func() { r.done <- d.Run(ctx) }()
	b.Cleanup(func() {
		for _, g := range b.gates {
			g.release()
		}
		_ = r.stop()
	})
	b.until("the dispatcher is ready", func() bool {
		select {
		case err := <-r.done:
			r.done <- err
			b.Fatalf("Run ended at once: %v", err)
		default:
		}
		return d.Ready() == nil
	})
	return r
}

// stop ends the Run and returns what it returned.
func (r *running) stop() error {
	r.once.Do(func() {
		r.end()
		select {
		case r.err = <-r.done:
		case <-time.After(2 * patience):
			r.b.Error("Run did not return")
			r.err = errors.New("Run did not return")
		}
	})
	return r.err
}

// drain drains once and returns the counts.
func (b *bundle) drain(d *dispatcher.Dispatcher) dispatcher.Summary {
	b.Helper()
	sum, err := d.Drain(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	return sum
}

// expectAgain is expect for a result that is due again after a second. On a busy machine, a Drain comes to it more often.
func (b *bundle) expectAgain(d *dispatcher.Dispatcher, want dispatcher.Summary) {
	b.Helper()
	sum := b.drain(d)
	times := max(sum.Retried, sum.Unknown)
	if want.Retried, want.Unknown = want.Retried*times, want.Unknown*times; times == 0 || sum != want {
		b.Errorf("the drain returned %+v, want one kind of result", sum)
	}
}

// expect drains once and compares the counts.
func (b *bundle) expect(d *dispatcher.Dispatcher, want dispatcher.Summary) {
	b.Helper()
	if got := b.drain(d); got != want {
		b.Fatalf("the drain returned %+v, want %+v", got, want)
	}
}

// until waits for a condition. The test fails only at its deadline.
func (b *bundle) until(what string, condition func() bool) {
	b.Helper()
	dbtest.Until(b, what, condition)
}

// wait receives from a channel, or fails at its deadline.
func wait[T any](b *bundle, what string, signal <-chan T) T {
	b.Helper()
	return dbtest.Receive(b, what, signal)
}

// elapse moves everything that is stored back by d.
func (b *bundle) elapse(d time.Duration) { b.Helper(); samekeytest.Elapse(b, b.db, d) }

// charge is the payload of most tests.
type charge struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

// insert commits one intent under its own key.
func (b *bundle) insert(action string, change ...func(*outbox.Intent)) uuid.UUID {
	b.Helper()
	b.keys++
	key := dbtest.Key(b, fmt.Sprintf("order-%d", b.keys), "tenant", "orders.create")
	in := outbox.Intent{Key: key, Action: action, Payload: charge{Order: key.Value, Amount: b.keys}}
	for _, fn := range change {
		fn(&in)
	}
	return dbtest.Insert(b, b.db, in)
}

// insertMany commits n plain intents with one statement.
func (b *bundle) insertMany(action string, n int) {
	b.Helper()
	b.exec(`select samekey.enqueue('tenant/bulk', $1 || '-' || g, $1, convert_to('{"order":"' || g || '"}', 'UTF8'))
		from generate_series(1, $2::int) g`, action, n)
}

func ordered(key string) func(*outbox.Intent) {
	return func(in *outbox.Intent) { in.OrderingKey = key }
}

// exec runs a statement that must succeed.
func (b *bundle) exec(sql string, args ...any) {
	b.Helper()
	dbtest.Exec(b, b.db, sql, args...)
}

// value reads one value.
func value[T any](b *bundle, sql string, args ...any) T {
	b.Helper()
	return dbtest.Value[T](b, b.db, sql, args...)
}

func (b *bundle) count(sql string, args ...any) int { b.Helper(); return value[int](b, sql, args...) }

// status returns the intent's status, from its queue row or from the event that finished it.
func (b *bundle) status(id uuid.UUID) string {
	b.Helper()
	return value[string](b, `select coalesce(
		(select q.status from samekey.outbox_queue q where q.id = $1),
		(select h.final_status from samekey.outbox_history h where h.intent_id = $1 and h.final_status is not null), 'lost')`, id)
}

func (b *bundle) wantStatus(id uuid.UUID, want string) {
	b.Helper()
	if got := b.status(id); got != want {
		b.Fatalf("the intent is %s, want %s; its history: %s", got, want, b.history(id))
	}
}

func (b *bundle) untilStatus(id uuid.UUID, want string) {
	b.Helper()
	b.until("the intent is "+want, func() bool { return b.status(id) == want })
}

// untilFinished waits until no intent is left in the queue.
func (b *bundle) untilFinished() {
	b.Helper()
	b.until("the queue is empty", func() bool { return b.count("select count(*) from samekey.outbox_queue") == 0 })
}

// history returns an intent's timeline, each event as "event:outcome:code".
func (b *bundle) history(id uuid.UUID) string {
	b.Helper()
	return dbtest.History(b, b.db, id)
}

func (b *bundle) wantHistory(id uuid.UUID, want string) {
	b.Helper()
	if got := b.history(id); got != want {
		b.Fatalf("the intent's history is\n\t%s\nwant\n\t%s", got, want)
	}
}

// deliveryKey returns the key that the vendor must receive for an intent.
func (b *bundle) deliveryKey(id uuid.UUID) string {
	b.Helper()
	return value[string](b, `select delivery_key::text from samekey.outbox where id = $1`, id)
}

// wantCalls compares the number of calls that the vendor saw in total.
func (b *bundle) wantCalls(want int) {
	b.Helper()
	if got := b.vendor.Counts().Calls; got != want {
		b.Fatalf("the vendor saw %d calls, want %d: %+v", got, want, b.vendor.Ledger().Calls)
	}
}

// Most tests deliver raw payloads of untyped actions.
type (
	delivery = dispatcher.Delivery[[]byte]
	handler  = func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error)
	option   = func(*delivery)
)

// handle registers an action. The options add to its delivery.
func handle(d *dispatcher.Dispatcher, action string, p dispatcher.Policy, send handler, options ...option) {
	dl := delivery{Policy: p}
	if send != nil {
		dl.Send = func(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			return send(ctx, call)
		}
	}
	for _, option := range options {
		option(&dl)
	}
	dispatcher.Handle(d, outbox.NewAction[[]byte](action), dl)
}

func withLookup(fn func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error)) option {
	return func(dl *delivery) { dl.Lookup = fn }
}

func withApply(fn func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error) option {
	return func(dl *delivery) { dl.Apply = fn }
}

func withRender(fn func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error)) option {
	return func(dl *delivery) { dl.Render = fn }
}

func withEndpoint(fn func(*dispatcher.Call) string) option {
	return func(dl *delivery) { dl.Endpoint = fn }
}

func withStoredEndpoint(fn func(*dispatcher.Call) string) option {
	return func(dl *delivery) { dl.Endpoint, dl.StoredEndpoint = fn, true }
}

// post calls the vendor as an integration does: with the delivery key in a header, and with outcomes for the vendor's
// statuses.
func (b *bundle) post(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	return postTo(b.client, b.vendor.URL)(ctx, call)
}

func postTo(client *http.Client, url string) handler {
	return func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/"+call.Action, bytes.NewReader(call.Payload))
		if err != nil {
			return dispatcher.Outcome{}, err
		}
		request.GetBody = nil // one attempt is one request
		request.Header.Set("Idempotency-Key", call.DeliveryKey.String())
		request.Header.Set("Samekey-Attempt", fmt.Sprint(call.Attempt))
		response, err := do(client, request)
		var op *net.OpError
		switch {
		case errors.As(err, &op) && op.Op == "dial":
			return dispatcher.Unsent(err), nil // this vendor never redirects, so the dial was the first
		case err != nil:
			return dispatcher.Outcome{}, err
		case response.Code == "402":
			return dispatcher.Refused(response), nil
		case response.Code == "429":
			return dispatcher.Retry(response).After(time.Second), nil
		case response.Code > "299":
			return dispatcher.Unknown(response).Because(fmt.Errorf("status %s", response.Code)), nil
		}
		return dispatcher.Delivered(response), nil
	}
}

func do(client *http.Client, request *http.Request) (dispatcher.Response, error) {
	response, err := client.Do(request)
	if err != nil {
		return dispatcher.Response{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return dispatcher.Response{}, err
	}
	code := fmt.Sprint(response.StatusCode)
	if stored := response.Header.Get("Stored-Status"); stored != "" {
		code = stored
	}
	return dispatcher.Response{Code: code, ContentType: response.Header.Get("Content-Type"), Body: body}, nil
}

// lookup asks the vendor whether it acted under a delivery key.
func (b *bundle) lookup(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.vendor.URL+"/lookup?key="+call.DeliveryKey.String(), nil)
	if err != nil {
		return dispatcher.Outcome{}, err
	}
	response, err := do(b.client, request)
	switch {
	case err != nil:
		return dispatcher.Outcome{}, err
	case response.Code == "404":
		return dispatcher.Absent(response), nil
	case response.Code == "402":
		return dispatcher.Refused(response), nil
	case response.Code > "299":
		return dispatcher.Outcome{}, fmt.Errorf("status %s", response.Code)
	}
	return dispatcher.Delivered(response), nil
}

// policyOf returns the policy of most tests. Its backoff is long, so that no retry comes due within a drain.
func policyOf(class dispatcher.Class) dispatcher.Policy {
	p := dispatcher.Policy{Class: class, Destination: "vendor", Timeout: 5 * time.Second, Backoff: time.Hour, MaxBackoff: time.Hour}
	if class == dispatcher.IdempotentWrite {
		p.KeyWindow = 24 * time.Hour
	}
	return p
}

var by = outbox.By{Actor: "ann", Reason: "looked at the vendor's dashboard"}
