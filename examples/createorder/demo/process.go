package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that is started again after each kill.
type process struct {
	name    string
	command string
	args    []string
	env     []string
	logFile string
	hello   bool            // its first line on stdout contains its URL
	crashed func(err error) // called if it ends without kill or stop

	mu      sync.Mutex
	cmd     *exec.Cmd
	url     string
	ended   chan struct{} // closed when cmd has ended
	killed  bool          // by kill: start it again
	stopped bool
}

// start starts the program and waits for its URL.
func (p *process) start(ctx context.Context) error {
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.command, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Dir = filepath.Dir(p.logFile)
	cmd.Stderr = log
	cmd.SysProcAttr = attributes() // the terminal's Ctrl-C does not reach it: the demo decides when it stops
	var stdout io.ReadCloser
	if p.hello {
		if stdout, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	} else {
		cmd.Stdout = log
	}
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return errors.New("the process is stopped")
	}
	if err := cmd.Start(); err != nil {
		p.mu.Unlock()
		return err
	}
	p.cmd, p.ended, p.killed = cmd, make(chan struct{}), false
	ended := p.ended
	p.mu.Unlock()

	if p.hello {
		url, err := readHello(ctx, stdout)
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			close(ended)
			return fmt.Errorf("%s did not start: %w\n%s", p.name, err, p.tail())
		}
		p.mu.Lock()
		p.url = url
		p.mu.Unlock()
	}
	go p.watch(ctx, cmd, ended)
	return nil
}

// readHello reads {"url": ".."}.
func readHello(ctx context.Context, stdout io.Reader) (string, error) {
	type result struct {
		url string
		err error
	}
	read := make(chan result, 1)
	go func() {
		line, err := bufio.NewReader(stdout).ReadBytes('\n')
		if err != nil {
			read <- result{err: errors.New("it ended before it printed its URL")}
			return
		}
		var hello struct{ URL string }
		err = json.Unmarshal(line, &hello)
		read <- result{hello.URL, err}
	}()
	select {
	case r := <-read:
		return r.url, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-time.After(20 * time.Second):
		return "", errors.New("it printed no URL within 20 s")
	}
}

// watch waits for the end of the program, and starts it again if it was killed.
func (p *process) watch(ctx context.Context, cmd *exec.Cmd, ended chan struct{}) {
	err := cmd.Wait()
	close(ended)
	p.mu.Lock()
	stopped, killed := p.stopped, p.killed
	p.mu.Unlock()
	switch {
	case stopped || ctx.Err() != nil:
	case killed:
		if err := p.start(ctx); err != nil && ctx.Err() == nil {
			p.crashed(err)
		}
	default:
		p.crashed(fmt.Errorf("%s ended unexpectedly: %w\n%s", p.name, err, p.tail()))
	}
}

// kill ends the program with SIGKILL and returns the time of the signal. The program is started again at once.
func (p *process) kill() time.Time {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.killed = true
	p.mu.Unlock()
	at := time.Now()
	_ = cmd.Process.Signal(syscall.SIGKILL)
	<-ended
	return at
}

// stop ends the program: SIGTERM, and SIGKILL if that takes longer than patience. It returns nil if the program ended
// with code 0.
func (p *process) stop(patience time.Duration) error {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.stopped = true
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if patience > 0 {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("%s did not stop within %v of SIGTERM\n%s", p.name, patience, p.tail())
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with code %d after SIGTERM\n%s", p.name, code, p.tail())
	}
	return nil
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// tail is the end of the program's log.
func (p *process) tail() string {
	data, _ := os.ReadFile(p.logFile)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-15):], "\n    ")
}
