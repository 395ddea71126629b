package dispatcher

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// clocked is a breaker that opens after 4 failures, waits 1 s to 8 s, and draws no jitter; the test is its clock.
type clocked struct {
	*testing.T
	*breaker
	now time.Time
}

func newClocked(t *testing.T) *clocked {
	l := Limits{BreakAfter: 4, BreakDelay: time.Second, MaxBreakDelay: 8 * time.Second}
	return &clocked{T: t, breaker: newBreaker(l, func(d time.Duration) time.Duration { return d }), now: time.Unix(1_800_000_000, 0)}
}

func (c *clocked) wantAdmitted(want, may int) (epoch int) {
	c.Helper()
	got, epoch := c.admit(c.now, want)
	if got != may {
		c.Fatalf("of %d it admits %d, want %d", want, got, may)
	}
	return epoch
}

// records claims one for each and records them.
func (c *clocked) records(ends ...health) (last change) {
	c.Helper()
	for _, h := range ends {
		last = c.record(c.wantAdmitted(1, 1), h, c.now)
	}
	return last
}

func (c *clocked) open() {
	c.Helper()
	if made := c.records(healthBad, healthBad, healthBad, healthBad); !made.opened {
		c.Fatal("it did not open")
	}
}

func TestABreakerOpensAfterFailuresInARowAndNotAfterFewer(t *testing.T) {
	c := newClocked(t)
	c.records(healthBad, healthBad, healthBad, healthGood, healthBad, healthNone, healthBad, healthBad)
	c.wantAdmitted(32, 32)
	if made := c.records(healthBad); !made.opened || made.failures != 4 || made.delay != time.Second {
		t.Fatalf("the fourth failure came to %+v", made)
	}
	c.wantAdmitted(32, 0)
}

func TestABreakerOpensAfterThreeRefusalsOfTheCredentials(t *testing.T) {
	c := newClocked(t)
	c.records(healthDenied, healthDenied, healthGood, healthDenied, healthDenied)
	c.wantAdmitted(1, 1)
	if made := c.records(healthDenied); !made.opened {
		t.Fatal("it did not open")
	}
}

func TestAnOpenBreakerAdmitsOneProbeAtATimeOnceItsDelayIsOver(t *testing.T) {
	c := newClocked(t)
	c.open()
	c.now = c.now.Add(time.Second - 1)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	epoch := c.wantAdmitted(32, 1)
	c.wantAdmitted(32, 0)
	c.record(epoch, healthNone, c.now) // it claimed nothing
	epoch = c.wantAdmitted(32, 1)
	c.wantAdmitted(32, 0)
	if made := c.record(epoch, healthGood, c.now); !made.closed {
		t.Fatal("an answered probe did not close it")
	}
	c.wantAdmitted(32, 32)
	c.records(healthBad, healthBad, healthBad) // it counts from the beginning
	c.wantAdmitted(32, 32)
}

func TestTheDelayDoublesWithEachFailedProbeUpToTheLongest(t *testing.T) {
	c := newClocked(t)
	c.open()
	for _, want := range []time.Duration{2, 4, 8, 8} {
		c.now = c.now.Add(c.wait(c.now))
		if made := c.records(healthBad); made.delay != want*time.Second {
			t.Fatalf("the delay is %v, want %ds", made.delay, want)
		}
	}
	c.now = c.now.Add(8 * time.Second)
	c.records(healthGood)
	if made := c.records(healthBad, healthBad, healthBad, healthBad); made.delay != time.Second {
		t.Fatalf("after it was closed, the delay is %v", made.delay)
	}
	for range 1000 {
		if d := fullJitter(time.Second); d <= 0 || d > time.Second {
			t.Fatalf("drawn: %v", d)
		}
	}
}

func TestWhatWasUnderWayWhenItOpenedNeitherClosesABreakerNorDoublesItsDelay(t *testing.T) {
	c := newClocked(t)
	before := c.wantAdmitted(32, 32)
	c.open()
	for range 20 {
		if made := c.record(before, healthBad, c.now); made.opened {
			t.Fatal("a failure of before opened it again")
		}
	}
	c.record(before, healthGood, c.now)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(time.Second)
	probe := c.wantAdmitted(32, 1)
	c.record(before, healthNone, c.now)
	c.wantAdmitted(32, 0)
	c.record(probe, healthGood, c.now)
	c.wantAdmitted(32, 32)
}

