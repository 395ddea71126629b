package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The order in which the parts start and stop, and nothing else.

// ErrRunning is returned by a second Run or Drain of one dispatcher. Make another dispatcher, or wait for the first.
var ErrRunning = errors.New("dispatcher: already running")

// Run delivers intents until ctx ends, then stops: it claims nothing more, lets calls under way go on for Config.StopTimeout,
// settles their outcomes, and gives back claims whose calls had not begun. It returns nil after such a stop.
//
// It begins with [Dispatcher.Check] and a look at the schema, and returns their errors (schema.ErrTooOld: run `worker migrate`). It
// also returns errors that waiting cannot change: a wrong password, role or database, a missing right. If the database is
// unavailable, at the start or later, Run waits for it; see [Dispatcher.Ready].
func (d *Dispatcher) Run(ctx context.Context) error {
	n, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.over(ctx, n)
	conn, err := n.session.begin(ctx)
	if err != nil || conn == nil { // nil: ctx ended first
		return err
	}

	base := context.WithoutCancel(ctx)
	claims, stopClaims := context.WithCancel(base)
	defer stopClaims()
	river, err := newRiver(n, claims)
	if err != nil {
		closeConn(conn)
		return err
	}

	n.applier.auto = true
	leave := n.attend(base, conn)
	var helpers group // they end with the claims
	helpers.run(func() { river.start(claims) })
	for _, dest := range n.destinations.list {
		helpers.run(func() { dest.keepShift(claims, river) })
	}
	helpers.run(func() { n.sweeper.run(claims) })
	d.node.Store(n)
	n.log.InfoContext(ctx, "dispatcher: running", slog.Int("worker", int(n.session.id())), slog.String("name", n.session.name))
	<-ctx.Done()
	d.node.Store(nil)

	n.stop()
	stopClaims()
	helpers.wait() // for claims under way: their intents must still be given back
	river.stop()
	leave()
	n.log.InfoContext(base, "dispatcher: stopped", slog.Int("worker", int(n.session.id())))
	return nil
}

// Drain delivers until nothing is due, and returns how the claims ended. It needs no running River, and holds a worker's lock of
// its own: for tests and for cron. It also delivers what becomes due by a finished call's Apply or by a promotion. It leaves what
// is due later (a retry after its backoff). It waits for a destination's rate and for a busy endpoint. It leaves alone paused
// destinations, and destinations and endpoints with an open breaker or a vendor that wants fewer calls ([Limits.BreakAfter]):
// they count as having nothing due.
//
// When ctx ends it stops as [Dispatcher.Run] does, and returns ctx's error with what it counted.
func (d *Dispatcher) Drain(ctx context.Context) (Summary, error) {
	n, err := d.begin(ctx)
	if err != nil {
		return Summary{}, err
	}
	defer d.over(ctx, n)
	conn, err := n.session.open(ctx)
	if err != nil {
		return Summary{}, err
	}
	leave := n.attend(context.WithoutCancel(ctx), conn)

	err = n.drainRounds(ctx)
	n.stop()
	leave()
	return n.summary.get(), err
}

// begin checks what is registered, and makes the parts. over ends what begin began.
func (d *Dispatcher) begin(ctx context.Context) (*node, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if !d.running.TryLock() {
		return nil, ErrRunning
	}
	n, err := d.newNode(context.WithoutCancel(ctx))
	if err != nil {
		d.running.Unlock()
	}
	return n, err
}

func (d *Dispatcher) over(ctx context.Context, n *node) {
	n.close()
	n.cancelCalls()
	d.repeats.flush(context.WithoutCancel(ctx))
	d.running.Unlock()
}

// stopMargin is how much longer than StopTimeout a stop takes at most, for the last settles and for River's own end each.
const stopMargin = 5 * time.Second

// attend keeps the session and settles until leave is called. leave ends the calls under way, then the last settles, then the
// session, and with it the worker's lock.
func (n *node) attend(base context.Context, conn *pgx.Conn) (leave func()) {
	session, endSession := context.WithCancel(base)
	settling, cancelSettling := context.WithCancel(base)
	applying, endApplying := context.WithCancel(base)
	var sessions, settlers, appliers group
	appliers.run(func() { n.applier.run(applying) })
	sessions.run(func() { n.session.keep(session, conn) })
	settlers.run(func() { n.settler.run(settling) })
	return func() {
		defer cancelSettling()
		n.applier.stop()
		n.finishCalls()
		endApplying()
		appliers.wait()
		cancelSettlingAfter(settlers.done(), n.stopMargin, cancelSettling)
		endSession()
		sessions.wait()
	}
}

// finishCalls waits until the calls under way have ended and are settled. If that takes longer than StopTimeout, it cancels their
// contexts. A handler that ignores its context is left behind.
func (n *node) finishCalls() {
	ended := make(chan struct{})
	go func() { n.open.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(n.config.StopTimeout):
		n.log.Warn("dispatcher: calls under way take longer than StopTimeout; their contexts are cancelled")
		n.cancelCalls()
		select {
		case <-ended:
		case <-time.After(n.stopMargin):
			n.log.Error("dispatcher: stopped with calls under way that ignore their context; their intents are taken over")
			n.settler.abandon()
			return
		}
	}
	n.settler.stop()
}

// cancelSettlingAfter gives the last settles some time.
func cancelSettlingAfter(done <-chan struct{}, patience time.Duration, cancel context.CancelFunc) {
	select {
	case <-done:
	case <-time.After(patience):
		cancel()
		<-done
	}
}

// group is a few goroutines that end together.
type group struct{ wg sync.WaitGroup }

func (g *group) run(fn func()) { g.wg.Go(fn) }
func (g *group) wait()         { g.wg.Wait() }

func (g *group) done() <-chan struct{} {
	done := make(chan struct{})
	go func() { g.wg.Wait(); close(done) }()
	return done
}
