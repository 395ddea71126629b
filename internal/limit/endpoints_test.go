package limit

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"
)

func newTestEndpoints() *Endpoints {
	return NewEndpoints(2, BreakerConfig{After: 3, Delay: time.Minute, MaxDelay: time.Minute, Draw: longest})
}

func name(n int) string { return fmt.Sprint(n) }

func id(n int) endpointID { return sha256.Sum256([]byte(name(n))) }

func TestEndpointWithoutTroubleIsForgotten(t *testing.T) {
	es, now := newTestEndpoints(), time.Now()
	a, epoch, _, _ := es.Enter(name(1), now)
	b, _, _, _ := es.Enter(name(1), now.Add(1))
	if a == nil || a != b {
		t.Fatal("two calls were not let in")
	}
	a.breaker.Record(epoch, Good, now)
	es.Leave(a, now, now, Good)
	if len(es.known) != 1 {
		t.Fatal("it was forgotten with a call in flight")
	}
	es.Leave(a, now.Add(1), now, NoSign)
	if len(es.known) != 0 {
		t.Fatal("it is still known")
	}
}

func TestEndpointInTroubleIsRememberedForATime(t *testing.T) {
	es, now := newTestEndpoints(), time.Now()
	e, epoch, _, _ := es.Enter(name(1), now)
	e.breaker.Record(epoch, Bad, now)
	es.Leave(e, now, now, Bad)
	now = now.Add(longestDelay + time.Minute)
	es.Enter(name(2), now)
	if es.known[id(1)] == nil {
		t.Fatal("it was forgotten too soon")
	}
	now = now.Add(forgetAfter - longestDelay)
	es.Enter(name(2), now)
	if es.known[id(1)] != nil {
		t.Fatal("it is never forgotten")
	}
	if es.known[id(2)] == nil {
		t.Fatal("an endpoint with calls in flight was forgotten")
	}
}

// The throttle is longer than endpoints without intents are known, and no intent is sent early.
func TestThrottledEndpointIsRememberedUntilItsTime(t *testing.T) {
	es, now := NewEndpoints(4, BreakerConfig{After: 10, Delay: time.Second, MaxDelay: time.Hour, Draw: FullJitter}), time.Now()
	e, epoch, _, _ := es.Enter(name(1), now)
	e.breaker.Throttle(epoch, time.Hour, now)
	es.Leave(e, now, now, Throttled)
	es.Enter(name(2), now.Add(59*time.Minute)) // this forgets other endpoints
	if called, _, _, _ := es.Enter(name(1), now.Add(59*time.Minute)); called != nil {
		t.Error("it is called before its time")
	}
	if called, _, _, _ := es.Enter(name(1), now.Add(time.Hour)); called == nil {
		t.Error("it is not called when its time is over")
	}
}

func TestNumberOfEndpointsIsBounded(t *testing.T) {
	es, now := newTestEndpoints(), time.Now()
	kept, _, _, _ := es.Enter(name(-1), now) // its call does not end
	for n := range maxEndpoints + 1000 {
		e, epoch, _, _ := es.Enter(name(n), now)
		e.breaker.Record(epoch, Bad, now)
		es.Leave(e, now, now, Bad)
	}
	if len(es.known) != maxEndpoints {
		t.Errorf("%d are known", len(es.known))
	}
	if es.known[id(-1)] != kept {
		t.Error("an endpoint with a call in flight was forgotten")
	}
}

// 100,000 intents wait for one dead endpoint. The rate of claims that postpone them is bounded, and falls over time.
func TestPostponedIntentsAreSpread(t *testing.T) {
	es, start := newTestEndpoints(), time.Now()
	e, epoch, _, _ := es.Enter(name(1), start)
	for range 3 {
		e.breaker.Record(epoch, Bad, start)
	}
	es.Leave(e, start, start, Bad)
	for _, test := range []struct {
		after       time.Duration // of trouble
		most, early int           // per second: at most, and within the first 25
	}{{0, 1900, 10}, {5 * time.Minute, 900, 10}, {time.Hour, 450, 10}} {
		now := start.Add(test.after)
		e.touched, e.breaker.until = now, now.Add(time.Second)
		perSecond := map[int]int{}
		for range 100_000 {
			called, _, delay, broken := es.Enter(name(1), now)
			if called != nil || !broken {
				t.Fatal("a call was let in")
			}
			if delay <= time.Second || delay > longestDelay {
				t.Fatalf("after %v of trouble, an intent is postponed for %v", test.after, delay)
			}
			perSecond[int(delay.Seconds())]++
		}
		most, early := 0, 0
		for second, n := range perSecond {
			most = max(most, n)
			if second < 25 {
				early = max(early, n)
			}
		}
		t.Logf("after %v of trouble: at most %d a second, %d early", test.after, most, early)
		if most > test.most || early > test.early+1 {
			t.Errorf("after %v of trouble, %d intents come in one second and %d in an early one, want at most %d and %d", test.after, most, early, test.most, test.early)
		}
	}
}

func TestPostponementFollowsTheEndpointsPace(t *testing.T) {
	es, now := newTestEndpoints(), time.Now()
	for i := range 2 {
		es.Enter(name(1), now.Add(time.Duration(i)))
	}
	now = now.Add(100 * time.Millisecond) // the calls took this long: each makes room after 50 ms
	var last time.Duration
	for range 10 {
		called, _, delay, broken := es.Enter(name(1), now)
		if called != nil || broken || delay-last < 35*time.Millisecond || delay-last > 45*time.Millisecond {
			t.Fatalf("postponed for %v after %v, broken %v", delay, last, broken)
		}
		last = delay
	}
	if !es.Leave(es.known[id(1)], now.Add(-100*time.Millisecond), now, Good) {
		t.Error("the end of a call does not report that others wait")
	}
}
