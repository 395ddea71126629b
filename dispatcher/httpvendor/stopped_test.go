//go:build unix

package httpvendor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
)

const (
	childURL     = "HTTPVENDOR_TEST_CHILD_URL"
	childBody    = "HTTPVENDOR_TEST_CHILD_BODY"
	childCA      = "HTTPVENDOR_TEST_CHILD_CA"
	childTimeout = time.Second
)

// child makes one attempt with a short deadline and prints its outcome. Without a large body, it stops itself between
// getting its connection and writing the first byte. With a CA file, it uses HTTP/2, and is stopped before the request's
// first frame.
func child(url string) {
	ca := os.Getenv(childCA)
	client, err := New(Destination{Name: "stripe", URL: url, AllowPrivate: loopback, CAFile: ca, HTTP2: ca != ""})
	if err != nil {
		panic(err)
	}
	handler, _, err := client.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
	if err != nil {
		panic(err)
	}
	call := &dispatcher.Call{Payload: []byte("{}"), DeliveryKey: deliveryKey}
	if os.Getenv(childBody) != "" {
		call.Payload = bytes.Repeat([]byte("x"), 16<<20)
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	if os.Getenv(childBody) == "" {
		stop := sync.OnceFunc(func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			<-time.After(childTimeout) // kill may return before this thread is stopped
		})
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { stop() }}
		if ca != "" {
			trace = &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { stop() }} // into a buffer
		}
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	_, err = result(handler(ctx, call))
	fmt.Println(verdict(err))
}

func startChild(t *testing.T, url string, env ...string) (cmd *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append(env, childURL+"="+url)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(pipe)
}

// waitStopped waits until the process is stopped and its attempt's deadline has passed.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child is not stopped: %v %v", status, err)
	}
	<-time.After(childTimeout + 50*time.Millisecond)
}

// waitBlocked waits until the process waits for room in its socket's buffer. A stop between the check of the clock and
// its write(2) would let that one through: package wire names it as a limit. Without /proc, this waits for nothing.
func waitBlocked(t *testing.T, pid int) {
	t.Helper()
	asleep := 0
	dbtest.Until(t, "the child waits for room", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		asleep++
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			_, state, _ := strings.Cut(string(stat), ") ")
			if err == nil && !strings.HasPrefix(state, "S") {
				asleep = 0
			}
		}
		return asleep == 3 || len(threads) == 0 // in a row: threads hand over to each other
	})
}

// stopInMidWrite stops the child while it waits for room, until its deadline has passed. It returns how many bytes had
// left the child by then, and lets it go on: the attempt is unknown.
func stopInMidWrite(t *testing.T, cmd *exec.Cmd, out *bufio.Reader, began <-chan struct{}, stopped chan<- struct{}, drained <-chan int64) (before int64) {
	t.Helper()
	select {
	case <-began:
	case <-time.After(patience):
		t.Fatal("the child did not start to write")
	}
	waitBlocked(t, cmd.Process.Pid)
	if err := syscall.Kill(cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitStopped(t, cmd.Process.Pid)
	close(stopped)
	before = <-drained
	if err := syscall.Kill(cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line, _ := out.ReadString('\n'); line != "unknown\n" {
		t.Errorf("the attempt is %q, want unknown", line)
	}
	return before
}

// countBytes counts the bytes that left a stopped process before, and then those that arrive until it has ended.
func countBytes(c net.Conn, before, late chan<- int64) {
	var n int64
	buf := make([]byte, 1<<20)
	for {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		m, err := c.Read(buf)
		n += int64(m)
		if err != nil {
			break
		}
	}
	before <- n
	_ = c.SetReadDeadline(time.Time{})
	m, _ := io.Copy(io.Discard, c)
	late <- m
}

func TestStoppedBeforeTheFirstByteSendsNothingLate(t *testing.T) {
	received := make(chan []byte, 1)
	server := startRaw(t, func(s *rawServer, c net.Conn) {
		all, _ := io.ReadAll(c)
		received <- all
	})
	cmd, out := startChild(t, server.url)
	waitStopped(t, cmd.Process.Pid)
	if err := syscall.Kill(cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line, _ := out.ReadString('\n'); line != "unsent\n" {
		t.Errorf("the attempt is %q, want unsent", line)
	}
	if all := <-received; len(all) != 0 {
		t.Errorf("%d bytes arrived late: %.60q", len(all), all)
	}
}

// The body is larger than the socket buffers, so the process is stopped during a write. Then its deadline passes, and
// the buffers become free.
func TestStoppedInMidWriteSendsNothingMore(t *testing.T) {
	for range 2 {
		began, stopped := make(chan struct{}), make(chan struct{})
		drained, counted := make(chan int64), make(chan int64, 1)
		server := startRaw(t, func(s *rawServer, c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			close(began)
			<-stopped
			countBytes(c, drained, counted)
		})
		cmd, out := startChild(t, server.url, childBody+"=large")
		before := stopInMidWrite(t, cmd, out, began, stopped, drained)
		if late := <-counted; late != 0 || before >= 16<<20 {
			t.Errorf("%d bytes arrived late, after %d in time", late, before)
		}
	}
}

func TestStoppedBeforeItsFirstFrameSendsNothingLate(t *testing.T) {
	received := make(chan int64, 1)
	server := startHTTP2(t, func(c *h2Conn) { // without settings, whose acknowledgement would count as sent
		for c.next() != nil {
		}
		received <- c.server.requests.Load()
	})
	cmd, out := startChild(t, server.url, childCA+"="+server.ca)
	waitStopped(t, cmd.Process.Pid)
	if err := syscall.Kill(cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line, _ := out.ReadString('\n'); line != "unsent\n" {
		t.Errorf("the attempt is %q, want unsent", line)
	}
	if n := <-received; n != 0 {
		t.Errorf("%d requests arrived late", n)
	}
}

// As TestStoppedInMidWriteSendsNothingMore, over HTTP/2: the vendor grants the whole body, and stops to read.
func TestStoppedInMidStreamSendsNothingMore(t *testing.T) {
	began, stopped := make(chan struct{}), make(chan struct{})
	drained, counted := make(chan int64), make(chan int64, 1)
	server := startHTTP2(t, func(c *h2Conn) {
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 32 << 20})
		_ = c.WriteWindowUpdate(0, 32<<20)
		for n := 0; n < 100_000; { // more than fits without the settings, so the child has acknowledged them
			f, ok := c.next().(*http2.DataFrame)
			if !ok && c.server.requests.Load() == 0 {
				return
			}
			if ok {
				n += len(f.Data())
			}
		}
		close(began)
		<-stopped
		countBytes(c.Conn.(*tls.Conn).NetConn(), drained, counted) // below TLS, which a cut record would end
	})
	cmd, out := startChild(t, server.url, childCA+"="+server.ca, childBody+"=large")
	before := stopInMidWrite(t, cmd, out, began, stopped, drained)
	// The child may still cancel the stream: a record of 22 bytes with RST_STREAM and PING, 13 and 17 bytes.
	if late := <-counted; late != 0 && late != 22+13+17 || before >= 16<<20 {
		t.Errorf("%d bytes arrived late, after %d in time", late, before)
	}
}
