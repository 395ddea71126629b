package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestPausesListWhoAndWhy(t *testing.T) {
	on := samekeytest.NewDB(t)
	ctx, bank := t.Context(), outbox.Target{Destination: "bank"}
	ann, bob := outbox.By{Actor: "ann", Reason: "their incident"}, outbox.By{Actor: "bob", Reason: "it is over"}
	until := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) error { return outbox.Pause(ctx, tx, bank, until, ann) })
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Pause(ctx, on.Pool, outbox.Target{Destination: "bank", Action: "refund"}, time.Time{}, ann); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Resume(ctx, on.Pool, bank, bob); err != nil {
		t.Fatal(err)
	}
	got, err := outbox.Pauses(ctx, on, "bank", 0)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0].Action != "refund" || !got[0].EndedAt.IsZero() || !got[0].Until.IsZero() {
		t.Errorf("in force: %+v", got[0])
	}
	if p := got[1]; p.Target != bank || p.By != ann || !p.Until.Equal(until) || p.Ended != bob || p.EndedAt.Before(p.At) || p.InRiver {
		t.Errorf("ended: %+v", p)
	}
	if other, err := outbox.Pauses(ctx, on, "other", 0); err != nil || len(other) != 0 {
		t.Errorf("of another destination: %+v, %v", other, err)
	}
	if err := outbox.Pause(ctx, on.Pool, bank, time.Time{}, bob); err != nil {
		t.Errorf("paused again: %v", err)
	}
}

// What ended by itself is not in the way of a new pause.
func TestExpiredPauseCanBePausedAgain(t *testing.T) {
	on := samekeytest.NewDB(t)
	ctx, bank, ann := t.Context(), outbox.Target{Destination: "bank"}, outbox.By{Actor: "ann", Reason: "r"}
	if err := outbox.Pause(ctx, on.Pool, bank, time.Now().Add(time.Hour), ann); err != nil {
		t.Fatal(err)
	}
	samekeytest.Elapse(t, on, 2*time.Hour)
	if err := outbox.Pause(ctx, on.Pool, bank, time.Time{}, ann); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Pause(ctx, on.Pool, bank, time.Time{}, ann); !errors.Is(err, outbox.ErrPaused) {
		t.Errorf("a second one: %v", err)
	}
}

func TestPauseRefusesInvalidNames(t *testing.T) {
	on := samekeytest.NewDB(t)
	ann := outbox.By{Actor: "ann", Reason: "r"}
	for _, c := range []struct {
		what  outbox.Target
		until time.Time
		by    outbox.By
		says  string
	}{
		{outbox.Target{}, time.Time{}, ann, "Destination"},
		{outbox.Target{Destination: "Bank"}, time.Time{}, ann, "Destination"},
		{outbox.Target{Destination: "bank\x00"}, time.Time{}, ann, "Destination"},
		{outbox.Target{Destination: "bank", Action: "a b"}, time.Time{}, ann, "Action"},
		{outbox.Target{Destination: "bank"}, time.Now().Add(-time.Hour), ann, "until"},
		{outbox.Target{Destination: "bank"}, time.Time{}, outbox.By{Actor: "ann"}, "Reason"},
		{outbox.Target{Destination: "bank"}, time.Time{}, outbox.By{Actor: "ann", Reason: "a\x00"}, "Reason"},
		{outbox.Target{Destination: "bank"}, time.Time{}, outbox.By{Actor: strings.Repeat("a", 256), Reason: "r"}, "Actor"},
	} {
		if err := outbox.Pause(t.Context(), on.Pool, c.what, c.until, c.by); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v by %+v: %v", c.what, c.by, err)
		}
	}
	if got, err := outbox.Pauses(t.Context(), on, "", 0); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := outbox.Pauses(t.Context(), on, "", 1001); err == nil {
		t.Error("a list without a bound")
	}
	if err := outbox.Resume(t.Context(), on.Pool, outbox.Target{Destination: "bank"}, ann); !errors.Is(err, outbox.ErrNotPaused) {
		t.Errorf("resume: %v", err)
	}
}
