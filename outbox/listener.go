package outbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/wake"
)

// listener serves all calls of Await on one pool. The first waiter starts it, and it ends after the last one. It has
// two goroutines: run reads states, and listen (hear.go) hears which intents have ended.
//
// No table of waiters is needed: LISTEN is what registers a process. A hint on the workers' channel tells them for which
// actions a process waits. A worker that heard it announces each end of these actions, after the commit and in a
// statement of its own (dispatcher/announce.go), for 15 s; the hint is repeated every 5 s. An announcement is only a
// reason to read: the state that is read counts.
//
//	the end commits before the waiter's first read       the first read sees it
//	it commits after the first read, and is announced
//	before the waiter is here                            each new waiter is read once more after it joined
//	it commits after that read                           it is announced after its commit, so the read that follows the
//	                                                     announcement sees it
//	it commits before LISTEN does                        all waiters are read after LISTEN
//	it commits before the worker has heard the hint      not announced: the reads 50, 150, 350 .. ms after a hint find it
//	the hint, or an announcement, is lost                the next regular read finds it, a second later at most
//	the worker dies between commit and announcement      likewise
//	the listening connection is lost                     likewise, until another one listens; then all waiters are read
//	a person decides, or replaces the intent             not announced: likewise. Then the successor's end is waited for
//	two waiters wait for one intent                      both are read
//	a waiter gives up while its end is being read        whichever comes first
//	the last waiter leaves while another joins           it joins this listener, which goes on, or begins a new one
type listener struct {
	pool  *pgxpool.Pool
	pace  pace
	end   context.CancelFunc
	poked chan struct{} // a waiter is due

	// The lock of listeners guards these.
	waiters map[uuid.UUID][]*waiter // by the id of the intent whose end counts
	count   int
	due     map[*waiter]bool // true: to be read now; false: is being read
	hears   bool             // a connection listens
	failing time.Time        // since when states cannot be read; zero: they can
	failure error            // why

	hinted map[string]time.Time // when workers were last told of an action; run's own
}

// listeners are those of this process.
var listeners = struct {
	sync.Mutex
	of map[*pgxpool.Pool]*listener
}{of: map[*pgxpool.Pool]*listener{}}

// pace is what tests change.
type pace struct {
	maxWaiters int           // of one pool
	firstRead  time.Duration // the time to the regular read after a hint; it doubles with each read
	deafRead   time.Duration // the longest, if no connection listens
	lastRead   time.Duration // the longest, if one does
	patience   time.Duration // for how long states may be unreadable before the waiters are told
}

var usualPace = pace{maxWaiters: 10_000, firstRead: 50 * time.Millisecond, deafRead: 250 * time.Millisecond, lastRead: time.Second, patience: 5 * time.Second}

const (
	readBatch = 1000
	readPause = 2 * time.Millisecond // after each read: what becomes due meanwhile is read together
	// hintEvery leaves room for two lost hints: workers announce for wake.AwaitedFor after one.
	hintEvery = wake.AwaitedFor / 3
)

// join adds a waiter to the pool's listener, which it starts if there is none.
func join(pool *pgxpool.Pool, w *waiter) (*listener, error) {
	listeners.Lock()
	defer listeners.Unlock()
	l := listeners.of[pool]
	if l == nil {
		ctx, cancel := context.WithCancel(context.Background())
		l = &listener{pool: pool, pace: usualPace, end: cancel, poked: make(chan struct{}, 1), waiters: map[uuid.UUID][]*waiter{},
			due: map[*waiter]bool{}, hinted: map[string]time.Time{}}
		listeners.of[pool] = l
		go l.run(ctx)
	}
	if l.count >= l.pace.maxWaiters {
		return nil, ErrTooManyWaiters
	}
	l.add(w)
	l.due[w] = true
	l.poke()
	return l, nil
}

// leave removes a waiter, and ends the listener after the last one. It returns why states cannot be read at the moment.
func (l *listener) leave(w *waiter) (failure error) {
	listeners.Lock()
	defer listeners.Unlock()
	l.remove(w)
	if l.count == 0 {
		if listeners.of[l.pool] == l {
			delete(listeners.of, l.pool)
		}
		l.end()
	}
	return l.failure
}

