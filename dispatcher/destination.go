package dispatcher

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/samekey/samekey/internal/limit"
)

// destination is a vendor account at work in this process. It owns its calls: a drain claims for it and may end while
// they go on, so one slow call never holds up the destination. shift.go describes what wakes its drain and keeps it
// alive.
type destination struct {
	core    *core
	settler *settler
	applier *applier
	reports *reports

	name    string
	queue   string // of River
	actions []*action
	marks   []mark   // of the actions
	turns   []*turns // of the actions; nil: not fair
	busy    *shareCounts

	slots     slots
	rate      *limit.Rate
	breaker   *limit.Breaker   // of the actions without endpoints
	endpoints *limit.Endpoints // of the others
	mixed     bool             // some or all of the actions have endpoints
	stopAfter time.Duration    // see Limits.StopEndpointAfter

	poked     chan struct{} // something was flagged
	stints    chan stint    // River's jobs offer to drain
	load      loadBudget    // of the drain alone
	postponed int           // how many intents the drain has postponed

	mu     sync.Mutex
	due    map[string]bool // actions in which something may be due
	paused map[string]bool // actions that the last sweep saw paused, "" for all; the claim looks for itself
	next   int             // the action whose turn it is
	until  time.Time       // when the last intent that was postponed for a busy endpoint is due
	tries  []tries         // of the actions
	stuck  string          // what the watch has reported
}

func newDestination(c *core, a *account) *destination {
	l := a.limits
	breaker := limit.BreakerConfig{After: l.BreakAfter, Delay: l.BreakDelay, MaxDelay: l.MaxBreakDelay, Draw: c.draw}
	d := &destination{
		core: c, name: a.name, queue: queueName(a.name), actions: a.actions, marks: make([]mark, len(a.actions)),
		slots: newSlots(l.Concurrency), poked: make(chan struct{}, 1), due: map[string]bool{},
		stints: make(chan stint), tries: make([]tries, len(a.actions)), load: newLoadBudget(),
		rate: limit.NewRate(l.Rate, l.Burst), breaker: limit.NewBreaker(breaker), endpoints: limit.NewEndpoints(l.PerEndpoint, breaker),
		mixed: a.hasEndpoints(), stopAfter: l.StopEndpointAfter, turns: make([]*turns, len(a.actions)), busy: newShareCounts(),
	}
	for i, action := range a.actions {
		if action.policy.FairBy != "" {
			d.turns[i] = &turns{}
		}
	}
	d.pokeAll()
	return d
}

// destinations are all destinations of this process.
type destinations struct {
	list     []*destination
	byAction map[string]*destination
}

func (ds *destinations) add(d *destination) *destination {
	ds.list = append(ds.list, d)
	for _, a := range d.actions {
		ds.byAction[a.name] = d
	}
	return d
}

func (ds *destinations) actions() (names []string) {
	for _, d := range ds.list {
		for _, a := range d.actions {
			names = append(names, a.name)
		}
	}
	return names
}

// fairBy returns what the intents of each action share by, in the order of actions.
func (ds *destinations) fairBy() (by []string) {
	for _, d := range ds.list {
		for _, a := range d.actions {
			by = append(by, string(a.policy.FairBy))
		}
	}
	return by
}

// attended returns whether each action has an Attention function, in the order of actions.
func (ds *destinations) attended() (has []bool) {
	for _, d := range ds.list {
		for _, a := range d.actions {
			has = append(has, a.attention != nil)
		}
	}
	return has
}

// poke pokes the destinations of these actions. Actions of other workers are ignored.
func (ds *destinations) poke(actions ...string) {
	for _, action := range actions {
		if d := ds.byAction[action]; d != nil {
			d.poke(action)
		}
	}
}

func (ds *destinations) pokeAll() {
	for _, d := range ds.list {
		d.pokeAll()
	}
}

// poke signals that something of the action may be due. It is the only signal to a drain: NOTIFY, sweep, settle, Apply,
// breakers and endpoints call it.
func (d *destination) poke(action string) {
	d.markDue(action)
	select {
	case d.poked <- struct{}{}:
	default:
	}
}

