package samekeytest

import (
	"fmt"
	"math/rand/v2"
)

// FaultPlan gives faults to keys, by a seed. Of the keys in order of their first calls, it strikes one in Every, and
// the first Calls calls of such a key meet one fault each. Faults are dealt as cards are: all of Faults once, shuffled
// by Seed, before any comes again. So n struck calls meet each fault n/len(Faults) times, or once more. The zero value
// strikes nothing.
type FaultPlan struct {
	Faults []Fault `json:"faults,omitempty"`
	Every  int     `json:"every,omitempty"` // default 1: every key
	Calls  int     `json:"calls,omitempty"` // default 1: a key's first call only
	Seed   uint64  `json:"seed,omitempty"`

	// Next is a queue of faults for the next calls, of any key. It goes before the plan.
	Next []Fault `json:"next,omitempty"`
}

// deck deals the faults of a plan.
type deck struct {
	plan  FaultPlan
	rand  *rand.Rand
	cards []Fault
	keys  int // seen so far
}

// SetFaults replaces the plan and the queue of Next. The zero plan turns both off. Open calls keep their faults until
// Release.
func (v *Vendor) SetFaults(plan FaultPlan) error {
	for _, faults := range [][]Fault{plan.Faults, plan.Next} {
		for _, f := range faults {
			if err := v.check(f); err != nil {
				return err
			}
		}
	}
	if plan.Every < 0 || plan.Calls < 0 {
		return fmt.Errorf("samekeytest: fault plan: Every is %d and Calls is %d: neither can be negative", plan.Every, plan.Calls)
	}
	plan.Every = max(plan.Every, 1)
	plan.Calls = max(plan.Calls, 1)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next = append([]Fault{}, plan.Next...)
	plan.Next = nil
	v.deck = deck{plan: plan, rand: rand.New(rand.NewPCG(plan.Seed, 0))}
	return nil
}

// newKey counts a key, and returns how many of its first calls are struck.
func (d *deck) newKey() (strikes int) {
	if len(d.plan.Faults) == 0 {
		return 0
	}
	if d.keys++; d.keys%d.plan.Every != 0 {
		return 0
	}
	return d.plan.Calls
}

func (d *deck) deal() Fault {
	if len(d.cards) == 0 {
		d.cards = append(d.cards, d.plan.Faults...)
		d.rand.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
	}
	f := d.cards[0]
	d.cards = d.cards[1:]
	return f
}
