package stripevendor

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A process that was stopped past the key's window and goes on must not send what it had in hands.
func TestNothingLeavesPastTheDeadlineOrTheEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	x := new(exchange)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	c, err := dial(x.in(ctx), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := c.Write([]byte("in time")); err != nil {
		t.Error(err)
	}
	x.deadline = time.Now()
	if _, err := c.Write([]byte("late")); !errors.Is(err, errLate) {
		t.Error(err)
	}
	x.deadline = time.Time{}
	x.end()
	if _, err := c.Write([]byte("over")); !errors.Is(err, errEnded) {
		t.Error(err)
	}
	_ = c.Close()
	if text, err := io.ReadAll(other); string(text) != "in time" {
		t.Errorf("%q, %v", text, err)
	}
}
