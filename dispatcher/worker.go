package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
)

// node is a dispatcher at work: one Run or Drain, from its start to its end. It holds the parts together. What happens to an
// intent is in the files of the path, see doc_path.go.
type node struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	log    *slog.Logger
	config Config

	shift, riverPatience, alarmAfter, stopMargin time.Duration
	draw                                         func(ceiling time.Duration) time.Duration

	session      *session
	sweeper      *sweeper
	destinations *destinations
	settler      *settler
	applier      *applier
	summary      tally

	// Of handlers, lookups and Applies: it outlives the claims and ends at a hard stop.
	calls       context.Context //nolint:containedctx // a life cycle, not a request
	cancelCalls context.CancelFunc
	open        sync.WaitGroup // claims that are not settled and applied yet
	stopping    chan struct{}  // closed when no call may begin any more
}

func (d *Dispatcher) newNode(ctx context.Context) (*node, error) {
	pool, ready, err := d.openPool(ctx)
	if err != nil {
		return nil, err
	}
	n := &node{
		pool: pool, q: db.New(pool), log: d.log, config: d.config,
		shift: d.shift, riverPatience: d.riverPatience, alarmAfter: d.alarmAfter, stopMargin: d.stopMargin, draw: d.draw,
		stopping: make(chan struct{}),
	}
	n.calls, n.cancelCalls = context.WithCancel(ctx)
	n.destinations = newDestinations(n, d.sortedDestinations())
	n.session = &session{pool: pool, ready: ready, log: d.log, name: clean(d.config.Name, 255), actions: n.destinations.actions(), draw: d.drawID}
	n.sweeper = newSweeper(n)
	n.session.woken = n.sweeper.woken
	n.settler = newSettler(n.pool, n.q, n.log, n.destinations.poke)
	n.applier = newApplier(n)
	return n, nil
}

// close gives up the worker's connections.
func (n *node) close() { closePool(n.pool, n.stopMargin, n.log) }

// stop lets no call begin any more.
func (n *node) stop() { close(n.stopping) }

func (n *node) isStopping() bool {
	select {
	case <-n.stopping:
		return true
	default:
		return false
	}
}
