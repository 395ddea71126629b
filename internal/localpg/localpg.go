// Package localpg runs a temporary Postgres server on this machine, for a demo or for tests. It needs no configuration.
//
// It uses installed server binaries: those that pg_config names, or else the newest version that it finds in the
// folders of Debian, Homebrew and others. If there are none, embedded-postgres downloads some. fsync is on, so commits
// survive a crash of the server.
//
// Postgres refuses to run as root, and a killed program cannot stop its server. So the server belongs to a child
// process, which is the same executable. If the program runs as root, the child runs as an unprivileged user. When its
// parent ends in any way, the child stops the server and removes its files. A program that calls [Start] must therefore
// call [Main] first:
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

// ErrNoServer means that this machine has no server binaries, and that they could not be downloaded. Install Postgres
// 14 or later.
var ErrNoServer = errors.New("localpg: no Postgres server on this machine")

// Config holds the settings of a server. Its zero value is the default.
type Config struct {
	// BinDir is the folder of initdb, pg_ctl and postgres. By default it is the folder that [BinDir] finds. If there is
	// none, the binaries are downloaded.
	BinDir string

	// Dir is the folder in which the server's own folder is created, by default /tmp. In a folder in memory, such as
	// /dev/shm, creating and dropping databases is several times faster.
	Dir string

	// Parameters are settings of the server, as in postgresql.conf. They override fsync=on and max_connections=200. A
	// value must not contain a double quote.
	Parameters map[string]string

	// CopyOf is the DSN of a running server of the same version. The new server begins with a physical copy of it, made
	// by pg_basebackup, as a promoted replica does. By default it begins empty.
	CopyOf string

	// Log receives the server's log when the server stops. By default the log is discarded.
	Log io.Writer
}

// Server is a running server that belongs to this process.
type Server struct {
	// DSN connects to the database postgres as a superuser, over 127.0.0.1.
	DSN string

	child *exec.Cmd
	stdin io.Closer
	dir   string
	ended chan struct{}
	err   error // of the child; read after ended is closed
	stop  sync.Once
}

// Start starts a server on a free port of 127.0.0.1 and returns when the server accepts connections, after about 1.5 s.
// The program must call [Main] first. ctx cancels only the start. After it, Stop or the end of this process stops the
// server.
//
// Start returns [ErrNoServer] if Postgres must be installed.
func Start(ctx context.Context, config Config) (*Server, error) {
	if !mainCalled {
		return nil, errors.New("localpg: the program must call localpg.Main first")
	}
	var server *Server
	var err error
	for range 3 { // another process can take the free port before the server does
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

// portTaken matches the errors of embedded-postgres and of Postgres itself.
var portTaken = regexp.MustCompile(`already listening on port|could not bind`)

func start(ctx context.Context, config Config, port int) (_ *Server, err error) {
	job := job{Port: port, BinDir: config.BinDir, CopyOf: config.CopyOf, Parameters: map[string]string{
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
		_ = server.Stop() // returns the same error
		if job.BinDir == "" {
			return nil, fmt.Errorf("%w: %s", ErrNoServer, answer)
		}
		return nil, fmt.Errorf("localpg: start Postgres from %s: %s", job.BinDir, answer)
	case <-ctx.Done():
		_ = server.Stop()
		return nil, fmt.Errorf("localpg: start Postgres: %w", context.Cause(ctx))
	}
}

// startChild starts this executable again. The channel receives the child's first message: "ready" or an error.
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
			line = `"the child process ended without a message: is localpg.Main the first call in main?"`
		}
		var answer string
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			answer = "unexpected output of the child process: " + strings.TrimSpace(line)
		}
		ready <- answer
		s.err = s.child.Wait()
	}()
	return ready, nil
}

// Stop stops the server with all its connections and removes its files. Further calls do nothing, so it is safe to
// defer.
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
