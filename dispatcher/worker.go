package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
)

// worker is a dispatcher at work: one Run or Drain, from its start to its end. It holds the parts together. What
// happens to an intent is in the files of the path, see doc_path.go.
type worker struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	log    *slog.Logger
	config Config

	times times
	draw  func(ceiling time.Duration) time.Duration

	session      *session
	sweeper      *sweeper
	destinations *destinations
	settler      *settler
	applier      *applier
	reports      reports

	// Of handlers, lookups and Applies: it outlives the claims and ends at a hard stop.
	calls       context.Context //nolint:containedctx // a life cycle, not a request
	cancelCalls context.CancelFunc
	open        sync.WaitGroup // claims that are not settled and applied yet
	stopping    chan struct{}  // closed when no call may begin any more
}

func (d *Dispatcher) newWorker(ctx context.Context) (*worker, error) {
	pool, ready, err := d.openPool(ctx)
	if err != nil {
		return nil, err
	}
	w := &worker{
		pool: pool, q: db.New(pool), log: d.log, config: d.config,
		times: d.times, draw: d.draw,
		reports: reports{log: d.log}, stopping: make(chan struct{}),
	}
	w.calls, w.cancelCalls = context.WithCancel(ctx)
	w.destinations = newDestinations(w, d.sortedDestinations())
	w.session = &session{pool: pool, ready: ready, log: d.log, name: clean(d.config.Name, 255), actions: w.destinations.actions(), draw: d.drawID}
	w.sweeper = newSweeper(w)
	w.session.woken = w.sweeper.woken
	w.settler = newSettler(w.pool, w.q, w.log, w.destinations.poke)
	w.applier = newApplier(w)
	return w, nil
}

// close gives up the worker's connections.
func (w *worker) close() { closePool(w.pool, w.times.stopMargin, w.log) }

// stop lets no call begin any more.
func (w *worker) stop() { close(w.stopping) }

func (w *worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}
