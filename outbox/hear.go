package outbox

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/wake"
)

const (
	// hearRetry is how soon a connection is tried again that was lost, or that the pool could not spare.
	hearRetry = time.Second
	// hearCheck is how often the connection is used: one that was cut somewhere on the way looks alive for hours.
	hearCheck = 15 * time.Second
	// hearTimeout bounds each statement, and the wait for a connection.
	hearTimeout = 5 * time.Second
)

var (
	errNoSpare = errors.New("the pool has no connection to spare")
	// errPooler: LISTEN registers the server's session, which a pooler in transaction mode gives to other clients.
	errPooler = errors.New("a pooler is between the process and the server")
)

// listen hears announcements until ctx ends. Whatever keeps it from hearing, the regular read goes on.
func (l *listener) listen(ctx context.Context) {
	if l.pool.Config().ConnConfig.OnNotification != nil {
		return // the application's own function gets all notifications
	}
	for ctx.Err() == nil {
		if err := l.hear(ctx); errors.Is(err, errPooler) {
			return
		}
		sleep(ctx, hearRetry)
	}
}

// hear listens on one connection of the pool, until it is lost or ctx ends. It leaves at least one to the callers.
func (l *listener) hear(ctx context.Context) error {
	if stat := l.pool.Stat(); stat.MaxConns()-stat.AcquiredConns() < 2 {
		return errNoSpare
	}
	acquiring, cancel := context.WithTimeout(ctx, hearTimeout)
	defer cancel()
	acquired, err := l.pool.Acquire(acquiring)
	if err != nil {
		return err
	}
	defer acquired.Release()
	conn := acquired.Conn()
	if err := checkDirect(ctx, conn); err != nil {
		return err
	}
	defer unlisten(conn)
	if err := listen(ctx, conn); err != nil {
		return err
	}
	l.setHears(true)
	defer l.setHears(false)
	for {
		ids, err := nextEnded(ctx, conn)
		if err != nil {
			return err
		}
		l.heard(ids)
	}
}

// checkDirect compares the process id that the connection got when it began with the one that serves it now.
func checkDirect(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, hearTimeout)
	defer cancel()
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	if pid != conn.PgConn().PID() {
		return errPooler
	}
	return nil
}

func listen(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, hearTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, "listen "+wake.Ended)
	return err
}

// nextEnded waits for the next announcement. It returns no id at least every hearCheck, after proof that the connection
// lives.
func nextEnded(ctx context.Context, conn *pgx.Conn) (ids []uuid.UUID, err error) {
	waiting, cancel := context.WithTimeout(ctx, hearCheck)
	defer cancel()
	notification, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil && notification.Channel == wake.Ended:
		return endedIDs(notification.Payload), nil
	case err == nil:
		return nil, nil
	case ctx.Err() != nil || waiting.Err() == nil || conn.IsClosed():
		return nil, err
	}
	return nil, listen(ctx, conn)
}

// endedIDs leaves out what is not an id: any role can send a notification.
func endedIDs(payload string) (ids []uuid.UUID) {
	for text := range strings.SplitSeq(payload, ",") {
		if id, err := uuid.Parse(text); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// unlisten gives the connection back as it was, or closes it.
func unlisten(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if conn.IsClosed() {
		return
	}
	if _, err := conn.Exec(ctx, "unlisten "+wake.Ended); err != nil {
		_ = conn.Close(ctx)
		return
	}
	cancel()
	for { // what the connection keeps in memory
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return
		}
	}
}
