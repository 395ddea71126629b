package dispatcher

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/limit"
	"github.com/samekey/samekey/internal/names"
)

// Config holds a dispatcher's settings. Nil, and the zero value of each field, are the defaults.
type Config struct {
	// Logger gets a line for each failed attempt and for each event that a person should know. A key appears as a short
	// hash. Payloads, responses and header values do not appear. Default: slog.Default().
	Logger *slog.Logger

	// Name is this worker's name in samekey.workers and in logs, at most 255 bytes. Default: host name and process id.
	Name string

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

// Dispatcher delivers intents: it claims them, calls each action's Send, and records the outcomes. Make one per process
// with [New], register actions with [Handle], then call [Dispatcher.Run].
type Dispatcher struct {
	pool    *pgxpool.Pool
	config  Config
	log     *slog.Logger
	repeats *repeats // the handler of log

	mu           sync.Mutex // guards the next fields until the first Run or Drain; then they do not change
	actions      map[string]*action
	registered   []*action // in order
	destinations map[string]*account
	mistakes     ConfigErrors

	shift, riverPatience, alarmAfter, stopMargin time.Duration // constants; tests shorten them

	draw   func(ceiling time.Duration) time.Duration // a breaker's wait; tests remove its jitter
	drawID func() int32                              // a worker's id; tests draw one that is taken

	running sync.Mutex             // held by the one Run or Drain
	worker  atomic.Pointer[worker] // of a Run in progress
}

// account is a destination as it is registered: a vendor account, shared by the actions that name it.
type account struct {
	name     string
	limits   Limits   // with their defaults
	given    []Limits // as they were declared
	vendor   Vendor
	declared bool
	actions  []*action
}

func (dest *account) hasEndpoints() bool {
	return slices.ContainsFunc(dest.actions, func(a *action) bool { return a.endpoint != nil })
}

// New makes a dispatcher for the database of a pool. While the dispatcher runs, it uses connections of its own, with
// the pool's configuration: the same servers, the same hooks, and the same maximum. The pool itself is neither used nor
// closed. It must connect to Postgres directly, and not through a pooler in transaction mode.
//
// Claims and settles of each destination, River, and Applies share these connections; Applies use at most half of them.
// The maximum must be at least 4, and 10 is enough for most. The worker's session uses one more.
//
// After the pool's hooks, each connection gets the settings that the worker's promises need: synchronous_commit on,
// read committed, timeouts that fit the actions (docs/worker.md lists them). The hooks set the search_path. pgx's exec
// mode and simple protocol cannot be used, and are replaced by cache_describe. An attempt to connect ends after five
// seconds, unless the pool sets another limit.
func New(pool *pgxpool.Pool, config *Config) *Dispatcher {
	d := &Dispatcher{
		pool: pool, config: config.withDefaults(),
		actions: map[string]*action{}, destinations: map[string]*account{},
		shift: shiftLength, riverPatience: riverPatience, alarmAfter: alarmAfter, stopMargin: stopMargin, draw: limit.FullJitter, drawID: randomID,
	}
	d.repeats = newRepeats(d.config.Logger.Handler())
	d.log = slog.New(d.repeats)
	return d
}

// Destination declares a vendor account and its limits. outbox.Pause stops its claims in every worker. So does pausing
// its River queue, "samekey_" and the name, also in River UI.
func (d *Dispatcher) Destination(name string, limits Limits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dest := d.destination(name)
	if dest.declared {
		d.mistakes.Add(itemDestination(name), "", "declared twice")
	}
	dest.declared = true
	dest.given, dest.limits = append(dest.given, limits), limits.withDefaults()
}

// Vendor describes the vendor account behind a destination. The destination's actions send the delivery key in the
// vendor's form, their policies default to its window, and Check returns what contradicts it.
func (d *Dispatcher) Vendor(destination string, vendor Vendor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.describe(d.destination(destination), vendor)
}

// describe sets what is known of a destination's vendor. The zero Vendor changes nothing.
func (d *Dispatcher) describe(dest *account, vendor Vendor) {
	item := itemDestination(dest.name)
	switch dest.vendor {
	case vendor:
		return
	case Vendor{}:
	default:
		if vendor != (Vendor{}) {
			d.mistakes.Add(item, "Vendor", "described twice, and differently")
		}
		return
	}
	dest.vendor = vendor
	vendor.check(&d.mistakes, item)
}

func (d *Dispatcher) destination(name string) *account {
	dest := d.destinations[name]
	if dest == nil {
		dest = &account{name: name, limits: Limits{}.withDefaults()}
		d.destinations[name] = dest
		if err := names.CheckDestination(name); err != nil {
			d.mistakes.Add(itemDestination(name), "", "the name %v", err)
		}
	}
	return dest
}

func (d *Dispatcher) sortedDestinations() []*account {
	var out []*account
	for _, dest := range d.destinations {
		if len(dest.actions) > 0 {
			out = append(out, dest)
		}
	}
	slices.SortFunc(out, func(a, b *account) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return out
}
