package createorder

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/processed/httpkey"
)

// Service is the order service:
//
//	POST /orders       with the client's key in Idempotency-Key
//	GET  /orders/{id}
//
// X-Tenant takes the place of an authenticated principal.
type Service struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	mux  http.ServeMux
}

// NewService returns the service. The pool's database must have samekey's tables and the shop's ([Migrate]).
func NewService(pool *pgxpool.Pool, log *slog.Logger) (*Service, error) {
	s := &Service{pool: pool, log: log}
	keyed, err := httpkey.New(pool, httpkey.Options{
		Scope:   func(r *http.Request) []string { return []string{tenantOf(r), "orders.create"} },
		Retain:  7 * 24 * time.Hour,
		MaxBody: 64 << 10,
		Logger:  log,
	})
	if err != nil {
		return nil, err
	}
	s.mux.Handle("POST /orders", authenticated(keyed.Handler(http.HandlerFunc(create))))
	s.mux.Handle("GET /orders/{id}", authenticated(http.HandlerFunc(s.get)))
	return s, nil
}

// ServeHTTP serves the paths that [Service] lists.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// create writes the order and the intent to charge the card in the request's transaction. The middleware adds the
// answer under the client's key and commits all three together. The same key again gets the same answer.
func create(w http.ResponseWriter, r *http.Request) {
	var req newOrder
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		answer(w, http.StatusBadRequest, problem("invalid_order", "the body is not an order in JSON"))
		return
	}
	if err := req.validate(); err != nil {
		answer(w, http.StatusBadRequest, problem("invalid_order", err.Error()))
		return
	}
	ctx, tx := r.Context(), httpkey.Tx(r.Context())
	order, err := insertOrder(ctx, tx, tenantOf(r), req)
	if errors.Is(err, errUnknownProduct) {
		answer(w, http.StatusNotFound, problem("unknown_product", err.Error()))
		return
	}
	if err == nil {
		_, err = ChargeCard.Insert(ctx, tx, Charge{OrderID: order.ID, Amount: order.Amount, Card: req.Card})
	}
	if err != nil {
		httpkey.Abort(ctx, err)
		return
	}
	answer(w, http.StatusCreated, order)
}

// get answers with the order's current state.
func (s *Service) get(w http.ResponseWriter, r *http.Request) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		answer(w, http.StatusNotFound, problem("not_found", "the order does not exist"))
		return
	}
	order, err := findOrder(r.Context(), s.pool, tenantOf(r), id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		answer(w, http.StatusNotFound, problem("not_found", "the order does not exist"))
	case err != nil:
		s.log.ErrorContext(r.Context(), "find order", "error", err)
		answer(w, http.StatusServiceUnavailable, problem("unavailable", "try again"))
	default:
		answer(w, http.StatusOK, order)
	}
}

type tenantKey struct{}

// authenticated takes the place of your authentication, which finds the caller's tenant.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant := r.Header.Get("X-Tenant")
		if tenant == "" {
			answer(w, http.StatusUnauthorized, problem("unauthenticated", "X-Tenant is missing"))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	})
}

func tenantOf(r *http.Request) string {
	tenant, _ := r.Context().Value(tenantKey{}).(string)
	return tenant
}

// failure is the body of a refusal by the service. The middleware's own refusals are problems (RFC 9457).
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func problem(code, message string) failure { return failure{code, message} }

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that disconnected sends the request again
}
