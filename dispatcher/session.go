package dispatcher

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/direct"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/schema"
)

// session is a worker's identity: a row in samekey.workers, and a connection of its own that holds the worker's
// advisory lock and listens for wake-ups. While the lock is held, others leave alone what this worker has claimed.
// queries/workers.sql says who owns an id, and what happens where two workers meet at one.
type session struct {
	*identity

	pool       *pgxpool.Pool
	ready      func(context.Context, *pgx.Conn, look) error // makes a connection one of the worker's
	log        *slog.Logger
	name       string
	actions    []string
	attention  []bool              // of the actions: whether they have an Attention function
	fairBy     []string            // of the actions
	woken      func(action string) // a notification came; action is what it names
	awaited    func(action string) // one came from a process that waits for ends of the action
	draw       func() int32        // an id at random
	deployment *deployment
	check      func(context.Context, *pgx.Conn) error // of what the database has for the actions, at the start

	former []db.WorkersSessionRow // sessions of this worker that may still hold the lock
}

const (
	sessionCheck  = 5 * time.Second        // how often a session proves that its connection lives, and writes its row
	sessionRetry  = 100 * time.Millisecond // the first wait after a lost connection; doubles up to reconnectWait
	reconnectWait = time.Second            // the longest: attempts that hang are bounded by connectTimeout
	formerLimit   = 100
	drawTries     = 20 // an id that is taken is one draw in two billion
)

var (
	errIDTaken  = errors.New("another live worker holds the lock of this worker's id")
	errLockBusy = errors.New("the lock of the worker's id is not free yet")
)

// randomID is what an id is drawn by: a worker that was copied with its memory draws another one too.
func randomID() int32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := int32(binary.BigEndian.Uint32(b[:]) >> 1); id > 0 {
			return id
		}
	}
}

// begin waits for a database that has this release's schema, and opens the session. No connection and no error means
// that ctx ended first.
func (s *session) begin(ctx context.Context) (*pgx.Conn, error) {
	for retry := (doubling{first: sessionRetry, most: sessionCheck}); ; {
		err := s.checkSchema(ctx)
		if errors.Is(err, schema.ErrTooOld) || errors.Is(err, schema.ErrTooNew) || errors.Is(err, schema.ErrEncoding) || errors.Is(err, schema.ErrSequences) {
			return nil, err
		}
		var conn *pgx.Conn
		if err == nil {
			if conn, err = s.open(ctx); err == nil {
				return conn, nil
			}
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		var mistakes ConfigErrors
		if errors.As(err, &mistakes) { // it names no deployment, or an SQL function is not as it must be
			return nil, err
		}
		if waitingCannotHelp(err) {
			return nil, &startError{err}
		}
		if !errors.Is(err, ErrDeployment) { // which was logged
			s.log.WarnContext(ctx, "dispatcher: waits for the database", slog.String("error", errorText(err)))
		}
		if !retry.sleep(ctx) {
			return nil, nil
		}
	}
}

// startError is an error at the start that stays until a person changes something. Its text says what.
type startError struct{ err error }

func (e *startError) Error() string { return "dispatcher: cannot start: " + errorText(e.err) }

// Unwrap returns the database's error.
func (e *startError) Unwrap() error { return e.err }

// checkSchema is bounded: a pool alone waits for a silent server for as long as its caller does.
func (s *session) checkSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout+sessionTimeout)
	defer cancel()
	return schema.Check(ctx, s.pool)
}

// open looks at the server's settings and at the actions' SQL functions, registers the worker and takes its lock.
func (s *session) open(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.connect(ctx, s.lookAtSettings)
	if err != nil {
		return nil, err
	}
	if err := s.check(ctx, conn); err != nil {
		closeConn(conn)
		return nil, err
	}
	if err := s.register(ctx, conn); err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("dispatcher: register worker: %w", err)
	}
	if err := s.registerActions(ctx, conn); err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("dispatcher: register actions: %w", err)
	}
	return conn, nil
}

