package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
)

// lane is a destination at work on this node. It owns the calls: a drain claims for it and may end while they go on,
// so one slow call never holds up its destination. What wakes its drain and keeps it alive is in shift.go.
type lane struct {
	node    *node
	name    string
	queue   string // of River
	actions []*action
	marks   []mark

	off int // how many intents a drain has put off

	slots     chan struct{} // one for each call under way
	rate      *rate
	breaker   *breaker   // of the actions that have no endpoints
	endpoints *endpoints // of the others
	mixed     bool       // some of the actions, or all, have endpoints

	poked  chan struct{} // something was flagged
	stints chan stint    // River's jobs offer to drain
	load   loadBudget    // of the drain alone

	mu     sync.Mutex
	due    map[string]bool // actions in which something may be due
	paused map[string]bool // actions that the last sweep saw paused, "" for all; the claim sees for itself
	next   int             // the action whose turn it is
	until  time.Time       // intents were put off for busy endpoints, to be due by then
	tries  []tries         // of each action
	stuck  string          // what the watch has reported
}

// mark is an action's low-water mark of due_at: entries of the index before it are dead (a long snapshot keeps them), so
// claims start from it. What comes in below it, by a late commit, is met by a full scan about once a second.
type mark struct {
	dueAt time.Time
	full  time.Time // when the last full scan began
}

const (
	// markSlack keeps the mark behind the youngest claimed row by as much as an insert's commit usually takes.
	markSlack = 100 * time.Millisecond
	// fullScan is how often a claim starts from the beginning.
	fullScan = time.Second
	// claimLimit bounds one claim, claimTimeout how long it may take.
	claimLimit   = 1000
	claimTimeout = 10 * time.Second
	// claimRetry is the first wait after a claim that failed; it doubles up to claimMaxWait.
	claimRetry, claimMaxWait = 50 * time.Millisecond, time.Second
)

func newLane(n *node, dest *destination) *lane {
	l := &lane{
		node: n, name: dest.name, queue: queueName(dest.name), actions: dest.actions, marks: make([]mark, len(dest.actions)),
		slots: make(chan struct{}, dest.limits.Concurrency), poked: make(chan struct{}, 1), due: map[string]bool{},
		stints: make(chan stint), tries: make([]tries, len(dest.actions)), load: newLoadBudget(),
		rate: newRate(dest.limits), breaker: newBreaker(dest.limits, n.draw), endpoints: newEndpoints(dest.limits, n.draw),
		mixed: dest.hasEndpoints(),
	}
	l.pokeAll()
	return l
}

