package localpg

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

const (
	childVariable = "SAMEKEY_LOCALPG_CHILD"
	superuser     = "postgres"
	password      = "postgres"
)

// job is what the child is told, in its environment.
type job struct {
	Port       int
	BinDir     string // empty: download
	Dir        string // the child's own folder
	Parameters map[string]string
}

var mainCalled bool

// Main returns at once, except in the child process that [Start] made, where it
// runs the server and never returns. Call it first in main, or in TestMain.
func Main() {
	mainCalled = true
	encoded, child := os.LookupEnv(childVariable)
	if !child {
		return
	}
	_ = os.Unsetenv(childVariable)
	// Ctrl-C reaches everybody at the terminal. The parent decides when to stop.
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
	// Nothing is ever written here: it ends when the parent closes it, or dies.
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func say(word string) {
	encoded, _ := json.Marshal(word) // a string always can be
	fmt.Printf("%s\n", encoded)
}
