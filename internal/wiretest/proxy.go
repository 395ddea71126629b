// Package wiretest is a proxy between a client and a Postgres server, for tests. It counts round trips, cuts
// connections, loses answers, simulates a client that dies at any of its round trips, and runs several connections in
// lockstep.
//
//	proxy := wiretest.Start(t, dsn)
//	pool, err := pgxpool.New(ctx, proxy.DSN())
//	proxy.Take()                                     // discard the trips of connecting
//	..
//	trips := proxy.Take()                            // one for each answered burst
//	lost := proxy.Arm(wiretest.LoseAnswer, "commit") // the next COMMIT happens, and its answer is lost
//
// A burst is a group of messages that the client sends without waiting, up to a Sync or a Query. The proxy reads only
// the parts of the protocol that it needs: the names of prepared statements and the ends of bursts. It does not support
// TLS.
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
	// LoseAnswer lets the server execute and answer the burst. Then the client's connection breaks, and the client gets
	// no byte of the answer.
	LoseAnswer
	// Hold breaks the client's connection at once. The burst reaches the server when Release is called, and until then
	// its transaction is open. It simulates a packet that arrives after its sender is gone.
	Hold
	// LoseServer lets the server execute and answer the burst. The client gets an error of class 08 instead of the
	// answer, and keeps its connection. Poolers that lose their connection to the server behave like this.
	LoseServer
	// CrashBefore and CrashAfter are CutBefore and LoseAnswer for a client that dies. All its other connections break
	// at the same moment, and new ones are closed, until Revive.
	CrashBefore
	CrashAfter //nolint:revive // see CrashBefore
)

// Trip is one round trip: a burst and its answer, or several bursts that the client sent before the first answer.
type Trip struct {
	Conn       int // the number of the connection, in the order of arrival, starting at 1
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
	held int           // the number of bursts that wait for the gate
}

type armed struct {
	fault Fault
	match string
	nth   int // if not 0, the bursts to count down before the fault; match is ignored
	hit   chan []string
}

func (a *armed) happened(statements []string) {
	a.hit <- statements // the channel has room
	close(a.hit)
}

// Start starts a proxy that runs until the test ends. The DSN is a URL or a connection string.
func Start(t testing.TB, dsn string) *Proxy {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("wiretest: invalid DSN") // the error would quote the password
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

// DSN returns the DSN given to Start, changed to connect through the proxy.
func (p *Proxy) DSN() string { return p.dsn }

// Take returns the trips since the last call, in the order in which they ended.
func (p *Proxy) Take() []Trip {
	p.mu.Lock()
	defer p.mu.Unlock()
	trips := p.trips
	p.trips = nil
	return trips
}

// Arm makes the fault happen to the next burst in which a statement contains the text, ignoring case. When the fault
// has happened, the channel receives the burst's statements and is closed. After LoseAnswer, the server has done its
// work by then.
func (p *Proxy) Arm(fault Fault, text string) <-chan []string {
	return p.arm(&armed{fault: fault, match: strings.ToLower(text)})
}

// ArmNth is Arm for the n-th burst from now, starting at 1. Only bursts that execute a statement count.
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

// Disarm cancels the armed fault. It returns false if there is none, because the fault has already met its burst.
func (p *Proxy) Disarm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	armed := p.armed != nil
	p.armed = nil
	return armed
}

// Release forwards the bursts that Hold has delayed. Later ones are not delayed. Call it once.
func (p *Proxy) Release() { close(p.released) }

// Cut breaks all open connections.
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

// Isolate breaks all open connections, and closes new ones until Revive.
func (p *Proxy) Isolate() { p.crash() }

func (p *Proxy) crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crashed = true
	p.cut()
}

// Revive ends CrashBefore, CrashAfter and Isolate: new connections are forwarded again. The client was only believed
// dead.
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

// track records a connection for Cut. It returns false if the client is dead or the test has ended.
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

// due returns the armed fault if it applies to a burst with these statements, and disarms it.
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
