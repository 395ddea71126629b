package integration

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// road is a TCP proxy to the database. While it is closed, it has no connections and refuses new ones.
type road struct {
	dsn      string
	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
	cutOff int // the number of connections refused while it was closed
}

func newRoad(t testing.TB, dsn string) *road {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the DSN is not a URL") // the error would quote the password
	}
	r := &road{to: u.Host, conns: map[net.Conn]bool{}}
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = r.listener.Addr().String()
	r.dsn = u.String()
	r.running.Go(r.accept)
	t.Cleanup(func() {
		_ = r.listener.Close()
		r.close()
		r.running.Wait()
	})
	return r
}

func (r *road) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.carry(from) })
	}
}

func (r *road) carry(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !r.enter(from, to) {
		return
	}
	defer r.leave(from, to)
	var ways sync.WaitGroup
	ways.Go(func() { _, _ = io.Copy(to, from); _ = to.Close() })
	ways.Go(func() { _, _ = io.Copy(from, to); _ = from.Close() })
	ways.Wait()
}

func (r *road) enter(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.cutOff++
		return false
	}
	for _, conn := range conns {
		r.conns[conn] = true
	}
	return true
}

func (r *road) leave(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		delete(r.conns, conn)
	}
}

func (r *road) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for conn := range r.conns {
		_ = conn.Close()
	}
}

func (r *road) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = false
}

func (r *road) refused() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cutOff
}
