package dispatcher

import (
	"testing"
	"time"
)

func TestApplySlotsPerAction(t *testing.T) {
	for _, test := range []struct {
		maxConns int32
		want     []int // slots that each blocked action gets, one after the other
	}{{2, []int{1, 0}}, {4, []int{1, 1, 0}}, {10, []int{3, 1, 1, 0}}, {40, []int{4, 4, 4, 4, 2, 1, 1, 0}}} {
		ap := &applier{free: applySlots(test.maxConns)}
		for i, want := range test.want {
			of := &applies{}
			for ap.mayRun(of) > 0 {
				of.running = append(of.running, &applying{began: time.Now()})
				ap.free--
			}
			if len(of.running) != want {
				t.Errorf("a pool of %d: action %d gets %d slots, want %d", test.maxConns, i, len(of.running), want)
			}
		}
		if ap.free != 0 {
			t.Errorf("a pool of %d: %d slots are left", test.maxConns, ap.free)
		}
	}
}
