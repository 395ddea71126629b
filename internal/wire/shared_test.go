package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// pair returns a shared connection over a real socket, and its other side.
func pair(t *testing.T) (s *Shared, other net.Conn) {
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
	return NewShared(raw), other
}

func joined(t *testing.T, s *Shared) *Wire {
	t.Helper()
	w := inAnHour(t)
	if !w.Share(s) {
		t.Fatal("the attempt cannot join")
	}
	return w
}

func write(t *testing.T, c io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("%q arrived, %v, want %q", got, err, want)
	}
}

// wantReset expects a reset and nothing before it.
func wantReset(t *testing.T, other net.Conn) {
	t.Helper()
	if text, err := io.ReadAll(other); len(text) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q arrived, %v, want a reset", text, err)
	}
}

// wantOpen expects that the connection still carries data.
func wantOpen(t *testing.T, s *Shared, other net.Conn) {
	t.Helper()
	w := joined(t, s)
	write(t, s, "more")
	read(t, other, "more")
	s.Complete(w)
	w.Answered()
}

// A Write of any attempt can carry bytes of one that still sends, since net/http buffers.
func TestLateAttemptEndsTheSharedConnection(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, other := pair(t)
			w, neighbor := joined(t, s), joined(t, s)
			s.Complete(neighbor)
			way.over(w)
			if n, err := io.WriteString(s, "late"); n != 0 || !errors.Is(err, errBroken) {
				t.Errorf("wrote %d bytes: %v", n, err)
			}
			wantReset(t, other)
			if inAnHour(t).Share(s) {
				t.Error("another attempt can join")
			}
			if _, sent := w.End(); sent {
				t.Error("the late attempt counts as sent")
			}
		})
	}
}

func TestRequestBrokenOffEndsTheSharedConnection(t *testing.T) {
	s, other := pair(t)
	w, neighbor := joined(t, s), joined(t, s)
	write(t, s, "part")
	read(t, other, "part")
	if _, sent := w.End(); !sent {
		t.Error("counts as not sent")
	}
	wantReset(t, other)
	if _, sent := neighbor.End(); !sent {
		t.Error("the neighbor, whose bytes may have been written, counts as not sent")
	}
}

func TestAnsweredAttemptLeavesTheSharedConnection(t *testing.T) {
	s, other := pair(t)
	w := joined(t, s)
	write(t, s, "begin")
	w.Answered() // before its request is complete
	w.End()
	write(t, s, " end")
	read(t, other, "begin end")
	wantOpen(t, s, other)
}

// The attempt that did not send may still be in a buffer of net/http. Its bytes never go out.
func TestAttemptThatSentNothingNeverSends(t *testing.T) {
	s, other := pair(t)
	w := joined(t, s)
	if connected, sent := w.End(); !connected || sent {
		t.Errorf("connected %v, sent %v", connected, sent)
	}
	if _, err := io.WriteString(s, "late"); !errors.Is(err, errBroken) {
		t.Errorf("written: %v", err)
	}
	wantReset(t, other)
}

func TestClosedSharedConnectionWaitsForItsAnswers(t *testing.T) {
	for name, answered := range map[string]bool{"answered": true, "not answered": false} {
		t.Run(name, func(t *testing.T) {
			s, other := pair(t)
			w := joined(t, s)
			write(t, s, "request")
			if !answered {
				_ = s.Close()
				w.End()
				read(t, other, "request")
				wantReset(t, other)
				return
			}
			s.Complete(w)
			_ = s.Close()
			if inAnHour(t).Share(s) {
				t.Error("another attempt can join")
			}
			w.Answered()
			if text, err := io.ReadAll(other); string(text) != "request" || err != nil {
				t.Errorf("%q arrived, %v, want a normal end", text, err)
			}
		})
	}
}

// Before an attempt joins, TLS writes what it needs.
func TestSharedConnectionWritesFreelyBefore(t *testing.T) {
	s, other := pair(t)
	write(t, s, "hello")
	read(t, other, "hello")
	_ = s.Close()
	if text, err := io.ReadAll(other); len(text) > 0 || err != nil {
		t.Errorf("%q arrived, %v, want a normal end", text, err)
	}
}

func TestShortestAttemptLimitsRetransmission(t *testing.T) {
	s, _ := pair(t)
	join := func(d time.Duration) *Wire {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		w := New(ctx)
		w.Share(s)
		return w
	}
	long, short := join(time.Hour), join(time.Minute)
	write(t, s, "x")
	if s.limit > time.Minute || s.limit < 50*time.Second {
		t.Errorf("the limit is %v, want a minute", s.limit)
	}
	short.Answered()
	if s.limit < 50*time.Minute {
		t.Errorf("the limit is %v after the shorter attempt's end, want an hour", s.limit)
	}
	long.Answered()
	if s.limit != 0 {
		t.Errorf("the limit of an idle connection is %v", s.limit)
	}
}
