// Command withpostgres runs a command with a Postgres server for its tests:
//
//	withpostgres -- go test ./...
//
// It starts a server with package testpg, sets SAMEKEY_TEST_DATABASE_URL to its DSN, runs the command, and then stops
// the server. It passes signals on to the command and exits with the command's exit code. If the variable is already
// set, that server is used.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/samekey/samekey/integration/testpg"
	"github.com/samekey/samekey/internal/localpg"
)

const (
	exitFailed = 1
	exitUsage  = 2
	exitSignal = 128 // plus the signal's number, as in a shell
)

func main() {
	localpg.Main()
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: withpostgres -- command [argument ...]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(exitUsage)
	}
	code, err := run(flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "withpostgres: %v\n", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)

	dsn, stop, err := start(signals)
	defer stop()
	if err != nil {
		return exitFailed, err
	}

	command := exec.Command(args[0], args[1:]...)
	command.Env = append(os.Environ(), testpg.DatabaseURL+"="+dsn)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return exitFailed, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	for {
		select {
		case received := <-signals:
			_ = command.Process.Signal(received) // fails if the command has just ended
		case err := <-ended:
			return exitCode(err)
		}
	}
}

// start starts the server. A signal cancels it.
func start(signals <-chan os.Signal) (dsn string, stop func(), err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case received := <-signals:
			cancel(fmt.Errorf("%s", received))
		case <-started:
		}
	}()
	dsn, stop, err = testpg.Start(ctx)
	close(started)
	<-watched
	if err == nil {
		err = context.Cause(ctx)
	}
	return dsn, stop, err
}

func exitCode(err error) (int, error) {
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		if err != nil {
			return exitFailed, err
		}
		return 0, nil
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
