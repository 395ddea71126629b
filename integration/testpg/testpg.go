// Package testpg provides the Postgres server that the tests of all modules
// run on. [Start] takes the first of:
//
//  1. the server that SAMEKEY_TEST_DATABASE_URL names;
//  2. a container, where Docker works. Its image is SAMEKEY_TEST_POSTGRES_IMAGE,
//     by default the official one; where that can be neither found nor pulled,
//     one is built from Debian's packages and kept for the next run;
//  3. the server binaries of this machine.
//
// SAMEKEY_TEST_POSTGRES=dsn, docker or local asks for one of them and no other.
//
// In 2 and 3 the data is in memory where the machine has enough of it, and fsync
// is off: no test kills this server. A test that does starts one of its own, see
// package localpg. If there is no server, Start reports what is missing for each
// of the three. No test is skipped silently.
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
	// DatabaseURL names a server that is there already, and, for a program that
	// was started by withpostgres, the one that was started for it.
	DatabaseURL = "SAMEKEY_TEST_DATABASE_URL"

	// Kind asks for one kind of server: dsn, docker or local.
	Kind = "SAMEKEY_TEST_POSTGRES"

	// Image names the container's image.
	Image = "SAMEKEY_TEST_POSTGRES_IMAGE"
)

// settings fit a run of many test packages at once, each with pools of its own.
// Every dropped database costs a checkpoint, which is cheap while little is
// dirty. Creating and dropping one takes 30 ms in memory, and 190 ms on a disk
// that is busy.
var settings = map[string]string{
	"fsync":            "off",
	"full_page_writes": "off",
	"max_connections":  "300",
	"max_wal_size":     "512MB",
	"jit":              "off", // no query of a test is worth compiling

	// See cheapPassword. It also holds for the roles that tests create.
	"password_encryption": "md5",
}

// Start returns the DSN of a server on which databases can be created, and what
// stops it. It prints one line that says which server is used, and why. Stop is
// never nil, and works once; call it also before the process ends by a signal.
//
// For local binaries, the program must have called [localpg.Main] first of all.
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
	return "", func() {}, fmt.Errorf(`testpg: these tests need a Postgres server, and there is none.
%s
Any one of these helps:
  - set %s to a Postgres 14 or later, and a role that may create databases
  - start Docker, and be allowed to use it
  - install the server, such as: apt-get install postgresql
%s asks for one of them: dsn, docker or local`, "  "+strings.Join(missing, "\n  "), DatabaseURL, Kind)
}

type server struct {
	dsn  string
	what string // and where, for a person
	stop func()
}

// errAsked marks the failure of a server that somebody asked for by name: to
// use another one instead would hide it.
var errAsked = errors.New("testpg: the server that was asked for cannot be used")

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
	return server{dsn: dsn, what: "the one that " + DatabaseURL + " names", stop: func() {}}, nil
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

// memoryDir is a folder in memory that has room for the databases of a run, or "".
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
