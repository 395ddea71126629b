package dispatcher

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeatedLineIsLoggedOnceWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		h := newRepeats(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		log := slog.New(h).With("worker", 1)
		lines := func() string { defer out.Reset(); return out.String() }

		for range 50 { // 5 s
			log.Warn("claim failed", "error", "down", "intents", time.Now().Nanosecond())
			time.Sleep(100 * time.Millisecond)
		}
		if got := lines(); strings.Count(got, "\n") != 1 || strings.Contains(got, "repeated") {
			t.Errorf("after 5 s:\n%s", got)
		}
		log.Warn("claim failed", "error", "another")
		log.Info("running")
		log.Info("running")
		log.Error("attempt ended", "intent", 1)
		log.Error("attempt ended", "intent", 1)
		if got := lines(); strings.Count(got, "\n") != 5 {
			t.Errorf("other lines:\n%s", got)
		}
		time.Sleep(6 * time.Second)
		log.Warn("claim failed", "error", "down")
		if got := lines(); !strings.Contains(got, "error=down repeated=50") || strings.Count(got, "\n") != 1 {
			t.Errorf("after 11 s:\n%s", got)
		}
		for range 25 { // the interval is 20 s now
			log.Warn("claim failed", "error", "down")
			time.Sleep(time.Second)
		}
		if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "repeated=") {
			t.Errorf("after 36 s:\n%s", got)
		}
		time.Sleep(time.Hour)
		log.Warn("claim failed", "error", "down")
		if got := lines(); strings.Count(got, "\n") != 2 || !strings.HasSuffix(got, "error=down\n") {
			t.Errorf("an hour later, the count and a new line:\n%s", got)
		}
		log.Warn("claim failed", "error", "down")
		h.flush(t.Context())
		if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "repeated=1") {
			t.Errorf("flushed:\n%s", got)
		}
	})
}
