package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/wake"
)

// session is a worker's identity: a row in samekey.workers, and a connection of its own that holds the worker's
// advisory lock and listens for wake-ups. While the lock is held, others leave alone what this worker has claimed.
//
// A claim checks the lock itself, in the same statement, so held is only what this process believes: it saves claims
// that would find nothing.
type session struct {
	pool    *pgxpool.Pool
	log     *slog.Logger
	name    string
	actions []string
	woken   func(action string) // a notification came; action is what it names

	id   int32
	held atomic.Pointer[time.Time] // since when the lock is held, by the monotonic clock; nil while it is not
}

const (
	sessionCheck   = 5 * time.Second        // how often an idle session proves that its connection lives
	sessionTimeout = 5 * time.Second        // for each statement of a session
	sessionRetry   = 100 * time.Millisecond // the first wait after a lost connection; doubles up to sessionCheck
)

// open registers the worker and takes its lock.
func (s *session) open(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	id, err := db.New(conn).WorkersRegister(ctx, db.WorkersRegisterParams{Name: s.name, Actions: s.actions})
	if err == nil {
		s.id = id
		err = s.lock(ctx, conn)
	}
	if err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("dispatcher: register worker: %w", err)
	}
	return conn, nil
}

// connect opens a connection outside the pool, so that neither the pool's size nor its limits of age touch the lock.
func (s *session) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	config := s.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// lock takes this worker's lock, from its own former session where need be, and listens.
func (s *session) lock(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	q := db.New(conn)
	got, err := q.WorkersLock(ctx, s.id)
	if err != nil {
		return err
	}
	if !got {
		// Either the server still believes in our former connection, or somebody is probing the lock at this moment.
		if err := q.WorkersEndSession(ctx, s.id); err != nil {
			return err
		}
		return errors.New("the former session still holds the lock")
	}
	if ours, err := q.WorkersLockIsOurs(ctx, s.id); err != nil {
		return err
	} else if !ours {
		return errors.New("the session lock went to another session: the worker needs a direct connection, not a pooler in transaction mode")
	}
	if err := q.WorkersReturn(ctx, db.WorkersReturnParams{ID: s.id, Name: s.name, Actions: s.actions}); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{wake.Channel}.Sanitize()); err != nil {
		return err
	}
	now := time.Now()
	s.held.Store(&now)
	return nil
}

// keep holds the lock until ctx ends, coming back after each lost connection with the same identity, and then leaves.
func (s *session) keep(ctx context.Context, conn *pgx.Conn) {
	wait := sessionRetry
	for {
		err := s.listen(ctx, conn)
		s.held.Store(nil)
		if ctx.Err() != nil {
			s.leave(conn)
			return
		}
		s.log.WarnContext(ctx, "dispatcher: lost the session that holds the worker's lock; no claims until it is back",
			slog.Int("worker", int(s.id)), slog.String("error", errorText(err)))
		closeConn(conn)
		for conn = nil; conn == nil; wait = min(2*wait, sessionCheck) {
			if conn = s.reopen(ctx); conn == nil && !sleep(ctx, wait) {
				return
			}
		}
		wait = sessionRetry
		s.log.InfoContext(ctx, "dispatcher: holds the worker's lock again", slog.Int("worker", int(s.id)))
		s.woken("")
	}
}

func (s *session) reopen(ctx context.Context) *pgx.Conn {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil
	}
	if err := s.lock(ctx, conn); err != nil {
		closeConn(conn)
		return nil
	}
	return conn
}

// listen hands on notifications until the connection or ctx ends. An idle connection is asked for a sign of life, since
// one that was cut somewhere on the way looks alive for hours.
func (s *session) listen(ctx context.Context, conn *pgx.Conn) error {
	for {
		waiting, cancel := context.WithTimeout(ctx, sessionCheck)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			s.woken(notification.Payload)
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() == nil || conn.IsClosed():
			return err
		}
		asking, cancel := context.WithTimeout(ctx, sessionTimeout)
		err = db.New(conn).WorkersSeen(asking, s.id)
		cancel()
		if err != nil {
			return err
		}
	}
}

// leave removes the worker's row and ends the session, and the lock with it. What the worker still held by then is
// found by the sweep of another.
func (s *session) leave(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), sessionTimeout)
	defer cancel()
	if err := db.New(conn).WorkersRemove(ctx, s.id); err != nil {
		s.log.DebugContext(ctx, "dispatcher: the worker's row stays until it is tidied away", slog.Int("worker", int(s.id)))
	}
	closeConn(conn)
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// holds says whether the lock is held, as far as this process knows.
func (s *session) holds() bool { return s.held.Load() != nil }

// heldFor says for how long it has been.
func (s *session) heldFor() time.Duration {
	since := s.held.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}

// sleep waits for d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
