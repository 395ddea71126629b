package outbox_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
)

func TestAwaitBehindAPooler(t *testing.T) {
	for name, start := range map[string]func(testing.TB, *pgx.ConnConfig) (port uint16){
		"PgBouncer in transaction mode": startPgBouncer,
		"another process id":            startRenumbering,
	} {
		t.Run(name, func(t *testing.T) {
			a := setupAwaitWith(t, 20*time.Millisecond)
			config := a.on.Config()
			port := start(t, config.ConnConfig)
			a.pool = dbtest.Pool(t, a.on.DSN, func(c *pgxpool.Config) {
				c.ConnConfig.Host, c.ConnConfig.Port, c.ConnConfig.TLSConfig, c.ConnConfig.Fallbacks = "127.0.0.1", port, nil, nil
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
				c.ConnConfig.Tracer = a.trap
			})
			key, id := a.insert()
			got := a.await(t.Context(), key, id)
			dbtest.Until(t, "some reads", func() bool { return a.trap.reads.Load() > 3 })
			a.waits(got)
			a.ends(id, outbox.StatusDelivered)
			a.want(got, id, outbox.StatusDelivered)
			if n := a.trap.listens.Load(); n != 0 {
				t.Errorf("%d connections listened", n)
			}
			dbtest.Until(t, "the connections are given back", func() bool { return a.pool.Stat().AcquiredConns() == 0 })
		})
	}
}

// startPgBouncer runs PgBouncer in front of the tests' server, if it is installed.
func startPgBouncer(t testing.TB, server *pgx.ConnConfig) (port uint16) {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program = "/usr/sbin/pgbouncer"; exec.Command(program, "--version").Run() != nil {
			t.Skip("pgbouncer is not installed")
		}
	}
	dir, err := os.MkdirTemp("", "pgbouncer") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = uint16(free.Addr().(*net.TCPAddr).Port)
	_ = free.Close()
	password := ""
	if server.Password != "" {
		password = " password=" + server.Password
	}
	text := fmt.Sprintf(`[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
`, server.Host, server.Port, server.User, password, port)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", file}
	if os.Geteuid() == 0 {
		args = []string{"-q", "-u", "nobody", file} // it refuses to run as root
	}
	bouncer := exec.Command(program, args...)
	if err := bouncer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bouncer.Process.Kill(); _ = bouncer.Wait() })
	dbtest.Until(t, "PgBouncer listens", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return port
}

// startRenumbering passes connections to the tests' server, and changes the process id that the server names at the
// start, as every pooler does.
func startRenumbering(t testing.TB, server *pgx.ConnConfig) (port uint16) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); open.Wait() })
	address := net.JoinHostPort(server.Host, fmt.Sprint(server.Port))
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				return
			}
			open.Go(func() {
				defer func() { _ = upstream.Close() }()
				_, _ = io.Copy(upstream, client)
			})
			open.Go(func() {
				defer func() { _ = client.Close() }()
				if renumber(client, upstream) == nil {
					_, _ = io.Copy(client, upstream)
				}
			})
		}
	})
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

// renumber passes messages on, up to BackendKeyData, whose process id it changes.
func renumber(to io.Writer, from io.Reader) error {
	head := make([]byte, 5) // type and length
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return err
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1)
		}
		if _, err := to.Write(append(head[:5:5], body...)); err != nil || head[0] == 'K' {
			return err
		}
	}
}
