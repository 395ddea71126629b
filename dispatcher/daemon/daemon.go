// Package daemon runs a dispatcher as a process, so that a main with handlers in Go is three lines:
//
//	func main() {
//		daemon.Main(func(d *dispatcher.Dispatcher) error {
//			dispatcher.Handle(d, "charge_card", policy, charge)
//			return nil
//		})
//	}
//
// It opens the pool, waits for the database, answers probes, and on SIGTERM or SIGINT stops in good order: no new claims,
// calls under way go on for dispatcher.Config.StopTimeout at most, and what they came to is settled. A second signal ends
// the process at once; what it held is then taken over as after a kill.
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
//	1  failed: the database refuses, its schema does not fit, the probes' port is taken, a second signal
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
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/schema"
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
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		slog.Info("daemon: stopping; a second signal ends the process at once", "signal", (<-signals).String())
		cancel()
		slog.Error("daemon: ended at once; what was under way is taken over by other workers", "signal", (<-signals).String())
		os.Exit(1)
	}()

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

	if err := await(ctx, pool, logger); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	probes.ready(d.Ready)
	defer context.AfterFunc(ctx, func() { probes.ready(stopping) })()
	logger.Info("daemon: running")
	if err := d.Run(ctx); err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return fmt.Errorf("daemon: %w", err)
	}
	logger.Info("daemon: stopped")
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

// await waits until the database answers, and says whether its schema fits. A database that cannot be reached may come
// up yet; one that refuses this role or does not exist is returned as an error.
func await(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger) error {
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := try(ctx, pool)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errors.Is(err, schema.ErrTooOld), errors.Is(err, schema.ErrTooNew):
			return fmt.Errorf("daemon: %w", err)
		case refuses(err):
			return fmt.Errorf("daemon: the database of DATABASE_URL refuses: %w", reason(err))
		}
		logger.Warn("daemon: the database cannot be reached; trying again", "wait", wait.String(), "error", reason(err).Error())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func try(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return schema.Check(ctx, pool)
}

// refuses: a wrong password or role, a missing database, a missing right. Anything else may pass.
func refuses(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code[:2] == "28" || pg.Code == "3D000" || pg.Code == "42501"
}

// reason leaves out the user, host and database that pgx puts before what went wrong.
func reason(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