func TestAProbeThatNeverReturnsIsGivenAgain(t *testing.T) {
	c := newClocked(t)
	c.open()
	c.now = c.now.Add(time.Second)
	slow := c.wantAdmitted(1, 1)
	c.now = c.now.Add(probePatience - 1)
	c.wantAdmitted(1, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(1, 1)
	if made := c.record(slow, healthGood, c.now); !made.closed {
		t.Fatal("the answer of the first did not close it")
	}
}

func TestAVendorThatWantsFewerCallsIsLeftAloneForSoLong(t *testing.T) {
	c := newClocked(t)
	c.records(healthBad, healthBad, healthBad)
	epoch := c.wantAdmitted(3, 3)
	for _, told := range []struct{ asked, held time.Duration }{{5 * time.Second, 5 * time.Second}, {3 * time.Second, 0}, {6 * time.Second, 0}} {
		if held := c.throttle(epoch, told.asked, c.now); held != told.held {
			t.Fatalf("told to wait %v it says %v", told.asked, held)
		}
	}
	c.now = c.now.Add(6*time.Second - 1) // the longest counts
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(32, 32)                     // not one alone: it answers
	c.records(healthBad, healthBad, healthBad) // those before were forgotten
	c.throttle(c.wantAdmitted(1, 1), time.Hour, c.now)
	c.now = c.now.Add(8*time.Second - 1) // no longer than the longest delay
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(32, 32)
}

func TestAProbeThatIsThrottledClosesTheBreakerAndAnOlderCallDoesNot(t *testing.T) {
	c := newClocked(t)
	older := c.wantAdmitted(1, 1)
	c.open()
	c.throttle(older, 2*time.Second, c.now)
	c.now = c.now.Add(time.Second)
	c.wantAdmitted(32, 0) // its delay is over, but it is held
	c.now = c.now.Add(time.Second)
	probe := c.wantAdmitted(32, 1) // and still open
	c.throttle(probe, time.Second, c.now)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(time.Second)
	c.wantAdmitted(32, 32)
}

func TestAHoldWithoutATimeDoublesAndEndsWithOneCall(t *testing.T) {
	c := newClocked(t)
	under := c.wantAdmitted(32, 32)
	for i, want := range []time.Duration{125, 250, 500, 1000, 2000, 4000, 8000, 8000} {
		epoch := under
		if i > 0 {
			epoch = c.wantAdmitted(32, 1)
		}
		made := c.record(epoch, healthThrottled, c.now)
		if made.holds != i+1 || made.delay != want*time.Millisecond {
			t.Fatalf("hold %d: %+v, want %dms", i+1, made, want)
		}
		if again := c.record(epoch, healthThrottled, c.now); again.holds != 0 {
			t.Fatal("another call of the same batch made another hold")
		}
		c.now = c.now.Add(made.delay - 1)
		c.wantAdmitted(32, 0)
		c.now = c.now.Add(1)
	}
	epoch := c.wantAdmitted(32, 1)
	c.wantAdmitted(32, 0) // it is under way
	c.record(epoch, healthGood, c.now)
	c.wantAdmitted(32, 2)
	c.record(epoch, healthGood, c.now)
	c.wantAdmitted(32, 3) // 4, of which one is under way
	if made := c.record(epoch, healthThrottled, c.now); made.holds != 1 || made.delay != 125*time.Millisecond {
		t.Fatalf("after answers the hold is %+v, want the first delay", made)
	}
}

func TestAnswersWithoutACallOrThatNeverComeLeaveRoomAfterAHold(t *testing.T) {
	c := newClocked(t)
	c.record(c.wantAdmitted(32, 32), healthThrottled, c.now)
	c.now = c.now.Add(time.Second)
	epoch := c.wantAdmitted(32, 1)
	c.unused(epoch, 1) // nothing was claimed
	c.wantAdmitted(32, 1)
	if made := c.record(epoch, healthNone, c.now); !made.room {
		t.Fatal("nobody is told that there is room")
	}
	c.wantAdmitted(32, 1)
	c.now = c.now.Add(probePatience - 1)
	c.wantAdmitted(32, 0)
	c.now = c.now.Add(1)
	c.wantAdmitted(32, 1)
	c.record(epoch, healthBad, c.now) // a failure: no hold, and no larger window
	c.wantAdmitted(32, 1)
}

func TestSoManyRetryLatersInARowHoldAndFewerDoNot(t *testing.T) {
	c := newClocked(t)
	if made := c.records(healthLater, healthLater, healthLater, healthGood, healthLater, healthLater, healthLater); made.holds != 0 {
		t.Fatalf("%+v", made)
	}
	if made := c.records(healthLater); made.holds != 1 {
		t.Fatalf("the fourth in a row: %+v", made)
	}
	c.now = c.now.Add(time.Second)
	if made := c.records(healthLater); made.holds != 2 { // one is enough by now
		t.Fatalf("after the hold: %+v", made)
	}
}

func TestAProbeThatIsAskedToComeLaterClosesTheBreaker(t *testing.T) {
	c := newClocked(t)
	c.open()
	c.now = c.now.Add(time.Second)
	if made := c.record(c.wantAdmitted(32, 1), healthLater, c.now); !made.closed || made.holds != 0 {
		t.Fatalf("%+v", made)
	}
	c.wantAdmitted(32, 32)
}

func TestABreakerThatIsTurnedOffNeverOpens(t *testing.T) {
	c := newClocked(t)
	c.after = -1
	for range 100 {
		c.records(healthBad, healthDenied, healthLater, healthThrottled)
		c.throttle(c.wantAdmitted(1, 1), time.Second, c.now)
	}
	c.wantAdmitted(32, 32)
}

func TestHealthOf(t *testing.T) {
	broken := errors.New("connection reset by peer")
	failed := func(err error) Outcome { return conclude(Outcome{}, err, false) }
	for _, test := range []struct {
		name    string
		outcome Outcome
		want    health
	}{
		{"delivered", Delivered(Response{}), healthGood},
		{"refused", Refused(Response{Code: "card_declined"}), healthGood},
		{"dead", Dead(Response{Code: "404"}), healthGood},
		{"stuck", Stuck(Response{Code: "500"}), healthGood},
		{"later", Retry(Response{}).After(time.Second), healthLater},
		{"429 for the account", Retry(Response{}).After(time.Second).ForAccount(), healthThrottled},
		{"429 without a time", Retry(Response{}).ForAccount(), healthThrottled},
		{"202", Accepted(Response{}), healthGood},
		{"503", Unknown(Response{Code: "503"}).Because(broken), healthBad},
		{"an error", failed(broken), healthBad},
		{"timeout", failed(context.DeadlineExceeded), healthBad},
		{"unsent", Unsent(broken), healthBad},
		{"an error that is ErrUnsent", failed(ErrUnsent), healthBad},
		{"a dial", failed(&net.OpError{Op: "dial", Err: broken}), healthBad},
		{"401", Denied(Response{Code: "401"}), healthDenied},
		{"a panic", failed(&panicError{value: "x"}), healthNone},
		{"a stop", failed(context.Canceled), healthNone},
		{"no outcome", failed(nil), healthNone},
		{"absent from a Send", conclude(Absent(Response{}), nil, false), healthNone},
		{"a payload that does not decode", Dead(Response{Code: codePayload}).Because(broken), healthNone},
	} {
		if got := healthOf(test.outcome, false); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
	if got := healthOf(Unknown(Response{Code: "200"}), true); got != healthGood {
		t.Errorf("a lookup that cannot tell: %d", got)
	}
}

// What is given back of an epoch that is over says nothing of the probe that is out.
func TestWhatWasAdmittedBeforeABreakerOpenedFreesNoProbe(t *testing.T) {
	now := time.Now()
	b := newBreaker(Limits{BreakAfter: 1, BreakDelay: time.Second, MaxBreakDelay: time.Second}, func(d time.Duration) time.Duration { return d })
	_, before := b.admit(now, 10)
	b.record(before, healthBad, now)
	now = now.Add(time.Second)
	if may, _ := b.admit(now, 10); may != 1 {
		t.Fatalf("admitted %d as a probe", may)
	}
	b.unused(before, 9)
	if may, _ := b.admit(now, 10); may != 0 {
		t.Errorf("admitted %d beside the probe", may)
	}
}
