package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/dbtest"
)

// patience bounds every wait. Only a badly overloaded machine needs that long.
const patience = dbtest.Patience

// process is this test binary in another role.
type process struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   dbtest.Log    // of both outputs
	ended chan struct{} // closed when the process has ended and all its output has been read
}

// start starts a process and waits until it prints "ready".
func start(t testing.TB, role, name string, config any) *process {
	t.Helper()
	p := launch(t, role, name, config)
	p.wait("ready")
	return p
}

func launch(t testing.TB, role, name string, config any) *process {
	t.Helper()
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name, ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, configVariable+"="+string(encoded))
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		p.log.Close()
		close(p.ended)
	}()
	t.Cleanup(p.clear)
	return p
}

// clear ends the process. If the test has failed, it logs the last lines of the process's output.
func (p *process) clear() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Kill()
	<-p.ended
	if p.t.Failed() {
		p.t.Logf("output of %s:\n%s", p.name, p.log.Tail())
	}
}

// wait waits until the process has printed a line that contains the text, and returns the line.
func (p *process) wait(text string) string { p.t.Helper(); return p.log.Wait(p.t, text) }

// release lets the process continue from its point. From now on it passes all points without a stop.
func (p *process) release() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "release\n"); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process with SIGKILL and returns the time of the signal.
func (p *process) kill() time.Time {
	p.t.Helper()
	at := time.Now()
	p.signal(syscall.SIGKILL)
	dbtest.Receive(p.t, p.name+" has ended", p.ended)
	return at
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v: %v", p.name, s, err)
	}
}

// stop suspends the process with SIGSTOP and returns when it is suspended.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	dbtest.Until(p.t, p.name+" is stopped", p.stopped)
}

// stopped reads the process's state from /proc. A system without /proc must do with the signal.
func (p *process) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "T")
}

// exit waits until the process has ended and returns its exit code.
func (p *process) exit() int {
	p.t.Helper()
	dbtest.Receive(p.t, p.name+" has ended", p.ended)
	return p.cmd.ProcessState.ExitCode()
}

// The rest of this file runs in the process, not in the test.

// configVariable is the environment variable with the process's settings in JSON.
const configVariable = "SAMEKEY_TEST_CONFIG"

func readConfig[T any]() (config T, err error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(os.Getenv(configVariable))))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&config)
	return config, err
}

// say prints a line for the test.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// points are places at which this process waits until it is killed or released.
type points struct{ released chan struct{} }

// newPoints reads the test's release from the standard input. The end of the input ends the process, so that it does
// not outlive the test.
func newPoints() *points {
	p := &points{released: make(chan struct{})}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		if lines.Scan() {
			close(p.released)
		}
		for lines.Scan() {
		}
		os.Exit(3)
	}()
	return p
}

// stand prints the point's name and waits for the release.
func (p *points) stand(point string) {
	select {
	case <-p.released:
		return
	default:
	}
	say("at %s", point)
	<-p.released
}
