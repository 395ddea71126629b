package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/schema"
)

// ErrRunning is returned by a second Run or Drain of one dispatcher. Make another dispatcher, or wait for the first.
var ErrRunning = errors.New("dispatcher: it is running already")

// Run delivers intents until ctx ends, then stops: no claim is made any more, calls under way may end within
// Config.StopTimeout, what they came to is settled, and what was claimed and not begun is given back. It returns nil
// after such a stop.
//
// It begins with [Dispatcher.Check] and a look at the schema, whose errors it returns (schema.ErrTooOld: run `worker
// migrate`), and with what waiting cannot change: a wrong password, role or database, a missing right. A database that is away is waited for, at the start and later; see [Dispatcher.Ready].
func (d *Dispatcher) Run(ctx context.Context) error {
	if err := d.Check(); err != nil {
		return err
	}
	if !d.running.TryLock() {
		return ErrRunning
	}
	defer d.running.Unlock()
	defer d.repeats.flush(context.WithoutCancel(ctx))

	base := context.WithoutCancel(ctx)
	calls, cancelCalls := context.WithCancel(base)
	defer cancelCalls()
	n, err := d.newNode(calls)
	if err != nil {
		return err
	}
	defer n.close()
	conn, err := d.begin(ctx, n)
	if err != nil || conn == nil {
		return err
	}

	claims, stopClaims := context.WithCancel(base)
	defer stopClaims()
	client, err := n.newRiver(claims)
	if err != nil {
		closeConn(conn)
		return fmt.Errorf("dispatcher: make River's client: %w", err)
	}

	n.applier.auto = true
	leave := n.attend(base, conn)
	started := make(chan struct{}) // River is
	var helpers group              // ends with the claims
	helpers.run(func() { n.startRiver(claims, client, started) })
	for _, lane := range n.lanes {
		helpers.run(func() {
			lane.keepShift(claims, func(ctx context.Context) (int64, error) {
				select {
				case <-started:
					return n.insertDrain(ctx, client, lane)
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			})
		})
	}
	helpers.run(func() { (&sweeper{node: n}).run(claims) })
	d.node.Store(n)
	n.log.InfoContext(ctx, "dispatcher: running", slog.Int("worker", int(n.session.id())), slog.String("name", n.session.name))
	<-ctx.Done()
	d.node.Store(nil)

	n.stop()
	stopClaims()
	helpers.wait() // for the claims under way: what they claimed must still be given back
	n.stopRiver(client)
	leave(cancelCalls)
	n.log.InfoContext(base, "dispatcher: stopped", slog.Int("worker", int(n.session.id())))
	return nil
}

// startError is an error at the start that stays until a person changes something. Its text says what.
type startError struct{ err error }

func (e *startError) Error() string { return "dispatcher: cannot start: " + errorText(e.err) }

// Unwrap returns the database's error.
func (e *startError) Unwrap() error { return e.err }

// stopMargin is what a stop takes at most beyond its StopTimeout, for each of the last settles and River's own end.
const stopMargin = 5 * time.Second

// begin waits for a database that has this release's schema, and takes the worker's lock. No connection and no error
// means that ctx ended first.
func (d *Dispatcher) begin(ctx context.Context, n *node) (*pgx.Conn, error) {
	for wait := sessionRetry; ; wait = min(2*wait, sessionCheck) {
		err := n.checkSchema(ctx)
		if errors.Is(err, schema.ErrTooOld) || errors.Is(err, schema.ErrTooNew) || errors.Is(err, schema.ErrEncoding) || errors.Is(err, schema.ErrSequences) {
			return nil, err
		}
		var conn *pgx.Conn
		if err == nil {
			if conn, err = n.session.open(ctx); err == nil {
				return conn, nil
			}
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		if waitingCannotHelp(err) {
			return nil, &startError{err}
		}
		d.log.WarnContext(ctx, "dispatcher: waits for the database", slog.String("error", errorText(err)))
		if !sleep(ctx, wait) {
			return nil, nil
		}
	}
}

// checkSchema is bounded: a pool alone waits for a server that is silent for as long as its caller.
func (n *node) checkSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout+sessionTimeout)
	defer cancel()
	return schema.Check(ctx, n.pool)
}

// startRiver starts River, which needs the database for that, however long it is away, and closes started. Nothing waits for
// it: see shift.go. What is paused in River is copied first: River deletes the rows of queues that nobody worked for a day.
func (n *node) startRiver(ctx context.Context, client *riverClient, started chan<- struct{}) {
	for wait := sessionRetry; ; wait = min(2*wait, sessionCheck) {
		mirroring, cancel := context.WithTimeout(ctx, sessionTimeout)
		err := n.mirrorPauses(mirroring)
		cancel()
		if err == nil {
			// River's life is ended by stopRiver alone: cancelling the context of its Start is a stop of another kind.
			err = guarded(func() error { return client.Start(context.WithoutCancel(ctx)) })
		}
		if err == nil {
			close(started)
			return
		}
		if ctx.Err() == nil {
			n.log.WarnContext(ctx, "dispatcher: River does not start yet", slog.String("error", errorText(err)))
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (n *node) stopRiver(client *riverClient) {
	ctx, cancel := context.WithTimeout(context.Background(), n.stopMargin)
	defer cancel()
	err := guarded(func() error { return client.Stop(ctx) })
	if err == nil {
		return
	}
	n.log.WarnContext(ctx, "dispatcher: River takes long to stop and is cut off", slog.String("error", errorText(err)))
	hard, cancelHard := context.WithTimeout(context.Background(), n.stopMargin)
	defer cancelHard()
	_ = guarded(func() error { return client.StopAndCancel(hard) })
}

// finish waits for what is under way: until it has ended and is settled, or, where that takes longer than patience,
// with the calls' contexts cancelled. A handler that does not heed its context is left behind.
func (n *node) finish(patience time.Duration, cancelCalls context.CancelFunc) {
	ended := make(chan struct{})
	go func() { n.open.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		n.log.Warn("dispatcher: calls under way take longer than StopTimeout; their contexts are cancelled")
		cancelCalls()
		select {
		case <-ended:
		case <-time.After(n.stopMargin):
			n.log.Error("dispatcher: stopped with calls under way that do not heed their context; their intents are taken over")
			close(n.abandoned)
			return
		}
	}
	close(n.results)
}

// attend keeps the session and settles, until leave is called: it ends what is under way, then the last settles, then the
// session, and with it the worker's lock.
func (n *node) attend(base context.Context, conn *pgx.Conn) (leave func(cancelCalls context.CancelFunc)) {
	session, endSession := context.WithCancel(base)
	settling, cancelSettling := context.WithCancel(base)
	applying, endApplying := context.WithCancel(base)
	var sessions, settlers, appliers group
	appliers.run(func() { n.applier.run(applying) })
	sessions.run(func() { n.session.keep(session, conn) })
	settlers.run(func() { n.newSettler().run(settling) })
	return func(cancelCalls context.CancelFunc) {
		defer cancelSettling()
		n.applier.stop()
		n.finish(n.config.StopTimeout, cancelCalls)
		endApplying()
		appliers.wait()
		cancelSettlingAfter(settlers.done(), n.stopMargin, cancelSettling)
		endSession()
		sessions.wait()
	}
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
