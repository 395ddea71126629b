// Package testpg provides the Postgres server for the tests of all modules. [Start] takes the first that is available
// of:
//
//  1. the server that SAMEKEY_TEST_DATABASE_URL names;
//  2. a container, if Docker works. SAMEKEY_TEST_POSTGRES_IMAGE names its image, by default the official one. If that
//     image can neither be found nor pulled, one is built from Debian's packages and kept for the next run;
//  3. the server binaries of this machine.
//
// SAMEKEY_TEST_POSTGRES=dsn, docker or local selects one of them.
//
// In 2 and 3, fsync is off and the data is in memory if there is room. No test kills this server: a test that kills a
// server starts its own, with package localpg. If no server is available, Start reports what is missing for each kind.
// The tests then fail; they are not skipped.
package testpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/localpg"
)

const (
	// DatabaseURL names a running server. For its command, withpostgres sets it to the server that it has started.
	DatabaseURL = "SAMEKEY_TEST_DATABASE_URL"

	// Kind selects one kind of server: dsn, docker or local.
	Kind = "SAMEKEY_TEST_POSTGRES"

	// Image names the container's image.
	Image = "SAMEKEY_TEST_POSTGRES_IMAGE"
)

// settings are for many test packages at once, each with its own pools. Dropping a database runs a checkpoint, which is
// cheap while few pages are dirty. Creating and dropping a database takes 30 ms in memory, and 190 ms on a busy disk.
var settings = map[string]string{
	"fsync":            "off",
	"full_page_writes": "off",
	"max_connections":  "300",
	"max_wal_size":     "512MB",
	"jit":              "off", // the queries are too short to gain from it

	// See cheapPassword. This setting applies to the roles that tests create.
	"password_encryption": "md5",
}

// Start returns the DSN of a server on which databases can be created, and a function that stops the server. It prints
// one line that names the server and the reason for the choice. Stop is never nil, and only its first call has an
// effect. Call it also before the process ends because of a signal.
//
// A program that may use local binaries must call [localpg.Main] first.
func Start(ctx context.Context) (dsn string, stop func(), err error) {
	var missing []string
	for _, source := range []struct {
		kind  string
		start func(context.Context) (server, error)
	}{
		{"dsn", startDSN},
		{"docker", startDocker},
		{"local", startLocal},
	} {
		if wanted := os.Getenv(Kind); wanted != "" && wanted != source.kind {
			continue
		}
		found, err := source.start(ctx)
		if err == nil && source.kind != "dsn" {
			if err = cheapPassword(ctx, found.dsn); err != nil {
				found.stop()
			}
		}
		if err == nil {
			say("%s", strings.Join(append([]string{"Postgres: " + found.what}, missing...), "; "))
			return found.dsn, sync.OnceFunc(found.stop), nil
		}
		if ctx.Err() != nil || errors.Is(err, errAsked) {
			return "", func() {}, err
		}
		missing = append(missing, fmt.Sprintf("no %s: %v", source.kind, err))
	}
	return "", func() {}, fmt.Errorf(`testpg: these tests need a Postgres server, but found no usable one.
%s
Do one of these:
  - set %s to a Postgres 14 or later, with a role that may create databases
  - start Docker, and get access to it
  - install the server, for example: apt-get install postgresql
%s selects one of them: dsn, docker or local`, "  "+strings.Join(missing, "\n  "), DatabaseURL, Kind)
}

type server struct {
	dsn  string
	what string // describes the server in the output
	stop func()
}

// errAsked marks the failure of a server that the environment names. Another server would hide the failure.
var errAsked = errors.New("testpg: the requested server cannot be used")

func startDSN(ctx context.Context) (server, error) {
	dsn := os.Getenv(DatabaseURL)
	if dsn == "" {
		return server{}, fmt.Errorf("%s is not set", DatabaseURL)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return server{}, fmt.Errorf("%w: %s: %w", errAsked, DatabaseURL, err)
	}
	_ = conn.Close(ctx)
	return server{dsn: dsn, what: "the server of " + DatabaseURL, stop: func() {}}, nil
}

func startLocal(ctx context.Context) (server, error) {
	dir := localpg.BinDir(ctx)
	what := "local binaries of " + dir
	if dir == "" {
		what = "downloaded binaries"
	}
	local, err := localpg.Start(ctx, localpg.Config{BinDir: dir, Dir: memoryDir(), Parameters: settings})
	if err != nil {
		return server{}, err
	}
	return server{dsn: local.DSN, what: what, stop: func() {
		if err := local.Stop(); err != nil {
			say("%v", err)
		}
	}}, nil
}

// memoryDir returns a folder in memory with room for the databases of a run, or "".
func memoryDir() string {
	const dir, room = "/dev/shm", 3 << 30
	var free syscall.Statfs_t
	if err := syscall.Statfs(dir, &free); err != nil || uint64(free.Bavail)*uint64(free.Bsize) < room {
		return ""
	}
	return dir
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "testpg: "+format+"\n", args...)
}
