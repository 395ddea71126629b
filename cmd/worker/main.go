// Command worker delivers the intents (outbox messages) of samekey to vendors over HTTP. It needs no Go code: one YAML
// file names the vendors and the requests to them.
//
//	worker run [-config file]              deliver until SIGTERM, SIGINT or SIGHUP
//	worker migrate [-app-role r] [-worker-role r] [-operator-role r] [-approver-role r] [-print | -for tool -dir folder]
//	worker config check [-config file]     print all mistakes in the file, with their lines
//	worker config try -action a -answer f  say what a recorded answer means for an action, and which rule decides
//	worker adopt -deployment name          make a copy of the database, or a renamed one, the deployment's own
//	worker pause -destination d -reason t  stop the calls to a destination, or of one -action, on every worker
//	worker resume -destination d -reason t continue them
//	worker version
//
// docs/worker.md is the reference: each field with its default, limits and unit, the environment, probes, signals and
// exit codes (0 done or stopped, 1 failed, 2 configuration or usage).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/daemon"
)

func main() {
	m := &worker{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv}
	os.Exit(m.main(os.Args[1:]))
}

// worker is the program and what it needs from outside.
type worker struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
}

const usage = `worker delivers the intents of samekey's outbox to vendors over HTTP.

usage:
  worker run [-config file]            deliver until SIGTERM, SIGINT or SIGHUP (DATABASE_URL names the database)
  worker migrate [flags]               create or update the tables, then grant roles what they need
  worker config check [-config file]   check the configuration; needs no database
  worker config try -action name ..    say what a vendor's answer means for an action; sends nothing
  worker adopt -deployment name        let this deployment's workers deliver from a copy of the database
  worker pause, worker resume          stop the calls to a destination, and continue them
  worker version

"worker <command> -h" prints a command's flags and environment variables.
Exit codes: 0 done or stopped, 1 failed, 2 configuration or usage.
`

const (
	failed   = 1
	mistaken = 2
)

func (m *worker) main(args []string) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "run":
		return m.run(args)
	case "migrate":
		return m.migrate(args)
	case "config":
		return m.config(args)
	case "adopt":
		return m.adopt(args)
	case "pause":
		return m.pause(command, pauseUsage, args)
	case "resume":
		return m.pause(command, resumeUsage, args)
	case "version":
		m.print(m.stdout, version()+"\n")
		return 0
	case "help", "-h", "-help", "--help":
		m.print(m.stdout, usage)
		return 0
	case "":
		m.print(m.stderr, usage)
	default:
		m.print(m.stderr, fmt.Sprintf("worker: unknown command %q\n\n%s", command, usage))
	}
	return mistaken
}

func (m *worker) print(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

const runUsage = `usage: worker run [-config file]

Delivers intents (outbox messages) until SIGTERM, SIGINT or SIGHUP, then lets calls in progress finish. A second signal ends
it at once.

environment:
  DATABASE_URL   the database, such as postgres://user:password@host:5432/name (required)
  DEPLOYMENT     the deployment whose intents it delivers, such as production (required, unless the file has it)
  WORKER_CONFIG  the configuration file, unless -config is given (default worker.yaml)
  LISTEN_ADDR    the address for /healthz and /readyz (default :8080; "off" for none)
  LOG_LEVEL      debug, info, warn, error (default info)
  LOG_FORMAT     json or text (default json)

flags:
`

// flags parses a command's flags. If done is true, the command ends with the code.
func (m *worker) flags(set *flag.FlagSet, help string, args []string) (code int, done bool) {
	set.SetOutput(m.stderr)
	set.Usage = func() {
		m.print(set.Output(), help)
		set.PrintDefaults()
	}
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0, true
	case err != nil:
		return mistaken, true
	case set.NArg() > 0:
		m.print(m.stderr, fmt.Sprintf("worker: unexpected argument %q\n\n", set.Arg(0)))
		set.Usage()
		return mistaken, true
	}
	return 0, false
}

func (m *worker) configFlag(set *flag.FlagSet) *string {
	file, ok := m.lookupEnv("WORKER_CONFIG")
	if !ok || file == "" {
		file = "worker.yaml"
	}
	return set.String("config", file, "the configuration `file`; environment WORKER_CONFIG")
}

func (m *worker) run(args []string) int {
	set := flag.NewFlagSet("worker run", flag.ContinueOnError)
	file := m.configFlag(set)
	if code, done := m.flags(set, runUsage, args); done {
		return code
	}
	config, configErr := load(*file, m.lookupEnv)
	options := daemon.Options{
		LookupEnv: m.lookupEnv, Stderr: m.stderr,
		Register: func(*dispatcher.Dispatcher) error { return configErr },
	}
	if configErr == nil {
		options.Config, options.Register = &config.worker, func(d *dispatcher.Dispatcher) error {
			for _, warning := range config.warnings {
				slog.Warn("worker: " + warning)
			}
			config.register(d)
			return nil
		}
		options.Explain = config.explain
	}
	return daemon.Exec(options)
}

const checkUsage = `usage: worker config check [-config file]

Reads the configuration with all its secrets, and prints every mistake as file:line: field: text. It prints a warning for
what is allowed but probably wrong, such as a known vendor's host without the vendor's preset; the exit code is then 0.

flags:
`

func (m *worker) config(args []string) int {
	if len(args) > 0 && args[0] == "try" {
		return m.try(args[1:])
	}
	set := flag.NewFlagSet("worker config check", flag.ContinueOnError)
	file := m.configFlag(set)
	if len(args) == 0 || args[0] != "check" {
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			m.print(m.stderr, fmt.Sprintf("worker: unknown command %q\n\n", "config "+args[0]))
		}
		_, _ = m.flags(set, checkUsage, []string{"-h"}) // prints the usage
		m.print(m.stderr, "\nThe other command is worker config try: see worker config try -h.\n")
		return mistaken
	}
	if code, done := m.flags(set, checkUsage, args[1:]); done {
		return code
	}
	config, err := load(*file, m.lookupEnv)
	if err != nil {
		m.print(m.stderr, err.Error()+"\n")
		return mistaken
	}
	for _, warning := range config.warnings {
		m.print(m.stderr, "warning: "+warning+"\n")
	}
	m.print(m.stdout, fmt.Sprintf("%s: %d destinations and %d actions, no mistakes\n", *file, len(config.destinations), len(config.actions)))
	return 0
}

// interruptible returns a context that ends at a signal, for a command that has nothing to finish.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, os.Interrupt)
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "worker, version unknown"
	}
	words := []string{"worker", info.Main.Version, info.GoVersion}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			words = append(words, setting.Value)
		}
	}
	return strings.Join(words, " ")
}
