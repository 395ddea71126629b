package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
)

// node is a dispatcher at work: one Run or Drain, from its start to its end.
type node struct {
	pool    *pgxpool.Pool
	q       *db.Queries
	log     *slog.Logger
	config  Config
	session *session
	lanes   []*lane
	byName  map[string]*lane // the lane of an action

	shift, riverPatience, alarmAfter, stopMargin time.Duration
	draw                                         func(ceiling time.Duration) time.Duration

	// Of handlers, look-ups and applies: outlives the claims, ends at a hard stop.
	calls    context.Context //nolint:containedctx // a life cycle, not a request
	results  chan result
	applier  *applier
	sweepNow chan struct{} // something may have changed that the sweep looks at

	behind    atomic.Bool    // the database has refused outcomes, which are kept and tried again
	stuck     atomic.Int64   // outcomes that a lock or the like holds up, each by itself
	open      sync.WaitGroup // claims whose settlement is not written yet
	stopping  chan struct{}  // closed when no call may begin any more
	abandoned chan struct{}  // closed when nobody reads results any more

	mu    sync.Mutex
	sum   Summary
	swept time.Time // the last sweep that the database answered
}

func (d *Dispatcher) newNode(calls context.Context) (*node, error) {
	pool, ready, err := d.openPool(calls)
	if err != nil {
		return nil, err
	}
	n := &node{
		pool: pool, q: db.New(pool), log: d.log, config: d.config,
		byName: map[string]*lane{}, calls: calls,
		shift: d.shift, riverPatience: d.riverPatience, alarmAfter: d.alarmAfter, stopMargin: d.stopMargin, draw: d.draw,
		results:   make(chan result, settleBatch),
		sweepNow:  make(chan struct{}, 1),
		stopping:  make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	n.session = &session{pool: pool, ready: ready, log: d.log, name: clean(d.config.Name, 255), woken: n.woken, draw: d.drawID}
	for _, dest := range d.sortedDestinations() {
		lane := newLane(n, dest)
		n.lanes = append(n.lanes, lane)
		for _, a := range dest.actions {
			n.byName[a.name] = lane
			n.session.actions = append(n.session.actions, a.name)
		}
	}
	n.applier = newApplier(n)
	return n, nil
}

// close gives up the worker's connections.
func (n *node) close() { closePool(n.pool, n.stopMargin, n.log) }

func (n *node) newSettler() *settler {
	return &settler{pool: n.pool, q: n.q, log: n.log, in: n.results, wake: n.wake, behind: &n.behind, stuck: &n.stuck}
}

// heldUpOutcomes says whether so many outcomes wait for locks of others that nothing is claimed.
func (n *node) heldUpOutcomes() bool { return n.stuck.Load() >= maxStuck }

// stop lets no call begin any more.
func (n *node) stop() { close(n.stopping) }

// woken takes a notification: work of this action was committed. An empty one means: look everywhere, also at what is paused.
func (n *node) woken(action string) {
	if action != "" {
		n.wake(action)
		return
	}
	for _, lane := range n.lanes {
		lane.pokeAll()
	}
	select {
	case n.sweepNow <- struct{}{}:
	default:
	}
}

// wake pokes the lanes of these actions.
func (n *node) wake(actions ...string) {
	for _, action := range actions {
		if lane := n.byName[action]; lane != nil {
			lane.poke(action)
		}
	}
}

// count ends a claim: what came of it is written, or somebody else has taken it over.
func (n *node) count(s settlement, settled bool) {
	defer n.open.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !settled {
		n.sum.TakenOver++
		return
	}
	switch s.status {
	case statusDelivered:
		n.sum.Delivered++
	case statusRefused:
		n.sum.Refused++
	case statusPending, statusAnswered:
		n.sum.Retried++
	case statusUnknown:
		n.sum.Unknown++
	case statusParked:
		n.sum.Parked++
	case statusDead:
		n.sum.Dead++
	case statusAwaiting:
		n.sum.AwaitingApproval++
	}
}

// report logs what a person may want to see; delivered and refused intents are only in the history. The text of an
// error stays in the history too, since it may quote a vendor.
func (n *node) report(c *claim, s settlement) {
	level := slog.LevelInfo
	switch {
	case s.finishes(), s.status == statusAnswered, s.outcome == outcomeAccepted:
		level = slog.LevelDebug
	case s.answer.Code == codeEndpointStopped: // that it was stopped has been said
	case s.status == statusDead, s.status == statusParked:
		level = slog.LevelError
	case s.status == statusUnknown:
		level = slog.LevelWarn
	}
	if !n.log.Enabled(n.calls, level) {
		return
	}
	attrs := append(c.attrs(),
		slog.String("outcome", s.outcome), slog.String("status", s.status), slog.String("code", clean(s.answer.Code, codeLimit)),
		slog.Duration("again_in", s.delay), slog.Duration("took", s.took))
	switch {
	case s.answer.Code == codePanic:
		attrs = append(attrs, slog.String("error", panicText))
	case s.err != "":
		attrs = append(attrs, slog.String("error", c.withoutValues(s.err)))
	}
	if next := nextStep(s.status); next != "" {
		attrs = append(attrs, slog.String("next", next))
	}
	n.log.Log(n.calls, level, "dispatcher: "+s.event+" ended", attrs...)
}

// nextStep says what a person does about an intent that rests.
func nextStep(status string) string {
	switch status {
	case statusDead:
		return "correct the cause and redrive it (outbox.Redrive), which sends the same bytes; if the bytes are wrong, resolve it as not sent, cancel it, and insert it again with another part"
	case statusParked:
		return "find out at the vendor whether it acted, and resolve it (outbox.Resolve)"
	case statusAwaiting:
		return "approve or reject it (outbox.Approve, outbox.Reject)"
	}
	return ""
}

func (c *claim) attrs() []any {
	return []any{slog.String("action", c.action.name), slog.Any("intent", c.ID), slog.Int("attempt", int(c.Attempt)),
		slog.String("key", c.call().Key.Hash())}
}

// errFenced: somebody else has taken the intent over, or finished it.
var errFenced = errors.New("dispatcher: the intent was taken over")

func fenced(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errFenced
	}
	return err
}

// promote gives heads to ordering keys that have none.
func (n *node) promote(ctx context.Context, keys []string) (promoted []string, err error) {
	err = pgx.BeginTxFunc(ctx, n.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := n.q.WithTx(tx)
		if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
			return err
		}
		promoted, err = q.OutboxQueuePromote(ctx, keys)
		return err
	})
	return promoted, err
}
