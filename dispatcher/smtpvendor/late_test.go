package smtpvendor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wneessen/go-mail/smtp"
)

// A process that was stopped past its lease and goes on must not end a mail that somebody else may have sent meanwhile.
// The socket's own deadline does not see to that: its timer fires some time after the process goes on.
func TestNothingLeavesPastTheDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	wire := &conn{Conn: raw, deadline: time.Now().Add(time.Hour)}
	if _, err := wire.Write([]byte("in time ")); err != nil {
		t.Error(err)
	}
	wire.deadline = time.Now()
	if n, err := wire.Write([]byte("late")); n != 0 || !errors.Is(err, errLate) {
		t.Errorf("%d, %v", n, err)
	}
	_ = raw.Close()
	if text, err := io.ReadAll(other); string(text) != "in time " || wire.written != len("in time ") {
		t.Errorf("%q, %v, %d bytes counted", text, err, wire.written)
	}
}

func TestAMailWhoseEndDidNotGoOutIsNotUnknown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	_, _ = fmt.Fprint(other, "220 ready\r\n250 hello\r\n250 sender\r\n354 go on\r\n")
	wire := &conn{Conn: raw}
	session, err := smtp.NewClient(wire, "127.0.0.1")
	if err == nil {
		err = session.Mail("<shop@example.com>")
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := session.Data()
	if err != nil {
		t.Fatal(err)
	}
	wire.deadline = time.Now() // the process is stopped here
	_ = raw.SetReadDeadline(wire.deadline)
	if _, err := finish(text, wire, []byte("Subject: hello\r\n\r\nhello\r\n")); !errors.Is(err, errNoEnd) {
		t.Errorf("it came to %v", err)
	}
	_ = raw.Close()
	if seen, _ := io.ReadAll(other); !strings.HasSuffix(string(seen), "DATA\r\n") {
		t.Errorf("the server saw %q", seen)
	}
}
