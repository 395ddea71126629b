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

	"github.com/samekey/samekey/internal/names"
)

// Config is a dispatcher's settings; nil and the zero value of each field are the defaults.
type Config struct {
	// Logger gets structured logs: a line per failed attempt and per thing that a person should know. A key appears
	// as a short hash; payloads, answers and header values never do. Default: slog.Default().
	Logger *slog.Logger

	// Name is this worker's in samekey.workers and in logs. Default: host name and process id. At most 255 bytes.
	Name string

	// SweepInterval is how often every node looks for intents that nobody holds. It bounds what a lost notification
	// costs, and half the time after which a killed worker's intents are taken over. Default 400 ms; 10 ms to 1 min.
	SweepInterval time.Duration

	// StopTimeout is how long [Dispatcher.Run] lets calls under way go on after its context ended; then their contexts
	// are cancelled, and what they came to is settled. Default 20 s: within the 30 s that Kubernetes allows. 1 ms to 24 h.
	StopTimeout time.Duration

	// Retention is how long a finished intent that was written without a processed record is kept. (One with a record
	// is kept as long as the record, see processed.Request.) Default 72 h; 1 minute to 10 years.
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

// Dispatcher delivers intents: it claims them, calls the handlers and settles what came of it. Make one per process
// with [New], register what it handles, then [Dispatcher.Run] it.
type Dispatcher struct {
	pool    *pgxpool.Pool
	config  Config
	log     *slog.Logger
	repeats *repeats // the handler of log

	mu           sync.Mutex // guards what follows until the first Run or Drain, after which it does not change
	actions      map[string]*action
	registered   []*action // in order
	destinations map[string]*destination
	mistakes     ConfigErrors

	shift, riverPatience, alarmAfter, stopMargin time.Duration // constants; tests shorten them

	draw   func(ceiling time.Duration) time.Duration // a breaker's wait; tests take the jitter out of it
	drawID func() int32                              // a worker's id; tests make it one that is taken

	running sync.Mutex           // held by the one Run or Drain
	node    atomic.Pointer[node] // the one that Run has at work
}

// destination is a vendor account, shared by the actions that name it.
type destination struct {
	name     string
	limits   Limits   // with their defaults
	given    []Limits // as they were declared
	vendor   Vendor
	declared bool
	actions  []*action
}

func (dest *destination) hasEndpoints() bool {
	return slices.ContainsFunc(dest.actions, func(a *action) bool { return a.endpoint != nil })
}

// New makes a dispatcher for the database of a pool. While it runs, it works on connections of its own, made as the pool
// makes them: to the same servers, with the same hooks and as many at most. They need room for the claims and settles of
// each destination, for River and for Applies, which take half of them at most: at least 4; 10 are plenty for most. One more
// holds the session. The pool itself is not used and not
// closed. It must not be a pooler's in transaction mode.
//
// The worker's connections get the settings that its promises need, after the hooks: synchronous_commit on, read
// committed, limits of time that fit the actions (docs/worker.md has all). search_path is left to the hooks. A statement
// cannot run in pgx's exec mode or the simple protocol there, and uses cache_describe instead; an attempt to connect ends
// after five seconds, unless the pool says otherwise.
func New(pool *pgxpool.Pool, config *Config) *Dispatcher {
	d := &Dispatcher{
		pool: pool, config: config.withDefaults(),
		actions: map[string]*action{}, destinations: map[string]*destination{},
		shift: shiftLength, riverPatience: riverPatience, alarmAfter: alarmAfter, stopMargin: stopMargin, draw: fullJitter, drawID: randomID,
	}
	d.repeats = newRepeats(d.config.Logger.Handler())
	d.log = slog.New(d.repeats)
	return d
}

// Destination declares a vendor account and its limits. outbox.Pause stops its claims on every node, and so does pausing its
// River queue, "samekey_" and the name, from River UI too.
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

// Vendor describes the vendor account behind a destination. Its actions carry the delivery key as it says, their policies
// default to its window, and Check refuses what contradicts it.
func (d *Dispatcher) Vendor(destination string, vendor Vendor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dest := d.destination(destination)
	dest.vendor = vendor
	vendor.check(&d.mistakes, itemDestination(destination))
}

func (d *Dispatcher) destination(name string) *destination {
	dest := d.destinations[name]
	if dest == nil {
		dest = &destination{name: name, limits: Limits{}.withDefaults()}
		d.destinations[name] = dest
		if err := names.CheckDestination(name); err != nil {
			d.mistakes.Add(itemDestination(name), "", "the name %v", err)
		}
	}
	return dest
}

func (d *Dispatcher) sortedDestinations() []*destination {
	var out []*destination
	for _, dest := range d.destinations {
		if len(dest.actions) > 0 {
			out = append(out, dest)
		}
	}
	slices.SortFunc(out, func(a, b *destination) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return out
}
