package samekeytest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

type refundV1 struct{ Total int }

type refund struct{ Cents int }

func TestDecodeStoredNamesWhatDoesNotDecode(t *testing.T) {
	db := samekeytest.NewDB(t)
	for i, payload := range []string{`{"Total":1}`, `{"Total":"4242"}`} {
		if _, err := db.Exec(t.Context(), `select samekey.enqueue('tenant/refunds', $1, 'refund', $2::text)`, fmt.Sprint("old-", i), payload); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(t.Context(), `select samekey.enqueue('tenant/refunds', 'new', 'refund', '{"Cents":7}', content_type => 'application/json; payload-version=2')`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `
		select samekey.enqueue('tenant/refunds', 'erased', 'refund', '{"Total":9}'::text);
		update samekey.outbox set erased_at = now(), payload = '\x00' where idem_key = 'erased'`); err != nil {
		t.Fatal(err)
	}
	action := outbox.NewAction[refund]("refund").Version(2, outbox.From(1, func(old refundV1) (refund, error) { return refund{old.Total * 100}, nil }))
	failed := &recorder{TB: t}
	got := samekeytest.DecodeStored(failed, db, action)
	if fmt.Sprint(got) != "[{7} {100}]" {
		t.Errorf("decoded %v", got)
	}
	if text := strings.Join(failed.errors, "\n"); len(failed.errors) != 1 || !strings.Contains(text, `member "Total"`) || strings.Contains(text, "4242") {
		t.Errorf("failed with %q", failed.errors)
	}
}

// recorder is a test that keeps its errors.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
