package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey/internal/db"
)

// lane is a destination at work on this node. It owns the calls: a drain claims for it and may end while they go on,
// so one slow call never holds up its destination.
type lane struct {
	node    *node
	name    string
	queue   string // of River; pausing it stops the claims
	actions []*action
	marks   []mark

	off int // how many intents a drain has put off

	slots     chan struct{} // one for each call under way
	rate      *rate
	breaker   *breaker   // of the actions that have no endpoints
	endpoints *endpoints // of the others
	mixed     bool       // some of the actions, or all, have endpoints

	poked  chan struct{} // something was flagged
	paused atomic.Bool   // what the last sweep saw; the claim sees for itself

	mu       sync.Mutex
	due      map[string]bool // actions in which something may be due
	draining bool            // a drain runs on this node
	asked    time.Time       // when a drain was last asked for
	next     int             // the action whose turn it is
	until    time.Time       // intents were put off for busy endpoints, to be due by then
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
	// shift is how long a drain lasts at most, linger how long it waits for more when nothing is due.
	shift  = 20 * time.Second
	linger = 3 * time.Second
)

func newLane(n *node, dest *destination) *lane {
	l := &lane{
		node: n, name: dest.name, queue: queueName(dest.name), actions: dest.actions, marks: make([]mark, len(dest.actions)),
		slots: make(chan struct{}, dest.limits.Concurrency), poked: make(chan struct{}, 1), due: map[string]bool{},
		rate: newRate(dest.limits), breaker: newBreaker(dest.limits, n.draw), endpoints: newEndpoints(dest.limits, n.draw),
		mixed: dest.hasEndpoints(),
	}
	l.flagAll()
	return l
}

func (l *lane) flag(action string) {
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

func (l *lane) flagAll() {
	for _, a := range l.actions {
		l.flag(a.name)
	}
}

// take removes and returns the flagged actions, beginning with the one whose turn it is.
func (l *lane) take() (indexes []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.actions {
		index := (l.next + i) % len(l.actions)
		if name := l.actions[index].name; l.due[name] {
			delete(l.due, name)
			indexes = append(indexes, index)
		}
	}
	l.next = (l.next + 1) % len(l.actions)
	return indexes
}

// mayClaim says whether this node takes work for the lane: not while the queue is paused, without its lock, or with
// outcomes that the database has not taken yet.
func (l *lane) mayClaim() bool {
	return !l.paused.Load() && l.node.session.holds() && !l.node.behind.Load() && l.node.stuck.Load() < maxStuck
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

// drain claims and starts calls until the shift is over, or until nothing was due for linger. It ends at once when ctx
// does. What is under way then stays the lane's.
func (l *lane) drain(ctx context.Context, shift, linger time.Duration) error {
	end := time.NewTimer(shift)
	defer end.Stop()
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for l.mayClaim() {
		if wait := l.heldUp(time.Now()); wait > 0 {
			// It does not end for that: this node would take the next drain, which another asked for, who can claim.
			select {
			case <-time.After(wait):
			case <-l.poked: // its breaker may be closed
				continue
			case <-end.C: // a sweep asks for another drain when it is over
				return nil
			case <-ctx.Done():
				return nil
			}
		}
		select { // wait for a free slot
		case l.slots <- struct{}{}:
			<-l.slots
		case <-end.C:
			return nil
		case <-ctx.Done():
			return nil
		}
		claimed, err := l.claimAll(ctx)
		if err != nil && ctx.Err() == nil {
			l.node.log.WarnContext(ctx, "dispatcher: claim failed", slog.String("destination", l.name), slog.String("error", errorText(err)))
			return err // the sweep starts a drain again when the database answers
		}
		if claimed > 0 {
			idle.Reset(linger)
			select {
			case <-end.C:
				return nil
			case <-ctx.Done():
				return nil
			default:
				continue
			}
		}
		select {
		case <-l.poked:
		case <-idle.C:
			return nil
		case <-end.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// claimAll claims once from each flagged action, as far as slots are free, and starts what it got. What was put off counts
// as claimed.
func (l *lane) claimAll(ctx context.Context) (claimed int, err error) {
	indexes := l.take()
	for i, index := range indexes {
		free := l.reserve()
		if free == 0 {
			for _, rest := range indexes[i:] { // their turn is still to come
				l.flag(l.actions[rest].name)
			}
			return claimed, nil
		}
		got, may, err := l.claim(ctx, index, free)
		claimed += got
		switch {
		case err != nil:
			for _, rest := range indexes[i:] {
				l.flag(l.actions[rest].name)
			}
			return claimed, err
		case may == notYet:
			l.keep(l.actions[index].name)
		case may > 0 && got == may:
			l.flag(l.actions[index].name) // there may be more
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
	var latest time.Time
	var on, off []*claim
	var delays []time.Duration
	for i := range rows {
		if rows[i].DueAt.After(latest) {
			latest = rows[i].DueAt
		}
		c := &claim{OutboxQueueClaimRow: rows[i], action: a, worker: params.Worker, asked: asked}
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
	for _, c := range on {
		l.node.open.Add(1)
		go func() {
			defer l.release(1)
			defer l.leave(c)
			l.node.work(c)
		}()
	}
	if mark := latest.Add(-markSlack); len(rows) == may || mark.After(m.dueAt) {
		m.dueAt = mark // a full batch may lower it: there may be more above what a full scan met
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
		Action: a.name, Mark: from, Worker: l.node.session.id(), Queue: l.queue, MaxCount: int32(maxCount),
		Lease: a.policy.Lease, Repeatable: a.policy.Class.repeatable(), NeedsApproval: a.policy.Class == IrreversibleWrite, Reserve: a.policy.Timeout + windowMargin,
		Fixes: a.fixes(), SentTo: a.sentTo(),
	}
	switch w := a.policy.KeyWindow; {
	case w == Forever:
		p.Forever = true
	case w > 0:
		p.KeyWindow = pgtype.Interval{Microseconds: w.Microseconds(), Valid: true}
	}
	return p
}

// flagged says whether something may be due.
func (l *lane) flagged() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due) > 0
}

// begin marks that a drain runs on this node; false where one does already, or where the node is stopping.
func (l *lane) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining || !l.node.enter() {
		return false
	}
	l.draining = true
	return true
}

func (l *lane) end() {
	defer l.node.drains.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = false
	l.asked = time.Time{}
}

// ask says whether a drain should be asked for: it may claim or soon will, none runs here, and none was asked for within patience.
func (l *lane) ask(patience time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining || !l.mayClaim() || l.heldUp(time.Now()) > l.node.linger || time.Since(l.asked) < patience {
		return false
	}
	l.asked = time.Now()
	return true
}
