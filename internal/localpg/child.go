package localpg

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

const (
	childVariable = "SAMEKEY_LOCALPG_CHILD"
	superuser     = "postgres"
	password      = "postgres"
)

// job holds the child's settings. The child reads them from its environment.
type job struct {
	Port       int
	BinDir     string // empty: download binaries
	CopyOf     string // empty: begin with an empty server
	Dir        string // the child's own folder
	Parameters map[string]string
}

var mainCalled bool

// Main runs the server in the child process of [Start], and never returns there. In any other process it returns at
// once. Call it first in main or TestMain.
func Main() {
	mainCalled = true
	encoded, child := os.LookupEnv(childVariable)
	if !child {
		return
	}
	_ = os.Unsetenv(childVariable)
	// Ctrl-C reaches all processes of the terminal. The parent decides when to stop.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	if err := runChild(encoded); err != nil {
		say(err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(encoded string) (err error) {
	var job job
	if err := json.Unmarshal([]byte(encoded), &job); err != nil {
		return err
	}
	defer os.RemoveAll(job.Dir)
	job.Parameters["listen_addresses"] = "127.0.0.1"
	job.Parameters["unix_socket_directories"] = job.Dir
	config := embedded.DefaultConfig().
		Port(uint32(job.Port)).
		Username(superuser).Password(password).Database("postgres").
		RuntimePath(filepath.Join(job.Dir, "runtime")).
		DataPath(filepath.Join(job.Dir, "data")).
		Encoding("UTF8").Locale("C").
		StartParameters(job.Parameters).
		StartTimeout(time.Minute).
		Logger(os.Stderr)
	if job.BinDir != "" {
		config = config.BinariesPath(filepath.Dir(job.BinDir))
	}
	if job.CopyOf != "" {
		version, err := copyServer(job)
		if err != nil {
			return err
		}
		config = config.Version(version)
	}
	postgres := embedded.NewDatabase(config)
	if err := postgres.Start(); err != nil {
		return err
	}
	defer func() {
		if stopErr := postgres.Stop(); err == nil {
			err = stopErr
		}
	}()
	say("ready")
	// The parent writes nothing to this pipe. The read ends when the parent closes it or dies.
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// copyServer copies the files of another server. It returns their version: embedded-postgres starts from an existing
// folder only if the two agree.
func copyServer(job job) (embedded.PostgresVersion, error) {
	data := filepath.Join(job.Dir, "data")
	out, err := exec.Command(filepath.Join(job.BinDir, "pg_basebackup"), "-D", data, "-d", job.CopyOf, "--checkpoint=fast").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pg_basebackup: %w: %s", err, out)
	}
	version, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	return embedded.PostgresVersion(strings.TrimSpace(string(version))), err
}

func say(word string) {
	encoded, _ := json.Marshal(word) // cannot fail for a string
	fmt.Printf("%s\n", encoded)
}
