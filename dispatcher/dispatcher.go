package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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

// action is a registered kind of intent.
type action struct {
	name     string
	declared Policy // as it was given to Handle
	policy   Policy // with its defaults; see resolve
	rules    KeyRules
	handle   Handler
	lookup   func(context.Context, *Call) (Finding, error)
	render   func(context.Context, *Call) (Rendered, error)
	apply    applyFunc
	form     form
	endpoint func(*Call) string
	stored   bool // the endpoint is one of samekey.endpoints
	proxied  bool // its requests go through a proxy
}

// destination is the name of its destination.
func (a *action) destination() string { return or(a.policy.Destination, a.name) }

// sentTo is where and in what form its intents go.
func (a *action) sentTo() string {
	return strings.TrimRight(strings.Join([]string{a.destination(), a.form.key, a.form.request}, " "), " ")
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
		if !destinationName.MatchString(name) {
			d.mistakes.Add(itemDestination(name), "", "the name must have 1 to 56 of a-z, 0-9, _ and -, and begin with a letter or digit")
		}
	}
	return dest
}

// Handle registers the handler of an action, with the payload decoded from JSON into T exactly (unknown members are
// allowed; a T of []byte or json.RawMessage gets the bytes). A payload that does not decode makes its intent dead, with
// the reason in its history; its neighbours are not touched. Mistakes are kept for [Dispatcher.Check].
func Handle[T any](d *Dispatcher, name string, policy Policy, fn func(ctx context.Context, call *Call, payload T) (Answer, error), options ...Option) {
	d.Handle(name, policy, func(ctx context.Context, call *Call) (Answer, error) {
		payload, err := decode[T](call)
		if err != nil {
			return Answer{}, Dead(Answer{Code: codePayload}, err)
		}
		return fn(ctx, call, payload)
	}, options...)
}

// Handle is the raw form of the function [Handle]: the handler reads call.Payload itself.
func (d *Dispatcher) Handle(name string, policy Policy, fn Handler, options ...Option) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &action{name: name, declared: policy, handle: fn}
	for _, option := range options {
		if err := option(a); err != nil {
			d.mistakes.Add(itemAction(name), "", "%v", err)
		}
	}
	switch {
	case !actionName.MatchString(name):
		d.mistakes.Add(itemAction(name), "", "the name must have 1 to 63 of a-z, 0-9, _, . and -, and begin with a letter")
	case d.actions[name] != nil:
		d.mistakes.Add(itemAction(name), "", "registered twice")
	case fn == nil:
		d.mistakes.Add(itemAction(name), "", "has no handler")
	}
	dest := d.destination(or(policy.Destination, name))
	if policy.Destination == "" {
		dest.declared = true
	}
	dest.actions = append(dest.actions, a)
	d.actions[name] = a
	d.registered = append(d.registered, a)
}

// codePayload is the code of an intent whose payload did not decode: nobody was called.
const codePayload = "payload"

// decode reads a payload without losing a digit on the way: numbers go straight from the text into T's fields.
func decode[T any](call *Call) (payload T, err error) {
	switch p := any(&payload).(type) {
	case *[]byte:
		*p = call.Payload
		return payload, nil
	case *json.RawMessage:
		*p = call.Payload
		return payload, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(call.Payload))
	if err := decoder.Decode(&payload); err != nil {
		return payload, fmt.Errorf("payload does not decode into %T: %w", payload, cleanJSONError(err))
	}
	if decoder.More() {
		return payload, fmt.Errorf("payload does not decode into %T: there is data after it", payload)
	}
	return payload, nil
}

// cleanJSONError leaves out what encoding/json quotes from the payload.
func cleanJSONError(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("member %q at byte %d does not fit %v", kind.Field, kind.Offset, kind.Type)
	}
	return errors.New("it was refused by its decoder")
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
