package dispatcher

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/limit"
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

const maxStop = 24 * time.Hour

// What processed.Pruning takes as IntentRetain.
const (
	minRetention = time.Minute
	maxRetention = 10 * 365 * 24 * time.Hour
)

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

func (c Config) check() (errs []error) {
	if len(c.Name) > 255 {
		errs = append(errs, fmt.Errorf("dispatcher: Config.Name has %d bytes, at most 255 are allowed", len(c.Name)))
	}
	if c.SweepInterval < 10*time.Millisecond || c.SweepInterval > time.Minute {
		errs = append(errs, fmt.Errorf("dispatcher: Config.SweepInterval %v is outside 10ms to 1m", c.SweepInterval))
	}
	if c.StopTimeout < minDelay || c.StopTimeout > maxStop {
		errs = append(errs, fmt.Errorf("dispatcher: Config.StopTimeout %v is outside 1ms to 24h", c.StopTimeout))
	}
	if c.Retention < minRetention || c.Retention > maxRetention {
		errs = append(errs, fmt.Errorf("dispatcher: Config.Retention %v is outside 1m to 10 years (%v)", c.Retention, maxRetention))
	}
	return errs
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
	destinations map[string]*account
	mistakes     []error

	shift, riverPatience, alarmAfter, stopMargin time.Duration // constants; tests shorten them

	draw   func(ceiling time.Duration) time.Duration // a breaker's wait; tests take the jitter out of it
	drawID func() int32                              // a worker's id; tests make it one that is taken

	running sync.Mutex           // held by the one Run or Drain
	node    atomic.Pointer[node] // the one that Run has at work
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
		actions: map[string]*action{}, destinations: map[string]*account{},
		shift: shiftLength, riverPatience: riverPatience, alarmAfter: alarmAfter, stopMargin: stopMargin, draw: limit.FullJitter, drawID: randomID,
	}
	d.repeats = newRepeats(d.config.Logger.Handler())
	d.log = slog.New(d.repeats)
	return d
}

// River's rule for names of queues, less the prefix that ours get.
var (
	destinationName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,55}$`)
)

// Destination declares a vendor account and its limits. outbox.Pause stops its claims on every node, and so does pausing its
// River queue, "samekey_" and the name, from River UI too.
func (d *Dispatcher) Destination(name string, limits Limits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dest := d.destination(name)
	if dest.declared {
		d.mistakes = append(d.mistakes, fmt.Errorf("dispatcher: destination %q is declared twice", name))
	}
	dest.declared = true
	dest.given, dest.limits = append(dest.given, limits), limits.withDefaults()
}

// Vendor describes the vendor account behind a destination. Its actions carry the delivery key as it says, their policies
// default to its window, and Check refuses what contradicts it.
func (d *Dispatcher) Vendor(destination string, vendor Vendor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, err := range vendor.check() {
		d.mistakes = append(d.mistakes, fmt.Errorf("dispatcher: destination %q: Vendor.%w", destination, err))
	}
	d.destination(destination).vendor = vendor
}

// resolve gives each action its policy's defaults, which depend on its destination's vendor, and returns what is wrong.
func (d *Dispatcher) resolve() (errs []error) {
	for _, a := range d.registered {
		p, vendor := a.declared, d.destinations[or(a.declared.Destination, a.name)].vendor
		if p.Class == IdempotentWrite && p.KeyWindow == 0 {
			p.KeyWindow = vendor.Window
		}
		a.policy, a.rules = p.withDefaults(), vendor.Key
		errs = append(errs, a.policy.check(a.name)...)
		errs = append(errs, vendor.contradicts(a.policy, a.name)...)
		if a.policy.ResendAbsent && a.lookup == nil {
			errs = append(errs, fmt.Errorf("dispatcher: %s: ResendAbsent needs a lookup: set Lookup", a.name))
		}
		if a.policy.ResendAbsent && a.proxied {
			errs = append(errs, fmt.Errorf("dispatcher: %s: ResendAbsent contradicts the proxy: a proxy can send late what it has taken, after look-ups have found nothing. Call the vendor directly, or leave ResendAbsent out", a.name))
		}
		if p.Attempts > 1 && a.lookup == nil && (p.Class == NonIdempotentWrite || p.Class == IrreversibleWrite) {
			errs = append(errs, fmt.Errorf("dispatcher: %s: Attempts %d contradicts %v, which is never sent again by itself: leave it out (it would bound the tries of a lookup: set Lookup)", a.name, p.Attempts, p.Class))
		}
		if first := a.policy.Timeout + max(a.policy.SettlingDelay, time.Second); a.lookup != nil && a.policy.CompletionTime <= first {
			errs = append(errs, fmt.Errorf("dispatcher: %s: CompletionTime %v is not longer than Timeout and SettlingDelay together (%v): what was accepted would be parked before its first look-up", a.name, a.policy.CompletionTime, first))
		}
		if a.stored && a.policy.Deadline == 0 {
			errs = append(errs, fmt.Errorf("dispatcher: %s: Deadline is missing: an endpoint that cannot be reached spends no attempts, so say when to give up", a.name))
		}
	}
	return errs
}

func (d *Dispatcher) destination(name string) *account {
	dest := d.destinations[name]
	if dest == nil {
		dest = &account{name: name, limits: Limits{}.withDefaults()}
		d.destinations[name] = dest
		if !destinationName.MatchString(name) {
			d.mistakes = append(d.mistakes, fmt.Errorf("dispatcher: destination %q: use 1 to 56 lowercase letters, digits, _ and -", name))
		}
	}
	return dest
}

// Check returns every mistake in what was registered so far, joined, or nil. [Dispatcher.Run] and [Dispatcher.Drain]
// begin with it. It needs no database.
func (d *Dispatcher) Check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := slices.Concat(d.config.check(), d.mistakes, d.resolve())
	for _, name := range slices.Sorted(maps.Keys(d.destinations)) {
		dest := d.destinations[name]
		for _, limits := range dest.given {
			errs = append(errs, limits.check(name, dest.hasEndpoints())...)
		}
	}
	for _, dest := range d.sortedDestinations() {
		if !dest.declared {
			errs = append(errs, fmt.Errorf("dispatcher: %s: Destination %q is not declared: call Destination(%q, ...) or correct the name",
				dest.actions[0].name, dest.name, dest.name))
		}
	}
	if len(d.actions) == 0 {
		errs = append(errs, errors.New("dispatcher: no action is registered"))
	}
	return errors.Join(errs...)
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
