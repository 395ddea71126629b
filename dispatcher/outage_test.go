package dispatcher_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// wire is a network to the database that the test can cut: open connections break, and new ones are refused.
type wire struct {
	listener net.Listener
	target   string
	attempts atomic.Int32 // connection attempts while it was cut
	slow     atomic.Pointer[throttle]

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// wired returns a pool whose connections, and those made from its settings, use a wire.
func (b *bundle) wired() (*pgxpool.Pool, *wire) {
	b.Helper()
	config, err := pgxpool.ParseConfig(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	w := &wire{listener: listener, conns: map[net.Conn]bool{}}
	network, address := config.ConnConfig.Host, config.ConnConfig.Port
	w.target = (&net.TCPAddr{IP: net.ParseIP(network), Port: int(address)}).String()
	config.ConnConfig.Host, config.ConnConfig.Port = "127.0.0.1", uint16(listener.Addr().(*net.TCPAddr).Port)
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil // the wire is the only way to the server
	config.MaxConns = 8
	w.wg.Go(w.serve)
	pool, err := pgxpool.NewWithConfig(b.ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		pool.Close()
		_ = listener.Close()
		w.set(true)
		w.wg.Wait()
	})
	return pool, w
}

func (w *wire) serve() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.target)
		if err != nil || !w.join(client, server) {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		w.wg.Go(func() { w.pipe(slowed{client, w}, server) })
		w.wg.Go(func() { w.pipe(server, client) })
	}
}

// slowed is the database's end of a connection over a slow link.
type slowed struct {
	net.Conn
	w *wire
}

func (s slowed) Write(p []byte) (n int, err error) {
	link := s.w.slow.Load()
	if link == nil {
		return s.Conn.Write(p)
	}
	for len(p) > 0 && err == nil {
		part := min(len(p), 4<<10)
		link.take(part)
		var wrote int
		wrote, err = s.Conn.Write(p[:part])
		n, p = n+wrote, p[part:]
	}
	return n, err
}

func (w *wire) join(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		w.attempts.Add(1)
		return false
	}
	for _, conn := range conns {
		w.conns[conn] = true
	}
	return true
}

func (w *wire) pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
}

// set cuts the wire or restores it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for conn := range w.conns {
		_ = conn.Close()
		delete(w.conns, conn)
	}
}

const keptText = "outcomes could not be written back; they are kept and tried again"

func TestOutcomesAreWrittenAfterAnOutage(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite} {
		for name, away := range map[string]time.Duration{"shortly": 0, "for longer than the lease": lease} {
			t.Run(class.String()+" "+name, func(t *testing.T) {
				b := setup(t)
				pool, w := b.wired()
				g := newGate(1)
				d := b.gated(pool, g, policyOf(class))
				id := b.insert("charge_card")
				b.start(d)
				wait(b, "the call", g.began)
				w.set(true)
				g.release()
				b.logs.Wait(b, keptText)
				b.elapse(away)
				w.set(false)
				b.untilStatus(id, "delivered")
				calls := 2
				if class == dispatcher.IdempotentWrite && away > 0 && strings.Contains(b.history(id), "late:delivered:call-1") {
					// On a slow machine, the settle may time out and the sweep may be faster. Then the answer is kept
					// as a late one, and the same key was sent twice.
					calls++
				} else {
					b.wantHistory(id, "attempt:delivered:call-1")
				}
				b.insert("charge_card")
				b.untilFinished()
				g.wantCalls(b, calls)
			})
		}
	}
}

func TestOutageDoesNotCauseATightLoop(t *testing.T) {
	b := setup(t)
	pool, w := b.wired()
	g := newGate(1)
	d := b.gated(pool, g, policyOf(dispatcher.IdempotentWrite))
	b.insert("charge_card")
	b.start(d)
	wait(b, "the call", g.began)
	w.set(true)
	g.release()
	b.logs.Wait(b, keptText)
	b.until("the worker knows", func() bool { return d.Ready() != nil })
	w.attempts.Store(0)
	lines := strings.Count(b.logs.String(), "\n")
	<-time.After(3 * time.Second) // the test counts per time
	if n := w.attempts.Load(); n == 0 || n > 60 {
		t.Errorf("%d connection attempts within 3 s, want a few", n)
	}
	if n := strings.Count(b.logs.String(), "\n") - lines; n > 60 {
		t.Errorf("%d lines were logged within 3 s", n)
	}
	w.set(false)
	b.untilFinished()
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}

func TestRunWaitsForTheDatabaseAtStart(t *testing.T) {
	b := setup(t)
	pool, w := b.wired()
	w.set(true)
	g := newGate(0)
	d := b.gated(pool, g, policyOf(dispatcher.Read))
	b.insert("charge_card")
	go func() {
		defer w.set(false)
		for deadline := time.Now().Add(patience); time.Now().Before(deadline) && w.attempts.Load() < 3; {
			<-time.After(10 * time.Millisecond)
		}
	}()
	b.start(d)
	b.untilFinished()
	g.wantCalls(b, 1)
}

func TestStopDuringAnOutageReturns(t *testing.T) {
	b := setup(t)
	pool, w := b.wired()
	g := newGate(1)
	b.gates = append(b.gates, g)
	d := b.dispatcherOn(pool, dispatcher.Config{StopTimeout: 200 * time.Millisecond})
	d.SetStopMargin(500 * time.Millisecond)
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), g.handle)
	id := b.insert("charge_card")
	r := b.start(d)
	wait(b, "the call", g.began)
	w.set(true)
	g.release()
	b.logs.Wait(b, keptText)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	b.wantStatus(id, "leased") // and is taken over, as after a kill
	b.expect(b.gated(b.db.Pool, g, policyOf(dispatcher.IdempotentWrite)), delivered)
	g.wantCalls(b, 2)
}

// The vendor acts, but the database refuses the outcome. The log has an error, and the leases and the policy's attempts
// bound the number of calls with the same key.
func TestRefusedSettlesAreLoggedAndResendsBounded(t *testing.T) {
	b := setup(t)
	b.exec(`create function refuse() returns trigger language plpgsql as $$ begin
		if new.event = 'attempt' then raise 'the disk is full' using errcode = '53100'; end if; return new; end $$`)
	b.exec(`create trigger refuse before insert on samekey.outbox_history for each row execute function refuse()`)
	p := policyOf(dispatcher.IdempotentWrite)
	p.Attempts = 3
	g := newGate(0)
	id := b.insert("charge_card")
	for range 5 { // one more worker that cannot settle
		b.start(b.gated(b.db.Pool, g, p))
	}
	b.logs.Wait(b, keptText)
	used := func() int { return b.count(`select attempts_used from samekey.outbox_queue`) }
	for i := range 3 {
		before := used()
		b.elapse(lease)
		b.until("another worker has taken it over", func() bool { return used() > before || i == 3 })
		b.until("it is claimed again", func() bool { return b.status(id) == "leased" })
	}
	if n := g.calls.Load(); n > 3 {
		t.Errorf("%d calls were made, want no more than the policy's attempts", n)
	}
	for range g.calls.Load() {
		if key := wait(b, "a call", g.began); key != b.deliveryKey(id) {
			t.Errorf("a call came with key %s", key)
		}
	}
	b.exec(`drop trigger refuse on samekey.outbox_history`)
	b.until("the kept outcomes are written", func() bool {
		return b.count(`select count(*) from samekey.outbox_history where event in ('attempt', 'late') and outcome = 'delivered'`) == int(g.calls.Load())
	})
}
