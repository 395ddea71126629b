package dispatcher

import (
	"testing"
	"time"
)

func TestAPermitThatIsNotUsedSoonIsLost(t *testing.T) {
	now := time.Now()
	r := newRate(Limits{Rate: 100, Burst: 10}.withDefaults())
	r.expire, r.next = now.Add(permitLife), now.Add(time.Second)
	r.unused(5)
	if have := r.use(now, 3); have != 3 {
		t.Fatalf("of 5 in hand, 3 wanted, %d were got", have)
	}
	r.unused(1)
	if wait := r.wait(now.Add(permitLife - 1)); wait != 0 {
		t.Errorf("with permits in hand it waits %v", wait)
	}
	if wait := r.wait(now.Add(permitLife)); wait != time.Second-permitLife {
		t.Errorf("without any it waits %v", wait)
	}
	r.unused(4) // of a claim that took long
	if have := r.use(now.Add(permitLife), 10); have != 0 {
		t.Errorf("%d were used past their time", have)
	}
}
