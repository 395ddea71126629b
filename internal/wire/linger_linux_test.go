package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/wiretest"
)

const (
	childTo   = "WIRE_TEST_CHILD_TO"
	childStop = "WIRE_TEST_CHILD_STOP"
	childHow  = "WIRE_TEST_CHILD_SHARED"
	timeout   = 400 * time.Millisecond
)

func TestMain(m *testing.M) {
	if to := os.Getenv(childTo); to != "" {
		child(to)
		return
	}
	os.Exit(m.Run())
}

// child sends a request. Then it waits to be killed, or suspends itself before its deadline.
func child(to string) {
	left := time.Hour
	if os.Getenv(childStop) != "" {
		left = timeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	socket, err := net.Dial("tcp", to)
	if err != nil {
		panic(err)
	}
	if err := send(New(ctx), socket, os.Getenv(childHow) != ""); err != nil {
		panic(err)
	}
	fmt.Println("sent")
	if os.Getenv(childStop) != "" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func send(w *Wire, socket net.Conn, shared bool) error {
	c := net.Conn(NewShared(socket))
	if !shared {
		c = w.Hold(socket)
	} else if !w.Share(c.(*Shared)) {
		return errors.New("the connection cannot be shared")
	}
	_, err := io.WriteString(c, "request")
	return err
}

// blackhole accepts connections over a network that drops all data until pass is called.
type blackhole struct {
	t        *testing.T
	listener *net.TCPListener
	conn     *net.TCPConn
}

func startBlackhole(t *testing.T) *blackhole {
	t.Helper()
	wiretest.NeedDropData(t)
	listener := wiretest.Listen(t)
	if err := wiretest.DropData(listener); err != nil {
		t.Fatal(err)
	}
	return &blackhole{t: t, listener: listener}
}

func (b *blackhole) accept() {
	b.t.Helper()
	_ = b.listener.SetDeadline(time.Now().Add(patience))
	conn, err := b.listener.AcceptTCP()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	b.conn = conn
}

func (b *blackhole) pass() {
	b.t.Helper()
	if err := wiretest.PassData(b.conn); err != nil {
		b.t.Fatal(err)
	}
}

// wantReset expects a reset and no data before it.
func (b *blackhole) wantReset() {
	b.t.Helper()
	b.pass()
	if text, err := io.ReadAll(b.conn); len(text) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		b.t.Errorf("%d bytes arrived late, %v, want a reset", len(text), err)
	}
}

func TestQueuedDataIsDroppedWhenTheAttemptEnds(t *testing.T) {
	for name, tc := range map[string]struct{ tls, closed bool }{
		"plain": {}, "TLS": {tls: true}, "closed before": {closed: true}, "TLS, closed before": {tls: true, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBlackhole(t)
			socket, err := net.Dial("tcp", b.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = socket.Close() })
			b.accept()
			w := inAnHour(t)
			c := w.Hold(socket)
			if tc.tls {
				c = b.secure(c)
			}
			if _, err := io.WriteString(c, "request"); err != nil {
				t.Fatal(err)
			}
			if tc.closed {
				_ = c.Close()
			}
			w.End()
			b.wantReset()
		})
	}
}

// secure runs a TLS handshake on the connection, and then drops all data again.
func (b *blackhole) secure(c net.Conn) net.Conn {
	b.t.Helper()
	b.pass()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	done := make(chan error, 1)
	go func() { done <- tls.Server(b.conn, server.TLS).Handshake() }()
	client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}) // with 1.3 the server also sends after the handshake
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		b.t.Fatal(err)
	}
	if err := wiretest.DropData(b.conn); err != nil {
		b.t.Fatal(err)
	}
	return client
}

func (b *blackhole) startChild(env ...string) *exec.Cmd {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append(env, childTo+"="+b.listener.Addr().String())...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe() // the pipe closes when this process ends, and the child with it
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	b.accept()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "sent\n" {
		b.t.Fatalf("the child printed %q, %v", line, err)
	}
	return cmd
}

func TestQueuedDataOfAKilledProcessIsDropped(t *testing.T) {
	for _, how := range []string{"", "shared"} {
		b := startBlackhole(t)
		cmd := b.startChild(childHow + "=" + how)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		b.wantReset()
	}
}

// The deadline passes while the process is suspended. The process never continues, so only the kernel can drop the
// queued data.
func TestQueuedDataOfAStoppedProcessIsDropped(t *testing.T) {
	for name, how := range map[string]string{"of its own": "", "shared": "shared"} {
		t.Run(name, func(t *testing.T) { stopped(t, how) })
	}
}

func stopped(t *testing.T, how string) {
	b := startBlackhole(t)
	cmd := b.startChild(childStop+"=1", childHow+"="+how)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child is not stopped: %v %v", status, err)
	}
	from := b.conn.RemoteAddr().(*net.TCPAddr).Port
	for end := time.Now().Add(patience); queued(t, from) > 0; {
		if time.Now().After(end) {
			t.Fatal("the kernel still retransmits")
		}
		time.Sleep(time.Millisecond)
	}
	b.pass()
	_ = b.conn.SetReadDeadline(time.Now().Add(timeout))
	if text, _ := io.ReadAll(b.conn); len(text) > 0 {
		t.Errorf("%d bytes arrived late", len(text))
	}
}

// queued returns the number of bytes that the kernel still has to deliver for a local port.
func queued(t *testing.T, port int) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			var size int
			_, _ = fmt.Sscanf(fields[4], "%x:", &size)
			n += size
		}
	}
	return n
}

// After a complete answer, the connection is closed with a FIN, so that the other side reads a normal end.
func TestAnsweredConnectionIsClosedNormally(t *testing.T) {
	for name, closed := range map[string]bool{"closed before the answer is judged": true, "closed after": false} {
		t.Run(name, func(t *testing.T) {
			w := inAnHour(t)
			c, other := link(t, w)
			if _, err := io.WriteString(c, "request"); err != nil {
				t.Fatal(err)
			}
			if closed {
				_ = c.Close()
			}
			w.Answered()
			if !closed {
				_ = c.Close()
			}
			w.End()
			if text, err := io.ReadAll(other); string(text) != "request" || err != nil {
				t.Errorf("%q arrived, %v", text, err)
			}
		})
	}
}

// net/http reuses a connection before the reader has seen the end of the answer. So the previous attempt may call
// Answered late.
func TestLateAnswerLeavesTheNextAttemptArmed(t *testing.T) {
	for name, late := range map[string]bool{"before its first write": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			b := startBlackhole(t)
			socket, err := net.Dial("tcp", b.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = socket.Close() })
			b.accept()
			before, next := inAnHour(t), inAnHour(t)
			c := before.Hold(socket).(*conn)
			next.take(c)
			if !late {
				before.Answered()
			}
			if _, err := io.WriteString(c, "request"); err != nil {
				t.Fatal(err)
			}
			if late {
				before.Answered()
			}
			before.End()
			next.End()
			b.wantReset()
		})
	}
}
