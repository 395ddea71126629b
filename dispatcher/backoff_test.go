package dispatcher

import (
	"testing"
	"time"
)

func TestBackoffHasFullJitter(t *testing.T) {
	p := Policy{Class: Read, Backoff: time.Second, MaxBackoff: 6 * time.Second}.withDefaults()
	for n, ceiling := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 6 * time.Second, 1000: 6 * time.Second,
	} {
		low, high := ceiling, time.Duration(0)
		for range 2000 {
			d := p.delay(n)
			if d < 0 || d > ceiling {
				t.Fatalf("the wait after %d attempts is %v, outside 0 to %v", n, d, ceiling)
			}
			low, high = min(low, d), max(high, d)
		}
		// Full jitter: the draws reach both ends. Each misses with a chance of 0.95^2000.
		if low > ceiling/20 || high < ceiling-ceiling/20 {
			t.Errorf("after %d attempts the waits lie between %v and %v, want 0 to %v", n, low, high, ceiling)
		}
	}
}

func TestBackoffOfAnHourDoesNotOverflow(t *testing.T) {
	p := Policy{Class: Read, Backoff: time.Hour, MaxBackoff: 1 << 62}.withDefaults()
	if d := p.ceiling(1000); d <= 0 {
		t.Fatalf("the ceiling after 1000 attempts is %v", d)
	}
}