// run reads the states of waiters that are due, until ctx ends.
func (l *listener) run(ctx context.Context) {
	var hearing sync.WaitGroup
	hearing.Go(func() { l.listen(ctx) })
	defer hearing.Wait()
	wait := l.pace.firstRead
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-l.poked:
		case <-timer.C:
			l.setAllDue()
			wait = min(2*wait, l.longest())
			timer.Reset(wait)
		case <-ctx.Done():
			return
		}
		due := l.takeDue()
		if l.hint(due) {
			wait = l.pace.firstRead
			timer.Reset(wait)
		}
		for batch := range slices.Chunk(due, readBatch) {
			l.read(ctx, batch)
		}
		sleep(ctx, readPause)
	}
}

// hint tells the workers for which actions this process waits, unless they were told lately.
func (l *listener) hint(due []*waiter) (told bool) {
	var actions []string
	for _, w := range due {
		if time.Since(l.hinted[w.action]) > hintEvery {
			l.hinted[w.action] = time.Now()
			actions = append(actions, w.action)
		}
	}
	wake.Await(l.pool, actions...)
	return len(actions) > 0
}

// read reads the states of a batch, and ends the waits that are over.
func (l *listener) read(ctx context.Context, batch []*waiter) {
	states, err := readStates(ctx, l.pool, batch)
	listeners.Lock()
	defer listeners.Unlock()
	for _, w := range batch {
		if !l.due[w] { // true: its end was announced meanwhile
			delete(l.due, w)
		}
	}
	if err != nil {
		l.failed(ctx, err)
		return
	}
	l.failing, l.failure = time.Time{}, nil
	for _, state := range states {
		l.take(batch[state.N-1], state)
	}
}

// take ends a wait that is over. The caller holds the lock.
func (l *listener) take(w *waiter, state db.OutboxStatesRow) {
	due := l.due[w]
	if !l.remove(w) {
		return // it has given up
	}
	if w.see(state) {
		w.ended <- nil
		return
	}
	l.add(w) // perhaps under the id of a successor
	if due {
		l.due[w] = true
	}
}

// failed keeps why a read failed. The next regular read tries again, and after some time the waiters are told. The
// caller holds the lock.
func (l *listener) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	l.failure = err
	if l.failing.IsZero() {
		l.failing = time.Now()
	}
	if time.Since(l.failing) < l.pace.patience {
		return
	}
	for _, waiters := range l.waiters {
		for _, w := range slices.Clone(waiters) {
			l.remove(w)
			w.ended <- err
		}
	}
}

// heard takes ids of intents that have ended.
func (l *listener) heard(ids []uuid.UUID) {
	listeners.Lock()
	defer listeners.Unlock()
	for _, id := range ids {
		for _, w := range l.waiters[id] {
			l.due[w] = true
			l.poke()
		}
	}
}

// longest is the longest time between two regular reads.
func (l *listener) longest() time.Duration {
	listeners.Lock()
	defer listeners.Unlock()
	if l.hears {
		return l.pace.lastRead
	}
	return l.pace.deafRead
}

// setHears takes that a connection listens, or no longer does. What ended before was announced to no one.
func (l *listener) setHears(hears bool) {
	listeners.Lock()
	defer listeners.Unlock()
	l.hears = hears
	l.allDue()
}

func (l *listener) setAllDue() {
	listeners.Lock()
	defer listeners.Unlock()
	l.allDue()
}

// allDue has all waiters read. The caller holds the lock.
func (l *listener) allDue() {
	for _, waiters := range l.waiters {
		for _, w := range waiters {
			l.due[w] = true
			l.poke()
		}
	}
}

func (l *listener) takeDue() (due []*waiter) {
	listeners.Lock()
	defer listeners.Unlock()
	for w, now := range l.due {
		if now {
			l.due[w] = false
			due = append(due, w)
		}
	}
	return due
}

func (l *listener) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// add and remove keep the waiters. The caller holds the lock.
func (l *listener) add(w *waiter) {
	l.waiters[w.seen.ID] = append(l.waiters[w.seen.ID], w)
	l.count++
}

func (l *listener) remove(w *waiter) (was bool) {
	waiters := l.waiters[w.seen.ID]
	i := slices.Index(waiters, w)
	if i < 0 {
		return false
	}
	l.waiters[w.seen.ID] = slices.Delete(waiters, i, i+1)
	if len(waiters) == 1 {
		delete(l.waiters, w.seen.ID)
	}
	delete(l.due, w)
	l.count--
	return true
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
