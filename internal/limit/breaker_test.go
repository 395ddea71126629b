package limit

import (
	"testing"
	"time"
)

// clocked is a breaker that opens after 4 failures, waits 1 s to 8 s, and has no jitter. The test sets its clock.
type clocked struct {
	*testing.T
	*Breaker
	now time.Time
}

// longest is a draw without jitter.
func longest(d time.Duration) time.Duration { return d }

func newClocked(t *testing.T) *clocked {
	return &clocked{T: t, Breaker: NewBreaker(BreakerConfig{After: 4, Delay: time.Second, MaxDelay: 8 * time.Second, Draw: longest}), now: time.Unix(1_800_000_000, 0)}
}

func (c *clocked) wantAdmitted(want, may int) (epoch int) {
	c.Helper()
	got, epoch := c.Admit(c.now, want)
	if got != may {
		c.Fatalf("it admits %d of %d, want %d", got, want, may)
	}
	return epoch
}

// records claims one intent for each and records it.
func (c *clocked) records(ends ...Health) (last Change) {
	c.Helper()
	for _, h := range ends {
		last = c.Record(c.wantAdmitted(1, 1), h, c.now)
	}
	return last
}

func (c *clocked) open() {
	c.Helper()
	if made := c.records(Bad, Bad, Bad, Bad); !made.Opened {
		c.Fatal("it did not open")
	}
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	c := newClocked(t)
	c.records(Bad, Bad, Bad, Good, Bad, NoSign, Bad, Bad)
	c.wantAdmitted(32, 32)
	if made := c.records(Bad); !made.Opened || made.Failures != 4 || made.Delay != time.Second {
		t.Fatalf("the fourth failure changed %+v", made)
	}
	c.wantAdmitted(32, 0)
}

func TestBreakerOpensAfterThreeDenials(t *testing.T) {
	c := newClocked(t)
	c.records(Denied, Denied, Good, Denied, Denied)
	c.wantAdmitted(1, 1)
	if made := c.records(Denied); !made.Opened {
		t.Fatal("it did not open")
	}
}

func TestOpenBreakerAdmitsOneProbeAfterItsDelay(t *testing.T) {
	c := newClocked(t)
	c.open()
	c.now = c.now.Add(time.Second - 1)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	epoch := c.wantAdmitted(32, 1)
	c.wantAdmitted(32, 0)
	c.Record(epoch, NoSign, c.now) // it claimed nothing
	epoch = c.wantAdmitted(32, 1)
	c.wantAdmitted(32, 0)
	if made := c.Record(epoch, Good, c.now); !made.Closed {
		t.Fatal("an answered probe did not close it")
	}
	c.wantAdmitted(32, 32)
	c.records(Bad, Bad, Bad) // the count starts again
	c.wantAdmitted(32, 32)
}

func TestDelayDoublesWithEachFailedProbe(t *testing.T) {
	c := newClocked(t)
	c.open()
	for _, want := range []time.Duration{2, 4, 8, 8} {
		c.now = c.now.Add(c.Wait(c.now))
		if made := c.records(Bad); made.Delay != want*time.Second {
			t.Fatalf("the delay is %v, want %ds", made.Delay, want)
		}
	}
	c.now = c.now.Add(8 * time.Second)
	c.records(Good)
	if made := c.records(Bad, Bad, Bad, Bad); made.Delay != time.Second {
		t.Fatalf("after it closed, the delay is %v", made.Delay)
	}
	for range 1000 {
		if d := FullJitter(time.Second); d <= 0 || d > time.Second {
			t.Fatalf("drawn: %v", d)
		}
	}
}

func TestCallsFromBeforeTheOpeningDoNotCount(t *testing.T) {
	c := newClocked(t)
	before := c.wantAdmitted(32, 32)
	c.open()
	for range 20 {
		if made := c.Record(before, Bad, c.now); made.Opened {
			t.Fatal("an earlier failure opened it again")
		}
	}
	c.Record(before, Good, c.now)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(time.Second)
	probe := c.wantAdmitted(32, 1)
	c.Record(before, NoSign, c.now)
	c.wantAdmitted(32, 0)
	c.Record(probe, Good, c.now)
	c.wantAdmitted(32, 32)
}

