// Package daemon runs a dispatcher as a process, so that a main for actions in Go is a few lines:
//
//	func main() {
//		daemon.Main(func(d *dispatcher.Dispatcher) error {
//			dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{Policy: policy, Send: charge})
//			return nil
//		})
//	}
//
// It opens the pool, waits until the database is available, and answers probes. After SIGTERM, SIGINT or SIGHUP it
// claims no more, lets calls in progress finish for up to dispatcher.Config.StopTimeout, and settles them (records
// their outcomes). A second SIGTERM or SIGINT ends the process at once; other workers then take over its intents, as
// after a kill. SIGHUP reloads nothing. If the process was started with SIGHUP ignored, as by nohup, it stays ignored.
//
// # Environment
//
//	DATABASE_URL  the database, as a URL or keywords. Required. A password file (passfile, PGPASSFILE) and the files of
//	              sslrootcert, sslcert and sslkey are read again for each connection. Files that cannot be used
//	              leave what they had before in use
//	DEPLOYMENT    the deployment whose intents are delivered, such as production; see dispatcher.Config. Required, unless
//	              Options.Config has it
//	LISTEN_ADDR   the address of the probes. Default ":8080"; empty or "off" for none
//	LOG_LEVEL     debug, info, warn or error. Default info
//	LOG_FORMAT    json or text. Default json. Logs go to stderr
//
// # Probes
//
// GET /healthz returns 200 while the process is alive. GET /readyz returns 200 while the worker claims work, else 503
// with the reason: the database has not been reached, the session lock is not held, or the worker is stopping. A worker
// serves no requests, so readiness is for roll-outs and alerts. Do not use it as a liveness probe, or an unavailable
// database restarts every worker.
//
// # Exit codes
//
//	0  stopped by a signal, everything settled
//	1  failed: the schema does not match, a wrong password, role or database, a missing right, the probes' port is in use, a second signal
//	2  a mistake in the configuration: nothing was delivered, and every mistake is printed
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// Options are what [Run] and [Exec] need. Register is required; the zero value of every other field is its default.
type Options struct {
	// Register registers destinations and actions. An error is a mistake in the configuration.
	Register func(d *dispatcher.Dispatcher) error

	// Config is the dispatcher's configuration. Its Logger defaults to the daemon's.
	Config *dispatcher.Config

	// Explain words the mistakes that only the database shows, such as an SQL function that does not exist
	// (dispatcher.Delivery.ApplyFunction), for the place where the user wrote them. Default: as the dispatcher words
	// them.
	Explain func(dispatcher.ConfigErrors) error

	// LookupEnv reads the environment. Default os.LookupEnv.
	LookupEnv func(name string) (string, bool)

	// Stderr is where logs go. Default os.Stderr.
	Stderr io.Writer
}

// ConfigError is a mistake in the configuration or the environment that must be corrected before the process can start.
// It may contain several mistakes, each on a line. Those of the dispatcher are in it as dispatcher.ConfigErrors.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the mistakes.
func (e *ConfigError) Unwrap() error { return e.Err }

// Main is a whole main function: it runs what register registers until a signal, and exits.
func Main(register func(d *dispatcher.Dispatcher) error) {
	os.Exit(Exec(Options{Register: register}))
}

// Exec is [Run] with the process's signals and its default logger (of log and slog). It prints an error and returns the
// exit code.
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

// stopOnSignal calls stop at the first signal and exits at the second. A closing terminal and its shell may both send
// SIGHUP, so SIGHUP never counts as the second.
func stopOnSignal(signals <-chan os.Signal, stop func()) {
	first := <-signals
	slog.Info("daemon: stopping; a second signal ends the process at once", "signal", first.String())
	stop()
	for s := range signals {
		if s == syscall.SIGHUP {
			slog.Info("daemon: already stopping", "signal", s.String())
			continue
		}
		slog.Error("daemon: ended at once; other workers take over its intents", "signal", s.String())
		os.Exit(1)
	}
}

// Run opens the database, registers and runs a dispatcher until ctx ends, then stops it and settles its calls. It
// returns nil after such a stop, a [ConfigError] if nothing was started, or the failure. It does not use the process's
// signals and default logger.
func Run(ctx context.Context, o Options) error {
	o = o.withDefaults()
	logger, logErr := newLogger(o)
	poolConfig, dbErr := databaseConfig(o)
	if err := errors.Join(logErr, dbErr); err != nil {
		// Check the rest too, so that all mistakes are reported at once.
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
	err = d.Run(ctx)
	var mistakes dispatcher.ConfigErrors
	switch {
	case errors.As(err, &mistakes) && o.Explain != nil:
		return &ConfigError{o.Explain(mistakes)}
	case errors.As(err, &mistakes):
		return &ConfigError{err}
	case err != nil:
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

// check checks the registration without a database.
func (o Options) check() error {
	_, err := o.dispatcher(nil, slog.New(slog.DiscardHandler))
	return err
}

func (o Options) dispatcher(pool *pgxpool.Pool, logger *slog.Logger) (*dispatcher.Dispatcher, error) {
	if o.Register == nil {
		return nil, errors.New("daemon: Options.Register: missing")
	}
	var config dispatcher.Config
	if o.Config != nil {
		config = *o.Config
	}
	if config.Logger == nil {
		config.Logger = logger
	}
	if config.Deployment == "" {
		config.Deployment = o.env("DEPLOYMENT", "")
	}
	d := dispatcher.New(pool, &config)
	if err := o.Register(d); err != nil {
		return nil, err
	}
	return d, d.Check()
}

// poolSize is enough for most dispatchers, see dispatcher.New.
const poolSize = 10

func databaseConfig(o Options) (*pgxpool.Config, error) {
	url := o.env("DATABASE_URL", "")
	if url == "" {
		return nil, errors.New("daemon: DATABASE_URL is not set: set it to the database, such as postgres://user:password@host:5432/name")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil { // whose text may hold the password
		return nil, errors.New("daemon: DATABASE_URL is not a connection string such as postgres://user:password@host:5432/name, or host=.. dbname=..")
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = poolSize
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "samekey-worker"
	}
	var mu sync.Mutex
	good := config.ConnConfig // what the files had when they could be used last
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		now, err := pgx.ParseConfig(url)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && (now.Password != "" || good.Password == "") {
			good = now
		}
		renew(c, good)
		return nil
	}
	return config, nil
}

// renew gives a connection's own copy of the configuration what the files have now. pgx reads the password file and the
// authorities (sslrootcert) when it parses the URL, and the files of a client certificate when it connects.
func renew(c, now *pgx.ConnConfig) {
	c.Password = now.Password
	authorities := func(of, from *tls.Config) {
		if of != nil && from != nil {
			of.RootCAs, of.VerifyPeerCertificate = from.RootCAs, from.VerifyPeerCertificate
		}
	}
	authorities(c.TLSConfig, now.TLSConfig)
	for i, fallback := range c.Fallbacks {
		if i < len(now.Fallbacks) {
			authorities(fallback.TLSConfig, now.Fallbacks[i].TLSConfig)
		}
	}
}
