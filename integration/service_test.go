package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/hook"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// serviceConfig holds the settings of a service process.
type serviceConfig struct {
	DSN   string
	Conns int // the size of its pool, by default 8
}

// order is the body of a request. With its ID it is the payload of an intent.
type order struct {
	ID     int64  `json:"id,omitempty"`
	Item   string `json:"item"` // identifies the business operation, so that the vendor's ledger shows doubles
	Amount int64  `json:"amount"`
}

// The points of a service.
const (
	inFunction   = "in_function"   // after the insert, before COMMIT
	beforeAnswer = "before_answer" // after COMMIT
)

// service handles POST /charge and POST /refund, with the headers Idempotency-Key and Tenant. Further headers control a
// request for the test:
//
//	Test-Stand      the point at which the request waits
//	Test-End        how the function ends: rollback, panic, swallow or savepoint
//	Test-Lock       off: without the advisory lock
//	Test-Isolation  the transaction's isolation level
type service struct {
	pool *pgxpool.Pool
	*points
}

func runService() error {
	config, err := readConfig[serviceConfig]()
	if err != nil {
		return err
	}
	parsed, err := pgxpool.ParseConfig(config.DSN)
	if err != nil {
		return err
	}
	parsed.MaxConns = 8
	if config.Conns > 0 {
		parsed.MaxConns = int32(config.Conns)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), parsed)
	if err != nil {
		return err
	}
	s := &service{pool: pool, points: newPoints()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{operation}", s.do)
	mux.HandleFunc("GET /count", s.count)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	say("ready http://%s", listener.Addr())
	return http.Serve(listener, mux)
}

var actions = map[string]string{"charge": "charge_card", "refund": "refund_card"}

func (s *service) do(w http.ResponseWriter, r *http.Request) {
	operation := r.PathValue("operation")
	body, err := io.ReadAll(r.Body)
	if err != nil || actions[operation] == "" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	key, err := samekey.NewKey(r.Header.Get("Idempotency-Key"), r.Header.Get("Tenant"), operation)
	if err != nil {
		answerError(w, err)
		return
	}
	ctx := r.Context()
	defer context.AfterFunc(ctx, func() { say("hung up") })()
	if r.Header.Get("Test-Lock") == "off" {
		ctx = hook.WithoutLock(ctx)
	}
	res, err := processed.Run(ctx, s.pool, processed.Request{
		Key: key, Payload: body, Isolation: pgx.TxIsoLevel(r.Header.Get("Test-Isolation")),
	}, func(ctx context.Context, tx pgx.Tx) (order, error) { return s.place(ctx, tx, r, body) })
	if err != nil {
		answerError(w, err)
		return
	}
	if r.Header.Get("Test-Stand") == beforeAnswer {
		s.stand(beforeAnswer)
	}
	w.Header().Set("Deduplicated", fmt.Sprint(res.Deduplicated))
	_ = json.NewEncoder(w).Encode(res.Value)
}

// place is the function of processed.Run.
func (s *service) place(ctx context.Context, tx pgx.Tx, r *http.Request, body []byte) (placed order, err error) {
	if err := json.Unmarshal(body, &placed); err != nil {
		return order{}, err
	}
	if r.Header.Get("Test-End") == "savepoint" { // everything is rolled back to it
		if tx, err = tx.Begin(ctx); err != nil {
			return order{}, err
		}
		defer func() { err = errors.Join(err, tx.Rollback(ctx)) }()
	}
	operation := r.PathValue("operation")
	err = tx.QueryRow(ctx, `insert into orders (operation, tenant, item, amount) values ($1, $2, $3, $4) returning id`,
		operation, r.Header.Get("Tenant"), placed.Item, placed.Amount).Scan(&placed.ID)
	if err != nil {
		return order{}, err
	}
	if _, err := outbox.Insert(ctx, tx, outbox.Intent{Action: actions[operation], Payload: placed}); err != nil {
		return order{}, err
	}
	if r.Header.Get("Test-Stand") == inFunction {
		s.stand(inFunction)
	}
	switch r.Header.Get("Test-End") {
	case "rollback":
		return order{}, errors.New("the function fails")
	case "panic":
		panic(http.ErrAbortHandler)
	case "swallow": // an SQL error that is not returned
		_, _ = tx.Exec(ctx, `select 1/0`)
	}
	return placed, nil
}

// count runs a query that needs no key.
func (s *service) count(w http.ResponseWriter, r *http.Request) {
	var n int64
	if err := s.pool.QueryRow(r.Context(), `select count(*) from orders`).Scan(&n); err != nil {
		answerError(w, err)
		return
	}
	_, _ = fmt.Fprint(w, n)
}

func answerError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case isA[*samekey.KeyError](err), isA[*samekey.FingerprintError](err):
		status = http.StatusBadRequest
	case errors.Is(err, processed.ErrConflict):
		status = http.StatusUnprocessableEntity
	case errors.Is(err, processed.ErrInFlight):
		status = http.StatusConflict
	case processed.SafeToRetry(err), errors.Is(err, processed.ErrAmbiguous):
		status = http.StatusServiceUnavailable
	}
	http.Error(w, err.Error(), status)
}

// call is a client's request to a service.
type call struct {
	operation   string // default "charge"
	tenant, key string // default tenant "acme"
	item        string // default "book"
	amount      int64  // default 100
	header      map[string]string
}

// response is the service's answer. Its status is 0 if the client got none.
type response struct {
	status       int
	body         string
	deduplicated bool
}

func (c call) do(ctx context.Context, url string) response {
	if c.operation == "" {
		c.operation = "charge"
	}
	if c.tenant == "" {
		c.tenant = "acme"
	}
	if c.item == "" {
		c.item = "book"
	}
	if c.amount == 0 {
		c.amount = 100
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := post(ctx, url+"/"+c.operation, fmt.Appendf(nil, `{"item":%q,"amount":%d}`, c.item, c.amount))
	if err != nil {
		return response{}
	}
	r.Header.Set("Tenant", c.tenant)
	r.Header.Set("Idempotency-Key", c.key)
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	answer, err := client.Do(r)
	if err != nil {
		return response{body: err.Error()}
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return response{body: err.Error()}
	}
	return response{answer.StatusCode, string(body), answer.Header.Get("Deduplicated") == "true"}
}

// client opens a connection for each request. On a reused connection that is closed, net/http would send a request
// again.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: time.Minute},
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
