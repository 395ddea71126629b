package samekeytest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Fault is what goes wrong with one call, in a form that flags and JSON can
// carry: a kind, such as "lose_answer", or a kind with an argument, such as
// "slow(250ms)". "Acts" below means that the vendor decides the call: it makes
// the effect, or declines it, and stores the answer under the key; on a key
// that has its answer it means the replay.
//
// Any status can be a fault: "503" answers it and does not act; "503_after"
// acts and then answers it; "429(7)" sends Retry-After: 7. The retry with the
// same key then gets the stored success.
type Fault string

const (
	// FaultNone lets a call through: a place in a queue of faults.
	FaultNone Fault = "none"
	// FaultLoseAnswer acts, then closes the connection without an answer.
	FaultLoseAnswer Fault = "lose_answer"
	// FaultResetBefore reads the request, does not act, and resets the connection.
	FaultResetBefore Fault = "reset_before"
	// FaultResetAfter acts, then resets the connection.
	FaultResetAfter Fault = "reset_after"
	// Fault500 answers 500 and does not act.
	Fault500 Fault = "500"
	// Fault500After acts and answers 500.
	Fault500After Fault = "500_after"
	// Fault429 does not act, and answers 429 with Retry-After: 1.
	Fault429 Fault = "429"
	// Fault402 declines: no effect, and the 402 is stored under the key. A key
	// that already has its answer cannot be declined: it is replayed.
	Fault402 Fault = "402"
	// FaultHang holds the call until [Vendor.Release], then acts and answers; it
	// does not act if the client goes first.
	FaultHang Fault = "hang"
	// FaultHangAfter acts, then holds the answer until [Vendor.Release].
	FaultHangAfter Fault = "hang_after"
	// FaultLate holds the call until its client has gone (or until
	// [Vendor.Release]) and acts only then.
	FaultLate Fault = "late"
	// FaultTruncate acts and sends half of the answer's body.
	FaultTruncate Fault = "truncate"
)

// FaultSlow acts, then waits for d before it answers.
func FaultSlow(d time.Duration) Fault { return Fault("slow(" + d.String() + ")") }

// FaultRetryAfter answers the status with that Retry-After header, word for
// word, and does not act. An empty one sends no header.
func FaultRetryAfter(status int, retryAfter string) Fault {
	return Fault(fmt.Sprintf("%d(%s)", status, retryAfter))
}

var statusFault = regexp.MustCompile(`^([1-5]\d\d)(_after)?$`)

// ParseFault returns the fault that s names, or an error that lists what there
// is.
func ParseFault(s string) (Fault, error) {
	f := Fault(strings.TrimSpace(s))
	kind, arg, hasArg := f.split()
	switch Fault(kind) {
	case FaultNone, FaultLoseAnswer, FaultResetBefore, FaultResetAfter, FaultHang, FaultHangAfter, FaultLate, FaultTruncate:
		if !hasArg {
			return f, nil
		}
	case "slow":
		if d, err := time.ParseDuration(arg); err == nil && d >= 0 {
			return f, nil
		}
	default:
		if statusFault.MatchString(kind) && kind >= "200" {
			return f, nil
		}
	}
	return "", fmt.Errorf("samekeytest: fault %q: want none, lose_answer, reset_before, reset_after, hang, hang_after, late, truncate, "+
		"slow(250ms), or a status such as 500, 500_after, 429(2), 402", s)
}

