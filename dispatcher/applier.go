package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/samekey/samekey/internal/db"
)

// applier runs the Applies of a worker. Each takes a connection from the pool for as long as its transaction lasts, and
// what it waits for is the application's: so its slots are few, and one action's blocked Applies must not cost others
// theirs.
//
//	a call ends, its Apply has a slot             it runs at once, under the lease of the call's claim
//	it has none                                   up to applyWaiting of an action wait in memory, for applyPatience at most;
//	                                              then their leases are given back, with no attempt used
//	more than that wait, or all have waited long  the answer is written without keeping the lease: the row is claimed later
//	10,000 rows wait in the table                 they are claimed as slots become free, no more than there are; a call's claim
//	                                              does not read them
//	four of one action wait for one locked row    the action has no slot left; others do
//	several actions are blocked                   an action gets another slot only while more are free than it has, so the
//	                                              first one leaves some. If no slot is left, the longest one gives way, and
//	                                              the slot goes to the action that has used the least time of late
//	an Apply gives way or fails                   it is tried again after the policy's backoff
//	the lease runs out while it waits or runs     its fence is closed: what it did is rolled back. It is renewed before it
//	                                              begins where too little is left
//	runtime.Goexit, or a panic                    the slot is given back, and the Apply has failed
//	the worker stops                              nothing is claimed; what waits runs until the calls' time is over
//
// Applies hold no call slot and take no permit of a rate, and an open breaker does not hold them up: no vendor is
// called.
type applier struct {
	core   *core
	runner applyRunner
	auto   bool // it claims by itself; a Drain does it in its rounds

	poked    chan struct{}
	claiming sync.Mutex // one claim at a time

	alarm failing // claims fail

	mu    sync.Mutex
	free  int        // slots that no Apply has
	queue []*applies // the one whose turn it is first
}

// applies are those of one action.
type applies struct {
	action   *action
	mayClaim func() bool // whether its answered intents are claimed
	running  []*applying
	waiting  []waitingApply
	promised int           // places kept for answers that are being written
	claiming int           // slots kept for what is being claimed
	due      bool          // there may be some in the table
	used     time.Duration // of slots, of late
}

// applying is one that runs.
type applying struct {
	began    time.Time
	failures int
	cancel   context.CancelCauseFunc
}

type waitingApply struct {
	claim *claim
	since time.Time
}

const (
	// applyPerAction bounds the Applies of an action that run at once.
	applyPerAction = 4
	// applyWaiting bounds those of an action that wait in memory, each with its payload.
	applyWaiting = 32
	// applyPatience is how long one waits in memory, and how long one runs, at least, before it gives way.
	applyPatience = time.Second
	// applyDoublings bounds how much longer an Apply that gave way may run the next time.
	applyDoublings = 3
	// applyEvery is how often the applier looks after what waits. By then, usedOfLate is left of what was used.
	applyEvery = 250 * time.Millisecond
	usedOfLate = 0.98
)

// applySlots is how many connections of a pool Applies may take: half, so that claims, settles and River go on.
func applySlots(maxConns int32) int { return max(int(maxConns)/2, 1) }

func newApplier(c *core, runner applyRunner) *applier {
	return &applier{core: c, runner: runner, poked: make(chan struct{}, 1), free: applySlots(c.pool.Config().MaxConns)}
}

func (ap *applier) add(a *action, mayClaim func() bool) {
	ap.queue = append(ap.queue, &applies{action: a, mayClaim: mayClaim})
}

func (ap *applier) of(a *action) *applies {
	for _, of := range ap.queue {
		if of.action == a {
			return of
		}
	}
	return nil
}

// run looks after what waits, and claims where auto is set, until ctx ends.
func (ap *applier) run(ctx context.Context) {
	tick := time.NewTicker(applyEvery)
	defer tick.Stop()
	over := ap.core.calls.Done()
	for {
		select {
		case <-ap.poked:
		case <-tick.C:
			ap.forget()
		case <-over: // a hard stop: what waits does not begin
			over = nil
		case <-ctx.Done():
			return
		}
		ap.giveBack(ctx)
		ap.giveWay()
		if ap.auto {
			_, _, err := ap.claimAll(ctx)
			if ap.alarm.note(err); err != nil && ctx.Err() == nil {
				ap.core.log.WarnContext(ctx, "dispatcher: answered intents could not be claimed; the next sweep tries again", slog.String("error", errorText(err)))
			}
			ap.startWaiting(false)
		}
	}
}

