package dispatcher

import (
	"context"
	"testing"
)

// A slot is free again when its call has ended, but a slow settle does not let claims pile up in memory.
func TestClaimsThatWaitForTheirSettleAreBounded(t *testing.T) {
	s, open := newSlots(2), 0
	for n := s.reserve(); n > 0; n = s.reserve() {
		open += n
		for range n {
			s.callEnded()
		}
	}
	if open != 2*2+openClaims {
		t.Errorf("%d claims wait for their settle", open)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s.wait(ended, nil) {
		t.Error("a slot is free")
	}
	s.settled()
	if !s.wait(t.Context(), nil) || s.reserve() != 1 {
		t.Error("no slot is free after a settle")
	}
}

func TestSlotsBoundTheCallsUnderWay(t *testing.T) {
	s := newSlots(3)
	if n := s.reserve(); n != 3 || !s.allTaken() {
		t.Errorf("reserved %d, all taken: %v", n, s.allTaken())
	}
	s.release(2)
	if n := s.reserve(); n != 2 {
		t.Errorf("after two were given back, reserved %d", n)
	}
}
