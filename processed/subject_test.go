package processed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/processed"
)

// The record of a failure has the subject too, and a request that is repeated with another subject is the same request.
func TestSubjectIsStoredAndNotCompared(t *testing.T) {
	b := setup(t)
	req := request(t, "k", `1`)
	req.Subject = "booking/42"
	for _, subject := range []string{"booking/42", "booking/43", ""} {
		req.Subject = subject
		_, err := processed.Run(t.Context(), b.db.Pool, req, func(context.Context, pgx.Tx) (int, error) {
			return 0, processed.Fail(409, "taken")
		})
		if failure := (*processed.Failure)(nil); !errors.As(err, &failure) {
			t.Fatalf("with the subject %q: %v", subject, err)
		}
	}
	if got := dbtest.Value[string](t, b.db, `select subject from samekey.processed_events`); got != "booking/42" {
		t.Errorf("the record has the subject %q", got)
	}
}
