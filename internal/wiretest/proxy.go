// Package wiretest stands between a client and a Postgres server, for tests: it counts round trips on the wire, cuts
// connections, loses answers, lets a client die at any of its round trips, and lets several go in step.
//
//	proxy := wiretest.Start(t, dsn)
//	pool, err := pgxpool.New(ctx, proxy.DSN())
//	proxy.Take()                                     // forget what connecting cost
//	..
//	trips := proxy.Take()                            // one for each burst that was answered
//	lost := proxy.Arm(wiretest.LoseAnswer, "commit") // the next COMMIT happens, but its answer is lost
//
// It reads as much of the protocol as it needs: the names of prepared statements, and where a burst ends. It has no TLS.
package wiretest

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Fault is what happens to a burst of messages.
type Fault int

const (
	// CutBefore breaks both connections. The burst never reaches the server.
	CutBefore Fault = iota + 1
	// LoseAnswer loses the answer: the server gets the burst and answers it; then, without a byte of the answer, the client's connection
	// breaks.
	LoseAnswer
	// Hold delays the burst: the client's connection breaks at once, and the burst reaches the server when Release is called: until then
	// its transaction is open. That is a packet under way while its sender is gone.
	Hold
	// LoseServer fakes a lost server: the server gets the burst and answers it; the client gets an error of class 08 in place of the answer and
	// keeps its connection. So do poolers that lost their connection to the server.
	LoseServer
	// CrashBefore and CrashAfter are CutBefore and LoseAnswer for a client that dies with it: at the same moment all its
	// other connections break, and new ones are closed, until Revive.
	CrashBefore
	CrashAfter //nolint:revive // see CrashBefore
)

// Trip is one round trip: what the client sent without waiting, up to a Sync or a Query, and the server answered.
type Trip struct {
	Conn       int // the connection, in the order of their arrival from 1
	Statements []string
}

// Proxy forwards connections to one server.
type Proxy struct {
	dsn      string
	network  string
	upstream string
	listener net.Listener
	released chan struct{}
	stopped  chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	trips   []Trip
	armed   *armed
	open    map[net.Conn]bool
	count   int
	crashed bool
	done    bool

	gate chan struct{} // nil unless paused; closed and replaced by Step
	held int           // bursts that wait for it
}

type armed struct {
	fault Fault
	match string
	nth   int // if not 0, it is counted down instead of matching
	hit   chan []string
}

func (a *armed) happened(statements []string) {
	a.hit <- statements // there is room for it
	close(a.hit)
}

// Start listens on a port of its own until the test ends. The DSN is a URL or a connection string.
func Start(t testing.TB, dsn string) *Proxy {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("wiretest: the DSN cannot be read") // the error would quote it
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("wiretest: %v", err)
	}
	p := &Proxy{listener: listener, released: make(chan struct{}), stopped: make(chan struct{}), open: map[net.Conn]bool{}}
	port := strconv.Itoa(int(config.Port))
	p.network, p.upstream = "tcp", net.JoinHostPort(config.Host, port)
	if strings.HasPrefix(config.Host, "/") {
		p.network, p.upstream = "unix", config.Host+"/.s.PGSQL."+port
	}
	p.dsn = through(dsn, listener.Addr().(*net.TCPAddr).Port)
	p.running.Go(p.accept)
	t.Cleanup(p.stop)
	return p
}

func through(dsn string, port int) string {
	if u, err := url.Parse(dsn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		u.Host = fmt.Sprintf("127.0.0.1:%d", port)
		query := u.Query()
		query.Del("host")
		query.Del("port")
		query.Set("sslmode", "disable")
		u.RawQuery = query.Encode()
		return u.String()
	}
	return fmt.Sprintf("%s host=127.0.0.1 port=%d sslmode=disable", dsn, port)
}

// DSN is the one given to Start, by way of the proxy.
func (p *Proxy) DSN() string { return p.dsn }

// Take returns the trips since the last call, in the order in which they ended.
func (p *Proxy) Take() []Trip {
	p.mu.Lock()
	defer p.mu.Unlock()
	trips := p.trips
	p.trips = nil
	return trips
}

// Arm lets the fault happen to the next burst in which a statement contains the text, in any case. The channel gives the
// burst's statements when it happened, and is closed then: after LoseAnswer, the server's work is done by then.
func (p *Proxy) Arm(fault Fault, text string) <-chan []string {
	return p.arm(&armed{fault: fault, match: strings.ToLower(text)})
}

// ArmNth is Arm for the n-th burst from now, from 1, of those that execute a statement: one that only prepares it does
// not count.
func (p *Proxy) ArmNth(fault Fault, n int) <-chan []string {
	return p.arm(&armed{fault: fault, nth: n})
}

func (p *Proxy) arm(a *armed) <-chan []string {
	a.hit = make(chan []string, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = a
	return a.hit
}

// Disarm takes back what was armed. It returns false where there is nothing to take back: the fault has met its burst.
func (p *Proxy) Disarm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	armed := p.armed != nil
	p.armed = nil
	return armed
}

// Release lets bursts go that Hold holds, now and later. Call it once.
func (p *Proxy) Release() { close(p.released) }

// Cut breaks all connections that are open.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for conn := range p.open {
		_ = conn.Close()
	}
}

// Isolate breaks all connections that are open, and closes new ones, until Revive.
func (p *Proxy) Isolate() { p.crash() }

func (p *Proxy) crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crashed = true
	p.cut()
}

// Revive ends what CrashBefore and CrashAfter began: connections are forwarded again, as to a client that was only
// believed dead.
func (p *Proxy) Revive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crashed = false
}

func (p *Proxy) stop() {
	p.mu.Lock()
	p.done = true
	p.mu.Unlock()
	close(p.stopped)
	_ = p.listener.Close()
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// track notes a connection, so that Cut finds it. It returns false when the client is dead or the test is over.
func (p *Proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || p.crashed {
		return false
	}
	p.open[conn] = true
	return true
}

func (p *Proxy) forget(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
}

// due returns the fault that a burst of these statements meets, at most once.
func (p *Proxy) due(statements []string) *armed {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed == nil || len(statements) == 0 {
		return nil
	}
	if p.armed.nth > 0 {
		if p.armed.nth--; p.armed.nth > 0 {
			return nil
		}
		hit := p.armed
		p.armed = nil
		return hit
	}
	for _, sql := range statements {
		if strings.Contains(strings.ToLower(sql), p.armed.match) {
			hit := p.armed
			p.armed = nil
			return hit
		}
	}
	return nil
}

func (p *Proxy) ended(trip Trip) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = append(p.trips, trip)
}