// poke says that something of the action may be due. It is the only signal to a drain: NOTIFY, sweep, settle, Apply, breakers
// and endpoints call it.
func (l *lane) poke(action string) {
	l.keep(action)
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// keep flags an action that something holds up: a drain that waits is not poked.
func (l *lane) keep(action string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due[action] = true
}

func (l *lane) pokeAll() {
	for _, a := range l.actions {
		l.poke(a.name)
	}
}

// take removes and returns the flagged actions, beginning with the one whose turn it is. One that is paused is left out: the
// sweep pokes again once it is not.
func (l *lane) take() (indexes []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.actions {
		index := (l.next + i) % len(l.actions)
		if name := l.actions[index].name; l.due[name] {
			delete(l.due, name)
			if !l.paused[name] {
				indexes = append(indexes, index)
			}
		}
	}
	l.next = (l.next + 1) % len(l.actions)
	return indexes
}

// mayClaim says whether this node takes work for the lane: not while all of it is paused, without the worker's lock, or with
// outcomes that the database has not taken yet.
func (l *lane) mayClaim() bool {
	return !l.isPaused("") && l.node.session.holds() && !l.node.behind.Load() && !l.node.heldUpOutcomes()
}

// heldUp is how long nothing can be claimed, since the destination is at its rate or its breaker is open.
func (l *lane) heldUp(now time.Time) time.Duration {
	wait := l.rate.wait(now)
	if !l.mixed {
		wait = max(wait, l.breaker.wait(now))
	}
	return wait
}

// busy notes that something was put off for an endpoint that is only busy.
func (l *lane) busy(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until.After(l.until) {
		l.until = until
	}
}

// drain is the body of a shift: it waits for pokes, claims and starts calls until the shift is over or ctx ends. What is
// under way then stays the lane's.
func (l *lane) drain(ctx context.Context, shift time.Duration) {
	end := time.NewTimer(shift)
	defer end.Stop()
	retry := claimRetry
	for {
		var again <-chan time.Time // to look without a poke
		if l.flagged() && l.mayClaim() && l.heldUp(time.Now()) == 0 {
			select { // wait for a free slot
			case l.slots <- struct{}{}:
				<-l.slots
			case <-end.C:
				return
			case <-ctx.Done():
				return
			}
			claimed, err := l.claimAll(ctx)
			if err != nil && ctx.Err() == nil {
				l.node.log.WarnContext(ctx, "dispatcher: claim failed", slog.String("destination", l.name), slog.String("error", errorText(err)))
				select { // whatever pokes meanwhile: no tight loop against a database in trouble
				case <-time.After(retry):
				case <-end.C:
					return
				case <-ctx.Done():
					return
				}
				retry = min(2*retry, claimMaxWait)
				continue
			}
			retry = claimRetry
			if claimed > 0 {
				select {
				case <-end.C:
					return
				case <-ctx.Done():
					return
				default:
					continue
				}
			}
		}
		if wait := l.heldUp(time.Now()); wait > 0 && l.flagged() {
			again = time.After(wait)
		}
		select {
		case <-l.poked:
		case <-again:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// claimAll claims once from each flagged action, as far as slots are free, and starts what it got. What was put off counts
// as claimed.
func (l *lane) claimAll(ctx context.Context) (claimed int, err error) {
	indexes := l.take()
	for i, index := range indexes {
		free := l.reserve()
		if free == 0 {
			for _, rest := range indexes[i:] { // their turn is still to come
				l.poke(l.actions[rest].name)
			}
			return claimed, nil
		}
		got, may, err := l.claim(ctx, index, free)
		claimed += got
		switch {
		case err != nil:
			for _, rest := range indexes[i:] {
				l.poke(l.actions[rest].name)
			}
			return claimed, err
		case may == notYet:
			l.keep(l.actions[index].name)
		case may > 0 && got == may:
			l.poke(l.actions[index].name) // there may be more
		}
	}
	return claimed, nil
}

// reserve takes all free slots, up to the limit of one claim.
func (l *lane) reserve() (free int) {
	for free < claimLimit {
		select {
		case l.slots <- struct{}{}:
			free++
		default:
			return free
		}
	}
	return free
}

func (l *lane) release(slots int) {
	for range slots {
		<-l.slots
	}
}

// notYet stands for the size of a claim that could not be made yet, though something may be due.
const notYet = -1

// claim takes due intents of one action, as many as there are slots reserved and as limits allow, and starts a goroutine
// for each. It returns how many it got, and of how many. The rows are read to their end, which is after the claim's commit,
// before the first is started: a fast settle must find what it settles.
func (l *lane) claim(ctx context.Context, index, slots int) (got, may int, err error) {
	ended := l.tried(index)
	defer func() { ended(err) }()
	a, m := l.actions[index], &l.marks[index]
	from, began := m.dueAt, time.Now()
	full := began.Sub(m.full) >= fullScan
	if full {
		from = time.Time{}
	}
	may, epoch, err := l.allowed(ctx, a, from, slots)
	l.release(slots - max(may, 0))
	if full && may != notYet {
		m.full = began
	}
	if may <= 0 || err != nil {
		return 0, may, err
	}
	asked := time.Now()
	// Not cut off by a stop: a claim that committed unseen would leave its intents leased to nobody.
	claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	params := l.claimParams(a, from, may)
	rows, err := l.node.q.OutboxQueueClaim(claiming, params)
	if err != nil {
		l.breaker.unused(epoch, may)
		l.release(may)
		return 0, may, err
	}
	l.release(may - len(rows))
	l.rate.unused(may - len(rows))
	l.breaker.unused(epoch, may-len(rows))
	if len(rows) == 0 {
		return 0, may, nil
	}
	full = len(rows) == may || rows[0].HasMore // there may be more
	var latest time.Time
	claims := make([]*claim, len(rows))
	for i := range rows {
		if rows[i].DueAt.After(latest) {
			latest = rows[i].DueAt
		}
		claims[i] = &claim{OutboxQueueClaimRow: rows[i], action: a, worker: params.Worker, asked: asked}
	}
	if mark := latest.Add(-markSlack); full || mark.After(m.dueAt) {
		m.dueAt = mark // a full batch may lower it: there may be more above what a full scan met
	}
	if full {
		may = len(rows)
	}
	if rows[0].PayloadDeferred {
		if err := l.read(ctx, claims); err != nil {
			l.breaker.unused(epoch, len(rows))
			delay := time.Second // no hot loop against a connection that is too slow
			if ctx.Err() != nil {
				delay = 0 // a stop: another worker may send it at once
			}
			l.giveBack(ctx, claims, delay)
			return len(rows), may, err
		}
	}
	var on, off []*claim
	var delays []time.Duration
	for _, c := range claims {
		c.resting, c.calls = a.beforeCall(&c.OutboxQueueClaimRow)
		if delay, ok := l.enter(c, epoch); !ok {
			off, delays = append(off, c), append(delays, delay)
			continue
		}
		on = append(on, c)
	}
	if a.stored {
		l.readEndpoints(ctx, on)
		l.rate.unused(uncallable(on)) // what rests for one that is stopped takes nothing from the others
	}
	if rows[0].PayloadDeferred {
		l.sending(ctx, a, on)
	}
	for _, c := range on {
		l.node.open.Add(1)
		go func() {
			defer l.release(1)
			defer l.leave(c)
			l.node.work(c)
		}()
	}
	if len(off) > 0 {
		l.putOff(ctx, off, delays)
		l.rate.unused(len(off))
		l.release(len(off))
		l.off += len(off)
	}
	return len(rows), may, nil
}

// allowed is how many intents the breaker and the rate let a claim take, up to want: none where nothing is due. The epoch is
// the breaker's.
func (l *lane) allowed(ctx context.Context, a *action, from time.Time, want int) (may, epoch int, err error) {
	may, epoch = want, -1
	if a.endpoint == nil {
		if may, epoch = l.breaker.admit(time.Now(), want); may == 0 {
			return notYet, epoch, nil
		}
	}
	if l.rate.perSecond == 0 {
		return may, epoch, nil
	}
	admitted := may
	may, due, err := l.rate.take(ctx, l.node.q, l.name, a, from, may)
	l.breaker.unused(epoch, admitted-may)
	if may == 0 && due {
		may = notYet
	}
	return may, epoch, err
}

func (l *lane) claimParams(a *action, from time.Time, maxCount int) db.OutboxQueueClaimParams {
	p := db.OutboxQueueClaimParams{
		Action: a.name, DueFrom: from, Worker: l.node.session.id(), Destination: l.name, MaxCount: int32(maxCount),
		MaxBytes: l.load.limit, InlineBytes: inlineBytes,
		Lease: a.policy.Lease, SafeToResend: a.policy.Class.repeatable(), NeedsApproval: a.policy.Class == IrreversibleWrite, MinWindowLeft: a.policy.Timeout + windowMargin,
		Renders: a.fixes(), SentTo: a.sentTo(),
	}
	p.KeyWindowForever, p.KeyWindow = a.keyWindow()
	return p
}

// keyWindow is the policy's, as queries take it.
func (a *action) keyWindow() (forever bool, window pgtype.Interval) {
	switch w := a.policy.KeyWindow; {
	case w == Forever:
		forever = true
	case w > 0:
		window = pgtype.Interval{Microseconds: w.Microseconds(), Valid: true}
	}
	return forever, window
}

// flagged says whether something may be due.
func (l *lane) flagged() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due) > 0
}