// ParseFaults returns the faults of a list that commas separate.
func ParseFaults(list string) ([]Fault, error) {
	var faults []Fault
	for s := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(s) == "" {
			continue
		}
		f, err := ParseFault(s)
		if err != nil {
			return nil, err
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func (f Fault) split() (kind, arg string, hasArg bool) {
	kind, arg, hasArg = strings.Cut(string(f), "(")
	if !hasArg {
		return kind, "", false
	}
	arg, ok := strings.CutSuffix(arg, ")")
	if !ok {
		return string(f), "", false
	}
	return kind, arg, true
}

func (f Fault) kind() string {
	kind, _, _ := f.split()
	return kind
}

// FaultPlan strikes keys as they come: of the keys in order of their first
// calls, each Every-th is struck, and its first Calls calls meet one fault
// each. The faults are dealt as cards are: all of Faults once, in an order that
// Seed decides, before any comes again, so that n struck calls meet each fault
// n/len(Faults) times or once more. The zero value strikes nothing.
type FaultPlan struct {
	Faults []Fault `json:"faults,omitempty"`
	Every  int     `json:"every,omitempty"` // default 1: every key
	Calls  int     `json:"calls,omitempty"` // default 1: a key's first call only
	Seed   uint64  `json:"seed,omitempty"`

	// Next is a queue for the calls that come next, of any key, before the plan.
	Next []Fault `json:"next,omitempty"`
}

type deck struct {
	plan  FaultPlan
	rand  *rand.Rand
	cards []Fault
	keys  int
}

// SetFaults replaces the plan and the queue of [Vendor.Next]; the zero plan
// turns them off. Calls that are open keep the fault they have: see
// [Vendor.Release].
func (v *Vendor) SetFaults(plan FaultPlan) error {
	for _, f := range append(append([]Fault{}, plan.Faults...), plan.Next...) {
		if _, err := ParseFault(string(f)); err != nil {
			return err
		}
	}
	if plan.Every < 0 || plan.Calls < 0 {
		return fmt.Errorf("samekeytest: fault plan: Every %d and Calls %d must not be negative", plan.Every, plan.Calls)
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

// Next queues faults for the calls that come next, one each, in order of
// arrival; calls that are refused at the door take none. It panics on a fault
// that does not exist.
func (v *Vendor) Next(faults ...Fault) {
	for _, f := range faults {
		if _, err := ParseFault(string(f)); err != nil {
			panic(err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next = append(v.next, faults...)
}

// Hold parks every call that comes from now on, before the vendor acts, until
// [Vendor.Release]. A parked call whose client goes ends without an effect. It
// holds its key: a second call with it is told that the first is in flight.
func (v *Vendor) Hold() { v.setHold(holdCalls) }

// HoldAnswers parks every call that comes from now on after the vendor has
// acted and before it answers, until [Vendor.Release].
func (v *Vendor) HoldAnswers() { v.setHold(holdAnswers) }

func (v *Vendor) setHold(point holdPoint) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hold = point
}

// Release ends Hold and HoldAnswers, and lets every parked call go on, those
// of hanging faults too.
func (v *Vendor) Release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hold = holdNothing
	close(v.release)
	v.release = make(chan struct{})
}

// pickFault decides what goes wrong with the call, "" for nothing. v.mu is held.
func (v *Vendor) pickFault(c *openCall, state *keyState) Fault {
	if state.calls == 1 && len(v.deck.plan.Faults) > 0 {
		v.deck.keys++
		if v.deck.keys%v.deck.plan.Every == 0 {
			state.strikes = v.deck.plan.Calls
		}
	}
	var f Fault
	switch {
	case len(v.next) > 0:
		f, v.next = v.next[0], v.next[1:]
	case state.strikes > 0 && len(v.deck.plan.Faults) > 0:
		state.strikes--
		f = v.deck.deal()
	case v.opts.Script != nil:
		f = v.opts.Script(c.rec)
	}
	if f == FaultNone || (c.stored != nil && f.kind() == string(Fault402)) {
		return ""
	}
	return f
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

// play runs the call to its end, with its fault.
func (v *Vendor) play(w http.ResponseWriter, r *http.Request, c *openCall) {
	kind, arg, hasArg := c.fault.split()
	switch Fault(kind) {
	case "":
		v.reply(w, r, c)
	case FaultLoseAnswer, FaultResetAfter:
		v.act(c)
		v.end(c, 0, false)
		drop(w, Fault(kind) == FaultResetAfter)
	case FaultResetBefore:
		v.end(c, 0, false)
		drop(w, true)
	case FaultHang:
		if !v.park(r.Context(), c) {
			v.abandon(w, r, c)
			return
		}
		v.reply(w, r, c)
	case FaultHangAfter:
		c.hold = holdAnswers
		v.reply(w, r, c)
	case FaultLate:
		v.park(r.Context(), c)
		if v.isClosing() {
			v.abandon(w, r, c)
			return
		}
		v.reply(w, r, c)
	case FaultTruncate:
		a := v.act(c)
		v.end(c, a.Status, false)
		truncate(w, a)
	case "slow":
		d, _ := time.ParseDuration(arg) // ParseFault has seen it
		a := v.act(c)
		if !v.wait(r, d) {
			v.abandon(w, r, c)
			return
		}
		v.answer(w, r, c, a)
	default:
		v.playStatus(w, r, c, kind, arg, hasArg)
	}
}

// reply acts and answers, as a vendor without faults does.
func (v *Vendor) reply(w http.ResponseWriter, r *http.Request, c *openCall) {
	a := v.act(c)
	if c.hold == holdAnswers && !v.park(r.Context(), c) {
		v.abandon(w, r, c)
		return
	}
	v.answer(w, r, c, a)
}

func (v *Vendor) playStatus(w http.ResponseWriter, r *http.Request, c *openCall, kind, arg string, hasArg bool) {
	m := statusFault.FindStringSubmatch(kind)
	if m == nil {
		panic(fmt.Sprintf("samekeytest: the script returned the unknown fault %q", c.fault))
	}
	status, _ := strconv.Atoi(m[1])
	a := refusal(status, "injected_"+kind, "the test vendor was told to answer so")
	switch {
	case hasArg && arg != "":
		a.Header.Set("Retry-After", arg)
	case status == http.StatusTooManyRequests && !hasArg:
		a.Header.Set("Retry-After", "1")
	}
	switch {
	case kind == string(Fault402):
		a = v.decide(c, func(VendorRequest) VendorAnswer { return refusal(status, "card_declined", "the card was declined") })
	case m[2] != "":
		v.act(c)
	}
	v.answer(w, r, c, a)
}

// wait says false if the client went or the vendor is closing before d is over.
func (v *Vendor) wait(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	case <-v.closing:
		return false
	}
}

func (v *Vendor) isClosing() bool {
	select {
	case <-v.closing:
		return true
	default:
		return false
	}
}
