package dispatcher

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// hostile has settings of a server, a database or a role that contradict what a worker needs.
const hostile = `do $$ declare s text; begin
	foreach s in array array['synchronous_commit = off', 'default_transaction_isolation = serializable', 'default_transaction_deferrable = on',
		'statement_timeout = ''1s''', 'lock_timeout = ''1ms''', 'idle_in_transaction_session_timeout = ''1s''',
		'idle_session_timeout = ''1s''', 'client_encoding = latin1', 'search_path = shop'] loop
		execute format('alter database %I set %s', current_database(), s);
	end loop;
end $$`

const settingsOf = `select concat_ws(' ', current_setting('synchronous_commit'), current_setting('transaction_isolation'),
	current_setting('default_transaction_deferrable'), current_setting('statement_timeout'), current_setting('lock_timeout'),
	current_setting('idle_in_transaction_session_timeout'), current_setting('idle_session_timeout'), current_setting('client_encoding'))`

// ownSettings are the worker's settings if no action has a Timeout of a minute or more.
const ownSettings = "on read committed off 2min 0 2min 0 UTF8"

// workerOn returns a worker whose pool is made from the given configuration.
func workerOn(t *testing.T, on *samekeytest.DB, change func(*pgxpool.Config)) *worker {
	t.Helper()
	config, err := pgxpool.ParseConfig(on.DSN)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	d := New(pool, &Config{Logger: slog.New(slog.DiscardHandler)})
	Handle(d, outbox.NewAction[[]byte]("charge_card"), Delivery[[]byte]{
		Policy: Policy{Class: IdempotentWrite, KeyWindow: Forever},
		Send:   func(context.Context, *Call, []byte) (Outcome, error) { return Delivered(Response{}), nil },
	})
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	n, err := d.newWorker(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	return n
}

func ask(t *testing.T, on interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, sql string) (text string) {
	t.Helper()
	if err := on.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func mustExec(t *testing.T, on *samekeytest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := on.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// An application may reset a session in any hook of its pool.
func TestWorkerConnectionsHaveTheirSettings(t *testing.T) {
	reset := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "reset all")
		return err
	}
	for name, change := range map[string]func(*pgxpool.Config){
		"no hooks":     nil,
		"AfterConnect": func(c *pgxpool.Config) { c.AfterConnect = reset },
		"BeforeAcquire": func(c *pgxpool.Config) {
			//nolint:staticcheck // an application may still set it
			c.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool { return reset(ctx, conn) == nil }
		},
		"PrepareConn": func(c *pgxpool.Config) {
			c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) { return true, reset(ctx, conn) }
		},
		"AfterRelease": func(c *pgxpool.Config) {
			c.AfterRelease = func(conn *pgx.Conn) bool { return reset(context.Background(), conn) == nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on := samekeytest.NewDB(t)
			mustExec(t, on, hostile)
			n := workerOn(t, on, change)
			for range 3 {
				if got := ask(t, n.pool, settingsOf); got != ownSettings {
					t.Errorf("a connection of the pool has\n\t%s\nwant\n\t%s", got, ownSettings)
				}
			}
			conn, err := n.session.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer n.session.leave(conn)
			if got := ask(t, conn, settingsOf); got != ownSettings {
				t.Errorf("the session has\n\t%s\nwant\n\t%s", got, ownSettings)
			}
			if got := ask(t, n.pool, "show search_path"); got != "shop" {
				t.Errorf("the search_path is %q, want the role's: an Apply may need it", got)
			}
		})
	}
}

func TestSynchronousCommitIsRaisedAndNeverLowered(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	for given, want := range map[string]string{
		"off": "on", "local": "on", "on": "on", "remote_write": "remote_write", "remote_apply": "remote_apply",
	} {
		n := workerOn(t, on, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = given })
		if got := ask(t, n.pool, "show synchronous_commit"); got != want {
			t.Errorf("%s became %s, want %s", given, got, want)
		}
	}
}

// The longest Timeout bounds an Apply, so the server's limits must be longer.
func TestServerLimitsExceedTheLongestTimeout(t *testing.T) {
	d := New(nil, nil)
	Handle(d, outbox.NewAction[[]byte]("export"), Delivery[[]byte]{
		Policy: Policy{Class: Read, Timeout: 10 * time.Minute},
		Send:   func(context.Context, *Call, []byte) (Outcome, error) { return Delivered(Response{}), nil },
	})
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	if settings := settingsFor(d.registered); strings.Count(settings, fmt.Sprintf("'%d'", (11*time.Minute).Milliseconds())) != 2 {
		t.Errorf("the limits are not 11 minutes: %s", settings)
	}
}