// registerActions records what statements outside a worker must know about its actions.
func (s *session) registerActions(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	return db.New(conn).OutboxActionsRegister(ctx, db.OutboxActionsRegisterParams{Actions: s.actions, Attention: s.attention, FairBy: s.fairBy})
}

// lookAtSettings reports what the server, the database or the role says against the promises. A database that takes no
// writes is an error: it is waited for.
func (s *session) lookAtSettings(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	findings, err := schema.CheckSettings(ctx, conn)
	if err != nil {
		return err
	}
	var refused []error
	for _, f := range findings {
		if f.ReadOnly {
			refused = append(refused, errors.New("dispatcher: nothing is claimed: "+f.Problem))
			continue
		}
		s.log.WarnContext(ctx, "dispatcher: a setting of the database weakens what samekey promises",
			slog.String("setting", f.Setting), slog.String("value", f.Value), slog.String("problem", f.Problem))
	}
	return errors.Join(refused...)
}

// connect opens a connection outside the pool, so that neither the pool's size nor its limits of age touch the lock. The
// database must be that of this worker's deployment: the lock is not asked for in another.
func (s *session) connect(ctx context.Context, look look) (*pgx.Conn, error) {
	config := s.pool.Config()
	// ConnectTimeout holds for each host; the rest is for what the hooks do.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+len(config.ConnConfig.Fallbacks))*config.ConnConfig.ConnectTimeout+2*sessionTimeout)
	defer cancel()
	return direct.Connect(ctx, config, func(ctx context.Context, conn *pgx.Conn) error {
		if err := s.ready(ctx, conn, look); err != nil {
			return err
		}
		return s.deployment.check(ctx, conn)
	})
}

