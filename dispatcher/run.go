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
// migrate`). A database that is away is waited for, at the start and later; see [Dispatcher.Ready].
func (d *Dispatcher) Run(ctx context.Context) error {
	if err := d.Check(); err != nil {
		return err
	}
	if !d.running.TryLock() {
		return ErrRunning
	}
	defer d.running.Unlock()

	base := context.WithoutCancel(ctx)
	calls, cancelCalls := context.WithCancel(base)
	defer cancelCalls()
	n := d.newNode(calls)
	conn, err := d.begin(ctx, n)
	if err != nil || conn == nil {
		return err
	}

	var client *riverClient
	claims, stopClaims := context.WithCancel(base)
	defer stopClaims()
	start := n.starter(claims, func() *riverClient { return client })
	if client, err = n.newRiver(claims, start); err != nil {
		closeConn(conn)
		return fmt.Errorf("dispatcher: make River's client: %w", err)
	}

	leave := n.attend(base, conn)
	var helpers group // ends with the claims
	if err := startRiver(ctx, client, n.log); err == nil {
		helpers.run(func() { n.keepStarting(claims, start) })
		helpers.run(func() { (&sweeper{node: n, start: start}).run(claims) })
		d.node.Store(n)
		n.log.InfoContext(ctx, "dispatcher: running", slog.Int("worker", int(n.session.id)), slog.String("name", n.session.name))
		<-ctx.Done()
		d.node.Store(nil)
	}

	n.stop()
	stopClaims()
	helpers.wait()
	n.drains.Wait() // for the claims under way: what they claimed must still be given back
	n.stopRiver(client)
	leave(cancelCalls)
	n.log.InfoContext(base, "dispatcher: stopped", slog.Int("worker", int(n.session.id)))
	return nil
}

// stopMargin is what a stop takes at most beyond its StopTimeout, for each of the last settles and River's own end.
const stopMargin = 5 * time.Second

// begin waits for a database that has this release's schema, and takes the worker's lock. No connection and no error
// means that ctx ended first.
func (d *Dispatcher) begin(ctx context.Context, n *node) (*pgx.Conn, error) {
	for wait := sessionRetry; ; wait = min(2*wait, sessionCheck) {
		err := schema.Check(ctx, d.pool)
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
		d.log.WarnContext(ctx, "dispatcher: waits for the database", slog.String("error", errorText(err)))
		if !sleep(ctx, wait) {
			return nil, nil
		}
	}
}

// startRiver starts River, which needs the database for that, however long it is away; an error means that ctx ended.
func startRiver(ctx context.Context, client *riverClient, log *slog.Logger) error {
	for wait := sessionRetry; ; wait = min(2*wait, sessionCheck) {
		// River's life is ended by stopRiver alone: cancelling the context of its Start is a stop of another kind.
		err := client.Start(context.WithoutCancel(ctx))
		if err == nil {
			return nil
		}
		log.WarnContext(ctx, "dispatcher: River does not start yet", slog.String("error", errorText(err)))
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

func (n *node) stopRiver(client *riverClient) {
	ctx, cancel := context.WithTimeout(context.Background(), n.stopMargin)
	defer cancel()
	err := client.Stop(ctx)
	if err == nil {
		return
	}
	n.log.WarnContext(ctx, "dispatcher: River takes long to stop and is cut off", slog.String("error", errorText(err)))
	hard, cancelHard := context.WithTimeout(context.Background(), n.stopMargin)
	defer cancelHard()
	_ = client.StopAndCancel(hard)
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
	var sessions, settlers group
	sessions.run(func() { n.session.keep(session, conn) })
	settlers.run(func() { n.newSettler().run(settling) })
	return func(cancelCalls context.CancelFunc) {
		defer cancelSettling()
		n.finish(n.config.StopTimeout, cancelCalls)
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
