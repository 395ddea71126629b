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

// Run delivers intents until ctx ends, then stops: it claims nothing more, lets calls in progress continue for
// Config.StopTimeout, settles their outcomes, and gives back claims whose calls had not begun. It returns nil after
// such a stop.
//
// It begins with [Dispatcher.Check] and a look at the schema, and returns their errors (schema.ErrTooOld: run `worker
// migrate`). It also returns errors that waiting cannot change: a wrong password, role or database, a missing right, no
// Config.Deployment. If the database is unavailable, or belongs to another deployment ([ErrDeployment]), at the start or
// later, Run waits; see [Dispatcher.Ready].
func (d *Dispatcher) Run(ctx context.Context) error {
	w, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.over(ctx, w)
	conn, err := w.session.begin(ctx)
	if err != nil || conn == nil { // nil: ctx ended first
		return err
	}

	base := context.WithoutCancel(ctx)
	claims, stopClaims := context.WithCancel(base)
	defer stopClaims()
	river, err := newRiver(claims, w)
	if err != nil {
		closeConn(conn)
		return err
	}

	w.applier.auto, w.attender.auto = true, true
	leave := w.attend(base, conn)
	var helpers group // they end with the claims
	helpers.run(func() { river.start(claims) })
	for _, dest := range w.destinations.list {
		helpers.run(func() { dest.keepShift(claims, river) })
	}
	helpers.run(func() { w.sweeper.run(claims) })
	d.worker.Store(w)
	w.log.InfoContext(ctx, "dispatcher: running", slog.Int("worker", int(w.session.id())), slog.String("name", w.session.name))
	<-ctx.Done()
	d.worker.Store(nil)

	w.stop()
	stopClaims()
	helpers.wait() // for running claims: their intents must still be given back
	river.stop()
	leave()
	w.log.InfoContext(base, "dispatcher: stopped", slog.Int("worker", int(w.session.id())))
	return nil
}

// Drain delivers until nothing is due, and returns how the claims ended. It needs no running River, and holds a
// worker's lock of its own: for tests and for cron. It also delivers what becomes due by a finished call's Apply or by
// a promotion. It leaves intents that are due later (a retry after its backoff). It waits for a destination's rate and
// for a busy endpoint. It leaves alone paused destinations, and destinations and endpoints with an open breaker or a
// vendor that wants fewer calls ([Limits.BreakAfter]): they count as having nothing due.
//
// When ctx ends it stops as [Dispatcher.Run] does, and returns ctx's error with what it counted.
func (d *Dispatcher) Drain(ctx context.Context) (Summary, error) {
	w, err := d.begin(ctx)
	if err != nil {
		return Summary{}, err
	}
	defer d.over(ctx, w)
	conn, err := w.session.open(ctx)
	if err != nil {
		return Summary{}, err
	}
	leave := w.attend(context.WithoutCancel(ctx), conn)

	err = w.drainRounds(ctx)
	w.stop()
	leave()
	return w.reports.summary(), err
}

// begin checks what is registered, and makes the parts. over ends what begin began.
func (d *Dispatcher) begin(ctx context.Context) (*worker, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if !d.running.TryLock() {
		return nil, ErrRunning
	}
	w, err := d.newWorker(context.WithoutCancel(ctx))
	if err != nil {
		d.running.Unlock()
	}
	return w, err
}

func (d *Dispatcher) newWorker(ctx context.Context) (*worker, error) {
	pool, ready, err := openPool(ctx, d.pool.Config(), d.registered)
	if err != nil {
		return nil, err
	}
	return newWorker(newCore(ctx, pool, d.log, d.config, d.times, d.draw, &d.refused), ready, d.drawID, d.sortedDestinations()), nil
}

func (d *Dispatcher) over(ctx context.Context, w *worker) {
	w.close()
	w.cancelCalls()
	d.repeats.flush(context.WithoutCancel(ctx))
	d.refused.err.Store(nil)
	d.running.Unlock()
}

// attend keeps the session and settles until leave is called. leave ends the calls in flight, then the last settles,
// then the session, and with it the worker's lock.
func (w *worker) attend(base context.Context, conn *pgx.Conn) (leave func()) {
	session, endSession := context.WithCancel(base)
	settling, cancelSettling := context.WithCancel(base)
	applying, endApplying := context.WithCancel(base)
	var sessions, settlers, appliers group
	appliers.run(func() { w.applier.run(applying) })
	sessions.run(func() { w.session.keep(session, conn) })
	settlers.run(func() { w.settler.run(settling) })
	return func() {
		defer cancelSettling()
		w.applier.stop()
		w.attender.stop()
		w.finishCalls()
		endApplying()
		appliers.wait()
		cancelSettlingAfter(settlers.done(), w.times.stopMargin, cancelSettling)
		endSession()
		sessions.wait()
	}
}

// finishCalls waits until the calls in flight have ended and are settled. If that takes longer than StopTimeout, it
// cancels their contexts. A handler that ignores its context is left behind.
func (w *worker) finishCalls() {
	ended := make(chan struct{})
	go func() { w.open.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(w.config.StopTimeout):
		w.log.Warn("dispatcher: calls in progress take longer than StopTimeout; their contexts are cancelled")
		w.cancelCalls()
		select {
		case <-ended:
		case <-time.After(w.times.stopMargin):
			w.log.Error("dispatcher: stopped with calls in progress that ignore their context; their intents are taken over")
		}
	}
	w.settler.stop()
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
