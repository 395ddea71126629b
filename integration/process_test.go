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
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait: nothing takes so long but on a machine that is
// badly overloaded.
const patience = 30 * time.Second

// process is this test binary in another role.
type process struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed when it is gone and has been read to its end

	mu      sync.Mutex
	lines   []string // of both outputs
	changed chan struct{}
}

// start starts a process and waits for its word "ready".
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
	p := &process{t: t, name: name, ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, configVariable+"="+string(encoded))
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	go func() {
		p.read(reader)
		_ = reader.Close()
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.clear)
	return p
}

func (p *process) read(from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.mu.Lock()
			p.lines = append(p.lines, strings.TrimSuffix(line, "\n"))
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// clear leaves nothing behind, and shows a failed test what the process said.
func (p *process) clear() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Kill()
	<-p.ended
	if p.t.Failed() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.t.Logf("%s said:\n\t%s", p.name, strings.Join(p.lines[max(0, len(p.lines)-40):], "\n\t"))
	}
}

// wait waits until the process has said something that contains the text, and
// returns that line.
func (p *process) wait(text string) string { p.t.Helper(); return p.waitTimes(text, 1) }

// waitTimes waits until it has said so n times.
func (p *process) waitTimes(text string, n int) string {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		count, last, changed := 0, "", p.changed
		for _, line := range p.lines {
			if strings.Contains(line, text) {
				count, last = count+1, line
			}
		}
		p.mu.Unlock()
		if count >= n {
			return last
		}
		select {
		case <-changed:
		case <-p.ended:
			p.t.Fatalf("%s ended (%v) before it said %q", p.name, p.cmd.ProcessState, text)
		case <-deadline:
			p.t.Fatalf("%s did not say %q (%d of %d) within %v", p.name, text, count, n, patience)
		}
	}
}

// release lets the process go on from every point at which it stands, and
// stand at none any more.
func (p *process) release() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "release\n"); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends it with SIGKILL, and returns when that was sent.
func (p *process) kill() time.Time {
	p.t.Helper()
	at := time.Now()
	p.signal(syscall.SIGKILL)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
	return at
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v: %v", p.name, s, err)
	}
}

// stop stops it with SIGSTOP, and returns when it stands still.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); !p.stopped(); <-look.C {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not stop", p.name)
		}
	}
}

// stopped looks where the system says so; elsewhere the signal has to do.
func (p *process) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "T")
}

// exit waits for its end and returns its exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// What follows runs in the process.

// configVariable holds a process's settings, as JSON.
const configVariable = "SAMEKEY_TEST_CONFIG"

func readConfig[T any]() (config T, err error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(os.Getenv(configVariable))))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&config)
	return config, err
}

// say tells the test something.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// points are places at which this process waits for its end, or for a word of
// the test's.
type points struct{ released chan struct{} }

// newPoints also ends the process when the test is gone.
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

// stand says that this is the point, and waits.
func (p *points) stand(point string) {
	select {
	case <-p.released:
		return
	default:
	}
	say("at %s", point)
	<-p.released
}