// register draws an id that no worker has, writes its row and takes its lock.
func (s *session) register(ctx context.Context, conn *pgx.Conn) error {
	q := db.New(conn)
	s.former = nil // none of them is of the id that comes now
	for range drawTries {
		id := s.draw()
		rows, err := q.WorkersRegister(ctx, db.WorkersRegisterParams{ID: id, Name: s.name, Actions: s.actions})
		if err != nil {
			return err
		}
		if rows == 0 {
			continue
		}
		s.current.Store(id)
		err = s.lock(ctx, conn)
		if !errors.Is(err, errIDTaken) && !errors.Is(err, errLockBusy) {
			return err
		}
		if err := q.WorkersRemove(ctx, id); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d ids were drawn, and each is taken", drawTries)
}

// lock takes this worker's lock, from its own former session where need be, and listens. errIDTaken: a stranger has it.
func (s *session) lock(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	q := db.New(conn)
	this, err := q.WorkersSession(ctx)
	if err != nil {
		return err
	}
	s.former = append(s.former, this) // before the lock is asked for: its answer may be lost
	if len(s.former) > formerLimit {
		s.former = slices.Delete(s.former, 1, 2) // the first had it
	}
	got, err := q.WorkersLock(ctx, s.id())
	if err != nil {
		return err
	}
	if !got {
		return s.clear(ctx, q)
	}
	if ours, err := q.WorkersHoldsLock(ctx, s.id()); err != nil {
		return err
	} else if !ours {
		return errors.New("the session lock went to another session: the worker needs a direct connection, not a pooler in transaction mode")
	}
	if err := s.sign(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{wake.Channel}.Sanitize()); err != nil {
		return err
	}
	s.former = []db.WorkersSessionRow{this}
	now := time.Now()
	s.held.Store(&now)
	return nil
}

// clear ends the former sessions of this worker that hold its lock.
func (s *session) clear(ctx context.Context, q *db.Queries) error {
	p := db.WorkersEndSessionParams{ID: s.id()}
	for _, f := range s.former[:len(s.former)-1] { // the last is this one
		p.Pids, p.Starts = append(p.Pids, f.Pid), append(p.Starts, f.Started)
	}
	holders, err := q.WorkersEndSession(ctx, p)
	switch {
	case err != nil:
		return err
	case holders.Strangers > 0:
		return errIDTaken
	case holders.Ended > 0:
		return fmt.Errorf("%w: the server has just ended the former session, which held it", errLockBusy)
	}
	return errLockBusy // another worker looks whether it is free
}

// sign writes the worker's row: a sign of life, for people and for statistics.
func (s *session) sign(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	return db.New(conn).WorkersHeartbeat(ctx, db.WorkersHeartbeatParams{ID: s.id(), Name: s.name, Actions: s.actions, Attention: s.attention})
}

// keep holds the lock until ctx ends, coming back after each lost connection with the same identity, and then leaves.
func (s *session) keep(ctx context.Context, conn *pgx.Conn) {
	retry := doubling{first: sessionRetry, most: reconnectWait}
	for {
		err := s.listen(ctx, conn)
		s.held.Store(nil)
		if ctx.Err() != nil {
			s.leave(conn)
			return
		}
		if !errors.Is(err, ErrDeployment) { // which was logged
			s.log.WarnContext(ctx, "dispatcher: lost the session that holds the worker's lock; no claims until it is back",
				slog.Int("worker", int(s.id())), slog.String("error", errorText(err)))
		}
		closeConn(conn)
		last := ""
		for conn = nil; conn == nil; {
			if conn, err = s.reopen(ctx); err == nil {
				break
			}
			if text := errorText(err); text != last && ctx.Err() == nil && !errors.Is(err, ErrDeployment) { // once for each reason
				last = text
				s.log.WarnContext(ctx, "dispatcher: the session is not back yet", slog.Int("worker", int(s.id())), slog.String("error", text))
			}
			if !retry.sleep(ctx) {
				return
			}
		}
		retry.reset()
		s.log.InfoContext(ctx, "dispatcher: holds the worker's lock again", slog.Int("worker", int(s.id())))
		s.woken("")
	}
}

// reopen comes back with the same id, or with another one where a stranger has taken that.
func (s *session) reopen(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.connect(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err = s.lock(ctx, conn); errors.Is(err, errIDTaken) {
		taken := s.id()
		if err = s.register(ctx, conn); err == nil {
			s.log.WarnContext(ctx, "dispatcher: another live worker has this worker's id, as after a restore of the database; it goes on under a new one",
				slog.Int("worker", int(taken)), slog.Int("new_worker", int(s.id())))
		}
	}
	if err != nil {
		closeConn(conn)
		return nil, err
	}
	return conn, nil
}

// listen hands on notifications until the connection or ctx ends. Every few seconds it gives a sign of life: a
// connection that was cut somewhere on the way looks alive for hours, and the worker's row may have been deleted. It
// also checks that the database is still that of its deployment: a dump may have been restored over it.
func (s *session) listen(ctx context.Context, conn *pgx.Conn) error {
	for due := time.Now().Add(sessionCheck); ; {
		waiting, cancel := context.WithDeadline(ctx, due)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			s.notified(notification.Payload)
			if time.Now().Before(due) {
				continue
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() == nil || conn.IsClosed():
			return err
		}
		if err := s.deployment.check(ctx, conn); err != nil {
			return err
		}
		if err := s.sign(ctx, conn); err != nil {
			return err
		}
		due = time.Now().Add(sessionCheck)
	}
}

// notified hands on what a notification is about.
func (s *session) notified(payload string) {
	if action, ok := wake.Awaited(payload); ok {
		s.awaited(action)
		return
	}
	s.woken(payload)
}

// leave removes the worker's row and ends the session, and the lock with it. What the worker still held by then is
// found by the sweep of another.
func (s *session) leave(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), sessionTimeout)
	defer cancel()
	if err := db.New(conn).WorkersRemove(ctx, s.id()); err != nil {
		s.log.DebugContext(ctx, "dispatcher: the worker's row stays until it is tidied away", slog.Int("worker", int(s.id())))
	}
	closeConn(conn)
}

func closeConn(conn *pgx.Conn) { direct.Close(context.Background(), conn) }