func TestProbeThatNeverReturnsIsGivenAgain(t *testing.T) {
	c := newClocked(t)
	c.open()
	c.now = c.now.Add(time.Second)
	slow := c.wantAdmitted(1, 1)
	c.now = c.now.Add(probePatience - 1)
	c.wantAdmitted(1, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(1, 1)
	if made := c.Record(slow, Good, c.now); !made.Closed {
		t.Fatal("the answer of the first did not close it")
	}
}

func TestThrottleHoldsForTheLongestTimeTold(t *testing.T) {
	c := newClocked(t)
	c.records(Bad, Bad, Bad)
	epoch := c.wantAdmitted(3, 3)
	for _, told := range []struct{ asked, held time.Duration }{{5 * time.Second, 5 * time.Second}, {3 * time.Second, 0}, {6 * time.Second, 0}} {
		if held := c.Throttle(epoch, told.asked, c.now); held != told.held {
			t.Fatalf("throttled for %v, it holds for %v", told.asked, held)
		}
	}
	c.now = c.now.Add(6*time.Second - 1) // the longest counts
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(32, 32)   // no single probe: the vendor answers
	c.records(Bad, Bad, Bad) // earlier failures were forgotten
	c.Throttle(c.wantAdmitted(1, 1), time.Hour, c.now)
	c.now = c.now.Add(8*time.Second - 1) // no longer than the longest delay
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(32, 32)
}

func TestThrottledProbeClosesTheBreaker(t *testing.T) {
	c := newClocked(t)
	older := c.wantAdmitted(1, 1)
	c.open()
	c.Throttle(older, 2*time.Second, c.now)
	c.now = c.now.Add(time.Second)
	c.wantAdmitted(32, 0) // its delay is over, but it is held
	c.now = c.now.Add(time.Second)
	probe := c.wantAdmitted(32, 1) // the breaker is still open
	c.Throttle(probe, time.Second, c.now)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(time.Second)
	c.wantAdmitted(32, 32)
}

func TestHoldWithoutATimeDoublesAndEndsWithOneCall(t *testing.T) {
	c := newClocked(t)
	under := c.wantAdmitted(32, 32)
	for i, want := range []time.Duration{125, 250, 500, 1000, 2000, 4000, 8000, 8000} {
		epoch := under
		if i > 0 {
			epoch = c.wantAdmitted(32, 1)
		}
		made := c.Record(epoch, Throttled, c.now)
		if made.Holds != i+1 || made.Delay != want*time.Millisecond {
			t.Fatalf("hold %d: %+v, want %dms", i+1, made, want)
		}
		if again := c.Record(epoch, Throttled, c.now); again.Holds != 0 {
			t.Fatal("another call of the same batch began another hold")
		}
		c.now = c.now.Add(made.Delay - 1)
		c.wantAdmitted(32, 0)
		c.now = c.now.Add(1)
	}
	epoch := c.wantAdmitted(32, 1)
	c.wantAdmitted(32, 0) // it is in flight
	c.Record(epoch, Good, c.now)
	c.wantAdmitted(32, 2)
	c.Record(epoch, Good, c.now)
	c.wantAdmitted(32, 3) // 4, of which one is in flight
	if made := c.Record(epoch, Throttled, c.now); made.Holds != 1 || made.Delay != 125*time.Millisecond {
		t.Fatalf("after answers the hold is %+v, want the first delay", made)
	}
}

func TestClaimsWithoutAnswersLeaveRoomAfterAHold(t *testing.T) {
	c := newClocked(t)
	c.Record(c.wantAdmitted(32, 32), Throttled, c.now)
	c.now = c.now.Add(time.Second)
	epoch := c.wantAdmitted(32, 1)
	c.Unused(epoch, 1) // nothing was claimed
	c.wantAdmitted(32, 1)
	if made := c.Record(epoch, NoSign, c.now); !made.Room {
		t.Fatal("the change does not report room")
	}
	c.wantAdmitted(32, 1)
	c.now = c.now.Add(probePatience - 1)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(32, 1)
	c.Record(epoch, Bad, c.now) // a failure: no hold, and no larger window
	c.wantAdmitted(32, 1)
}

func TestLatersInARowHold(t *testing.T) {
	c := newClocked(t)
	if made := c.records(Later, Later, Later, Good, Later, Later, Later); made.Holds != 0 {
		t.Fatalf("%+v", made)
	}
	if made := c.records(Later); made.Holds != 1 {
		t.Fatalf("the fourth in a row: %+v", made)
	}
	c.now = c.now.Add(time.Second)
	if made := c.records(Later); made.Holds != 2 { // one is enough now
		t.Fatalf("after the hold: %+v", made)
	}
}

func TestLaterToAProbeClosesTheBreaker(t *testing.T) {
	c := newClocked(t)
	c.open()
	c.now = c.now.Add(time.Second)
	if made := c.Record(c.wantAdmitted(32, 1), Later, c.now); !made.Closed || made.Holds != 0 {
		t.Fatalf("%+v", made)
	}
	c.wantAdmitted(32, 32)
}

func TestBreakerThatIsTurnedOffNeverOpens(t *testing.T) {
	c := newClocked(t)
	c.after = -1
	for range 100 {
		c.records(Bad, Denied, Later, Throttled)
		c.Throttle(c.wantAdmitted(1, 1), time.Second, c.now)
	}
	c.wantAdmitted(32, 32)
}

// Permits of an earlier epoch do not affect the probe in flight.
func TestOldPermitsFreeNoProbe(t *testing.T) {
	now := time.Now()
	b := NewBreaker(BreakerConfig{After: 1, Delay: time.Second, MaxDelay: time.Second, Draw: longest})
	_, before := b.Admit(now, 10)
	b.Record(before, Bad, now)
	now = now.Add(time.Second)
	if may, _ := b.Admit(now, 10); may != 1 {
		t.Fatalf("admitted %d as a probe", may)
	}
	b.Unused(before, 9)
	if may, _ := b.Admit(now, 10); may != 0 {
		t.Errorf("admitted %d during the probe", may)
	}
}
