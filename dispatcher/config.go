package dispatcher

import (
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Config holds a dispatcher's settings. Nil, and the zero value of each field, are the defaults.
type Config struct {
	// Logger gets a line for each failed attempt and for each event that a person should know. A key appears as a short
	// hash. Payloads, responses and header values do not appear. Default: slog.Default().
	Logger *slog.Logger

	// Name is this worker's name in samekey.workers and in logs, at most 255 bytes. Default: host name and process id.
	Name string

	// Deployment is the deployment whose intents this worker delivers, such as "production". Required, except for a
	// database of samekeytest.NewDB. The first worker that starts on a new database names the database. From then on
	// only workers with the same name claim there; others log an error and wait, as with a database that is a copy (see
	// [ErrDeployment]). 1 to 56 of a-z, 0-9, "_" and "-", beginning with a letter or a digit.
	Deployment string

	// SweepInterval is how often the worker looks for intents that no worker holds. It is the longest delay after a
	// lost notification, and half the time until the intents of a killed worker are taken over. Default 400 ms; 10 ms
	// to 1 min.
	SweepInterval time.Duration

	// StopTimeout is how long calls in progress may continue after the context of [Dispatcher.Run] has ended. Then
	// their contexts are cancelled, and their outcomes are recorded. Default 20 s, less than the 30 s of Kubernetes; 1
	// ms to 24 h.
	StopTimeout time.Duration

	// Retention is how long a finished intent without a processed record is kept. (An intent with a record is kept as
	// long as the record, see processed.Request.) Default 72 h; 1 minute to 10 years.
	Retention time.Duration

	// ArchiveFunction names an SQL function of the application, with its schema, such as "shop.archive". A worker calls
	// it with what it is about to prune, in the transaction that prunes: see processed.Pruning. The rules for its owner
	// and its rights are those of [Delivery].ApplyFunction; a worker that finds them broken does not start. Default: none.
	ArchiveFunction string
}

func (c *Config) withDefaults() Config {
	var out Config
	if c != nil {
		out = *c
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	if out.Name == "" {
		host, _ := os.Hostname()
		out.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	out.SweepInterval = or(out.SweepInterval, 400*time.Millisecond)
	out.StopTimeout = or(out.StopTimeout, 20*time.Second)
	out.Retention = or(out.Retention, 72*time.Hour)
	return out
}