// Application code runs on a connection, which then serves a settle.
func TestApplySettingsAreReset(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	n := workerOn(t, on, func(c *pgxpool.Config) { c.MaxConns = 1 })
	n.destinations.list[0].actions[0].apply = func(ctx context.Context, tx pgx.Tx, _ Settled) error {
		_, err := tx.Exec(ctx, `set synchronous_commit = off; set statement_timeout = '30s'; set default_transaction_isolation = serializable`)
		return err
	}
	conn, err := n.session.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer n.session.leave(conn)
	mustExec(t, on, `select samekey.enqueue('tenant/orders', 'order-1', 'charge_card', '{}')`)
	c := claimOne(t, n)
	settle(t.Context(), n.settler, []result{{claim: c, settlement: c.action.decide(&c.OutboxQueueClaimRow, Delivered(Response{Code: "200"}))}})
	if _, err := n.applier.runner.applyOnce(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, n.pool, settingsOf); got != ownSettings {
		t.Errorf("the connection has\n\t%s\nwant\n\t%s", got, ownSettings)
	}
}

// If a pool sets its role after it connects, the worker's session has that role too.
func TestSessionRunsThePoolsHooks(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	var before, after int
	n := workerOn(t, on, func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { before++; return nil }
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			after++
			_, err := conn.Exec(ctx, "set application_name = 'from the hook'")
			return err
		}
	})
	conn, err := n.session.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer n.session.leave(conn)
	if got := ask(t, conn, "show application_name"); got != "from the hook" || before != 1 || after != 1 {
		t.Errorf("application_name is %q, BeforeConnect ran %d times, AfterConnect %d", got, before, after)
	}
}

func TestConnectTimeoutAndExecMode(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                       "5s cache statement",
		"connect_timeout=2":                      "2s cache statement",
		"statement_cache_capacity=0":             "5s describe exec",
		"default_query_exec_mode=cache_describe": "5s cache describe",
		"default_query_exec_mode=cache_describe&description_cache_capacity=0": "5s describe exec",
		"default_query_exec_mode=describe_exec":                               "5s describe exec",
		"default_query_exec_mode=exec":                                        "5s cache describe",
		"default_query_exec_mode=simple_protocol":                             "5s cache describe",
		"default_query_exec_mode=exec&description_cache_capacity=0":           "5s describe exec",
	} {
		config, err := pgxpool.ParseConfig("postgres://127.0.0.1/x?" + dsn)
		if err != nil {
			t.Fatal(err)
		}
		ownConnections(config, "")
		c := config.ConnConfig
		if got := fmt.Sprint(c.ConnectTimeout, " ", c.DefaultQueryExecMode); got != want {
			t.Errorf("%s: %s, want %s", dsn, got, want)
		}
		// A hook may override the settings.
		config, _ = pgxpool.ParseConfig("postgres://127.0.0.1/x")
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.DefaultQueryExecMode, c.ConnectTimeout = pgx.QueryExecModeExec, 0
			return nil
		}
		ownConnections(config, "")
		if err := config.BeforeConnect(t.Context(), config.ConnConfig); err != nil {
			t.Fatal(err)
		}
		if c := config.ConnConfig; c.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe || c.ConnectTimeout != connectTimeout {
			t.Errorf("after the hook: %v, %v", c.DefaultQueryExecMode, c.ConnectTimeout)
		}
	}
}

// A broken connection keeps its place in the pool until it is closed. pgx alone takes 15 to 30 seconds.
func TestSilentConnectionIsClosed(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	relay := startRelay(t, on)
	n := workerOn(t, on, func(c *pgxpool.Config) {
		c.ConnConfig.Host, c.ConnConfig.Port = "127.0.0.1", uint16(relay.listener.Addr().(*net.TCPAddr).Port)
		c.ConnConfig.TLSConfig, c.ConnConfig.Fallbacks = nil, nil
	})
	conn, err := n.session.connect(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	relay.mute.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "select 1"); err == nil {
		t.Fatal("it is not silent")
	}
	select {
	case <-conn.PgConn().CleanupDone():
	case <-time.After(closeWithin*2 + 6*time.Second): // less than pgx takes
		t.Error("it is not closed yet")
	}
}

// A connection attempt takes a place in the pool too, even if no caller waits for it any more.
func TestConnectAttemptTimesOut(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	n := workerOn(t, samekeytest.NewDB(t), func(c *pgxpool.Config) {
		c.ConnConfig.Host, c.ConnConfig.Port = "127.0.0.1", uint16(listener.Addr().(*net.TCPAddr).Port)
		c.ConnConfig.TLSConfig, c.ConnConfig.Fallbacks = nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := n.pool.Ping(ctx); err == nil {
		t.Fatal("it is not silent")
	}
	select {
	case <-gone:
	case <-time.After(30 * time.Second): // the pool's own limit is two minutes
		t.Error("the pool still waits for the server's first words")
		_ = listener.Close()
	}
}

// relay forwards data, and keeps it while it is mute.
type relay struct {
	listener net.Listener
	mute     atomic.Bool
}

func startRelay(t *testing.T, on *samekeytest.DB) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener}
	server := on.Config().ConnConfig
	target := net.JoinHostPort(server.Host, fmt.Sprint(server.Port))
	var wg sync.WaitGroup
	ended, end := context.WithCancel(context.Background())
	pass := func(to, from net.Conn) {
		defer to.Close()
		defer context.AfterFunc(ended, func() { _ = from.Close() })()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if r.mute.Load() {
				<-ended.Done()
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			wg.Go(func() { pass(server, client) })
			wg.Go(func() { pass(client, server) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); end(); wg.Wait() })
	return r
}
