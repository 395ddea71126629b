package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
)

// core is what the parts of a worker share. It knows none of them.
type core struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	log    *slog.Logger
	config Config
	times  times
	draw   func(ceiling time.Duration) time.Duration // a breaker's wait
	self   identity

	deployment deployment

	// Of handlers, lookups and Applies: it outlives the claims and ends at a hard stop.
	calls       context.Context //nolint:containedctx // a life cycle, not a request
	cancelCalls context.CancelFunc
	open        sync.WaitGroup // claims that are not settled and applied yet
	stopping    chan struct{}  // closed when no call may begin any more
}

func newCore(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, config Config, t times, draw func(time.Duration) time.Duration, refused *refusal) *core {
	c := &core{pool: pool, q: db.New(pool), log: log, config: config, times: t, draw: draw, stopping: make(chan struct{}),
		deployment: deployment{name: config.Deployment, log: log, refusal: refused}}
	c.calls, c.cancelCalls = context.WithCancel(ctx)
	return c
}

// stop lets no call begin any more.
func (c *core) stop() { close(c.stopping) }

func (c *core) isStopping() bool {
	select {
	case <-c.stopping:
		return true
	default:
		return false
	}
}
