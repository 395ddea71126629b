// Package localpg runs a throwaway Postgres server on this machine, for a demo
// or a run of tests, with nothing configured.
//
// It starts the server binaries that it finds (those of pg_config, else the
// newest that Debian, Homebrew or the like have installed); where there are
// none, embedded-postgres downloads some. fsync is on: what the server says is
// committed survives a crash of the server.
//
// Postgres refuses to run as root, and a program that is killed stops nothing.
// So the server belongs to a child process, which is this same executable once
// more: under root it runs as an unprivileged user, and it stops the server and
// removes its files as soon as its parent is gone, however that went. Therefore
// [Main] must be the first thing that a program does which calls [Start]:
//
//	func main() {
//		localpg.Main()
//		...
//	}
package localpg

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

// ErrNoServer means that no server binaries were found on this machine, and
// that they could not be downloaded. Install Postgres 14 or later.
var ErrNoServer = errors.New("localpg: no Postgres server on this machine")

// Config is what a server is started with. Its zero value is the default.
type Config struct {
	// BinDir is the folder of initdb, pg_ctl and postgres. Empty: the one found
	// by [BinDir], else a download.
	BinDir string

	// Dir is the folder in which the server gets a folder of its own. A folder in memory, such as /dev/shm, makes
	// creating and dropping databases several times faster. Empty: /tmp.
	Dir string

	// Parameters are settings of the server (postgresql.conf), beside or instead
	// of fsync=on and max_connections=200. A value must hold no double quote.
	Parameters map[string]string

	// Log receives what the server logs, when it stops. Nil: nothing.
	Log io.Writer
}

// Server is a running server of which this process is the only user.
type Server struct {
	// DSN leads to the database postgres, as a superuser, over 127.0.0.1.
	DSN string

	child *exec.Cmd
	stdin io.Closer
	dir   string
	ended chan struct{}
	err   error // of the child; read after ended is closed
	stop  sync.Once
}

// Start starts a server on a free port of 127.0.0.1 and returns when it takes
// connections, after about 1.5 s. It needs [Main] at the top of the program.
// Cancelling ctx gives up a start that is under way; afterwards it means
// nothing: Stop, or the end of this process, stops the server.
//
// An error that is [ErrNoServer] means that Postgres has to be installed.
func Start(ctx context.Context, config Config) (*Server, error) {
	if !mainCalled {
		return nil, errors.New("localpg: the program must call localpg.Main first of all")
	}
	var server *Server
	var err error
	for range 3 { // a free port can be taken by another before the server has it
		var port int
		if port, err = freePort(ctx); err != nil {
			return nil, fmt.Errorf("localpg: find a free port: %w", err)
		}
		server, err = start(ctx, config, port)
		if err == nil || ctx.Err() != nil || !portTaken.MatchString(err.Error()) {
			break
		}
	}
	return server, err
}

// portTaken is in the words of embedded-postgres, or of Postgres itself.
var portTaken = regexp.MustCompile(`already listening on port|could not bind`)

func start(ctx context.Context, config Config, port int) (_ *Server, err error) {
	job := job{Port: port, BinDir: config.BinDir, Parameters: map[string]string{
		"fsync":           "on",
		"max_connections": "200",
	}}
	for name, value := range config.Parameters {
		job.Parameters[name] = value
	}
	if job.BinDir == "" {
		job.BinDir = BinDir(ctx)
	}
	user, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	job.Dir, err = makeDir(cmp.Or(config.Dir, temporary), user)
	if err != nil {
		return nil, fmt.Errorf("localpg: make a folder for the server: %w", err)
	}
	server := &Server{
		DSN:   fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/postgres?sslmode=disable", superuser, password, port),
		dir:   job.Dir,
		ended: make(chan struct{}),
	}
	ready, err := server.startChild(job, user, config.Log)
	if err != nil {
		_ = os.RemoveAll(job.Dir)
		return nil, fmt.Errorf("localpg: start the child process: %w", err)
	}
	select {
	case answer := <-ready:
		if answer == "ready" {
			return server, nil
		}
		_ = server.Stop() // its error is the one at hand
		if job.BinDir == "" {
			return nil, fmt.Errorf("%w: %s", ErrNoServer, answer)
		}
		return nil, fmt.Errorf("localpg: start Postgres from %s: %s", job.BinDir, answer)
	case <-ctx.Done():
		_ = server.Stop()
		return nil, fmt.Errorf("localpg: start Postgres: %w", context.Cause(ctx))
	}
}

// startChild starts this executable again and returns a channel on which its
// first word comes: "ready", or what went wrong.
func (s *Server) startChild(job job, user *user, log io.Writer) (<-chan string, error) {
	encoded, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	s.child = exec.Command(self())
	s.child.Dir = job.Dir
	s.child.Env = append(os.Environ(), childVariable+"="+string(encoded), "HOME="+job.Dir, "TMPDIR="+job.Dir)
	s.child.Stderr = log
	s.child.SysProcAttr = attributes(user)
	stdin, err := s.child.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := s.child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.child.Start(); err != nil {
		return nil, err
	}
	s.stdin = stdin
	ready := make(chan string, 1)
	go func() {
		defer close(s.ended)
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			line = `"the child process ended without a word: is localpg.Main the first call in main?"`
		}
		var answer string
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			answer = "the child process said: " + strings.TrimSpace(line)
		}
		ready <- answer
		s.err = s.child.Wait()
	}()
	return ready, nil
}

// Stop stops the server with all its connections and removes its files. Only
// the first call does something; it is safe to defer.
func (s *Server) Stop() error {
	var err error
	s.stop.Do(func() {
		_ = s.stdin.Close() // tells the child to stop
		select {
		case <-s.ended:
			err = s.err
		case <-time.After(time.Minute):
			_ = s.child.Process.Kill()
			err = errors.New("the server did not stop within a minute")
		}
		err = errors.Join(err, os.RemoveAll(s.dir))
	})
	if err != nil {
		return fmt.Errorf("localpg: stop: %w", err)
	}
	return nil
}

func freePort(ctx context.Context) (int, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