// markDue marks the action as due without waking the drain.
func (d *destination) markDue(action string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due[action] = true
}

func (d *destination) pokeAll() {
	for _, a := range d.actions {
		d.poke(a.name)
	}
}

// isDue reports whether something may be due.
func (d *destination) isDue() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.due) > 0
}

// take removes and returns the actions in which something may be due, beginning with the one whose turn it is. Paused
// actions are left out: the sweep pokes again when they are resumed.
func (d *destination) take() (indexes []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.actions {
		index := (d.next + i) % len(d.actions)
		if name := d.actions[index].name; d.due[name] {
			delete(d.due, name)
			if !d.paused[name] {
				indexes = append(indexes, index)
			}
		}
	}
	d.next = (d.next + 1) % len(d.actions)
	return indexes
}

// setPaused takes what a sweep saw: actions, "" for all. A claim looks for itself; this saves claims that would find
// nothing.
func (d *destination) setPaused(paused map[string]bool) {
	d.mu.Lock()
	changed := !maps.Equal(d.paused, paused)
	d.paused = paused
	d.mu.Unlock()
	if !changed {
		return
	}
	if len(paused) == 0 {
		d.core.log.Info("dispatcher: no pause is in force any more", slog.String("destination", d.name))
		return
	}
	for action := range paused {
		d.core.log.Info("dispatcher: paused: nothing is claimed until it is resumed (outbox.Resume, worker resume)",
			slog.String("destination", d.name), slog.String("action", action))
	}
}

// isPaused reports whether the last sweep saw the action paused; "" is the whole destination.
func (d *destination) isPaused(action string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.paused[action] || d.paused[""]
}

// mayClaim reports whether this worker claims for the destination: not if all of it is paused, not without the worker's
// lock, and not with outcomes that the database has not taken yet.
func (d *destination) mayClaim() bool {
	return !d.isPaused("") && d.core.self.holds() && !d.settler.isBehind() && !d.settler.isHeldUp()
}

// mayApply reports whether answered intents of the action are claimed. A paused action's answers wait too: a person who
// pauses an action expects that nothing happens to it.
func (d *destination) mayApply(a *action) bool { return d.mayClaim() && !d.isPaused(a.name) }

// heldUp returns how long nothing can be claimed because the destination is at its rate or its breaker is open.
func (d *destination) heldUp(now time.Time) time.Duration {
	wait := d.rate.Wait(now)
	if !d.mixed {
		wait = max(wait, d.breaker.Wait(now))
	}
	return wait
}

// busyUntil notes when an intent that was postponed for a busy endpoint is due.
func (d *destination) busyUntil(until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if until.After(d.until) {
		d.until = until
	}
}

// shareEnded ends a claim's part in its share: its slot is free.
func (d *destination) shareEnded(c *claim) {
	if by := c.action.policy.FairBy; by != "" {
		d.busy.add(by, -1, c.Share)
	}
}

// tries is what the watch knows about the claims of an action. All times are monotonic.
type tries struct {
	since time.Time // when the watch first saw something due and nothing in the way
	began time.Time // when the running claim began; zero: no claim runs
	ended time.Time // when the last one ended without an error
	err   string    // of the last one
}

// mark is an action's low-water mark of due_at. Entries of the index before it are dead (a long snapshot keeps them),
// so claims start from it. A row below it, from a late commit, is found by a full scan about once a second.
type mark struct {
	dueAt time.Time
	full  time.Time // when the last full scan began

	filled time.Time // of a fair action: how far intents without a share were looked for
}

// markSlack keeps the mark behind the youngest claimed row by as much as an insert's commit usually takes.
const markSlack = 100 * time.Millisecond

// stint is a River job that offers to run a shift.
type stint struct {
	begin chan struct{} // closed by the keeper: drain now
	ended chan struct{} // closed by the job
}

// queueName is the River queue of a destination.
func queueName(destination string) string { return "samekey_" + destination }
