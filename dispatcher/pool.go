package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/sqlstate"
)

// The worker works on connections of its own, made as the application's pool makes them (its address, its hooks, its
// role), with the session settings that the promises need. What a server, a database or a role sets for all sessions is
// meant for people and reports: with synchronous_commit off a crash takes back a claim whose call was made, and the
// intent is sent again.

const (
	// connectTimeout bounds an attempt to connect to one host, where the application's pool says nothing. Without it, a
	// balancer that accepts and stays silent keeps each attempt for two minutes.
	connectTimeout = 5 * time.Second
	// closeWithin bounds each step of closing a connection that broke.
	closeWithin = 2 * time.Second
	// settingsMargin is what a statement of the worker may take longer than the longest of its contexts. The context
	// ends it; the server's own limit is for a worker that was stopped, or whose host is gone, in the middle of a
	// transaction.
	settingsMargin = time.Minute
)

// settingsSQL sets what differs by server, database and role. Settings that the server does not know are left out
// (transaction_timeout came with version 17).
//
// synchronous_commit is raised, not lowered: remote_write and remote_apply wait for a standby too. "local" does not,
// and is raised as well: where there are synchronous standbys, a failover to one must not lose a claim; where there are
// none, "on" waits for the same.
//
// The first statement is for the second, which a short limit of the session's, such as one that an Apply left, would
// end.
//
// search_path stays, since an Apply may need it. samekey's own statements name their schema, and so do River's.
const settingsSQL = `set statement_timeout = 0;
select pg_catalog.set_config(s.name, s.value, false)
from (values
	('synchronous_commit', case when pg_catalog.current_setting('synchronous_commit') in ('remote_write', 'remote_apply')
	                            then pg_catalog.current_setting('synchronous_commit') else 'on' end),
	('default_transaction_isolation', 'read committed'),
	('default_transaction_deferrable', 'off'),
	('statement_timeout', '%[1]d'),
	('idle_in_transaction_session_timeout', '%[1]d'),
	('transaction_timeout', '0'),
	('idle_session_timeout', '0'),
	('lock_timeout', '0'),
	('client_encoding', 'UTF8')
) as s (name, value)
where pg_catalog.current_setting(s.name, true) is not null`

// look is what a session asks of a connection once the application's hooks have had it, before its settings are made.
type look func(context.Context, *pgx.Conn) error

// minConns is the least size of the worker's pool: an Apply has one, an Attention function another, and the others
// share the rest.
func minConns(actions []*action) int32 {
	if slices.ContainsFunc(actions, func(a *action) bool { return a.attention != nil }) {
		return 3
	}
	return 2
}

// openPool makes the pool of one Run or Drain, from a copy of the application's configuration. It connects when it is
// first used. ready makes a connection outside the pool one of the worker's.
func openPool(ctx context.Context, config *pgxpool.Config, actions []*action) (pool *pgxpool.Pool, ready func(context.Context, *pgx.Conn, look) error, err error) {
	config.MaxConns = max(config.MaxConns, minConns(actions)) // else one blocked Apply would stop claims and settles
	ready = ownConnections(config, settingsFor(actions))
	if pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
		return nil, nil, fmt.Errorf("dispatcher: open the worker's connections: %w", err)
	}
	return pool, ready, nil
}

// settingsFor is the statement that makes a session fit for these actions.
func settingsFor(actions []*action) string {
	longest := time.Minute // of upkeep
	for _, a := range actions {
		longest = max(longest, a.policy.Timeout)
	}
	return fmt.Sprintf(settingsSQL, (longest + settingsMargin).Milliseconds())
}

