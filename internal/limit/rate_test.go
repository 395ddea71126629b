package limit

import (
	"testing"
	"time"
)

func TestPermitsExpire(t *testing.T) {
	now := time.Now()
	r := NewRate(100, 10)
	r.expire, r.next = now.Add(permitLife), now.Add(time.Second)
	r.Unused(5)
	if have := r.Use(now, 3); have != 3 {
		t.Fatalf("got %d of 5 permits, want 3", have)
	}
	r.Unused(1)
	if wait := r.Wait(now.Add(permitLife - 1)); wait != 0 {
		t.Errorf("with permits it waits %v", wait)
	}
	if wait := r.Wait(now.Add(permitLife)); wait != time.Second-permitLife {
		t.Errorf("without permits it waits %v", wait)
	}
	r.Unused(4) // a slow claim returns them
	if have := r.Use(now.Add(permitLife), 10); have != 0 {
		t.Errorf("%d permits were used after they expired", have)
	}
}
