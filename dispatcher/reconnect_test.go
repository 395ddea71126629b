package dispatcher_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// A worker gives up a silent connection, and recovers soon after the balancer answers again.
func TestSilentBalancerIsGivenUp(t *testing.T) {
	b := setup(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	s := &balancer{b: b, listener: listener, target: fmt.Sprintf("%s:%d", config.ConnConfig.Host, config.ConnConfig.Port), conns: map[net.Conn]bool{}}
	s.wg.Go(s.serve)
	b.Cleanup(s.close)
	config.ConnConfig.Host, config.ConnConfig.Port = "127.0.0.1", uint16(listener.Addr().(*net.TCPAddr).Port)
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil
	pool, err := pgxpool.NewWithConfig(b.ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	d := b.dispatcherOn(pool, dispatcher.Config{})
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), b.post)
	b.start(d)
	s.silence(true)
	b.until("the session and the pool try to connect", func() bool { return s.held() >= 3 })
	s.silence(false) // for new connections
	spoke := time.Now()
	b.insert("charge_card")
	b.untilFinished()
	t.Logf("delivered %v after the balancer answered again", time.Since(spoke).Round(time.Millisecond))
	b.until("the worker has given up all silent connections", func() bool { return s.held() == 0 })
	b.until("the worker is ready", func() bool { return d.Ready() == nil })
	b.wantCalls(1)
}

type balancer struct {
	b        *bundle
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	silent bool
	conns  map[net.Conn]bool
	mute   int // open, silent connections
}

func (s *balancer) serve() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		silent := s.silent
		s.conns[client] = true
		s.mu.Unlock()
		if silent {
			s.count(1)
			s.wg.Go(func() {
				_, _ = io.Copy(io.Discard, client) // until the worker closes it, or the test does
				s.count(-1)
			})
			continue
		}
		server, err := net.Dial("tcp", s.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		s.mu.Lock()
		s.conns[server] = true
		s.mu.Unlock()
		pipe := func(to, from net.Conn) { _, _ = io.Copy(to, from); _ = to.Close(); _ = from.Close() }
		s.wg.Go(func() { pipe(client, server) })
		s.wg.Go(func() { pipe(server, client) })
	}
}

// silence breaks open connections and makes new ones silent. Silent ones stay silent, and the worker gets no error.
func (s *balancer) silence(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if silent {
		for conn := range s.conns {
			_ = conn.Close()
			delete(s.conns, conn)
		}
	}
	s.silent = silent
}

func (s *balancer) held() int { s.mu.Lock(); defer s.mu.Unlock(); return s.mute }

func (s *balancer) count(n int) { s.mu.Lock(); defer s.mu.Unlock(); s.mute += n }

func (s *balancer) close() {
	_ = s.listener.Close()
	s.silence(true)
	s.wg.Wait()
}

// After a restore, a new worker may get the id of a running one. Neither ends the other.
func TestTwoWorkersWithOneIDBothContinue(t *testing.T) {
	b := setup(t)
	g := newGate(1)
	b.gates = append(b.gates, g)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), g.handle)
	b.start(d)
	id := d.WorkerID()
	under := b.insert("charge_card")
	wait(b, "the call is in flight", g.began)

	// A session that waits for the lock gets it before the worker reconnects.
	stranger, err := pgx.Connect(b.ctx, b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stranger.Close(context.WithoutCancel(b.ctx)) })
	locked := make(chan error, 1)
	go func() {
		_, err := stranger.Exec(b.ctx, `select pg_advisory_lock(samekey.worker_class(), $1)`, id)
		locked <- err
	}()
	b.until("the stranger waits for the lock", func() bool {
		return b.count(`select count(*) from pg_locks where locktype = 'advisory' and not granted and pid = $1`, stranger.PgConn().PID()) == 1
	})
	b.exec(`select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid::bigint = samekey.worker_class()
		and objid::bigint = $1 and granted and mode = 'ExclusiveLock' and database = (select oid from pg_database where datname = current_database())`, id)
	if err := wait(b, "the stranger has the lock", locked); err != nil {
		b.Fatal(err)
	}
	b.until("the worker has another id", func() bool { return d.Ready() == nil && d.WorkerID() != id })
	later := b.insert("charge_card")
	b.untilStatus(later, "delivered")
	g.release()
	b.untilStatus(under, "delivered")
	b.wantHistory(under, "attempt:delivered:call-1")
	g.wantCalls(b, 2)
	if _, err := stranger.Exec(b.ctx, `select 1`); err != nil {
		t.Errorf("the stranger's session was ended: %v", err)
	}
}