// ownConnections changes a copy of the application's configuration into that of the worker's connections. The
// application's hooks go first, so that what they set (a role, a search_path) is there, and does not undo the settings.
func ownConnections(config *pgxpool.Config, settings string) (ready func(context.Context, *pgx.Conn, look) error) {
	adjust(config.ConnConfig)
	before := config.BeforeConnect
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if before != nil {
			if err := before(ctx, c); err != nil {
				return err
			}
		}
		adjust(c)
		closeSoon(c)
		return nil
	}
	after := config.AfterConnect
	ready = func(ctx context.Context, conn *pgx.Conn, look look) error {
		if after != nil {
			if err := after(ctx, conn); err != nil {
				return err
			}
		}
		if look != nil {
			if err := look(ctx, conn); err != nil {
				return err
			}
		}
		useUUIDCodec(conn)
		return apply(ctx, conn, settings)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return ready(ctx, conn, nil) }
	prepare := config.PrepareConn
	//nolint:staticcheck // an application may still set it, and pgxpool obeys it
	if acquire := config.BeforeAcquire; prepare == nil && acquire != nil {
		prepare = func(ctx context.Context, conn *pgx.Conn) (bool, error) { return acquire(ctx, conn), nil }
	}
	hooks := prepare != nil || config.AfterRelease != nil // which may set, or reset, anything
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if prepare != nil {
			if ok, err := prepare(ctx, conn); !ok || err != nil {
				return ok, err
			}
		}
		if _, touched := conn.PgConn().CustomData()[touchedKey]; !touched && !hooks {
			return true, nil
		}
		if err := apply(ctx, conn, settings); err != nil {
			return false, ctx.Err() // another connection will do
		}
		delete(conn.PgConn().CustomData(), touchedKey)
		return true, nil
	}
	return ready
}

// adjust gives a connection a limit of time, and a mode in which every statement of the worker works: the exec mode and
// the simple protocol cannot encode arrays of uuid. cache_describe works wherever they do, behind a pooler too.
func adjust(c *pgx.ConnConfig) {
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = connectTimeout
	}
	mode := c.DefaultQueryExecMode
	if mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeCacheDescribe
	}
	if mode == pgx.QueryExecModeCacheDescribe && c.DescriptionCacheCapacity <= 0 ||
		mode == pgx.QueryExecModeCacheStatement && c.StatementCacheCapacity <= 0 {
		mode = pgx.QueryExecModeDescribeExec
	}
	c.DefaultQueryExecMode = mode
}

// closeSoon bounds the end of a connection that broke. pgx sends the server a request to cancel, over another
// connection, and then waits for the server's last words, for 15 s each; all that time the connection keeps its place
// in the pool. A balancer that says nothing would keep the whole pool of a busy worker for so long.
//
// c is the configuration of this one connection.
func closeSoon(c *pgx.ConnConfig) {
	var connected atomic.Bool // what is dialled from then on is a request to cancel
	after := c.Config.AfterConnect
	c.Config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected.Store(true)
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !connected.Load() {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return soonClosed{conn}, nil
		}
		dialling, cancel := context.WithTimeout(ctx, closeWithin)
		defer cancel()
		conn, err := dial(dialling, network, address)
		if err != nil {
			return nil, err
		}
		return conn, conn.SetDeadline(time.Now().Add(closeWithin))
	}
}

// soonClosed is a connection whose deadlines are near: pgx sets one in the future only as it closes it.
type soonClosed struct{ net.Conn }

func (c soonClosed) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(closeWithin); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}

// apply makes the settings, in one round trip whatever the mode.
func apply(ctx context.Context, conn *pgx.Conn, settings string) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, settings, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return fmt.Errorf("dispatcher: make the session's settings: %w", err)
	}
	return nil
}

const touchedKey = "samekey: settings may have been changed"

// touch has a connection's settings made again before its next use: code of the application runs on it.
func touch(conn *pgx.Conn) { conn.PgConn().CustomData()[touchedKey] = true }

// closePool closes the worker's connections. One that a handler left behind holds is not waited for.
func closePool(pool *pgxpool.Pool, patience time.Duration, log *slog.Logger) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		log.Warn("dispatcher: stopped with connections that are still in use; each is closed when it is given back")
	}
}

// resetReadOnly replaces a pool's connections after a failover left them on a server that takes no writes.
func resetReadOnly(pool *pgxpool.Pool, err error) {
	if sqlstate.Of(err) == sqlstate.ReadOnly {
		pool.Reset()
	}
}

// isReadCommitted makes each statement see what was committed before it began, whatever the database's default.
var isReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
