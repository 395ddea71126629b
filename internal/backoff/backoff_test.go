package backoff_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/backoff"
)

func TestCeilingDoublesUpToTheLongest(t *testing.T) {
	for n, want := range []time.Duration{2, 2, 4, 8, 16, 20, 20} {
		if got := backoff.Ceiling(2, 20, n); got != want {
			t.Errorf("after %d failures: %d, want %d", n, got, want)
		}
	}
	if got := backoff.Ceiling(1<<62-1, 1<<63-1, 1000); got <= 0 {
		t.Errorf("a long wait overflows to %d", got)
	}
	if got := backoff.Ceiling(9, 5, 1); got != 5 {
		t.Errorf("the first wait is %d, longer than the longest", got)
	}
}

func TestSleepEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := backoff.Sleep(t.Context(), 0); err != nil {
		t.Errorf("got %v", err)
	}
}
