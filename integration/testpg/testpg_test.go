package testpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/localpg"
)

const victimVariable = "TESTPG_VICTIM"

func TestMain(m *testing.M) {
	localpg.Main()
	if os.Getenv(victimVariable) != "" {
		victim()
	}
	os.Exit(m.Run())
}

func TestLocalBinariesRunAndStop(t *testing.T) {
	t.Setenv(Kind, "local")
	expectGoodServer(t)
}

func TestContainerRunsAndStops(t *testing.T) {
	needDocker(t)
	t.Setenv(Kind, "docker")
	expectGoodServer(t)
	if left := containersOf(t, os.Getpid()); left != "" {
		t.Errorf("container left behind: %s", left)
	}
}

func TestNextRunRemovesTheContainerOfAKilledRun(t *testing.T) {
	needDocker(t)
	killed := exec.Command(os.Args[0])
	killed.Env = append(os.Environ(), victimVariable+"=1", Kind+"=docker")
	killed.Stderr = os.Stderr
	stdout, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = bufio.NewReader(stdout).ReadString('\n')
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if err != nil {
		t.Fatalf("the victim started no server: %v", err)
	}
	removeOrphans(t.Context())
	if left := containersOf(t, killed.Process.Pid); left != "" {
		t.Errorf("container left behind: %s", left)
	}
}

func TestRequestedServerIsNeverReplaced(t *testing.T) {
	t.Run("a DSN that cannot be reached", func(t *testing.T) {
		t.Setenv(Kind, "")
		t.Setenv(DatabaseURL, "postgres://nobody@127.0.0.1:1/none")
		_, stop, err := Start(t.Context())
		stop()
		if !errors.Is(err, errAsked) || !strings.Contains(err.Error(), DatabaseURL) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an image that cannot be pulled", func(t *testing.T) {
		needDocker(t)
		t.Setenv(Kind, "")
		t.Setenv(DatabaseURL, "")
		t.Setenv(Image, "localhost:1/none")
		_, stop, err := Start(t.Context())
		stop()
		if !errors.Is(err, errAsked) || !strings.Contains(err.Error(), Image) {
			t.Errorf("got %v", err)
		}
	})
}

func TestErrorWithoutServerNamesAllThreeKinds(t *testing.T) {
	t.Setenv(Kind, "dsn")
	t.Setenv(DatabaseURL, "")
	_, stop, err := Start(t.Context())
	stop()
	for _, advice := range []string{DatabaseURL, "Docker", "apt-get install postgresql"} {
		if err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("no advice about %s in: %v", advice, err)
		}
	}
}

func expectGoodServer(t *testing.T) {
	t.Helper()
	dsn, stop, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"fsync": "off", "max_connections": "300"} {
		var got string
		if err := conn.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	_ = conn.Close(t.Context())
	stop()
	stopped, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := pgx.Connect(stopped, dsn); err == nil {
		t.Error("it still takes connections after stop")
	}
}

// needDocker skips a test if Docker does not work. Local binaries then test the same promises.
func needDocker(t *testing.T) {
	t.Helper()
	if _, err := docker(t.Context(), "info"); err != nil {
		t.Skipf("no Docker: %v", err)
	}
}

func containersOf(t *testing.T, pid int) string {
	t.Helper()
	left, err := docker(t.Context(), "ps", "--all", "--quiet", "--filter", "label="+owner+"="+ownerOf(pid))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// victim starts a server and waits to be killed.
func victim() {
	dsn, _, err := Start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dsn)
	select {}
}
