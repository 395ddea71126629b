package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

const patience = 10 * time.Second

// link returns a connection over a real socket that w controls, and its other side.
func link(t *testing.T, w *Wire) (c, other net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close(); _ = other.Close() })
	_ = other.SetDeadline(time.Now().Add(patience))
	return w.Hold(raw), other
}

func inAnHour(t *testing.T) *Wire {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return New(ctx)
}

// late simulates a process that was suspended past the deadline.
func (w *Wire) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = time.Now()
}

var ways = map[string]struct {
	over func(w *Wire)
	want error
}{
	"the deadline passes": {(*Wire).late, ErrLate},
	"the attempt ends":    {func(w *Wire) { w.End() }, ErrEnded},
}

func TestAttemptThatIsOverSendsNothing(t *testing.T) {
	for name, way := range ways {
		for _, first := range []string{"", "in time"} {
			t.Run(name+" after "+first, func(t *testing.T) {
				w := inAnHour(t)
				c, other := link(t, w)
				if first != "" {
					if _, err := io.WriteString(c, first); err != nil {
						t.Fatal(err)
					}
				}
				way.over(w)
				if n, err := io.WriteString(c, "late"); n != 0 || !errors.Is(err, way.want) {
					t.Errorf("wrote %d bytes: %v", n, err)
				}
				if _, sent := w.End(); sent != (first != "") || w.Written() != len(first) {
					t.Errorf("sent is %v with %d bytes, want %v with %d", sent, w.Written(), first != "", len(first))
				}
				_ = c.Close()
				if text, err := io.ReadAll(other); string(text) != first || err != nil != (first != "") {
					t.Errorf("%q arrived, %v", text, err)
				}
			})
		}
	}
}

// The data is larger than the sockets' buffers, so the attempt ends in the middle of the Write. Then the buffers have
// room again.
func TestLongWriteStopsAtTheDeadline(t *testing.T) {
	const much = 32 << 20
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			w := inAnHour(t)
			c, other := link(t, w)
			type result struct {
				n   int
				err error
			}
			wrote := make(chan result, 1)
			go func() {
				n, err := c.Write(make([]byte, much))
				w.End()
				_ = c.Close()
				wrote <- result{n, err}
			}()
			if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			way.over(w)
			rest, err := io.Copy(io.Discard, other)
			got := <-wrote
			if got.n <= int(rest) || got.n >= much || !errors.Is(got.err, way.want) {
				t.Errorf("wrote %d, %v; %d arrived, %v", got.n, got.err, rest+1, err)
			}
		})
	}
}

func TestWriteInProgressAtTheEndCountsAsSent(t *testing.T) {
	w := inAnHour(t)
	c, other := link(t, w)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 32<<20))
		wrote <- err
	}()
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, sent := w.End(); !sent {
		t.Error("sent is false")
	}
	_ = c.Close()
	if err := <-wrote; err == nil {
		t.Error("the whole Write succeeded")
	}
}
