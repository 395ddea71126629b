package smtpvendor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/wiretest"
)

// The mail's text and its end are queued in the kernel at the attempt's deadline. The server must never get them.
func TestMailQueuedAtItsTimeoutNeverArrives(t *testing.T) {
	wiretest.NeedDropData(t)
	listener := wiretest.Listen(t)
	type result struct {
		text string
		err  error
	}
	arrived, ended := make(chan result, 1), make(chan struct{})
	go func() {
		conn, err := listener.AcceptTCP()
		if err != nil {
			arrived <- result{err: err}
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		in := bufio.NewReader(conn)
		_, err = io.WriteString(conn, "220 ready\r\n")
		for _, reply := range []string{"250 hello\r\n", "250 sender\r\n", "250 recipient\r\n", "354 go on\r\n"} {
			if strings.HasPrefix(reply, "354") && err == nil {
				err = wiretest.DropData(conn) // after the bytes that are read here
			}
			if err == nil && !strings.HasPrefix(reply, "354") {
				_, err = in.ReadString('\n')
			}
			if err == nil {
				_, err = io.WriteString(conn, reply)
			}
		}
		if err == nil {
			<-ended
			err = wiretest.PassData(conn)
		}
		if err != nil {
			arrived <- result{err: err}
			return
		}
		text, err := io.ReadAll(in)
		arrived <- result{string(text), err}
	}()
	c, err := New(Server{Host: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port, Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	at, _, err := c.send(ctx, &letter{From: "shop@example.com", To: []string{"ann@example.com"}, message: []byte("Subject: hello\r\n\r\nhello\r\n")})
	if at != atEnd || err == nil {
		t.Errorf("the attempt ended at %s, %v", at, err)
	}
	close(ended)
	if got := <-arrived; strings.Contains(got.text, "hello") || !errors.Is(got.err, syscall.ECONNRESET) {
		t.Errorf("%q arrived, %v, want a reset", got.text, got.err)
	}
}
