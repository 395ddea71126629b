package dispatcher

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// turns decides from which shares of a fair action the next claim takes, and how many intents of each.
//
//   - The shares that have something due are in a ring. A claim takes one intent of each in turn, and goes on where the
//     last claim stopped. Shares with fewer calls in progress go first.
//   - If there are more slots than shares, some get several: so that in the end, all have as many calls in progress as
//     is possible. A share that has nothing more leaves the ring, and its slots go to the others.
//   - A walk over the index finds the ring. Of very many shares it finds some, and the next walk goes on behind them. A
//     walk over a few shares takes a tenth of a claim, and is made before each. Other walks take at most a twentieth of
//     the time, unless they find what the claims then use up.
//
// It belongs to the drain alone.
type turns struct {
	ring []turn // the next share first
	next string // where the next walk begins: behind the last share that had its turn

	whole bool      // the last walk found all shares that had something due
	rests time.Time // until then, a walk is not worth its time
	slow  bool      // the last walk was slow, perhaps by chance
	steps int       // shares that the last walk looked at
}

// turn is a share in the ring.
type turn struct {
	share string
	had   bool // it has had its turn since the walk
}

// shareWalk is how many shares a walk looks at, and so how many a claim takes from, at most.
const shareWalk = claimLimit

// A walk over so few shares needs no rest, unless it takes longer than slowWalk twice: a snapshot that is open for long
// keeps many dead entries of a share.
const shortWalk, slowWalk = 32, 20 * time.Millisecond

// longestRest bounds the wait of a share that the last walk did not find, if that walk was slow.
const longestRest = 500 * time.Millisecond

// behind is the first text after a share, in the order of the database: bytes, of which zero is not allowed.
func behind(share string) string { return share + "\x01" }

// wantsWalk reports whether the ring must be found again.
func (t *turns) wantsWalk(now time.Time) bool {
	if t.whole || len(t.ring) == 0 {
		return now.After(t.rests)
	}
	return t.ring[0].had // the others had theirs too
}

// found takes the result of a walk: the shares with something due, from t.next on and around.
func (t *turns) found(due []string, whole bool, steps int, began, ended time.Time) {
	t.ring = t.ring[:0]
	for _, share := range due {
		t.ring = append(t.ring, turn{share: share})
	}
	t.whole, t.steps = whole, steps
	t.rests = ended
	took := ended.Sub(began)
	slow := took > slowWalk
	if (whole || len(due) < steps/2) && (steps > shortWalk || slow && t.slow) {
		t.rests = ended.Add(min(19*took, longestRest))
	}
	t.slow = slow
}

// few reports whether the last walk found all shares, and few.
func (t *turns) few() bool { return t.whole && t.steps <= shortWalk }

// page is how many intents the next walk reads in one scan: many if there were many shares, as each may have few intents.
func (t *turns) page() int32 {
	if t.steps > shortWalk {
		return shareWalk
	}
	return 1
}

// mayHaveMore reports whether a claim that left slots free may have left intents too.
func (t *turns) mayHaveMore() bool { return len(t.ring) > 0 || !t.whole }

// pick returns the shares to claim from, in the order of their turns, and how many intents of each: n together. Each
// round gives one to the shares with the fewest calls. If there are shares behind the ring, its last ones get one each
// and no share a second: the next walk fills the other slots.
func (t *turns) pick(n int, by FairBy, busy *shareCounts) (shares []string, quotas []int32) {
	busy.mu.Lock()
	defer busy.mu.Unlock()
	if len(t.ring) == 0 {
		return nil, nil
	}
	if waiting := t.waiting(); !t.whole && waiting > 0 {
		n = min(n, waiting)
	}
	calls, given := make([]int, 0, len(t.ring)), make([]int32, len(t.ring))
	for level := 0; n > 0; level++ {
		for i, turn := range t.ring {
			if level == 0 {
				calls = append(calls, busy.n[shareKey{by, turn.share}])
			}
			if calls[i] == level {
				calls[i]++
				given[i]++
				n--
			}
			if n == 0 { // of a long ring, most is not looked at
				break
			}
		}
	}
	for i, quota := range given {
		if quota > 0 {
			shares, quotas = append(shares, t.ring[i].share), append(quotas, quota)
		}
	}
	return shares, quotas
}

// waiting is how many shares of the ring have not had their turn. They are its first.
func (t *turns) waiting() int {
	n := slices.IndexFunc(t.ring, func(of turn) bool { return of.had })
	if n < 0 {
		return len(t.ring)
	}
	return n
}

// took moves the shares that had their turn to the end of the ring, and removes those that had fewer intents than they
// could have had. got is the share of each intent that was claimed. If the claim was cut short (cut), what is missing
// says nothing.
func (t *turns) took(shares []string, quotas []int32, got []string, cut bool) {
	missing := make(map[string]int32, len(shares))
	for i, share := range shares {
		missing[share] = quotas[i]
	}
	asked := maps.Clone(missing)
	for _, share := range got {
		missing[share]--
	}
	first, last := make([]turn, 0, len(t.ring)), make([]turn, 0, len(shares))
	for _, turn := range t.ring {
		want, picked := asked[turn.share]
		switch left := missing[turn.share]; {
		case !picked, cut && left == want:
			first = append(first, turn)
		default:
			if !turn.had {
				t.next = behind(turn.share)
			}
			if turn.had = true; left <= 0 || cut {
				last = append(last, turn)
			}
		}
	}
	t.ring = append(first, last...)
}

// shareCounts counts the claims of each share that hold a slot of the destination.
type shareCounts struct {
	mu sync.Mutex
	n  map[shareKey]int
}

type shareKey struct {
	by    FairBy
	share string
}

func newShareCounts() *shareCounts { return &shareCounts{n: map[shareKey]int{}} }

func (s *shareCounts) add(by FairBy, n int, shares ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, share := range shares {
		key := shareKey{by, share}
		if s.n[key] += n; s.n[key] == 0 {
			delete(s.n, key)
		}
	}
}
