package dispatcher

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func ringOf(shares ...string) *turns {
	t := &turns{}
	t.found(shares, true, len(shares), time.Now(), time.Now())
	return t
}

func busyWith(calls map[string]int) *shareCounts {
	s := newShareCounts()
	for share, n := range calls {
		s.add(FairByScope, n, share)
	}
	return s
}

func TestPickGivesToTheFewestCalls(t *testing.T) {
	for _, tc := range []struct {
		name string
		n    int
		busy map[string]int
		want string
	}{
		{"in turn", 2, nil, "[a b] [1 1]"},
		{"one each", 3, nil, "[a b c] [1 1 1]"},
		{"several each", 8, nil, "[a b c] [3 3 2]"},
		{"a busy one later", 1, map[string]int{"a": 31}, "[b] [1]"},
		{"a busy one not", 4, map[string]int{"a": 31}, "[b c] [2 2]"},
		{"until all are level", 6, map[string]int{"a": 3, "b": 1}, "[a b c] [1 2 3]"},
		{"all are busy", 1, map[string]int{"a": 9, "b": 8, "c": 9}, "[b] [1]"},
		{"none", 0, nil, "[] []"},
	} {
		shares, quotas := ringOf("a", "b", "c").pick(tc.n, FairByScope, busyWith(tc.busy))
		if got := fmt.Sprint(shares, quotas); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	if shares, _ := ringOf().pick(3, FairByScope, newShareCounts()); shares != nil {
		t.Errorf("an empty ring: %v", shares)
	}
}

// take plays claims: each share has so many intents.
func take(r *turns, n int, has map[string]int) (shares []string) {
	shares, quotas := r.pick(n, FairByScope, newShareCounts())
	var got []string
	for i, share := range shares {
		n := min(int(quotas[i]), has[share])
		got = append(got, slices.Repeat([]string{share}, n)...)
		has[share] -= n
	}
	r.took(shares, quotas, got, false)
	return shares
}

func TestSharesTakeTurns(t *testing.T) {
	r, has := ringOf("a", "b", "c"), map[string]int{"a": 100, "b": 1, "c": 100}
	var order []string
	for range 7 {
		order = append(order, take(r, 1, has)...)
	}
	if want := []string{"a", "b", "c", "a", "b", "c", "a"}; !slices.Equal(order, want) {
		t.Errorf("the turns are %v, want %v", order, want)
	}
	if len(r.ring) != 2 {
		t.Errorf("a share that has nothing more is in the ring: %v", r.ring)
	}
}

func TestShareThatWasCutShortKeepsItsTurn(t *testing.T) {
	r := ringOf("a", "b", "c")
	shares, quotas := r.pick(3, FairByScope, newShareCounts())
	r.took(shares, quotas, []string{"a"}, true)
	if got := fmt.Sprint(r.ring); got != "[{b false} {c false} {a true}]" {
		t.Errorf("the ring is %s", got)
	}
	if r.next != behind("a") {
		t.Errorf("the next walk begins at %q", r.next)
	}
}

// A walk rests for 19 times as long as it took, unless it found what the claims use up.
func TestWalkIsMadeWhenItIsWorthItsTime(t *testing.T) {
	began := time.Now()
	ended := began.Add(10 * time.Millisecond)
	soon, late := ended.Add(time.Millisecond), ended.Add(200*time.Millisecond)
	many := shareWalk

	r := &turns{}
	if !r.wantsWalk(began) {
		t.Error("no first walk")
	}
	r.found([]string{"a"}, true, 1, began, ended)
	if !r.wantsWalk(soon) {
		t.Error("of a few shares: no walk before each claim")
	}
	r.found([]string{"a"}, true, many, began, ended)
	if r.wantsWalk(soon) || !r.wantsWalk(late) {
		t.Error("of all shares: another walk at once, or none later")
	}
	take(r, 1, map[string]int{"a": 1})
	if r.wantsWalk(soon) {
		t.Error("of all shares, used up: another walk at once")
	}
	r.found(nil, false, many, began, ended)
	if r.wantsWalk(soon) || !r.wantsWalk(late) {
		t.Error("of many shares, none due: another walk at once, or none later")
	}
	r.found([]string{"a", "b"}, false, 2, began, ended)
	if r.wantsWalk(late) {
		t.Error("of many shares, before their turns are over: another walk")
	}
	take(r, 2, map[string]int{"a": 9, "b": 9})
	if !r.wantsWalk(soon) || r.next != behind("b") {
		t.Errorf("of many shares, when their turns are over: no walk, or from %q", r.next)
	}
	r.found(nil, true, 0, began, began.Add(time.Minute))
	if !r.wantsWalk(began.Add(time.Minute + longestRest + 1)) {
		t.Error("a slow walk rests for longer than the longest rest")
	}
}

func TestSlowWalkOfFewSharesRestsTheSecondTime(t *testing.T) {
	began := time.Now()
	ended := began.Add(2 * slowWalk)
	r := &turns{}
	r.found([]string{"a"}, true, 1, began, ended)
	if !r.wantsWalk(ended.Add(time.Millisecond)) {
		t.Error("it rests after one slow walk")
	}
	r.found([]string{"a"}, true, 1, began, ended)
	if r.wantsWalk(ended.Add(time.Millisecond)) {
		t.Error("it does not rest after two slow walks")
	}
}
