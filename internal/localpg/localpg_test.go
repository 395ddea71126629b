package localpg

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver that embedded-postgres brings
)

func TestMain(m *testing.M) {
	Main()
	if os.Getenv("LOCALPG_TEST_VICTIM") != "" {
		victim()
	}
	os.Exit(m.Run())
}

func TestServerStartsWithFsyncAndIsGoneAfterStop(t *testing.T) {
	server := startServer(t, Config{Parameters: map[string]string{"max_connections": "33"}})
	for name, want := range map[string]string{"fsync": "on", "max_connections": "33", "listen_addresses": "127.0.0.1"} {
		if got := setting(t, server.DSN, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
	if err := server.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
	if _, err := os.Stat(server.dir); !os.IsNotExist(err) {
		t.Errorf("the server's folder still exists: %v", err)
	}
	if reachable(server.DSN) {
		t.Error("the server still accepts connections")
	}
}

func TestTwoServersRunSideBySide(t *testing.T) {
	one, two := startServer(t, Config{}), startServer(t, Config{})
	if one.DSN == two.DSN {
		t.Errorf("both servers have the DSN %s", one.DSN)
	}
	for _, server := range []*Server{one, two} {
		if !reachable(server.DSN) {
			t.Errorf("%s accepts no connections", server.DSN)
		}
	}
}

func TestKilledProcessLeavesNoServerBehind(t *testing.T) {
	victim := exec.Command(self())
	victim.Env = append(os.Environ(), "LOCALPG_TEST_VICTIM=1")
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the victim printed nothing: %v", err)
	}
	dsn, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
	if !reachable(dsn) {
		t.Fatal("the victim's server accepts no connections")
	}
	_ = victim.Process.Kill()
	_ = victim.Wait()
	deadline := time.Now().Add(30 * time.Second)
	for reachable(dsn) || exists(dir) {
		if time.Now().After(deadline) {
			t.Fatalf("30 s after the kill: reachable %t, folder exists %t", reachable(dsn), exists(dir))
		}
		time.Sleep(10 * time.Millisecond) // the process is not a child, so poll
	}
}

func TestRefusedSettingIsReportedWithPostgresMessage(t *testing.T) {
	folder := useTemporary(t)
	_, err := Start(t.Context(), Config{Parameters: map[string]string{"shared_buffers": "many"}})
	if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("got %v", err)
	}
	expectEmpty(t, folder)
}

func TestCancelledStartLeavesNothingBehind(t *testing.T) {
	folder := useTemporary(t)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(enough) })
	server, err := Start(ctx, Config{BinDir: BinDir(t.Context())})
	if server != nil {
		t.Skip("started within 50 ms")
	}
	if !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	expectEmpty(t, folder)
}

func TestNewestServerIsChosen(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"9", "10", "15", "17"} {
		bin := filepath.Join(root, version, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		programs := []string{"initdb", "pg_ctl", "postgres"}
		if version == "17" {
			programs = programs[:2] // a client without a server
		}
		for _, program := range programs {
			if err := os.WriteFile(filepath.Join(bin, program), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept := places
	t.Cleanup(func() { places = kept })
	t.Setenv("PATH", t.TempDir()) // no pg_config
	places = []string{filepath.Join(root, "none", "bin"), filepath.Join(root, "*", "bin")}
	if got, want := BinDir(t.Context()), filepath.Join(root, "15", "bin"); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	places = places[:1]
	if got := BinDir(t.Context()); got != "" {
		t.Errorf("found %q in an empty folder", got)
	}
}

// victim starts a server and waits to be killed.
func victim() {
	server, err := Start(context.Background(), Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(server.DSN, server.dir)
	select {}
}

func startServer(t *testing.T, config Config) *Server {
	t.Helper()
	server, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// useTemporary puts the servers of this test into a folder of its own.
func useTemporary(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	temporary = folder
	t.Cleanup(func() {
		temporary = "/tmp"
		_ = os.RemoveAll(folder)
	})
	return folder
}

func expectEmpty(t *testing.T, folder string) {
	t.Helper()
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func setting(t *testing.T, dsn, name string) (value string) {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("select current_setting($1)", name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func reachable(dsn string) bool {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return false
	}
	defer db.Close()
	return db.Ping() == nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