// stop waits for a running claim. Once the worker is stopping, no claim is made after it.
func (ap *applier) stop() {
	ap.claiming.Lock()
	defer ap.claiming.Unlock()
}

func (ap *applier) poke() {
	select {
	case ap.poked <- struct{}{}:
	default:
	}
}

// setDue takes what a sweep saw: which actions have answered intents that are due.
func (ap *applier) setDue(actions []string) {
	ap.mu.Lock()
	for _, of := range ap.queue {
		of.due = slices.Contains(actions, of.action.name)
	}
	ap.mu.Unlock()
	if len(actions) > 0 {
		ap.poke()
	}
}

func (ap *applier) allDue() {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	for _, of := range ap.queue {
		of.due = true
	}
}

// mayRun is how many more Applies of an action may run.
func (ap *applier) mayRun(of *applies) (n int) {
	has := len(of.running) + of.claiming
	for n+has < applyPerAction && ap.free-n > n+has {
		n++
	}
	return n
}

// promise keeps a place for an answer that is about to be written. Where it has none, the answer is written without a
// lease.
func (ap *applier) promise(a *action) bool {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	of := ap.of(a)
	if len(of.waiting)+of.promised >= applyWaiting || len(of.waiting) > 0 && time.Since(of.waiting[0].since) > applyPatience/2 {
		return false
	}
	of.promised++
	return true
}

// unpromise gives a promised place back.
func (ap *applier) unpromise(a *action) {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	ap.of(a).promised--
}

// answered takes a claim whose answer was just written under a kept lease. It has a promised place.
func (ap *applier) answered(c *claim) {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	of := ap.of(c.action)
	of.promised--
	if len(of.waiting) == 0 && ap.mayRun(of) > 0 {
		ap.start(of, c, 0)
		return
	}
	of.waiting = append(of.waiting, waitingApply{c, time.Now()})
}

// written takes that an answer was written without a lease.
func (ap *applier) written(a *action) {
	ap.mu.Lock()
	ap.of(a).due = true
	ap.mu.Unlock()
	ap.poke()
}

// start runs an Apply in a slot; the caller holds mu.
func (ap *applier) start(of *applies, c *claim, failures int) {
	ctx, cancel := context.WithCancelCause(ap.core.calls)
	run := &applying{began: time.Now(), failures: failures, cancel: cancel}
	of.running = append(of.running, run)
	ap.free--
	go func() {
		var outcome string
		err := errGoexit
		defer func() { // also after runtime.Goexit
			if err != nil && errors.Is(context.Cause(ctx), errGaveWay) {
				err = errGaveWay
			}
			cancel(nil)
			ap.ended(of, run)
			ap.runner.applied(c, failures, outcome, err)
		}()
		outcome, err = ap.runner.apply(ctx, c)
	}()
}

// ended gives a slot back, and to the next.
func (ap *applier) ended(of *applies, run *applying) {
	ap.mu.Lock()
	of.running = slices.DeleteFunc(of.running, func(r *applying) bool { return r == run })
	of.used += time.Since(run.began)
	ap.free++
	ap.mu.Unlock()
	ap.startWaiting(ap.auto)
	ap.poke()
}

// startWaiting starts what waits in memory, as far as there are slots: where claims are made, not before a claim for an
// action whose turn comes earlier.
func (ap *applier) startWaiting(claims bool) {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	ap.inTurn()
	for _, of := range ap.queue {
		for len(of.waiting) > 0 && ap.mayRun(of) > 0 {
			c := of.waiting[0].claim
			of.waiting = of.waiting[1:]
			ap.start(of, c, 0)
		}
		if claims && of.due && len(of.waiting) == 0 && of.mayClaim() && ap.mayRun(of) > 0 {
			return
		}
	}
}

// inTurn sorts the actions by the time that they have used; the caller holds mu.
func (ap *applier) inTurn() {
	slices.SortStableFunc(ap.queue, func(a, b *applies) int { return cmp.Compare(a.used, b.used) })
}

// forget lets what was used count for less and less.
func (ap *applier) forget() {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	for _, of := range ap.queue {
		of.used = time.Duration(float64(of.used) * usedOfLate)
	}
}

