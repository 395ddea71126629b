package wire

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/wiretest"
)

func TestCompleteRequestDoesNotEndTheSharedConnection(t *testing.T) {
	s, other := pair(t)
	w := joined(t, s)
	write(t, s, "request")
	s.Complete(w)
	read(t, other, "request") // so the kernel has acknowledged it
	acknowledgedSoon(t, s)
	w.late()
	if connected, sent := w.End(); !connected || !sent {
		t.Errorf("connected %v, sent %v", connected, sent)
	}
	wantOpen(t, s, other)
	if _ = s.Close(); !s.Idle() {
		t.Error("is not idle")
	}
	if text, err := io.ReadAll(other); len(text) > 0 || err != nil {
		t.Errorf("%q arrived, %v, want a normal end", text, err)
	}
}

// acknowledgedSoon waits for the acknowledgement, which the kernel may delay.
func acknowledgedSoon(t *testing.T, s *Shared) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if n, ok := unacknowledged(s.Conn); n == 0 && ok {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the request is not acknowledged")
}

// The other side's kernel has not acknowledged the request, so this one would retransmit it.
func TestQueuedRequestEndsTheSharedConnection(t *testing.T) {
	for name, complete := range map[string]bool{"complete": true, "in part": false} {
		t.Run(name, func(t *testing.T) {
			b := startBlackhole(t)
			socket, err := net.Dial("tcp", b.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = socket.Close() })
			b.accept()
			s := NewShared(socket)
			w, neighbor := joined(t, s), joined(t, s)
			write(t, s, "request")
			if complete {
				s.Complete(w)
				s.Complete(neighbor)
			}
			w.End()
			b.wantReset()
			neighbor.End()
		})
	}
}

// What another attempt has in the queue does not matter.
func TestOthersQueuedDataDoesNotEndTheConnection(t *testing.T) {
	b := startBlackhole(t)
	socket, err := net.Dial("tcp", b.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	b.accept()
	b.pass()
	s := NewShared(socket)
	first := joined(t, s)
	write(t, s, "first")
	s.Complete(first)
	read(t, b.conn, "first")
	acknowledgedSoon(t, s)
	if err := wiretest.DropData(b.conn); err != nil {
		t.Fatal(err)
	}
	second := joined(t, s)
	write(t, s, "second")
	s.Complete(second)
	first.End()
	nothing := joined(t, s) // sends nothing, and says so
	s.Complete(nothing)
	nothing.End()
	b.pass()
	read(t, b.conn, "second")
	second.Answered()
}
