package dispatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/db"
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
	if _, d := p.waits(1000); d <= 0 {
		t.Fatalf("the ceiling after 1000 attempts is %v", d)
	}
}

func TestScheduleIsFollowedWithATenthOfJitter(t *testing.T) {
	p := Policy{Class: Read, Schedule: []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute}}.withDefaults()
	if p.Attempts != 4 {
		t.Errorf("%d attempts, want 4", p.Attempts)
	}
	for n, wait := range map[int]time.Duration{0: 5 * time.Second, 1: 5 * time.Second, 2: 5 * time.Minute, 3: 30 * time.Minute, 4: 30 * time.Minute, 1000: 30 * time.Minute} {
		low, high := 2*wait, time.Duration(0)
		for range 2000 {
			d := p.wait(n)
			low, high = min(low, d), max(high, d)
		}
		if low < wait || low > wait+wait/100 || high > wait+wait/10 || high < wait+wait/10-wait/100 {
			t.Errorf("after %d attempts the waits lie between %v and %v", n, low, high)
		}
	}
	// A function of the application that failed does not wait for hours.
	if d := p.delay(1); d > time.Second {
		t.Errorf("an Apply waits %v", d)
	}
	if _, spread := (Policy{Schedule: []time.Duration{time.Nanosecond}}).waits(1); spread != 0 {
		t.Error(spread)
	}
}

func TestIntentIsDeadAfterTheLastWaitOfItsSchedule(t *testing.T) {
	a := &action{policy: Policy{Class: Read, Schedule: []time.Duration{time.Minute, time.Hour}}.withDefaults()}
	for used, want := range map[int32]string{0: statusPending, 1: statusPending, 2: statusDead} {
		s := a.sent(&db.OutboxQueueClaimRow{Attempt: used + 1, AttemptsUsed: used}, Unknown(Response{}), nil)
		if s.status != want {
			t.Errorf("after %d attempts it is %s, want %s", used+1, s.status, want)
		}
		if wait := []time.Duration{time.Minute, time.Hour, 0}[used]; s.delay < wait || s.delay > wait+wait/10 {
			t.Errorf("after %d attempts it waits %v, want about %v", used+1, s.delay, wait)
		}
	}
	if s := a.sent(&db.OutboxQueueClaimRow{Attempt: 1}, Retry(Response{}).After(3*time.Hour), nil); s.delay != 3*time.Hour {
		t.Errorf("with Retry-After: 3h it waits %v", s.delay)
	}
}

// The horizon is 3 timeouts of 10 s, waits of up to 66 s and 11 s, and the margin of 10 s.
func TestScheduleMustFitTheKeyWindow(t *testing.T) {
	p := Policy{Class: IdempotentWrite, Timeout: 10 * time.Second, Schedule: []time.Duration{time.Minute, 10 * time.Second}}
	for window, want := range map[time.Duration]string{117 * time.Second: "", 117*time.Second - 1: "shorten Schedule"} {
		p.KeyWindow = window
		var errs ConfigErrors
		p.withDefaults().check(&errs, "x", p)
		if err := errs.Err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", window, err)
		}
	}
}

func TestScheduleReplacesThreeFields(t *testing.T) {
	for _, c := range []struct {
		p    Policy
		want string
	}{
		{Policy{Attempts: 3}, "Attempts: not allowed with Schedule"},
		{Policy{Backoff: time.Second}, "Backoff: not allowed with Schedule"},
		{Policy{MaxBackoff: time.Hour}, "MaxBackoff: not allowed with Schedule"},
		{Policy{Schedule: []time.Duration{time.Second, 5}}, "Schedule[2]: 5ns is outside"},
		{Policy{Schedule: []time.Duration{31 * 24 * time.Hour}}, "Schedule[1]: 744h is outside"},
		{Policy{Schedule: slices.Repeat([]time.Duration{time.Second}, 1000)}, "Schedule: has 1000 waits"},
	} {
		if c.p.Class = Read; c.p.Schedule == nil {
			c.p.Schedule = []time.Duration{time.Second}
		}
		var errs ConfigErrors
		c.p.withDefaults().check(&errs, "x", c.p)
		if err := errs.Err(); len(errs) != 1 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
