package integration

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/samekey/samekey/integration/testpg"
	"github.com/samekey/samekey/internal/localpg"
)

// roleVariable is the environment variable that makes a process of this binary a service or a worker.
const roleVariable = "SAMEKEY_TEST_ROLE"

func TestMain(m *testing.M) {
	localpg.Main()
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(runTests(m))
	case "service":
		os.Exit(end(runService()))
	case "worker":
		os.Exit(end(runWorker()))
	default:
		os.Exit(end(fmt.Errorf("%s: unknown role %q", roleVariable, role)))
	}
}

func end(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runTests(m *testing.M) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	dsn, stop, err := testpg.Start(ctx)
	if err != nil {
		return end(err)
	}
	defer stop()
	stopped := context.AfterFunc(ctx, func() { // a signal ends this process, so stop the server first
		stop()
		os.Exit(1)
	})
	defer stopped()
	if err := os.Setenv(testpg.DatabaseURL, dsn); err != nil {
		return end(err)
	}
	return m.Run()
}
