package httpkey_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// operation writes an effect, calls a vendor and answers with its answer.
func operation(send func(context.Context) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		op := httpkey.Operation(ctx)
		_, err := processed.Step(ctx, op, "write", func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, "insert into effects (note) values ('step')")
			return 1, err
		})
		if err != nil {
			httpkey.Abort(ctx, err)
			return
		}
		charge, err := processed.Call(ctx, op, "charge", processed.VendorCall[string]{
			Send: func(ctx context.Context, _ uuid.UUID) (string, error) { return send(ctx) },
		})
		if failure, ok := errors.AsType[*processed.Failure](err); ok {
			w.WriteHeader(failure.Code)
			return
		}
		if err != nil {
			httpkey.Abort(ctx, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(charge))
	}
}

func TestStepsOverHTTP(t *testing.T) {
	var sends atomic.Int32
	inside, resume := make(chan struct{}), make(chan error)
	b := setup(t, httpkey.Options{Steps: true}, operation(func(context.Context) (string, error) {
		sends.Add(1)
		close(inside)
		return "ch_1", <-resume
	}))
	first := make(chan reply, 1)
	go func() { first <- b.post("k", `1`) }()
	dbtest.Receive(t, "the vendor is called", inside)
	got := b.post("k", `1`)
	if after, err := strconv.Atoi(got.header.Get("Retry-After")); got.status != http.StatusConflict || err != nil || after < 30 || after > 40 {
		t.Errorf("while it runs: %+v", got)
	}
	if got := b.post("k", `2`); got.status != http.StatusUnprocessableEntity {
		t.Errorf("another request: %+v", got)
	}
	resume <- nil
	if got := <-first; got.status != http.StatusCreated || got.body != "ch_1" {
		t.Errorf("first: %+v", got)
	}
	if got := b.post("k", `1`); got.status != http.StatusCreated || got.body != "ch_1" || got.header.Get("Idempotent-Replayed") != "true" || sends.Load() != 1 {
		t.Errorf("replay: %+v, %d sends", got, sends.Load())
	}
	if n := dbtest.Value[int](t, b.db, "select count(*) from effects"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestStepsOverHTTPResume(t *testing.T) {
	sends := 0
	var end error
	b := setup(t, httpkey.Options{Steps: true}, operation(func(context.Context) (string, error) { sends++; return "ch_1", end }))
	end = processed.ErrUnsent
	if got := b.post("k", `1`); got.status != http.StatusServiceUnavailable {
		t.Errorf("unsent: %+v", got)
	}
	end = errors.New("timeout")
	if got := b.post("k", `1`); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "1" {
		t.Errorf("in doubt: %+v", got)
	}
	if got := b.post("k", `1`); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "60" || sends != 2 {
		t.Errorf("parked: %+v, %d sends", got, sends)
	}
	by := processed.By{Actor: "ann", Reason: "asked the vendor"}
	what := processed.StepResolution{Failure: &processed.Failure{Code: 402, Body: []byte(`"declined"`)}}
	if err := processed.ResolveStep(t.Context(), b.db.Pool, dbtest.Key(t, "k", "acme", "things.create"), "charge", what, by); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := b.post("k", `1`); got.status != http.StatusPaymentRequired {
			t.Errorf("refused: %+v", got)
		}
	}
	if n := dbtest.Value[int](t, b.db, "select count(*) from effects"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestTxAndOperationPanicInTheOtherKind(t *testing.T) {
	for _, steps := range []bool{false, true} {
		b := setup(t, httpkey.Options{Steps: steps}, func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				text, _ := recover().(string)
				if !strings.Contains(text, "Options.Steps") {
					t.Errorf("steps %t: %q", steps, text)
				}
				w.WriteHeader(http.StatusOK)
			}()
			if steps {
				httpkey.Tx(r.Context())
			} else {
				httpkey.Operation(r.Context())
			}
		})
		if got := b.post("k", `1`); got.status != http.StatusOK {
			t.Errorf("%+v", got)
		}
	}
}
