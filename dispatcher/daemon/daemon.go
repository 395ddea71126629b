// Package daemon runs a dispatcher as a process, so that a main with handlers in Go is three lines:
//
//	func main() {
//		daemon.Main(func(d *dispatcher.Dispatcher) error {
//			dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{Policy: policy, Send: charge})
//			return nil
//		})
//	}
//
// It opens the pool, waits for a database that is away, answers probes, and on SIGTERM, SIGINT or SIGHUP stops in good order: no new claims,
// calls under way go on for dispatcher.Config.StopTimeout at most, and what they came to is settled. A second SIGTERM or
// SIGINT ends the process at once; what it held is then taken over as after a kill. Nothing is reloaded on SIGHUP; it stays
// ignored where the process was started so, as under nohup.
//
// # Environment
//
//	DATABASE_URL  the database, as a URL or keywords. Required
//	LISTEN_ADDR   where the probes listen. Default ":8080"; empty or "off": nowhere
//	LOG_LEVEL     debug, info, warn or error. Default info
//	LOG_FORMAT    json or text. Default json. Logs go to stderr
//
// # Probes
//
// GET /healthz is 200 while the process is alive. GET /readyz is 200 while it takes work, else 503 with the reason: the
// database has not been reached, the session lock is not held, it is stopping. A worker serves nobody, so readiness is
// for roll-outs and alarms; a liveness probe must not use it, or a database that is down would restart every worker.
//
// # Exit codes
//
//	0  stopped by a signal, everything settled
//	1  failed: the schema does not fit, a wrong password, role or database, a missing right, the probes' port is taken, a second signal
//	2  configuration: nothing was begun; every mistake is printed
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// Options are what [Run] and [Exec] need. Register is required; the zero value of every other field is its default.
type Options struct {
	// Register registers destinations and handlers. An error is a mistake in the configuration.
	Register func(d *dispatcher.Dispatcher) error

	// Config is the dispatcher's. Its Logger defaults to the daemon's.
	Config *dispatcher.Config

	// LookupEnv reads the environment. Default os.LookupEnv.
	LookupEnv func(name string) (string, bool)

	// Stderr is where logs go. Default os.Stderr.
	Stderr io.Writer
}

// ConfigError is a mistake that whoever starts the process must mend, possibly several on lines of their own.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the mistakes.
func (e *ConfigError) Unwrap() error { return e.Err }

// Main is a whole main function: it runs what register registers until a signal, and exits.
func Main(register func(d *dispatcher.Dispatcher) error) {
	os.Exit(Exec(Options{Register: register}))
}

// Exec is [Run] with the process's signals and its default logger (log and slog alike). It prints the error, if there is
// one, and returns the exit code.
func Exec(o Options) int {
	o = o.withDefaults()
	if logger, err := newLogger(o); err == nil {
		slog.SetDefault(logger)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go stopOnSignal(notify(), cancel)

	err := Run(ctx, o)
	var config *ConfigError
	switch {
	case errors.As(err, &config):
		_, _ = fmt.Fprintln(o.Stderr, err)
		return 2
	case err != nil:
		slog.Error(err.Error())
		return 1
	}
	return 0
}

// notify relays the signals that stop the process.
func notify() <-chan os.Signal {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals
}

// stopOnSignal calls stop at the first signal and exits at the second. Both a terminal that closes and its shell may send
// SIGHUP, so SIGHUP is never the second.
func stopOnSignal(signals <-chan os.Signal, stop func()) {
	first := <-signals
	slog.Info("daemon: stopping; a second signal ends the process at once", "signal", first.String())
	stop()
	for s := range signals {
		if s == syscall.SIGHUP {
			slog.Info("daemon: is stopping already", "signal", s.String())
			continue
		}
		slog.Error("daemon: ended at once; what was under way is taken over by other workers", "signal", s.String())
		os.Exit(1)
	}
}

// Run opens the database, registers and runs a dispatcher until ctx ends, and then stops in good order. It returns nil
// after such a stop, a [ConfigError] before anything was begun, else what failed. It leaves the process's signals and
// default logger alone.
func Run(ctx context.Context, o Options) error {
	o = o.withDefaults()
	logger, logErr := newLogger(o)
	poolConfig, dbErr := databaseConfig(o)
	if err := errors.Join(logErr, dbErr); err != nil {
		// Check what else there is to check: mistakes are reported all at once.
		return &ConfigError{errors.Join(err, o.check())}
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), poolConfig) // connects when it is first used
	if err != nil {
		return fmt.Errorf("daemon: open the database: %w", err)
	}
	defer pool.Close()

	d, err := o.dispatcher(pool, logger)
	if err != nil {
		return &ConfigError{err}
	}
	probes, err := startProbes(o, logger)
	if err != nil {
		return err
	}
	defer probes.close()

	probes.ready(d.Ready)
	stopped := context.AfterFunc(ctx, func() { probes.ready(stopping) })
	defer stopped()
	if err := d.Run(ctx); err != nil {
		return fmt.Errorf("daemon: %w", err)
	}
	return nil
}

func stopping() error { return errors.New("stopping") }

func (o Options) withDefaults() Options {
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	return o
}

func (o Options) env(name, fallback string) string {
	if value, ok := o.LookupEnv(name); ok {
		return value
	}
	return fallback
}

// check says what is wrong with the registration, without a database.
func (o Options) check() error {
	_, err := o.dispatcher(nil, slog.New(slog.DiscardHandler))
	return err
}

func (o Options) dispatcher(pool *pgxpool.Pool, logger *slog.Logger) (*dispatcher.Dispatcher, error) {
	if o.Register == nil {
		return nil, errors.New("daemon: Options.Register is missing")
	}
	var config dispatcher.Config
	if o.Config != nil {
		config = *o.Config
	}
	if config.Logger == nil {
		config.Logger = logger
	}
	d := dispatcher.New(pool, &config)
	if err := o.Register(d); err != nil {
		return nil, err
	}
	return d, d.Check()
}

// poolSize is what a dispatcher says is plenty.
const poolSize = 10

func databaseConfig(o Options) (*pgxpool.Config, error) {
	url := o.env("DATABASE_URL", "")
	if url == "" {
		return nil, errors.New("daemon: DATABASE_URL is not set: name the database, such as postgres://user:password@host:5432/name")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil { // whose text may hold the password
		return nil, errors.New("daemon: DATABASE_URL is not a connection string: want postgres://user:password@host:5432/name, or host=.. dbname=..")
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = poolSize
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "samekey-worker"
	}
	return config, nil
}
