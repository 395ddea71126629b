package createorder

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// Service is the order service:
//
//	POST /orders       with the client's key in Idempotency-Key
//	GET  /orders/{id}
//
// X-Tenant stands for the authenticated principal.
type Service struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	mux  http.ServeMux
}

// NewService returns the service on a pool whose database has samekey's tables
// and the shop's ([Migrate]).
func NewService(pool *pgxpool.Pool, log *slog.Logger) *Service {
	s := &Service{pool: pool, log: log}
	s.mux.HandleFunc("POST /orders", authenticated(s.create))
	s.mux.HandleFunc("GET /orders/{id}", authenticated(s.get))
	return s
}

// ServeHTTP serves the paths that [Service] lists.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// create writes three things in one transaction: the order, the intent to
// charge the card, and the answer, under the client's key. All three exist
// afterwards, or none does. The same key again gets the same answer.
func (s *Service) create(w http.ResponseWriter, r *http.Request, tenant string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err != nil {
		answer(w, http.StatusBadRequest, problem("body", "the body could not be read, or is longer than 64 KiB"))
		return
	}
	var req newOrder
	if err := json.Unmarshal(body, &req); err != nil {
		answer(w, http.StatusBadRequest, problem("invalid_order", "the body is not an order in JSON"))
		return
	}
	if err := req.validate(); err != nil {
		answer(w, http.StatusBadRequest, problem("invalid_order", err.Error()))
		return
	}
	if len(r.Header.Values("Idempotency-Key")) > 1 { // which of them would the client send again?
		answer(w, http.StatusBadRequest, problem("invalid_key", "Idempotency-Key was sent more than once"))
		return
	}
	key, err := samekey.NewKey(r.Header.Get("Idempotency-Key"), tenant, "orders.create")
	if err != nil {
		answer(w, http.StatusBadRequest, problem("invalid_key", err.Error()))
		return
	}

	res, err := processed.Run(r.Context(), s.pool, processed.Request{Key: key, Payload: body, Retain: 7 * 24 * time.Hour},
		func(ctx context.Context, tx pgx.Tx) (Order, error) {
			order, err := insertOrder(ctx, tx, tenant, req)
			if err != nil {
				return Order{}, err
			}
			_, err = outbox.Insert(ctx, tx, outbox.Intent{
				Action: "charge_card", Payload: Charge{OrderID: order.ID, Amount: order.Amount, Card: req.Card},
			})
			return order, err
		})
	if err != nil {
		s.refuse(w, r, key, err)
		return
	}
	if res.Deduplicated {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	if res.Failure != nil {
		answer(w, res.Failure.Code, res.Failure.Body)
		return
	}
	answer(w, http.StatusCreated, res.Value)
}

// refuse says why there is no answer yet, and whether the client should send
// the same again.
func (s *Service) refuse(w http.ResponseWriter, r *http.Request, key samekey.Key, err error) {
	switch {
	case errors.Is(err, samekey.ErrInvalidPayload):
		answer(w, http.StatusBadRequest, problem("invalid_order", err.Error()))
	case errors.Is(err, processed.ErrConflict):
		answer(w, http.StatusUnprocessableEntity, problem("key_reused", "this key was used with another order: take a new key for a new order"))
	case errors.Is(err, processed.ErrInFlight):
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusConflict, problem("in_flight", "the first request with this key is still running: send the same again"))
	default: // also where it is not known whether the order exists: the same key finds out
		s.log.ErrorContext(r.Context(), "create order", "key", key, "error", err)
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusServiceUnavailable, problem("unavailable", "send the same again, with the same key"))
	}
}

// get answers with the order as it is now.
func (s *Service) get(w http.ResponseWriter, r *http.Request, tenant string) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		answer(w, http.StatusNotFound, problem("not_found", "there is no such order"))
		return
	}
	order, err := findOrder(r.Context(), s.pool, tenant, id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		answer(w, http.StatusNotFound, problem("not_found", "there is no such order"))
	case err != nil:
		s.log.ErrorContext(r.Context(), "find order", "error", err)
		answer(w, http.StatusServiceUnavailable, problem("unavailable", "try again"))
	default:
		answer(w, http.StatusOK, order)
	}
}

// authenticated stands for whatever tells the caller's tenant.
func authenticated(next func(w http.ResponseWriter, r *http.Request, tenant string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tenant := r.Header.Get("X-Tenant")
		if tenant == "" {
			answer(w, http.StatusUnauthorized, problem("unauthenticated", "X-Tenant is missing"))
			return
		}
		next(w, r, tenant)
	}
}

// failure is the body of every answer that is no order.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func problem(code, message string) failure { return failure{code, message} }

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that went asks again
}