// giveBack puts back what has waited for too long: another worker may have a slot, or this one later.
func (ap *applier) giveBack(ctx context.Context) {
	stopped := ap.core.calls.Err() != nil
	var back []*claim
	ap.mu.Lock()
	for _, of := range ap.queue {
		for len(of.waiting) > 0 && (stopped || time.Since(of.waiting[0].since) > applyPatience) {
			back = append(back, of.waiting[0].claim)
			of.waiting = of.waiting[1:]
			of.due = true
		}
	}
	ap.mu.Unlock()
	if len(back) == 0 {
		return
	}
	for _, c := range back {
		c.visit.delay = 0
	}
	if err := writePostpone(ctx, ap.core.q, back, false); err != nil {
		ap.core.log.WarnContext(ctx, "dispatcher: answered intents could not be given back; they are taken up again when their leases run out",
			slog.Int("intents", len(back)), slog.String("error", errorText(err)))
	}
	for range back {
		ap.core.open.Done()
	}
}

// giveWay cancels the Apply that has run for longest where no slot is left and an action has none. Each may run for 1
// s, and twice as long with each try, up to 8 s, so that one that needs some seconds gets them.
func (ap *applier) giveWay() {
	ap.mu.Lock()
	defer ap.mu.Unlock()
	starving := slices.ContainsFunc(ap.queue, func(of *applies) bool {
		return len(of.running) == 0 && (len(of.waiting) > 0 || of.due && of.mayClaim())
	})
	if ap.free > 0 || !starving {
		return
	}
	var longest *applying
	for _, of := range ap.queue {
		for _, run := range of.running {
			if time.Since(run.began) > applyPatience<<min(run.failures, applyDoublings) && (longest == nil || run.began.Before(longest.began)) {
				longest = run
			}
		}
	}
	if longest != nil {
		longest.cancel(errGaveWay)
	}
}

// claimAll claims answered intents for the free slots of each action that has some due. held is set where an action has
// some and no slot.
func (ap *applier) claimAll(ctx context.Context) (claimed int, held bool, err error) {
	ap.claiming.Lock()
	defer ap.claiming.Unlock()
	ap.mu.Lock()
	ap.inTurn()
	turns := slices.Clone(ap.queue)
	ap.mu.Unlock()
	for _, of := range turns {
		got, none, err := ap.claim(ctx, of)
		claimed += got
		held = held || none
		if err != nil {
			return claimed, held, err
		}
	}
	return claimed, held, nil
}

// claim claims for one action.
func (ap *applier) claim(ctx context.Context, of *applies) (got int, held bool, err error) {
	ap.mu.Lock()
	if !of.due || ap.core.isStopping() || !of.mayClaim() {
		ap.mu.Unlock()
		return 0, false, nil
	}
	slots := ap.mayRun(of)
	if slots == 0 || len(of.waiting) > 0 {
		ap.mu.Unlock()
		return 0, true, nil
	}
	of.due = false // before the claim: what is flagged while it is made counts
	ap.free, of.claiming = ap.free-slots, slots
	ap.mu.Unlock()

	asked, worker := time.Now(), ap.core.self.id()
	// Not cut off by a stop: a claim that committed unseen would leave its intents leased to nobody.
	claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	rows, err := ap.core.q.OutboxAnsweredClaim(claiming, db.OutboxAnsweredClaimParams{
		Action: of.action.name, Worker: worker, Deployment: ap.core.deployment.current(), MaxCount: int32(slots), Lease: of.action.policy.Lease})

	ap.mu.Lock()
	defer ap.mu.Unlock()
	ap.free, of.claiming = ap.free+slots, 0
	of.due = of.due || err != nil || len(rows) == slots // there may be more
	for _, row := range rows {
		ap.core.open.Add(1)
		ap.start(of, answeredClaim(row, of.action, asked, worker), int(row.AttemptsUsed))
	}
	return len(rows), false, err
}

func answeredClaim(r db.OutboxAnsweredClaimRow, a *action, asked time.Time, worker int32) *claim {
	c := newClaim(db.OutboxQueueClaimRow{ID: r.ID, Status: r.Status, Attempt: r.Attempt, AttemptsUsed: r.AttemptsUsed, OrderingKey: r.OrderingKey}, a, asked, worker)
	c.unloaded = true
	return c
}
