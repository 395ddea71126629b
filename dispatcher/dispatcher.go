package dispatcher

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/limit"
)

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

	times times

	draw   func(ceiling time.Duration) time.Duration // a breaker's wait; tests remove its jitter
	drawID func() int32                              // a worker's id; tests draw one that is taken

	running sync.Mutex             // held by the one Run or Drain
	worker  atomic.Pointer[worker] // of a Run in progress
	refused refusal                // of the database
}

// New makes a dispatcher for the database of a pool. While the dispatcher runs, it uses connections of its own, with
// the pool's configuration: the same servers, the same hooks, and the same maximum. The pool itself is neither used nor
// closed. It must connect to Postgres directly, and not through a pooler in transaction mode.
//
// Claims and settles of each destination, River, Applies and Attention functions share these connections. Applies use at
// most half of them, and Attention functions a quarter.
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
		times: defaultTimes(), draw: limit.FullJitter, drawID: randomID,
	}
	d.repeats = newRepeats(d.config.Logger.Handler())
	d.log = slog.New(d.repeats)
	return d
}
