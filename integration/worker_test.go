package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpclient"
	"github.com/samekey/samekey/outbox"
)

// workerConfig holds the settings of a worker process. The zero value of a field is its default.
type workerConfig struct {
	DSN, Vendor, Name       string
	Class                   dispatcher.Class
	Timeout, Lease, Backoff time.Duration
	Sweep                   time.Duration
	Concurrency             int
	Stand                   string // the point at which it waits
	Lookup, Apply           bool
	ResendAbsent            bool
	Deaf                    bool // it sends even if its context is cancelled
}

// The points of a worker: see worker.charge. samekeytest.Vendor can hold a call itself or its answer.
const (
	beforeCall  = "before_call"  // the handler runs and has sent nothing
	afterAnswer = "after_answer" // the handler has the answer
	inApply     = "in_apply"     // the answer is stored, and Apply's transaction is open
)

type worker struct {
	workerConfig
	*points
}

func runWorker() error {
	config, err := readConfig[workerConfig]()
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, func() { say("stopping") })()
	pool, err := pgxpool.New(ctx, config.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	w := &worker{config, newPoints()}
	d := dispatcher.New(pool, &dispatcher.Config{Name: config.Name, SweepInterval: config.Sweep})
	w.register(d)
	go reportReady(ctx, d)
	return d.Run(ctx)
}

func reportReady(ctx context.Context, d *dispatcher.Dispatcher) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for d.Ready() != nil {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
	say("ready")
}

func (w *worker) register(d *dispatcher.Dispatcher) {
	policy := dispatcher.Policy{
		Class: w.Class, Destination: "payments", Timeout: w.Timeout, Lease: w.Lease,
		// Short, so that a retry starts at once.
		Backoff: max(w.Backoff, time.Millisecond), MaxBackoff: max(w.Backoff, 50*time.Millisecond),
	}
	policy.ResendAbsent = w.ResendAbsent
	if policy.Class == 0 {
		policy.Class = dispatcher.IdempotentWrite
	}
	if policy.Class == dispatcher.IdempotentWrite {
		policy.KeyWindow = 24 * time.Hour
	}
	delivery := dispatcher.Delivery[[]byte]{Policy: policy, Send: w.charge}
	if w.Lookup {
		delivery.Lookup = w.lookup
	}
	if w.Apply {
		delivery.Apply = w.apply
	}
	d.Destination("payments", dispatcher.Limits{Concurrency: w.Concurrency})
	for _, action := range actions {
		dispatcher.Handle(d, outbox.NewAction[[]byte](action), delivery)
	}
}

// charge calls the vendor. It waits at the configured point.
func (w *worker) charge(ctx context.Context, c *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
	w.at(beforeCall)
	if w.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	outcome, err := w.send(ctx, c)
	w.at(afterAnswer)
	return outcome, err
}

func (w *worker) at(point string) {
	if w.Stand == point {
		w.stand(point)
	}
}

func (w *worker) send(ctx context.Context, c *dispatcher.Call) (dispatcher.Outcome, error) {
	r, err := post(ctx, w.Vendor+"/"+c.Action, c.Payload)
	if err != nil {
		return dispatcher.Unsent(err), nil
	}
	r.Header.Set("Idempotency-Key", c.DeliveryKey.String())
	r.Header.Set("Samekey-Attempt", strconv.Itoa(c.Attempt))
	status, response, err := fetch(r)
	switch {
	case err != nil:
		return dispatcher.Unknown(response), err
	case status >= 200 && status < 300:
		return dispatcher.Delivered(response), nil
	case status == http.StatusPaymentRequired:
		return dispatcher.Refused(response), nil
	case status == http.StatusConflict || status == http.StatusTooManyRequests:
		return dispatcher.Retry(response), nil
	case status >= 400 && status < 500:
		return dispatcher.Dead(response), nil
	}
	return dispatcher.Unknown(response), nil
}

func (w *worker) lookup(ctx context.Context, c *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Vendor+"/lookup?key="+url.QueryEscape(c.DeliveryKey.String()), nil)
	if err != nil {
		return dispatcher.Outcome{}, err
	}
	status, response, err := fetch(r)
	switch {
	case err != nil:
		return dispatcher.Outcome{}, err
	case status == http.StatusOK:
		return dispatcher.Delivered(response), nil
	case status == http.StatusNotFound:
		return dispatcher.Absent(response), nil
	}
	return dispatcher.Unknown(response), fmt.Errorf("vendor: %s", response.Code)
}

// apply writes the vendor's answer to the application's rows. The table has no unique constraint, so an answer that is
// applied twice has two rows.
func (w *worker) apply(ctx context.Context, tx pgx.Tx, _ []byte, settled dispatcher.Settled) error {
	_, err := tx.Exec(ctx, `insert into receipts (intent, code) values ($1, $2)`, settled.ID, settled.Response.Code)
	if err == nil {
		w.at(inApply)
	}
	return err
}

func post(ctx context.Context, url string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.GetBody = nil // without it, net/http cannot send the body again
	r.Header.Set("Content-Type", "application/json")
	return r, nil
}

// vendors is the client for calls of vendors. It opens a connection for each request.
var vendors = func() *http.Client {
	client, err := httpclient.New(&http.Transport{DisableKeepAlives: true})
	if err != nil {
		panic(err)
	}
	return client
}()

func fetch(r *http.Request) (status int, response dispatcher.Response, err error) {
	got, err := vendors.Do(r)
	if err != nil {
		return 0, response, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	response = dispatcher.Response{Code: strconv.Itoa(got.StatusCode), ContentType: got.Header.Get("Content-Type"), Body: body}
	return got.StatusCode, response, err
}
